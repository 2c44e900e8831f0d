"""One subscription of an MQTT session: where its messages come from.

* Persistent session, QoS 1 or 2: a *filter queue*, one per distinct filter, shared by all sessions
  with that filter, each with its own group (cursor). The queue is named in each record, so it
  survives; packet ids are in the log before their PUBLISH leaves. A subscription that goes down to
  QoS 0 keeps its queue, and what stands in it keeps its QoS [MQTT-3.8.4-3].
* Retained messages come from their places in the log. Those that a durable subscription has yet to
  get are sent to the next connection (`owed.py`).
* Everything else is *live*: it gets what is published while it is connected, straight from memory;
  what it cannot take at once waits in a bounded queue of positions in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from polymq.broker.kernels.delivery import publish_qos
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.message import Delivery
from polymq.broker.port.sessions import SubscriptionOptions
from polymq.broker.port.values import Address
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Queue, Registration
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.options import OptionsEnd

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
        if self.lowered_end:
            return min(self._alike_count(), session.credit())
        if self.qos:
            return session.credit()
        queued = self._queued_count()
        return min(queued, session.credit()) if queued else session.room()

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
        offset = delivery.first_offset
        for run in delivery.runs:
            if offset < self.away_end and not min(self.qos_at(offset), publish_qos(run)):
                self.group.settle(offset, run.count)  # it did not wait
                if self.session.backlog is not None:
                    self.session.backlog.uncounted.passed(self.group, run.count)
            elif self.special and self.is_own(run.meta):
                self.group.settle(offset, run.count)
            else:
                self.session.send(self, run, self.group, offset, delivery.redelivered)
            offset += run.count

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
        if self.special and self.is_own(run.meta):
            return
        backlog = self.queue
        # The backlog bounds how much is written anew, or taken apart, at once.
        apart = self.session.takes_apart
        is_slow = run.meta.rewritten or (apart is not None and apart(run.meta))
        if not is_slow and (backlog is None or not self._lags()):
            qos = self.session.sent_qos(run, self.qos)
            room = self.session.credit() if qos else self.session.room()
            if room >= run.count:
                retain, identifier = self.sends_retain(run.meta), self.options.identifier
                for part in run.runs:
                    self.session.send_live(part, qos, retain, identifier)
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
