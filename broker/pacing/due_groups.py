"""What is due at about the same time shares one timer: thousands of sessions, say.

Each thing is in no more than one group, and is taken out when it is not due any more, so that what
comes and goes costs nothing. A thing is never early. It is late by a thirtieth of the time that it
waits, or by a second if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from polymq.broker.pacing.timers import Timer, Timers

T = TypeVar("T")

APART_MS_MIN: Final = 1_000
GROUPS_PER_WAIT: Final = 64
"""What waits for the same time is in so many groups or fewer: in twice as many at most, since the
times of groups are apart by powers of two."""


class DueGroups(Generic[T]):
    """Things that wait for their time.

    Args:
        timers: those of the engine.
        are_due: called with a whole group when its time has come.
    """

    def __init__(self, timers: Timers, are_due: Callable[[Iterable[T]], None]) -> None:
        self._timers = timers
        self._are_due = are_due
        self._groups: dict[int, tuple[Timer, dict[T, None]]] = {}

    def add(self, thing: T, due_ms: int, wait_ms: int) -> int:
        """Wait until `due_ms`, which is `wait_ms` in all. Returns the group, for `remove`."""
        apart_ms = max(APART_MS_MIN, 1 << (wait_ms // GROUPS_PER_WAIT).bit_length())
        at_ms = -(-due_ms // apart_ms) * apart_ms
        found = self._groups.get(at_ms)
        if found is None:
            timer = self._timers.at(at_ms, self._come, at_ms)
            found = self._groups[at_ms] = (timer, {})
        found[1][thing] = None
        return at_ms

    def remove(self, thing: T, group: int) -> None:
        """It does not wait any more; nothing if its time has come."""
        found = self._groups.get(group)
        if found is not None:
            timer, things = found
            things.pop(thing, None)
            if not things:
                del self._groups[group]
                timer.cancel()

    def _come(self, at_ms: int) -> None:
        self._are_due(self._groups.pop(at_ms)[1])
