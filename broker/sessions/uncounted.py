"""What of a session's backlog does not count: messages of QoS 0 that came while its client was
away.

They stand in the queue of the filter, which other sessions read as well, but the client never gets
them (`Subscription.deliver`). Where nothing waits, they are passed over when they come. Behind
messages that wait, they stay until their turn comes. So they are counted here, and left out of what
may be too much.

An index entry says whether its message has QoS 0, and how many bytes it has. So nothing is kept for
a message, and the count is made again after a restart: for a session that may have too much. It
follows the queue while messages come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Final, Protocol

from polymq.broker.core import Core
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.heads import sizes_of
from polymq.broker.queues.queue import Queue, Registration
from polymq.core_log.kernels.layout import PRIVATE_ENTRY_SIZE

PIECE_COUNT: Final = 1024
"""Entries that are counted in one loop iteration for one session: about 20 us."""
_FLAG_AT: Final = 20  # the highest byte of an entry's store time, whose highest bit is the flag
_TO_FLAG: Final = bytes(128) + b"\x01" * 128


class Reader(Protocol):
    """A subscription, as far as it matters here: see `subscription.Subscription`."""

    qos: int
    away_end: int
    queued_end: int
    lowered_first: int
    lowered_end: int


class ReaderGroup(Protocol):
    """Its group, as far as it matters here: see `flights.SessionGroup`."""

    queue: Queue
    cursor: Cursor

    @property
    def registrations(self) -> Sequence[Registration]:
        """Those that are served now."""

    @property
    def subscription(self) -> Reader | None:
        """None once the client has unsubscribed."""


class _Count:
    """How many messages in front of one subscription do not count, before the offset `end`.

    Attributes:
        bytes: what they have.
        rule: what the subscription's QoS was when they were counted.
    """

    __slots__ = ("bytes", "count", "end", "rule")

    def __init__(self, end: int, rule: tuple[int, int, int]) -> None:
        self.end = end
        self.count = 0
        self.bytes = 0
        self.rule = rule

    def passed(self, count: int, size: int) -> None:
        """So many are gone, with so many bytes."""
        self.count = max(0, self.count - count)
        self.bytes = max(0, self.bytes - size) if self.count else 0


class Uncounted:
    """What does not count in one session.

    Args:
        keeps_qos_0: everything counts, because everything is delivered.
        in_bytes: somebody asks for bytes.

    Attributes:
        reading: something is on its way from the disk.
    """

    __slots__ = ("_core", "_counts", "_in_bytes", "_keeps_qos_0", "reading")

    def __init__(self, core: Core, *, keeps_qos_0: bool, in_bytes: bool) -> None:
        self._core = core
        self._in_bytes = in_bytes
        self._keeps_qos_0 = keeps_qos_0
        self.reading = False
        self._counts: dict[ReaderGroup, _Count] = {}

    def came(self, group: ReaderGroup, first: int, count: int, size: int, *, counts: bool) -> None:
        """Messages with so many bytes became visible at `first`, which count or do not."""
        if group.registrations or group.subscription is None or self._keeps_qos_0:
            return  # what comes while the client is there counts, until that goes away
        found = self._counts.get(group)
        if found is None or found.end < group.cursor.next:
            rule = _rule(group.subscription)
            found = self._counts[group] = _Count(group.cursor.next, rule)
        if found.end < first and not self.reading:  # it follows, so that little is left to count
            missing = min(first - found.end, PIECE_COUNT)
            self._count_piece(group, found, missing, _do_nothing)
        if found.end == first:
            found.end += count
            if not counts:
                found.count += count
                found.bytes += size

    def passed(self, group: ReaderGroup, count: int, size: int) -> None:
        """Their turn came: so many that do not count are gone, with so many bytes."""
        found = self._counts.get(group)
        if found is not None:
            found.passed(count, size)

    def flags(self, group: ReaderGroup, first: int, entries: bytes) -> bytes:
        """One byte for each of the messages from `first` on: 1 if it does not count."""
        count = len(entries) // PRIVATE_ENTRY_SIZE
        subscription = group.subscription
        if subscription is None or self._keeps_qos_0 or first < group.cursor.next:
            return bytes(count)
        away = min(max(_end(group, subscription) - first, 0), count)
        flags = entries[_FLAG_AT : away * PRIVATE_ENTRY_SIZE : PRIVATE_ENTRY_SIZE]
        flags = flags.translate(_TO_FLAG)
        if not subscription.qos:  # lowered: only what came before that has another QoS than 0
            queued = min(max(subscription.queued_end - first, 0), away)
            flags = flags[:queued] + b"\x01" * (away - queued)
        low = min(max(subscription.lowered_first - first, 0), away)
        high = min(max(subscription.lowered_end - first, 0), away)
        if low < high:  # lowered and raised again: what came in between has QoS 0
            flags = flags[:low] + b"\x01" * (high - low) + flags[high:]
        return flags + bytes(count - away)

    def count(self, groups: Sequence[ReaderGroup], changed: Callable[[], None]) -> int | None:
        """How many of the messages that wait in these groups do not count. None: ask again in a
        later loop iteration.

        Args:
            changed: called when something is there that had to be read first.
        """
        if self._keeps_qos_0:
            return 0
        if self.reading:
            return None
        if len(self._counts) > len(groups):
            known = set(groups)
            for gone in [group for group in self._counts if group not in known]:
                del self._counts[gone]
        if not self._follow(groups, changed):
            return None
        return sum(self._count(group) for group in groups)

    def is_all(self, group: ReaderGroup) -> bool:
        """Whether nothing that waits in a group counts, as far as is known."""
        found, subscription = self._counts.get(group), group.subscription
        if found is None or not found.count or subscription is None:
            return False
        waiting = group.cursor.ready_count(group.queue.visible)
        end = _end(group, subscription)
        return found.count == waiting and found.end >= end and found.rule == _rule(subscription)

    def bytes_of(self, groups: Sequence[ReaderGroup]) -> int:
        """The bytes of those that `count` has counted in these groups."""
        found = [self._counts.get(group) for group in groups]
        return sum(one.bytes for one in found if one is not None)

    def _count(self, group: ReaderGroup) -> int:
        found = self._counts.get(group)
        return 0 if found is None else found.count

    def _follow(self, groups: Sequence[ReaderGroup], changed: Callable[[], None]) -> bool:
        """Count what was not counted yet, a piece of it at most. Returns whether that is all."""
        room = PIECE_COUNT
        for group in groups:
            subscription = group.subscription
            if subscription is None:
                continue
            rule, start = _rule(subscription), group.cursor.next
            found = self._counts.get(group)
            if found is None or found.rule != rule or found.end < start:
                found = self._counts[group] = _Count(start, rule)
            end = _end(group, subscription)
            # What is gone is not there to be counted.
            found.end = max(found.end, group.queue.index.first_offset)
            while found.end < end:
                counted = self._count_piece(group, found, min(end - found.end, room), changed)
                room -= counted
                if not counted or not room:
                    return False
        return True

    def _count_piece(
        self, group: ReaderGroup, found: _Count, count: int, changed: Callable[[], None]
    ) -> int:
        """Count up to so many more. Returns how many; 0 if they are read first."""
        index = group.queue.index
        entries = index.read_hot(found.end, count)
        if entries:
            return self._add(group, found, found.end, entries)
        self.reading = True
        took = partial(self._took, group, found, changed)
        self._core.reading.entries(index, found.end, count, took)
        return 0

    def _took(
        self,
        group: ReaderGroup,
        found: _Count,
        changed: Callable[[], None],
        first: int,
        entries: bytes | None,
    ) -> None:
        self.reading = False
        if entries:  # else the read failed, which was told: the next message asks again
            if first >= found.end:
                self._add(group, found, first, entries)
            changed()

    def _add(self, group: ReaderGroup, found: _Count, first: int, entries: bytes) -> int:
        flags = self.flags(group, first, entries)
        found.end = first + len(flags)
        found.count += flags.count(1)
        if self._in_bytes:
            found.bytes += sum(compress(sizes_of(entries), flags))
        return len(flags)


def _do_nothing() -> None:
    """Nobody waits for the count."""


def _rule(subscription: Reader) -> tuple[int, int, int]:
    return subscription.qos, subscription.queued_end, subscription.lowered_end


def _end(group: ReaderGroup, subscription: Reader) -> int:
    """Where what came while the client was away ends."""
    end = min(group.queue.visible, group.cursor.stop)
    return min(end, subscription.away_end) if group.registrations else end
