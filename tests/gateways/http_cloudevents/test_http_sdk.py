"""Beside the `cloudevents` SDK: the adapter, and agreement where the SDK keeps the rules."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http as sdk_http
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents import codec
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.http_cloudevents.errors import BadEvent
from polymq.gateways.http_cloudevents.sdk_adapter import from_sdk_event, to_sdk_event

TIME = datetime(2026, 5, 3, 9, 30, 0, 250_000, tzinfo=UTC)


def sdk_event(data: Any = None, **attributes: Any) -> CloudEvent:
    base = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": TIME}
    return CloudEvent(attributes=base | attributes, data=data)


# Where the SDK does what the specification says: plain attributes, JSON objects, text, bytes.
AGREED = [
    sdk_event(),
    sdk_event(subject="Euro € 😀", ext="a b%"),
    sdk_event({"a": [1, 2.5, None, "é"]}, datacontenttype="application/json"),
    sdk_event(b"\x00\xff", datacontenttype="application/octet-stream"),
    sdk_event("hello", datacontenttype="text/plain"),
    sdk_event({"x": 1}, datacontenttype="application/json", partitionkey="k", dataschema="x:y"),
]


def our_view(message: Any) -> Event:
    """What our codec reads from a message of the SDK."""
    headers = dict(message.headers)
    content_type = headers.get("content-type") or headers.get("Content-Type")
    if codec.content_mode(content_type) is codec.Mode.STRUCTURED:
        return codec.decode_structured(message.body)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return codec.decode_binary(raw, content_type, message.body)


@pytest.mark.parametrize("event", AGREED, ids=lambda event: str(event.get_datacontenttype()))
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_the_sdk_writes_we_read(event: CloudEvent, mode: str) -> None:
    write = sdk_http.to_binary_event if mode == "binary" else sdk_http.to_structured_event
    found = to_sdk_event(our_view(write(event)))
    assert found.get_attributes() == event.get_attributes()
    if mode == "binary" or event.get_datacontenttype() != "application/octet-stream":
        assert found.get_data() == event.get_data()


@pytest.mark.parametrize("event", AGREED, ids=lambda event: str(event.get_datacontenttype()))
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_we_write_the_sdk_reads(event: CloudEvent, mode: str) -> None:
    ours = from_sdk_event(event)
    if mode == "binary":
        headers, body = codec.encode_binary(ours)
    else:
        headers, body = [("content-type", codec.STRUCTURED)], codec.encode_structured(ours)
    message = sdk_http.HTTPMessage(headers=dict(headers), body=body)
    found = sdk_http.from_http_event(message)
    assert found.get_attributes() == event.get_attributes()
    assert found.get_data() == event.get_data()


@given(
    st.dictionaries(
        st.text("abcdefghij", min_size=3, max_size=8),
        st.text('abc é€%"\\', min_size=1, max_size=8),
        max_size=4,
    )
)
def test_header_encodings_agree(extensions: dict[str, str]) -> None:
    """The SDK's encoder and ours write the same headers; each reads the other's."""
    event = sdk_event(**extensions)
    theirs = {
        name.lower(): value for name, value in sdk_http.to_binary_event(event).headers.items()
    }
    ours = dict(codec.encode_binary(from_sdk_event(event))[0])
    for name in extensions:
        assert ours[f"ce-{name}"] == theirs[f"ce-{name}"]
    found = sdk_http.from_http_event(sdk_http.HTTPMessage(headers=ours, body=b""))
    assert {name: found.get_attributes()[name] for name in extensions} == extensions


# --- the adapter ------------------------------------------------------------------------------


def test_adapter_types() -> None:
    """JSON's booleans and integers and the time become Python's, and come back."""
    document = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2026-05-03T09:30:00.250Z",
        "n": 5,
        "flag": True,
        "data": {"a": 1},
    }
    event = codec.decode_structured(json.dumps(document).encode())
    found = to_sdk_event(event)
    assert found.get_time() == TIME
    assert found.get_extension("n") == 5
    assert found.get_extension("flag") is True
    assert found.get_data() == {"a": 1}
    back = from_sdk_event(found)
    assert back.types == {"n": "integer", "flag": "boolean"}
    assert json.loads(codec.encode_structured(back)) == document | {
        "time": "2026-05-03T09:30:00.250000Z",
        "datacontenttype": "application/json",
    }


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-05-03T09:30:00.123456789Z", 123_456),
        ("2026-05-03t09:30:00.1z", 100_000),
        ("2026-05-03T10:30:00+01:00", 0),
    ],
)
def test_times_with_any_digits(text: str, microsecond: int) -> None:
    event = codec.decode_structured(
        json.dumps(
            {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": text}
        ).encode()
    )
    assert to_sdk_event(event).get_time() == TIME.replace(microsecond=microsecond)


def test_what_the_sdk_does_not_check_we_do() -> None:
    with pytest.raises(BadEvent, match="source"):
        from_sdk_event(sdk_event(source="not a uri"))
    with pytest.raises(TypeError, match="dict cannot be text/plain"):
        from_sdk_event(sdk_event({"a": 1}, datacontenttype="text/plain"))
