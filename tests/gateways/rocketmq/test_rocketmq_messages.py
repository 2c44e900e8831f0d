"""What producers send: properties and batches, and what of them may not get into a record."""

from __future__ import annotations

import struct

import pytest

from polymq.gateways.rocketmq.messages import BadMessage, message_of, messages_of, system_flag_of


def part(body: bytes, properties: str = "", flag: int = 0) -> bytes:
    packed = properties.encode()
    size = 22 + len(body) + len(packed)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(packed)) + packed


def test_properties_are_kept_but_for_the_tag_and_the_brokers_own() -> None:
    sent = message_of(
        "TAGS\x01paid\x02KEYS\x01k1\x02PMQ_S\x017.1\x02__CRC32#\x011234\x02colour\x01red", b"x", 3
    )
    assert sent.tag == "paid"
    assert sent.extra == b"KEYS\x01k1\x02colour\x01red\x02"
    assert (sent.body, sent.flag) == (b"x", 3)


def test_a_value_that_would_forge_another_property_is_refused() -> None:
    with pytest.raises(BadMessage):
        message_of("a\x01b\x01PMQ_S\x02", b"x", 0)


def test_a_batch_is_taken_apart() -> None:
    first, second = messages_of(part(b"one", "TAGS\x01a\x02") + part(b"two", "KEYS\x01k\x02", 9))
    assert (first.tag, first.body, first.extra) == ("a", b"one", b"")
    assert (second.tag, second.body, second.extra, second.flag) == (
        None,
        b"two",
        b"KEYS\x01k\x02",
        9,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        part(b"one")[:-1],
        part(b"one")[:10],
        part(b"one") + b"\0",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 1 << 30) + b"\0\0",
        struct.pack(">iiiii", 1000, 0, 0, 0, 0) + b"\0\0",
    ],
)
def test_a_batch_that_does_not_add_up_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        messages_of(body)


def test_only_what_belongs_to_the_message_is_kept_of_a_system_flag() -> None:
    """Bits that say how a record is laid out would make the record unreadable."""
    assert system_flag_of(0x1 | 0x300 | 0x10 | 0x20 | 0x4 | 0x10000) == 0x301
    assert system_flag_of(0x1) == 0x1
    assert system_flag_of(0x300 | 0x2) == 0x2
    assert [system_flag_of(0x1 | kind << 8) for kind in (1, 2)] == [0x101, 0x201]


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x600, 0x700])
def test_what_no_reader_could_unpack_is_refused(kind: int) -> None:
    with pytest.raises(BadMessage, match="ZLIB"):
        system_flag_of(0x1 | kind)
