"""What operators see of a group on a queue: what waits, how old and how large it is.

Functions that look at entries are generators: `next` does one step of some microseconds, so that a
backlog of a million messages does not stop the loop. A step that needs entries that are not in
memory yields what it needs, and is sent what was read.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from polymq.broker.queues.heads import sizes_of, stored_ms_of
from polymq.broker.queues.queue import Group
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT
from polymq.core_log.kernels.layout import PRIVATE_ENTRY_SIZE
from polymq.core_log.queue_index import Index

ENTRIES_AT_ONCE: Final = 4096
"""Entries whose sizes are added up in one step, some 100 us."""


@dataclass(frozen=True, slots=True)
class Need:
    """Entries that have to be read from the disk: send them, or None if that failed."""

    index: Index
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class NeedRecord:
    """The record of one message: send it, or None if it cannot be read."""

    index: Index
    offset: int


def ready_stretches(group: Group) -> list[tuple[int, int]]:
    """What waits for a consumer: first offset and count of each stretch, in order."""
    if not group.ready_count:
        return []
    cursor, end = group.cursor, group.queue.visible
    stretches = list(cursor.requeued())
    first = max(cursor.next, group.queue.index.first_offset)
    if first < end:
        stretches.append((first, min(end, cursor.stop) - first))
    return [(first, count) for first, count in stretches if count > 0]


def bytes_of(
    group: Group, first: int, count: int
) -> Generator[Need | None, bytes | None, tuple[int, int]]:
    """How many entries from an offset on were found, and the bytes of their records."""
    looked = size = 0
    while looked < count:
        index = group.queue.index
        at, some = first + looked, min(ENTRIES_AT_ONCE, count - looked)
        entries = index.read_hot(at, some)
        if entries is None:
            entries = yield Need(index, at, some)
        if not entries:
            break  # the queue ended, or its oldest messages went
        looked += len(entries) // index.entry_size
        size += sum(sizes_of(entries))
        yield None
    return looked, size


def oldest_ms(group: Group) -> Generator[Need | None, bytes | None, int | None]:
    """When the oldest message that waits was stored, in milliseconds since the epoch; None: nothing
    waits, or its entry cannot be read."""
    stretches = ready_stretches(group)
    if not stretches:
        return None
    index = group.queue.index
    if index.entry_size != PRIVATE_ENTRY_SIZE:
        return None  # a topic's own queue: its entries have no time
    first = stretches[0][0]
    entries = index.read_hot(first, 1)
    if entries is None:
        entries = yield Need(index, first, 1)
    if not entries:
        return None
    return stored_ms_of(entries)


def stored_ms(
    index: Index, offset: int
) -> Generator[Need | NeedRecord | None, bytes | None, int | None]:
    """When the message at an offset was stored, in milliseconds since the epoch; None: it is gone,
    or cannot be read. The entries of a topic's own queue have no time, so its record is read."""
    if index.entry_size == PRIVATE_ENTRY_SIZE:
        entries = index.read_hot(offset, 1)
        if entries is None:
            entries = yield Need(index, offset, 1)
        return stored_ms_of(entries) if entries else None
    record = yield NeedRecord(index, offset)
    if not record:
        return None
    return int.from_bytes(record[RECORD_STORE_MS_AT : RECORD_STORE_MS_AT + 8], "big")
