"""To and from event objects of the `cloudevents` SDK (`pip install cloudevents`), for programs
that read PolyMQ's events with our codec and work with the SDK's objects.

The SDK keeps less than an event has: data as Python values, time as `datetime`. So an event that
goes through it and back is equal in meaning, not byte for byte; what has to stay as it is should
not pass here. The server does not use this file.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from polymq.gateways.http_cloudevents.attributes import (
    charset_codec,
    check_name,
    check_required,
    check_value,
    is_json,
    media_type,
)
from polymq.gateways.http_cloudevents.codec import Event, Form

_FRACTION_DIGITS = 6
"""Of a second, which `datetime` keeps."""


def to_sdk_event(event: Event) -> CloudEvent:
    """The SDK's object of an event.

    Data becomes a Python value if its media type is JSON, a `str` if it is text, else `bytes`.

    Raises:
        ValueError: JSON data that does not parse, a leap second.
    """
    attributes: dict[str, Any] = dict(event.attributes)
    if event.content_type is not None:
        attributes["datacontenttype"] = event.content_type
    for name, kind in event.types.items():
        attributes[name] = (
            int(attributes[name]) if kind == "integer" else attributes[name] == "true"
        )
    if "time" in attributes:
        attributes["time"] = _datetime(attributes["time"])
    return CloudEvent(attributes=attributes, data=_sdk_data(event))


def from_sdk_event(event: CloudEvent) -> Event:
    """The event of an SDK's object.

    Raises:
        BadEvent: an attribute breaks a rule that the SDK does not check.
        TypeError: data that is neither JSON by its media type, nor text, nor bytes.
    """
    attributes: dict[str, str] = {}
    types: dict[str, str] = {}
    for name, value in event.get_attributes().items():
        if value is None:
            continue
        check_name(name)
        if isinstance(value, bool):
            attributes[name], types[name] = ("true" if value else "false"), "boolean"
        elif isinstance(value, int):
            attributes[name], types[name] = str(value), "integer"
        elif isinstance(value, datetime):
            attributes[name] = value.isoformat().replace("+00:00", "Z")
        else:
            attributes[name] = str(value)
        check_value(name, attributes[name])
    check_required(attributes)
    data, form = _our_data(event.get_data(), attributes.get("datacontenttype"))
    return Event(attributes=attributes, data=data, form=form, types=types)


def _datetime(text: str) -> datetime:
    """RFC 3339 with any number of digits, which `datetime` takes six of."""
    text = text.upper().replace("Z", "+00:00")
    whole, point, rest = text.partition(".")
    if point:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{whole}.{digits[:_FRACTION_DIGITS]:0<6}{rest[len(digits) :]}"
    return datetime.fromisoformat(text)


def _sdk_data(event: Event) -> Any:
    if event.data is None:
        return None
    content_type = event.content_type or ""
    if is_json(content_type):
        return json.loads(event.data)
    if media_type(content_type).startswith("text/") or event.form is Form.TEXT:
        return event.data.decode(charset_codec(content_type) or "utf-8")
    return event.data


def _our_data(data: Any, content_type: str | None) -> tuple[bytes | None, Form]:
    if data is None:
        return None, Form.NONE
    if isinstance(data, bytes | bytearray):
        return bytes(data), Form.BASE64
    if content_type is None or is_json(content_type):
        return json.dumps(data, ensure_ascii=False).encode("utf-8"), Form.JSON
    if isinstance(data, str):
        return data.encode(charset_codec(content_type) or "utf-8"), Form.TEXT
    raise TypeError(f"data of type {type(data).__name__} cannot be {content_type}")
