"""Reads of index entries for retention, many at a time, in a worker's thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polymq.broker.retention.topic_trims import Trim
from polymq.core_log.errors import CorruptRecord, StorageFailed
from polymq.core_log.queue_index import Index, QueueIndex
from polymq.core_log.retention import first_after_position, position_at


def trims_of(trims: Sequence[Trim]) -> list[list[tuple[int, int]]]:
    """Where each of these topics begins then."""
    return [trim.find() for trim in trims]


def first_offsets(indexes: Sequence[QueueIndex], before: int) -> list[int]:
    """The first offset of each index behind the position `before`; -1 where it cannot be read."""
    offsets = []
    for index in indexes:
        try:
            offsets.append(first_after_position(index, before))
        except (CorruptRecord, StorageFailed):
            offsets.append(-1)
    return offsets


def positions_of(asked: Iterable[tuple[Index, int]]) -> list[int]:
    """Where the records of these entries are; -1 where that cannot be read."""
    positions = []
    for index, offset in asked:
        try:
            positions.append(position_at(index, offset))
        except (CorruptRecord, StorageFailed):
            positions.append(-1)
    return positions
