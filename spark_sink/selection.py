"""Which topics a query reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from polymq.spark_sink.errors import BadOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Topics by name, by a pattern, or all of them.

    Attributes:
        topics: these and no others; None: all that the server has, as far as
        pattern: matches their whole name (None: any name), and
        excluded: does not name them.
        assigned: for some of the topics, the numbers of the queues that are read.

    Raises:
        BadOption: they contradict each other.
    """

    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    excluded: frozenset[str] = frozenset()
    assigned: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topics is None:
            return
        if self.pattern is not None:
            raise BadOption("topicPattern: topics are named, too; use one of the two")
        if both := sorted(self.excluded.intersection(self.topics)):
            raise BadOption(f"excludeTopic: topic {both[0]!r} is named as one to read, too")

    def wants(self, topic: str) -> bool:
        """Whether the query reads this topic."""
        if self.topics is not None:
            return topic in self.topics
        if topic in self.excluded:
            return False
        return self.pattern is None or self.pattern.fullmatch(topic) is not None

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the query reads this queue of a topic."""
        numbers = self.assigned.get(topic)
        return self.wants(topic) and (numbers is None or queue_id in numbers)


def parse_pattern(text: str) -> re.Pattern[str]:
    """The option `topicPattern`: a regular expression, as Python's `re` has them."""
    try:
        return re.compile(text)
    except re.error as error:
        text = f"topicPattern: {text[:100]!r} is not a regular expression: {error}"
        raise BadOption(text) from error
