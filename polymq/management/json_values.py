"""JSON as this API writes it: also names that are no valid Unicode, and values that AMQP has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

_ENCODER: Final = msgspec.json.Encoder(enc_hook=lambda value: plain(value))


def encode(value: object) -> bytes:
    """The JSON text of a value."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # a name that is not valid Unicode: JSON can escape it
        return json.dumps(value, default=plain, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """A value of a field table as JSON has it: bytes and decimal numbers as text."""
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "backslashreplace")
        case Decimal():
            return str(value)
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case int() if not isinstance(value, bool):
            return int(value)
    return value
