"""Where a queue's oldest messages end that may go: by age, by size, by place in the log.

Theory. Entries of a queue ascend in position, and records in the log ascend in store time (as far
as the clock does), so what is too old is always a queue's beginning, and its end is found by
bisection: some twenty reads, whatever the queue holds. A clock that was set back makes the answer
too small or too large by what it was set back; offsets stay in order either way.

Only stored entries are looked at: what is younger than the last checkpoint is never due.

Everything here runs in a worker's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polymq.core_log.errors import CorruptRecord
from polymq.core_log.queue_index import Index, QueueIndex
from polymq.core_log.store import Store

SIZES_READ_MAX: Final = 4096
"""Entries whose sizes are added up per read of an index: 80 KiB."""


def position_at(index: Index, offset: int) -> int:
    """The log position of the message at `offset`, which is stored (or in an index in memory).

    Raises:
        StorageFailed: the entry cannot be read.
        CorruptRecord: it is gone (given up by now).
    """
    entry = index.read_cold(offset, 1)
    if not entry:
        raise CorruptRecord(0, f"the queue has no message {offset} any more")
    return int.from_bytes(entry[:8], "big")


def first_after_position(index: Index, position: int) -> int:
    """The first offset whose record stands at or behind `position`; the end of what is stored if
    none does.

    Raises as `position_at`.
    """
    return _bisect(index, lambda offset: position_at(index, offset) >= position)


def first_after_time(store: Store, index: QueueIndex, store_ms: int) -> int:
    """The first offset whose record was stored at that time or later; `stored_offset` if none was.

    Raises as `position_at`; CorruptRecord also if a record's head cannot be read.
    """

    def is_young(offset: int) -> bool:
        return store.store_ms_at(position_at(index, offset)) >= store_ms

    return _bisect(index, is_young)


def _bisect(index: Index, stays: Callable[[int], bool]) -> int:
    low = index.first_offset
    high = index.stored_offset if isinstance(index, QueueIndex) else index.end_offset
    if low < high and stays(low):
        return low  # the usual answer, for two reads
    while low < high:
        middle = (low + high) // 2
        if stays(middle):
            high = middle
        else:
            low = middle + 1
    return low


def sizes(index: QueueIndex, first: int, end: int) -> list[int]:
    """The records' sizes of the messages [first, end), or of the first of them: at least one if
    `first` is stored. Raises StorageFailed."""
    width = index.entry_size
    entries = index.read_cold(first, min(end - first, SIZES_READ_MAX))
    return [
        int.from_bytes(entries[at + 8 : at + 12], "big") for at in range(0, len(entries), width)
    ]
