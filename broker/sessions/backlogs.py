"""How much may wait for one persistent MQTT session, and what gives way.

There is a bound of messages, and one of bytes. What counts are messages of QoS 1 and 2 that wait:
what is in flight does not. They are counted by the cursors of the session's subscriptions, and
their bytes by `waiting_bytes.py`, so nothing is kept for a message; and counted anew only when so
many have come that there may be too many. Messages of QoS 0 that came while the client was away
stand between them and do not count (`uncounted.py`).

* `drop_oldest`: the oldest of the session go, whichever subscription they came by: the one that
  stands lowest in the log first. The cursor passes over them, in a later loop iteration. A message
  that is larger than the bound of bytes takes all with it that waits before it.
* `drop_newest`: a subscription of a full session takes nothing more, from the first message on that
  does not fit. Its cursor gets a *stop*, and goes on behind what came meanwhile when all before the
  stop has been handed out. So what is left out is one stretch, however long the client is away.
  What a connected client takes at once does not wait, and is not left out.

Rules:

* What is in flight is never dropped. A cursor keeps a byte for each message from its oldest
  unsettled one on: where that becomes too much, the subscription goes on with a group of its own,
  and the old group stays for what is in flight (the op `split`).
* The log says what was dropped (`skip`) within a second, and before a segment goes; after a crash
  it may be dropped once more. A stop is in the log with the first message that it keeps out.
* While the bytes are not known, because entries have to be read, nothing is dropped for them.
* Dropped messages are counted, and told once a minute for each session.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.dead_letter_history import Cause
from polymq.broker.moves.dead_letters import DeadLetterCounts
from polymq.broker.queues.cursor import NO_STOP
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.backlog import NO_BOUND, Backlog, Excess
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.settings import DROP_NEWEST, SessionSettings
from polymq.broker.sessions.uncounted import Uncounted
from polymq.broker.sessions.waiting_bytes import Rest, WaitingBytes, size_of
from polymq.broker.state.journal import Op, Touched

if TYPE_CHECKING:
    from polymq.broker.sessions.session import MqttSession
    from polymq.broker.sessions.state import SessionState

SLICE_COUNT: Final = 512
"""Sessions seen to in one loop iteration, about 10 us each."""
BYTES_SLICE_COUNT: Final = 128
"""The same where bytes are bounded, about 25 us each."""
DROPPED_MAX: Final = 4_096
"""Messages whose entries are looked at in one loop iteration to drop them, about 0.5 us each."""
WINDOW_MAX: Final = 65_536
"""Bytes of a cursor between what is in flight and what was dropped behind it: see the rules."""
WRITE_SECONDS: Final = 1.0
"""How long `skip` gathers: thousands of full sessions drop with each message that they share."""
FULL_MS: Final = 50
"""How long a session that was found full is taken for full: counting asks each subscription."""
SWEEP_SECONDS: Final = 10.0
"""How often stopped subscriptions of which nothing waits any more go on though nothing comes: else
what they left out would hold the log."""
NOTICE_MS: Final = 60_000


class SessionBacklogs:
    """Keeps the sessions of one broker within their bound.

    Attributes:
        dropped_count: messages that sessions lost since the start.
    """

    def __init__(
        self, core: Core, settings: SessionSettings, state: SessionState, counts: DeadLetterCounts
    ) -> None:
        self._core = core
        self._queue_store = state.queue_store
        self._waiting_max = settings.waiting_max or NO_BOUND
        self._bytes: WaitingBytes | None = None
        if settings.waiting_bytes_max:
            self._bytes = WaitingBytes(core, settings.waiting_bytes_max, self._enforce_soon)
        self._is_bounded = settings.is_bounded
        self._drops_newest = settings.overflow == DROP_NEWEST
        self._overflow = settings.overflow
        self._keeps_qos_0 = settings.keeps_qos_0
        self._state = state
        self._counts = counts
        self.dropped_count = 0
        self._too_long: dict[MqttSession, bool] = {}  # they may have to drop something: for bytes
        self._scheduled = False
        self._slice_count = SLICE_COUNT if self._bytes is None else BYTES_SLICE_COUNT
        self._passed = 0  # messages that were dropped one by one in this iteration
        self._skipped: dict[SessionGroup, int] = {}  # what the next `skip` says
        self._write_scheduled = False
        self._stopped: dict[SessionGroup, None] = {}
        self._sweep_scheduled = False
        if settings.is_bounded:
            state.queue_store.before_acks = self.write_before
        core.gatherers.append(self.write)
        core.journal.handle("skip", self._apply_skip)
        core.journal.handle("stop", self._apply_stop)

    def start(self) -> None:
        """A start's fold has ended: see to what is too long already, and forget stops that the
        settings do not want any more."""
        self.dropped_count = 0
        stops = self._is_bounded and self._drops_newest
        for found in self._state.filters.values():
            for group in found.queue.groups:
                if group.cursor.stop == NO_STOP or not isinstance(group, SessionGroup):
                    continue
                if stops:
                    self._stopped[group] = None
                else:
                    group.cursor.stop = NO_STOP
        self._sweep_later()
        if self._waiting_max < NO_BOUND:  # bytes are counted when something comes
            self._too_long.update(dict.fromkeys(self._state.by_number.values(), False))
            self._enforce_soon()

    def change(self, settings: SessionSettings) -> None:
        """Other bounds from now on; there were the same ones before, and the same ones give way.
        Sessions that have too much lose it in the next iterations; those of a slave as its master
        says."""
        self._waiting_max = settings.waiting_max or NO_BOUND
        if self._bytes is not None:
            self._bytes.max = settings.waiting_bytes_max
        if self._core.follows:
            return
        self._too_long.update(dict.fromkeys(self._state.by_number.values(), True))
        self._enforce_soon()

    # --- a run becomes visible --------------------------------------------------------------

    def admit(self, group: SessionGroup, run: Committed, first: int) -> bool:
        """A run became visible at offset `first`. False if it is not to be offered: then it was
        seen to."""
        session = group.session
        if not group.number or group.subscription is None or session is None:
            return True
        backlog = self._backlog(session)
        counts = not group.lets_go_of(run, first)
        if group.cursor.stop != NO_STOP:
            return self._admit_again(session, backlog, group, run, first, counts=counts)
        size = 0 if self._bytes is None else size_of(run)
        backlog.uncounted.came(group, first, run.count, size, counts=counts)
        if counts:
            backlog.room -= run.count
            backlog.free -= size
            if backlog.room < 0 or backlog.free < 0:
                if self._drops_newest:
                    return self._admit_some(session, backlog, group, run, first)
                self._look_soon(session)
        if self._bytes is not None:
            self._bytes.came(group, run, first)
        return True

    def _backlog(self, session: MqttSession) -> Backlog:
        if session.backlog is None:
            in_bytes = self._bytes is not None
            uncounted = Uncounted(self._core, keeps_qos_0=self._keeps_qos_0, in_bytes=in_bytes)
            session.backlog = Backlog(self._core, uncounted, free=0 if in_bytes else NO_BOUND)
        return session.backlog

    def _admit_some(
        self,
        session: MqttSession,
        backlog: Backlog,
        group: SessionGroup,
        run: Committed,
        first: int,
    ) -> bool:
        """Offer the run to a client that is there, and stop the subscription where the session is
        full."""
        is_new = not group.registrations
        if not is_new:
            group.hand_out(run, first)
        start = max(first, group.cursor.next)
        new = first + run.count - start
        if new <= 0:
            return False
        room = self._room(session, backlog, new)
        fits = None if room is None else min(room, new)
        if fits and self._bytes is not None:
            rest = self._rest(session, backlog, group)
            fitting = self._bytes.fitting(group, start, fits, rest)
            fits = None
            if fitting is not None:
                backlog.is_full_of_bytes = fitting[0] < min(room or 0, new)
                fits, backlog.free = fitting
        if room is None or fits is None:  # so many as come until it is known
            self._look_soon(session)
            return is_new
        if fits >= new:
            backlog.room = room - new
            if self._bytes is not None:
                self._bytes.came(group, run, first)
            return is_new
        try:
            self._core.journal.write({"op": "stop", "g": [[group.number, start + fits]]})
        except Refused:  # what waits meanwhile is in the log as well
            return is_new
        if not fits and self._bytes is not None and self._is_drained(group):
            return self._admit_again(session, backlog, group, run, first, counts=True)
        self._left_out(session, backlog, new - fits)
        group.pump()
        return False

    def _admit_again(
        self,
        session: MqttSession,
        backlog: Backlog,
        group: SessionGroup,
        run: Committed,
        first: int,
        *,
        counts: bool,
    ) -> bool:
        """The subscription is stopped: it goes on if nothing of it waits and there is room, with
        the first message that fits."""
        low, end = max(first, group.cursor.stop), first + run.count
        start = low
        drained = counts and self._is_drained(group) and bool(self._room(session, backlog, 0))
        if drained and self._bytes is not None:
            rest = self._rest(session, backlog, group)
            start = self._bytes.first_fitting(group, low, end, rest)
        subscription = group.subscription
        goes_on = drained and start < end and self._go_on(session, group, start)
        if counts:
            self._left_out(session, backlog, (start if goes_on else end) - low)
        if not goes_on:
            return False
        assert subscription is not None
        if subscription.group is group:
            return self.admit(group, run, first)
        assert subscription.group is not None
        subscription.group.arrived(run, first)  # it has a new one
        return False

    def _room(self, session: MqttSession, backlog: Backlog, new: int) -> int | None:
        """How many messages may wait besides those that do, `new` ones not counted. None if that
        is known later."""
        now_ms = self._core.clock_ms()
        if now_ms < backlog.full_until_ms <= now_ms + FULL_MS:
            return 0
        waiting = _waiting(session)
        room = self._waiting_max - sum(count for _, count in waiting) + new
        if room < max(1, new):
            groups = [group for group, _ in waiting]
            uncounted = backlog.uncounted.count(groups, partial(self._look_soon, session))
            if uncounted is None:
                return None
            room += uncounted
        if room <= 0:
            backlog.full_until_ms = now_ms + FULL_MS
        return max(0, room)

    def _rest(self, session: MqttSession, backlog: Backlog, group: SessionGroup) -> Rest:
        """What else waits for the session."""
        others = [other for other, _ in _waiting(session) if other is not group]
        return Rest(others, backlog.uncounted, partial(self._look_soon, session))

    def _is_drained(self, group: SessionGroup) -> bool:
        """Whether nothing that counts waits before the stop."""
        if group.cursor.next >= group.cursor.stop:
            return not group.cursor.requeued_count
        if self._bytes is None:
            return False
        backlog = None if group.session is None else group.session.backlog
        return backlog is not None and backlog.uncounted.is_all(group)

    # --- the newest give way ----------------------------------------------------------------

    def _apply_stop(self, op: Op) -> Touched:
        touched = []
        for number, offset in op["g"]:
            group = self._queue_store.groups.get(number)
            if isinstance(group, SessionGroup):
                group.cursor.stop = offset
                self._stopped[group] = None
                touched.append(("group", str(number)))
        self._sweep_later()
        return touched

    def _go_on(self, session: MqttSession, group: SessionGroup, offset: int) -> bool:
        """A stopped subscription goes on at `offset`. False if the log does not take that."""
        try:
            if self._is_long(group, offset):
                self._split(session, group, offset)
            else:
                self._core.journal.write({"op": "skip", "g": [[group.number, offset]]})
        except Refused:
            return False
        return True

    def _sweep_later(self) -> None:
        if self._stopped and not self._sweep_scheduled:
            self._sweep_scheduled = True
            self._core.scheduler.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_scheduled = False
        if self._core.failure is not None or self._core.follows:
            return
        for group in list(self._stopped):
            session = group.session
            is_there = self._queue_store.groups.get(group.number) is group
            is_stopped = group.cursor.stop != NO_STOP
            if session is None and is_there and is_stopped and group.delivers:  # of a share
                end = group.queue.visible
                self._state.shares.bounds.go_on(group.number, group.cursor, end)
                continue
            ended = session is None or self._state.by_number.get(session.number) is not session
            ended = ended or self._queue_store.groups.get(group.number) is not group
            if ended or group.subscription is None or group.cursor.stop == NO_STOP:
                del self._stopped[group]
            elif self._is_drained(group):
                assert session is not None
                self._go_on(session, group, group.queue.visible)
        self._sweep_later()

    # --- the oldest give way ----------------------------------------------------------------

    def _enforce_soon(self) -> None:
        if self._too_long and not self._scheduled:
            self._scheduled = True
            self._core.reading.schedule(self._enforce)

    def _enforce(self) -> None:
        self._scheduled = False
        self._passed = 0
        if self._bytes is not None:
            self._bytes.begin_slice()
        for session in list(islice(self._too_long, self._slice_count)):
            if self._passed >= DROPPED_MAX:
                break
            if self._bytes is not None and not self._bytes.may_count:
                break
            in_bytes = self._too_long.pop(session)
            if self._state.by_number.get(session.number) is session:
                self._drop_oldest(session, in_bytes=in_bytes)
        if self._bytes is None or self._bytes.may_read:  # else it goes on after a read
            self._enforce_soon()

    def _look_soon(self, session: MqttSession) -> None:
        """See to the session in a later loop iteration."""
        self._too_long[session] = True
        self._enforce_soon()

    def _drop_oldest(self, session: MqttSession, *, in_bytes: bool) -> None:
        """Count what waits, and drop what is too much of it if the oldest give way."""
        backlog = self._backlog(session)
        if backlog.heads.reading:
            return
        waiting = _waiting(session)
        groups = [group for group, _ in waiting]
        excess = sum(count for _, count in waiting) - self._waiting_max
        excess_bytes, waiting_bytes = 0, None
        if in_bytes and self._bytes is not None:
            waiting_bytes = self._bytes.waiting(groups, partial(self._look_soon, session))
            excess_bytes = 0 if waiting_bytes is None else waiting_bytes - self._bytes.max
        uncounted = 0
        # Of those that take nothing more, the next message needs to know.
        if excess > 0 or excess_bytes > 0 or (in_bytes and self._drops_newest):
            found = backlog.uncounted.count(groups, partial(self._look_soon, session))
            if found is None:
                if not backlog.uncounted.reading:
                    self._too_long[session] = in_bytes
                return
            uncounted = found
            excess -= uncounted
            if uncounted and self._bytes is not None:
                excess_bytes -= backlog.uncounted.bytes_of(groups)
        backlog.room = -excess
        if waiting_bytes is not None:
            backlog.free = -excess_bytes
        if excess <= 0 and excess_bytes <= 0:
            backlog.heads.clear()
        elif not self._drops_newest:
            backlog.heads.limit(len(groups))
            backlog.is_full_of_bytes = excess_bytes > 0
            in_order = len(groups) > 1 or uncounted > 0 or excess_bytes > 0
            too_much = Excess(excess, excess_bytes)
            self._drop_excess(session, backlog, groups, too_much, in_order=in_order)

    def _drop_excess(
        self,
        session: MqttSession,
        backlog: Backlog,
        groups: Sequence[SessionGroup],
        excess: Excess,
        *,
        in_order: bool,
    ) -> None:
        """Drop what is too much, or as much of it as one step may."""
        try:
            if in_order:
                dropped = self._drop_in_order(session, backlog, groups, excess)
            else:
                most = min(excess.count, self._core.limits.pump_count_max)
                dropped = self._drop(session, groups[0], most)
                excess.count -= dropped
        except Refused:  # the log takes nothing now, and so nothing more comes
            return
        self._counts.given_up[Cause.MAXLEN] += dropped
        self._left_out(session, backlog, dropped)
        if session.overlaps is not None:
            session.overlaps.log_order.moved()
        if excess and not backlog.heads.reading:
            self._look_soon(session)

    def _drop_in_order(
        self, session: MqttSession, backlog: Backlog, groups: Sequence[SessionGroup], excess: Excess
    ) -> int:
        """Drop the oldest messages of several subscriptions, and with them what does not count.
        Fewer where entries have to be read from the disk first, or much does not count."""
        look_soon = partial(self._look_soon, session)
        heads = [backlog.heads.of(group, look_soon) for group in groups]
        if not all(head.positions for head in heads):
            return 0
        heap = [(head.positions[0], at) for at, head in enumerate(heads)]
        heapq.heapify(heap)
        dropped = 0
        most = self._passed + self._core.limits.pump_count_max
        while True:
            _, at = heap[0]
            group = groups[at]
            others = min(heap[1:3], default=(NO_STOP, 0))[0]
            count, uncounted, size = excess.portion(heads[at], others)
            self._drop(session, group, count)
            backlog.uncounted.passed(group, uncounted, size)
            dropped += count - uncounted
            self._passed += count
            if not excess or self._passed >= most:
                break
            if not group.ready_count or group.subscription is None:
                heapq.heappop(heap)
                if not heap:
                    break
                continue
            heads[at] = backlog.heads.of(group, look_soon)
            if not heads[at].positions:
                break
            heapq.heapreplace(heap, (heads[at].positions[0], at))
        return dropped

    def _drop(self, session: MqttSession, group: SessionGroup, count: int) -> int:
        """Drop so many of the oldest messages that wait. Raises Refused: nothing was dropped."""
        cursor, dropped = group.cursor, 0
        while dropped < count:
            head = cursor.peek(count - dropped, group.queue.visible)
            if head is None:
                break
            first, found = head
            if first == cursor.next and self._is_long(group, first + found):
                self._split(session, group, first + found)
                return dropped + found
            cursor.drop(found, group.queue.visible)
            dropped += found
            self._skipped[group] = max(self._skipped.get(group, 0), first + found)
        if dropped and not self._write_scheduled:
            self._write_scheduled = True
            self._core.scheduler.call_later(WRITE_SECONDS, self._write_later)
        return dropped

    # --- in the log -------------------------------------------------------------------------

    def _write_later(self) -> None:
        self._write_scheduled = False
        self.write()
        if self._skipped and self._core.failure is None:
            self._write_scheduled = True
            self._core.scheduler.call_later(WRITE_SECONDS, self._write_later)

    def write_before(self, *groups: Group) -> None:
        """Messages of the groups are about to be sent, or the log is about to say how far they are:
        what was dropped before that is written first. Else a crash would find what was dropped
        among what was sent."""
        if not self._skipped.keys().isdisjoint(groups):
            found = [g for g in groups if isinstance(g, SessionGroup) and g in self._skipped]
            self._write({group: self._skipped.pop(group) for group in found})

    def write(self) -> None:
        """Write what was dropped since the last time."""
        skipped, self._skipped = self._skipped, {}
        self._write(skipped)

    def _write(self, skipped: dict[SessionGroup, int]) -> None:
        """Write so much of what was dropped. What the log refuses gathers on."""
        groups = self._queue_store.groups
        said = [[g.number, offset] for g, offset in skipped.items() if groups.get(g.number) is g]
        if not said or self._core.failure is not None:
            return
        try:
            self._core.journal.write({"op": "skip", "g": said})
        except Refused:
            self._skipped = {**skipped, **self._skipped}

    def _apply_skip(self, op: Op) -> Touched:
        """All that waited below an offset is dropped; a stop is passed."""
        touched = []
        for number, offset in op["g"]:
            group = self._queue_store.groups.get(number)
            if isinstance(group, SessionGroup):
                group.cursor.skip_waiting(offset)
                touched.append(("group", str(number)))
        return touched

    def _is_long(self, group: SessionGroup, offset: int) -> bool:
        """Whether too much would lie between what is in flight and `offset`."""
        cursor = group.cursor
        return offset - cursor.floor > WINDOW_MAX and cursor.outstanding_count > 0

    def _split(self, session: MqttSession, group: SessionGroup, offset: int) -> None:
        """The subscription goes on at `offset` with a group of its own. Raises Refused."""
        subscription = group.subscription
        assert subscription is not None
        connected = subscription.registration is not None
        number = self._core.take_number()
        op = {"op": "split", "s": session.number, "w": list(subscription.address)}
        self._core.journal.write({**op, "g": number, "o": offset})
        if connected:
            assert subscription.group is not None
            subscription.registration = subscription.group.add(subscription)
            subscription.group.pump_later()

    # --- never silent -----------------------------------------------------------------------

    def _left_out(self, session: MqttSession, backlog: Backlog, count: int) -> None:
        """So many messages do not reach the session."""
        self.dropped_count += count
        backlog.dropped_count += count
        now_ms = self._core.clock_ms()
        if backlog.dropped_count > backlog.logged_count and not (
            backlog.logged_ms <= now_ms < backlog.logged_ms + NOTICE_MS
        ):
            self._core.notices.warn(
                "an MQTT session is full and loses messages",
                "full sessions",
                client=session.client_id,
                policy=self._overflow,
                lost=backlog.dropped_count - backlog.logged_count,
                **self._bound(backlog),
            )
            backlog.logged_count, backlog.logged_ms = backlog.dropped_count, now_ms

    def _bound(self, backlog: Backlog) -> dict[str, int]:
        """The bound for which the session lost something, with its name."""
        if self._bytes is not None and (backlog.is_full_of_bytes or self._waiting_max == NO_BOUND):
            return {"waiting_bytes_max": self._bytes.max}
        return {"waiting_max": self._waiting_max}


def _waiting(session: MqttSession) -> list[tuple[SessionGroup, int]]:
    """The groups in which something waits for the session, and how much."""
    own = [sub for sub in session.subscriptions.values() if not sub.is_shared]
    groups = [sub.group for sub in own if sub.durable]
    counted = [(group, group.ready_count) for group in groups if group is not None]
    return [(group, count) for group, count in counted if count]
