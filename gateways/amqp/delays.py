"""Delayed messages in AMQP: exchanges of type `x-delayed-message` and the header `x-delay`.

That is how RabbitMQ's delayed message exchange plugin has it: the exchange is declared with an
argument `x-delayed-type`, by which it routes; a message published to it with a header `x-delay` (in
milliseconds) is routed so much later. Without the header, with zero or with a negative number it is
routed at once. A delayed message arrives with the number negated, so that a consumer sees that it
was delayed, and one that publishes it again as it is does not delay it again.

A message that is delayed is never returned, because nobody knows where it will go.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from polymq.gateways.amqp.rows import Rows, batch_of
from polymq.gateways.amqp.tables import decode_sized_table, split_pairs

EXCHANGE_TYPE: Final = "x-delayed-message"
HEADER: Final = b"\x07x-delay"
"""The name as a table holds it."""

_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_SIGNED: Final[Mapping[int, struct.Struct]] = {
    ord("b"): struct.Struct(">b"),
    ord("s"): struct.Struct(">h"),
    ord("I"): struct.Struct(">i"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
}


def take_delay(properties: bytes) -> tuple[int, bytes]:
    """The delay in ms that well-formed properties ask for, 0 for none; and the properties as they
    are delivered."""
    if HEADER not in properties:
        return 0, properties
    flags = int.from_bytes(properties[:2], "big")
    if not flags & _HEADERS:
        return 0, properties
    at = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    end = at + 4 + int.from_bytes(properties[at : at + 4], "big")
    delay = decode_sized_table(properties, at, end)[0].get("x-delay")
    if isinstance(delay, str) and delay.isascii() and delay.isdigit():
        delay = int(delay)
    if not isinstance(delay, int) or delay <= 0:
        return 0, properties
    pairs = [_negated(pair) for _, pair in split_pairs(properties[at + 4 : end])]
    return delay, properties[: at + 4] + b"".join(pairs) + properties[end:]


def _negated(pair: bytes) -> bytes:
    """The pair, its value negated if it is an `x-delay` with a sign."""
    value_at = len(HEADER) + 1
    layout = _SIGNED.get(pair[len(HEADER)]) if pair.startswith(HEADER) else None
    if layout is None:
        return pair
    return pair[:value_at] + layout.pack(-layout.unpack_from(pair, value_at)[0])


def split(rows: Rows) -> list[tuple[Rows, int]]:
    """The rows, in parts with the same delay in ms, over bytes of their own."""
    parts: list[tuple[Rows, int]] = []
    seen = b""
    delay, delivered = 0, b""
    contents: list[tuple[bytes, bytes]] = []
    for properties, body in rows.contents():
        before = delay
        if properties != seen:  # mostly they are equal in a run
            seen = properties
            delay, delivered = take_delay(properties)
        if contents and delay != before:
            parts.append((rows.over(batch_of(rows.address, contents)), before))
            contents = []
        contents.append((delivered, body))
    parts.append((rows.over(batch_of(rows.address, contents)), delay))
    return parts
