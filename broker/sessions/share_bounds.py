"""How much may wait for a shared subscription, and what gives way.

The bounds are those of a session (`backlogs.py`), with the same policies. Where no member's session
outlives its connection, that of messages is that of a live subscription as well, which loses its
oldest. All that waits counts, whatever its QoS is.
"""

from __future__ import annotations

from functools import partial
from typing import Generic, Protocol, TypeVar

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.dead_letter_history import Cause
from polymq.broker.moves.dead_letters import DeadLetterCounts
from polymq.broker.port.values import Address, share_name_of
from polymq.broker.queues.cursor import NO_STOP, Cursor
from polymq.broker.queues.ready_bytes import count_of
from polymq.broker.queues.store import QueueStore
from polymq.broker.sessions.backlog import NO_BOUND, Heads
from polymq.broker.sessions.settings import DROP_NEWEST, SessionSettings
from polymq.broker.sessions.uncounted import ReaderGroup, Uncounted
from polymq.broker.sessions.waiting_bytes import Rest, WaitingBytes, size_of


class Bounded(ReaderGroup, Protocol):
    """The group of a share, as far as it matters here: see `shares.ShareGroup`."""

    number: int
    address: Address
    ended: bool
    waits: bool
    free: int
    is_full_of_bytes: bool

    @property
    def ready_count(self) -> int:
        """Messages that wait."""

    def hand_out(self, run: Committed, first: int) -> None:
        """Offer a run, whatever waits already."""

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
        self._bytes: WaitingBytes | None = None
        if settings.waiting_bytes_max:
            self._bytes = WaitingBytes(core, settings.waiting_bytes_max, self._enforce_soon)
        self._drops_newest = settings.is_bounded and settings.overflow == DROP_NEWEST
        self.dropped_count = 0
        self._too_long: dict[G, None] = {}
        everything = Uncounted(core, keeps_qos_0=True, in_bytes=False)
        self._heads = Heads(core, everything)  # of those that have too many bytes
        self._scheduled = False

    def change(self, settings: SessionSettings) -> None:
        """Other bounds from now on; there were the same ones before. A share that has too much
        loses it with the next message."""
        self._settings = settings
        if self._bytes is not None:
            self._bytes.max = settings.waiting_bytes_max

    def forget(self, group: G) -> None:
        """The share is gone."""
        self._too_long.pop(group, None)
        self._heads.forget(group)

    def _bound(self, group: G) -> int:
        bound = self._settings.waiting_max or NO_BOUND
        return bound if group.waits else min(bound, self._core.limits.backlog_count_max)

    def admit(self, group: G, run: Committed, first: int) -> bool:
        """A run became visible at offset `first`. False if it is not to be offered: it was seen
        to."""
        if group.cursor.stop != NO_STOP and not self._admit_again(group, run, first):
            return False
        if self._drops_newest:
            return self._admit_some(group, run, first)
        if self._bytes is not None:
            self._bytes.came(group, run, first)
            group.free -= size_of(run)
        if group.free < 0 or group.ready_count > self._bound(group):
            self._look_soon(group)
        return True

    def _admit_some(self, group: G, run: Committed, first: int) -> bool:
        """Offer the run to members that are there, and stop the share where it is full."""
        is_new = not group.registrations
        if not is_new:
            group.hand_out(run, first)
        start = max(first, group.cursor.next)
        new = group.queue.visible - start
        if new <= 0:
            return False
        fits = min(new, max(0, self._bound(group) - group.ready_count + new))
        if fits and self._bytes is not None:
            fitting = self._bytes.fitting(group, start, fits, self._rest(group))
            group.is_full_of_bytes = fitting is not None and fitting[0] < fits
            fits = fits if fitting is None else fitting[0]
        if fits == new:
            if self._bytes is not None:
                self._bytes.came(group, run, first)
            return is_new
        try:
            self._core.journal.write({"op": "stop", "g": [[group.number, start + fits]]})
        except Refused:  # what waits meanwhile is in the log as well
            return is_new
        if not fits and self._bytes is not None and _is_drained(group.cursor):
            return self.admit(group, run, first)
        self._left_out(group, new - fits)
        group.pump()
        return False

    def _admit_again(self, group: G, run: Committed, first: int) -> bool:
        """The share is stopped: it goes on if nothing of it waits, with the first message that
        fits."""
        low, end = max(first, group.cursor.stop), first + run.count
        start = low
        if self._bytes is not None and _is_drained(group.cursor):
            start = self._bytes.first_fitting(group, low, end, self._rest(group))
        goes_on = start < end and self.go_on(group.number, group.cursor, start)
        self._left_out(group, (start if goes_on else end) - low)
        return goes_on

    def go_on(self, number: int, cursor: Cursor, offset: int) -> bool:
        """A share that was stopped goes on at `offset`, if nothing of it waits any more. False if
        not, or if the log does not take that."""
        if not _is_drained(cursor):
            return False
        try:
            self._queue_store.write_acks()  # what is in flight does not wait
            self._core.journal.write({"op": "skip", "g": [[number, offset]]})
        except Refused:
            return False
        return True

    def _rest(self, group: G) -> Rest:
        return Rest((), None, partial(self._look_soon, group))

    def _look_soon(self, group: G) -> None:
        """See to the share in a later loop iteration."""
        self._too_long[group] = None
        self._enforce_soon()

    def _enforce_soon(self) -> None:
        if self._too_long and not self._scheduled:
            self._scheduled = True
            self._core.reading.schedule(self._enforce)

    def _enforce(self) -> None:
        """The oldest messages of shares that are too long give way, some in each iteration."""
        self._scheduled = False
        if self._bytes is not None:
            self._bytes.begin_slice()
            if not self._bytes.may_read:
                return  # it goes on after a read
        group = next(iter(self._too_long), None)
        if group is None:
            return
        del self._too_long[group]
        if not group.ended:
            excess = min(self._excess(group), self._core.limits.pump_count_max)
            if excess > 0 and not self._drops_newest:
                count = self._drop(group, excess)
                self._counts.given_up[Cause.MAXLEN] += count
                self._left_out(group, count)
                if count:
                    self._too_long[group] = None
        self._enforce_soon()

    def _excess(self, group: G) -> int:
        """How many of the oldest messages are too many, as far as is known."""
        excess = group.ready_count - self._bound(group)
        waiting = None
        if self._bytes is not None:
            waiting = self._bytes.waiting((group,), partial(self._look_soon, group))
        if self._bytes is None or waiting is None:
            return excess
        group.free = self._bytes.max - waiting
        group.is_full_of_bytes = group.free < 0
        if group.free >= 0:
            self._heads.forget(group)
            return excess
        head = self._heads.of(group, partial(self._look_soon, group))
        return max(excess, count_of(head.sizes, -group.free))

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
                **self._bound_of(group),
            )

    def _bound_of(self, group: G) -> dict[str, int]:
        """The bound for which the share lost something, with its name."""
        if group.is_full_of_bytes:
            return {"waiting_bytes_max": self._settings.waiting_bytes_max}
        return {"waiting_max": self._bound(group)}


def _is_drained(cursor: Cursor) -> bool:
    """Whether nothing waits before the stop."""
    return cursor.next >= cursor.stop and not cursor.requeued_count
