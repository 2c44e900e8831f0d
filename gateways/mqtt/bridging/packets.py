"""The packets that a client sends and a server answers with, as bytes. Pure.

The rest of the gateway has them the other way round (`packets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from polymq.gateways.mqtt.errors import RemoteProtocolError, malformed
from polymq.gateways.mqtt.fields import Content, encode_field, encode_length
from polymq.gateways.mqtt.packets import BRIDGE_PROPERTY, MQTT_5, RECEIVE_MAX, PacketType
from polymq.gateways.mqtt.properties import Property, decode_properties, encode_properties
from polymq.gateways.mqtt.reason_codes import ERROR, ReasonCode

PING_REQUEST: Final = bytes((PacketType.PINGREQ << 4, 0))
GOODBYE: Final = bytes((PacketType.DISCONNECT << 4, 0))
"""DISCONNECT without a reason, which means 0 in MQTT 5."""
_PUBLISH_RETAINED: Final = 0x31
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_ONLY_IF_NEW: Final = 0x10
"""Retain Handling 1: retained messages are sent if the subscription is new."""

_OF_CONNACK: Final = frozenset(
    {
        Property.SESSION_EXPIRY_INTERVAL,
        Property.RECEIVE_MAXIMUM,
        Property.MAXIMUM_QOS,
        Property.RETAIN_AVAILABLE,
        Property.MAXIMUM_PACKET_SIZE,
        Property.ASSIGNED_CLIENT_IDENTIFIER,
        Property.TOPIC_ALIAS_MAXIMUM,
        Property.REASON_STRING,
        Property.USER_PROPERTY,
        Property.WILDCARD_SUBSCRIPTION_AVAILABLE,
        Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        Property.SHARED_SUBSCRIPTION_AVAILABLE,
        Property.SERVER_KEEP_ALIVE,
        Property.RESPONSE_INFORMATION,
        Property.SERVER_REFERENCE,
        Property.AUTHENTICATION_METHOD,
        Property.AUTHENTICATION_DATA,
    }
)
"""5.0 part 3.2.2.3."""
_OF_SUBACK: Final = frozenset({Property.REASON_STRING, Property.USER_PROPERTY})
_OF_DISCONNECT: Final = frozenset(
    {
        Property.SESSION_EXPIRY_INTERVAL,
        Property.REASON_STRING,
        Property.USER_PROPERTY,
        Property.SERVER_REFERENCE,
    }
)

RETURN_CODES: Final[Mapping[int, tuple[ReasonCode, str]]] = {
    0: (ReasonCode.SUCCESS, ""),
    1: (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "unacceptable protocol version"),
    2: (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client identifier rejected"),
    3: (ReasonCode.SERVER_UNAVAILABLE, "server unavailable"),
    4: (ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password"),
    5: (ReasonCode.NOT_AUTHORIZED, "not authorized"),
}
"""Of CONNACK before MQTT 5 (3.1.1 table 3.1)."""


class Request(NamedTuple):
    """A topic filter that a client subscribes to, and its highest QoS."""

    pattern: str
    qos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a CONNECT says.

    Attributes:
        level: of the protocol, with `packets.BRIDGE_BIT` or without.
        expiry_seconds: Session Expiry Interval, which only MQTT 5 has.
        receive_max, packet_bytes_max, alias_max: what the client takes; only MQTT 5 says so.
        marks_messages: the server is told that the client is a bridge (`loops.py`).
        state_topic: where the will says 0, retained; empty: there is no will.
    """

    level: int
    client_id: str
    clean: bool
    expiry_seconds: int
    keep_alive_seconds: int
    user: str | None = None
    password: bytes | None = field(default=None, repr=False)
    receive_max: int
    packet_bytes_max: int
    alias_max: int
    state_topic: str = ""
    marks_messages: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a CONNACK says.

    Attributes:
        reason: SUCCESS, or why the server refuses. Return codes before MQTT 5 are translated.
        text: why, in the server's words, or in ours.
        present: whether the server has a session of the client.
    """

    reason: int
    text: str = ""
    present: bool = False
    keep_alive_seconds: int | None = None
    receive_max: int = RECEIVE_MAX
    packet_bytes_max: int | None = None
    alias_max: int = 0
    qos_max: int = 2
    retain: bool = True


# --- encoding --------------------------------------------------------------------------------


def encode_connect(greeting: Greeting) -> bytes:
    """CONNECT (3.1.1 part 3.1, 5.0 part 3.1)."""
    five = greeting.level == MQTT_5
    flags = 0x02 if greeting.clean else 0
    parts = [encode_field(greeting.client_id.encode())]
    if greeting.state_topic:
        flags |= 0x04 | 0x08 | 0x20  # a will with QoS 1, retained
        parts += [b"\x00"] if five else []
        parts += [encode_field(greeting.state_topic.encode()), encode_field(b"0")]
    if greeting.user is not None:
        flags |= 0x80
        parts.append(encode_field(greeting.user.encode()))
    if greeting.password is not None:
        flags |= 0x40
        parts.append(encode_field(greeting.password))
    block = b""
    marks: dict[Property, Any] = {}
    if greeting.marks_messages:
        marks[Property.USER_PROPERTY] = [(BRIDGE_PROPERTY, "1")]
    if five:
        block = encode_properties(
            {
                Property.SESSION_EXPIRY_INTERVAL: greeting.expiry_seconds,
                Property.RECEIVE_MAXIMUM: greeting.receive_max,
                Property.MAXIMUM_PACKET_SIZE: greeting.packet_bytes_max,
                Property.TOPIC_ALIAS_MAXIMUM: greeting.alias_max,
                **marks,
            }
        )
    head = encode_field(b"MQTT") + bytes((greeting.level, flags))
    return _packet(
        PacketType.CONNECT << 4,
        head,
        greeting.keep_alive_seconds.to_bytes(2, "big"),
        block,
        *parts,
    )


def encode_subscribe(level: int, packet_id: int, requests: Sequence[Request]) -> bytes:
    """SUBSCRIBE. In MQTT 5 without what the client publishes itself, with RETAIN as it was
    published, and with retained messages if the subscription is new."""
    five = level == MQTT_5
    more = _NO_LOCAL | _RETAIN_AS_PUBLISHED | _ONLY_IF_NEW if five else 0
    filters = [encode_field(one.pattern.encode()) + bytes((one.qos | more,)) for one in requests]
    block = b"\x00" if five else b""
    first = PacketType.SUBSCRIBE << 4 | 0x02
    return _packet(first, packet_id.to_bytes(2, "big"), block, *filters)


def encode_unsubscribe(level: int, packet_id: int, patterns: Sequence[str]) -> bytes:
    """UNSUBSCRIBE."""
    block = b"\x00" if level == MQTT_5 else b""
    filters = [encode_field(pattern.encode()) for pattern in patterns]
    first = PacketType.UNSUBSCRIBE << 4 | 0x02
    return _packet(first, packet_id.to_bytes(2, "big"), block, *filters)


def encode_state(level: int, topic: str, body: bytes) -> bytes:
    """A retained PUBLISH of QoS 0 that says whether the bridge is connected."""
    block = b"\x00" if level == MQTT_5 else b""
    return _packet(_PUBLISH_RETAINED, encode_field(topic.encode()), block, body)


def _packet(first: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes((first,)) + encode_length(len(content)) + content


# --- decoding --------------------------------------------------------------------------------


def decode_connack(data: bytes, level: int) -> Accepted:
    """CONNACK without its fixed header. A server that does not know MQTT 5 may answer in the older
    form, which is shorter. Raises RemoteProtocolError."""
    content = Content(data, "CONNACK")
    flags, code = content.byte(), content.byte()
    if flags & 0xFE:
        raise malformed("MQTT-3.2.2-1", "reserved flags of CONNACK are set")
    if level < MQTT_5 or not content.left:
        content.finish()
        reason, text = RETURN_CODES.get(code, (ReasonCode.UNSPECIFIED_ERROR, f"code {code}"))
        if level == MQTT_5 and not code:
            raise malformed("5.0 part 3.2.2.3", "CONNACK of MQTT 5 without properties")
        return Accepted(reason=reason, text=text, present=bool(flags & 1) and not code)
    values = decode_properties(content, _OF_CONNACK)
    content.finish()
    return Accepted(
        reason=code,
        text=values.get(Property.REASON_STRING, "") or reason_text(code),
        present=bool(flags & 1),
        keep_alive_seconds=values.get(Property.SERVER_KEEP_ALIVE),
        receive_max=values.get(Property.RECEIVE_MAXIMUM, RECEIVE_MAX),
        packet_bytes_max=values.get(Property.MAXIMUM_PACKET_SIZE),
        alias_max=values.get(Property.TOPIC_ALIAS_MAXIMUM, 0),
        qos_max=values.get(Property.MAXIMUM_QOS, 2),
        retain=bool(values.get(Property.RETAIN_AVAILABLE, 1)),
    )


def decode_suback(data: bytes, level: int) -> tuple[int, bytes]:
    """The packet id of a SUBACK, and its codes in the order of the filters. Raises
    RemoteProtocolError."""
    content = Content(data, "SUBACK")
    packet_id = content.packet_id()
    if level == MQTT_5:
        decode_properties(content, _OF_SUBACK)
    codes = content.rest()
    if any(2 < code < ERROR for code in codes):
        raise RemoteProtocolError("MQTT-3.9.3-2", "SUBACK has a code that is none")
    return packet_id, codes


def decode_disconnect(data: bytes) -> tuple[int, str]:
    """The reason code of a server's DISCONNECT of MQTT 5, and why in words. Raises
    RemoteProtocolError."""
    content = Content(data, "DISCONNECT")
    code = content.byte() if content.left else 0
    values: Mapping[Property, Any] = {}
    if content.left:
        values = decode_properties(content, _OF_DISCONNECT)
    content.finish()
    return code, values.get(Property.REASON_STRING, "") or reason_text(code)


def reason_text(code: int) -> str:
    """The name of a reason code, for log lines."""
    try:
        name = ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"reason code 0x{code:02X}"
    return f"{name} (0x{code:02X})"
