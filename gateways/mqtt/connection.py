"""One client: ties the protocol core to its socket and its session.

Responsible for which engine call a packet makes, what is answered and when. Rules:

* What a PUBLISH, SUBSCRIBE, UNSUBSCRIBE, PUBREL or CONNECT is answered with leaves when the engine
  says that its effect is committed: a change of state is flushed, a message as safe as its template
  says. Callbacks of one class come in the order of positions; an answer that would have to wait
  for less than an earlier one waits for as much. So the acknowledgements of a connection keep the
  order of what they answer [MQTT-4.6.0-2], [MQTT-4.6.0-3].
* Per read, not per message: one answer for all publishes of a read. QoS 2 is the exception: each
  message carries its packet id into the log.
* A publish that the engine refuses is answered with the reason in MQTT 5, and in the older versions
  by closing (`publishing.py`).
* Who the client is, `connecting.py` finds out, from CONNECT to CONNACK.
* However a connection ends, `_finish` ends it, once. The engine publishes the will, unless the
  client sent DISCONNECT [MQTT-3.1.2-10] without asking for that, or the server itself stops. Where
  the client did not end it, MQTT 5 tells it why [MQTT-4.13.1-1].
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from polymq.broker.port import (
    LOGIN_EXPIRED,
    RIGHTS_UNKNOWN,
    BrokerError,
    Refused,
    Session,
    Unanswered,
    WrongAcknowledgement,
)
from polymq.gateways.mqtt.acknowledging import acknowledge, missing_ids
from polymq.gateways.mqtt.asking import about_filters, about_runs
from polymq.gateways.mqtt.connecting import Connecting
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.fast_path import FastPath
from polymq.gateways.mqtt.mapping import PUBLISH_REASONS
from polymq.gateways.mqtt.packets import (
    MQTT_5,
    NEVER,
    PING_RESPONSE,
    Authenticate,
    Connect,
    Disconnect,
    PacketType,
    PingRequest,
    Subscribe,
    Unsubscribe,
    encode_disconnect,
    encode_suback,
    encode_unsuback,
)
from polymq.gateways.mqtt.protocol import OPEN, Event, State
from polymq.gateways.mqtt.publishing import Publishing
from polymq.gateways.mqtt.reading import Reading
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.shared import Shared
from polymq.gateways.mqtt.subscribing import Outcome, subscribe, unsubscribe
from polymq.net.clients import ClientInfo
from polymq.net.flow import AHEAD, DISK, LEAVING, QUESTION, TURN, UNREAD, UPLOAD

log = logging.getLogger(__name__)

FLAG_QOS: Final = codes.FLAG_QOS
CONNACK_BYTES_3: Final = 4
"""Of CONNACK before MQTT 5."""
_EXPELLED: Final = {
    LOGIN_EXPIRED: ReasonCode.MAXIMUM_CONNECT_TIME,
    RIGHTS_UNKNOWN: ReasonCode.SERVER_BUSY,
}
"""Why a client may not be here, where there is a reason code for it."""
ANSWER_BYTES: Final = 8
"""Of SUBACK and UNSUBACK beside their codes and properties, at most."""


class Connection(Connecting):
    """One client. Its fast_path is the `SessionLink` of its session."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.traffic = shared.traffic
        self.fast_path = self.shortcut = FastPath(shared.paths, self, shared.mapping)
        self.publishing = Publishing(self.fast_path, shared, self._core.explainer)
        self._partial = 0  # bytes of an incomplete packet when they last were a sign of life
        self._has_part = False  # of a packet, and it counts
        self._unread = 0  # bytes of answers written while the transport was full
        self._take_back: Callable[[], None] | None = None  # what a service is asked
        self._knows = False  # what it has answered counts for what is handled now
        self._reading = Reading(
            core=self._core,
            inbox=shared.inbox,
            batch_path=shared.batch_path,
            turns=shared.context.turns,
        )

    # --- net.SocketConnection ---------------------------------------------------------------

    def opened(self) -> None:
        self.deadline(self.context.now() + self._limits.connect_seconds_max)

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        return self._keep_ahead(start, end) if self.asking else self._take(buffer, start, end)

    def _take(self, buffer: bytearray, start: int, end: int) -> int:
        """Handle what was read. A CONNECT in it may be what is `asking` then."""
        reading = self._reading
        reading.is_interrupted = False
        try:
            at = start
            if reading.is_fresh:
                at = self._shared.batch_path.take(self.fast_path, buffer, start, end)
            if at < end or not reading.is_fresh:
                at = reading.take(self, buffer, at, end)
        except RemoteProtocolError as error:
            self.broke_protocol(error)
            return end
        except BrokerError as error:
            self.failed(error)
            return end
        if self._knows and not (self.waits_for_rights or reading.is_working):
            self._knows = False
            self._port.principal.know(None)
        if reading.is_interrupted:
            self._flow.begin(TURN)
            self._regulate()
            self.context.turns.wait(self._next_turn)
            return at
        if self.waits_for_rights:
            return at
        if end - at > self._limits.small_part_bytes or self._has_part:
            self._wait_for_rest(end - at)
        if self._keep_alive:
            if at > start:
                self.heard_at = self.context.now()
            if at < end:
                self._look_at_part(end - at)
        elif self.asking:
            return self._keep_ahead(at, end)
        elif self._core.state in (State.WAIT_CONNECT, State.AUTHENTICATING):
            return self._keep_early(at, end)
        return at

    def _next_turn(self) -> None:
        """Others had their turn: go on with what is left of the read."""
        self._flow.end(TURN)
        if self.fast_path.leaving:
            return  # what was not handled was not read
        self.consume_again()
        self._regulate()

    def _wait_for_rest(self, size: int) -> None:
        """So many bytes of a packet are here: not too many, beside those of others?"""
        if self._session is None:
            return  # what comes before the login has its own bound
        self._has_part = size > self._limits.small_part_bytes
        # The shortcut would take the rest without a word.
        self.shortcut = None if self._has_part else self.fast_path
        self._flow.set(UPLOAD, not self._shared.uploads.reserve(self, size))
        self._regulate()

    def read_on(self) -> None:
        """See `Uploading`."""
        self._flow.end(UPLOAD)
        self._regulate()

    def too_slow(self) -> None:
        """See `Uploading`."""
        if not self._flow.is_reading:
            return  # it is not the client that is slow
        self._counters.uploads_too_slow += 1
        self._say_closing(logging.WARNING, "its packet is slow, and others wait for the memory")
        self._finish(reason=ReasonCode.QUOTA_EXCEEDED)

    def _look_at_part(self, size: int) -> None:
        """A packet came in part: a sign of life, if it comes quickly enough."""
        if size < self._partial:
            self._partial = 0  # that was another packet
        now = self.context.now()
        quick = self._limits.upload_bytes_per_second_min * (now - self.heard_at)
        if size - self._partial >= quick:
            self._partial = size
            self.heard_at = now

    def broke_protocol(self, error: RemoteProtocolError) -> None:
        """The client sent what nobody may send: say so where there is a way, and close."""
        self._counters.protocol_errors += 1
        log.info("closing %s (%s): %s", self.peer, self._client_id, error)
        if error.answer:
            self.write(error.answer)
            if self._core.level == MQTT_5 or len(error.answer) > CONNACK_BYTES_3:
                self._counters.reasons.sent_packet(error.answer)
        self._finish(reason=error.reason, text=str(error))

    def failed(self, error: BrokerError) -> None:
        """The engine did not do what a packet asked for, and no answer says so: close."""
        reason, text = ReasonCode.UNSPECIFIED_ERROR, ""
        if isinstance(error, WrongAcknowledgement):
            self._counters.protocol_errors += 1
            reason, text = ReasonCode.PROTOCOL_ERROR, str(error)
        elif isinstance(error, Refused):
            reason, text = PUBLISH_REASONS[error.reason], error.text
        self._say_closing(logging.WARNING, str(error))
        self._finish(reason=reason, text=text)

    def _say_closing(self, level: int, why: str) -> None:
        """Log why the connection ends."""
        log.log(level, "closing %s (%s): %s", self.peer, self._client_id, why)

    def drained(self) -> None:
        self._unread = 0
        self._regulate()
        if self._session is not None and self._core.state is OPEN:
            self._session.ready()

    def lost(self, error: Exception | None) -> None:
        self._finish()
        self.fast_path.let_go()

    def expired(self, now: float) -> float | None:
        if self.closing:  # the last bytes were not taken in time
            self.abort()
            return None
        if self.asking:
            self._refuse(ReasonCode.SERVER_BUSY, "the password was not checked in time")
            return None
        if self._core.state is State.WAIT_CONNECT:
            log.info("closing %s: no CONNECT arrived in time", self.peer)
            self._finish()
            return None
        if self._core.state is State.AUTHENTICATING:
            self._refuse(ReasonCode.NOT_AUTHORIZED, "it did not finish its authentication in time")
            return None
        if self._authenticates_too_long(now):
            return None
        following = self._next_deadline(now)
        if following is None or following > now:
            return following
        self._counters.keep_alives_missed += 1
        log.info("closing %s (%s): keep alive missed", self.peer, self._client_id)
        self._finish(reason=ReasonCode.KEEP_ALIVE_TIMEOUT)
        return None

    def fed(self) -> None:
        """This turn's bytes were handed over: those who had no credit may go on."""
        if self._session is not None:
            self._session.ready()

    # --- the end ----------------------------------------------------------------------------

    def _finish(self, reason: ReasonCode | None = None, text: str = "") -> None:
        """End the connection; safe to call again.

        Closing is asked for last, so that what was written before is sent.

        Args:
            reason: why the server ends it; None: the client did, or is gone.
            text: the same in words; empty: what the reason means.
        """
        session, self._session = self._session, None
        if reason is not None and not self.closing:
            goodbye = self._core.say_goodbye(reason, text)
            if goodbye:
                self.write(goodbye)
        if self._has_part:
            self._has_part = False
            self._shared.uploads.reserve(self, 0)
        self._tell_of_end(reason)
        self._core.close()
        self._reading.forget()
        if self._take_back is not None:
            self._take_back()
            self._take_back = None
        self.fast_path.session = None
        self._shared.sys_topics.left(self.fast_path)
        if session is not None:
            session.disconnect()
        self._forget_login()
        if not self.closing:
            self.close()
            self.deadline(self.context.now() + self._limits.close_seconds_max)

    def _tell_of_end(self, reason: ReasonCode | None) -> None:
        """Tell those who watch clients; nothing of one that did not get its CONNACK."""
        client, self._announced = self._announced, None
        events = self._shared.client_events
        if client is not None and events is not None:
            events.disconnected(client, reason, said=self._core.state is State.CLOSED)

    def _tell_of_filters(self, kind: Literal["subscribed", "unsubscribed"], done: Outcome) -> None:
        """Tell those who watch clients which filters this one has, or has not any more."""
        events = self._shared.client_events
        if events is not None and self._announced is not None and done.noted:
            events.filters_changed(kind, self._announced, done.noted, done.done_count)

    def leave(self) -> None:
        """The server stops: close as soon as the answers that wait for a commit have left."""
        self.fast_path.leaving = True
        self._flow.begin(LEAVING)
        self._flow.regulate(self)
        if not self.fast_path.waiting:
            self._finish(reason=ReasonCode.SERVER_SHUTTING_DOWN)

    def storage_failed(self) -> None:
        """Answers that wait for the log will never come: the client learns that by the close."""
        self._finish(reason=ReasonCode.UNSPECIFIED_ERROR)

    # --- control packets --------------------------------------------------------------------

    def handle(self, event: Event) -> Iterator[object] | None:
        """A packet other than PUBLISH and acknowledgements. Returns what is to be done for it
        step by step, if it may be long; after that it is handled."""
        match event:
            case PingRequest():
                self.write_answer(PING_RESPONSE)
            case Subscribe():
                return self._subscribe(event)
            case Unsubscribe():
                return self._unsubscribe(event)
            case Connect():
                self._connect(event)
            case Disconnect():
                self._disconnect(event)
            case Authenticate():
                self._authenticate(event)
            case _:
                raise AssertionError(event)
        return None

    def _disconnect(self, packet: Disconnect) -> None:
        """The client goes. Its will goes with it, unless it asks for that [MQTT-3.14.4-3]."""
        if self._core.level == MQTT_5:
            self._counters.reasons.received(PacketType.DISCONNECT, packet.reason)
        if packet.expiry_seconds is not None and self._session is not None:
            seconds = packet.expiry_seconds
            if self._session.expiry_seconds == 0 and seconds:
                raise RemoteProtocolError(
                    "5.0 part 3.14.2.2.2",
                    "DISCONNECT with a session expiry, though CONNECT had none",
                    answer=encode_disconnect(ReasonCode.PROTOCOL_ERROR),
                )
            self._session.expire_after(None if seconds == NEVER else seconds)
        if packet.reason == ReasonCode.SUCCESS and self._session is not None:
            self._session.clear_will()
        self._finish()

    def _subscribe(self, packet: Subscribe) -> Iterator[object]:
        session = self._session
        assert session is not None
        if self._is_bridge:
            packet = replace(packet, is_bridge=True)
        outcome = yield from subscribe(
            packet,
            session,
            self._mapping,
            self._client_id,
            self._limits.features,
            self._ask_about_filters if self.fast_path.asks else None,
            self._noted_max,
        )
        self._counters.filters_refused += outcome.refused
        if packet.level == MQTT_5:
            self._counters.reasons.sent_codes(PacketType.SUBACK, outcome.codes)
        properties = self._core.explainer.explained(
            outcome.refusal, ANSWER_BYTES + len(outcome.codes)
        )
        answer = encode_suback(self._core.level, packet.packet_id, outcome.codes, properties)
        self._answer_subscribed(answer, outcome)

    def _answer_subscribed(self, answer: bytes, outcome: Outcome) -> None:
        """What was subscribed to is answered, and then delivered, when it is committed."""
        if outcome.no_local:
            self._name_publisher()
        self.fast_path.waiting += 1
        durability = self._port.state_durability
        self._port.when_committed(outcome.position, durability, self._subscribed, answer, outcome)

    def _name_publisher(self) -> None:
        """From now on the client's messages say that they are its own: for No Local, and for
        shared subscriptions that choose by that."""
        self._mapping = self._mapping.naming(self._client_id)
        self.fast_path.log_in(self._port, self._mapping)

    def _subscribed(self, data: bytes, outcome: Outcome) -> None:
        """SUBACK, then the retained messages [MQTT-3.3.1-6], [MQTT-3.8.4-3]."""
        self.fast_path.waiting -= 1
        if len(data) > self.fast_path.sent_bytes_max:  # [MQTT-3.1.2-24]
            self._finish(ReasonCode.PACKET_TOO_LARGE)
            return
        if data:
            self.write_answer(data)
        session = self._session
        if session is not None:
            for address, since in outcome.replayed.items():
                session.replay_retained(address, since)
            self._shared.sys_topics.subscribed(self.fast_path, outcome.of_server)
            self._tell_of_filters("subscribed", outcome)
        self.leave_if_done()

    def _unsubscribe(self, packet: Unsubscribe) -> Iterator[None]:
        session = self._session
        assert session is not None
        outcome = yield from unsubscribe(
            packet, session, self._mapping, self._client_id, self._noted_max
        )
        self._tell_of_filters("unsubscribed", outcome)
        for address in outcome.ended:
            self._shared.sys_topics.unsubscribed(self.fast_path, address)
        # Also for filters that were not there [MQTT-3.10.4-5].
        if self._core.level == MQTT_5:
            self._counters.reasons.sent_codes(PacketType.UNSUBACK, outcome.codes)
        properties = self._core.explainer.explained(
            outcome.refusal, ANSWER_BYTES + len(outcome.codes)
        )
        answer = encode_unsuback(self._core.level, packet.packet_id, outcome.codes, properties)
        self.fast_path.answer_when(outcome.position, answer, self._port.state_durability)

    # --- what the client may do -------------------------------------------------------------

    @property
    def waits_for_rights(self) -> bool:
        """Whether what was read waits for a service to say what the client may do."""
        return bool(self._flow.waits & QUESTION)

    def ask_ahead(self, error: Unanswered, run: int, run_count: int, first: int, last: int) -> None:
        """Publishes of the inbox have to wait: those of the run before `run`, which are
        [first, last), and all behind it. What they will need, too, is asked with it."""
        path = self.fast_path
        if path.quota is not None:
            path.quota.not_taken(self._shared.inbox.batch, first, last)
        ahead = about_runs(
            self._shared.inbox, run, run_count, path.aliases, path.mapping, self._port.principal
        )
        self._ask([error.wanted, *ahead])

    def _ask_about_filters(self, patterns: Sequence[str]) -> bool:
        wanted = list(about_filters(patterns, self._mapping, self._port.principal))
        return bool(wanted) and self._ask(wanted)

    def _ask(self, wanted: Iterable[object]) -> bool:
        """Ask a service. Returns whether that has to be waited for."""
        flow = self._flow
        flow.begin(QUESTION)
        take_back = self._port.principal.ask(wanted, self._answered)
        if flow.waits & QUESTION:
            self._take_back = take_back
            self._regulate()
            return True
        return False

    def _answered(self, answers: Any) -> None:
        """What waits for the answers is handled when it is the connection's turn."""
        self._port.principal.know(answers)
        self._knows = True
        self._flow.end(QUESTION)
        if self._take_back is not None:
            self._take_back = None
            self._flow.begin(TURN)
            self.context.turns.wait(self._next_turn)

    # --- acknowledgements -------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The client's, from CONNECT until the connection ends."""
        return self._session

    def take_acks(self, acks: array[int], ack_count: int) -> None:
        """Acknowledgements of all kinds, in so many runs of `kernels.parse`, that are not too much
        for one turn (`BatchPath.is_one_turn`)."""
        for _ in self.acks_in_steps(acks, ack_count):
            pass

    def acks_in_steps(self, acks: array[int], ack_count: int) -> Iterator[None]:
        """The same in steps (`acknowledging.py`)."""
        session = self._session
        assert session is not None
        self._shared.paths.others_received += sum(
            acks[2 : codes.ACK_COLUMNS * ack_count : codes.ACK_COLUMNS]
        )
        if self.fast_path.quota is not None:
            self.fast_path.quota.released(acks, ack_count)
        reasons = self._counters.reasons if self.fast_path.five else None
        position, completions, count = yield from acknowledge(acks, ack_count, session, reasons)
        if completions:
            self._shared.paths.others_sent += count
            self.fast_path.answer_when(position, completions, self._port.state_durability)

    # --- answers ----------------------------------------------------------------------------

    def write_answer(self, data: bytes) -> None:
        """An answer that may leave now; what the client does not read counts."""
        data = self._core.answer(data)
        if data:
            self.write(data)
            if self.paused:
                self._unread += len(data)
                self._regulate()

    def leave_if_done(self) -> None:
        """If the server stops, and this was the last answer that waited: the end."""
        if self.fast_path.leaving and not self.fast_path.waiting:
            self._finish(reason=ReasonCode.SERVER_SHUTTING_DOWN)

    def keeps_up(self) -> bool:
        """Whether the disk does, as far as this publisher knows; else nothing more is read from it
        until it has caught up."""
        flow = self._flow
        if not flow.waits & DISK and self._port.overloaded(self._caught_up):
            flow.begin(DISK)
            self._regulate()
        return not flow.waits & DISK

    def _caught_up(self) -> None:
        self._flow.end(DISK)
        self._regulate()

    def _regulate(self) -> None:
        """Read on while there is nothing to wait for (`net.flow`)."""
        flow, limits = self._flow, self._limits
        flow.set(UNREAD, self._unread > limits.unread_answers_bytes_max)
        flow.set(AHEAD, self.asking and self._ahead > limits.small_connect_bytes_max)
        if flow.regulate(self) and flow.is_reading:
            self.heard_at = self.context.now()

    def left_out(
        self, data: bytes, count: int, dropped: int, first_byte: int, first_packet_id: int
    ) -> None:
        """Of `count` messages those that `data` lacks are larger than the client takes: they count
        as acknowledged [MQTT-3.1.2-25]."""
        self._counters.publishes_too_large += dropped
        if first_byte & FLAG_QOS:
            missing = missing_ids(data, count, first_packet_id)
            self.context.call_soon(partial(self._give_up, self._session, missing))

    def _give_up(self, session: Session | None, packet_ids: list[int]) -> None:
        if session is not None and session is self._session:
            for packet_id in packet_ids:
                session.rejected(packet_id, 1)

    # --- what a session says through the fast path -----------------------------------------

    def expelled(self, why: str) -> None:
        """The client may not be here, or have what it subscribed to: close, as if it were lost."""
        self._say_closing(logging.INFO, why)
        self._finish(reason=_EXPELLED.get(why, ReasonCode.NOT_AUTHORIZED))

    def end(self, why: str) -> None:
        """An operator wants the connection to end."""
        self._say_closing(logging.INFO, why)
        self._finish(reason=ReasonCode.ADMINISTRATIVE_ACTION, text=why)

    def describe(self) -> ClientInfo:
        """See `net.clients`."""
        session = self._session
        return self.described(
            self._flow, consumers=0 if session is None else len(session.subscriptions)
        )

    def taken_over(self) -> None:
        """The session belongs to another connection now: this one ends, as if it had been lost."""
        self._counters.takeovers += 1
        log.info("closing %s (%s): taken over", self.peer, self._client_id)
        self._session = None  # the engine has ended its part
        self._finish(reason=ReasonCode.SESSION_TAKEN_OVER)
