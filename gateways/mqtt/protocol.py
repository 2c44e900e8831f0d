"""One client's MQTT connection as a state machine: bytes in, events out.

Rules:

* Every legal (state, packet) pair is in `TRANSITIONS`; a missing pair closes the connection.
* The versions of MQTT share the states. What a version has beside the others is in tables, too.
* This file knows no sockets, clocks, topics or sessions. The caller keeps the bytes: it presents
  `buffer[start:end]`, asks for events until `NEED_DATA`, and then drops what `at` says is used.
* The first packet to the client is CONNACK [MQTT-3.2.0-1]. A client may send more before it came
  (3.1.1 part 3.1.4), and what it sent is handled at once and in order; the answers are held back.
* Nothing that comes after a refused CONNECT or after DISCONNECT is looked at [MQTT-3.1.4-5].

* Where CONNECT names an authentication method, only AUTH and DISCONNECT may follow before CONNACK
  [MQTT-3.1.2-30]. Later AUTH may come at any time, and other packets between its steps.

Theory. A connection waits for CONNECT (WAIT_CONNECT), for the caller's decision and its commit
(ACCEPTING), is OPEN, and is CLOSED in the end. With an authentication method it is AUTHENTICATING
first, until the caller says that it is known who the client is (`authenticated`).

In ACCEPTING and OPEN, packets that come in bulk (PUBLISH and the acknowledgements) leave the state
as it is, so the kernel takes as many of them as the buffer holds into the `Inbox` and they are one
event, `PUBLISHES`. All others are events of their own. In the other states the kernel is not used:
no PUBLISH is legal there.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from typing import Final

from polymq.core_log.kernels.batch import CAPACITY, Batch
from polymq.gateways.mqtt.errors import LocalProtocolError, RemoteProtocolError, malformed
from polymq.gateways.mqtt.explaining import TEXTS, Explainer
from polymq.gateways.mqtt.fields import read_length
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.frames import parse
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.packets import (
    FIXED_FLAGS,
    MQTT_3_1_1,
    MQTT_5,
    Authenticate,
    Connect,
    Packet,
    PacketType,
    decode_packet,
    encode_auth,
    encode_connack,
    encode_disconnect,
)
from polymq.gateways.mqtt.properties import Property
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.reason_counts import ReasonCounts

ACK_RUNS_MAX: Final = 4096
"""Acknowledgement runs of one event: as many as rows, so that acks out of order batch as well."""


class State(enum.Enum):
    """Where a connection is in its life."""

    WAIT_CONNECT = "waiting for CONNECT"
    AUTHENTICATING = "CONNECT with a method received, the client not yet known"
    ACCEPTING = "CONNECT received, CONNACK not yet sent"
    OPEN = "connected"
    CLOSED = "closed"


ACCEPTING: Final = State.ACCEPTING
OPEN: Final = State.OPEN
"""As names of their own: Python 3.11 needs 150 ns for each look into an enumeration."""

BULK: Final = frozenset(
    {
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
    }
)
"""What the kernel reads. These packets never change the state."""

TRANSITIONS: Final[Mapping[tuple[State, PacketType], State]] = {
    # The first packet has to be CONNECT [MQTT-3.1.0-1], and there is only one [MQTT-3.1.0-2].
    (State.WAIT_CONNECT, PacketType.CONNECT): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PUBLISH): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PUBACK): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PUBREC): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PUBREL): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PUBCOMP): State.ACCEPTING,
    (State.ACCEPTING, PacketType.SUBSCRIBE): State.ACCEPTING,
    (State.ACCEPTING, PacketType.UNSUBSCRIBE): State.ACCEPTING,
    (State.ACCEPTING, PacketType.PINGREQ): State.ACCEPTING,
    (State.ACCEPTING, PacketType.DISCONNECT): State.CLOSED,
    (State.OPEN, PacketType.PUBLISH): State.OPEN,
    (State.OPEN, PacketType.PUBACK): State.OPEN,
    (State.OPEN, PacketType.PUBREC): State.OPEN,
    (State.OPEN, PacketType.PUBREL): State.OPEN,
    (State.OPEN, PacketType.PUBCOMP): State.OPEN,
    (State.OPEN, PacketType.SUBSCRIBE): State.OPEN,
    (State.OPEN, PacketType.UNSUBSCRIBE): State.OPEN,
    (State.OPEN, PacketType.PINGREQ): State.OPEN,
    (State.OPEN, PacketType.DISCONNECT): State.CLOSED,
}

TRANSITIONS_WITH_METHOD: Final[Mapping[tuple[State, PacketType], State]] = {
    **TRANSITIONS,
    (State.AUTHENTICATING, PacketType.AUTH): State.AUTHENTICATING,
    (State.AUTHENTICATING, PacketType.DISCONNECT): State.CLOSED,
    (State.OPEN, PacketType.AUTH): State.OPEN,
}
"""Where CONNECT has an authentication method, which only MQTT 5 knows: AUTHENTICATING takes the
place of ACCEPTING behind CONNECT, until it is known who the client is."""

STEADY: Final = frozenset(
    state for state in State if all(TRANSITIONS.get((state, kind)) is state for kind in BULK)
)
"""Where the table lets the kernel read: what it takes is legal, and changes nothing."""

_MALFORMED: Final[Mapping[int, tuple[str, str, ReasonCode]]] = {
    codes.MALFORMED_LENGTH: (
        "3.1.1 part 2.2.3",
        "the Remaining Length goes on after four bytes",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_LARGE: ("our limit", "a packet is too large", ReasonCode.PACKET_TOO_LARGE),
    codes.MALFORMED_FLAGS: (
        "MQTT-2.2.2-2",
        "the flags of an acknowledgement are wrong",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_QOS: ("MQTT-3.3.1-4", "a PUBLISH has QoS 3", ReasonCode.MALFORMED_PACKET),
    codes.MALFORMED_DUPLICATE: (
        "MQTT-3.3.1-2",
        "a QoS 0 PUBLISH has DUP set",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_SIZE: (
        "3.1.1 part 2.2.3",
        "the fields of a packet do not fit its length",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_IDENTIFIER: (
        "MQTT-2.3.1-1",
        "a packet has packet id 0",
        ReasonCode.PROTOCOL_ERROR,
    ),
    codes.MALFORMED_PROPERTY: (
        "5.0 part 2.2.2.2",
        "a packet has a property that it must not have",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_TWICE: (
        "5.0 part 2.2.2.2",
        "a packet has a property more than once",
        ReasonCode.PROTOCOL_ERROR,
    ),
    codes.MALFORMED_ALIAS: (
        "MQTT-3.3.2-8",
        "a PUBLISH has Topic Alias 0",
        ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    codes.MALFORMED_TEXT: (
        "MQTT-1.5.4-1",
        "text of a property is not well-formed UTF-8, or contains U+0000",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_REASON: (
        "5.0 part 2.4",
        "an acknowledgement has a reason code that is none of its own",
        ReasonCode.PROTOCOL_ERROR,
    ),
    codes.MALFORMED_RESPONSE: (
        "MQTT-3.3.2-14",
        "the Response Topic is empty, or contains a wildcard",
        ReasonCode.PROTOCOL_ERROR,
    ),
    codes.MALFORMED_SUBSCRIPTION: (
        "MQTT-3.3.4-6",
        "a client's PUBLISH has a Subscription Identifier",
        ReasonCode.PROTOCOL_ERROR,
    ),
    codes.MALFORMED_LONG_FORM: (
        "MQTT-1.5.5-1",
        "a number takes more bytes than it needs",
        ReasonCode.MALFORMED_PACKET,
    ),
    codes.MALFORMED_FORMAT: (
        "5.0 part 3.3.2.3.2",
        "the Payload Format Indicator is neither 0 nor 1",
        ReasonCode.PROTOCOL_ERROR,
    ),
}
"""The rule that was broken, a sentence about it, and what MQTT 5 calls it."""

_HEAD_5: Final = b"\0\4MQTT\5"
"""How a CONNECT of MQTT 5 begins, behind its fixed header."""
_IN_CONNACK: Final[Mapping[ReasonCode, ReasonCode]] = {
    ReasonCode.SERVER_SHUTTING_DOWN: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SESSION_TAKEN_OVER: ReasonCode.SERVER_BUSY,
    ReasonCode.KEEP_ALIVE_TIMEOUT: ReasonCode.SERVER_BUSY,
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.TOPIC_FILTER_INVALID: ReasonCode.PROTOCOL_ERROR,
    ReasonCode.TOPIC_ALIAS_INVALID: ReasonCode.PROTOCOL_ERROR,
    ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.MAXIMUM_CONNECT_TIME: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: ReasonCode.PROTOCOL_ERROR,
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: ReasonCode.PROTOCOL_ERROR,
}
"""Reasons that only DISCONNECT has, and what CONNACK says instead [MQTT-3.2.2-8]."""
_ELSEWHERE: Final = frozenset({ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SERVER_UNAVAILABLE})
"""Why clients are sent to another server, where there is one."""
_CONNACK_BYTES: Final = 5
_DISCONNECT_BYTES: Final = 4
"""Without properties, but with the length of none."""
_REFERENCE_BYTES: Final = 5
"""What Server Reference takes beside its text, at most."""


class Signal(enum.Enum):
    """Events without a value."""

    NEED_DATA = "nothing more can be read from these bytes"
    PUBLISHES = "the inbox holds PUBLISH packets, acknowledgements or both"


NEED_DATA: Final = Signal.NEED_DATA
PUBLISHES: Final = Signal.PUBLISHES

Event = Packet | Signal


class Inbox:
    """What the kernel took out of one read. One serves all connections of a loop, because an event
    is handled before the next is asked for.

    Attributes:
        batch: PUBLISH packets; its offsets point into the buffer that was presented.
        runs: first rows of the `run_count` runs of equal topic and flags.
        acks: (type, first packet id, count) of the `ack_count` acknowledgement runs.
    """

    __slots__ = ("ack_count", "acks", "batch", "run_count", "runs")

    def __init__(self) -> None:
        self.batch = Batch(CAPACITY)
        self.runs: array[int] = array("q", bytes(8 * CAPACITY))
        self.acks: array[int] = array("q", bytes(8 * codes.ACK_COLUMNS * ACK_RUNS_MAX))
        self.run_count = 0
        self.ack_count = 0


class Protocol:
    """The protocol state of one connection.

    Attributes:
        state: where it is in its life.
        is_steady: whether PUBLISH packets and acknowledgements may come now, by the table. All that
            reads them without `next_event` has to ask.
        level: of the protocol, from CONNECT on; before that MQTT 3.1.1's.
        method: the authentication method of CONNECT; None without one.
        authenticates: whether an exchange of AUTH packets is under way.
        at: up to where the bytes presented last are used.
        explainer: what the client may be told in words.
        counts: of the reason codes that are sent and received here.
    """

    __slots__ = (
        "_held",
        "_inbox",
        "_limits",
        "_transitions",
        "at",
        "authenticates",
        "counts",
        "explainer",
        "is_steady",
        "level",
        "method",
        "state",
    )

    def __init__(self, *, limits: Limits, inbox: Inbox) -> None:
        self._limits = limits
        self._inbox = inbox
        self._held: list[bytes] = []
        """Answers that wait for CONNACK to go first."""
        self._transitions = TRANSITIONS
        self.level = MQTT_3_1_1
        self.method: str | None = None
        self.authenticates = False
        self.at = 0
        self.explainer = Explainer()
        self.counts = ReasonCounts()
        self._enter(State.WAIT_CONNECT)

    def _enter(self, state: State) -> None:
        self.state = state
        self.is_steady = state in STEADY

    # --- receiving --------------------------------------------------------------------------

    def next_event(self, buffer: bytearray | bytes, start: int, end: int) -> Event:
        """The next event in `buffer[start:end]`; sets `at`.

        Returns:
            A packet, `PUBLISHES` (see the inbox), or `NEED_DATA`.

        Raises:
            RemoteProtocolError: send its `answer`, then close the connection.
        """
        self.at = start
        if self.is_steady:
            inbox = self._inbox
            inbox.batch.buffer = buffer
            stop, self.at, inbox.run_count, inbox.ack_count = parse(
                buffer,
                start,
                end,
                inbox.batch,
                inbox.runs,
                inbox.acks,
                self._limits.packet_bytes_max,
                self.level == MQTT_5,
            )
            if self.at > start:
                return PUBLISHES
            if stop == codes.STOP_PARTIAL:
                return NEED_DATA
            if stop >= codes.MALFORMED:
                raise RemoteProtocolError(*_MALFORMED[stop])
        elif self.state is State.CLOSED:
            self.at = end
            return NEED_DATA
        return self._next_packet(buffer, start, end)

    def _next_packet(self, buffer: bytearray | bytes, start: int, end: int) -> Event:
        if start == end:
            return NEED_DATA
        first = buffer[start]
        kind, state = self._transition(first >> 4)
        if kind in BULK:
            raise LocalProtocolError(f"the kernel left {kind.name} to the codec")
        if first & 0x0F != FIXED_FLAGS[kind]:
            raise malformed("MQTT-2.2.2-2", f"the flags of {kind.name} are wrong")
        found = read_length(buffer, start + 1, end, is_minimal=self.level == MQTT_5)
        if found is None:
            return NEED_DATA
        length, content = found
        bytes_max = self._limits.packet_bytes_max
        if kind is PacketType.CONNECT:
            bytes_max = self._limits.connect_bytes_max
        elif kind is PacketType.AUTH:
            bytes_max = self._limits.auth_bytes_max
        if content - start + length > bytes_max:
            if kind is PacketType.CONNECT:
                return self._too_large_connect(bytes(buffer[content : min(end, content + 7)]))
            raise RemoteProtocolError(
                "our limit", f"{kind.name} is too large", ReasonCode.PACKET_TOO_LARGE
            )
        if length > end - content:
            return NEED_DATA
        packet = decode_packet(kind, bytes(buffer[content : content + length]), self.level)
        self.at = content + length
        if isinstance(packet, Connect):
            self.level = packet.level
            if packet.level == MQTT_5:
                self.explainer.connected(packet)
            if packet.method is not None:
                self.method = packet.method
                self.authenticates = True
                self._transitions = TRANSITIONS_WITH_METHOD
                state = State.AUTHENTICATING
        elif isinstance(packet, Authenticate):
            self._check_step(packet)
            self.counts.received(kind, packet.reason)
        self._enter(state)
        return packet

    def _too_large_connect(self, head: bytes) -> Event:
        """A CONNECT is larger than it may be, and this is its beginning: of MQTT 5 it is answered
        as soon as that is known, which needs seven bytes."""
        if len(head) < len(_HEAD_5) and _HEAD_5.startswith(head):
            return NEED_DATA
        reason = ReasonCode.PACKET_TOO_LARGE
        answer = encode_connack(MQTT_5, reason) if head == _HEAD_5 else b""
        raise RemoteProtocolError("our limit", "CONNECT is too large", reason, answer=answer)

    def _transition(self, number: int) -> tuple[PacketType, State]:
        try:
            kind = PacketType(number)
        except ValueError as error:
            raise malformed("3.1.1 part 2.2.1", f"packet type {number} is reserved") from error
        state = self._transitions.get((self.state, kind))
        if state is not None:
            return kind, state
        if self.state is State.WAIT_CONNECT:
            raise RemoteProtocolError("MQTT-3.1.0-1", f"{kind.name} came before CONNECT")
        if kind is PacketType.CONNECT:
            raise RemoteProtocolError("MQTT-3.1.0-2", "a second CONNECT")
        if self.state is State.AUTHENTICATING:
            raise RemoteProtocolError("MQTT-3.1.2-30", f"{kind.name} came before CONNACK")
        if kind is PacketType.AUTH and self.level == MQTT_5:
            if self.method is None:
                raise RemoteProtocolError("MQTT-4.12.0-7", "AUTH, though CONNECT had no method")
            raise RemoteProtocolError("5.0 part 4.12.1", "AUTH came before CONNACK")
        raise RemoteProtocolError("3.1.1 part 2.2.1", f"a client does not send {kind.name}")

    def _check_step(self, packet: Authenticate) -> None:
        """Whether the AUTH may come now."""
        if packet.method != self.method:
            raise RemoteProtocolError(
                "MQTT-4.12.0-5" if self.state is State.AUTHENTICATING else "MQTT-4.12.1-1",
                "AUTH has another method than CONNECT",
            )
        begins = packet.reason == ReasonCode.RE_AUTHENTICATE
        if self.state is State.AUTHENTICATING and begins:
            raise RemoteProtocolError("MQTT-4.12.0-3", "AUTH with reason code 0x19 before CONNACK")
        if begins and self.authenticates:
            raise RemoteProtocolError("5.0 part 4.12.1", "a second authentication within the first")
        if not begins and not self.authenticates:
            raise RemoteProtocolError(
                "5.0 part 4.12.1", "AUTH goes on with an authentication that has not begun"
            )
        self.authenticates = True

    # --- sending ----------------------------------------------------------------------------

    def challenge(self, data: bytes) -> bytes:
        """AUTH by which the client goes on [MQTT-4.12.0-2]."""
        if not self.authenticates or self.state not in (State.AUTHENTICATING, State.OPEN):
            raise LocalProtocolError(f"AUTH while {self.state.value}")
        return self._auth(ReasonCode.CONTINUE_AUTHENTICATION, data)

    def authenticated(self, data: bytes) -> bytes:
        """It is known who the client is. In OPEN that is an AUTH to it; before CONNACK it is
        nothing yet: CONNACK has the data."""
        if not self.authenticates or self.state not in (State.AUTHENTICATING, State.OPEN):
            raise LocalProtocolError(f"authenticated while {self.state.value}")
        self.authenticates = False
        if self.state is State.AUTHENTICATING:
            self._enter(State.ACCEPTING)
            return b""
        return self._auth(ReasonCode.SUCCESS, data)

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        assert self.method is not None
        self.counts.sent(PacketType.AUTH, reason)
        return encode_auth(reason, self.method, data)

    def accept(self, *, present: bool, properties: Mapping[Property, object]) -> bytes:
        """CONNACK, and after it the answers that were held back."""
        if self.state is not State.ACCEPTING:
            raise LocalProtocolError(f"CONNACK while {self.state.value}")
        self._enter(State.OPEN)
        held, self._held = self._held, []
        connack = encode_connack(
            self.level, ReasonCode.SUCCESS, present=present, properties=properties
        )
        if self.level == MQTT_5:
            self.counts.sent(PacketType.CONNACK, ReasonCode.SUCCESS)
        return connack + b"".join(held)

    def refuse(self, reason: ReasonCode) -> bytes:
        """CONNACK with a reason that is an error; the caller closes the connection
        [MQTT-3.2.2-5]."""
        if self.state not in (State.ACCEPTING, State.AUTHENTICATING):
            raise LocalProtocolError(f"CONNACK while {self.state.value}")
        if reason is ReasonCode.SUCCESS:
            raise LocalProtocolError("a refusal with the code of acceptance")
        self.close()
        if self.level < MQTT_5:
            return encode_connack(self.level, reason)
        return self._end(PacketType.CONNACK, reason, "")

    def _end(self, kind: PacketType, reason: ReasonCode, text: str) -> bytes:
        """The last packet to a client of MQTT 5, which says why."""
        properties: dict[Property, object] = {}
        size = _CONNACK_BYTES if kind is PacketType.CONNACK else _DISCONNECT_BYTES
        reference = self._limits.features.server_reference
        if reference and reason in _ELSEWHERE:
            reason = ReasonCode.USE_ANOTHER_SERVER
            more = _REFERENCE_BYTES + len(reference.encode())
            if size + more <= self.explainer.packet_bytes_max:
                properties[Property.SERVER_REFERENCE] = reference
                size += more
        if kind is PacketType.CONNACK:
            reason = _IN_CONNACK.get(reason, reason)
        properties |= self.explainer.explained(text or TEXTS.get(reason, ""), size)
        self.counts.sent(kind, reason)
        if kind is PacketType.CONNACK:
            return encode_connack(self.level, reason, properties=properties)
        return encode_disconnect(reason, properties)

    def say_goodbye(self, reason: ReasonCode, text: str = "") -> bytes:
        """What the client is told before its connection is closed for this reason: in MQTT 5 a
        DISCONNECT, or CONNACK if that was not sent yet [MQTT-3.14.0-1]. Nothing more is read or
        answered.

        Args:
            text: why, in words; empty: what the reason means.
        """
        state = self.state
        self.close()
        if self.level < MQTT_5 or state is State.CLOSED or state is State.WAIT_CONNECT:
            return b""
        if state in (State.ACCEPTING, State.AUTHENTICATING):
            return self._end(PacketType.CONNACK, reason, text)
        return self._end(PacketType.DISCONNECT, reason, text)

    def answer(self, data: bytes) -> bytes:
        """What of these packets to the client may be written now."""
        if self.state is OPEN:
            return data
        if self.state is State.ACCEPTING:
            self._held.append(data)
            return b""
        if self.state is State.WAIT_CONNECT:
            raise LocalProtocolError("an answer before CONNECT")
        return b""

    def close(self) -> None:
        """Nothing more is read or answered."""
        self._enter(State.CLOSED)
        self._held.clear()
