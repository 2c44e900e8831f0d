"""One copy of what stands in the queues of several durable subscriptions of a session.

Each of them has a cursor on its own filter queue, and one message stands in several queues. Its
position in the log says that it is the same. Every queue is in the order of the log, so it is
enough to look at the heads.

Rules:

* A message is handed out only when no other subscription that matches it has something waiting
  that stands before it in the log: that one comes first. So every other queue that has the message
  has it at its head, and messages of a topic keep their order, whichever queue they come from.
* Whoever hands a message out settles it in all those queues. Where the message gets a packet id,
  the op `assign` says both (`also`). So a message is in flight or waits in every queue, whatever a
  crash leaves of the log.
* A message that one subscription lets go of without sending it (QoS 0 that did not wait, No Local,
  an overflow, the end of the subscription) stays in the other queues, and comes from there.

Who has to wait for another is *blocked*, and takes nothing (`Subscription.credit`) until the head
of the other has moved. The lowest head is never blocked, so one of them can always go on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from polymq.broker.core import Core
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.queues.heads import LOOK_COUNT, Head, positions_of
from polymq.broker.queues.queue import Group
from polymq.core_log.kernels.batch import RECORD_POSITION_AT, RECORD_SIZE_AT

FETCHING: Final = -1
"""Instead of the offset of a head: its entries are on their way from the disk."""
AGAIN_SECONDS: Final = 0.5
"""How often is looked whether a blocked group may go on, beside when that is known: what waited in
another queue may have expired."""


class Reader(Protocol):
    """A durable subscription, as far as it matters here: see `subscription.Subscription`."""

    @property
    def group(self) -> Group | None:
        """Its cursor."""


R = TypeVar("R", bound=Reader)


class LogOrder(Generic[R]):
    """The durable subscriptions of one session, in the order of the log."""

    __slots__ = ("_again", "_blocked", "_core", "_heads", "_scheduled")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._blocked: dict[Group, tuple[Group, int]] = {}
        """For which other it waits, and the offset of the head of that."""
        self._heads: dict[Group, Head] = {}  # of those whose entries were on the disk
        self._scheduled = False
        self._again = False

    def portion(
        self, group: Group, positions: Sequence[int], others: Sequence[R]
    ) -> tuple[int, list[tuple[R, int]]] | None:
        """How many messages at the head of a group are handed out now, at least one, and in which
        other queues they stand, each with the offset there. None: the group is blocked.

        Args:
            positions: of the messages, which have one topic.
            others: the other subscriptions that match them.
        """
        first = positions[0]
        count = len(positions)
        together: list[tuple[R, int]] = []
        for other in others:
            reader = other.group
            if reader is None:
                continue
            if reader.waiting:  # what a reader thread brings it is at its head
                offset = reader.reading_from
                known = self._positions(reader, offset, 1)
                if known is None or known[0] <= first:
                    self.block(group, reader, offset if known is not None else FETCHING)
                    return None
                count = bisect_left(positions, known[0], 0, count)
                continue
            index, cursor = reader.queue.index, reader.cursor
            if cursor.floor < index.first_offset:
                cursor.skip_to(index.first_offset)
            # A message becomes visible in one queue after the other.
            head = cursor.peek(count, index.end_offset)
            if head is None:
                continue
            offset, found = head
            known = self._positions(reader, offset, found)
            if known is None:
                self.block(group, reader, FETCHING)
                return None
            if known[0] < first:
                if offset < reader.queue.visible:
                    self.block(group, reader, offset)
                    return None
            elif known[0] > first:
                count = bisect_left(positions, known[0], 0, count)
            else:
                count = _alike(positions, known, count)
                together.append((other, offset))
        return count, together

    def _positions(self, group: Group, offset: int, count: int) -> Sequence[int] | None:
        """Where messages stand in the log; None: that is read first."""
        entries = group.queue.index.read_hot(offset, count)
        if not entries:
            head = self._heads.get(group)
            if head is None:
                head = self._heads[group] = Head(self._core, group, partial(self._fetched, group))
            entries = head.entries(offset, LOOK_COUNT) or head.entries(
                offset, LOOK_COUNT
            )  # it is there
        return positions_of(entries)[:count] if entries else None

    def _fetched(self, group: Group) -> None:
        for blocked, (other, offset) in list(self._blocked.items()):
            if other is group and offset == FETCHING:
                del self._blocked[blocked]
                blocked.pump_later()

    # --- who waits ----------------------------------------------------------------------------

    def block(self, group: Group, other: Group, offset: int) -> None:
        """A group waits until the head of another, which is at the offset, has moved."""
        self._blocked[group] = other, offset
        self._go_on_soon()

    def is_blocked(self, group: Group) -> bool:
        """Whether it takes nothing now."""
        found = self._blocked.get(group)
        if found is None:
            return False
        if _has_moved(*found):
            del self._blocked[group]
            return False
        return True

    def moved(self) -> None:
        """Some head may have moved."""
        if self._blocked:
            self._go_on_soon()

    def forget(self, group: Group) -> None:
        """Its subscription has ended: nobody waits for it."""
        self._blocked.pop(group, None)
        head = self._heads.pop(group, None)
        if head is not None:
            head.close()
        for blocked, (other, _) in list(self._blocked.items()):
            if other is group:
                del self._blocked[blocked]
                blocked.pump_later()

    def clear(self) -> None:
        """The client is gone."""
        self._blocked.clear()
        for head in self._heads.values():
            head.close()
        self._heads.clear()

    def _go_on_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.reading.schedule(self._go_on)

    def _go_on(self) -> None:
        """Let those that others wait for deliver, then the others, as far as these may."""
        self._scheduled = False
        for group, (other, _) in list(self._blocked.items()):
            other.pump()
            if not self.is_blocked(group):
                group.pump()
        if self._blocked and not self._again:
            self._again = True
            self._core.scheduler.call_later(AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._again = False
        blocked, self._blocked = self._blocked, {}
        for group in blocked:
            group.pump_later()


def _has_moved(group: Group, offset: int) -> bool:
    """Whether the head of a group is not at the offset any more."""
    if group.has_left:
        return True
    if offset == FETCHING:
        return False
    if group.waiting:
        return group.reading_from != offset
    head = group.cursor.peek(1, group.queue.index.end_offset)
    return head is None or head[0] != offset


def _alike(positions: Sequence[int], others: Sequence[int], count: int) -> int:
    """How many positions at the beginning are the same; at most `count`."""
    count = min(count, len(others))
    if positions[:count] == others[:count]:
        return count
    return next(at for at in range(count) if positions[at] != others[at])


def positions_in(run: RecordRun) -> array[int]:
    """Where the messages of a run stand in the log."""
    found = array("Q")
    at = run.start
    while at < run.end:
        position = at + RECORD_POSITION_AT
        found.append(int.from_bytes(run.memory[position : position + 8], "big"))
        at += int.from_bytes(run.memory[at + RECORD_SIZE_AT : at + RECORD_SIZE_AT + 4], "big")
    return found


def first_of(run: RecordRun, count: int) -> tuple[RecordRun, RecordRun | None]:
    """The first messages of a run, and the others, if there are any."""
    if count >= run.count:
        return run, None
    at = run.start
    for _ in range(count):
        at += int.from_bytes(run.memory[at + RECORD_SIZE_AT : at + RECORD_SIZE_AT + 4], "big")
    return (
        RecordRun(run.meta, run.memory, run.start, at, count),
        RecordRun(run.meta, run.memory, at, run.end, run.count - count),
    )
