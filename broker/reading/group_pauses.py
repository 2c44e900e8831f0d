"""Consumer groups of RocketMQ that an operator has paused, each in a topic.

A group holds no messages here, so a pause is a note that whoever serves its pulls looks at: the ops
`group-pause+` and `group-pause-`, and a field of the group's row. It belongs to the topic's
incarnation, as offsets do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from polymq.broker.port.infos import Pause

PAUSES_MAX: Final = 1_000
"""Topics of one group that are paused: they are in its row."""


class GroupPauses:
    """The pauses of all groups.

    Args:
        incarnation_of: a topic's; None if there is none.
    """

    def __init__(self, incarnation_of: Callable[[str], int | None]) -> None:
        self._incarnation_of = incarnation_of
        self._by_group: dict[str, dict[str, tuple[int, Pause]]] = {}

    def is_paused(self, group: str, topic: str) -> bool:
        """Whether the group gets nothing of the topic."""
        topics = self._by_group.get(group)
        return topics is not None and self._find(topics, topic) is not None

    def of_group(self, group: str) -> Iterator[tuple[str, Pause]]:
        """The topics in which a group is paused."""
        topics = self._by_group.get(group, {})
        for topic in list(topics):
            pause = self._find(topics, topic)
            if pause is not None:
                yield topic, pause

    def all(self) -> Iterator[Pause]:
        """All pauses."""
        for group in list(self._by_group):
            yield from (pause for _, pause in self.of_group(group))

    def is_full(self, group: str) -> bool:
        """Whether a group is paused in as many topics as it may be."""
        return len(self._by_group.get(group, ())) >= PAUSES_MAX

    def put(self, group: str, topic: str, incarnation: int, pause: Pause) -> None:
        """A group is paused in a topic."""
        self._by_group.setdefault(group, {})[topic] = incarnation, pause

    def remove(self, group: str, topic: str) -> None:
        """It is not any more."""
        topics = self._by_group.get(group, {})
        topics.pop(topic, None)
        if not topics:
            self.forget(group)

    def forget(self, group: str) -> None:
        """The group is gone."""
        self._by_group.pop(group, None)

    def rows(self, group: str) -> list[list[object]]:
        """[topic, incarnation, since, by] of a group, for the snapshot."""
        return [
            [topic, self._incarnation_of(topic), pause.since_ms, pause.by]
            for topic, pause in self.of_group(group)
        ]

    def load(self, group: str, rows: Sequence[Any]) -> None:
        """Take the pauses of a group from its row."""
        for topic, incarnation, since_ms, by in rows:
            self.put(group, topic, incarnation, Pause(since_ms=since_ms, by=by))

    def _find(self, topics: dict[str, tuple[int, Pause]], topic: str) -> Pause | None:
        incarnation, pause = topics.get(topic, (None, None))
        return pause if incarnation == self._incarnation_of(topic) else None
