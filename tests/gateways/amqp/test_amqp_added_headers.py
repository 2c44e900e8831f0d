"""Headers that the broker adds stand beside what the application sent, byte for byte."""

from __future__ import annotations

import struct

from polymq.broker.messages.dead_letter_history import Death
from polymq.broker.port import History
from polymq.gateways.amqp.added_headers import death_headers, with_headers
from polymq.gateways.amqp.tables import decode_sized_table, encode_sized_table


def test_other_headers_and_properties_stay_as_they_are() -> None:
    """Integer widths, order, and all other properties; of equal names ours counts."""
    pairs = b"\x01ns\x00\x07" + b"\x07x-deathS\x00\x00\x00\x06forged" + b"\x01bb\xff"
    raw = b"".join(
        (
            struct.pack(">H", 1 << 15 | 1 << 13 | 1 << 12 | 1 << 8 | 1 << 6),
            b"\x04text",
            struct.pack(">I", len(pairs)) + pairs,
            b"\x02",
            b"\x0260",
            struct.pack(">Q", 2**63),
        )
    )
    made = with_headers(raw, {"x-death": [1]}, keep_expiration=False)
    stored = b"\x01ns\x00\x07" + b"\x01bb\xff"
    ours = b"\x07x-deathA" + struct.pack(">Ici", 5, b"I", 1)
    assert made == b"".join(
        (
            struct.pack(">H", 1 << 15 | 1 << 13 | 1 << 12 | 1 << 6),
            b"\x04text",
            struct.pack(">I", len(ours + stored)) + ours + stored,
            b"\x02",
            struct.pack(">Q", 2**63),
        )
    )


def test_a_message_without_headers_gets_a_table() -> None:
    """In its address, between content encoding and delivery mode."""
    made = with_headers(struct.pack(">H", 1 << 12) + b"\x02", {"x-delivery-count": 3})
    table = encode_sized_table({"x-delivery-count": 3})
    assert made == struct.pack(">H", 1 << 13 | 1 << 12) + table + b"\x02"


def test_the_first_death_keeps_the_original_expiration() -> None:
    """It is said where it was lost, however often the message died afterwards."""
    history = History()
    for queue in ("one", "two"):
        history = history.with_death(
            Death(queue=queue, cause="expired", count=1, time_s=5, exchange="x", routing_key="k")
        )
    raw = with_headers(b"\x00\x00", death_headers(history, "60"))
    headers, _ = decode_sized_table(raw, 2, len(raw))
    assert ["original-expiration" in death for death in headers["x-death"]] == [False, True]
    assert headers["x-last-death-queue"] == "two"
    assert headers["x-first-death-queue"] == "one"
