"""Both forms of the kernel that makes columns of records: the same columns, whatever comes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polymq.spark_sink.envelope import Interpreter
from polymq.spark_sink.kernels import columns
from tests.harness.forms import compiled_form, form_id, forms_of
from tests.remoting.record_builder import build_properties, build_record

FORMS = forms_of(columns.__name__)
BOTH = pytest.mark.skipif(compiled_form(columns.__name__) is None, reason="nothing is compiled")
TAIL = build_properties(PMQ_Q="00000001000000000005", **{"__CRC32#": "0123456789"})
END = 2**63 - 1

Taken = tuple[list[tuple[int, int, int, bool]], list[list[list[bytes | None]]]]


def take(
    form: ModuleType, records: bytes, *, interpret: Any = None, rows_max: int = 5, end: int = END
) -> Taken:
    """Where each call stopped, with the counts and whether it was full; and what was given out."""
    made = form.Columns(interpret or Interpreter(), rows_max=rows_max, bytes_max=2000, row_bytes=7)
    at, offset, stops, given_out = 0, 0, [], []
    while True:
        before = made.row_count
        at = made.take(records, at, 0, offset, end)
        offset += made.row_count - before
        stops.append((at, made.row_count, made.byte_count, made.is_full))
        if not made.is_full:
            break
        given_out.append(parts_of(made))
    given_out.append(parts_of(made))
    return stops, given_out


def parts_of(made: Any) -> list[list[bytes | None]]:
    return [[None if part is None else bytes(part) for part in given] for given in made.give()]


def texts_of(parts: Sequence[bytes | None]) -> list[bytes | None]:
    """The values of a column of texts, by Arrow's rules and not by our code."""
    bits, ends, data = parts
    assert ends is not None
    assert data is not None
    text_ends = struct.unpack(f"<{len(ends) // 4}i", ends)
    return [
        data[start:end] if bits is None or bits[index // 8] >> index % 8 & 1 else None
        for index, (start, end) in enumerate(pairwise(text_ends))
    ]


# --- what comes ---------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        *("TAGS", "KEYS", "UNIQ_KEY", "content-type", "CE_id", "CE_source", "", "a", "b"),
        *("PMQ_PROTO", "PMQ_P", "PMQ_DLQ_REASON", "PMQ_LONG", "PMQ_Q", "PMQ_B", "PMQ_QOS"),
        *("PMQ_AMQP", "PMQ_MQTT5", "__CRC32#", "__CRC32", "PMQ_", "PMQ_DLQ_", "amqp.type"),
    ]
) | st.text(max_size=4)
short_text = st.text(max_size=6).map(str.encode) | st.binary(max_size=4)
short = short_text.map(lambda raw: bytes([len(raw)]) + raw)
FIXED = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "T": 8}
FIXED |= {"V": 0, "f": 4, "d": 8, "D": 5}


def sized(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


fixed_value = st.sampled_from(sorted(FIXED)).flatmap(
    lambda kind: st.binary(min_size=FIXED[kind], max_size=FIXED[kind]).map(
        lambda raw: kind.encode() + raw
    )
)
value = st.one_of(
    fixed_value,
    short_text.map(lambda raw: b"S" + sized(raw)),
    short_text.map(lambda raw: b"x" + sized(raw)),
    st.lists(fixed_value, max_size=2).map(lambda parts: b"A" + sized(b"".join(parts))),
)
table = st.lists(st.tuples(short, value).map(b"".join), max_size=4).map(b"".join).map(sized)
AMQP_KINDS = "sstbbssssqssss"


@st.composite
def amqp_properties(draw: st.DrawFn) -> bytes:
    """Properties of AMQP that are right, or cut short, or too long."""
    flags = draw(st.integers(0, 2**14 - 1)) << 2
    parts = {"s": short, "t": table, "b": st.binary(min_size=1, max_size=1)}
    parts["q"] = st.binary(min_size=8, max_size=8)
    raw = struct.pack(">H", flags) + b"".join(
        draw(parts[kind]) for bit, kind in enumerate(AMQP_KINDS) if flags >> (15 - bit) & 1
    )
    cut = draw(st.just(len(raw)) | st.integers(0, len(raw) + 1))
    return raw[:cut] if cut <= len(raw) else raw + b"\0"


values = st.one_of(
    st.sampled_from(["", "1", "mqtt", "mqtt5", "http", "amqp", "?"]).map(str.encode),
    st.text(max_size=12).map(str.encode),
    st.binary(max_size=6),
    amqp_properties().map(base64.b64encode),
    st.binary(max_size=40).map(base64.b64encode),
)
pair = st.tuples(NAMES.map(lambda name: name.encode("utf-8", "surrogateescape")), values).map(
    lambda both: both[0] + b"\x01" + both[1] + b"\x02"
)
amqp_pair = amqp_properties().map(lambda raw: b"PMQ_AMQP\x01" + base64.b64encode(raw) + b"\x02")
properties = st.one_of(
    st.lists(pair, max_size=8).map(b"".join),
    st.tuples(st.lists(pair, max_size=2).map(b"".join), amqp_pair).map(b"".join),
    st.binary(max_size=30),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Records one after the other, nearly always with the offsets that are to come."""
    made = []
    for offset in range(draw(st.integers(0, 7))):
        made.append(
            build_record(
                topic=draw(st.sampled_from(["t", "sensors", "x" * 127])),
                queue_id=draw(st.sampled_from([0] * 15 + [1])),
                queue_offset=draw(st.sampled_from([offset] * 15 + [offset + 1])),
                position=draw(st.integers(-(2**63), 2**63 - 1)),
                body=draw(st.binary(max_size=30) | st.just(b"\0\0\0\2\0\0body")),
                properties=draw(properties) + draw(st.sampled_from([b"", TAIL])),
                born_ms=draw(st.integers(-(2**63), 2**63 - 1) | st.just(1_700_000_000_000)),
                store_ms=draw(st.integers(-(2**63), 2**63 - 1)),
                system_flag=draw(st.sampled_from([0, 0, 0, 0x10, 0x20, 0x30, 0x301, 0x101])),
                magic=draw(st.sampled_from([0xDAA320A7, 0xDAA320AB])),
            )
        )
    return b"".join(made)


# --- the same of both ---------------------------------------------------------------------------


def assert_alike(records: bytes, *, end: int = END) -> None:
    plain, fast = (take(form, records, end=end) for form in FORMS)
    assert plain == fast


@BOTH
@given(messages(), st.integers(0, 8))
@settings(max_examples=400)
def test_both_forms_make_the_same_columns(records: bytes, end: int) -> None:
    assert_alike(records)
    assert_alike(records, end=end)


@BOTH
@given(messages(), st.data())
@settings(max_examples=300)
def test_both_forms_stop_at_the_same_damage(records: bytes, data: st.DataObject) -> None:
    """A byte that changed, or an end that is missing, anywhere: never a crash, never more rows."""
    if records:
        damaged = bytearray(records)
        damaged[data.draw(st.integers(0, len(records) - 1))] ^= data.draw(st.integers(1, 255))
        assert_alike(bytes(damaged))
    assert_alike(records[: data.draw(st.integers(0, len(records)))])


@BOTH
@given(st.binary(max_size=300))
@example(b"\xff" * 300)
@example(bytes(300))
def test_both_forms_stop_at_what_is_no_record(raw: bytes) -> None:
    assert_alike(raw)
    assert_alike(build_record() + raw)


# --- one by one ---------------------------------------------------------------------------------


def never(*_: object) -> Any:
    raise AssertionError("Python was asked about a message that the kernel reads")


@BOTH
@pytest.mark.parametrize(
    "sent",
    [
        build_properties(PMQ_PROTO="mqtt", PMQ_QOS="1", TAGS="room1.\u00e4\U0001f600"),
        build_properties(
            PMQ_PROTO="http", KEYS="e-1", CE_id="e-1", **{f"CE_x{n}": "v" for n in range(60)}
        ),
        build_properties(
            PMQ_PROTO="amqp",
            PMQ_AMQP=base64.b64encode(
                struct.pack(">H", 0xB080)
                + b"\x04a/bc"
                + sized(b"\x01nI\0\0\0\1\x01sS" + sized("\u00e4".encode()) + b"\x01tt\1\x01vV")
                + b"\x02"
                + b"\x03m-1"
            ).decode(),
        ),
        build_properties(UNIQ_KEY="AC11", KEYS="k", colour="red"),
    ],
    ids=["mqtt", "event", "amqp", "rocketmq"],
)
def test_ordinary_messages_of_each_protocol_cost_no_python(sent: bytes) -> None:
    """Whatever ids they have. MQTT 5 is the exception, whose properties are remembered."""
    fast = FORMS[-1]
    record = build_record(properties=sent + TAIL)
    _, given_out = take(fast, record, interpret=never)
    assert given_out == take(FORMS[0], record)[1]
    assert given_out[0][0] != [None, b""]


@pytest.mark.parametrize("form", FORMS, ids=form_id)
@pytest.mark.parametrize("rows_max", [1, 8, 20])
def test_many_messages_in_batches(form: ModuleType, rows_max: int) -> None:
    """Columns begin anew after each batch; what is absent is absent, in every eighth of a byte."""
    sent = [{"TAGS": f"t{n}"} if n % 3 else {"KEYS": str(n)} for n in range(50)]
    records = b"".join(
        build_record(queue_offset=n, body=b"%d" % n, properties=build_properties(**pairs) + TAIL)
        for n, pairs in enumerate(sent)
    )
    stops, given_out = take(form, records, rows_max=rows_max)
    assert [count for _, count, _, _ in stops[:-1]] == [rows_max] * (50 // rows_max)
    tags = [text for parts in given_out for text in texts_of(parts[5])]
    keys = [text for parts in given_out for text in texts_of(parts[7])]
    bodies = [text for parts in given_out for text in texts_of(parts[12])]
    assert tags == [b"t%d" % n if n % 3 else None for n in range(50)]
    assert keys == [None if n % 3 else b"%d" % n for n in range(50)]
    assert bodies == [b"%d" % n for n in range(50)]


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_what_interpret_raises_is_raised(form: ModuleType) -> None:
    """And the rows before it are there."""

    def broken(properties: bytes, body: bytes, system_flag: int) -> Any:
        if b"PMQ_MQTT5" in properties:
            raise ZeroDivisionError
        return None, None, None, None, b"mqtt", (), body

    made = form.Columns(broken, rows_max=10, bytes_max=1000, row_bytes=1)
    good = build_record(properties=TAIL)
    bad = build_record(queue_offset=1, properties=build_properties(PMQ_MQTT5="") + TAIL)
    with pytest.raises(ZeroDivisionError):
        made.take(good + bad, 0, 0, 0, 9)
    assert made.row_count == 1
    assert texts_of(parts_of(made)[12]) == [b"21.5"]
