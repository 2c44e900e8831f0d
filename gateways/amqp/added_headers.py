"""Headers that the broker adds to a message: why it is a dead letter, how often it came.

What an application sent is forwarded as raw bytes, because values lose their integer widths when
they are decoded. So headers are added to the raw table, and those of the same names, which a client
can only have forged or copied from an earlier dead letter, are cut out of it.

Names and values are RabbitMQ's (its documentation of dead letter exchanges and quorum queues).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from polymq.broker.port import History
from polymq.gateways.amqp.tables import Long, Timestamp, encode_pairs, split_pairs

_HEADERS: Final = 1 << 13
_EXPIRATION: Final = 1 << 8
# Kinds of the properties of bits 15 to 2: s short string, t table, b octet, q u64.
_KINDS: Final = "sstbbssssqssss"

DEATH_NAMES: Final = frozenset(
    {
        "x-death",
        "x-first-death-reason",
        "x-first-death-queue",
        "x-first-death-exchange",
        "x-last-death-reason",
        "x-last-death-queue",
        "x-last-death-exchange",
    }
)
DELIVERY_COUNT: Final = "x-delivery-count"


def death_headers(history: History, expiration: str | None) -> dict[str, Any]:
    """The headers of a dead letter.

    Args:
        expiration: the message's own, which it lost when it died first.
    """
    deaths: list[Mapping[str, Any]] = []
    for death in history.deaths:
        entry: dict[str, Any] = {
            "count": Long(death.count),
            "reason": death.cause,
            "queue": death.queue,
            "time": Timestamp(death.time_s),
            "exchange": death.exchange,
            "routing-keys": [death.routing_key, *death.copies],
        }
        deaths.append(entry)
        if expiration is not None and (death.cause, death.queue, death.exchange) == history.first:
            entry["original-expiration"] = expiration
    cause, queue, exchange = history.first
    last = history.deaths[0]
    return {
        "x-death": deaths,
        "x-first-death-reason": cause,
        "x-first-death-queue": queue,
        "x-first-death-exchange": exchange,
        "x-last-death-reason": last.cause,
        "x-last-death-queue": last.queue,
        "x-last-death-exchange": last.exchange,
    }


def with_headers(
    raw: bytes,
    added: Mapping[str, Any],
    *,
    removed: Sequence[str] = (),
    keep_expiration: bool = True,
) -> bytes:
    """Raw property flags and properties with headers added to them.

    Args:
        raw: well-formed (it was checked when it came).
        added: replace headers of the same names.
        removed: names of headers to take away.
    """
    values = _values(raw)
    flags = int.from_bytes(raw[:2], "big") | _HEADERS
    if not keep_expiration:
        flags &= ~_EXPIRATION
        values.pop(_EXPIRATION, None)
    table = values.get(_HEADERS, bytes(4))
    names = [name.encode() for name in (*added, *removed)]
    remaining = table[4:]
    if any(name in remaining for name in names):
        remaining = b"".join(pair for name, pair in split_pairs(remaining) if name not in names)
    pairs = encode_pairs(added) + remaining  # first, because what does not fit a frame is left out
    values[_HEADERS] = struct.pack(">I", len(pairs)) + pairs
    ordered = (values[1 << bit] for bit in range(15, 1, -1) if flags & 1 << bit)
    return struct.pack(">H", flags) + b"".join(ordered)


def _values(raw: bytes) -> dict[int, bytes]:
    """The encoded properties by their flags."""
    flags = int.from_bytes(raw[:2], "big")
    values: dict[int, bytes] = {}
    at = 2
    for index, kind in enumerate(_KINDS):
        flag = 0x8000 >> index
        if not flags & flag:
            continue
        if kind == "s":
            size = 1 + raw[at]
        elif kind == "t":
            size = 4 + int.from_bytes(raw[at : at + 4], "big")
        else:
            size = 1 if kind == "b" else 8
        values[flag] = raw[at : at + size]
        at += size
    return values
