"""AMQP's words and the engine's: the only file that knows both (part 7 of ARCHITECTURE.md).

Places. An exchange is a topic, a routing key is a tag; the default exchange's topic is the queue's
name, and `amq.topic` is the root of all topics. A message that was published under another exchange
name than its topic carries that name in the constant property `PMQ_EXCHANGE`, so that it comes back
under it.

Properties. What an AMQP client sent is kept raw, as the per-message property `PMQ_AMQP`, and goes
out as it came. Messages of other protocols get AMQP's properties made from theirs:

    content-type     content_type       KEYS             message_id
    REPLY_TO         reply_to           CORRELATION_ID   correlation_id
    TTL              expiration         CE_<name>        header ce-<name>
    PMQ_*            none: they are the broker's own
    anything else    a header of the same name

What does not fit a short string (255 bytes) becomes a header of RocketMQ's name: nothing is cut.

A message of MQTT 5 keeps its properties raw as well (`PMQ_MQTT5`), and they get the same names:

    Content Type     content_type     Correlation Data          correlation_id; a header of bytes if
    Response Topic   reply_to                                   it is no text, or longer
    Message Expiry   expiration       Payload Format Indicator  header mqtt-payload-format
    User Property    a header of the same name; of several values an array, in their order
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from polymq.broker.port import (
    ADDED_BY_CLIENTS,
    COPIES_PROPERTY,
    DEATH_PROPERTY,
    EXCHANGE_PROPERTY,
    LONG_CONSTANT,
    MQTT5_PROPERTY,
    PAYLOAD_FORMAT_NAME,
    TTL_PROPERTY,
    Message,
    MqttContent,
    Reason,
    Refused,
    Route,
    RunMeta,
    correlation_text,
    exchange_and_key,
    history_of,
    read_mqtt_content,
    reply_address,
    ttl_property,
)
from polymq.gateways.amqp.added_headers import DELIVERY_COUNT, death_headers, with_headers
from polymq.gateways.amqp.errors import Malformed, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.tables import Buffer, Long, encode_sized_table

EXTRA_NAME: Final = "PMQ_AMQP"
"""The per-message property that keeps AMQP's own properties, in base64."""
ORIGIN_PROPERTY: Final = "PMQ_PROTO"

CONSTANT_ORIGINS: Final = frozenset({"amqp", "mqtt"})
"""Gateways whose messages have all their properties in the constant part (beside `PMQ_AMQP`).
Others keep properties in each message, which have to be read one by one; so do messages of MQTT 5
that have any (`mqtt5`)."""

CACHE_KEY: Final = "amqp"
SHORT_BYTES_MAX: Final = 255

# Property flags of class basic (AMQP 4.2.6.1).
CONTENT_TYPE: Final = 1 << 15
CONTENT_ENCODING: Final = 1 << 14
HEADERS: Final = 1 << 13
DELIVERY_MODE: Final = 1 << 12
PRIORITY: Final = 1 << 11
CORRELATION_ID: Final = 1 << 10
REPLY_TO: Final = 1 << 9
EXPIRATION: Final = 1 << 8
MESSAGE_ID: Final = 1 << 7
USER_ID: Final = 1 << 4
# Kinds of the properties of bits 15 to 2: s short string, t table, b octet, q u64.
_KINDS: Final = "sstbbssssqssss"

# In the order of the wire.
_TRANSLATED: Final = (
    (CONTENT_TYPE, "content-type"),
    (CORRELATION_ID, "CORRELATION_ID"),
    (REPLY_TO, "REPLY_TO"),
    (EXPIRATION, "TTL"),
    (MESSAGE_ID, "KEYS"),
)
_NO_HEADERS: Final = ADDED_BY_CLIENTS | {"CE_datacontenttype"}
"""What RocketMQ clients add to every message for themselves, and what has a property of its own."""

_REPLY_CODES: Final[Mapping[Reason, ReplyCode]] = {
    Reason.NOT_FOUND: ReplyCode.NOT_FOUND,
    Reason.DIFFERENT: ReplyCode.PRECONDITION_FAILED,
    Reason.LOCKED: ReplyCode.RESOURCE_LOCKED,
    Reason.IN_USE: ReplyCode.PRECONDITION_FAILED,
    Reason.NOT_EMPTY: ReplyCode.PRECONDITION_FAILED,
    Reason.FORBIDDEN: ReplyCode.ACCESS_REFUSED,
    Reason.NOT_AUTHENTICATED: ReplyCode.ACCESS_REFUSED,
    Reason.BAD_NAME: ReplyCode.PRECONDITION_FAILED,
    Reason.BAD_ARGUMENT: ReplyCode.PRECONDITION_FAILED,
    # RabbitMQ's choice; 311 is in the specification only.
    Reason.TOO_LARGE: ReplyCode.PRECONDITION_FAILED,
    Reason.LIMIT: ReplyCode.PRECONDITION_FAILED,
    Reason.BANNED: ReplyCode.ACCESS_REFUSED,
    Reason.RATE: ReplyCode.PRECONDITION_FAILED,
    Reason.UNDECIDED: ReplyCode.ACCESS_REFUSED,
    Reason.READ_ONLY: ReplyCode.RESOURCE_ERROR,
    Reason.STORAGE_FULL: ReplyCode.RESOURCE_ERROR,
}
_CONNECTION_CODES: Final = frozenset({ReplyCode.RESOURCE_ERROR})
"""Of those, the ones that close the connection (AMQP 1.2); the others close the channel."""

OUR_FAULT: Final = frozenset({Reason.READ_ONLY, Reason.STORAGE_FULL, Reason.LIMIT})
"""Refused publishes that a confirm answers with nack: the message was in order."""

CONSUMER_TIMEOUT: Final = "x-consumer-timeout"
TIMEOUT_MS_MAX: Final = 0xFFFF_FFFF - 1
_REFUSED_CONSUMER_ARGUMENTS: Final = frozenset({"x-stream-offset", "x-stream-filter"})
"""To take them and do nothing would show messages that nobody asked for."""
_QUEUE_TYPES: Final = ("classic", "quorum")


# --- refusals --------------------------------------------------------------------------------


def refusal(error: Refused, kind: type[Method], channel: int) -> RemoteProtocolError:
    """The engine's refusal as AMQP's error."""
    code = _REPLY_CODES[error.reason]
    return RemoteProtocolError(
        code,
        error.text,
        channel=0 if code in _CONNECTION_CODES else channel,
        class_id=kind.CLASS_ID,
        method_id=kind.METHOD_ID,
    )


# --- names -----------------------------------------------------------------------------------


def exchange_and_key_of(raw: bytes) -> tuple[str, str]:
    """Exchange and routing key of two short strings, as a publish has them.

    Raises:
        Malformed: the exchange's name is not UTF-8. A routing key may hold any octets.
    """
    size = raw[0]
    try:
        exchange = raw[1 : 1 + size].decode()
    except UnicodeDecodeError:
        raise Malformed("exchange of basic.publish is not UTF-8") from None
    return exchange, raw[2 + size :].decode("utf-8", "surrogateescape")


def template_properties(
    route: Route, exchange: str, ttl: bytes = b"", *, long: bool = False
) -> dict[str, str]:
    """The constant properties of messages published to `exchange` on this route.

    Args:
        ttl: the value of `port.TTL_PROPERTY`, or empty.
        long: their own properties stand in front of their bodies (`long_properties.py`).
    """
    properties = {ORIGIN_PROPERTY: "amqp"}
    if long:
        properties |= LONG_CONSTANT
    if ttl:
        properties[TTL_PROPERTY] = ttl.decode()
    if exchange != route.topic:
        properties[EXCHANGE_PROPERTY] = exchange
    return properties


def names_of(meta: RunMeta) -> tuple[str, str]:
    """Exchange and routing key that a client sees: the inverse of `ExchangePort.route`."""
    return exchange_and_key(meta.topic, meta.tag, meta.properties)


def strip_name(name: str) -> str:
    """A declared name without line ends, as RabbitMQ takes it."""
    return name.replace("\r", "").replace("\n", "")


def short_bytes(text: str) -> bytes:
    """A short string for a name of any length: one that does not fit becomes `|h` and a hash."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > SHORT_BYTES_MAX:
        raw = b"|h" + hashlib.sha256(raw).hexdigest().encode("ascii")
    return bytes((len(raw),)) + raw


# --- properties ------------------------------------------------------------------------------


def delivery_form(meta: RunMeta) -> tuple[bool, bytes, bytes]:
    """What the deliveries of a run have in common, cached in the meta: whether a kernel may encode
    them, exchange and routing key as two short strings, and the properties of messages that have
    none of their own."""
    cached: tuple[bool, bytes, bytes] | None = meta.cache.get(CACHE_KEY)
    if cached is None:
        exchange, routing_key = names_of(meta)
        address = short_bytes(exchange) + short_bytes(routing_key)
        cached = is_uniform(meta), address, translate_properties(meta.properties)
        meta.cache[CACHE_KEY] = cached
    return cached


def message_properties(message: Message, delivery_count: int = 0) -> bytes:
    """AMQP's properties of one message of any origin, with what the broker adds: a dead letter's
    history, and how often the message was given back."""
    stored = message.properties.get(EXTRA_NAME)
    if stored is not None:
        raw = base64.b64decode(stored, validate=True)
    else:
        raw = translate_properties(message.properties)
    if delivery_count:
        raw = with_headers(raw, {DELIVERY_COUNT: Long(delivery_count)})
    history = history_of(message.properties)
    if not history.deaths:
        return raw
    expiration = read_property(raw, EXPIRATION)
    text = None if expiration is None else expiration.decode("utf-8", "surrogateescape")
    # A dead letter that did not go by `CC` does not show it, as in RabbitMQ.
    removed = ("CC",) if stored is not None and COPIES_PROPERTY not in message.properties else ()
    return with_headers(raw, death_headers(history, text), removed=removed, keep_expiration=False)


def is_uniform(meta: RunMeta) -> bool:
    """Whether a kernel may encode a run's deliveries: no message needs to be looked at."""
    properties = meta.properties
    if meta.long or DEATH_PROPERTY in properties:
        return False
    return properties.get(ORIGIN_PROPERTY) in CONSTANT_ORIGINS


def translate_properties(properties: Mapping[str, str]) -> bytes:
    """Property flags and properties made from RocketMQ's names, or from those of MQTT 5."""
    packed = properties.get(MQTT5_PROPERTY)
    content = None if packed is None else read_mqtt_content(packed)
    named: Mapping[str, Any] = properties
    if content is not None:
        named = {**properties, **_named_values(content)}
    flags = DELIVERY_MODE
    values: dict[int, bytes] = {DELIVERY_MODE: b"\x02"}
    taken: set[str] = set()
    for flag, name in _TRANSLATED:
        value = named.get(name)
        if not isinstance(value, str) or (flag == EXPIRATION and not _is_expiration(value)):
            continue
        raw = value.encode("utf-8", "surrogateescape")
        if len(raw) <= SHORT_BYTES_MAX:
            flags |= flag
            values[flag] = bytes((len(raw),)) + raw
            taken.add(name)
    headers = {} if content is None else _user_headers(content)
    headers |= {
        _header_name(name): value
        for name, value in named.items()
        if name not in taken and _is_header(name)
    }
    if headers:
        flags |= HEADERS
        values[HEADERS] = encode_sized_table(headers)
    ordered = (values[1 << bit] for bit in range(15, 1, -1) if flags & 1 << bit)
    return struct.pack(">H", flags) + b"".join(ordered)


def _named_values(content: MqttContent) -> dict[str, Any]:
    """Properties of MQTT 5 by RocketMQ's names; Correlation Data that no short string can hold, as
    bytes."""
    text = correlation_text(content)
    is_short = text is not None and len(text.encode()) <= SHORT_BYTES_MAX
    topic, seconds = content.response_topic, content.expiry_seconds
    named = {
        "content-type": content.content_type,
        "CORRELATION_ID": text if is_short else content.correlation_data,
        "REPLY_TO": None if topic is None else reply_address(topic),
        "TTL": None if seconds is None else str(seconds * 1000),
        PAYLOAD_FORMAT_NAME: content.payload_format,
    }
    return {name: value for name, value in named.items() if value is not None}


def _user_headers(content: MqttContent) -> dict[str, Any]:
    """User properties as headers: of several with one name an array, in their order. Those whose
    names no header can have are left out."""
    headers: dict[str, Any] = {}
    for name, value in content.user_properties:
        if not 0 < len(name.encode()) <= SHORT_BYTES_MAX:
            continue
        known = headers.get(name)
        if known is None:
            headers[name] = value
        elif isinstance(known, list):
            known.append(value)
        else:
            headers[name] = [known, value]
    return headers


def _is_header(name: str) -> bool:
    if name.startswith(("PMQ_", "__")) or name in _NO_HEADERS:
        return False
    return 0 < len(name.encode("utf-8", "surrogateescape")) <= SHORT_BYTES_MAX


def _header_name(name: str) -> str:
    return f"ce-{name[3:]}" if name.startswith("CE_") else name


def _is_expiration(value: str) -> bool:
    return value.isascii() and value.isdigit()


def read_priority(raw: Buffer) -> int:
    """The priority of well-formed properties; 0 where it is absent."""
    at = 2
    flags = int.from_bytes(raw[:2], "big")
    if not flags & PRIORITY:
        return 0
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + raw[at]
    if flags & HEADERS:
        at += 4 + int.from_bytes(raw[at : at + 4], "big")
    return raw[at + 1 if flags & DELIVERY_MODE else at]


def headers_span(raw: Buffer) -> tuple[int, int]:
    """Where the pairs of the headers stand in well-formed properties: [start, end)."""
    at = 2
    flags = int.from_bytes(raw[:2], "big")
    if not flags & HEADERS:
        return at, at
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + raw[at]
    return at + 4, at + 4 + int.from_bytes(raw[at : at + 4], "big")


def read_property(raw: Buffer, flag: int) -> bytes | None:
    """One short string of well-formed properties, or None where it is absent."""
    span = property_span(raw, flag)
    return None if span is None else bytes(raw[span[0] + 1 : span[1]])


def property_span(raw: Buffer, flag: int) -> tuple[int, int] | None:
    """Where a short string of well-formed properties stands, its size octet included: [start, end);
    None where it is absent."""
    flags = int.from_bytes(raw[:2], "big")
    if not flags & flag:
        return None
    at = 2
    for index, kind in enumerate(_KINDS):
        bit = 0x8000 >> index
        if bit == flag:
            return at, at + 1 + raw[at]
        if flags & bit:
            if kind == "s":
                at += 1 + raw[at]
            elif kind == "t":
                at += 4 + int.from_bytes(raw[at : at + 4], "big")
            else:
                at += 1 if kind == "b" else 8
    raise AssertionError(flag)


def check_properties(raw: Buffer, user: str) -> bytes:
    """Look at the properties of a publish that the broker answers for.

    Returns:
        How long the message lives and how important it is (`port.ttl_property`); empty for ever
        and not at all.

    Raises:
        Refused: a user-id that is not the connection's user, an expiration that is no number.
    """
    claimed = read_property(raw, USER_ID)
    if claimed is not None and claimed != user.encode("utf-8", "surrogateescape"):
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"user_id property set to '{claimed.decode('utf-8', 'replace')}' but authenticated "
            f"user was '{user}'",
        )
    priority = read_priority(raw)
    expiration = read_property(raw, EXPIRATION)
    if expiration is None:
        return ttl_property(None, priority).encode() if priority else b""
    if not _is_expiration(expiration.decode("latin-1")):
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"invalid expiration '{expiration.decode('utf-8', 'replace')}': it is a number of "
            "milliseconds, as text",
        )
    return ttl_property(int(expiration), priority).encode()


# --- arguments -------------------------------------------------------------------------------


def queue_arguments(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of queue.declare for the engine. Raises Refused."""
    kind = table.get("x-queue-type", "classic")
    if kind not in _QUEUE_TYPES:
        raise Refused(
            Reason.BAD_ARGUMENT, f"x-queue-type '{kind}' is not one of {', '.join(_QUEUE_TYPES)}"
        )
    return _stored_arguments(table)


def exchange_arguments(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of exchange.declare for the engine."""
    return _stored_arguments(table)


def binding_arguments(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a binding for the engine, which compares them and knows all types."""
    return table


def consumer_priority(table: Mapping[str, Any]) -> int:
    """The priority that the arguments of basic.consume ask for; 0 if none. Raises Refused."""
    for name in table:
        if name in _REFUSED_CONSUMER_ARGUMENTS:
            raise Refused(Reason.BAD_ARGUMENT, f"argument '{name}' is not supported: leave it out")
    priority = table.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise Refused(
            Reason.BAD_ARGUMENT, f"invalid arg 'x-priority': a whole number, not {priority!r}"
        )
    return priority


def consumer_timeout(table: Mapping[str, Any]) -> int | None:
    """How many milliseconds a consumer may keep a message, by the arguments of basic.consume or of
    its queue; None if they do not say. Raises Refused."""
    timeout = table.get(CONSUMER_TIMEOUT)
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 1:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"invalid arg '{CONSUMER_TIMEOUT}': a number of milliseconds, not {timeout!r}",
        )
    return min(timeout, TIMEOUT_MS_MAX)


def _stored_arguments(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: _stored(value) for name, value in table.items()}


def _stored(value: Any) -> Any:
    """The value as the broker's state has it: decimal numbers, and bytes that are no UTF-8, as
    text. No argument that means anything has such a value. Depth is bounded by the table."""
    if isinstance(value, Mapping):
        return {name: _stored(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    return value
