"""MQTT 5.0 packets as bytes and back, written from the standard alone.

It shares nothing with the server's codec on purpose: a mistake there must not hide here.

Encoding is free: any packet with any properties, in any order and number, and with any bytes where
a text should be; the tests send what the standard forbids. Decoding is strict: a packet from the
server with a wrong flag, a reason code or a property that its type does not have, a property twice,
a text that is no UTF-8, or a number in more bytes than it needs is an `AssertionError`. So every
test that reads a packet also shows that packets from the server are well-formed (chapters 2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from interop_tests.mqtt_wire import field, packet, remaining_length

Value = int | str | bytes | tuple[str | bytes, str | bytes]
Property = tuple[int, Value]
"""Its identifier and its value: `(P.CONTENT_TYPE, "text/plain")`."""


class Kind(IntEnum):
    """Types of packets (table 2-1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class P(IntEnum):
    """Identifiers of properties (table 2-4)."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTH_METHOD = 0x15
    AUTH_DATA = 0x16
    REQUEST_PROBLEM = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON = 0x1F
    RECEIVE_MAX = 0x21
    ALIAS_MAX = 0x22
    ALIAS = 0x23
    QOS_MAX = 0x24
    RETAIN_AVAILABLE = 0x25
    USER = 0x26
    PACKET_MAX = 0x27
    WILDCARDS = 0x28
    SUBSCRIPTION_IDS = 0x29
    SHARED = 0x2A


class R(IntEnum):
    """Reason codes (table 2-6)."""

    SUCCESS = 0x00
    WITH_WILL = 0x04
    NO_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION = 0x11
    CONTINUE = 0x18
    AUTHENTICATE_AGAIN = 0x19
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION = 0x83
    VERSION = 0x84
    CLIENT_ID = 0x85
    CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    METHOD = 0x8C
    KEEP_ALIVE = 0x8D
    TAKEN_OVER = 0x8E
    FILTER = 0x8F
    TOPIC = 0x90
    UNKNOWN_ID = 0x92
    RECEIVE_MAX = 0x93
    ALIAS = 0x94
    TOO_LARGE = 0x95
    PAYLOAD_FORMAT = 0x99
    RETAIN = 0x9A
    QOS = 0x9B
    ANOTHER_SERVER = 0x9C
    SUBSCRIPTION_IDS = 0xA1
    WILDCARDS = 0xA2


BYTES: Final = {
    P.PAYLOAD_FORMAT: 1,
    P.REQUEST_PROBLEM: 1,
    P.REQUEST_RESPONSE: 1,
    P.QOS_MAX: 1,
    P.RETAIN_AVAILABLE: 1,
    P.WILDCARDS: 1,
    P.SUBSCRIPTION_IDS: 1,
    P.SHARED: 1,
    P.SERVER_KEEP_ALIVE: 2,
    P.RECEIVE_MAX: 2,
    P.ALIAS_MAX: 2,
    P.ALIAS: 2,
    P.MESSAGE_EXPIRY: 4,
    P.SESSION_EXPIRY: 4,
    P.WILL_DELAY: 4,
    P.PACKET_MAX: 4,
}
"""Properties that are integers of a fixed size."""
BINARY: Final = frozenset({P.CORRELATION_DATA, P.AUTH_DATA})
REPEATED: Final = frozenset({P.USER, P.SUBSCRIPTION_ID})
"""Those that a packet may have more than once."""
SWITCHES: Final = frozenset({P.QOS_MAX, P.RETAIN_AVAILABLE, P.WILDCARDS, P.SUBSCRIPTION_IDS,
                             P.SHARED, P.PAYLOAD_FORMAT})  # fmt: skip
"""Those that are 0 or 1."""
NOT_ZERO: Final = frozenset({P.RECEIVE_MAX, P.PACKET_MAX, P.ALIAS, P.SUBSCRIPTION_ID})

DIAGNOSTIC: Final = frozenset({P.REASON, P.USER})
FROM_SERVER: Final = {
    Kind.CONNACK: DIAGNOSTIC
    | {
        P.SESSION_EXPIRY, P.ASSIGNED_CLIENT_ID, P.SERVER_KEEP_ALIVE, P.AUTH_METHOD, P.AUTH_DATA,
        P.RESPONSE_INFORMATION, P.SERVER_REFERENCE, P.RECEIVE_MAX, P.ALIAS_MAX, P.QOS_MAX,
        P.RETAIN_AVAILABLE, P.PACKET_MAX, P.WILDCARDS, P.SUBSCRIPTION_IDS, P.SHARED,
    },
    Kind.PUBLISH: frozenset({
        P.PAYLOAD_FORMAT, P.MESSAGE_EXPIRY, P.CONTENT_TYPE, P.RESPONSE_TOPIC, P.CORRELATION_DATA,
        P.SUBSCRIPTION_ID, P.ALIAS, P.USER,
    }),
    Kind.PUBACK: DIAGNOSTIC,
    Kind.PUBREC: DIAGNOSTIC,
    Kind.PUBREL: DIAGNOSTIC,
    Kind.PUBCOMP: DIAGNOSTIC,
    Kind.SUBACK: DIAGNOSTIC,
    Kind.UNSUBACK: DIAGNOSTIC,
    Kind.DISCONNECT: DIAGNOSTIC | {P.SERVER_REFERENCE},
    Kind.AUTH: DIAGNOSTIC | {P.AUTH_METHOD, P.AUTH_DATA},
}  # fmt: skip
"""Properties that a packet from a server may have."""
ARRIVAL: Final = frozenset({0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
RELEASE: Final = frozenset({0, 0x92})
REASONS: Final = {
    Kind.CONNACK: frozenset({
        0, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
        0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    }),
    Kind.PUBACK: ARRIVAL,
    Kind.PUBREC: ARRIVAL,
    Kind.PUBREL: RELEASE,
    Kind.PUBCOMP: RELEASE,
    Kind.SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    Kind.UNSUBACK: frozenset({0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    Kind.DISCONNECT: frozenset({
        0, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96,
        0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    }),
    Kind.AUTH: frozenset({0, 0x18}),
}  # fmt: skip
"""Reason codes that a server may send (the table in the part of each packet)."""


# --- what clients send -----------------------------------------------------------------------


def property_bytes(identifier: int, value: Value) -> bytes:
    """One property. A value of bytes for an integer or a pair is put there as it is."""
    head = remaining_length(identifier)
    if isinstance(value, int):
        size = BYTES.get(P(identifier))
        return head + (remaining_length(value) if size is None else value.to_bytes(size, "big"))
    if isinstance(value, tuple):
        return head + field(value[0]) + field(value[1])
    if isinstance(value, bytes) and (identifier in BYTES or identifier == P.SUBSCRIPTION_ID):
        return head + value
    return head + field(value)


def block(props: Iterable[Property] | bytes = ()) -> bytes:
    """Properties behind their length; bytes are a block that is made by hand, with its length."""
    if isinstance(props, bytes):
        return props
    content = b"".join(property_bytes(identifier, value) for identifier, value in props)
    return remaining_length(len(content)) + content


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What CONNECT says of the will."""

    topic: str | bytes
    body: bytes = b""
    qos: int = 0
    retain: bool = False
    props: Iterable[Property] | bytes = ()

    def packed(self) -> bytes:
        return block(self.props) + field(self.topic) + field(self.body)


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    props: Iterable[Property] | bytes = (),
    will: Will | None = None,
    user: str | bytes | None = None,
    password: bytes | None = None,
    flags: int = 0,
    name: str = "MQTT",
    level: int = 5,
    tail: bytes = b"",
) -> bytes:
    """A CONNECT. `flags` are set beside those that the other arguments need; `tail` follows."""
    flags |= 2 * clean
    payload = field(client_id)
    if will is not None:
        flags |= 4 | will.qos << 3 | 32 * will.retain
        payload += will.packed()
    if user is not None:
        flags |= 128
        payload += field(user)
    if password is not None:
        flags |= 64
        payload += field(password)
    head = field(name) + bytes([level, flags]) + keep_alive.to_bytes(2, "big")
    return packet(0x10, head + block(props) + payload + tail)


def publish(
    topic: str | bytes,
    body: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    duplicate: bool = False,
    props: Iterable[Property] | bytes = (),
) -> bytes:
    content = field(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + block(props)
    return packet(0x30 | duplicate << 3 | qos << 1 | retain, content + body)


def acknowledgement(
    first_byte: int, packet_id: int, reason: int | None, props: Iterable[Property] | bytes | None
) -> bytes:
    content = packet_id.to_bytes(2, "big")
    if reason is not None:
        content += bytes([reason])
    if props is not None:
        content += block(props)
    return packet(first_byte, content)


def puback(
    packet_id: int, reason: int | None = None, props: Iterable[Property] | bytes | None = None
) -> bytes:
    return acknowledgement(0x40, packet_id, reason, props)


def pubrec(
    packet_id: int, reason: int | None = None, props: Iterable[Property] | bytes | None = None
) -> bytes:
    return acknowledgement(0x50, packet_id, reason, props)


def pubrel(
    packet_id: int, reason: int | None = None, props: Iterable[Property] | bytes | None = None
) -> bytes:
    return acknowledgement(0x62, packet_id, reason, props)


def pubcomp(
    packet_id: int, reason: int | None = None, props: Iterable[Property] | bytes | None = None
) -> bytes:
    return acknowledgement(0x70, packet_id, reason, props)


NO_LOCAL, AS_PUBLISHED = 4, 8
ONLY_NEW, NO_RETAINED = 1 << 4, 2 << 4
"""Options of a subscription, beside its QoS; retained messages are sent unless one says no."""


def subscribe(
    packet_id: int,
    *filters: tuple[str | bytes, int],
    props: Iterable[Property] | bytes = (),
    first_byte: int = 0x82,
) -> bytes:
    content = packet_id.to_bytes(2, "big") + block(props)
    for pattern, options in filters:
        content += field(pattern) + bytes([options])
    return packet(first_byte, content)


def unsubscribe(
    packet_id: int,
    *filters: str | bytes,
    props: Iterable[Property] | bytes = (),
    first_byte: int = 0xA2,
) -> bytes:
    content = packet_id.to_bytes(2, "big") + block(props)
    return packet(first_byte, content + b"".join(map(field, filters)))


def disconnect(reason: int | None = None, props: Iterable[Property] | bytes | None = None) -> bytes:
    content = b"" if reason is None else bytes([reason])
    return packet(0xE0, content if props is None else content + block(props))


def auth(reason: int, props: Iterable[Property] | bytes = ()) -> bytes:
    return packet(0xF0, bytes([reason]) + block(props))


# --- what the server sends -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A packet from the server, taken apart; fields that its type does not have are empty."""

    kind: Kind
    flags: int
    size: int
    packet_id: int = 0
    reasons: tuple[int, ...] = ()
    props: tuple[Property, ...] = ()
    topic: str = ""
    body: bytes = b""
    present: bool = False

    @property
    def reason(self) -> int:
        """The only one that it has."""
        (reason,) = self.reasons
        return reason

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def duplicate(self) -> bool:
        return bool(self.flags & 8)

    def values(self, identifier: int) -> list[Value]:
        return [value for found, value in self.props if found == identifier]

    def number(self, identifier: int, default: int) -> int:
        """The value of an integer property."""
        values = self.values(identifier)
        if not values:
            return default
        assert isinstance(values[0], int)
        return values[0]


class Reader:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        assert size <= self.left, f"{self.data[:40].hex()} ends within a field"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        assert shift <= 28
        assert byte or shift == 7, "[MQTT-1.5.5-1]: more bytes than the value needs"
        return value

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        value = self.binary().decode()  # refuses what is no UTF-8, surrogates among it
        assert "\0" not in value, "[MQTT-1.5.4-2]"
        return value

    def props(self, kind: Kind) -> tuple[Property, ...]:
        found: list[Property] = []
        part = Reader(self.take(self.variable()))
        while part.left:
            identifier = P(part.variable())
            assert identifier in FROM_SERVER[kind], f"{identifier.name} in {kind.name}"
            assert identifier in REPEATED or identifier not in dict(found), identifier.name
            found.append((identifier, part._value(identifier)))
        return tuple(found)

    def _value(self, identifier: P) -> Value:
        if identifier == P.USER:
            return self.text(), self.text()
        if identifier in BINARY:
            return self.binary()
        size = BYTES.get(identifier)
        if size is None and identifier != P.SUBSCRIPTION_ID:
            return self.text()
        number = self.variable() if size is None else self.number(size)
        assert number or identifier not in NOT_ZERO, f"{identifier.name} is 0"
        assert number < 2 or identifier not in SWITCHES, f"{identifier.name} is {number}"
        return number


def decode(data: bytes) -> Packet:
    """One whole packet from a server. Anything that the standard does not allow it to send fails
    here."""
    whole = Reader(data)
    first = whole.number(1)
    kind, flags = Kind(first >> 4), first & 15
    assert kind == Kind.PUBLISH or flags == (2 if kind == Kind.PUBREL else 0), "[MQTT-2.1.3-1]"
    assert whole.variable() == whole.left
    size = len(data)
    if kind == Kind.PINGRESP:
        assert not whole.left
        return Packet(kind=kind, flags=flags, size=size)
    if kind == Kind.PUBLISH:
        return _decode_publish(whole, flags, size)
    if kind == Kind.CONNACK:
        acknowledged = whole.number(1)
        assert acknowledged < 2, "[MQTT-3.2.2-1]: a reserved flag of CONNACK"
        reasons: tuple[int, ...] = (whole.number(1),)
        found = Packet(
            kind=kind, flags=flags, size=size, reasons=reasons, present=bool(acknowledged),
            props=whole.props(kind),
        )  # fmt: skip
    elif kind in (Kind.SUBACK, Kind.UNSUBACK):
        packet_id, props = whole.number(2), whole.props(kind)
        found = Packet(
            kind=kind, flags=flags, size=size, packet_id=packet_id, props=props,
            reasons=tuple(whole.take(whole.left)),
        )  # fmt: skip
    else:
        assert kind in REASONS, f"{kind.name} from a server"
        acknowledges = kind not in (Kind.DISCONNECT, Kind.AUTH)
        packet_id = whole.number(2) if acknowledges else 0
        reasons = (whole.number(1) if whole.left else 0,)
        found = Packet(
            kind=kind, flags=flags, size=size, packet_id=packet_id, reasons=reasons,
            props=whole.props(kind) if whole.left else (),
        )  # fmt: skip
    assert not whole.left, "bytes behind the packet's last field"
    for reason in found.reasons:
        assert reason in REASONS[kind], f"reason 0x{reason:02X} in {kind.name}"
    return found


def _decode_publish(whole: Reader, flags: int, size: int) -> Packet:
    qos = flags >> 1 & 3
    assert qos < 3, "[MQTT-3.3.1-4]"
    assert qos or not flags & 8, "[MQTT-3.3.1-2]: DUP at QoS 0"
    topic = whole.text()
    assert not set("+#") & set(topic), "[MQTT-3.3.2-2]"
    packet_id = 0
    if qos:
        packet_id = whole.number(2)
        assert packet_id, "[MQTT-2.2.1-4]"
    props = whole.props(Kind.PUBLISH)
    return Packet(
        kind=Kind.PUBLISH, flags=flags, size=size, topic=topic, packet_id=packet_id, props=props,
        body=whole.take(whole.left),
    )  # fmt: skip
