"""One connection of a bridge to its remote broker.

Once CONNACK and SUBACK are through, MQTT is symmetric: this is a connection as clients have it,
with another beginning. What goes out is delivered by an ordinary session, whose acknowledgements
the remote broker sends; what comes in is published as a client's messages are, and acknowledged to
the remote broker when it is durable. So the paths of bulk are the same, in both directions.

Rules:

* The session is connected when CONNACK says so, and what is in flight is sent again, whatever the
  remote broker knows of it: at least once matters more than MQTT's rule that a client forgets its
  session with the server's [MQTT-3.2.2-5]. But what was received of QoS 2 is forgotten then,
  because packet ids begin anew.
* What cannot be stored here for a while (disk full, read-only, a rate) is not acknowledged: the
  connection ends, and the remote broker sends it again. What can never be stored is acknowledged,
  dropped and counted: it would come again for ever.
* Everything has its time: the login, the answer to a ping, the end.
* Until the remote broker has acknowledged something it is not known whether it closes because of a
  message (`strikes.py`). So `path.session` watches for acknowledgements at first, and is the
  session itself then.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from polymq.broker.port import (
    BrokerError,
    ConnectedClient,
    Position,
    Reason,
    RecordRun,
    Refused,
    Session,
    Template,
    WrongAcknowledgement,
)
from polymq.core_log.kernels.batch import (
    COLUMNS,
    FLAGS,
    RECORD_BODY_SIZE_AT,
    RECORD_POSITION_AT,
    Batch,
)
from polymq.gateways.mqtt.aliases import OutgoingAliases
from polymq.gateways.mqtt.bridging.core import RemoteCore
from polymq.gateways.mqtt.bridging.failures import AGAIN, Failure, system_text
from polymq.gateways.mqtt.bridging.mapping import BridgeMapping
from polymq.gateways.mqtt.bridging.packets import (
    PING_REQUEST,
    Accepted,
    decode_connack,
    decode_disconnect,
    decode_suback,
    encode_connect,
    encode_state,
    encode_subscribe,
    encode_unsubscribe,
    reason_text,
)
from polymq.gateways.mqtt.bridging.strikes import Suspect, Trial
from polymq.gateways.mqtt.connection import Connection
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.explaining import Explainer
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.fast_path import FastPath
from polymq.gateways.mqtt.login import VERSIONS
from polymq.gateways.mqtt.packets import MQTT_5, Answer, PacketType
from polymq.gateways.mqtt.protocol import OPEN, Event, State
from polymq.gateways.mqtt.publishing import Publishing
from polymq.gateways.mqtt.reading import Reading
from polymq.gateways.mqtt.reason_codes import ERROR, ReasonCode
from polymq.gateways.mqtt.shared import Shared
from polymq.gateways.mqtt.tracing import trace_connection
from polymq.gateways.mqtt.translating import is_translated
from polymq.net.kernels.streams import clock_ms

if TYPE_CHECKING:
    from polymq.gateways.mqtt.bridging.bridge import Bridge

log = logging.getLogger(__name__)

PRINCIPAL: Final = "$bridge"
"""Whose session it is, where the bridge acts as the broker itself: no user can have the name."""
COMES_AGAIN: Final = frozenset({Reason.READ_ONLY, Reason.STORAGE_FULL, Reason.RATE})
"""Why messages are refused that may be stored later."""
PING_PART: Final = 0.75
"""Of the keep alive passes between two pings: the server waits for one and a half times it."""
SUBSCRIBE_ID: Final = 65_535
UNSUBSCRIBE_ID: Final = 65_534
"""Packet ids of the bridge's own requests: a session's messages begin at the other end. The answers
have a type of their own, so that nothing is mistaken where a message has the same id."""
NO_DELAY: Final = b"-"
"""In place of a topic name that begins with `$`: it asks for no delay here."""
NOT_OF_A_MESSAGE: Final = frozenset(
    {
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_MOVED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.MAXIMUM_CONNECT_TIME,
    }
)
"""Reasons of DISCONNECT that have nothing to do with what was sent: no strikes."""
OF_MESSAGES: Final = frozenset({codes.TYPE_PUBACK, codes.TYPE_PUBREC, codes.TYPE_PUBREC_ERROR})
"""Acknowledgements of messages that went out."""


class Watched:
    """A session of which the fast path tells what is acknowledged.

    Args:
        noticed: called before that, with the number of messages.
    """

    def __init__(self, session: Session, noticed: Callable[[int], None]) -> None:
        self._session = session
        self._noticed = noticed

    def acknowledged(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """See `Session`."""
        self._noticed(count)
        self._session.acknowledged(first_packet_id, count, more)


class BridgePath(FastPath):
    """The fast path of a bridge: the link of its session."""

    mapping: BridgeMapping
    takes_retain = True
    """Whether the remote broker takes messages with RETAIN."""
    trial: Trial
    set_aside: Callable[[Suspect], None]
    """Called with a message that is not sent."""

    def send_publishes(
        self,
        run: RecordRun,
        *,
        qos: int,
        first_packet_id: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        """See `SessionLink`. The identifier, of which there is one at most, says which rule the run
        belongs to."""
        trial = self.trial
        if trial.is_single and not self._may_send(run, qos, first_packet_id):
            return
        if qos:
            trial.has_sent = True
        if self.mapping.choose(identifiers[0] if identifiers else 0):
            self.last_meta = None
        super().send_publishes(
            run,
            qos=qos,
            first_packet_id=first_packet_id,
            duplicate=duplicate,
            retain=retain and self.takes_retain,
        )

    def _may_send(self, run: RecordRun, qos: int, packet_id: int) -> bool:
        """On probation: whether to send the run, which is one message unless it has QoS 0."""
        if not qos:
            return not self.trial.is_open
        message = Suspect(
            packet_id=packet_id,
            position=_number(run, RECORD_POSITION_AT, 8),
            topic=self.mapping.name(run.meta.topic, run.meta.tag),
            qos=qos,
            size=_number(run, RECORD_BODY_SIZE_AT, 4),
        )
        if self.trial.strikes.may_send(message):
            return True
        self.set_aside(message)
        return False


def _number(run: RecordRun, at: int, size: int) -> int:
    """A number in the head of the first record."""
    start = run.start + at
    return int.from_bytes(run.memory[start : start + size], "big")


class BridgePublishing(Publishing):
    """What comes in and is not simply stored as a run."""

    __slots__ = ("_bridge",)

    def __init__(
        self, path: FastPath, shared: Shared, explainer: Explainer, bridge: Bridge
    ) -> None:
        super().__init__(path, shared, explainer)
        self._bridge = bridge

    def publish_special(
        self, template: Template, batch: Batch, first: int, last: int, topic: bytes
    ) -> Position:
        """See `Publishing`."""
        return super().publish_special(template, batch, first, last, NO_DELAY)

    def refused(self, error: Refused, topic: bytes, batch: Batch, first: int, last: int) -> bool:
        """See `Publishing`."""
        if error.reason in COMES_AGAIN:
            raise error
        self._bridge.dropped(last - first, topic, error.text)
        if self._path.five:
            return super().refused(error, topic, batch, first, last)
        self._shared.counted.publishes_refused += last - first
        return batch.rows[first * COLUMNS + FLAGS] & codes.FLAG_QOS > 0


class BridgeConnection(Connection):
    """One connection to the remote broker."""

    fast_path: BridgePath

    def __init__(self, shared: Shared, bridge: Bridge) -> None:
        super().__init__(shared)
        # The parts of a connection, with the roles exchanged.
        self._bridge = bridge
        self._client_id = f"bridge {bridge.name}"
        self._greeting = bridge.greeting()
        level = self._greeting.level & 0x7F
        self._core = RemoteCore(limits=shared.limits, inbox=shared.inbox, level=level)
        assert isinstance(shared.mapping, BridgeMapping)
        self.fast_path = self.shortcut = BridgePath(shared.paths, self, shared.mapping)
        self.publishing = BridgePublishing(self.fast_path, shared, self._core.explainer, bridge)
        self._reading = Reading(
            core=self._core,
            inbox=shared.inbox,
            batch_path=shared.batch_path,
            turns=shared.context.turns,
        )
        self._trial = self.fast_path.trial = Trial(bridge.strikes)
        self.fast_path.set_aside = self._set_aside
        self._is_proving = False  # a PINGRESP is awaited, and nothing is sent before it
        self._closed_there = False  # by the remote broker, maybe because of a message
        self._pinged_at: float | None = None
        self._asked = False  # SUBSCRIBE was sent, and SUBACK did not come
        self._failure: Failure | None = None
        self._is_over = False

    # --- net.SocketConnection ---------------------------------------------------------------

    def opened(self) -> None:
        self.write(encode_connect(self._greeting))
        self.deadline(self.context.now() + self._bridge.settings.connect_seconds)

    def expired(self, now: float) -> float | None:
        if self.closing:
            self.abort()
            return None
        if self._core.state is State.WAIT_CONNECT:
            seconds = self._bridge.settings.connect_seconds
            self._fail("no_answer", f"it did not answer CONNECT within {seconds:g} s")
            return None
        if self._is_proving:
            self._fail("no_answer", "it did not answer PINGREQ")
            return None
        pinged_at = self._pinged_at
        if pinged_at is not None and self.heard_at < pinged_at and self._flow.is_reading:
            self._fail("no_answer", f"it has sent nothing for {now - self.heard_at:.0f} s")
            return None
        if self._asked:
            self._fail("no_answer", "it did not answer SUBSCRIBE")
            return None
        self._pinged_at = now
        self.write(PING_REQUEST)
        return now + PING_PART * self._keep_alive

    def lost(self, error: Exception | None) -> None:
        if self._failure is None and not self.fast_path.leaving:
            early = " before CONNACK" if self._core.state is State.WAIT_CONNECT else ""
            text = f"it closed the connection{early}"
            if isinstance(error, OSError):
                text = f"the connection failed: {system_text(error)}"
            elif error is not None:
                text = str(error)
            self._failure = Failure("closed", text)
            self._closed_there = error is None or isinstance(
                error, (ConnectionResetError, BrokenPipeError)
            )  # other errors are the network's
        super().lost(error)
        if not self._is_over:
            self._is_over = True
            if self._closed_there and self._failure is not None:
                self._trial.ended_by_remote(self._failure.text)
            self._bridge.ended(self, self._failure)

    @property
    def is_open(self) -> bool:
        """Whether the remote broker has accepted the connection, and it goes on."""
        return self._session is not None and self._core.state is OPEN

    # --- the end ----------------------------------------------------------------------------

    def _fail(self, kind: str, text: str) -> None:
        """End the connection, for a reason that is not ours."""
        if self._failure is None:
            self._failure = Failure(kind, text)
        self._finish()

    def _finish(self, reason: ReasonCode | None = None, text: str = "") -> None:
        stops = reason is ReasonCode.SERVER_SHUTTING_DOWN
        if reason is not None and not stops and self._failure is None:
            kind = "protocol" if self._core.state is State.WAIT_CONNECT else "local"
            self._failure = Failure(kind, text or reason_text(reason))
        if stops and self.is_open and self._greeting.state_topic and self.fast_path.takes_retain:
            self.write(encode_state(self._core.level, self._greeting.state_topic, b"0"))
        super()._finish(reason, text)

    def broke_protocol(self, error: Exception) -> None:
        """The remote broker sent what no server may send."""
        self._counters.protocol_errors += 1
        self._failure = self._failure or Failure("protocol", str(error))
        self._finish(reason=getattr(error, "reason", ReasonCode.PROTOCOL_ERROR), text=str(error))

    def failed(self, error: BrokerError) -> None:
        """See `Connection`. A wrong acknowledgement is the remote broker's fault."""
        if self._failure is None:
            kind = "protocol" if isinstance(error, WrongAcknowledgement) else "local"
            self._failure = Failure(kind, str(error))
        super().failed(error)

    def _say_closing(self, _level: int, why: str) -> None:
        """The bridge says it, once (`Bridge`)."""
        if self._failure is None:
            self._failure = Failure("local", why)

    def taken_over(self) -> None:
        """The session is the holder's again: this connection has ended."""
        self._session = None
        self._finish()

    # --- what comes -------------------------------------------------------------------------

    def handle(self, event: Event) -> Iterator[None] | None:
        """A packet other than PUBLISH and acknowledgements."""
        assert isinstance(event, Answer)
        if event.kind is PacketType.CONNACK:
            self._answered(decode_connack(event.data, self._core.level))
        elif event.kind is PacketType.SUBACK:
            self._subscribed_there(decode_suback(event.data, self._core.level)[1])
        elif event.kind is PacketType.DISCONNECT:
            reason, text = decode_disconnect(event.data)
            self._closed_there = reason not in NOT_OF_A_MESSAGE
            self._fail("closed", f"it closed the connection: {text}")
        elif event.kind is PacketType.PINGRESP and self._is_proving:
            self._is_proving = False
            self.deadline(self._next_ping())
            self._deliver()
        return None

    def _answered(self, answer: Accepted) -> None:
        """CONNACK is there."""
        bridge = self._bridge
        if answer.reason:
            self._core.close()
            bridge.was_refused(answer.reason)
            self._fail("refused", f"it refused the login: {answer.text}")
            return
        if answer.qos_max < bridge.qos_max:
            text = f"it takes QoS up to {answer.qos_max}: set the qos of the topics to that"
            self._fail("refused", text)
            return
        path = self.fast_path
        if self._core.level == MQTT_5:
            path.five = True
            path.aliases = {}
            path.takes_apart = is_translated
            path.takes_retain = answer.retain
            path.more = self._shared.marker
            if answer.packet_bytes_max is not None:
                path.sent_bytes_max = answer.packet_bytes_max
            alias_max = min(answer.alias_max, self._limits.topic_aliases_out_max)
            if alias_max:
                path.aliases_out = OutgoingAliases(alias_max)
        self._port = bridge.port
        path.log_in(bridge.port, self._mapping)
        if bridge.settings.local_user:
            self._leave = self._port.principal.enter(self.expelled)
        inflight_max = bridge.inflight_max(self._core.level, answer.receive_max)
        session = bridge.connect_session(path, inflight_max)
        self._session = session
        if bridge.has_purged():
            self._fail(AGAIN, "")
            return
        if not answer.present:
            session.release_all()
        path.session = cast("Session", Watched(session, self._acknowledged_there))
        if self._trial.is_single:
            session.send_singly(True)
        self._left = self._port.admission.client_came(self._client())
        self._keep_alive = float(
            self._greeting.keep_alive_seconds
            if answer.keep_alive_seconds is None
            else answer.keep_alive_seconds
        )
        self.heard_at = self.context.now()
        self.deadline(self._next_ping())
        self._subscribe_there(present=answer.present)
        path.waiting += 1
        self._port.when_committed(
            session.position, self._port.state_durability, self._begin, session
        )

    def _next_ping(self) -> float | None:
        """When, if nothing else is due before."""
        now = self.context.now()
        return now + PING_PART * self._keep_alive if self._keep_alive else None

    def _client(self) -> ConnectedClient:
        """What operators see of the bridge."""
        settings = self._bridge.settings
        return ConnectedClient(
            client_id=self._bridge.client_id,
            user=settings.local_user or PRINCIPAL,
            peer=self.peer,
            address=self.address,
            listener="",
            version=VERSIONS[self._core.level],
            keep_alive_seconds=settings.keep_alive_seconds,
            connected_ms=clock_ms(),
            end=self.end,
            trace=partial(trace_connection, self),
        )

    def _subscribe_there(self, *, present: bool) -> None:
        bridge, level = self._bridge, self._core.level
        stale = bridge.stale_filters() if present else []
        if stale:
            self.write(encode_unsubscribe(level, UNSUBSCRIBE_ID, stale))
        if bridge.requests:
            self.write(encode_subscribe(level, SUBSCRIBE_ID, bridge.requests))
            self._asked = True
        bridge.store_filters()
        if self._greeting.state_topic and self.fast_path.takes_retain:
            self.write(encode_state(level, self._greeting.state_topic, b"1"))

    def _begin(self, session: Session) -> None:
        """The session is committed: what waits for the remote broker is sent."""
        self.fast_path.waiting -= 1
        if self._session is session:
            self._bridge.opened(self)
            if self._trial.is_single:
                self._is_proving = True
                self._pinged_at = self.context.now()
                self.write(PING_REQUEST)
                self.deadline(self._pinged_at + self._bridge.settings.connect_seconds)
            else:
                self._deliver()
        self.leave_if_done()

    def _deliver(self) -> None:
        """Send what waits for the remote broker."""
        session = self._session
        if session is not None and not self.fast_path.leaving:
            session.resume()
            self._bridge.replay(session)

    def _acknowledged_there(self, count: int) -> None:
        """So many messages: the remote broker does not close because of what it gets."""
        was_single = self._trial.is_single
        if self._trial.acknowledged(count):
            self.fast_path.session = self._session
            if was_single and self._session is not None:
                self._session.send_singly(False)

    def _set_aside(self, message: Suspect) -> None:
        """The remote broker has closed each connection on which it got the message."""
        self._bridge.set_aside(message)
        self.context.call_soon(partial(self._give_up, self._session, [message.packet_id]))

    def _subscribed_there(self, granted: bytes) -> None:
        self._asked = False
        requests = self._bridge.requests
        if len(granted) != len(requests):
            raise RemoteProtocolError(
                "MQTT-3.8.4-6" if self._core.level == MQTT_5 else "MQTT-3.8.4-5",
                f"SUBACK has {len(granted)} reason codes, and SUBSCRIBE had {len(requests)} "
                "filters",
            )
        for request, code in zip(requests, granted, strict=True):
            if code >= ERROR:
                self._bridge.not_granted(request.pattern, code)

    def acks_in_steps(self, acks: array[int], ack_count: int) -> Iterator[None]:
        """See `Connection`. Those with an error say that the remote broker did not take them."""
        answered = 0
        for at in range(0, codes.ACK_COLUMNS * ack_count, codes.ACK_COLUMNS):
            reason = acks[at] >> codes.ACK_REASON_SHIFT
            if reason >= ERROR:
                self._bridge.not_taken(acks[at + 2], reason)
            if acks[at] & codes.ACK_TYPE in OF_MESSAGES:
                answered += acks[at + 2]
        if answered and self.fast_path.session is not self._session:
            self._acknowledged_there(answered)
        return super().acks_in_steps(acks, ack_count)
