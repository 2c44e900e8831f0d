"""How many bytes wait for sessions and shared subscriptions, where that has a bound.

Each group has a count (`ReadyBytes`), which begins with the first message that may be too much: a
start reads nothing for it. While the client is away, the count follows what comes, so that a
session that is full is never counted anew. What a client takes at once is not counted.

Bytes are those of the records as they are stored: body, properties, and about 150 of the record's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from polymq.broker.core import Core
from polymq.broker.kernels.path import Committed
from polymq.broker.queues.heads import sizes_of
from polymq.broker.queues.ready_bytes import ReadyBytes, count_within
from polymq.broker.sessions.uncounted import ReaderGroup, Uncounted
from polymq.core_log.queue_index import Index

PIECE_COUNT: Final = 1024
"""Entries that are counted in one loop iteration for one group: about 30 us."""
SLICE_COUNT: Final = 32_768
"""Entries that are counted in one loop iteration for all of them: about 2 ms."""
NEAR_COUNT: Final = 256
"""Entries that are counted at once when a message comes, which must not cost much."""
READS_MAX: Final = 64
"""Reads from the disk at a time. The other sessions wait for them."""


class Rest(NamedTuple):
    """What else waits beside a group, for the same bound.

    Attributes:
        others: the other groups.
        uncounted: what of all that does not count; None where everything does.
        changed: called when something is known that was not.
    """

    others: Sequence[ReaderGroup]
    uncounted: Uncounted | None
    changed: Callable[[], None]


class WaitingBytes:
    """The bound of one broker, and what is needed to count for it.

    Args:
        next_turn: called when a read has ended.

    Attributes:
        max: the bound.
    """

    def __init__(self, core: Core, bytes_max: int, next_turn: Callable[[], None]) -> None:
        self._core = core
        self._next_turn = next_turn
        self._reads = 0
        self._left = SLICE_COUNT
        self.max = bytes_max

    @property
    def may_read(self) -> bool:
        """Whether another group may be read from the disk; if not, `next_turn` is called."""
        return self._reads < READS_MAX

    @property
    def may_count(self) -> bool:
        """Whether another group may be counted in this loop iteration."""
        return self._left > 0 and self.may_read

    def begin_slice(self) -> None:
        """A loop iteration begins."""
        self._left = SLICE_COUNT

    def came(self, group: ReaderGroup, run: Committed, first: int) -> None:
        """A run became visible at offset `first`, and waits unless its client takes it at once."""
        ready = group.cursor.watch
        if not isinstance(ready, ReadyBytes) or (
            group.registrations and group.cursor.next == first
        ):
            return
        if ready.is_behind(first) and self.may_read:
            ready.count_on(first, NEAR_COUNT)
        ready.came_at_end(first, run.count, size_of(run))

    def waiting(self, groups: Sequence[ReaderGroup], changed: Callable[[], None]) -> int | None:
        """How many bytes wait in these groups. None: ask again when `changed` is called."""
        found: list[int | None] = []
        for group in groups:
            end = min(group.queue.visible, group.cursor.stop)
            ready = self._counted(group, changed)
            self._left -= ready.count_on(end, min(PIECE_COUNT, self._left))
            found.append(self._result(ready, end, changed))
        return _sum(found)

    def fitting(
        self, group: ReaderGroup, first: int, count: int, rest: Rest
    ) -> tuple[int, int] | None:
        """How many of the messages from an offset on, which have just come, have room, and how many
        bytes are left then. None if that is known later."""
        sizes = _sizes_in(group, first, count)
        free = self._free(group, first, rest, sum(sizes))
        if not sizes or free is None:
            return None
        fits = count_within(sizes, free)
        return fits, free - sum(sizes[:fits])

    def first_fitting(self, group: ReaderGroup, first: int, end: int, rest: Rest) -> int:
        """The first of the offsets [first, end), of messages that have just come, whose message has
        room, or `end`; the first one, if that is known later."""
        sizes = _sizes_in(group, first, end - first)
        free = self._free(group, first, rest, max(sizes, default=0))
        if not sizes or free is None:
            return first
        return first + next((at for at, size in enumerate(sizes) if size <= free), len(sizes))

    def _free(self, group: ReaderGroup, before: int, rest: Rest, new: int) -> int | None:
        """How many bytes may wait besides those that do, without what came to the group from an
        offset on; or less, if that is enough for so many new ones. None if that is known later.
        Costs little more than what came."""
        found: list[int | None] = []
        for one in (group, *rest.others):
            end = min(one.queue.visible, one.cursor.stop)
            if one is group:
                end = min(end, before)
            ready = self._counted(one, rest.changed)
            if self.may_read:
                ready.count_on(end, NEAR_COUNT)
            found.append(self._result(ready, end, rest.changed))
        waiting = _sum(found)
        if waiting is None:
            return None
        free = self.max - waiting
        if free < new and rest.uncounted is not None:
            groups = [group, *rest.others]
            if rest.uncounted.count(groups, rest.changed) is None:
                return None
            free += rest.uncounted.bytes_of(groups)
        return max(0, free)

    def _counted(self, group: ReaderGroup, changed: Callable[[], None]) -> ReadyBytes:
        """The count of a group, which begins if there is none."""
        cursor, index = group.cursor, group.queue.index
        if cursor.floor < index.first_offset:
            cursor.skip_to(index.first_offset)
        ready = cursor.watch
        if not isinstance(ready, ReadyBytes) or (ready.has_lost and not ready.is_reading):
            ready = cursor.watch = ReadyBytes(self._entries, group.queue, cursor, changed)
        return ready

    def _result(self, ready: ReadyBytes, end: int, changed: Callable[[], None]) -> int | None:
        if ready.is_reading:
            return None
        if ready.is_behind(end):
            changed()
            return None
        return ready.bytes

    def _entries(
        self, index: Index, first: int, count: int, done: Callable[[int, bytes | None], None]
    ) -> None:
        """See `Reading.entries`."""

        def took(first: int, entries: bytes | None) -> None:
            self._reads -= 1
            done(first, entries)
            self._next_turn()

        self._reads += 1
        self._core.reading.entries(index, first, count, took)


def size_of(run: Committed) -> int:
    """The bytes of a run as it is stored."""
    return sum(part.end - part.start for part in run.runs)


def _sizes_in(group: ReaderGroup, first: int, count: int) -> Sequence[int]:
    """The sizes of messages that have just come; none where they are not in memory any more."""
    return sizes_of(group.queue.index.read_hot(first, count) or b"")


def _sum(found: Sequence[int | None]) -> int | None:
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None
