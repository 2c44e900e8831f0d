"""Records of every protocol as rows, and AMQP's properties in words."""

from __future__ import annotations

import base64
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import lz4.frame
import pamqp.commands
import pamqp.header
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.records import iterate_records
from polymq.spark_sink import amqp_properties, envelope
from polymq.spark_sink.amqp_properties import DEPTH_MAX, decode_amqp_properties
from polymq.spark_sink.envelope import (
    EnvelopeBuilder,
    Interpreter,
    arrow_schema,
    envelope_schema,
    table_schema,
)
from tests.harness import mqtt5
from tests.remoting.record_builder import build_properties, build_record

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TAIL = build_properties(PMQ_Q="00000001000000000005", **{"__CRC32#": "0123456789"})


def add(builder: EnvelopeBuilder, record: bytes) -> Iterator[pa.RecordBatch]:
    """Take one record, whatever its queue and offset are."""
    (read,) = iterate_records(record)
    offset = read.queue_offset
    return builder.add(record, queue_id=read.queue_id, first=offset, end=offset + 1)


def rows_of(
    *records: bytes,
    with_range: bool = False,
    rows_max: int = 1000,
    bytes_max: int = 10**9,
) -> list[list[dict[str, Any]]]:
    """The batches that these records become, as rows."""
    schema = arrow_schema(envelope_schema(with_range=with_range))
    builder = EnvelopeBuilder(
        schema,
        topic="sensors",
        range_text="0-9@b" if with_range else None,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )
    batches: list[pa.RecordBatch] = []
    for record in records:
        batches += add(builder, record)
    batches += builder.finish()
    for batch in batches:
        assert batch.schema.equals(schema)
        batch.validate(full=True)
    return [batch.to_pylist(maps_as_pydicts="strict") for batch in batches]


def row_of(properties: bytes = b"", **record: Any) -> dict[str, Any]:
    ((row,),) = rows_of(build_record(properties=properties + TAIL, **record))
    return row


@pytest.mark.parametrize("with_range", [True, False])
def test_the_columns_are_those_that_spark_expects(with_range: bool) -> None:
    """Spark compares the first batch of a task with its own schema, and no other."""
    expected = arrow_schema(envelope_schema(with_range=with_range))
    assert table_schema(with_range=with_range).equals(expected, check_metadata=True)


def test_a_message_of_mqtt() -> None:
    row = row_of(
        build_properties(PMQ_P="0042", PMQ_PROTO="mqtt", PMQ_QOS="1", TAGS="room1.temp"),
        queue_id=2,
        queue_offset=41,
        position=0x1000,
        body=b"21.5",
        born_ms=1_700_000_000_123,
        store_ms=1_700_000_000_456,
    )
    assert row == {
        "topic": "sensors",
        "tag": "room1.temp",
        "queue_id": 2,
        "queue_offset": 41,
        "msg_id": "7F00000100002A9F0000000000001000",
        "born_ts": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "store_ts": datetime(2023, 11, 14, 22, 13, 20, 456_000, tzinfo=UTC),
        "keys": None,
        "content_type": None,
        "protocol": "mqtt",
        "headers": {},
        "body": b"21.5",
    }


def test_a_message_of_rocketmq() -> None:
    row = row_of(
        build_properties(UNIQ_KEY="AC11", KEYS="k1 k2", TAGS="", WAIT="true", colour="red")
    )
    assert (row["protocol"], row["msg_id"], row["keys"]) == ("rocketmq", "AC11", "k1 k2")
    assert row["tag"] == ""  # an empty tag is not an absent one
    assert row["headers"] == {"WAIT": "true", "colour": "red"}


def test_a_cloud_event() -> None:
    properties = {"PMQ_PROTO": "http", "KEYS": "e-1", "CE_id": "e-1", "CE_source": "/s"}
    row = row_of(build_properties(**properties, **{"content-type": "application/json"}))
    assert (row["protocol"], row["keys"]) == ("http", "e-1")
    assert row["content_type"] == "application/json"
    assert row["headers"] == {"CE_id": "e-1", "CE_source": "/s"}
    spaced = row_of(build_properties(PMQ_PROTO="http", CE_id="with space"))
    assert spaced["keys"] == "with space"


def test_why_a_message_is_a_dead_letter_stays() -> None:
    row = row_of(build_properties(PMQ_PROTO="http", PMQ_DLQ_REASON="rejected", PMQ_X="1"))
    assert row["headers"] == {"PMQ_DLQ_REASON": "rejected"}


# --- AMQP -------------------------------------------------------------------------------------


def amqp(**properties: Any) -> str:
    """PMQ_AMQP as the broker stores it, marshalled by a library that is not ours."""
    frame = pamqp.header.ContentHeader(
        0, 0, pamqp.commands.Basic.Properties(**properties)
    ).marshal()
    return base64.b64encode(frame[12:]).decode()  # behind class, weight and body size


def test_a_message_of_amqp() -> None:
    packed = amqp(
        content_type="text/plain",
        message_id="m-1",
        correlation_id="c-1",
        priority=5,
        headers={"colour": "red", "count": 3, "exact": True, "deep": {"a": [1, "x"]}, "no": None},
    )
    row = row_of(build_properties(PMQ_PROTO="amqp", PMQ_AMQP=packed))
    assert (row["protocol"], row["content_type"], row["keys"]) == ("amqp", "text/plain", "m-1")
    assert row["headers"] == {
        "colour": "red",
        "count": "3",
        "exact": "true",
        "deep": '{"a": [1, "x"]}',
        "no": None,
        "amqp.correlation_id": "c-1",
        "amqp.priority": "5",
    }


def test_properties_in_front_of_the_body() -> None:
    """All of them are in the row, and the body is that of the message."""
    headers = {f"h{number}": "x" * 1000 for number in range(100)}
    whole = base64.b64decode(amqp(message_id="m-1", headers=headers))
    short = amqp(message_id="m-1", headers={"h0": headers["h0"]})
    properties = build_properties(PMQ_PROTO="amqp", PMQ_LONG="1", PMQ_AMQP=short)
    row = row_of(properties, body=struct.pack(">I", len(whole)) + whole + b"the body")
    assert (row["body"], row["keys"], row["protocol"]) == (b"the body", "m-1", "amqp")
    assert row["headers"] == headers
    row = row_of(properties.replace(b"LONG\x011", b"LONG\x010"), body=b"the body")
    assert (row["body"], row["headers"]) == (b"the body", {"h0": headers["h0"]})


def test_amqp_properties_that_cannot_be_decoded_are_kept_raw() -> None:
    """A row can always be made."""
    for packed in ("", "?", "AAAA", base64.b64encode(b"\x80\x00\xff").decode()):
        row = row_of(build_properties(PMQ_AMQP=packed))
        assert row["protocol"] == "amqp"
        assert row["headers"] == {"PMQ_AMQP": packed}


# --- MQTT 5 -----------------------------------------------------------------------------------


def test_a_message_of_mqtt_5() -> None:
    """What belongs to one connection only (Topic Alias) is no header."""
    block = mqtt5.pack(
        PayloadFormatIndicator=0,
        MessageExpiryInterval=60,
        ContentType="text/plain",
        ResponseTopic="a/b",
        CorrelationData=b"c-1",
        TopicAlias=3,
        UserProperty=[("colour", "red"), ("n", "1"), ("n", "\u00e4")],
    )
    packed = mqtt5.stored(block + b"\x0b\x81\x01")
    row = row_of(build_properties(PMQ_PROTO="mqtt5", PMQ_QOS="1", PMQ_MQTT5=packed))
    assert (row["protocol"], row["content_type"], row["keys"]) == ("mqtt", "text/plain", None)
    assert row["headers"] == {
        "mqtt.payload_format": "0",
        "mqtt.message_expiry_interval": "60",
        "mqtt.response_topic": "a/b",
        "mqtt.correlation_data": "c-1",
        "colour": "red",
        "n": '["1", "\u00e4"]',
    }


@pytest.mark.parametrize("packed", ["?", "AQ==", "fwA=", "JgABbg==", "C4CAgIA=", "AwADYQ=="])
def test_mqtt_properties_that_cannot_be_decoded_are_kept_raw(packed: str) -> None:
    row = row_of(build_properties(PMQ_PROTO="mqtt5", PMQ_MQTT5=packed))
    assert (row["protocol"], row["headers"]) == ("mqtt", {"PMQ_MQTT5": packed})


@given(st.binary(max_size=200))
def test_any_mqtt_properties_become_a_row(raw: bytes) -> None:
    row = row_of(build_properties(PMQ_MQTT5=mqtt5.stored(raw)))
    assert row["body"] == b"21.5"


# --- AMQP's tables ----------------------------------------------------------------------------


def pack(flags: int, rest: bytes) -> str:
    return base64.b64encode(struct.pack(">H", flags) + rest).decode()


def table(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        ("t", b"\x02", "true"),
        ("b", b"\xff", "-1"),
        ("B", b"\xff", "255"),
        ("s", b"\xff\xfe", "-2"),
        ("u", b"\xff\xfe", "65534"),
        ("I", b"\xff\xff\xff\xff", "-1"),
        ("i", b"\xff\xff\xff\xff", "4294967295"),
        ("l", b"\xff" * 8, "-1"),
        ("L", b"\xff" * 8, "-1"),
        ("f", struct.pack(">f", 1.5), "1.5"),
        ("d", struct.pack(">d", 0.1), "0.1"),
        ("D", b"\x02" + struct.pack(">I", 5), "0.05"),
        ("D", b"\x00" + struct.pack(">I", 12), "12"),
        ("T", b"\xff" * 8, "18446744073709551615"),
        ("S", table(b"\xc3\xa4"), "ä"),
        ("S", table(b"\xff"), "\ufffd"),
        ("x", table(b"\x00\x01"), "AAE="),
        ("V", b"", None),
        ("A", table(b"t\x01V"), "[true, null]"),
        ("F", table(b"\x01kt\x00"), '{"k": false}'),
    ],
)
def test_every_type_of_field_value(kind: str, raw: bytes, text: str | None) -> None:
    """As RabbitMQ reads them; timestamps beyond the year 9999 too."""
    packed = pack(0x2000, table(b"\x01h" + kind.encode() + raw))
    assert decode_amqp_properties(packed).headers == {"h": text}


@pytest.mark.parametrize(
    "packed",
    [
        pack(0x8000, b"\x05abc"),
        pack(0x8001, b"\x00"),
        pack(0x2000, b"\xff\xff\xff\xff"),
        pack(0x2000, table(b"\x01h?")),
        pack(0x2000, table(b"\x01hS\x00\x00\x00\xff")),
        pack(0x2000, struct.pack(">I", 3) + b"\x01hI\x00\x00\x00\x00"),
        pack(0x0000, b"rest"),
        "not base64",
    ],
)
def test_damaged_properties(packed: str) -> None:
    with pytest.raises(ValueError, match="AMQP properties"):
        decode_amqp_properties(packed)


def test_table_bombs_are_bounded() -> None:
    """Nested far too deep, and with far too many entries."""
    nested = b""
    for _ in range(DEPTH_MAX + 1):
        nested = b"\x01kF" + table(nested)
    with pytest.raises(ValueError, match="deeper"):
        decode_amqp_properties(pack(0x2000, table(nested)))
    wide = b"\x01kV" * (amqp_properties.ENTRIES_MAX + 1)
    with pytest.raises(ValueError, match="entries"):
        decode_amqp_properties(pack(0x2000, table(wide)))


@given(st.binary(max_size=40))
def test_any_bytes_are_properties_or_a_value_error(raw: bytes) -> None:
    for flags in (0x2000, 0xFFFC, None):
        data = raw if flags is None else struct.pack(">H", flags) + raw
        try:
            decode_amqp_properties(base64.b64encode(data).decode())
        except ValueError:
            pass


scalars = (
    st.none() | st.booleans() | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.integers(-(2**31), 2**31 - 1)
)  # fmt: skip
tables = st.dictionaries(
    st.text("abc", min_size=1, max_size=5),
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("xyz", min_size=1, max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=5,
)


@given(tables)
def test_headers_as_another_library_writes_them(headers: Mapping[str, Any]) -> None:
    decoded = decode_amqp_properties(amqp(headers=headers)).headers
    assert set(decoded) == set(headers)
    for name, value in headers.items():
        text = decoded[name]
        if value is None or isinstance(value, str):
            assert text == value
        else:
            assert text is not None
            assert json.loads(text) == value


# --- whatever comes ---------------------------------------------------------------------------


def test_text_that_is_no_unicode() -> None:
    row = row_of(build_properties(TAGS="a\udcff", x="\udc80y"))
    assert row["tag"] == "a\ufffd"
    assert row["headers"] == {"x": "\ufffdy"}


@pytest.mark.parametrize(
    ("born_ms", "year"),
    [(0, 1970), (-(2**63), None), (2**63 - 1, None), (253_402_300_800_000, None)],
)
def test_a_time_of_birth_that_no_calendar_has_is_null(born_ms: int, year: int | None) -> None:
    """Clients send any number."""
    born = row_of(born_ms=born_ms)["born_ts"]
    assert (born and born.year) == year


@given(
    st.lists(
        st.builds(
            build_record,
            body=st.binary(max_size=30),
            properties=st.binary(max_size=60),
            born_ms=st.integers(-(2**63), 2**63 - 1),
            store_ms=st.integers(-(2**63), 2**63 - 1),
            queue_offset=st.integers(-(2**63), 2**63 - 2),
            position=st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=5,
    )
)
def test_a_row_can_always_be_made(records: list[bytes]) -> None:
    assert sum(map(len, rows_of(*records, with_range=True))) == len(records)


def test_properties_that_python_interprets_are_interpreted_once() -> None:
    """What differs at their ends, queues and checksum, does not count."""
    interpret = Interpreter()
    head = build_properties(PMQ_P="0001", TAGS="a", PMQ_PROTO="mqtt5")
    for number in range(5):
        tail = build_properties(PMQ_Q=f"{number:020x}", **{"__CRC32#": f"{number:010}"})
        tag, *_, body = interpret(head + tail, b"%d" % number, 0)
        assert (tag, body) == (b"a", b"%d" % number)
    assert len(interpret._meanings) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MEANINGS_MAX", 3)
    interpret = Interpreter()
    keys = [interpret(build_properties(UNIQ_KEY=str(n)), b"", 0)[1] for n in range(10)]
    assert keys == [b"%d" % n for n in range(10)]
    assert len(interpret._meanings) <= 3


def test_batches_are_cut_by_rows_and_by_bytes() -> None:
    records = [build_record(queue_offset=n, body=bytes(100)) for n in range(10)]
    assert [len(batch) for batch in rows_of(*records, rows_max=4)] == [4, 4, 2]
    assert [len(batch) for batch in rows_of(*records, bytes_max=250)] == [3, 3, 3, 1]
    assert rows_of() == []


@pytest.mark.parametrize(
    ("flag", "compress"),
    [(0x301, zlib.compress), (0x101, lz4.frame.compress), (0x201, zstd.compress)],
    ids=["zlib", "lz4", "zstd"],
)
def test_compressed_bodies_are_plain_and_count_as_what_they_are(
    flag: int, compress: Callable[[bytes], bytes]
) -> None:
    """A few megabytes of such records may be gigabytes: a batch has its bound on the latter."""
    records = [
        build_record(queue_offset=n, body=compress(bytes(1000)), system_flag=flag) for n in range(5)
    ]
    batches = rows_of(*records, bytes_max=2000)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert {row["body"] for batch in batches for row in batch} == {bytes(1000)}
    assert row_of(body=b"damaged", system_flag=flag)["body"] == b"damaged"


def test_the_range_stands_in_every_row_if_asked_for() -> None:
    ((row, _),) = rows_of(build_record(), build_record(), with_range=True)
    assert row["_range"] == "0-9@b"
    assert "_range" not in row_of()
