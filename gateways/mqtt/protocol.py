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
    """

    __slots__ = (
        "_held",
        "_inbox",
        "_limits",
        "_transitions",
        "at",
        "authenticates",
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
            raise RemoteProtocolError(
                "our limit", f"{kind.name} is too large", ReasonCode.PACKET_TOO_LARGE
            )
        if length > end - content:
            return NEED_DATA
        packet = decode_packet(kind, bytes(buffer[content : content + length]), self.level)
        self.at = content + length
        if isinstance(packet, Connect):
            self.level = packet.level
            if packet.method is not None:
                self.method = packet.method
                self.authenticates = True
                self._transitions = TRANSITIONS_WITH_METHOD
                state = State.AUTHENTICATING
        elif isinstance(packet, Authenticate):
            self._check_step(packet)
        self._enter(state)
        return packet

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
        assert self.method is not None
        return encode_auth(ReasonCode.CONTINUE_AUTHENTICATION, self.method, data)

    def authenticated(self, data: bytes) -> bytes:
        """It is known who the client is. In OPEN that is an AUTH to it; before CONNACK it is
        nothing yet: CONNACK has the data."""
        if not self.authenticates or self.state not in (State.AUTHENTICATING, State.OPEN):
            raise LocalProtocolError(f"authenticated while {self.state.value}")
        assert self.method is not None
        self.authenticates = False
        if self.state is State.AUTHENTICATING:
            self._enter(State.ACCEPTING)
            return b""
        return encode_auth(ReasonCode.SUCCESS, self.method, data)

    def accept(self, *, present: bool, properties: Mapping[Property, object]) -> bytes:
        """CONNACK, and after it the answers that were held back."""
        if self.state is not State.ACCEPTING:
            raise LocalProtocolError(f"CONNACK while {self.state.value}")
        self._enter(State.OPEN)
        held, self._held = self._held, []
        connack = encode_connack(
            self.level, ReasonCode.SUCCESS, present=present, properties=properties
        )
        return connack + b"".join(held)

    def refuse(self, reason: ReasonCode) -> bytes:
        """CONNACK with a reason that is an error; the caller closes the connection
        [MQTT-3.2.2-5]."""
        if self.state not in (State.ACCEPTING, State.AUTHENTICATING):
            raise LocalProtocolError(f"CONNACK while {self.state.value}")
        if reason is ReasonCode.SUCCESS:
            raise LocalProtocolError("a refusal with the code of acceptance")
        self.close()
        return encode_connack(self.level, reason)

    def say_goodbye(self, reason: ReasonCode) -> bytes:
        """What the client is told before its connection is closed for this reason: in MQTT 5 a
        DISCONNECT, or CONNACK if that was not sent yet [MQTT-3.14.0-1]. Nothing more is read or
        answered."""
        state = self.state
        self.close()
        if self.level < MQTT_5 or state is State.CLOSED or state is State.WAIT_CONNECT:
            return b""
        if state in (State.ACCEPTING, State.AUTHENTICATING):
            return encode_connack(self.level, reason)
        return encode_disconnect(reason)

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
