"""Commit-log records as far as a delivery kernel looks at them."""

from __future__ import annotations

from collections.abc import Sequence


def record(body: bytes, topic: bytes = b"t", properties: bytes = b"") -> bytes:
    """A commit-log record as far as a delivery kernel looks at it."""
    size = 91 + len(body) + len(topic) + len(properties)
    return (
        size.to_bytes(4, "big")
        + bytes(80)
        + len(body).to_bytes(4, "big")
        + body
        + bytes([len(topic)])
        + topic
        + len(properties).to_bytes(2, "big")
        + properties
    )


def records(bodies: Sequence[bytes]) -> bytes:
    return b"".join(record(body) for body in bodies)
