"""The CloudEvents codec against the rules: tables of wire cases, and round trips."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents import codec
from polymq.gateways.http_cloudevents.attributes import decode_header_value, encode_header_value
from polymq.gateways.http_cloudevents.codec import Event, Form, Mode
from polymq.gateways.http_cloudevents.errors import BadBatch, BadEvent, Problem
from tests.gateways.http_cloudevents.event_strategies import attribute_texts, events
from tests.gateways.http_cloudevents.http_work import decode_batch

WIRE_CASES = Path(__file__).resolve().parents[2] / "wire_cases"


def cases(name: str) -> list[Any]:
    loaded = json.loads((WIRE_CASES / f"cloudevents_{name}.json").read_text())
    return [pytest.param(case, id=case["name"]) for case in loaded]


def expected_data(case: dict[str, Any]) -> bytes | None:
    if "data_latin1" in case:
        return str(case["data_latin1"]).encode("latin-1")
    return None if case["data"] is None else str(case["data"]).encode()


# --- the tables -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("structured"))
def test_structured_case(case: dict[str, Any]) -> None:
    """One JSON document: exactly this event, or an error that names exactly this attribute."""
    body = case["body"].encode()
    if "error" in case:
        with pytest.raises(BadEvent) as raised:
            codec.decode_structured(body)
        assert raised.value.attribute == case["error"]
        return
    event = codec.decode_structured(body)
    assert dict(event.attributes) == case["attributes"]
    assert event.form == Form(case["form"])
    assert event.data == expected_data(case)


@pytest.mark.parametrize("case", cases("binary"))
def test_binary_case(case: dict[str, Any]) -> None:
    """One set of headers: exactly this event, or an error that names exactly this attribute."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in case["headers"]]
    body = case["body"].encode()
    if "error" in case:
        with pytest.raises(BadEvent) as raised:
            codec.decode_binary(headers, case["content_type"], body)
        assert raised.value.attribute == case["error"]
        return
    event = codec.decode_binary(headers, case["content_type"], body)
    assert dict(event.attributes) == case["attributes"]
    assert event.form is Form.BINARY
    assert event.data == expected_data(case)


@pytest.mark.parametrize("case", cases("batch"))
def test_batch_case(case: dict[str, Any]) -> None:
    """One array: these events, or every bad element named with its place and id."""
    body = case["body"].encode()
    if "faults" in case:
        with pytest.raises(BadBatch) as raised:
            decode_batch(body, count_max=100)
        faults = [[fault.index, fault.id, fault.attribute] for fault in raised.value.faults]
        assert faults == case["faults"]
    elif "error" in case:
        with pytest.raises(BadEvent) as refused:
            decode_batch(body, count_max=100)
        assert refused.value.attribute == case["error"]
    else:
        found = decode_batch(body, count_max=100)
        assert [event.attributes["id"] for event in found] == case["ids"]


@pytest.mark.parametrize("case", cases("structured"))
def test_structured_cases_survive_encoding(case: dict[str, Any]) -> None:
    """Whatever was taken is spelled again so that it reads as the same event, bytes of data too."""
    if "error" not in case:
        event = codec.decode_structured(case["body"].encode())
        assert codec.decode_structured(codec.encode_structured(event)) == event


# --- content modes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        (None, Mode.BINARY),
        ("", Mode.BINARY),
        ("application/json", Mode.BINARY),
        ("text/plain; x=application/cloudevents", Mode.BINARY),
        ("application/cloudevents+json", Mode.STRUCTURED),
        ("Application/CloudEvents+JSON; charset=UTF-8", Mode.STRUCTURED),
        ("application/cloudevents+json;charset=us-ascii", Mode.STRUCTURED),
        ("application/cloudevents-batch+json", Mode.BATCH),
        ("APPLICATION/cloudevents-BATCH+json; charset=utf-8", Mode.BATCH),
    ],
)
def test_content_type_announces_the_mode(content_type: str | None, mode: Mode) -> None:
    assert codec.content_mode(content_type) is mode


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents",
        "application/cloudevents+avro",
        "application/cloudevents+xml",
        "application/cloudevents-batch+protobuf",
        "application/cloudevents+json; charset=utf-16",
    ],
)
def test_unknown_event_format_is_415(content_type: str) -> None:
    """The webhook specification: a format that is not understood MUST be refused with 415."""
    with pytest.raises(Problem) as raised:
        codec.content_mode(content_type)
    assert raised.value.status == 415


# --- corners ----------------------------------------------------------------------------------


def test_invalid_utf8_is_refused_where_the_parser_would_take_it() -> None:
    """Raw values skip the UTF-8 check: bytes inside `data` are checked too."""
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"\xff"}'
    with pytest.raises(BadEvent, match="not UTF-8 at byte 63"):
        codec.decode_structured(body)
    with pytest.raises(BadEvent, match="not UTF-8"):
        decode_batch(b"[" + body + b"]", count_max=1)


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
def test_deep_nesting_is_an_error_of_the_sender(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":' + nested + b"}"
    with pytest.raises(BadEvent, match="nested too deeply"):
        codec.decode_structured(body)
    with pytest.raises(BadEvent, match="nested too deeply"):
        decode_batch(b"[" + body + b"]", count_max=1)


def test_too_many_events_in_a_batch() -> None:
    body = b"[" + b",".join([b"{}"] * 11) + b"]"
    with pytest.raises(Problem) as raised:
        decode_batch(body, count_max=10)
    assert raised.value.status == 413


def test_faults_of_a_batch_are_bounded() -> None:
    """A batch of a million bad events must not become an answer of a million lines."""
    with pytest.raises(BadBatch) as raised:
        decode_batch(b"[" + b",".join([b"{}"] * 50) + b"]", count_max=100, faults_max=7)
    assert len(raised.value.faults) == 7
    assert raised.value.more


def test_an_error_never_carries_control_characters() -> None:
    """What a client sends comes back in answers and logs, but not raw."""
    with pytest.raises(BadEvent) as raised:
        codec.decode_structured(b'{"a\\u0000\\n\\u001b[31m":1}')
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("content_type", "data", "spelled"),
    [
        ("application/json", b'{"a": 1}', b'"data":{"a": 1}'),
        ("application/json", b"{broken", b'"data_base64":"e2Jyb2tlbg=="'),
        ("application/json", b'"\xff"', b'"data_base64":"Iv8i"'),
        ("application/json", b"\xef\xbb\xbf{}", b'"data_base64":"77u/e30="'),
        ("application/vnd.x+json", b"[1]", b'"data":[1]'),
        ("text/plain", b"a\n\x00", b'"data":"a\\n\\u0000"'),
        ("text/plain", b"\xff", b'"data_base64":"/w=="'),
        ("text/plain; charset=iso-8859-1", b"\xe9", '"data":"é"'.encode()),
        ("text/plain; charset=us-ascii", b"\xc3\xa9", b'"data_base64":"w6k="'),
        ("text/plain; charset=ebcdic", b"a", b'"data_base64":"YQ=="'),
        ("text/json", b"{broken", b'"data_base64":"e2Jyb2tlbg=="'),
        ("text/json", b'"x"', b'"data":"x"'),
        ("application/xml", b"<x/>", b'"data_base64":"PHgvPg=="'),
        (None, b"[1]", b'"data_base64":"WzFd"'),
    ],
)
def test_how_binary_data_is_spelled_in_json(
    content_type: str | None, data: bytes, spelled: bytes
) -> None:
    """Binary to structured: a value, a text or base64, and always the same bytes back."""
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    encoded = codec.encode_structured(Event(attributes=attributes, data=data))
    assert encoded.endswith(spelled + b"}")
    back = codec.decode_structured(encoded)
    assert back.data == data
    assert dict(back.attributes) == attributes


def test_implied_json_is_named_in_binary_mode() -> None:
    """JSON format 3.1.1: what was implied SHOULD be said when the event is encoded otherwise."""
    event = codec.decode_structured(
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"x"}'
    )
    headers, body = codec.encode_binary(event)
    assert ("Content-Type", "application/json") in headers
    assert body == b'"x"'
    assert b"datacontenttype" not in codec.encode_structured(event)


def test_integers_and_booleans_are_spelled_again_as_such() -> None:
    event = codec.decode_structured(
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","n":-5,"b":true,"s":"1"}'
    )
    encoded = codec.encode_structured(event)
    assert b'"n":-5,"b":true,"s":"1"' in encoded


# --- header values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("plain-._~!*'()", "plain-._~!*'()"),
        ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
        ('a"b', "a%22b"),
        ("100%", "100%25"),
        ("\u00e9", "%C3%A9"),
        ("a+b/c?d=e&f#g", "a+b/c?d=e&f#g"),
    ],
)
def test_header_form_of_values(value: str, header: str) -> None:
    """HTTP binding 3.1.3.2, upper-case digits as it recommends."""
    assert encode_header_value(value) == header
    assert decode_header_value("x", header.encode()) == value


@given(attribute_texts())
def test_header_values_round_trip(value: str) -> None:
    header = encode_header_value(value)
    assert all("\x21" <= char <= "\x7e" for char in header)
    assert decode_header_value("x", header.encode()) == value


@given(st.binary(max_size=40))
def test_any_header_bytes_are_a_value_or_an_error(raw: bytes) -> None:
    """No other exception, whatever stands in a header."""
    try:
        value = decode_header_value("x", raw)
    except BadEvent:
        return
    assert value.encode("utf-8").decode("utf-8") == value


# --- round trips ------------------------------------------------------------------------------


@given(events())
def test_structured_round_trip(event: Event) -> None:
    """Encoded and decoded again: the same attributes, types, and bytes of data."""
    back = codec.decode_structured(codec.encode_structured(event))
    assert dict(back.attributes) == dict(event.attributes)
    assert back.data == event.data
    assert back.types == event.types


@given(events())
def test_binary_round_trip(event: Event) -> None:
    """The header form loses no attribute and no byte; only JSON's types become strings."""
    headers, body = codec.encode_binary(event)
    raw = [(name.encode(), value.encode()) for name, value in headers if name != "Content-Type"]
    back = codec.decode_binary(raw, dict(headers).get("Content-Type"), body)
    expected = dict(event.attributes)
    if event.content_type is not None:
        expected["datacontenttype"] = event.content_type
    assert dict(back.attributes) == expected
    assert (back.data or b"") == (event.data or b"")


@given(st.lists(events(), max_size=5))
def test_batch_round_trip(several: list[Event]) -> None:
    back = decode_batch(codec.encode_batch(several), count_max=10)
    assert [dict(event.attributes) for event in back] == [dict(e.attributes) for e in several]
    assert [event.data for event in back] == [event.data for event in several]


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]",:0123abc\\u \n', max_size=60).map(str.encode)
)
def test_any_bytes_are_an_event_or_an_error(body: bytes) -> None:
    """Whatever the bytes: an event, or an error that names the sender. Nothing else."""
    for decode in (codec.decode_structured, lambda body: decode_batch(body, count_max=9)):
        with contextlib.suppress(BadEvent, BadBatch, Problem):
            assert decode(body) is not None
