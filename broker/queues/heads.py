"""The index entries at the head of a group's queue: from memory, or fetched from the disk.

Rules that look at what comes next (what has expired, what gives way) need its entries and not its
records. Entries of a long backlog are on the disk; then a reader thread gets them, and the caller
is told when to ask again.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Final

from polymq.broker.core import Core
from polymq.broker.queues.queue import Group
from polymq.core_log.kernels.layout import PRIVATE_ENTRY_SIZE, STORE_MS_MASK

LOOK_COUNT: Final = 256
"""Entries that are looked at first: 8 KiB."""
_NUMBERS: Final = PRIVATE_ENTRY_SIZE // 4
_POSITIONS: Final = PRIVATE_ENTRY_SIZE // 8  # the position is the first
_SIZE_AT: Final = 2  # the record's size is the third word of an entry
_STORE_MS: Final = slice(20, 26)


class Head:
    """The head of one group.

    Args:
        ready: called when entries came that were not in memory, or none are there any more.
    """

    __slots__ = ("_core", "_fetched", "_fetching", "_group", "_ready")

    def __init__(self, core: Core, group: Group, ready: Callable[[], None]) -> None:
        self._core = core
        self._group = group
        self._ready = ready
        self._fetching = False
        self._fetched: tuple[int, bytes] | None = None  # (first offset, entries)

    def close(self) -> None:
        """The queue is gone: nobody is called back any more."""
        self._ready = lambda: None

    def entries(self, first: int, count: int) -> bytes | None:
        """Up to `count` private entries from `first` on, at least one; None: ask again when
        `ready` is called."""
        index = self._group.queue.index
        entries = index.read_hot(first, count)
        if entries:
            return entries
        if entries is not None:  # a queue in memory let go of its oldest
            self._group.cursor.skip_to(index.first_offset)
            self._core.reading.schedule(self._ready)
            return None
        if self._fetched is not None:
            start, fetched = self._fetched
            skip = (first - start) * index.entry_size
            if 0 <= skip < len(fetched):
                return fetched[skip : skip + count * index.entry_size]
            self._fetched = None
        if not self._fetching:
            self._fetching = True
            self._core.reading.entries(index, first, count, self._took)
        return None

    def _took(self, first: int, entries: bytes | None) -> None:
        self._fetching = False
        if entries:  # else the read failed, which was told; the queue stands still
            self._fetched = (first, entries)
            self._ready()


def positions_of(entries: bytes) -> array[int]:
    """Where the messages of private entries stand in the log."""
    address = array("Q", entries)[::_POSITIONS]
    if sys.byteorder == "little":
        address.byteswap()
    return address


def sizes_of(entries: bytes) -> array[int]:
    """The sizes of the records of private entries, in bytes as they are stored."""
    address = array("I", entries)[_SIZE_AT::_NUMBERS]
    if sys.byteorder == "little":
        address.byteswap()
    return address


def stored_ms_of(entry: bytes) -> int:
    """When the record of a private entry was stored, in milliseconds since the epoch."""
    return int.from_bytes(entry[_STORE_MS], "big") & STORE_MS_MASK
