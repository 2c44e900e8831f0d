"""Field tables: our codec against pika's, and the tables that an attacker sends."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pika.data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.limits import TABLE_COUNT_MAX, TABLE_DEPTH_MAX
from polymq.gateways.amqp.tables import (
    Timestamp,
    decode_sized_table,
    decode_table,
    encode_sized_table,
)

NAMES = st.text(max_size=20).filter(lambda text: len(text.encode()) <= 255)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.builds(Timestamp, st.integers(0, 2**31))
    | st.builds(
        lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
        st.integers(0, 2**31 - 1),
        st.integers(0, 9),
    )
)


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    nested = st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=12,
    )
    return st.dictionaries(NAMES, nested, max_size=5)


def as_pika_reads(value: Any) -> Any:
    """Our value in the types that pika gives."""
    if isinstance(value, Timestamp):
        return pika.data.decode_value(b"T" + int(value).to_bytes(8, "big"), 0)[0]
    if isinstance(value, dict):
        return {name: as_pika_reads(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_pika_reads(item) for item in value]
    return value


@given(tables(SCALARS))
def test_what_we_write_pika_reads(table: dict[str, Any]) -> None:
    """Without floating point, which pika reads as integers."""
    raw = encode_sized_table(table)
    read, end = pika.data.decode_table(raw, 0)
    assert as_pika_reads(table) == read
    assert len(raw) == end


@given(tables(SCALARS))
def test_what_pika_writes_we_read(table: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, as_pika_reads(table))
    raw = b"".join(pieces)
    read, end = decode_sized_table(raw, 0, len(raw))
    assert table == read
    assert len(raw) == end


@given(tables(SCALARS | st.floats(allow_nan=False) | st.binary(max_size=10)))
def test_a_table_comes_back(table: dict[str, Any]) -> None:
    raw = encode_sized_table(table)
    assert (table, len(raw)) == decode_sized_table(raw, 0, len(raw))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_table_or_malformed(raw: bytes) -> None:
    """Nothing else is raised."""
    try:
        table = decode_table(raw, 0, len(raw))
    except Malformed:
        return
    assert isinstance(table, dict)


EVERY_TYPE = [
    (b"t\x02", True),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65_534),
    (b"I\xff\xff\xff\xff", -1),
    (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"l" + b"\xff" * 8, -1),
    (b"L" + b"\x7f" + b"\xff" * 7, 2**63 - 1),
    (b"f\x3f\x80\x00\x00", 1.0),
    (b"d\x3f\xf0" + bytes(6), 1.0),
    (b"D\x02\x00\x00\x01\x00", Decimal("2.56")),
    (b"S\x00\x00\x00\x02hi", "hi"),
    (b"S\x00\x00\x00\x01\xff", b"\xff"),
    (b"x\x00\x00\x00\x02hi", b"hi"),
    (b"A\x00\x00\x00\x02VV", [None, None]),
    (b"F\x00\x00\x00\x03\x01kV", {"k": None}),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),  # far beyond year 9999
    (b"V", None),
]


@pytest.mark.parametrize(("raw", "value"), EVERY_TYPE)
def test_every_type_letter_of_rabbitmq(raw: bytes, value: Any) -> None:
    table = decode_table(b"\x01n" + raw, 0, len(raw) + 2)
    assert {"n": value} == table
    assert type(value) is type(table["n"])
    for cut in range(1, len(raw)):
        if raw[0] != ord("V"):
            with pytest.raises(Malformed):
                decode_table(b"\x01n" + raw, 0, cut + 1)


def test_of_equal_names_the_last_counts() -> None:
    assert decode_table(b"\x01aB\x01\x01aB\x02", 0, 8) == {"a": 2}


def nested_tables(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    return table


def test_nesting_ends_at_the_limit_and_not_at_the_stack() -> None:
    """5000 deep is what RabbitMQ accepts and what breaks a recursive decoder."""
    for depth in (TABLE_DEPTH_MAX, 5000):
        raw = nested_tables(depth)
        with pytest.raises(Malformed, match="deeper"):
            decode_table(raw, 0, len(raw))
    raw = nested_tables(TABLE_DEPTH_MAX - 1)
    table = decode_table(raw, 0, len(raw))
    for _ in range(TABLE_DEPTH_MAX - 1):
        table = table["k"]
    assert table == {}


def test_the_count_of_values_is_bounded() -> None:
    raw = b"\x00V" * TABLE_COUNT_MAX
    assert decode_table(raw, 0, len(raw)) == {"": None}
    raw += b"\x00V"
    with pytest.raises(Malformed, match="values"):
        decode_table(raw, 0, len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x05abc",  # the name is longer than the table
        b"\x01a",  # no value
        b"\x01aZ",  # no such type
        b"\x01aU\x00\x01",  # in the PDF, and in nobody's implementation
        b"\x01aS\xff\xff\xff\xffx",  # length past the end
        b"\x01aF\x00\x00\x00\x05\x01k",  # an inner table past the end
        b"\x01aA\x00\x00\x00\x01S",  # an array that ends within a value
        b"\x01aF\x00\x00\x00\x02\x05x",  # an inner name past its table
    ],
)
def test_what_is_malformed_is_said_to_be(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode_table(raw, 0, len(raw))


def test_a_sized_table_stays_within_its_frame() -> None:
    with pytest.raises(Malformed, match="length"):
        decode_sized_table(b"\x00\x00\x00", 0, 3)
    with pytest.raises(Malformed, match="longer"):
        decode_sized_table(b"\x00\x00\x00\x09xx", 0, 6)


@pytest.mark.parametrize(
    "value", [2**63, object(), {"k" * 256: 1}, Decimal(-1), Decimal("NaN"), Decimal(2**32)]
)
def test_what_has_no_form_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_sized_table({"a": value})
