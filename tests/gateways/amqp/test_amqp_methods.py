"""The method codec, the table that it follows, and the file that is generated from it."""

from __future__ import annotations

from typing import Any

import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.methods import content_frames, decode_method, encode_method, short_string
from polymq.gateways.amqp.spec import METHODS, Method
from tests.gateways.amqp import amqp_wire as wire

SHORT = st.text(max_size=30).filter(lambda text: len(text.encode()) <= 255)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ShortString": SHORT,
    "Key": SHORT | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    "LongString": st.binary(max_size=50),
    "Table": st.dictionaries(SHORT, st.integers(-100, 100) | SHORT, max_size=3),
    "U8": st.integers(0, 2**8 - 1),
    "U16": st.integers(0, 2**16 - 1),
    "U32": st.integers(0, 2**32 - 1),
    "U64": st.integers(0, 2**64 - 1),
    "Bit": st.booleans(),
}


@st.composite
def any_method(draw: st.DrawFn) -> Method:
    kind = draw(st.sampled_from(list(METHODS.values())))
    return kind(**{name: draw(VALUES[wire_type]) for name, wire_type in kind.FIELDS})


@given(any_method())
def test_methods_come_back(method: Method) -> None:
    raw = encode_method(method)
    assert method == decode_method(type(method), raw, 4, len(raw))


@given(any_method(), st.data())
def test_every_byte_of_a_method_is_accounted_for(method: Method, data: st.DataObject) -> None:
    """A cut or a trailing byte is malformed, never another method."""
    raw = encode_method(method)
    with pytest.raises(Malformed):
        decode_method(type(method), raw + b"\x00", 4, len(raw) + 1)
    if len(raw) > 4:
        cut = data.draw(st.integers(4, len(raw) - 1))
        with pytest.raises(Malformed):
            decode_method(type(method), raw, 4, cut)


def pika_kinds() -> list[tuple[str, type[Method], Any]]:
    return [
        (kind.NAME, kind, pika.spec.methods[kind.CLASS_ID << 16 | kind.METHOD_ID])
        for kind in METHODS.values()
        if kind.CLASS_ID << 16 | kind.METHOD_ID in pika.spec.methods
    ]


@pytest.mark.parametrize(("name", "ours", "theirs"), pika_kinds(), ids=lambda value: str(value))
def test_pika_reads_what_we_write(name: str, ours: type[Method], theirs: Any) -> None:
    """Each method with a value that differs from field to field, through pika's own codec."""
    samples: dict[str, Any] = {
        "ShortString": "text",
        "Key": "a.key",
        "LongString": b"long",
        "Table": {"x": 1},
        "U8": 7,
        "U16": 300,
        "U32": 70_000,
        "U64": 2**40,
    }
    values = {
        field: (index % 2 == 0) if kind == "Bit" else samples[kind]
        for index, (field, kind) in enumerate(ours.FIELDS)
    }
    read = theirs.__new__(theirs).decode(encode_method(ours(**values)), 4)
    for field, kind in ours.FIELDS:
        found = getattr(read, field, None)
        if found is None:  # pika does not keep ticket and the like
            found = getattr(read, field.rstrip("_"), None)
        if found is None or field == "global_":
            continue
        expected = values[field]
        if kind == "LongString" and isinstance(found, str):
            expected = "long"
        assert expected == found, field


def test_the_numbers_that_are_easy_to_get_wrong() -> None:
    assert (spec.ExchangeUnbindOk.CLASS_ID, spec.ExchangeUnbindOk.METHOD_ID) == (40, 51)
    assert [name for name, _ in spec.QueueUnbind.FIELDS][-1] == "arguments"
    assert "nowait" not in [name for name, _ in spec.QueueUnbind.FIELDS]
    assert spec.ChannelOpenOk.FIELDS == (("channel_id", "LongString"),)
    assert spec.ConnectionOpenOk.FIELDS == (("known_hosts", "ShortString"),)
    assert spec.BasicGetEmpty.FIELDS == (("cluster_id", "ShortString"),)
    assert {85, 90} <= {class_id for class_id, _ in METHODS}


def test_a_field_that_a_method_does_not_have_is_refused() -> None:
    fields: dict[str, Any] = {"queu": "q"}
    with pytest.raises(TypeError, match=r"queue.declare has no field 'queu'"):
        spec.QueueDeclare(**fields)


def test_names_are_utf8_and_routing_keys_are_anything() -> None:
    raw = encode_method(spec.QueueDeclare(queue="caf\u00e9"))
    bad = raw.replace("\u00e9".encode(), b"\xff\xfe")
    with pytest.raises(Malformed, match="UTF-8"):
        decode_method(spec.QueueDeclare, bad, 4, len(bad))
    raw = encode_method(spec.BasicPublish(routing_key="\udcff"))
    assert b"\xff" in raw
    assert decode_method(spec.BasicPublish, raw, 4, len(raw)).routing_key == "\udcff"


def test_short_strings_end_at_255_bytes() -> None:
    assert len(short_string("x" * 255)) == 256
    with pytest.raises(ValueError, match="255"):
        short_string("x" * 256)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000])
def test_contents_are_cut_to_frames(size: int) -> None:
    body = bytes(range(256)) * 40
    body = body[:size]
    method = encode_method(spec.BasicReturn(reply_code=312, routing_key="k"))
    data = content_frames(3, method, b"\x00\x00", body, 4096)
    (sent,) = wire.sent(data)
    assert (body, b"\x00\x00", 3) == (sent.body, sent.properties, sent.channel)
    assert all(len(frame.payload) + 8 <= 4096 for frame in wire.frames(data))
