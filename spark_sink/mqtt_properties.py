"""Properties of a PUBLISH of MQTT 5, as the broker keeps them, in terms of a table.

A message that came over MQTT 5 carries its property block as it came: the bytes behind the Property
Length (MQTT 5.0, 2.2.2), in base64, under `PMQ_MQTT5`. Bounded by the bytes that are there, because
a client chose them: a block that is none is a `ValueError`, and the caller keeps the raw text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_CONTENT_TYPE: Final = 0x03
_USER_PROPERTY: Final = 0x26
_NAMES: Final = {
    0x01: "payload_format",
    0x02: "message_expiry_interval",
    0x08: "response_topic",
    0x09: "correlation_data",
}
_PREFIX: Final = "mqtt."


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttProperties:
    """What a table shows of them. `headers` holds the other properties too, as `mqtt.<name>`."""

    content_type: str | None
    headers: Mapping[str, str | None]


def decode_mqtt_properties(packed: str) -> MqttProperties:
    """Decode the value of `PMQ_MQTT5`. Raises ValueError."""
    try:
        reader = _Reader(base64.b64decode(packed, validate=True))
    except binascii.Error as error:
        raise ValueError(f"MQTT properties: {error}") from error
    content_type = None
    others: dict[str, str] = {}
    user_properties: dict[str, list[str]] = {}
    while not reader.ended:
        identifier = reader.number(1)
        read = _KINDS.get(identifier)
        if identifier == _USER_PROPERTY:
            name = reader.text()
            user_properties.setdefault(name, []).append(reader.text())
        elif read is None:
            raise ValueError(f"MQTT properties: {identifier:#04x} is none of a PUBLISH")
        elif identifier == _CONTENT_TYPE:
            content_type = read(reader)
        elif identifier in _NAMES:
            others[_PREFIX + _NAMES[identifier]] = str(read(reader))
        else:  # of one connection, not of the message
            read(reader)
    headers = {name: as_text(values) for name, values in user_properties.items()}
    return MqttProperties(content_type=content_type, headers={**others, **headers})


def as_text(values: list[str]) -> str:
    """The values of one name: several are JSON, like an array of AMQP."""
    return values[0] if len(values) == 1 else json.dumps(values, ensure_ascii=False)


class _Reader:
    """Reads forward over the raw bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._raw)

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size))

    def text(self) -> str:
        return self._sized().decode("utf-8", "replace")

    def bytes_as_text(self) -> str:
        """As it is where it is UTF-8, else in base64."""
        raw = self._sized()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return base64.b64encode(raw).decode()

    def variable(self) -> None:
        for _ in range(4):
            if self.number(1) < 0x80:
                return
        raise ValueError("MQTT properties: a number of more than four bytes")

    def _sized(self) -> bytes:
        return self._take(self.number(2))

    def _take(self, size: int) -> bytes:
        taken = self._raw[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("MQTT properties: cut short")
        self._at += size
        return taken


_KINDS: Final[Mapping[int, Callable[[_Reader], Any]]] = {
    0x01: lambda reader: reader.number(1),
    0x02: lambda reader: reader.number(4),
    _CONTENT_TYPE: _Reader.text,
    0x08: _Reader.text,
    0x09: _Reader.bytes_as_text,
    0x0B: _Reader.variable,
    0x23: lambda reader: reader.number(2),
}
"""How the values of a PUBLISH's properties are read (MQTT 5.0, table 2-4), beside user properties.
"""
