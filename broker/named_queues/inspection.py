"""What operators see of queues that have a name."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.queues.inspection import Need, bytes_of, oldest_ms, ready_stretches
from polymq.broker.queues.queue import Group

ENTRIES_MAX: Final = 1_000_000
"""Entries that are looked at for one queue."""


def unacknowledged_count(found: NamedQueue) -> int:
    """Messages that were delivered, and neither settled nor given back."""
    group = found.group
    if isinstance(group, Group):  # of very many queues, nearly all
        return group.cursor.outstanding_count
    return sum(level.cursor.outstanding_count for level in group.all_groups())


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in a queue.

    Attributes:
        bytes: of its records in the log.
        is_complete: all that waits was looked at.
        oldest_ms: when the oldest of it was stored, in milliseconds since the epoch; None: nothing
            waits, or that is not known.
    """

    bytes: int
    is_complete: bool
    oldest_ms: int | None


def inspect_backlog(found: NamedQueue) -> Generator[Need | None, bytes | None, Backlog]:
    """What waits in a queue, in steps (see `queues/inspection.py`)."""
    left, size = ENTRIES_MAX, 0
    times: list[int] = []
    for group in found.group.all_groups():
        time = yield from oldest_ms(group)
        if time is not None:
            times.append(time)
        for first, count in ready_stretches(group):
            looked, more = yield from bytes_of(group, first, min(count, left))
            left -= looked
            size += more
    return Backlog(size, left > 0, min(times, default=None))
