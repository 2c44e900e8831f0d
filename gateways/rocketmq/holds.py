"""Pulls that wait for records to come (RocketMQ's long polling). No clock inside.

A pull that found nothing and allows it is held: until its queue grows, which the engine announces,
until its time is up, or until its connection is gone. For time, and for topics that are deleted,
the server looks ten times a second; such a look costs one per topic that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Generic[Owner]):
    """One waiting pull."""

    owner: Owner
    serial: int
    topic: str
    queue_id: int
    offset: int
    until: float
    """Answer at this time at the latest."""


class Holds(Generic[Owner]):
    """All waiting pulls of a listener."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._by_topic: dict[str, dict[tuple[Owner, int], Hold[Owner]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, hold: Hold[Owner]) -> bool:
        """Hold it; False when the limit is reached."""
        if self._count >= self._count_max:
            return False
        self._by_topic.setdefault(hold.topic, {})[hold.owner, hold.serial] = hold
        self._count += 1
        return True

    def take_grown(self, topic: str, queue_id: int) -> list[Hold[Owner]]:
        """Take out what waited at the end of a queue that has grown."""
        held = self._by_topic.get(topic, {})
        taken = [hold for hold in held.values() if hold.queue_id == queue_id]
        for hold in taken:
            self._remove(hold)
        return taken

    def take(self, now: float, ends: Callable[[str], tuple[int, ...] | None]) -> list[Hold[Owner]]:
        """Take out what can be answered.

        Args:
            ends: one past the last offset of each queue of a topic; None if it is gone.
        """
        taken = []
        for topic, held in self._by_topic.items():
            offsets = ends(topic)
            for hold in held.values():
                waits = offsets is not None and hold.queue_id < len(offsets)
                waits = waits and offsets[hold.queue_id] == hold.offset  # type: ignore[index]
                if not waits or hold.until <= now:
                    taken.append(hold)
        for hold in taken:
            self._remove(hold)
        return taken

    def drop(self, owner: Owner) -> list[Hold[Owner]]:
        """Take out all that one owner holds."""
        dropped = [
            hold
            for held in self._by_topic.values()
            for hold in held.values()
            if hold.owner == owner
        ]
        for hold in dropped:
            self._remove(hold)
        return dropped

    def _remove(self, hold: Hold[Owner]) -> None:
        held = self._by_topic[hold.topic]
        del held[hold.owner, hold.serial]
        if not held:
            del self._by_topic[hold.topic]
        self._count -= 1
