"""The properties of MQTT 5 as a table, and their codec (5.0 part 2.2.2).

Properties of PUBLISH and of acknowledgements do not come here: the kernels look at them, and leave
them as they are. What the table does not allow closes the connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from polymq.gateways.mqtt.errors import RemoteProtocolError, malformed
from polymq.gateways.mqtt.fields import (
    Content,
    decode_text,
    decode_topic,
    encode_field,
    encode_length,
)


class Property(enum.IntEnum):
    """5.0 table 2-4."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class _Kind(enum.Enum):
    """How a value is written (5.0 part 1.5)."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    LENGTH = 5
    TEXT = 6
    BINARY = 7
    PAIR = 8


_KINDS: Final[Mapping[Property, _Kind]] = {
    Property.PAYLOAD_FORMAT_INDICATOR: _Kind.BYTE,
    Property.MESSAGE_EXPIRY_INTERVAL: _Kind.FOUR_BYTES,
    Property.CONTENT_TYPE: _Kind.TEXT,
    Property.RESPONSE_TOPIC: _Kind.TEXT,
    Property.CORRELATION_DATA: _Kind.BINARY,
    Property.SUBSCRIPTION_IDENTIFIER: _Kind.LENGTH,
    Property.SESSION_EXPIRY_INTERVAL: _Kind.FOUR_BYTES,
    Property.ASSIGNED_CLIENT_IDENTIFIER: _Kind.TEXT,
    Property.SERVER_KEEP_ALIVE: _Kind.TWO_BYTES,
    Property.AUTHENTICATION_METHOD: _Kind.TEXT,
    Property.AUTHENTICATION_DATA: _Kind.BINARY,
    Property.REQUEST_PROBLEM_INFORMATION: _Kind.BYTE,
    Property.WILL_DELAY_INTERVAL: _Kind.FOUR_BYTES,
    Property.REQUEST_RESPONSE_INFORMATION: _Kind.BYTE,
    Property.RESPONSE_INFORMATION: _Kind.TEXT,
    Property.SERVER_REFERENCE: _Kind.TEXT,
    Property.REASON_STRING: _Kind.TEXT,
    Property.RECEIVE_MAXIMUM: _Kind.TWO_BYTES,
    Property.TOPIC_ALIAS_MAXIMUM: _Kind.TWO_BYTES,
    Property.TOPIC_ALIAS: _Kind.TWO_BYTES,
    Property.MAXIMUM_QOS: _Kind.BYTE,
    Property.RETAIN_AVAILABLE: _Kind.BYTE,
    Property.USER_PROPERTY: _Kind.PAIR,
    Property.MAXIMUM_PACKET_SIZE: _Kind.FOUR_BYTES,
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: _Kind.BYTE,
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _Kind.BYTE,
    Property.SHARED_SUBSCRIPTION_AVAILABLE: _Kind.BYTE,
}

# What a client may send in each packet (5.0 parts 3.1.2.11, 3.1.3.2, 3.8.2.1 and so on).
OF_CONNECT: Final = frozenset(
    {
        Property.SESSION_EXPIRY_INTERVAL,
        Property.AUTHENTICATION_METHOD,
        Property.AUTHENTICATION_DATA,
        Property.REQUEST_PROBLEM_INFORMATION,
        Property.REQUEST_RESPONSE_INFORMATION,
        Property.RECEIVE_MAXIMUM,
        Property.TOPIC_ALIAS_MAXIMUM,
        Property.USER_PROPERTY,
        Property.MAXIMUM_PACKET_SIZE,
    }
)
OF_WILL: Final = frozenset(
    {
        Property.WILL_DELAY_INTERVAL,
        Property.PAYLOAD_FORMAT_INDICATOR,
        Property.MESSAGE_EXPIRY_INTERVAL,
        Property.CONTENT_TYPE,
        Property.RESPONSE_TOPIC,
        Property.CORRELATION_DATA,
        Property.USER_PROPERTY,
    }
)
OF_SUBSCRIBE: Final = frozenset({Property.SUBSCRIPTION_IDENTIFIER, Property.USER_PROPERTY})
OF_UNSUBSCRIBE: Final = frozenset({Property.USER_PROPERTY})
OF_DISCONNECT: Final = frozenset(
    {Property.SESSION_EXPIRY_INTERVAL, Property.REASON_STRING, Property.USER_PROPERTY}
)
"""Server Reference is the server's alone (5.0 part 3.14.2.2.5)."""
OF_AUTH: Final = frozenset(
    {
        Property.AUTHENTICATION_METHOD,
        Property.AUTHENTICATION_DATA,
        Property.REASON_STRING,
        Property.USER_PROPERTY,
    }
)

_SWITCHES: Final = frozenset(
    {
        Property.PAYLOAD_FORMAT_INDICATOR,
        Property.REQUEST_PROBLEM_INFORMATION,
        Property.REQUEST_RESPONSE_INFORMATION,
    }
)
"""Bytes that are 0 or 1; anything else is a protocol error."""
_NEVER_0: Final = frozenset(
    {
        Property.RECEIVE_MAXIMUM,
        Property.MAXIMUM_PACKET_SIZE,
        Property.SUBSCRIPTION_IDENTIFIER,
    }
)
"""Numbers of which 0 is a protocol error (5.0 parts 3.1.2.11.3, 3.1.2.11.4, 3.8.2.1.2)."""

Values = dict[Property, Any]
"""The values by property: numbers, text, bytes; of user properties the list of all pairs."""


def decode_properties(content: Content, allowed: frozenset[Property]) -> Values:
    """A property length and the properties that follow it.

    Raises:
        RemoteProtocolError: one that may not stand here, or stands here twice; a value that is
            none.
    """
    block = content.part(content.length())
    values: Values = {}
    while block.left:
        name = _name(block, allowed)
        if name is Property.USER_PROPERTY:
            values.setdefault(name, []).append(_READERS[_Kind.PAIR](block, name))
            continue
        if name in values:
            raise RemoteProtocolError(
                "5.0 part 2.2.2.2", f"{content.name} has {_shown(name)} more than once"
            )
        value = _READERS[_KINDS[name]](block, name)
        if (name in _SWITCHES and value > 1) or (name in _NEVER_0 and value == 0):
            raise RemoteProtocolError("5.0 part 2.2.2.2", f"{_shown(name)} must not be {value}")
        if name is Property.RESPONSE_TOPIC:
            decode_topic(value.encode(), "the response topic")
        values[name] = value
    return values


def _name(block: Content, allowed: frozenset[Property]) -> Property:
    identifier = block.length()
    try:
        name = Property(identifier)
    except ValueError as error:
        raise malformed(
            "5.0 part 2.2.2.2", f"{block.name} has the unknown property {identifier}"
        ) from error
    if name not in allowed:
        raise malformed("5.0 part 2.2.2.2", f"{block.name} must not have {_shown(name)}")
    return name


def _shown(name: Property) -> str:
    """As the standard writes it."""
    return name.name.replace("_", " ").title()


def _text(block: Content, name: Property) -> str:
    return decode_text(block.field(), _shown(name), is_name=False)


def _pair(block: Content, name: Property) -> tuple[str, str]:
    return _text(block, name), _text(block, name)


_READERS: Final[Mapping[_Kind, Callable[[Content, Property], Any]]] = {
    _Kind.BYTE: lambda block, _: block.byte(),
    _Kind.TWO_BYTES: lambda block, _: block.number(2),
    _Kind.FOUR_BYTES: lambda block, _: block.number(4),
    _Kind.LENGTH: lambda block, _: block.length(),
    _Kind.TEXT: _text,
    _Kind.BINARY: lambda block, _: block.field(),
    _Kind.PAIR: _pair,
}

_WRITERS: Final[Mapping[_Kind, Callable[[Any], bytes]]] = {
    _Kind.BYTE: lambda value: bytes((value,)),
    _Kind.TWO_BYTES: lambda value: int(value).to_bytes(2, "big"),
    _Kind.FOUR_BYTES: lambda value: int(value).to_bytes(4, "big"),
    _Kind.LENGTH: lambda value: encode_length(value),
    _Kind.TEXT: lambda value: encode_field(value.encode()),
    _Kind.BINARY: encode_field,
    _Kind.PAIR: lambda pair: b"".join(encode_field(text.encode()) for text in pair),
}


def encode_block(values: Mapping[Property, Any]) -> bytes:
    """Properties without their length in front, in the order of the mapping."""
    out = bytearray()
    for name, value in values.items():
        write = _WRITERS[_KINDS[name]]
        for one in value if name is Property.USER_PROPERTY else (value,):
            out.append(name)
            out += write(one)
    return bytes(out)


def encode_properties(values: Mapping[Property, Any]) -> bytes:
    """Properties with their length in front."""
    block = encode_block(values)
    return encode_length(len(block)) + block
