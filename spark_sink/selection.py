"""Which topics a query reads. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polymq.spark_sink.errors import BadOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Topics by name, by a pattern, or all of them.

    Attributes:
        topics: these and no others; None: all that the server has, as far as
        pattern: matches their whole name (None: any name), and
        excluded: does not name them.

    Raises:
        BadOption: the three contradict each other.
    """

    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    excluded: frozenset[str] = frozenset()

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


def parse_pattern(text: str) -> re.Pattern[str]:
    """The option `topicPattern`: a regular expression, as Python's `re` has them."""
    try:
        return re.compile(text)
    except re.error as error:
        text = f"topicPattern: {text[:100]!r} is not a regular expression: {error}"
        raise BadOption(text) from error
