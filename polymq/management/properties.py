"""AMQP's content properties as JSON has them. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from polymq.gateways.amqp.tables import (
    decode_sized_table,
    encode_sized_table,
)
from polymq.management.errors import bad
from polymq.management.json_values import plain

SHORT_BYTES_MAX: Final = 255
_FIELDS: Final = (
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
"""In the order of the wire, from bit 15 on: short string, table, octet, 64 bits (AMQP 4.2.6.1)."""


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Property flags and properties. Unknown ones are ignored, as RabbitMQ does. Raises Problem."""
    flags = 0
    parts: list[bytes] = []
    for index, (name, kind) in enumerate(_FIELDS):
        value = properties.get(name)
        if value is None:
            continue
        flags |= 0x8000 >> index
        parts.append(_encoded(name, kind, value))
    return struct.pack(">H", flags) + b"".join(parts)


def _encoded(name: str, kind: str, value: Any) -> bytes:
    if kind == "t":
        if not isinstance(value, dict):
            raise bad(f"properties.{name} has to be an object")
        try:
            return encode_sized_table(value)
        except (ValueError, RecursionError) as error:
            raise bad(f"properties.{name}: {error}") from None
    if kind == "s":
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else b"\x00" * 256
        if len(raw) > SHORT_BYTES_MAX:
            raise bad(f"properties.{name} has to be a text of at most {SHORT_BYTES_MAX} bytes")
        return bytes((len(raw),)) + raw
    most = 0xFF if kind == "b" else 2**64 - 1
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 21:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise bad(f"properties.{name} has to be a number from 0 to {most}")
    return bytes((value,)) if kind == "b" else struct.pack(">Q", value)


def decode_properties(raw: bytes) -> dict[str, Any]:
    """The properties of a message, which were checked when it came."""
    flags = int.from_bytes(raw[:2], "big")
    at = 2
    found: dict[str, Any] = {}
    for index, (name, kind) in enumerate(_FIELDS):
        if not flags & 0x8000 >> index:
            continue
        if kind == "t":
            table, at = decode_sized_table(raw, at, len(raw))
            found[name] = plain(table)
        elif kind == "s":
            end = at + 1 + raw[at]
            found[name] = raw[at + 1 : end].decode("utf-8", "backslashreplace")
            at = end
        elif kind == "b":
            found[name] = raw[at]
            at += 1
        else:
            found[name] = int.from_bytes(raw[at : at + 8], "big")
            at += 8
    return found
