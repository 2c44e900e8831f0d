"""One subscription of an MQTT session: where its messages come from.

* Persistent session, QoS 1 or 2: a *filter queue*, one per distinct filter, shared by all sessions
  with that filter, each with its own group (cursor). The queue is named in each record, so it
  survives; packet ids are in the log before their PUBLISH leaves. A subscription that goes down to
  QoS 0 keeps its queue, and what stands in it keeps its QoS [MQTT-3.8.4-3].
* Retained messages come from their places in the log. Those that a durable subscription has yet to
  get are sent to the next connection (`owed.py`).
* Everything else is *live*: it gets what is published while it is connected, straight from memory;
  what it cannot take at once waits in a bounded queue of positions in memory.
* Where filters of the session may overlap, one of its subscriptions sends a message for all that
  match (`overlaps.py`, `log_order.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from polymq.broker.kernels.delivery import publish_qos
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.message import Delivery
from polymq.broker.port.sessions import SubscriptionOptions
from polymq.broker.port.values import Address
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Queue, Registration
from polymq.broker.routing.patterns import matches
from polymq.broker.routing.trie import address_of
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.log_order import first_of, positions_in
from polymq.broker.sessions.options import OptionsEnd
from polymq.broker.sessions.overlaps import Copy, Matching, Overlaps

if TYPE_CHECKING:
    from polymq.broker.sessions.owed import Owed
    from polymq.broker.sessions.session import MqttSession


class Subscription(OptionsEnd):
    """One filter of one session: the consumer of its group, or a live target."""

    __slots__ = (
        "address",
        "away_end",
        "group",
        "lowered_end",
        "lowered_first",
        "owed",
        "queued_end",
        "queued_qos",
        "registration",
    )

    is_shared: ClassVar[bool] = False
    """Whether other sessions have a part in it (`shares.py`)."""

    def __init__(
        self, session: MqttSession, address: Address, options: SubscriptionOptions
    ) -> None:
        super().__init__(session, options)
        self.session: MqttSession = session
        self.queue: Queue | None = None
        self.address = address
        self.group: SessionGroup | None = None
        self.registration: Registration | None = None
        """Its place in the group while the client is connected."""
        self.away_end = 0
        """What came before this offset came while the client was away: of that, what would be sent
        with QoS 0 is not."""
        self.queued_qos = 0
        self.queued_end = 0
        """Of a subscription that was lowered to QoS 0: what stands in its queue before this offset
        was queued under that QoS, and keeps it [MQTT-3.8.4-3]."""
        self.lowered_first = self.lowered_end = 0
        """Of a subscription that was lowered to QoS 0 and raised again, with something left in its
        queue: what stands between these offsets was queued under QoS 0, and keeps it."""
        self.owed: Owed | None = None
        """The retained messages that a durable subscription has yet to get."""

    def set_options(self, options: SubscriptionOptions) -> None:
        """See `OptionsEnd`."""
        super().set_options(options)
        overlaps = self.session.overlaps
        if overlaps is not None and not self.is_shared:
            self.special = True
            overlaps.changed()

    @property
    def durable(self) -> bool:
        """Whether messages wait for it while the client is away."""
        return self.group is not None and self.group.number != 0

    def is_as(self, options: SubscriptionOptions) -> bool:
        """Whether SUBSCRIBE with these options changes nothing of it."""
        return self.options == options and not (self.queued_qos or self.lowered_end)

    # --- as a consumer of its group ---------------------------------------------------------

    def credit(self) -> int:
        """See `port.Consumer`. What has another QoS is never handed out in one stretch."""
        session = self.session
        if self.special and session.overlaps is not None and self._has_to_wait(session.overlaps):
            return 0
        if self.lowered_end:
            return min(self._alike_count(), session.credit())
        if self.qos:
            return session.credit()
        queued = self._queued_count()
        return min(queued, session.credit()) if queued else session.room()

    def _has_to_wait(self, overlaps: Overlaps[Subscription]) -> bool:
        """Whether what is in flight or another subscription of the session comes first, or the
        window is full where a live one may send for another that has a higher QoS."""
        if self.durable:
            if not self.session.attached:
                return True
            return self.group is not None and overlaps.log_order.is_blocked(self.group)
        return overlaps.live_qos > self.qos and self.session.credit() <= 0

    def qos_at(self, offset: int) -> int:
        """The highest QoS with which the message at this offset of the queue is delivered."""
        if self.lowered_first <= offset < self.lowered_end:
            return 0
        return self.qos or (self.queued_qos if offset < self.queued_end else 0)

    def _alike_count(self) -> int:
        """How many offsets, from the next message on, have the same QoS, while something is left
        that was queued under another one."""
        group = self.group
        head = None if group is None else group.cursor.peek(1, group.queue.visible)
        if head is None:
            return self.session.window
        if head[0] >= self.lowered_end:
            self.lowered_first = self.lowered_end = 0
            return self.session.window
        ends = (self.lowered_first, self.lowered_end, self.queued_end if self.queued_qos else 0)
        return min(end for end in ends if end > head[0]) - head[0]

    def _queued_count(self) -> int:
        """How many offsets, from the next message on, stand before the subscription was lowered
        to QoS 0."""
        group = self.group
        if not self.queued_qos or group is None:
            return 0
        head = group.cursor.peek(1, group.queue.visible)
        return 0 if head is None else max(0, self.queued_end - head[0])

    def deliver(self, delivery: Delivery) -> None:
        """See `port.Consumer`."""
        assert self.group is not None
        if self.special:
            self._deliver_specially(delivery, self.group)
            return
        offset = delivery.first_offset
        for run in delivery.runs:
            if not self._did_not_wait(run, self.group, offset):
                self.session.send(self, run, self.group, offset, delivery.redelivered)
            offset += run.count

    def _did_not_wait(self, run: RecordRun, group: SessionGroup, offset: int) -> bool:
        """Let go of a run that came while the client was away, if it would be sent with QoS 0."""
        if offset >= self.away_end or min(self.qos_at(offset), publish_qos(run)):
            return False
        group.settle(offset, run.count)
        if self.session.backlog is not None:
            self.session.backlog.uncounted.passed(group, run.count, run.end - run.start)
        return True

    def _deliver_specially(self, delivery: Delivery, group: SessionGroup) -> None:
        """The same where options count, or what other filters of the session match."""
        overlaps = self.session.overlaps
        offset = delivery.first_offset
        for run in delivery.runs:
            if self._did_not_wait(run, group, offset):
                pass
            elif (self.durable or overlaps is None) and self.is_own(run.meta):
                group.settle(offset, run.count)
            elif overlaps is None:
                if self._has_ended(run):
                    group.settle(offset, run.count)
                else:
                    self.session.send(self, run, group, offset, delivery.redelivered)
            elif not self.durable:
                self._deliver_live(run, group, offset, overlaps.matching(run.meta))
            elif not self._deliver_together(run, group, offset, delivery, overlaps):
                return
            offset += run.count
        if overlaps is not None and self.durable:
            overlaps.log_order.moved()

    def _deliver_live(
        self, run: RecordRun, group: SessionGroup, offset: int, matching: Matching[Subscription]
    ) -> None:
        """A run of the backlog: to whatever subscriptions match it now."""
        if not matching:  # unsubscribed meanwhile
            group.settle(offset, run.count)
            return
        copy = Copy(max(self.qos, matching.qos), matching, run.meta)
        self.session.send(self, run, group, offset, False, copy)

    def _deliver_together(
        self,
        run: RecordRun,
        group: SessionGroup,
        offset: int,
        delivery: Delivery,
        overlaps: Overlaps[Subscription],
    ) -> bool:
        """A run of a durable subscription's queue, for all durable ones that match. False if
        another of them comes first: then this and what comes behind it is back in its place."""
        matching = overlaps.matching(run.meta)
        others = [other for other in matching.durable if other is not self]
        left: RecordRun | None = run
        while left is not None:
            together: list[tuple[Subscription, int]] = []
            count = left.count
            if others:
                found = overlaps.log_order.portion(group, positions_in(left), others)
                if found is not None:
                    count, together = found
                if found is None or self._leaves_to_other(left, offset, together, overlaps):
                    end = delivery.first_offset + delivery.count
                    group.hand_back(offset, end - offset, delivery)
                    return False
            part, left = first_of(left, count)
            self._send_together(part, group, offset, delivery, together, matching)
            offset += part.count
        return True

    def _leaves_to_other(
        self,
        run: RecordRun,
        offset: int,
        together: list[tuple[Subscription, int]],
        overlaps: Overlaps[Subscription],
    ) -> bool:
        """A message that this one would send with QoS 0 is sent by one that has a higher QoS, whose
        credit counts what is in flight."""
        if self.group is None or self.qos_at(offset) or not publish_qos(run):
            return False
        for other, at in together:
            if other.group is not None and other.qos_at(at):
                overlaps.log_order.block(self.group, other.group, at)
                return True
        return False

    def _send_together(
        self,
        run: RecordRun,
        group: SessionGroup,
        offset: int,
        delivery: Delivery,
        together: list[tuple[Subscription, int]],
        matching: Matching[Subscription],
    ) -> None:
        """Send messages that stand at the head of several queues: in these they are settled."""
        qos = max([self.qos_at(offset), *(other.qos_at(at) for other, at in together)])
        copy = Copy(qos, matching, run.meta)
        copy.also = [(other.group, at) for other, at in together if other.group is not None]
        sent = self.session.send(self, run, group, offset, delivery.redelivered, copy)
        backlog = self.session.backlog
        if not sent or backlog is None:
            return
        for other, at in together:
            low = min(other.qos_at(at), publish_qos(run)) == 0
            if low and at < other.away_end and other.group is not None:
                backlog.uncounted.passed(other.group, run.count, run.end - run.start)

    def _has_ended(self, run: RecordRun) -> bool:
        """Whether neither this nor another subscription of the session wants the run any more. Of
        one that is special, and whose session's filters do not overlap any more."""
        if self.address in self.session.subscriptions:
            return False
        address = address_of(run.meta.topic, run.meta.tag)
        there = self.session.subscriptions.values()
        return not any(matches(one.address, address) for one in there if not one.is_shared)

    def wake(self) -> None:
        """It may get what waits."""
        if self.registration is not None:
            self.registration.ready()

    def cancelled(self) -> None:
        """Filter queues go only with their last subscription."""

    # --- as the log has it ------------------------------------------------------------------

    def row(self) -> list[Any]:
        """The subscription, as its session's row has it."""
        group = self.group
        number = group.number if group is not None and self.durable else 0
        row = [list(self.address), self.qos, number]
        if self.queued_qos or self.lowered_end:
            row += [self.queued_qos, self.queued_end]
        if self.lowered_end:
            row += [self.lowered_first, self.lowered_end]
        return row

    def raise_from_0(self, offset: int) -> None:
        """If it was lowered, it has another QoS than 0 again for what comes from the offset on.
        What waits and came meanwhile keeps QoS 0; of two such stretches only the first one."""
        group = self.group
        if self.qos or not self.queued_qos or group is None:
            return
        first = max(self.queued_end, group.cursor.next)
        left = self.lowered_end > group.cursor.next
        if first < offset and not left:
            self.lowered_first, self.lowered_end = first, offset

    def join(self, group: SessionGroup) -> None:
        """The group is its own."""
        self.queue = group.queue
        self.group = group
        group.subscription = self
        group.session = self.session

    def part(self, group: SessionGroup) -> None:
        """The group is no longer its own, and delivers nothing more."""
        group.cursor.watch = None
        if group.rules is not None:
            group.rules.close()
            group.rules = None
        if self.registration is not None:
            self.registration.cancel()
            self.registration = None
        group.subscription = None

    # --- as a live target -------------------------------------------------------------------

    def offer_behind(self, run: Committed) -> None:
        """See `LiveEnd`: what there is no credit for waits in the backlog."""
        if self.session.link is None:
            return  # it was published before the client went
        if self.special and not self._sends(run):
            return
        backlog = self.queue
        # The backlog bounds how much is written anew, or taken apart, at once.
        apart = self.session.takes_apart
        is_slow = run.meta.rewritten or (apart is not None and apart(run.meta))
        if not is_slow and (backlog is None or not self._lags()):
            overlaps = self.session.overlaps
            matching = None if overlaps is None else overlaps.matching(run.meta)
            qos_max = self.qos if matching is None else max(self.qos, matching.qos)
            qos = self.session.sent_qos(run, qos_max)
            room = self.session.credit() if qos else self.session.room()
            if room >= run.count:
                source = self if matching is None else matching
                retain, identifiers = source.sends_retain(run.meta), source.identifiers
                for part in run.runs:
                    self.session.send_live(part, qos, retain, identifiers)
                return
        if backlog is None:
            store = self.session.sessions.queue_store
            backlog = self.queue = store.volatile_queue(self.session.core.limits.backlog_count_max)
            group = store.group(backlog, Cursor(0), kind=SessionGroup)
            assert isinstance(group, SessionGroup)
            group.session, group.subscription = self.session, self
            self.group = group
            self.registration = self.group.add(self, takes_apart=apart)
        backlog.append(run.spans)
        backlog.visible += run.count
        assert self.group is not None
        self.group.pump()

    def _sends(self, run: Committed) -> bool:
        """Whether a run that it is offered is sent by this one."""
        session = self.session
        if session.overlaps is not None:
            raised = session.raised_from_0()
            return session.overlaps.sends(self, run, raised, attached=session.attached)
        if self.address not in session.subscriptions:
            return False  # another one sends what was published before it ended
        return not self.is_own(run.meta)

    def _lags(self) -> bool:
        assert self.group is not None
        return self.group.ready_count > 0 or self.group.waiting

    def detach(self) -> None:
        """The client is gone: stop delivering; a live backlog is forgotten."""
        if self.registration is not None:
            self.registration.cancel()
            self.registration = None
        if self.group is not None and not self.durable:
            self.session.sessions.queue_store.drop_group(self.group)
            self.group = None
            self.queue = None
