"""Lines of a trace for a person: what the API says of a packet, as one line of text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

ARROWS: Final = {"in": "->", "out": "<-", "": "--"}
"""From the client to the server, and back."""


def _time_of(value: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(value["time_ms"] / 1000, UTC)
    return f"{at:%H:%M:%S}.{value['time_ms'] % 1000:03d}"


def event_text(value: dict[str, Any]) -> str:
    """The line of a delivery, or of its end, for a person."""
    parts = [_time_of(value), f"@{value['position']}", value["event"], value["topic"]]
    if value["tag"] is not None:
        parts.append(f"tag {value['tag']}")
    parts.append(f"to {value['kind']} {value['name']}")
    for name in ("qos", "packet_id"):
        if name in value:
            parts.append(f"{name.replace('_', ' ')} {value[name]}")
    if value.get("redelivered"):
        parts.append("redelivered")
    if "age_ms" in value:
        parts.append(f"{value['age_ms']:,} ms after it was stored")
    return "  ".join(parts)


def packet_text(value: dict[str, Any]) -> str:
    """The line of a packet for a person."""
    parts = [
        _time_of(value),
        value["client_id"],
        ARROWS[value["direction"]],
        value["packet"],
    ]
    if value.get("count", 1) > 1:
        parts.append(f"x {value['count']:,}")
    for name in ("topic", "address"):
        if name in value:
            parts.append(value[name])
    for name in ("qos", "packet_id", "version", "user"):
        if name in value:
            parts.append(f"{name.replace('_', ' ')} {value[name]}")
    parts += [name for name in ("retain", "duplicate", "present") if value.get(name)]
    if value.get("filters"):
        parts.append(", ".join(value["filters"]))
    if "codes" in value:
        parts.append("codes " + " ".join(f"0x{code:02X}" for code in value["codes"]))
    if value.get("reason"):
        parts.append(f"reason 0x{value['reason']:02X}")
    if "bytes" in value:
        parts.append(f"{value['bytes']:,} bytes")
    if "payload" in value:
        parts.append(f"payload {value['payload']!r}")
    return "  ".join(parts)
