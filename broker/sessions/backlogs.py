"""How much may wait for one persistent MQTT session, and what gives way.

What counts are messages of QoS 1 and 2 that wait: what is in flight does not. They are counted by
the cursors of the session's subscriptions, so nothing is kept for a message; and counted anew only
when so many have come that there may be too many. Messages of QoS 0 that came while the client was
away stand between them and do not count (`uncounted.py`).

* `drop_oldest`: the oldest of the session go, whichever subscription they came by: the one that
  stands lowest in the log first. The cursor passes over them, in a later loop iteration.
* `drop_newest`: a subscription of a full session takes nothing more. Its cursor gets a *stop*, and
  goes on behind what came meanwhile when all before the stop has been handed out. So what is left
  out is one stretch, however long the client is away.

Rules:

* What is in flight is never dropped. A cursor keeps a byte for each message from its oldest
  unsettled one on: where that becomes too much, the subscription goes on with a group of its own,
  and the old group stays for what is in flight (the op `split`).
* The log says what was dropped (`skip`) within a second, and before a segment goes; after a crash
  it may be dropped once more. A stop is in the log with the first message that it keeps out.
* Dropped messages are counted, and told once a minute for each session.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.dead_letter_history import Cause
from polymq.broker.moves.dead_letters import DeadLetterCounts
from polymq.broker.queues.cursor import NO_STOP
from polymq.broker.queues.heads import positions_of
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.settings import DROP_NEWEST, SessionSettings
from polymq.broker.sessions.uncounted import Uncounted
from polymq.broker.state.journal import Op, Touched

if TYPE_CHECKING:
    from polymq.broker.sessions.session import MqttSession
    from polymq.broker.sessions.state import SessionState

SLICE_COUNT: Final = 512
"""Sessions seen to in one loop iteration, about 10 us each."""
HEAD_COUNT: Final = 64
"""Entries at the head of a subscription that are looked at together."""
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


class Backlog:
    """What is known of one session.

    Attributes:
        uncounted: how much of what waits does not count.
        room: at least so many may still come before it has to be counted again.
        dropped_count: messages that it lost since the start.
        full_until_ms: until when it is taken for full.
        heads: of messages at the head of each subscription, from an offset on, where they stand in
            the log, and which do not count; of a session that drops its oldest, and has several
            subscriptions or messages that do not count.
        reading: such places are on their way from the disk.
        logged_count, logged_ms: how many had been lost when that was last logged.
    """

    __slots__ = (
        "dropped_count",
        "full_until_ms",
        "heads",
        "logged_count",
        "logged_ms",
        "reading",
        "room",
        "uncounted",
    )

    def __init__(self, uncounted: Uncounted) -> None:
        self.uncounted = uncounted
        self.room = 0
        self.dropped_count = 0
        self.full_until_ms = 0
        self.heads: dict[SessionGroup, tuple[int, array[int], bytes]] = {}
        self.reading = False
        self.logged_count = 0
        self.logged_ms = 0


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
        self._waiting_max = settings.waiting_max
        self._drops_newest = settings.overflow == DROP_NEWEST
        self._overflow = settings.overflow
        self._keeps_qos_0 = settings.keeps_qos_0
        self._state = state
        self._counts = counts
        self.dropped_count = 0
        self._too_long: dict[MqttSession, None] = {}  # they may have to drop something
        self._scheduled = False
        self._skipped: dict[SessionGroup, int] = {}  # what the next `skip` says
        self._write_scheduled = False
        self._stopped: dict[SessionGroup, None] = {}
        self._sweep_scheduled = False
        core.gatherers.append(self.write)
        core.journal.handle("skip", self._apply_skip)
        core.journal.handle("stop", self._apply_stop)

    def start(self) -> None:
        """A start's fold has ended: see to what is too long already, and forget stops that the
        settings do not want any more."""
        self.dropped_count = 0
        stops = self._waiting_max > 0 and self._drops_newest
        for found in self._state.filters.values():
            for group in found.queue.groups:
                if group.cursor.stop == NO_STOP or not isinstance(group, SessionGroup):
                    continue
                if stops:
                    self._stopped[group] = None
                else:
                    group.cursor.stop = NO_STOP
        self._sweep_later()
        if self._waiting_max:
            self._too_long.update(dict.fromkeys(self._state.by_number.values()))
            self._enforce_soon()

    def change(self, waiting_max: int) -> None:
        """Another bound from now on; there was one before, and the same ones give way. Sessions
        that have too much lose it in the next iterations; those of a slave as its master says."""
        self._waiting_max = waiting_max
        if self._core.follows:
            return
        self._too_long.update(dict.fromkeys(self._state.by_number.values()))
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
        backlog.uncounted.came(group, first, run.count, counts=counts)
        if not counts:
            return True
        backlog.room -= run.count
        if backlog.room >= 0:
            return True
        if self._drops_newest:
            return self._admit_some(session, backlog, group, run, first)
        self._look_soon(session)
        return True

    def _backlog(self, session: MqttSession) -> Backlog:
        if session.backlog is None:
            session.backlog = Backlog(Uncounted(self._core, keeps_qos_0=self._keeps_qos_0))
        return session.backlog

    def _admit_some(
        self,
        session: MqttSession,
        backlog: Backlog,
        group: SessionGroup,
        run: Committed,
        first: int,
    ) -> bool:
        """Stop the subscription where the session is full."""
        end = first + run.count
        new = max(0, end - max(first, group.cursor.next))
        room = self._room(session, backlog, new)
        if room is None:  # so many as come until it is known
            self._look_soon(session)
            return True
        if room >= new:
            backlog.room = room - new
            return True
        stop = end - new + room
        try:
            self._core.journal.write({"op": "stop", "g": [[group.number, stop]]})
        except Refused:  # what waits meanwhile is in the log as well
            return True
        self._left_out(session, backlog, new - room)
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
        """The subscription is stopped: it goes on if nothing of it waits and there is room."""
        drained = self._is_drained(group) and bool(self._room(session, backlog, 0))
        subscription = group.subscription
        if not drained or not self._go_on(session, group, first):
            if counts:
                self._left_out(session, backlog, run.count)
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

    def _is_drained(self, group: SessionGroup) -> bool:
        return group.cursor.next >= group.cursor.stop and not group.cursor.requeued_count

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
        for session in list(self._too_long)[:SLICE_COUNT]:
            del self._too_long[session]
            if self._state.by_number.get(session.number) is session:
                self._drop_oldest(session)
        self._enforce_soon()

    def _look_soon(self, session: MqttSession) -> None:
        """See to the session in a later loop iteration."""
        self._too_long[session] = None
        self._enforce_soon()

    def _drop_oldest(self, session: MqttSession) -> None:
        """Count what waits, and drop what is too much of it if the oldest give way."""
        backlog = self._backlog(session)
        if backlog.reading:
            return
        waiting = _waiting(session)
        groups = [group for group, _ in waiting]
        excess = sum(count for _, count in waiting) - self._waiting_max
        uncounted: int | None = 0
        if excess > 0:
            uncounted = backlog.uncounted.count(groups, partial(self._look_soon, session))
            if uncounted is None:
                if not backlog.uncounted.reading:
                    self._too_long[session] = None
                return
            excess -= uncounted
        backlog.room = -excess
        if excess <= 0 or len(backlog.heads) > len(waiting):
            backlog.heads.clear()
        if excess <= 0 or self._drops_newest:
            return
        most = min(excess, self._core.limits.pump_count_max)
        try:
            if len(groups) == 1 and not uncounted:
                dropped = self._drop(session, groups[0], most)
            else:
                dropped = self._drop_in_order(session, backlog, groups, most)
        except Refused:  # the log takes nothing now, and so nothing more comes
            return
        self._counts.given_up[Cause.MAXLEN] += dropped
        self._left_out(session, backlog, dropped)
        if session.overlaps is not None:
            session.overlaps.log_order.moved()
        if dropped < excess and not backlog.reading:
            self._too_long[session] = None

    def _drop_in_order(
        self, session: MqttSession, backlog: Backlog, groups: Sequence[SessionGroup], most: int
    ) -> int:
        """Drop the oldest messages of several subscriptions, and with them what does not count.
        Fewer where entries have to be read from the disk first, or much does not count."""
        heap: list[tuple[int, int]] = []
        for at, group in enumerate(groups):
            positions, _ = self._head(session, backlog, group)
            if not positions:
                return 0
            heap.append((positions[0], at))
        heapq.heapify(heap)
        dropped = passed = 0
        while dropped < most and passed < self._core.limits.pump_count_max:
            _, at = heap[0]
            group = groups[at]
            positions, flags = self._head(session, backlog, group)
            if not positions:
                return dropped
            others = min(heap[1:3], default=(NO_STOP, 0))[0]
            count = 0
            for position in positions[: most - dropped]:
                if position >= others:
                    break
                count += 1
            count = self._drop(session, group, max(1, count))
            uncounted = flags[:count].count(1)
            backlog.uncounted.passed(group, uncounted)
            dropped += count - uncounted
            passed += count
            if not group.ready_count or group.subscription is None:
                heapq.heappop(heap)
                if not heap:
                    break
                continue
            positions, _ = self._head(session, backlog, group)
            if not positions:
                return dropped
            heapq.heapreplace(heap, (positions[0], at))
        return dropped

    def _head(
        self, session: MqttSession, backlog: Backlog, group: SessionGroup
    ) -> tuple[Sequence[int], bytes]:
        """Where the messages at the head stand in the log, and which do not count; none if that is
        being read."""
        index, cursor = group.queue.index, group.cursor
        if cursor.floor < index.first_offset:
            cursor.skip_to(index.first_offset)
        head = cursor.peek(HEAD_COUNT, group.queue.visible)
        if head is None:
            return (), b""
        first, count = head
        start, known, flags = backlog.heads.get(group, (0, array("Q"), b""))
        if not 0 <= first - start < len(known):
            entries = index.read_hot(first, count)
            if not entries:
                backlog.reading = True
                took = partial(self._took_head, session, backlog, group)
                self._core.reading.entries(index, first, HEAD_COUNT, took)
                return (), b""
            self._took_entries(backlog, group, first, entries)
            start, known, flags = backlog.heads[group]
        found = slice(first - start, first - start + count)
        return known[found], flags[found]

    def _took_entries(
        self, backlog: Backlog, group: SessionGroup, first: int, entries: bytes
    ) -> None:
        flags = backlog.uncounted.flags(group, first, entries)
        backlog.heads[group] = first, positions_of(entries), flags

    def _took_head(
        self,
        session: MqttSession,
        backlog: Backlog,
        group: SessionGroup,
        first: int,
        entries: bytes | None,
    ) -> None:
        backlog.reading = False
        if entries:  # else the read failed, which was told: the next message asks again
            self._took_entries(backlog, group, first, entries)
            self._look_soon(session)

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
        """Messages of the groups are about to be sent: what was dropped before them is written
        first. Else a crash would find what was dropped among what was sent."""
        if not self._skipped.keys().isdisjoint(groups):
            self.write()

    def write(self) -> None:
        """Write what was dropped since the last time. What the log refuses gathers on."""
        skipped, self._skipped = self._skipped, {}
        groups = self._queue_store.groups
        said = [[g.number, offset] for g, offset in skipped.items() if groups.get(g.number) is g]
        if not said or self._core.failure is not None:
            return
        try:
            self._core.journal.write({"op": "skip", "g": said})
        except Refused:
            self._skipped = skipped

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
                waiting_max=self._waiting_max,
            )
            backlog.logged_count, backlog.logged_ms = backlog.dropped_count, now_ms


def _waiting(session: MqttSession) -> list[tuple[SessionGroup, int]]:
    """The groups in which something waits for the session, and how much."""
    own = [sub for sub in session.subscriptions.values() if not sub.is_shared]
    groups = [sub.group for sub in own if sub.durable]
    counted = [(group, group.ready_count) for group in groups if group is not None]
    return [(group, count) for group, count in counted if count]
