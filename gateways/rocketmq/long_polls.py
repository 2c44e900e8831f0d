"""Pulls that wait for records to come (RocketMQ's long polling). No clock inside.

A pull that found nothing and allows it is held: until its queue grows, which the engine announces,
until its time is up, or until its connection is gone. One of a group that is paused waits for its
time, or until the group is resumed. For time, and for topics that are deleted,
the server looks ten times a second; such a look costs one per topic that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPoll(Generic[Owner]):
    """One waiting pull."""

    owner: Owner
    serial: int
    topic: str
    queue_id: int
    group: str
    offset: int
    until: float
    """Answer at this time at the latest."""


class LongPolls(Generic[Owner]):
    """All waiting pulls of a listener.

    Args:
        is_paused: whether a group gets nothing of a topic.
    """

    def __init__(self, count_max: int, is_paused: Callable[[str, str], bool]) -> None:
        self._count_max = count_max
        self._is_paused = is_paused
        self._by_topic: dict[str, dict[tuple[Owner, int], LongPoll[Owner]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, long_poll: LongPoll[Owner]) -> bool:
        """Hold it; False when the limit is reached."""
        if self._count >= self._count_max:
            return False
        self._by_topic.setdefault(long_poll.topic, {})[long_poll.owner, long_poll.serial] = (
            long_poll
        )
        self._count += 1
        return True

    def take_grown(self, topic: str, queue_id: int) -> list[LongPoll[Owner]]:
        """Take out what waited at the end of a queue that has grown."""
        held = self._by_topic.get(topic, {})
        taken = [
            long_poll
            for long_poll in held.values()
            if long_poll.queue_id == queue_id and not self._is_paused(long_poll.group, topic)
        ]
        for long_poll in taken:
            self._remove(long_poll)
        return taken

    def take(
        self, now: float, ends: Callable[[str], tuple[int, ...] | None]
    ) -> list[LongPoll[Owner]]:
        """Take out what can be answered.

        Args:
            ends: one past the last offset of each queue of a topic; None if it is gone.
        """
        taken = []
        for topic, held in self._by_topic.items():
            offsets = ends(topic)
            for long_poll in held.values():
                waits = offsets is not None and long_poll.queue_id < len(offsets)
                waits = waits and (
                    offsets[long_poll.queue_id] == long_poll.offset  # type: ignore[index]
                    or self._is_paused(long_poll.group, topic)
                )
                if not waits or long_poll.until <= now:
                    taken.append(long_poll)
        for long_poll in taken:
            self._remove(long_poll)
        return taken

    def drop(self, owner: Owner) -> list[LongPoll[Owner]]:
        """Take out all that one owner holds."""
        dropped = [
            long_poll
            for held in self._by_topic.values()
            for long_poll in held.values()
            if long_poll.owner == owner
        ]
        for long_poll in dropped:
            self._remove(long_poll)
        return dropped

    def _remove(self, long_poll: LongPoll[Owner]) -> None:
        held = self._by_topic[long_poll.topic]
        del held[long_poll.owner, long_poll.serial]
        if not held:
            del self._by_topic[long_poll.topic]
        self._count -= 1
