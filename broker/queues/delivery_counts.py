"""How often messages were given back: what a delivery limit counts.

Only messages between the oldest and the newest that were given back and are not settled take a
place: one byte each, saturating. A queue without a limit counts nothing.

The counts survive as part of the lazy record of acks and of the snapshot's row of the group, so a
crash may forget what was given back in the last moment. A restart by itself does not count: neither
a crash nor a stop in order, during which clients give back what they hold (`Core.begin_stop`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

TIMES_MAX: Final = 255
_ONE_MORE: Final = bytes(min(times + 1, TIMES_MAX) for times in range(256))
_COUNTED: Final = re.compile(b"(?s)([^\\x00])\\1*")

Stretch = list[int]
"""First offset, count, how often each of them was given back."""


class DeliveryCounts:
    """The counts of one group."""

    __slots__ = ("_base", "_changed", "_times")

    def __init__(self) -> None:
        self._base = 0  # the offset of the first count
        self._times = bytearray()
        self._changed: list[tuple[int, int]] = []  # (first, count) since `take_changes`

    def add(self, first: int, count: int, floor: int) -> None:
        """Messages were given back once more.

        Args:
            floor: all below is settled: its counts are forgotten.
        """
        self._reach(first, count, floor)
        start = first - self._base
        window = self._times[start : start + count]
        self._times[start : start + count] = window.translate(_ONE_MORE)
        self._changed.append((first, count))

    def load(self, first: int, count: int, times: int, floor: int) -> None:
        """Take a stretch as the log or the snapshot has it.

        Args:
            floor: all below is settled: its counts are forgotten.
        """
        end, first = first + count, max(first, floor)
        if first < end:
            self._reach(first, end - first, floor)
            start = first - self._base
            self._times[start : start + end - first] = bytes((times,)) * (end - first)

    def alike(self, first: int, count: int) -> tuple[int, int]:
        """How many messages from `first` on were given back equally often, and how often."""
        start = first - self._base
        if start < 0:
            return min(count, -start) if self._times else count, 0
        window = self._times[start : start + count]
        if not window:
            return count, 0
        length = len(window) - len(window.lstrip(window[:1]))
        if length == len(window) and not window[0]:
            length = count  # behind the last that was given back there is none
        return length, window[0]

    def stretches(self, floor: int) -> Iterator[Stretch]:
        """Everything from `floor` on that was given back at least once."""
        return self._counted(max(0, floor - self._base), len(self._times))

    def take_changes(self) -> list[Stretch]:
        """What has changed since the last call, for a record of acks."""
        changed, self._changed = self._changed, []
        stretches: list[Stretch] = []
        for first, count in changed:
            start = max(0, first - self._base)
            stretches += self._counted(start, first + count - self._base)
        return stretches

    def keep_changes(self, stretches: Iterable[Stretch]) -> None:
        """The log did not take them: they are changes still."""
        self._changed[:0] = [(first, count) for first, count, _ in stretches]

    def _counted(self, start: int, end: int) -> Iterator[Stretch]:
        for found in _COUNTED.finditer(self._times, start, max(start, end)):
            yield [self._base + found.start(), len(found[0]), found[0][0]]

    def _reach(self, first: int, count: int, floor: int) -> None:
        """Have places for [first, first + count), and none below `floor`."""
        if not self._times:
            self._base = first
        elif first < self._base:
            self._times[:0] = bytes(self._base - first)
            self._base = first
        if floor > self._base:
            gone = min(floor - self._base, len(self._times))
            del self._times[:gone]
            self._base = floor if self._times else first
        missing = first + count - self._base - len(self._times)
        if missing > 0:
            self._times.extend(bytes(missing))
