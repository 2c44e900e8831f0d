"""MQTT sessions: subscriptions, what is in flight, and takeover.

A session outlives its connection (its *link*) unless the client asked for a clean one. It owns the
packet ids of outbound messages: they are tags that count up, shown to the client modulo 65,535.

Where a subscription's messages come from:

* Persistent session, QoS 1 or 2: a *filter queue*, one per distinct filter, shared by all sessions
  with that filter, each with its own group (cursor). The queue is named in each record, so it
  survives; packet ids are in the log before their PUBLISH leaves.
* Everything else is *live*: it gets what is published while it is connected, straight from memory;
  what it cannot take at once waits in a bounded queue of positions in memory.

Rules [MQTT-4.3, MQTT-4.4]: a message stays in flight until PUBACK or PUBREC; after PUBREC only its
packet id stays, until PUBCOMP. On resumption, what is in flight is sent again in the original
order with its packet ids, DUP set, and owed PUBRELs after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.core import Core
from broker.cursor import Cursor
from broker.errors import Reason, Refused
from broker.journal import Op, Touched
from broker.port import Delivery, Durability, Position, RecordRun, SessionLink, Words
from broker.queues import Committed, Group, Hold, Queue
from broker.retained import Retained
from broker.topics import Topics
from broker.unacked import Unacked

PACKET_IDS: Final = 65_535
QOS_PROPERTY: Final = "PMQ_QOS"
OTHER_PROTOCOL_QOS: Final = 1
"""QoS of messages that were not published by MQTT: acknowledged to their publisher when durable,
so at least once."""


class RetainedHolder:
    """A retained message in flight: settled without a trace, read again from its place."""

    __slots__ = ("entry",)

    def __init__(self, entry: bytes) -> None:
        self.entry = entry


Holder = Group | RetainedHolder | None


class Subscription:
    """One filter of one session: the consumer of its group, or a live target."""

    __slots__ = ("group", "hold", "qos", "queue", "session", "words")

    def __init__(self, session: MqttSession, words: Words, qos: int) -> None:
        self.session = session
        self.words = words
        self.qos = qos
        self.queue: Queue | None = None
        """The filter queue of a durable subscription, else the backlog of a slow live one."""
        self.group: Group | None = None
        self.hold: Hold | None = None
        """Its place in the group while the client is connected."""

    @property
    def durable(self) -> bool:
        """Whether messages wait for it while the client is away."""
        return self.group is not None and self.group.number != 0

    # --- as a consumer of its group ---------------------------------------------------------

    def credit(self) -> int:
        """See `port.Consumer`."""
        return self.session.credit()

    def deliver(self, delivery: Delivery) -> None:
        """See `port.Consumer`."""
        offset = delivery.first_offset
        for run in delivery.runs:
            self.session.send(self, run, self.group, offset, delivery.redelivered)
            offset += run.count

    def cancelled(self) -> None:
        """Filter queues go only with their last subscription."""

    # --- as a live target -------------------------------------------------------------------

    def offer(self, run: Committed) -> None:
        """A run that matches became visible: send it, or let it wait in the backlog."""
        backlog = self.queue
        if (backlog is None or not self._lags()) and self.session.credit() >= run.count:
            for part in run.runs:
                self.session.send(self, part, None, 0, False)
            return
        if backlog is None:
            core = self.session.core
            backlog = self.queue = core.volatile_queue(core.limits.backlog_count_max)
            self.group = core.group(backlog, Cursor(0))
            self.hold = self.group.add(self)
        backlog.append(run.spans)
        backlog.visible += run.count
        assert self.group is not None
        self.group.pump()

    def _lags(self) -> bool:
        assert self.group is not None
        return self.group.ready_count > 0 or self.group.waiting

    def detach(self) -> None:
        """The client is gone: stop delivering; a live backlog is forgotten."""
        if self.hold is not None:
            self.hold.cancel()
            self.hold = None
        if self.group is not None and not self.durable:
            self.session.core.drop_group(self.group)
            self.group = None
            self.queue = None


class MqttSession:
    """The `Session` of the port."""

    def __init__(
        self,
        sessions: Sessions,
        client_id: str,
        *,
        number: int,
        principal: str,
    ) -> None:
        self.sessions = sessions
        self.core = sessions.core
        self.client_id = client_id
        self.number = number
        """0 for a clean session, which leaves no trace in the log."""
        self.principal = principal
        self.present = False
        self.position = Position(0)
        self.link: SessionLink | None = None
        self.connection_number = 0
        """Counts the connections: what was meant for an earlier one is not sent to this."""
        self.subscriptions: dict[Words, Subscription] = {}
        self.unacked: Unacked[Holder] = Unacked()
        self.releasing: dict[int, None] = {}
        """Tags whose PUBREC came and whose PUBCOMP did not, in order."""
        self.inbound: set[int] = set()
        """Packet ids of QoS 2 messages that were taken and not yet released."""
        self._starved = False

    @property
    def clean(self) -> bool:
        """Whether it ends with its connection."""
        return self.number == 0

    # --- outbound -----------------------------------------------------------------------------

    def credit(self) -> int:
        """How many messages may be sent now: transport, window, and unambiguous packet ids."""
        if self.link is None:
            return 0
        unacked = self.unacked
        inflight = unacked.count + len(self.releasing)
        window = self.core.limits.inflight_count_max - inflight
        if inflight:
            window = min(window, PACKET_IDS - 1 - (unacked.next_tag - self._oldest_tag()))
        if window <= 0:
            self._starved = True
            return 0
        return min(window, self.link.credit())

    def send(
        self,
        subscription: Subscription,
        run: RecordRun,
        holder: Holder,
        offset: int,
        redelivered: bool,
        *,
        retain: bool = False,
    ) -> None:
        """Send a run to the client. `offset` is its first one in the holder's queue."""
        link = self.link
        qos = min(subscription.qos, publish_qos(run))
        if link is None:
            return
        if qos == 0:
            link.send_publishes(run, qos=0, first_packet_id=0, duplicate=False, retain=retain)
            if isinstance(holder, Group):
                holder.settle(offset, run.count)
            return
        if self.clean or not isinstance(holder, Group):
            tag = self.unacked.add(holder, offset, run.count)
            link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag),
                duplicate=False,
                retain=retain,
            )
            return
        tag = self.unacked.next_tag
        position = self.core.journal.write(
            {
                "op": "assign",
                "s": self.number,
                "t": tag,
                "g": holder.number,
                "o": offset,
                "n": run.count,
            }
        )
        self.core.commits.when(
            position,
            Durability.FLUSHED,
            self._send_assigned,
            self.connection_number,
            run,
            qos,
            tag,
            redelivered,
        )

    def _send_assigned(
        self, connection_number: int, run: RecordRun, qos: int, tag: int, duplicate: bool
    ) -> None:
        if self.link is not None and connection_number == self.connection_number:
            self.link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag),
                duplicate=duplicate,
                retain=False,
            )

    def acknowledged(self, first_packet_id: int, count: int) -> None:
        """See `port.Session`."""
        tag = self._tag(first_packet_id)
        self._settle(self.unacked.settle_present(tag, tag + count - 1))
        self._resume_if_starved()

    def received(self, first_packet_id: int, count: int) -> None:
        """See `port.Session`."""
        tag = self._tag(first_packet_id)
        if self.clean:
            self._settle(self.unacked.settle_present(tag, tag + count - 1))
            self._releasing(tag, count)
            if self.link is not None:
                self.link.send_pubrels(first_packet_id, count)
            return
        position = self.core.journal.write({"op": "rel+", "s": self.number, "t": tag, "n": count})
        self.core.commits.when(
            position,
            Durability.FLUSHED,
            self._send_pubrels,
            self.connection_number,
            first_packet_id,
            count,
        )

    def _send_pubrels(self, connection_number: int, first_packet_id: int, count: int) -> None:
        if self.link is not None and connection_number == self.connection_number:
            self.link.send_pubrels(first_packet_id, count)

    def completed(self, first_packet_id: int, count: int) -> None:
        """See `port.Session`."""
        tag = self._tag(first_packet_id)
        if self.clean:
            self.forget_released(tag, count)
        else:
            self.core.journal.write({"op": "rel-", "s": self.number, "t": tag, "n": count})
        self._resume_if_starved()

    def _releasing(self, tag: int, count: int) -> None:
        for one in range(tag, min(tag + count, self.unacked.next_tag)):
            self.releasing[one] = None

    def start_release(self, tag: int, count: int) -> None:
        """PUBREC was received (an op)."""
        self._settle(self.unacked.settle_present(tag, tag + count - 1))
        self._releasing(tag, count)

    def forget_released(self, tag: int, count: int) -> None:
        """PUBCOMP was received (an op)."""
        for one in range(tag, tag + count):
            self.releasing.pop(one, None)

    def _settle(self, runs: Sequence[tuple[Holder, int, int]]) -> None:
        for holder, offset, count in runs:
            if isinstance(holder, Group):
                holder.settle(offset, count)

    def _oldest_tag(self) -> int:
        oldest = self.unacked.first_tag
        if self.releasing:
            oldest = min(oldest, next(iter(self.releasing)))
        return oldest

    def _tag(self, packet: int) -> int:
        """The tag that the packet id stands for, or one that is not in flight."""
        oldest = self._oldest_tag()
        return oldest + (packet - packet_id(oldest)) % PACKET_IDS

    def _resume_if_starved(self) -> None:
        if self._starved:
            self._starved = False
            self.ready()

    def ready(self) -> None:
        """See `port.Session`."""
        for subscription in list(self.subscriptions.values()):
            if subscription.hold is not None:
                subscription.hold.ready()

    # --- inbound QoS 2 ------------------------------------------------------------------------

    def is_duplicate(self, packet: int) -> bool:
        """See `port.Session`."""
        return packet in self.inbound

    def released(self, packet: int) -> Position:
        """See `port.Session`."""
        if packet not in self.inbound or self.clean:
            self.inbound.discard(packet)
            return Position(0)
        return self.core.journal.write({"op": "in-", "s": self.number, "p": packet})

    # --- subscriptions ------------------------------------------------------------------------

    def subscribe(self, words: Words, qos: int) -> Position:
        """See `port.Session`."""
        return self.sessions.subscribe(self, words, qos)

    def unsubscribe(self, words: Words) -> Position:
        """See `port.Session`."""
        return self.sessions.unsubscribe(self, words)

    def replay_retained(self, words: Words, qos: int) -> None:
        """See `port.Session`."""
        subscription = self.subscriptions.get(words)
        if subscription is not None:
            self.sessions.replay_retained(self, subscription)

    # --- connection ---------------------------------------------------------------------------

    def resume(self) -> None:
        """See `port.Session`."""
        self.sessions.resend(self, self._resumed)

    def _resumed(self) -> None:
        """What was in flight is on its way again: now what is new."""
        for subscription in self.subscriptions.values():
            self.attach(subscription)
        self.ready()

    def attach(self, subscription: Subscription) -> None:
        """Begin to deliver to the connected client."""
        if subscription.durable:
            if subscription.hold is None and subscription.group is not None:
                subscription.hold = subscription.group.add(subscription)
        else:
            self.sessions.topics.router.subscribe(subscription.words, subscription)

    def disconnect(self) -> None:
        """See `port.Session`."""
        self.link = None
        self.connection_number += 1
        for subscription in self.subscriptions.values():
            if not subscription.durable:
                self.sessions.topics.router.unsubscribe(subscription.words, subscription)
            subscription.detach()
        if self.clean:
            self.sessions.ended(self)


def packet_id(tag: int) -> int:
    """The packet id that the client sees: 1 to 65,535 [MQTT-2.3.1-1]."""
    return (tag - 1) % PACKET_IDS + 1


def publish_qos(run: RecordRun) -> int:
    """The QoS that the run was published with."""
    qos: int | None = run.meta.cache.get("broker.qos")
    if qos is None:
        stored = run.meta.properties.get(QOS_PROPERTY)
        qos = OTHER_PROTOCOL_QOS if stored is None else int(stored)
        run.meta.cache["broker.qos"] = qos
    return qos


class FilterQueue:
    """A filter queue and the sessions that read it."""

    __slots__ = ("queue", "words")

    def __init__(self, words: Words, queue: Queue) -> None:
        self.words = words
        self.queue = queue


class Sessions:
    """All sessions and filter queues."""

    def __init__(self, core: Core, topics: Topics, retained: Retained) -> None:
        self.core = core
        self.topics = topics
        self.retained = retained
        self.by_client: dict[str, MqttSession] = {}
        self.by_number: dict[int, MqttSession] = {}
        self.filters: dict[Words, FilterQueue] = {}
        for name, handler in (
            ("session+", self._apply_session),
            ("session-", self._apply_session_end),
            ("fq+", self._apply_filter),
            ("fq-", self._apply_filter_end),
            ("sub+", self._apply_subscribe),
            ("sub-", self._apply_unsubscribe),
            ("assign", self._apply_assign),
            ("rel+", self._apply_release),
            ("rel-", self._apply_complete),
            ("in-", self._apply_inbound_release),
        ):
            core.journal.handle(name, handler)

    # --- connecting -----------------------------------------------------------------------

    def connect(
        self, client_id: str, *, clean: bool, link: SessionLink, principal: str
    ) -> MqttSession:
        """See `BrokerPort.connect_session`."""
        existing = self.by_client.get(client_id)
        if existing is not None and existing.principal != principal:
            raise Refused(
                Reason.FORBIDDEN, f"client id {client_id!r} belongs to another user's session"
            )
        if existing is not None and existing.link is not None:
            old = existing.link
            existing.disconnect()  # ends a clean session
            old.taken_over()
        existing = self.by_client.get(client_id)
        position = Position(0)
        if existing is not None and clean:
            position = self._end(existing)
            existing = None
        if existing is not None:
            existing.present = True
            existing.position = Position(0)
            session = existing
        else:
            session = self._new(client_id, clean=clean, principal=principal)
            session.position = Position(max(session.position, position))
        session.link = link
        return session

    def _new(self, client_id: str, *, clean: bool, principal: str) -> MqttSession:
        if clean:
            session = MqttSession(self, client_id, number=0, principal=principal)
            self.by_client[client_id] = session
            return session
        self.core.check_writable()
        if len(self.by_number) >= self.core.limits.sessions_max:
            raise Refused(Reason.LIMIT, "there are too many persistent sessions")
        number = self.core.take_number()
        position = self.core.journal.write(
            {"op": "session+", "n": number, "c": client_id, "u": principal}
        )
        session = self.by_number[number]
        session.position = position
        return session

    def _end(self, session: MqttSession) -> Position:
        """End a persistent session with all it has."""
        for words in list(session.subscriptions):
            self.unsubscribe(session, words)
        return self.core.journal.write({"op": "session-", "n": session.number})

    def ended(self, session: MqttSession) -> None:
        """A clean session's connection is gone."""
        session.subscriptions.clear()
        if self.by_client.get(session.client_id) is session:
            del self.by_client[session.client_id]

    def _apply_session(self, op: Op) -> Touched:
        self.load(str(op["n"]), {"c": op["c"], "u": op["u"]})
        return [("session", str(op["n"]))]

    def _apply_session_end(self, op: Op) -> Touched:
        session = self.by_number.pop(op["n"], None)
        if session is not None and self.by_client.get(session.client_id) is session:
            del self.by_client[session.client_id]
        return [("session", str(op["n"]))]

    # --- subscribing ----------------------------------------------------------------------

    def subscribe(self, session: MqttSession, words: Words, qos: int) -> Position:
        """See `port.Session.subscribe`."""
        limit = self.core.limits.subscriptions_per_session_max
        if words not in session.subscriptions and len(session.subscriptions) >= limit:
            raise Refused(Reason.LIMIT, f"a session has at most {limit} subscriptions")
        if session.clean:
            existing = session.subscriptions.get(words)
            if existing is not None:
                existing.qos = qos
            else:
                subscription = Subscription(session, words, qos)
                session.subscriptions[words] = subscription
                session.attach(subscription)
            return Position(self.core.log.appended)
        self.core.check_writable()
        existing = session.subscriptions.get(words)
        if existing is not None and existing.durable != (qos > 0):
            self.unsubscribe(session, words)
            existing = None
        op: Op = {"op": "sub+", "s": session.number, "w": list(words), "q": qos, "g": 0, "o": 0}
        if qos > 0:
            queue = self._filter_queue(words)
            op["f"] = queue.number
            op["o"] = queue.index.end_offset
            group = existing.group if existing is not None else None
            op["g"] = group.number if group is not None else self.core.take_number()
        position = self.core.journal.write(op)
        session.attach(session.subscriptions[words])
        return position

    def unsubscribe(self, session: MqttSession, words: Words) -> Position:
        """See `port.Session.unsubscribe`."""
        subscription = session.subscriptions.get(words)
        if subscription is None:
            return Position(0)
        if not subscription.durable:
            self.topics.router.unsubscribe(words, subscription)
        if session.clean:
            subscription.detach()
            del session.subscriptions[words]
            return Position(0)
        durable = subscription.durable
        position = self.core.journal.write({"op": "sub-", "s": session.number, "w": list(words)})
        if durable:
            found = self.filters.get(words)
            if found is not None and not found.queue.groups:
                position = self.core.journal.write({"op": "fq-", "w": list(words)})
        return position

    def _filter_queue(self, words: Words) -> Queue:
        if words not in self.filters:
            if len(self.filters) >= self.core.limits.queues_max:
                raise Refused(Reason.LIMIT, "there are too many durable subscriptions")
            self.core.journal.write({"op": "fq+", "n": self.core.take_number(), "w": list(words)})
        return self.filters[words].queue

    def _apply_filter(self, op: Op) -> Touched:
        self.load_filter(str(op["n"]), {"w": op["w"]})
        return [("filter", str(op["n"]))]

    def _apply_filter_end(self, op: Op) -> Touched:
        words = tuple(op["w"])
        found = self.filters.pop(words, None)
        if found is None:
            return []
        self.topics.router.unsubscribe(words, found.queue)
        self.core.store.drop_index(found.queue.number)
        return [("filter", str(found.queue.number))]

    def _apply_subscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        words = tuple(op["w"])
        subscription = session.subscriptions.get(words)
        if subscription is None:
            subscription = Subscription(session, words, op["q"])
            session.subscriptions[words] = subscription
        subscription.qos = op["q"]
        touched = [("session", str(session.number))]
        if op["g"] and subscription.group is None:
            self.core.saw_number(op["g"])
            queue = self.filters[words].queue
            subscription.queue = queue
            subscription.group = self.core.group(queue, Cursor(op["o"]), number=op["g"])
            touched.append(("group", str(op["g"])))
        return touched

    def _apply_unsubscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        subscription = session.subscriptions.pop(tuple(op["w"]), None) if session else None
        if session is None or subscription is None:
            return []
        touched = [("session", str(session.number))]
        group = subscription.group
        if subscription.durable and group is not None:
            touched.append(("group", str(group.number)))
            for tag, holder, _, count in session.unacked.runs():
                if holder is group:
                    session.unacked.settle(tag, tag + count - 1)
            subscription.hold = None
            self.core.drop_group(group)
        else:
            subscription.detach()
        return touched

    # --- in flight ------------------------------------------------------------------------

    def _apply_assign(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        group = self.core.groups.get(op["g"])
        if session is None or group is None:
            return []
        session.unacked.next_tag = max(session.unacked.next_tag, op["t"])
        session.unacked.add(group, op["o"], op["n"])
        group.cursor.delivered_to(op["o"] + op["n"])
        return [("session", str(session.number)), ("group", str(op["g"]))]

    def _apply_release(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.start_release(op["t"], op["n"])
        return [("session", str(session.number))]

    def _apply_complete(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.forget_released(op["t"], op["n"])
        return [("session", str(session.number))]

    def took_inbound(self, number: int, packet: int) -> None:
        """A QoS 2 message of the session was stored (its record says so)."""
        session = self.by_number.get(number)
        if session is not None:
            session.inbound.add(packet)
            self.core.journal.dirty.add(("session", str(number)))

    def _apply_inbound_release(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.inbound.discard(op["p"])
        return [("session", str(session.number))]

    def resend(self, session: MqttSession, done: Callable[[], None]) -> None:
        """Send again what is in flight, in order, then the owed PUBRELs [MQTT-4.4.0-1]; then
        `done`. What is no longer in memory is read in a thread, and the rest waits for it."""
        connection = session.connection_number
        runs = deque(session.unacked.runs())

        def step() -> None:
            if session.link is None or session.connection_number != connection:
                return
            if runs:
                self._read_held(runs[0][1], runs[0][2], runs[0][3], got)
                return
            for tag in session.releasing:
                session.link.send_pubrels(packet_id(tag), 1)
            done()

        def got(records: bytes | None, found: int) -> None:
            tag, holder, offset, count = runs.popleft()
            if records and session.connection_number == connection:
                self._resend_records(session, tag, holder, records)
                if found < count:
                    runs.appendleft((tag + found, holder, offset + found, count - found))
            step()

        step()

    def _read_held(
        self,
        holder: Holder,
        offset: int,
        count: int,
        done: Callable[[bytes | None, int], None],
    ) -> None:
        """Records of messages in flight."""
        reading = self.core.reading
        if isinstance(holder, Group):
            bytes_max = self.core.limits.pump_bytes_max
            reading.read(holder.queue.index, offset, count, bytes_max, done)
        else:
            assert isinstance(holder, RetainedHolder)  # a live one's session ended with its link
            reading.read_entry(holder.entry, done)

    def _resend_records(
        self, session: MqttSession, tag: int, holder: Holder, records: bytes
    ) -> None:
        assert session.link is not None
        granted = [s.qos for s in session.subscriptions.values() if s.group is holder]
        qos = granted[0] if granted else 1
        for run in self.core.metas.runs(records, 0, len(records)):
            session.link.send_publishes(
                run,
                qos=max(1, min(qos, publish_qos(run))),
                first_packet_id=packet_id(tag),
                duplicate=True,
                retain=isinstance(holder, RetainedHolder),
            )
            tag += run.count

    # --- retained -------------------------------------------------------------------------

    def replay_retained(self, session: MqttSession, subscription: Subscription) -> None:
        """Send the matching retained messages, a slice per loop iteration."""
        found = self.retained.match(subscription.words)
        connection = session.connection_number
        core = self.core

        def step() -> None:
            if session.connection_number != connection or session.link is None:
                return
            for _ in range(core.limits.retained_slice_count):
                if session.credit() <= 0:
                    core.scheduler.call_later(core.limits.ack_delay_seconds, step)
                    return
                try:
                    entry = next(found)
                except StopIteration:
                    return
                if entry is not None:
                    self._send_retained(session, subscription, entry)
            core.scheduler.call_soon(step)

        step()

    def _send_retained(
        self, session: MqttSession, subscription: Subscription, entry: bytes
    ) -> None:
        connection = session.connection_number

        def done(records: bytes | None, _: int) -> None:
            if records is None or session.connection_number != connection:
                return
            for run in self.core.metas.runs(records, 0, len(records)):
                session.send(subscription, run, RetainedHolder(entry), 0, False, retain=True)

        self.core.reading.read_entry(entry, done)

    # --- snapshot -------------------------------------------------------------------------

    def load(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a session from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        session = MqttSession(self, value["c"], number=number, principal=value["u"])
        self.by_number[number] = session
        self.by_client[value["c"]] = session
        session.inbound.update(value.get("in", ()))
        session.releasing.update(dict.fromkeys(value.get("rel", ())))
        for words, qos, group_number in value.get("subs", ()):
            subscription = Subscription(session, tuple(words), qos)
            session.subscriptions[tuple(words)] = subscription
            group = self.core.groups.get(group_number)
            if group is not None:
                subscription.group = group
                subscription.queue = group.queue
        for tag, group_number, offset, count in value.get("unacked", ()):
            group = self.core.groups.get(group_number)
            if group is not None:
                session.unacked.next_tag = tag
                session.unacked.add(group, offset, count)
        session.unacked.next_tag = value.get("next", 1)

    def row(self, key: str) -> Mapping[str, Any] | None:
        """The session as a JSON value for the snapshot."""
        session = self.by_number.get(int(key))
        if session is None:
            return None
        return {
            "c": session.client_id,
            "u": session.principal,
            "in": sorted(session.inbound),
            "rel": list(session.releasing),
            "next": session.unacked.next_tag,
            "subs": [
                [list(s.words), s.qos, s.group.number if s.group and s.durable else 0]
                for s in session.subscriptions.values()
            ],
            "unacked": [
                [tag, holder.number, offset, count]
                for tag, holder, offset, count in session.unacked.runs()
                if isinstance(holder, Group) and holder.number
            ],
        }

    def load_filter(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a filter queue from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        words = tuple(value["w"])
        queue = self.core.durable_queue(number, own=False)
        self.filters[words] = FilterQueue(words, queue)
        self.topics.router.subscribe(words, queue)

    def row_filter(self, key: str) -> Mapping[str, Any] | None:
        """The filter queue as a JSON value for the snapshot."""
        number = int(key)
        for found in self.filters.values():
            if found.queue.number == number:
                return {"w": list(found.words)}
        return None

    def reopen(self) -> None:
        """After a restart: drop from what is in flight what the cursors know as settled, and give
        everything else that was delivered back to its queue."""
        for session in self.by_number.values():
            kept: dict[Group, list[tuple[int, int]]] = {}
            for tag, holder, offset, count in session.unacked.runs():
                if not isinstance(holder, Group):
                    continue
                for at in range(count):
                    if holder.cursor.is_settled(offset + at):
                        session.unacked.settle(tag + at, tag + at)
                    else:
                        kept.setdefault(holder, []).append((offset + at, 1))
            for subscription in session.subscriptions.values():
                group = subscription.group
                if group is not None and subscription.durable:
                    group.cursor.reopen(kept.get(group, ()))
