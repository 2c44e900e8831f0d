"""Properties of a PUBLISH of MQTT 5: those that a message of MQTT 5 came with, for readers of other
protocols, and those that a subscriber of MQTT 5 gets for a message of another protocol. Pure, and
bounded on both ways. `docs/properties.md` has the table of what becomes what.

Layout (MQTT 5.0, 2.2.2): an identifier of one byte, then its value, again and again. The bytes are
those behind the Property Length, which has no place in them.

Rules:

* Reading takes the bytes as they are. An identifier that a PUBLISH cannot have, a value that breaks
  off, or too many user properties end it: what was found until there counts.
* What is written is well-formed. Characters that a receiver may close its connection for
  [MQTT-1.5.4-1, MQTT-1.5.4-2, part 1.5.4] are percent-encoded: a message that a subscriber does not
  survive would come again and again. What is too long is left out whole, never cut.
* CloudEvents follow their binding to MQTT 5 (CloudEvents 1.0.2, MQTT protocol binding, binary
  mode): attributes are user properties without a prefix, and `datacontenttype` is the Content Type.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from polymq.broker.messages.amqp_content import (
    AMQP_PROPERTY,
    CLOUD_EVENT_PREFIXES,
    AmqpContent,
    read_amqp_content,
)
from polymq.broker.messages.byte_reader import ByteReader, TooShort
from polymq.broker.messages.dead_letter_history import DEATH_PROPERTY
from polymq.broker.messages.record_header import ADDED_BY_CLIENTS
from polymq.broker.messages.time_to_live import ttl_of

MQTT5_PROPERTY: Final = "PMQ_MQTT5"
"""Per-message property: the property block of a PUBLISH as it came, in base64."""

USER_PROPERTIES_MAX: Final = 256
"""User properties of one message that are read or written; as many as headers of AMQP. What stands
behind them in a block reaches subscribers of MQTT 5 only, who get the block as it came."""
MEDIA_TYPE_MAX: Final = 1_024
"""Characters of a media type whose parameters are looked at."""
BLOCK_BYTES_MAX: Final = 32 * 1024
"""Of a block that is written: as much as properties may have in a record."""
TEXT_BYTES_MAX: Final = 65_535
"""Of text and of binary data (MQTT 5.0, 1.5.4 and 1.5.6): the size is two bytes."""

_PAYLOAD_FORMAT: Final = 0x01
_EXPIRY: Final = 0x02
_CONTENT_TYPE: Final = 0x03
_RESPONSE_TOPIC: Final = 0x08
_CORRELATION_DATA: Final = 0x09
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B
_TOPIC_ALIAS: Final = 0x23
_USER_PROPERTY: Final = 0x26

EXPIRY_SECONDS_MAX: Final = 0xFFFF_FFFF


@dataclass(slots=True)
class MqttContent:
    """What a PUBLISH says of its message, but for what belongs to one connection (Topic Alias,
    Subscription Identifier).

    Attributes:
        payload_format: 1: the payload is UTF-8; 0: it is bytes.
        expiry_seconds: Message Expiry Interval.
        user_properties: (name, value) in their order. Names may repeat.
    """

    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    expiry_seconds: int | None = None
    user_properties: list[tuple[str, str]] = field(default_factory=list)


# --- reading ----------------------------------------------------------------------------------


def read_mqtt_content(packed: str) -> MqttContent:
    """Read the value of `PMQ_MQTT5`. Never fails: it was checked when it was stored, and whatever
    it is now, a reader gets the message."""
    try:
        return read_block(b64decode(packed))
    except (binascii.Error, ValueError):
        return MqttContent()


def read_block(raw: bytes) -> MqttContent:
    """Read a property block. Never fails."""
    found = MqttContent()
    reader = ByteReader(raw)
    try:
        while not reader.ended:
            identifier = reader.number(1)
            if identifier == _USER_PROPERTY:
                if len(found.user_properties) == USER_PROPERTIES_MAX:
                    break
                found.user_properties.append((_text(reader), _text(reader)))
                continue
            name, read = _VALUES[identifier]
            value = read(reader)
            if name:
                setattr(found, name, value)
    except (KeyError, TooShort):
        pass
    return found


def _text(reader: ByteReader) -> str:
    return reader.sized(2).decode("utf-8", "replace")


def _skip_variable(reader: ByteReader) -> None:
    for _ in range(4):
        if reader.number(1) < 0x80:
            return
    raise TooShort


_VALUES: Final[Mapping[int, tuple[str, Callable[[ByteReader], Any]]]] = {
    _PAYLOAD_FORMAT: ("payload_format", lambda reader: reader.number(1)),
    _EXPIRY: ("expiry_seconds", lambda reader: reader.number(4)),
    _CONTENT_TYPE: ("content_type", _text),
    _RESPONSE_TOPIC: ("response_topic", _text),
    _CORRELATION_DATA: ("correlation_data", lambda reader: reader.sized(2)),
    _SUBSCRIPTION_IDENTIFIER: ("", _skip_variable),
    _TOPIC_ALIAS: ("", lambda reader: reader.number(2)),
}
"""Attribute of `MqttContent`, or none, and how the value is read (MQTT 5.0, table 2-4)."""


def unique_user_properties(content: MqttContent) -> dict[str, str]:
    """User properties by name, for readers that have one value for each: the first of equal names
    counts, as everywhere in a record."""
    found: dict[str, str] = {}
    for name, value in content.user_properties:
        found.setdefault(name, value)
    return found


def correlation_text(content: MqttContent) -> str | None:
    """Correlation Data as text; None if there are none, or they are no UTF-8."""
    try:
        return None if content.correlation_data is None else content.correlation_data.decode()
    except UnicodeDecodeError:
        return None


_SWAPPED: Final = str.maketrans("./", "/.")


def reply_address(response_topic: str) -> str:
    """A Response Topic as other protocols address it. One of several levels is the routing key of
    `amq.topic` and RocketMQ's topic and tag; one of a single level is the name of a queue or topic.
    """
    return response_topic.translate(_SWAPPED) if "/" in response_topic else response_topic


# --- writing ----------------------------------------------------------------------------------


def write_block(content: MqttContent) -> bytes:
    """A property block with these values: User Properties last, and of them what fits."""
    block = bytearray()
    if content.payload_format is not None:
        block += bytes((_PAYLOAD_FORMAT, content.payload_format))
    if content.expiry_seconds is not None:
        block.append(_EXPIRY)
        block += content.expiry_seconds.to_bytes(4, "big")
    for identifier, text in (
        (_CONTENT_TYPE, content.content_type),
        (_RESPONSE_TOPIC, content.response_topic),
    ):
        if text is not None:
            _add(block, identifier, text_bytes(text))
    if content.correlation_data is not None:
        _add(block, _CORRELATION_DATA, content.correlation_data)
    for name, value in content.user_properties[:USER_PROPERTIES_MAX]:
        _add(block, _USER_PROPERTY, text_bytes(name), text_bytes(value))
    return bytes(block)


def _add(block: bytearray, identifier: int, *values: bytes) -> None:
    """Add a property if there is room for all of it."""
    size = 1 + sum([2 + len(value) for value in values])
    if len(block) + size > BLOCK_BYTES_MAX or max(map(len, values)) > TEXT_BYTES_MAX:
        return
    block.append(identifier)
    for value in values:
        block += len(value).to_bytes(2, "big") + value


_NOT_ALLOWED: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0xD800, 0xE000),
    *range(0xFDD0, 0xFDF0),
    *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF)),
)
"""Control characters, bytes that were no UTF-8 (surrogates), and noncharacters."""


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"%{code & 0xFF:02X}"
    return quote(chr(code), errors="replace")


_ESCAPES: Final = {code: _escape(code) for code in _NOT_ALLOWED}


def text_bytes(text: str) -> bytes:
    """Text as MQTT allows it, encoded; other characters as in URLs: U+0000 is `%00`."""
    if not text.isprintable():  # what is allowed and not printable (spaces) stays all the same
        text = text.translate(_ESCAPES)
    return text.encode()


# --- messages of other protocols --------------------------------------------------------------


CORRELATION_BASE64: Final = "CORRELATION_ID_BASE64"
"""Property: a correlation id that is no text, for RocketMQ's clients and from them."""
PAYLOAD_FORMAT_NAME: Final = "mqtt-payload-format"
"""What the Payload Format Indicator is called where it has no counterpart."""
DIRECT_REPLY: Final = "amq.rabbitmq.reply-to"
"""What the names of AMQP's consumers of answers begin with: no topic leads to them."""
_CE_PREFIX: Final = "CE_"
_CE_CONTENT_TYPES: Final = ("CE_datacontenttype", "CE_contenttype", "CE_contentType")
_STRUCTURED_JSON: Final = "structured-json"
_CLOUD_EVENT: Final = "application/cloudevents+json"
_OWN_PROPERTIES: Final = frozenset(
    {*_CE_CONTENT_TYPES, "content-type", "CORRELATION_ID", CORRELATION_BASE64, "REPLY_TO", "TTL"}
)
"""Of RocketMQ's names, those that have a property of MQTT 5."""
_NO_TOPIC_NAME: Final = frozenset("+#|").union(map(chr, _NOT_ALLOWED))
_UTF8: Final = ("utf-8", "utf8")


def mqtt_block(properties: Mapping[str, str], *, expiry_seconds: int | None = None) -> bytes:
    """The property block that an MQTT 5 subscriber gets for a message that came by another
    protocol.

    Args:
        properties: all of the message's, by RocketMQ's names.
        expiry_seconds: what is left of its time to live (`expiry_seconds_left`).
    """
    amqp = AmqpContent()
    if AMQP_PROPERTY in properties:
        amqp = read_amqp_content(properties[AMQP_PROPERTY])
    content = MqttContent(expiry_seconds=expiry_seconds)
    content.content_type = _content_type(properties, amqp)
    if _is_utf8(properties, content.content_type):
        content.payload_format = 1
    content.correlation_data = _correlation_data(properties, amqp)
    content.user_properties = _user_properties(properties, amqp)
    reply_to = properties.get("REPLY_TO")
    topic = amqp.reply_to if reply_to is None else reply_to.translate(_SWAPPED)
    if topic is not None and _is_topic_name(topic, of_queue=reply_to is None):
        content.response_topic = topic
    elif topic is not None:
        content.user_properties.insert(0, ("REPLY_TO", reply_to or topic))
    return write_block(content)


def expiry_seconds_left(properties: Mapping[str, str], waited_ms: int) -> int | None:
    """Message Expiry Interval of a message that has waited so long; None if it does not expire.

    The interval is rounded up to seconds, and whole seconds of waiting are taken off
    [MQTT-3.3.2-6]. It is at least 1: what has expired is not sent, and that is not decided here.
    """
    if DEATH_PROPERTY in properties:
        return None  # A dead letter does not expire any more.
    code, _ = ttl_of(properties)
    ttl_ms = code - 1
    if not code:
        text = properties.get("TTL", "")
        if not (text.isascii() and text.isdigit() and len(text) <= len("4294967295000")):
            return None
        ttl_ms = int(text)
    left = -(-ttl_ms // 1000) - waited_ms // 1000
    return min(max(left, 1), EXPIRY_SECONDS_MAX)


def _content_type(properties: Mapping[str, str], amqp: AmqpContent) -> str | None:
    for name in ("content-type", *_CE_CONTENT_TYPES):
        if properties.get(name):
            return properties[name]
    return amqp.content_type or None


def _is_utf8(properties: Mapping[str, str], content_type: str | None) -> bool:
    """Whether the message says that its body is UTF-8 text. Nobody looks at the body."""
    if properties.get("PMQ_CE_MODE") == _STRUCTURED_JSON:
        return True
    if content_type is None or len(content_type) > MEDIA_TYPE_MAX:
        return False
    media_type, *parameters = content_type.lower().split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charset = next(
        (value.strip(' \t"') for name, _, value in pairs if name.strip() == "charset"), ""
    )
    if media_type.strip() == _CLOUD_EVENT:
        return charset in ("", *_UTF8)
    return media_type.strip().startswith("text/") and charset in _UTF8


def _correlation_data(properties: Mapping[str, str], amqp: AmqpContent) -> bytes | None:
    text = properties.get("CORRELATION_ID", amqp.correlation_id)
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    try:
        return b64decode(properties[CORRELATION_BASE64], validate=True)
    except (KeyError, ValueError):  # binascii.Error is one
        return None


def _is_topic_name(name: str, *, of_queue: bool) -> bool:
    """Whether answers to this name can be published over MQTT [MQTT-3.3.2-14].

    Args:
        of_queue: it is the name of an AMQP queue, which is one level: a `/` would cut it.
    """
    if not name or name.startswith(("$", DIRECT_REPLY)) or (of_queue and "/" in name):
        return False
    return _NO_TOPIC_NAME.isdisjoint(name) and len(name.encode()) <= TEXT_BYTES_MAX


def _user_properties(properties: Mapping[str, str], amqp: AmqpContent) -> list[tuple[str, str]]:
    """What has no property of its own: attributes of an event without their prefix, user properties
    and headers under their names, AMQP's other properties as `amqp.<name>`."""
    found: dict[str, str] = {}
    for name, value in properties.items():
        if len(found) == USER_PROPERTIES_MAX:
            break
        if name.startswith(_CE_PREFIX) and name not in _OWN_PROPERTIES:
            found[name.removeprefix(_CE_PREFIX)] = value
    for name, value in properties.items():
        if len(found) == USER_PROPERTIES_MAX:
            break
        if name.startswith((_CE_PREFIX, "PMQ_", "__")) or name in ADDED_BY_CLIENTS:
            continue
        if name not in _OWN_PROPERTIES and not (name == "KEYS" and value == found.get("id")):
            found.setdefault(name, value)
    if amqp.message_id is not None:
        found.setdefault("KEYS", amqp.message_id)
    for name, value in event_headers(amqp).items():
        found.setdefault(name, value)
    for name, value in amqp.others.items():
        found.setdefault(f"amqp.{name}", value)
    return list(found.items())


def event_headers(amqp: AmqpContent) -> dict[str, str]:
    """The headers of an AMQP message; where they are the attributes of a CloudEvent, these without
    their prefix."""
    headers = amqp.headers
    prefix = next(
        (prefix for prefix in CLOUD_EVENT_PREFIXES if prefix + "specversion" in headers), None
    )
    if prefix is None:
        return headers
    made = {
        name.removeprefix(prefix): value
        for name, value in headers.items()
        if name.startswith(prefix) and name != prefix + "datacontenttype"
    }
    for name, value in headers.items():
        if not name.startswith(prefix):
            made.setdefault(name, value)
    return made
