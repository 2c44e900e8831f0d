"""How much may wait for a shared subscription, and what gives way.

The bound is that of a session (`backlogs.py`), with the same policies. Where no member's session
outlives its connection, it is that of a live subscription as well, which loses its oldest. All that
waits counts, whatever its QoS is.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.dead_letter_history import Cause
from polymq.broker.moves.dead_letters import DeadLetterCounts
from polymq.broker.port.values import Address, share_name_of
from polymq.broker.queues.cursor import NO_STOP, Cursor
from polymq.broker.queues.queue import Queue
from polymq.broker.queues.store import QueueStore
from polymq.broker.sessions.settings import DROP_NEWEST, SessionSettings

NO_BOUND: Final = 1 << 62


class Bounded(Protocol):
    """The group of a share, as far as it matters here: see `shares.ShareGroup`."""

    number: int
    queue: Queue
    cursor: Cursor
    address: Address
    ended: bool
    waits: bool

    @property
    def ready_count(self) -> int:
        """Messages that wait."""

    def pump(self) -> None:
        """Deliver what waits."""

    def dropped(self) -> None:
        """Messages that waited are settled."""


G = TypeVar("G", bound=Bounded)


class ShareBounds(Generic[G]):
    """Keeps the shares of one broker within their bounds.

    Attributes:
        dropped_count: messages that shares lost since the start.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        settings: SessionSettings,
        counts: DeadLetterCounts,
    ) -> None:
        self._core = core
        self._counts = counts
        self._queue_store = queue_store
        self._settings = settings
        self._drops_newest = settings.waiting_max > 0 and settings.overflow == DROP_NEWEST
        self.dropped_count = 0
        self._too_long: dict[G, None] = {}
        self._scheduled = False

    def change(self, settings: SessionSettings) -> None:
        """Another bound from now on; there was one before. A share that has too much loses it with
        the next message."""
        self._settings = settings

    def _bound(self, group: G) -> int:
        bound = self._settings.waiting_max or NO_BOUND
        return bound if group.waits else min(bound, self._core.limits.backlog_count_max)

    def admit(self, group: G, run: Committed, first: int) -> bool:
        """A run became visible at offset `first`. False if it is not to be offered: it was seen
        to."""
        cursor = group.cursor
        if cursor.stop != NO_STOP and not self.go_on(group.number, cursor, first):
            self._left_out(group, run.count)
            return False
        excess = cursor.ready_count(group.queue.visible) - self._bound(group)
        if excess <= 0:
            return True
        if not self._drops_newest:
            self._too_long[group] = None
            self._enforce_soon()
            return True
        stop = max(first, cursor.next, group.queue.visible - excess)
        try:
            self._core.journal.write({"op": "stop", "g": [[group.number, stop]]})
        except Refused:  # what waits meanwhile is in the log as well
            return True
        self._left_out(group, group.queue.visible - stop)
        group.pump()
        return False

    def go_on(self, number: int, cursor: Cursor, offset: int) -> bool:
        """A share that was stopped goes on at `offset`, if nothing of it waits any more. False if
        not, or if the log does not take that."""
        if cursor.next < cursor.stop or cursor.requeued_count:
            return False
        try:
            self._queue_store.write_acks()  # what is in flight does not wait
            self._core.journal.write({"op": "skip", "g": [[number, offset]]})
        except Refused:
            return False
        return True

    def _enforce_soon(self) -> None:
        if self._too_long and not self._scheduled:
            self._scheduled = True
            self._core.reading.schedule(self._enforce)

    def _enforce(self) -> None:
        """The oldest messages of shares that are too long give way, some in each iteration."""
        self._scheduled = False
        group = next(iter(self._too_long))
        del self._too_long[group]
        excess = group.ready_count - self._bound(group)
        if excess > 0 and not group.ended:
            count = self._drop(group, min(excess, self._core.limits.pump_count_max))
            self._counts.given_up[Cause.MAXLEN] += count
            self._left_out(group, count)
            if 0 < count < excess:
                self._too_long[group] = None
        self._enforce_soon()

    def _drop(self, group: G, count: int) -> int:
        """Settle so many of the oldest messages that wait, or fewer. The next record of acks says
        so: after a crash they may be there once more."""
        cursor, dropped = group.cursor, 0
        while dropped < count:
            head = cursor.peek(count - dropped, group.queue.visible)
            if head is None:
                break
            cursor.settle(*head)
            dropped += head[1]
        group.dropped()
        return dropped

    def _left_out(self, group: G, count: int) -> None:
        if count:
            self.dropped_count += count
            self._core.notices.warn(
                "a shared subscription is full and loses messages",
                "full shares",
                share=share_name_of(group.address),
                policy=self._settings.overflow,
                lost=count,
            )
