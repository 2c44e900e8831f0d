"""All MQTT sessions: connecting and takeover, subscribing, resuming, retained messages.

What a change writes to the log, and how it is applied, is in `state.py`; what one session
does while it is connected is in `session.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.delays.delay import Delays
from polymq.broker.errors import Reason, Refused
from polymq.broker.kernels.delivery import publish_qos
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.moves.dead_letters import DeadLetters
from polymq.broker.moves.moves import QOS2_PROPERTY, rows_of_batch, settling_batch
from polymq.broker.pacing.sweeping import Sweeper
from polymq.broker.port.publishing import Template
from polymq.broker.port.sessions import Session, SessionLink, SubscriptionOptions
from polymq.broker.port.values import Address, Position, is_shared, pattern_of
from polymq.broker.queues.queue import Queue
from polymq.broker.queues.store import QueueStore
from polymq.broker.sessions.backlogs import SessionBacklogs
from polymq.broker.sessions.exclusive import ExclusiveFilters
from polymq.broker.sessions.expiry import SessionExpiry
from polymq.broker.sessions.flights import (
    UNKNOWN_QOS,
    Holder,
    QueueFlight,
    RetainedFlight,
    packet_id,
)
from polymq.broker.sessions.options import options_row
from polymq.broker.sessions.retained_replay import RetainedReplays
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.sessions.state import SessionState
from polymq.broker.sessions.subscription import Subscription
from polymq.broker.sessions.wills import Wills
from polymq.broker.state.journal import Op
from polymq.broker.topics.retained import Retained
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, Batch

RESENT_AT_ONCE: Final = 64
"""Runs of messages in flight that are sent again in one iteration, some 20 us each. Where a client
acknowledged out of order, each message may be a run."""

ENDED_BY_ONE_OP: Final = 4096
"""Sessions of a deleted user that one op ends."""


class Sessions:
    """Connecting, subscribing and resuming. What survives a restart is in `state`."""

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        retained: Retained,
        dead_letters: DeadLetters,
        delays: Delays,
        settings: SessionSettings,
    ) -> None:
        self.settings = settings
        self.delays = delays
        self.core = core
        self.queue_store = queue_store
        self.topics = topics
        self.retained = retained
        self.replays = RetainedReplays(core, topics, retained)
        self.resuming = Sweeper(core.unhurried)
        """Sessions whose subscriptions are looked at before anything is sent to them."""
        self.subscription_counts: dict[str, int] = {}
        """Subscriptions of all sessions by principal."""
        self.counts: dict[str, int] = {}
        """Persistent sessions by principal."""
        self.exclusive: ExclusiveFilters[MqttSession] = ExclusiveFilters()
        self.state = SessionState(core, queue_store, topics, dead_letters, self)
        self.backlogs = SessionBacklogs(core, settings, self.state, dead_letters.counts)
        self.shares = self.state.shares
        self.by_client = self.state.by_client
        self.by_number = self.state.by_number
        self.filters = self.state.filters
        self.expiry: SessionExpiry[MqttSession] = SessionExpiry(
            core, settings.expiry_seconds, self.by_number, self._end
        )
        """Ends sessions whose clients stay away."""
        self.wills = Wills(core, topics, self.by_client.get)

    def change(self, settings: SessionSettings) -> None:
        """Another time to wait for clients, and other bounds of what waits, from now on. All else
        stays as it was, and there is a bound of messages or bytes if there was one."""
        before, self.settings = self.settings, settings
        self.shares.settings = settings
        self.shares.bounds.change(settings)
        if settings.bounds != before.bounds:
            self.backlogs.change(settings)
        if settings.expiry_seconds != before.expiry_seconds:
            self.expiry.change(settings.expiry_seconds)

    def start(self) -> None:
        """A start's fold has ended: see to sessions that are too full, or stay away too long."""
        self.backlogs.start()
        self.expiry.start()
        self.wills.start()

    # --- connecting -----------------------------------------------------------------------

    def connect(
        self,
        client_id: str,
        *,
        clean: bool,
        expiry_seconds: int | None,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
        one_copy: bool = True,
    ) -> MqttSession:
        """See `SessionPort.connect`."""
        self.core.check_leads()
        existing = self.by_client.get(client_id)
        if existing is not None and existing.principal != principal:
            raise Refused(
                Reason.FORBIDDEN, f"client id {client_id!r} belongs to another user's session"
            )
        if expiry_seconds != 0 and (existing is None or existing.clean or clean):
            self.core.check_writable()  # before anything ends for a session that cannot begin
        if existing is not None and existing.link is not None:
            old = existing.link
            existing.disconnect()  # ends a session that does not outlive its connection
            old.taken_over()
        existing = self.by_client.get(client_id)
        position = Position(0)
        if existing is not None and (clean or self.expiry.is_over(existing)):
            position = self._end(existing, by_client=clean)
            existing = None
        if existing is not None:
            existing.present = True
            position = self.change_expiry(existing, expiry_seconds)
            # What is in flight is sent again: its packet ids have to be on the disk.
            existing.position = self.core.end() if existing.unacked.count else position
            session = existing
        else:
            session = self._new(client_id, expiry_seconds=expiry_seconds, principal=principal)
            session.position = Position(max(session.position, position))
        session.principal = principal  # with what came with this login
        self.wills.client_came(session)
        session.link = link
        session.takes_apart = link.takes_apart
        if not session.clean:
            self.expiry.came(session)
        session.open_window(inflight_max)
        session.want_one_copy(one_copy)
        return session

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        session: Session,
        packet_ids: Sequence[int],
        *,
        delay_ms: int = 0,
    ) -> Position:
        """See `SessionPort.publish_once`."""
        assert isinstance(template, TopicTemplate)
        assert isinstance(session, MqttSession)
        try:
            position = self._publish_once(
                template, batch, first, last, session, packet_ids, delay_ms
            )
        except Refused as error:
            self._took(session, packet_ids[: error.stored])
            raise
        self._took(session, packet_ids)
        return position

    def _publish_once(
        self,
        template: TopicTemplate,
        batch: Batch,
        first: int,
        last: int,
        session: MqttSession,
        packet_ids: Sequence[int],
        delay_ms: int,
    ) -> Position:
        due_ms = self.core.clock_ms() + delay_ms
        if session.clean:
            return self.delays.publish(template, batch, first, last, due_ms)
        # The mark is the last of a message's own properties: readers look for them in front.
        mark = f"{QOS2_PROPERTY}\x01{session.number:x}."
        messages = [
            message._replace(extra=message.extra + f"{mark}{packet_id:x}\x02".encode())
            for message, packet_id in zip(
                rows_of_batch(template, batch, first, last), packet_ids, strict=True
            )
        ]
        marked = self.topics.rerouted(template, template.route)
        marked.record = replace(template.record, extra_kind=EXTRA_VERBATIM, extra_name=b"")
        return self.delays.publish(
            marked,
            settling_batch(messages, 0, [0] * len(messages)),
            0,
            len(messages),
            due_ms,
            system_flag=SYSTEM_FLAG_STATE,
        )

    def _took(self, session: MqttSession, packet_ids: Sequence[int]) -> None:
        if session.clean:
            session.inbound.update(packet_ids)
        elif packet_ids:
            self.state.took_inbound(session.number, packet_ids)

    def change_expiry(self, session: MqttSession, seconds: int | None) -> Position:
        """How long a persistent session outlives its connections from now on. Raises Refused."""
        if session.asked_seconds == seconds:
            return Position(0)
        return self.core.journal.write({"op": "session=", "n": session.number, "x": seconds})

    def _new(self, client_id: str, *, expiry_seconds: int | None, principal: str) -> MqttSession:
        if expiry_seconds == 0:
            session = MqttSession(self, client_id, number=0, principal=principal)
            self.by_client[client_id] = session
            return session
        self.core.check_writable()
        if len(self.by_number) >= self.core.limits.sessions_max:
            raise Refused(Reason.LIMIT, "there are too many persistent sessions")
        number = self.core.take_number()
        op: Op = {"op": "session+", "n": number, "c": client_id, "u": str(principal)}
        if expiry_seconds is not None:
            op["x"] = expiry_seconds
        position = self.core.journal.write(op)
        session = self.by_number[number]
        session.position = position
        return session

    def _end(self, session: MqttSession, *, by_client: bool = False) -> Position:
        """End a persistent session with all it has. Raises Refused."""
        self.core.check_writable(frees=True)
        self.wills.session_ends(session, by_client=by_client)
        return self.core.journal.write({"op": "session-", "n": session.number})

    def end_session(self, session: MqttSession) -> Position:
        """An operator ends a persistent session, whose client was disconnected. Its will is
        published. Raises Refused: the log takes nothing."""
        return self._end(session)

    def ended(self, session: MqttSession) -> None:
        """The connection of a session that the log does not know is gone."""
        if self.by_client.get(session.client_id) is session:
            del self.by_client[session.client_id]
        self.core.sweeper.add(self.state.sweep(session.forget_all()))

    def connected(self) -> list[MqttSession]:
        """Sessions with a connection now."""
        return [session for session in self.by_client.values() if session.link is not None]

    def end_sessions_of(self, principal: str) -> None:
        """The user is gone: nobody who gets its name later gets what waits in its sessions.
        Raises Refused: the log takes nothing."""
        ended = [s for s in self.by_number.values() if s.principal == principal]
        if ended:
            self.core.check_writable(frees=True)
        for session in ended:
            if session.link is not None:
                session.link.expelled("the user was deleted")
            self.wills.session_ends(session, by_client=True)
        for at in range(0, len(ended), ENDED_BY_ONE_OP):
            first, *more = [session.number for session in ended[at : at + ENDED_BY_ONE_OP]]
            self.core.journal.write({"op": "session-", "n": first, "m": more})

    def count_session(self, principal: str, change: int) -> None:
        """A persistent session came or went."""
        _count(self.counts, principal, change)

    def count_subscriptions(self, principal: str, change: int) -> None:
        """Subscriptions came or went."""
        _count(self.subscription_counts, principal, change)

    # --- subscribing ----------------------------------------------------------------------

    def subscribe(
        self,
        session: MqttSession,
        address: Address,
        options: SubscriptionOptions,
        *,
        retained: bool = True,
    ) -> Position:
        """See `port.Session.subscribe`."""
        if options.exclusive:
            self.exclusive.check(session, address)
        qos = options.qos
        limit = self.core.limits.subscriptions_per_session_max
        if address not in session.subscriptions and len(session.subscriptions) >= limit:
            raise Refused(Reason.LIMIT, f"a session has at most {limit} subscriptions")
        if address not in session.subscriptions:
            self.topics.router.check_room(pattern_of(address))
        if is_shared(address):
            return self.shares.join(session, address, options, self._filter_queue)
        if session.clean:
            existing = session.subscriptions.get(address)
            if existing is not None:
                existing.set_options(options)
            else:
                subscription = Subscription(session, address, options)
                session.keep(subscription)
                session.attach(subscription)
            self.exclusive.changed(session, address, exclusive=options.exclusive)
            return self.core.end()
        self.core.check_writable()
        existing = session.subscriptions.get(address)
        replays = qos > 0 and retained and self.retained.may_match(address)
        if existing is not None and not replays and existing.is_as(options):
            return self.core.end()
        op: Op = {"op": "sub+", "s": session.number, "w": list(address), "q": qos, "g": 0, "o": 0}
        op |= options_row(options)
        group = existing.group if existing is not None and existing.durable else None
        if group is not None or qos > 0:
            queue = self._filter_queue(address)
            op["f"] = queue.number
            op["o"] = queue.index.end_offset
            op["g"] = group.number if group is not None else self.core.take_number()
        if replays:
            op["r"] = self.core.end()
        position = self.core.journal.write(op)
        session.attach(session.subscriptions[address])
        return position

    def unsubscribe(
        self, session: MqttSession, address: Address, *, forget: bool = False
    ) -> Position:
        """See `port.Session.unsubscribe`.

        Args:
            forget: what is in flight of the subscription ends with it: the session's user may not
                read that any more. A client that unsubscribes still gets it [MQTT-3.10.4-3].
        """
        subscription = session.subscriptions.get(address)
        if subscription is None:
            return Position(0)
        if subscription.is_shared:
            return self.shares.leave(session, address, forget=forget)
        if not session.clean:
            self.core.check_writable(frees=True)
        if not subscription.durable:
            self.topics.router.unsubscribe(address, subscription)
        if session.clean:
            session.end_live(subscription)
            session.forget(address)
            return Position(0)
        group = subscription.group if subscription.durable else None
        op: Op = {"op": "sub-", "s": session.number, "w": list(address)}
        if group is not None and group.cursor.outstanding_count:
            # What is in flight for other subscriptions, too, is looked at when it is sent again.
            if not forget or session.overlaps is not None:
                op["k"] = 1
        position = self.core.journal.write(op)
        return position if group is None else max(position, self.state.end_unread(address))

    def _filter_queue(self, address: Address) -> Queue:
        if address not in self.filters:
            if len(self.filters) >= self.core.limits.queues_max:
                raise Refused(Reason.LIMIT, "there are too many durable subscriptions")
            self.core.journal.write({"op": "fq+", "n": self.core.take_number(), "w": list(address)})
        return self.filters[address].queue

    # --- in flight ------------------------------------------------------------------------

    def resend(self, session: MqttSession, before: int, done: Callable[[], None]) -> None:
        """Send again what is in flight, in order, then the owed PUBRELs [MQTT-4.4.0-1]; then
        `done`. What is no longer in memory is read in a thread, and the rest waits for it.

        Args:
            before: only tags below this one. What has others was first sent to this connection.
        """
        if session.number:
            self.state.forget_settled([session.number])  # what retention took meanwhile
            self.state.look_for_flown()
        session.resending = Resending(self, session, before, done)
        session.resending.step()

    def _read_held(
        self,
        holder: Holder,
        offset: int,
        count: int,
        done: Callable[[bytes | None, int], None],
    ) -> None:
        """Records of messages in flight."""
        reading = self.core.reading
        if isinstance(holder, RetainedFlight):
            reading.read_entries(holder.entry, done)
        else:
            assert isinstance(holder, QueueFlight)  # a live one's session ended with its link
            bytes_max = self.core.limits.pump_bytes_max
            reading.read(holder.group.queue.index, offset, count, bytes_max, done)

    def _resend_records(
        self, session: MqttSession, tag: int, holder: Holder, records: bytes
    ) -> int:
        """Returns how many messages were seen to: at least one. What the user may not read any more
        is not sent, and is in flight no longer. (What came from the queue of a subscription mostly
        went with that.)"""
        assert session.link is not None
        assert isinstance(holder, QueueFlight | RetainedFlight)
        runs, sent = self.core.metas.plain_runs(records, 0, len(records))
        for run in runs:
            if _needs_right(session, holder) and not _may_read(session, run):
                for _, first, count in session.unacked.settle_present(tag, tag + run.count - 1):
                    holder.settle(first, count)
                tag += run.count
                continue
            retain, identifiers = _sent_options(session, holder, run)
            session.link.send_publishes(
                run,
                qos=_sent_qos(holder, publish_qos(run)),
                first_packet_id=packet_id(tag),
                duplicate=True,
                retain=retain,
                identifiers=identifiers,
            )
            tag += run.count
        self.core.reading.redelivered_count += sent
        return sent

    # --- retained -------------------------------------------------------------------------

    def replay_retained(
        self, session: MqttSession, subscription: Subscription, since: Position
    ) -> None:
        """Send the retained messages that match and were published before `since`; of a durable
        subscription of QoS 1 or 2, what is owed to it."""
        self.replays.add(session, subscription, since)


def _may_read(session: MqttSession, run: RecordRun) -> bool:
    """Whether the session's user may read what is published where this run was."""
    topic, tag = run.meta.topic, run.meta.tag
    address = (topic,) if tag is None else (topic, *tag.split("."))
    return session.guard is None or session.guard.may_read(address)


def _needs_right(session: MqttSession, holder: QueueFlight | RetainedFlight) -> bool:
    """Whether what is in flight belongs to no subscription, whose end would have ended it."""
    return isinstance(holder, RetainedFlight) or holder.group.subscription_of(session) is None


def _sent_options(
    session: MqttSession, holder: QueueFlight | RetainedFlight, run: RecordRun
) -> tuple[bool, tuple[int, ...]]:
    """RETAIN and the Subscription Identifiers that a message in flight is sent with: of a queue's
    message, as the subscriptions have them now that match."""
    if isinstance(holder, RetainedFlight):
        return True, (holder.identifier,) if holder.identifier else ()
    subscription = holder.group.subscription_of(session)
    if session.overlaps is not None and (subscription is None or not subscription.is_shared):
        matching = session.overlaps.matching(run.meta)
        return matching.sends_retain(run.meta), matching.identifiers
    if subscription is None:
        return False, ()
    return subscription.sends_retain(run.meta), subscription.identifiers


def _sent_qos(flight: QueueFlight | RetainedFlight, published: int) -> int:
    """The QoS that a message in flight was sent with."""
    if flight.qos != UNKNOWN_QOS:
        return flight.qos
    assert isinstance(flight, QueueFlight)
    subscription = flight.group.subscription
    granted = published if subscription is None else subscription.qos
    return max(1, min(granted, published))


class Resending:
    """What was in flight is sent again to one connection of a session. (An object, and not two
    functions that call each other: those would be a cycle.)"""

    def __init__(
        self, sessions: Sessions, session: MqttSession, before: int, done: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._connection = session.connection_number
        self._runs = deque(
            (tag, holder, offset, min(count, before - tag))
            for tag, holder, offset, count in session.unacked.runs()
            if tag < before
        )
        self._done = done
        self._left = sum(count for _, _, _, count in self._runs)
        """Messages that are not sent again yet."""
        self._owed_pubrels = len(session.releasing)
        """Of former connections: they take nothing of this one's window (5.0 part 4.9)."""
        self._reading = False  # a run is on its way from the log
        self._stepping = False
        self._turn_over = False

    def window_opened(self) -> None:
        """Something was acknowledged: there may be room for more."""
        if not self._reading and not self._stepping:
            self.step()

    def step(self) -> None:
        """Send the next runs, as many as one step may, and go on in the next iteration; or end.
        What is not in memory goes on when it is there."""
        self._stepping = True
        self._turn_over = False
        for _ in range(RESENT_AT_ONCE):
            session = self._session
            if session.link is None or session.connection_number != self._connection:
                return
            if not self._runs:
                session.resending = None
                for tag in session.releasing:
                    session.link.send_pubrels(packet_id(tag), 1)
                self._done()
                return
            _, holder, offset, count = self._runs[0]
            count = min(count, session.room_in_window(self._left + self._owed_pubrels))
            if count <= 0:
                self._stepping = False
                return  # the client takes fewer than the one before it [MQTT-3.3.4-9]
            self._reading = True
            self._sessions._read_held(holder, offset, count, self._got)
            if self._reading:
                self._stepping = False
                return
            if self._turn_over:
                break
        self._sessions.core.scheduler.call_soon(self.step)

    def _got(self, records: bytes | None, found: int) -> None:
        self._reading = False
        tag, holder, offset, count = self._runs.popleft()
        if records and self._session.connection_number == self._connection:
            sent = self._sessions._resend_records(self._session, tag, holder, records)
            self._left -= min(sent, count)
            if sent < count:
                self._runs.appendleft((tag + sent, holder, offset + sent, count - sent))
            self._turn_over = sent < found  # the rest is much
        if not self._stepping:
            self.step()


def _count(counts: dict[str, int], principal: str, change: int) -> None:
    count = counts.get(principal, 0) + change
    assert count >= 0
    if count:
        counts[str(principal)] = count  # the name alone stays
    else:
        del counts[principal]
