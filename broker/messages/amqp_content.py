"""AMQP's content properties as the AMQP gateway keeps them, for readers of other protocols: what
has a counterpart there. Pure, and bounded by the bytes that are there.

Layout (AMQP 4.2.6.1, 4.2.5.5): two bytes of flags, then the properties whose flags are set, in
order. Headers are a table of name, letter of the type, value; those whose value is neither text nor
number have no counterpart. What comes behind the application id is not looked at. A table that
breaks off or has a letter that is not known ends the reading: what was found until there counts.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from polymq.broker.messages.byte_reader import ByteReader, TooShort

AMQP_PROPERTY: Final = "PMQ_AMQP"
"""Per-message property: AMQP's content properties as they came, in base64."""

_CONTENT_TYPE: Final = 0x8000
_CONTENT_ENCODING: Final = 0x4000
_HEADERS: Final = 0x2000
_DELIVERY_MODE: Final = 0x1000
_PRIORITY: Final = 0x0800
_TIMESTAMP: Final = 0x0040

HEADERS_MAX: Final = 256
"""Headers looked at. A CloudEvent has a dozen."""
CLOUD_EVENT_PREFIXES: Final = ("ce-", "cloudEvents_", "cloudEvents:")
"""Of the headers that are attributes of a CloudEvent: what RabbitMQ's and Knative's binding writes,
then the AMQP 1.0 binding's two."""


@dataclass(slots=True)
class AmqpContent:
    """What other protocols have a place for.

    Attributes:
        headers: those with simple values, by name, as CloudEvents spells them (canonical strings).
        correlation_id: some applications put bytes there; those that are no UTF-8 are surrogates.
        expiration: in milliseconds, as text.
        others: properties that only AMQP and MQTT 5 (as user properties) have, by AMQP's names.
    """

    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    others: dict[str, str] = field(default_factory=dict)


# In the order of the wire, behind headers and octets.
_NAMES: Final = (
    (0x0400, "correlation_id"),
    (0x0200, "reply_to"),
    (0x0100, "expiration"),
    (0x0080, "message_id"),
)
# Behind the timestamp.
_LAST_NAMES: Final = ((0x0020, "type"), (0x0010, "user_id"), (0x0008, "app_id"))

# Letter -> size of a value that is skipped or, where a layout stands, read as a number.
_FIXED: Final = {
    "t": (1, ">?"),
    "b": (1, ">b"),
    "B": (1, ">B"),
    "s": (2, ">h"),
    "u": (2, ">H"),
    "I": (4, ">i"),
    "i": (4, ">I"),
    "l": (8, ">q"),
    "L": (8, ">q"),
    "T": (8, ">Q"),
    "f": (4, ""),
    "d": (8, ""),
    "D": (5, ""),
    "V": (0, ""),
}
_LONG: Final = "SxAF"
"""Letters of values that begin with their size in four bytes."""


def read_amqp_content(packed: str) -> AmqpContent:
    """Read the value of `PMQ_AMQP`. Never fails: it was checked when it was stored, and whatever it
    is now, a reader gets the message."""
    found = AmqpContent()
    try:
        reader = ByteReader(b64decode(packed))
        flags = reader.number(2)
        if flags & _CONTENT_TYPE:
            found.content_type = _short_string(reader)
        if flags & _CONTENT_ENCODING:
            found.others["content_encoding"] = _short_string(reader)
        if flags & _HEADERS:
            _read_table(reader, found.headers)
        if flags & _DELIVERY_MODE:
            reader.take(1)
        if flags & _PRIORITY:
            found.others["priority"] = str(reader.number(1))
        for flag, name in _NAMES:
            if flags & flag:
                errors = "surrogateescape" if name == "correlation_id" else "replace"
                setattr(found, name, _short_string(reader, errors))
        if flags & _TIMESTAMP:
            found.others["timestamp"] = str(reader.number(8))
        for flag, name in _LAST_NAMES:
            if flags & flag:
                found.others[name] = _short_string(reader)
    except (binascii.Error, ValueError, TooShort):
        pass
    return found


def _short_string(reader: ByteReader, errors: str = "replace") -> str:
    return reader.sized(1).decode("utf-8", errors)


def _read_table(reader: ByteReader, headers: dict[str, str]) -> None:
    size = reader.number(4)
    end = reader.at + size
    for _ in range(HEADERS_MAX):
        if reader.at >= end:
            break
        name = _short_string(reader)
        value = _read_value(reader)
        if value is not None:
            headers.setdefault(name, value)
    reader.skip_to(end)


def _read_value(reader: ByteReader) -> str | None:
    """The next value as a canonical string; None for one that has none."""
    letter = chr(reader.number(1))
    if letter in _LONG:
        raw = reader.sized(4)
        return raw.decode("utf-8") if letter == "S" else None
    if letter not in _FIXED:
        raise TooShort
    size, layout = _FIXED[letter]
    raw = reader.take(size)
    if not layout:
        return None
    (value,) = struct.unpack(layout, raw)
    if letter == "t":
        return "true" if value else "false"
    if letter == "T":
        return _timestamp(value)
    return str(value)


def _timestamp(seconds: int) -> str | None:
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None  # Beyond the year 9999, which RFC 3339 cannot say.
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"
