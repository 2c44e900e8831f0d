"""Events and attribute values for hypothesis."""

from __future__ import annotations

import json
from base64 import b64encode

from hypothesis import strategies as st

from polymq.gateways.http_cloudevents.attributes import FORBIDDEN, encode_header_value
from polymq.gateways.http_cloudevents.codec import Event, decode_binary, decode_structured


def attribute_texts(min_size: int = 0) -> st.SearchStrategy[str]:
    """Values of the type String: any character that CloudEvents does not exclude."""
    return (
        st.text(st.characters(codec="utf-8"), min_size=min_size, max_size=30)
        .map(lambda text: FORBIDDEN.sub("", text))
        .filter(lambda text: len(text) >= min_size)
    )


names = st.from_regex(r"[a-z0-9]{1,25}", fullmatch=True).filter(
    lambda name: (
        name not in ("data", "datacontenttype", "dataschema", "subject", "time")
        and name not in ("id", "source", "type", "specversion", "partitionkey")
    )
)
content_types = st.sampled_from(
    [
        "application/json",
        "application/vnd.acme+json; x=y",
        "text/plain",
        "text/html; charset=iso-8859-1",
        "text/json",
        "application/xml",
        "image/png",
        "application/octet-stream",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
).filter(lambda value: "\\ud" not in json.dumps(value))


@st.composite
def core_attributes(draw: st.DrawFn) -> dict[str, str]:
    attributes = {
        "specversion": "1.0",
        "id": draw(attribute_texts(1)),
        "source": draw(st.sampled_from(["/s", "urn:x:1", "https://example.com/%20?q#f", "#f"])),
        "type": draw(attribute_texts(1)),
    }
    if draw(st.booleans()):
        attributes["subject"] = draw(attribute_texts(1))
    if draw(st.booleans()):
        attributes["time"] = draw(
            st.sampled_from(["2026-05-03T09:30:00.123456789Z", "2016-12-31t23:59:60+01:30"])
        )
    if draw(st.booleans()):
        attributes["partitionkey"] = draw(attribute_texts(1))
    return attributes


@st.composite
def binary_events(draw: st.DrawFn) -> Event:
    """Events that came in binary mode."""
    attributes = draw(core_attributes())
    attributes |= draw(st.dictionaries(names, attribute_texts(), max_size=3))
    headers = [
        (f"ce-{name}".encode(), encode_header_value(value).encode())
        for name, value in attributes.items()
    ]
    content_type = draw(st.none() | content_types)
    body = draw(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
    return decode_binary(headers, content_type, body)


@st.composite
def structured_events(draw: st.DrawFn) -> Event:
    """Events that came as JSON, in every form of data."""
    document: dict[str, object] = dict(draw(core_attributes()))
    document |= draw(
        st.dictionaries(
            names,
            attribute_texts() | st.booleans() | st.integers(-(2**31), 2**31 - 1),
            max_size=3,
        )
    )
    form = draw(st.sampled_from(["none", "implied", "json", "text", "base64"]))
    if form == "implied":
        document["data"] = draw(json_values)
    elif form == "json":
        document["datacontenttype"] = draw(st.sampled_from(["application/json", "x/y+json"]))
        document["data"] = draw(json_values)
    elif form == "text":
        document["datacontenttype"] = draw(st.sampled_from(["text/plain", "application/xml"]))
        document["data"] = draw(st.text(st.characters(codec="utf-8"), max_size=20))
    elif form == "base64":
        if draw(st.booleans()):
            document["datacontenttype"] = draw(content_types)
        document["data_base64"] = b64encode(draw(st.binary(max_size=30))).decode()
    items = draw(st.permutations(list(document.items())))
    ascii_only = draw(st.booleans())
    body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=draw(st.none() | st.just(1)))
    return decode_structured(body.encode())


def events() -> st.SearchStrategy[Event]:
    """Events of both modes."""
    return binary_events() | structured_events()
