"""The control packets of MQTT 3.1, 3.1.1 and 5.0 as values, and their codec.

PUBLISH and the acknowledgements don't come here: they go through the kernels in batches. The
decoder takes one whole packet and gives a value, or raises `RemoteProtocolError` naming the rule of
the standard that was broken. Nothing here knows topics' meaning, sockets or clocks.

The versions differ in what packets have beside the fields that all have: properties, reason codes
and options. Values have those of MQTT 5; those of the older versions get what means the same there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from polymq.gateways.mqtt.errors import LocalProtocolError, RemoteProtocolError, malformed
from polymq.gateways.mqtt.fields import (
    Content,
    decode_filter,
    decode_text,
    decode_topic,
    encode_length,
)
from polymq.gateways.mqtt.properties import (
    OF_AUTH,
    OF_CONNECT,
    OF_DISCONNECT,
    OF_SUBSCRIBE,
    OF_UNSUBSCRIBE,
    OF_WILL,
    Property,
    decode_properties,
    encode_block,
    encode_properties,
)
from polymq.gateways.mqtt.reason_codes import CONNECT_CODES_3, ReasonCode
from polymq.gateways.mqtt.topic_filters import is_shared_filter

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5
"""Protocol levels (3.1.1 part 3.1.2.2)."""

NEVER: Final = 0xFFFF_FFFF
"""The Session Expiry Interval of a session that does not expire (5.0 part 3.1.2.11.2)."""
BRIDGE_BIT: Final = 0x80
"""Of the protocol level of a CONNECT before MQTT 5: the client is a bridge, and does not want to
get back what it publishes itself. It is mosquitto's, and in no standard."""
BRIDGE_PROPERTY: Final = "polymq-bridge"
"""A User Property of CONNECT: the client is a bridge of ours (`loops.py`)."""
RECEIVE_MAX: Final = 65_535
"""The Receive Maximum of a client that does not say one."""


class PacketType(enum.IntEnum):
    """The high half of a packet's first byte (3.1.1 part 2.2.1, 5.0 part 2.1.2); 0 is reserved, and
    AUTH before MQTT 5."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    topic: str
    body: bytes
    qos: int
    retain: bool
    delay_seconds: int = 0
    properties: bytes = b""
    """The property block of the PUBLISH that it becomes, without its length."""
    expiry_seconds: int | None = None
    """The Message Expiry Interval among them."""
    is_text: bool = False
    """Whether the Payload Format Indicator among them says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    level: int
    """`MQTT_5`, `MQTT_3_1_1` or `MQTT_3_1`."""
    client_id: str
    """Empty: the server makes one up."""
    clean: bool
    """Clean Start: a session that is there ends first. Before MQTT 5: Clean Session."""
    expiry_seconds: int | None
    """How long the session outlives its connection; None: it does not expire."""
    keep_alive_seconds: int
    """0: the client need not say anything."""
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None
    receive_max: int = RECEIVE_MAX
    """Messages of QoS 1 and 2 that the client takes before it has acknowledged them."""
    packet_bytes_max: int | None = None
    """The largest packet that the client takes; None: any."""
    alias_max: int = 0
    """The highest Topic Alias that the client takes."""
    wants_problem_information: bool = True
    wants_response_information: bool = False
    method: str | None = None
    """Of enhanced authentication (5.0 part 4.12); None: user and password."""
    data: bytes | None = None
    is_bridge: bool = False
    """It has `BRIDGE_BIT`, or in MQTT 5 the User Property `BRIDGE_PROPERTY`."""


class Requested(NamedTuple):
    """A topic filter of a SUBSCRIBE, and what is asked for."""

    pattern: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """0: send retained messages, 1: only if the subscription is new, 2: do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    packet_id: int
    payload: bytes
    """The filters as they came. A large packet may have millions of them, so they are decoded one
    at a time (`filters`)."""
    level: int = MQTT_3_1_1
    identifier: int = 0
    """The Subscription Identifier of all its filters; 0: none."""
    is_bridge: bool = False
    """Of a client that is a bridge: before MQTT 5 its filters are with No Local and Retain As
    Published, which it cannot say."""

    def filters(self) -> Iterator[Requested]:
        """Topic filters and what is asked for, in the client's order.

        Raises:
            RemoteProtocolError: at the first filter that breaks a rule.
        """
        content = Content(self.payload, "SUBSCRIBE")
        while content.left:
            pattern = decode_filter(content.field())
            options = content.byte()
            qos = options & 0x03
            if self.level < MQTT_5:
                if options > 2:
                    raise malformed("MQTT-3-8.3-4", "a requested QoS is not 0, 1 or 2")
                is_own = self.is_bridge and not is_shared_filter(pattern)
                yield Requested(pattern, qos, is_own, is_own)
                continue
            if options & 0xC0:
                raise malformed("MQTT-3.8.3-5", "reserved bits of subscription options are set")
            handling = options >> 4
            if qos > 2 or handling > 2:
                raise RemoteProtocolError(
                    "5.0 part 3.8.3.1", "a subscription option has a value that is none"
                )
            yield Requested(pattern, qos, bool(options & 0x04), bool(options & 0x08), handling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    packet_id: int
    payload: bytes
    """See `Subscribe`."""

    def filters(self) -> Iterator[str]:
        """Topic filters, in the client's order. Raises as those of `Subscribe`."""
        content = Content(self.payload, "UNSUBSCRIBE")
        while content.left:
            yield decode_filter(content.field())


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    reason: int = ReasonCode.SUCCESS
    expiry_seconds: int | None = None
    """What the Session Expiry Interval is from now on; None: as CONNECT said it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticate:
    """A step of enhanced authentication."""

    reason: int
    method: str
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A packet that only servers send, as a client gets it (`bridging/`)."""

    kind: PacketType
    data: bytes
    """Without the fixed header."""


Packet = Connect | Subscribe | Unsubscribe | PingRequest | Disconnect | Authenticate | Answer

# --- fixed header ----------------------------------------------------------------------------

FIXED_FLAGS: Final[Mapping[PacketType, int]] = {
    PacketType.CONNECT: 0,
    PacketType.SUBSCRIBE: 0b0010,  # [MQTT-3.8.1-1]
    PacketType.UNSUBSCRIBE: 0b0010,  # [MQTT-3.10.1-1]
    PacketType.PINGREQ: 0,
    PacketType.DISCONNECT: 0,  # [MQTT-3.14.1-1]
    PacketType.AUTH: 0,  # [MQTT-3.15.1-1]
}
"""Low half of the first byte of the packets that the codec reads (3.1.1 table 2.2)."""


# --- decoding --------------------------------------------------------------------------------

_LEVELS: Final[Mapping[bytes, frozenset[int]]] = {
    b"MQTT": frozenset({MQTT_3_1_1, MQTT_5}),
    b"MQIsdp": frozenset({MQTT_3_1}),
}

_CLEAN: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER: Final = 0x80

DISCONNECT_REASONS: Final = frozenset(
    {0x00, 0x04, *range(0x80, 0x84), 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)
"""What a client may say (5.0 table 3-10)."""
_AUTH_REASONS: Final = frozenset({ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE})
"""What a client may say (5.0 table 3-11)."""


def decode_packet(kind: PacketType, data: bytes, level: int) -> Packet:
    """One packet from a client, without its fixed header. The filters of SUBSCRIBE and UNSUBSCRIBE
    are not looked at yet.

    Args:
        level: of the connection's CONNECT; CONNECT says its own.

    Raises:
        RemoteProtocolError: with the rule that it breaks.
    """
    content = Content(data, kind.name)
    packet = _DECODERS[kind](content, level)
    content.finish()
    return packet


def _decode_connect(content: Content, _level: int) -> Connect:
    name = content.field()
    if name not in _LEVELS:
        raise RemoteProtocolError(
            "MQTT-3.1.2-1",
            "the protocol name is neither MQTT nor MQIsdp",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    level = content.byte()
    is_bridge = bool(level & BRIDGE_BIT) and level != MQTT_5 | BRIDGE_BIT
    if is_bridge:
        level -= BRIDGE_BIT
    if level not in _LEVELS[name]:
        raise RemoteProtocolError(
            "MQTT-3.1.2-2",
            f"protocol level {level} of {name.decode()} is not supported",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            answer=encode_connack(MQTT_3_1_1, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
        )
    try:
        return _decode_connect_fields(content, level, is_bridge=is_bridge)
    except RemoteProtocolError as error:
        if level == MQTT_5 and not error.answer:
            error.answer = encode_connack(level, error.reason)
        raise


def _decode_connect_fields(content: Content, level: int, *, is_bridge: bool) -> Connect:
    flags = content.byte()
    _check_connect_flags(flags, level)
    keep_alive_seconds = content.number(2)
    values = decode_properties(content, OF_CONNECT) if level == MQTT_5 else {}
    client_id = decode_text(content.field(), "the client id")
    clean = bool(flags & _CLEAN)
    if not client_id and ((level == MQTT_3_1_1 and not clean) or level == MQTT_3_1):
        reason = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        raise RemoteProtocolError(
            "MQTT-3.1.3-8",
            "an empty client id without a clean session",
            reason,
            answer=encode_connack(level, reason),
        )
    will = _decode_will(content, flags, level) if flags & _WILL else None
    user = decode_text(content.field(), "the user name") if flags & _USER else None
    password = content.field() if flags & _PASSWORD else None
    content.finish()
    expiry: int | None = values.get(Property.SESSION_EXPIRY_INTERVAL, 0)
    if level < MQTT_5:
        expiry = 0 if clean else None
    method = values.get(Property.AUTHENTICATION_METHOD)
    data = values.get(Property.AUTHENTICATION_DATA)
    if data is not None and method is None:
        raise RemoteProtocolError(
            "5.0 part 3.1.2.11.10", "CONNECT has Authentication Data without a method"
        )
    return Connect(
        level=level,
        client_id=client_id,
        clean=clean,
        expiry_seconds=None if expiry == NEVER else expiry,
        keep_alive_seconds=keep_alive_seconds,
        will=will,
        user=user,
        password=password,
        receive_max=values.get(Property.RECEIVE_MAXIMUM, RECEIVE_MAX),
        packet_bytes_max=values.get(Property.MAXIMUM_PACKET_SIZE),
        alias_max=values.get(Property.TOPIC_ALIAS_MAXIMUM, 0),
        wants_problem_information=bool(values.get(Property.REQUEST_PROBLEM_INFORMATION, 1)),
        wants_response_information=bool(values.get(Property.REQUEST_RESPONSE_INFORMATION, 0)),
        method=method,
        data=data,
        is_bridge=is_bridge
        or any(name == BRIDGE_PROPERTY for name, _ in values.get(Property.USER_PROPERTY, ())),
    )


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 0x01:
        raise malformed("MQTT-3.1.2-3", "the reserved connect flag is set")
    if flags & _WILL_QOS == _WILL_QOS:
        raise malformed("MQTT-3.1.2-14", "the will's QoS is 3")
    if not flags & _WILL and flags & _WILL_QOS:
        raise malformed("MQTT-3.1.2-13", "a will's QoS without a will")
    if not flags & _WILL and flags & _WILL_RETAIN:
        raise malformed("MQTT-3.1.2-15", "a will's RETAIN without a will")
    if level < MQTT_5 and not flags & _USER and flags & _PASSWORD:
        raise malformed("MQTT-3.1.2-22", "a password without a user name")


def _decode_will(content: Content, flags: int, level: int) -> Will:
    values = decode_properties(content, OF_WILL) if level == MQTT_5 else {}
    delay_seconds = values.pop(Property.WILL_DELAY_INTERVAL, 0)
    topic = decode_topic(content.field(), "the will topic")
    return Will(
        topic=topic,
        body=content.field(),
        qos=(flags & _WILL_QOS) >> 3,
        retain=bool(flags & _WILL_RETAIN),
        delay_seconds=delay_seconds,
        properties=encode_block(values),
        expiry_seconds=values.get(Property.MESSAGE_EXPIRY_INTERVAL),
        is_text=values.get(Property.PAYLOAD_FORMAT_INDICATOR) == 1,
    )


def _decode_subscribe(content: Content, level: int) -> Subscribe:
    packet_id = content.packet_id()
    values = decode_properties(content, OF_SUBSCRIBE) if level == MQTT_5 else {}
    if not content.left:
        raise RemoteProtocolError("MQTT-3.8.3-3", "SUBSCRIBE has no topic filter")
    return Subscribe(
        packet_id=packet_id,
        payload=content.rest(),
        level=level,
        identifier=values.get(Property.SUBSCRIPTION_IDENTIFIER, 0),
    )


def _decode_unsubscribe(content: Content, level: int) -> Unsubscribe:
    packet_id = content.packet_id()
    if level == MQTT_5:
        decode_properties(content, OF_UNSUBSCRIBE)
    if not content.left:
        raise RemoteProtocolError("MQTT-3.10.3-2", "UNSUBSCRIBE has no topic filter")
    return Unsubscribe(packet_id=packet_id, payload=content.rest())


def _decode_disconnect(content: Content, level: int) -> Disconnect:
    if level < MQTT_5 or not content.left:
        return Disconnect()
    reason = content.byte()
    if reason not in DISCONNECT_REASONS:
        raise RemoteProtocolError(
            "MQTT-3.14.2-1", f"DISCONNECT with reason code {reason:#04x}, which is none of a client"
        )
    values = decode_properties(content, OF_DISCONNECT) if content.left else {}
    return Disconnect(reason=reason, expiry_seconds=values.get(Property.SESSION_EXPIRY_INTERVAL))


def _decode_auth(content: Content, _level: int) -> Authenticate:
    reason = content.byte() if content.left else int(ReasonCode.SUCCESS)
    values = decode_properties(content, OF_AUTH) if content.left else {}
    method = values.get(Property.AUTHENTICATION_METHOD)
    if reason not in _AUTH_REASONS or method is None:
        raise RemoteProtocolError(
            "MQTT-3.15.2-1", "AUTH without a method, or with a reason code that is none of a client"
        )
    return Authenticate(
        reason=reason, method=method, data=values.get(Property.AUTHENTICATION_DATA, b"")
    )


_DECODERS: Final[Mapping[PacketType, Callable[[Content, int], Packet]]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.PINGREQ: lambda _content, _level: PingRequest(),
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}

# --- encoding --------------------------------------------------------------------------------

_NONE: Final[Mapping[Property, Any]] = {}


def encode_connack(
    level: int,
    reason: ReasonCode,
    *,
    present: bool = False,
    properties: Mapping[Property, Any] = _NONE,
) -> bytes:
    """CONNACK; empty where the client's version has no return code for the reason. Session Present
    is 0 in a refusal [MQTT-3.2.2-4], and always to MQTT 3.1, where that byte is reserved."""
    if present and reason is not ReasonCode.SUCCESS:
        raise LocalProtocolError("a refused CONNECT has no session")
    if level == MQTT_5:
        return _packet(PacketType.CONNACK, bytes((present, reason)), encode_properties(properties))
    code = CONNECT_CODES_3.get(reason)
    if code is None:
        return b""
    return _packet(PacketType.CONNACK, bytes((present and level > MQTT_3_1, code)))


def encode_suback(
    level: int, packet_id: int, codes: Sequence[int], properties: Mapping[Property, Any] = _NONE
) -> bytes:
    """SUBACK: one code per filter, in the filters' order [MQTT-3.8.4-5]."""
    block = encode_properties(properties) if level == MQTT_5 else b""
    return _packet(PacketType.SUBACK, packet_id.to_bytes(2, "big"), block, bytes(codes))


def encode_unsuback(
    level: int, packet_id: int, codes: Sequence[int], properties: Mapping[Property, Any] = _NONE
) -> bytes:
    """UNSUBACK, with the packet id of its UNSUBSCRIBE [MQTT-3.10.4-4]; in MQTT 5 with a reason code
    per filter [MQTT-3.11.3-1]."""
    content = packet_id.to_bytes(2, "big")
    if level < MQTT_5:
        return _packet(PacketType.UNSUBACK, content)
    return _packet(PacketType.UNSUBACK, content, encode_properties(properties), bytes(codes))


def encode_acknowledgement(
    kind: PacketType, packet_id: int, code: int, properties: Mapping[Property, Any]
) -> bytes:
    """PUBACK or PUBREC of MQTT 5 with a reason code and properties. (Those without properties are
    the kernels'.)"""
    content = packet_id.to_bytes(2, "big") + bytes((code,))
    return _packet(kind, content, encode_properties(properties))


def encode_disconnect(reason: ReasonCode, properties: Mapping[Property, Any] = _NONE) -> bytes:
    """DISCONNECT from the server, which only MQTT 5 has."""
    if not properties:
        return _packet(PacketType.DISCONNECT, bytes((reason,)))
    return _packet(PacketType.DISCONNECT, bytes((reason,)), encode_properties(properties))


def encode_auth(reason: ReasonCode, method: str, data: bytes) -> bytes:
    """AUTH from the server: a step of enhanced authentication, or its good end. It has no reason
    string and no user property, which could make it too large [MQTT-3.15.2-2], [MQTT-3.15.2-3]."""
    properties = {Property.AUTHENTICATION_METHOD: method, Property.AUTHENTICATION_DATA: data}
    return _packet(PacketType.AUTH, bytes((reason,)), encode_properties(properties))


def _packet(kind: PacketType, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes((kind << 4,)) + encode_length(len(content)) + content


PING_RESPONSE: Final = _packet(PacketType.PINGRESP)
