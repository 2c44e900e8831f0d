"""Letting go of what waits in a queue up to a place, as an operator wants it.

All functions are generators of steps, as those in `inspection.py`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from polymq.broker.queues.inspection import Need, NeedRecord, ready_stretches, stored_ms
from polymq.broker.queues.queue import Group
from polymq.core_log.queue_index import Index

SETTLED_AT_ONCE: Final = 65_536
"""Messages that are settled in one step: bytes are set, so some 10 us."""


def offset_at(
    index: Index, low: int, high: int, time_ms: int
) -> Generator[Need | NeedRecord | None, bytes | None, int | None]:
    """The first offset in [low, high) whose message was stored at or after a time, else `high`;
    None: that cannot be read. A clock that was set back meanwhile makes it inexact."""
    while low < high:
        middle = (low + high) // 2
        time = yield from stored_ms(index, middle)
        if time is None:
            if middle < index.first_offset:  # it was deleted meanwhile
                low = index.first_offset
                continue
            return None
        if time < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


def count_below(group: Group, offset: int) -> int:
    """How many messages wait before an offset."""
    return sum(max(0, min(count, offset - first)) for first, count in ready_stretches(group))


def skip_below(group: Group, offset: int) -> Generator[None, None, int]:
    """Settle what waits before an offset, as if consumers had taken and acknowledged it. What they
    have stays theirs. Returns how many messages there were."""
    skipped = 0
    cursor = group.cursor
    end = min(offset, group.queue.visible)
    while (head := cursor.peek(SETTLED_AT_ONCE, end)) is not None and head[0] < end:
        taken = cursor.take(min(head[1], end - head[0]), end)
        assert taken is not None
        first, count, _ = taken
        group.reading.say_why(group, first, count, "passed over")
        group.settle(first, count)
        skipped += count
        yield
    return skipped
