"""AMQP's content properties, as the broker keeps them, in words for a table.

A message that came over AMQP carries its properties as they came: flags and list, in base64, under
`PMQ_AMQP` (AMQP 4.2.6.1). The broker never looks into them; who writes a table has to. Bounded on
all sides, because a client chose the bytes: a table that is too deep or too big, or cut short, is
a `ValueError`, and the caller keeps the raw text instead.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

DEPTH_MAX: Final = 32
"""Tables within tables. RabbitMQ has no bound; nobody nests this deep on purpose."""
ENTRIES_MAX: Final = 4096
"""Entries of all tables and arrays of one message, counted together."""

# (name, kind) of the properties by bit, from bit 15 down (AMQP 0-9-1, class basic).
_PROPERTIES: Final = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "t"),
    ("delivery_mode", "b"),
    ("priority", "b"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "q"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
_FIRST_BIT: Final = 15
_UNUSED_BITS: Final = 0b11

# Field values of a fixed size, as RabbitMQ reads them.
_FIXED: Final[Mapping[int, struct.Struct]] = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
    ord("T"): struct.Struct(">Q"),
}
_DECIMAL: Final = struct.Struct(">BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpProperties:
    """What a table shows of them. `headers` holds the other properties too, as `amqp.<name>`."""

    content_type: str | None
    message_id: str | None
    headers: Mapping[str, str | None]


def decode_amqp_properties(packed: str) -> AmqpProperties:
    """Decode the value of `PMQ_AMQP`. Raises ValueError."""
    try:
        raw = base64.b64decode(packed, validate=True)
        reader = _Reader(raw)
        values = reader.properties()
    except (binascii.Error, struct.error, IndexError) as error:
        raise ValueError(f"AMQP properties: {error}") from error
    if reader.at != len(raw):
        raise ValueError(f"AMQP properties: {len(raw) - reader.at} bytes too many")
    headers = {name: as_text(value) for name, value in values.pop("headers", {}).items()}
    content_type, message_id = values.pop("content_type", None), values.pop("message_id", None)
    for name, value in values.items():
        headers.setdefault(f"amqp.{name}", as_text(value))
    return AmqpProperties(content_type=content_type, message_id=message_id, headers=headers)


def as_text(value: Any) -> str | None:
    """A field value as text: plain for scalars, JSON for tables and arrays."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """Reads forward over the raw bytes."""

    def __init__(self, raw: bytes) -> None:
        self.at = 0
        self._raw = raw
        self._entries_left = ENTRIES_MAX

    def properties(self) -> dict[str, Any]:
        (flags,) = struct.unpack(">H", self._take(2))
        if flags & _UNUSED_BITS:
            raise ValueError("AMQP properties: continued flags")
        readers: dict[str, Callable[[], Any]] = {
            "s": self._short_string,
            "t": lambda: self._table(0),
            "b": lambda: self._take(1)[0],
            "q": lambda: struct.unpack(">Q", self._take(8))[0],
        }
        return {
            name: readers[kind]()
            for bit, (name, kind) in enumerate(_PROPERTIES)
            if flags >> (_FIRST_BIT - bit) & 1
        }

    def _take(self, size: int) -> bytes:
        taken = self._raw[self.at : self.at + size]
        if len(taken) != size:
            raise ValueError("AMQP properties: cut short")
        self.at += size
        return taken

    def _short_string(self) -> str:
        return self._take(self._take(1)[0]).decode("utf-8", "replace")

    def _long_bytes(self) -> bytes:
        return self._take(int.from_bytes(self._take(4)))

    def _count_entry(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise ValueError(f"AMQP properties: more than {ENTRIES_MAX} entries")

    def _inner_end(self, depth: int) -> int:
        if depth >= DEPTH_MAX:
            raise ValueError(f"AMQP properties: tables deeper than {DEPTH_MAX}")
        end = int.from_bytes(self._take(4)) + self.at
        if end > len(self._raw):
            raise ValueError("AMQP properties: cut short")
        return end

    def _table(self, depth: int) -> dict[str, Any]:
        end = self._inner_end(depth)
        table = {}
        while self.at < end:
            self._count_entry()
            name = self._short_string()
            table[name] = self._value(depth)
        self._check_end(end)
        return table

    def _array(self, depth: int) -> list[Any]:
        end = self._inner_end(depth)
        values = []
        while self.at < end:
            self._count_entry()
            values.append(self._value(depth))
        self._check_end(end)
        return values

    def _check_end(self, end: int) -> None:
        if self.at != end:
            raise ValueError("AMQP properties: a table ends inside a value")

    def _value(self, depth: int) -> Any:
        kind = self._take(1)[0]
        if fixed := _FIXED.get(kind):
            return fixed.unpack(self._take(fixed.size))[0]
        match chr(kind):
            case "t":
                return self._take(1) != b"\0"
            case "S":
                return self._long_bytes().decode("utf-8", "replace")
            case "x":
                return base64.b64encode(self._long_bytes()).decode()
            case "D":
                scale, digits = _DECIMAL.unpack(self._take(_DECIMAL.size))
                return _decimal(scale, digits)
            case "V":
                return None
            case "F":
                return self._table(depth + 1)
            case "A":
                return self._array(depth + 1)
        raise ValueError(f"AMQP properties: field type {kind:#04x}")


def _decimal(scale: int, digits: int) -> str:
    """As text: a float would not keep it."""
    text = str(digits).rjust(scale + 1, "0")
    return f"{text[:-scale]}.{text[-scale:]}" if scale else text
