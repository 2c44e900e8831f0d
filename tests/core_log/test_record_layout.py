"""Records are laid out as RocketMQ lays them out, byte for byte, checksum included.

The decoder here is written from RocketMQ's field table alone and shares nothing with the store."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.errors import CorruptRecord, TooLarge
from polymq.core_log.kernels.batch import EXTRA_BASE64, EXTRA_NONE, EXTRA_VERBATIM, Batch
from polymq.core_log.record import (
    RecordTemplate,
    decode_record,
    encode_host,
    encode_properties,
    java_hash,
)
from tests.harness.files import MemoryFiles
from tests.harness.stores import Bench, decode_all, numbered


class RocketmqDecoder:
    """Reads a V1 record with IPv4 hosts, field by field, in the order of RocketMQ's table."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.total_size = self._int()
        self.magic = self._int() & 0xFFFFFFFF
        self.body_crc = self._int()
        self.queue_id = self._int()
        self.flag = self._int()
        self.queue_offset = self._long()
        self.physical_offset = self._long()
        self.system_flag = self._int()
        self.born_ms = self._long()
        self.born_host = self._bytes(4), self._int()
        self.store_ms = self._long()
        self.store_host = self._bytes(4), self._int()
        self.reconsume_times = self._int()
        self.prepared_offset = self._long()
        self.body = self._bytes(self._int())
        self.topic = self._bytes(self._bytes(1)[0])
        self.properties_at = self._at + 2
        self.properties = self._bytes(struct.unpack(">h", self._bytes(2))[0])
        assert self._at == self.total_size

    def _bytes(self, size: int) -> bytes:
        self._at += size
        assert self._at <= len(self._data)
        return self._data[self._at - size : self._at]

    def _int(self) -> int:
        return int(struct.unpack(">i", self._bytes(4))[0])

    def _long(self) -> int:
        return int(struct.unpack(">q", self._bytes(8))[0])


def rocketmq_crc(data: bytes) -> bytes:
    """RocketMQ's `UtilAll.crc32` and the digits that its encoder writes: least significant first,
    padded with zeros to ten."""
    value = zlib.crc32(data) & 0x7FFFFFFF
    digits = b""
    for _ in range(10):
        digits += b"0123456789"[value % 10 : value % 10 + 1]
        value //= 10
    return digits


@pytest.fixture
def bench() -> Bench:
    return Bench(MemoryFiles())


def test_every_field_stands_where_rocketmq_has_it(bench: Bench) -> None:
    bench.flush()
    start = bench.store.log.appended
    template = RecordTemplate(
        b"orders",
        3,
        encode_properties({"TAGS": "paid", "KEYS": "a b"}),
        java_hash("paid"),
        flag=-5,
        system_flag=0x10004,
        reconsume=2,
        prepared=77,
    )
    span = bench.store.log.append_record(
        template, b"the body", targets=((9, 41),), born_ms=1_600_000_000_123, store_ms=1_700_000_000
    )
    record = RocketmqDecoder(bytes(span.memory[span.start : span.end]))
    assert record.total_size == span.end - span.start
    assert record.magic == 0xDAA320A7
    assert record.body_crc == zlib.crc32(b"the body") & 0x7FFFFFFF
    assert (record.queue_id, record.flag, record.queue_offset) == (3, -5, 41)
    assert record.physical_offset == start == span.position
    assert record.system_flag == 0x10004
    assert (record.born_ms, record.store_ms) == (1_600_000_000_123, 1_700_000_000)
    assert record.born_host == record.store_host == (bytes((127, 0, 0, 1)), 10911)
    assert (record.reconsume_times, record.prepared_offset) == (2, 77)
    assert (record.body, record.topic) == (b"the body", b"orders")
    crc = rocketmq_crc(bytes(span.memory[span.start : span.end])[:-20])
    assert record.properties == (
        b"TAGS\x01paid\x02KEYS\x01a b\x02"
        b"PMQ_Q\x0100000009000000000029\x02"
        b"__CRC32#\x01" + crc + b"\x02"
    )


def test_index_entries_are_rocketmqs(bench: Bench) -> None:
    """Position 8, size 4, tag hash 8 (sign-extended)."""
    negative = "polygenelubricants"
    template = RecordTemplate(b"t", 0, encode_properties({"TAGS": negative}), java_hash(negative))
    span = bench.store.log.append_record(template, b"x", targets=((9, 0),), born_ms=1, store_ms=1)
    position, size, tag = struct.unpack(">qiq", span.entries)
    assert (position, size) == (span.position, span.end - span.start)
    assert tag == -2147483648


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello world", 1794106052),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -2147483648),
        ("ü", 252),
        ("𐍈", 1771336),
    ],
)
def test_tags_hash_as_in_java(text: str, expected: int) -> None:
    """Values of String.hashCode; the last is a surrogate pair there."""
    assert expected == java_hash(text)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 100])
@pytest.mark.parametrize("kind", [EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM])
def test_the_extra_property_comes_before_the_stores_own(bench: Bench, kind: int, size: int) -> None:
    raw = bytes(range(3, 103))[:size]
    extra = b"mine\x01" + b"v" * size + b"\x02" if kind == EXTRA_VERBATIM else raw
    template = RecordTemplate(b"t", 0, b"A\x011\x02", extra_kind=kind, extra_name=b"PMQ_AMQP")
    span = bench.store.log.append_record(
        template, b"x", extra=extra, targets=((9, 5),), born_ms=1, store_ms=1
    )
    expected = {
        EXTRA_NONE: b"",
        EXTRA_BASE64: b"PMQ_AMQP\x01" + base64.b64encode(raw) + b"\x02",
        EXTRA_VERBATIM: extra,
    }[kind]
    record = RocketmqDecoder(bytes(span.memory[span.start : span.end]))
    assert record.properties[:-20] == (
        b"A\x011\x02" + expected + b"PMQ_Q\x0100000009000000000005\x02"
    )


def test_records_of_a_run_take_consecutive_offsets_in_all_queues(bench: Bench) -> None:
    bench.publish(numbered(0, 3))
    spans = bench.publish(numbered(3, 4))
    records = [
        record for span in spans for record in decode_all(bytes(span.memory[span.start : span.end]))
    ]
    for number, record in enumerate(records, 3):
        assert record.body == numbered(number, 1)[0]
        assert record.queue_offset == number
        assert record.targets == ((1, number), (2, number), (3, number))
        assert record.properties["TAGS"] == "room1.temp"
        assert record.atomic is None


@given(st.integers(0, 231), st.integers(0, 7))
def test_any_flipped_bit_is_found(number: int, bit: int) -> None:
    """A record with one bit changed, anywhere, is never taken for sound."""
    template = RecordTemplate(b"sensors", 0, encode_properties({"TAGS": "t"}))
    span = Bench(MemoryFiles()).store.log.append_record(
        template, b"b" * 60, targets=((9, 0), (8, 1)), born_ms=1, store_ms=2
    )
    data = bytearray(span.memory[span.start : span.end])
    decode_record(data)
    data[number % len(data)] ^= 1 << bit
    with pytest.raises(CorruptRecord):
        decode_record(data)


def test_properties_refuse_separators_and_too_much() -> None:
    assert encode_properties({"a": "b", "c": ""}) == b"a\x01b\x02c\x01\x02"
    for name, value in (("a\x01", "b"), ("a", "\x02"), ("", "b")):
        with pytest.raises(ValueError, match=r"separator|needs a name"):
            encode_properties({name: value})
    with pytest.raises(TooLarge, match="32768 bytes"):
        encode_properties({"a": "v" * (32_767 - 2)})


def test_a_topic_has_at_most_127_bytes() -> None:
    RecordTemplate(b"t" * 127, 0, b"")
    for topic in (b"t" * 128, b""):
        with pytest.raises(TooLarge, match="1 to 127 bytes"):
            RecordTemplate(topic, 0, b"")


def test_hosts_are_ipv4() -> None:
    assert encode_host("10.1.2.3", 65_535) == bytes((10, 1, 2, 3, 0, 0, 255, 255))


def test_undecodable_properties_come_back_as_they_were() -> None:
    raw = b"name\x01\xff\xfe\x02"
    template = RecordTemplate(b"t", 0, raw)
    span = Bench(MemoryFiles()).store.log.append_record(template, b"", born_ms=1, store_ms=1)
    record = decode_record(span.memory, span.start)
    assert record.raw_properties.startswith(raw)
    assert encode_properties({"name": record.properties["name"]}) == raw
    assert record.targets == ()


def test_rows_of_a_batch_are_read_from_any_buffer() -> None:
    """The network's buffer is a bytearray or a view of one."""
    bench = Bench(MemoryFiles())
    for buffer in (b"..abc", bytearray(b"..abc"), memoryview(bytearray(b"..abc"))):
        batch = Batch(1)
        batch.buffer = buffer
        batch.add((0, 0), (2, 3))
        spans = bench.store.log.append_run(
            RecordTemplate(b"t", 0, b""), batch, 0, 1, targets=(), born_ms=1, store_ms=1
        )
        assert decode_record(spans[0].memory, spans[0].start).body == b"abc"
