"""CloudEvents 1.0 on HTTP: the three content modes in both directions, byte for byte.

Rules of this file:

* Data is never decoded and encoded again. Structured JSON is cut apart with `msgspec.Raw`, so the
  value of `data` leaves as the very bytes that came; binary data is not looked at.
* It is strict: what breaks a MUST is a `BadEvent`, never repaired.
* No clock, no socket, no engine.

Theory. An `Event` is held as binary mode would send it: attributes as canonical strings, data as
the body. `form` remembers how structured JSON spelled the data (a JSON value, a text, base64, not
at all) and `types` which extensions were JSON booleans or numbers, so the event can be spelled
that way again. An event that came in binary mode has `Form.BINARY`; spelling it as JSON follows
the JSON format, part 3.1: a JSON value if its media type says JSON and it parses, a text if the
media type is `text/*` and it decodes, base64 otherwise.

Two gaps of the JSON parser are closed here. `Raw` does not check UTF-8, so an event is decoded once
before it is cut; and the last of two equal member names wins, so `read_members` walks over the
members in the text, takes the ends of values from the parser's result, and refuses a name that it
has met.

Batches, and events that are large, are taken apart in `bulk_json.py`.
"""

from __future__ import annotations

import binascii
import enum
import re
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from polymq.gateways.http_cloudevents.attributes import (
    CHECKS,
    OPTIONAL,
    REQUIRED,
    charset_codec,
    check_name,
    check_required,
    check_value,
    decode_header_value,
    encode_header_value,
    is_json,
    media_type,
    printable,
)
from polymq.gateways.http_cloudevents.errors import BadEvent, Problem
from polymq.gateways.http_cloudevents.kernels.codes import DEPTH_MAX, SPAN_COLUMNS, TOO_DEEP
from polymq.gateways.http_cloudevents.kernels.texts import children

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"


class Mode(enum.Enum):
    """The content mode of a request."""

    BINARY = "binary"
    STRUCTURED = "structured"
    BATCH = "batch"


class Form(enum.Enum):
    """How an event spelled its data."""

    BINARY = "binary"
    """Binary mode: the body."""
    JSON = "json"
    """Structured: member `data` with a JSON media type, or none."""
    TEXT = "text"
    """Structured: member `data`, a string, with another media type."""
    BASE64 = "base64"
    """Structured: member `data_base64`."""
    NONE = "none"
    """Structured, without data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One CloudEvent.

    Attributes:
        attributes: name to canonical string, in the order in which they came; `datacontenttype`
            among them only if the event has it.
        data: the body that binary mode would carry; None without data.
        form: how the data was spelled.
        types: `boolean` or `integer` for extensions that were so in JSON.
    """

    attributes: Mapping[str, str]
    data: bytes | None
    form: Form = Form.BINARY
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def content_type(self) -> str | None:
        """The media type of the data, implied ones included (JSON format 3.1.1)."""
        declared = self.attributes.get("datacontenttype")
        if declared is None and self.form is Form.JSON:
            return "application/json"
        return declared


# --- reading ----------------------------------------------------------------------------------


def content_mode(content_type: str | None) -> Mode:
    """The content mode that a Content-Type announces (HTTP binding 3.1 to 3.3).

    Raises:
        Problem: 415 for an event format other than JSON in UTF-8.
    """
    kind = media_type(content_type or "")
    if not kind.startswith("application/cloudevents"):
        return Mode.BINARY
    if kind not in (STRUCTURED, BATCHED):
        raise Problem(
            415,
            "Event format not understood",
            f"{printable(kind)} is not supported; send {STRUCTURED}, {BATCHED} or binary mode",
        )
    if charset_codec(content_type or "") not in ("utf-8", "ascii"):
        raise Problem(415, "Event format not understood", "JSON events have to be sent as UTF-8")
    return Mode.BATCH if kind == BATCHED else Mode.STRUCTURED


def is_cloudevent(raw_headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request in binary mode means to be a CloudEvent: it has a `ce-` header."""
    return any(name[:3].lower() == b"ce-" for name, _ in raw_headers)


def decode_binary(
    raw_headers: Iterable[tuple[bytes, bytes]], content_type: str | None, body: bytes
) -> Event:
    """The event of a request in binary mode.

    Args:
        raw_headers: names and values as they came, duplicates included.
        content_type: the Content-Type header, if there is one.
        body: the body. An empty one means no data.

    Raises:
        BadEvent: a rule is broken.
    """
    attributes: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        if raw_name[:3].lower() != b"ce-":
            continue
        name = raw_name[3:].lower().decode("latin-1")
        check_name(name)
        if name == "datacontenttype":
            raise BadEvent(name, "travels as Content-Type in binary mode; remove the ce- header")
        if name in attributes:
            raise BadEvent(name, f"was sent twice; send the header ce-{name} once")
        value = decode_header_value(name, raw_value.strip(b" \t"))
        check_value(name, value)
        attributes[name] = value
    check_required(attributes)
    if content_type is not None:
        check_value("datacontenttype", content_type)
        attributes["datacontenttype"] = content_type
    return Event(attributes=attributes, data=body or None)


def decode_structured(body: bytes) -> Event:
    """The event of a request in structured mode. Raises BadEvent."""
    return decode_object(body)


_DECODE_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_DECODE_TEXT: Final = msgspec.json.Decoder(str).decode
_SPACE: Final = r"[ \t\n\r]*"
_PLAIN_MEMBER: Final = re.compile(
    _SPACE
    + '"(?!data")([a-z0-9]+)"'
    + _SPACE
    + ":"
    + _SPACE
    + r'"([ !#-\[\]-~]*)"'
    + _SPACE
    + "([,}])"
)
"""An attribute whose value is printable ASCII without escapes: nearly all of them. What matches
needs no further look at its characters."""
_MEMBER: Final = re.compile(_SPACE + r'("(?:[^"\\]|\\.)*+")' + _SPACE + ":" + _SPACE)
_DELIMITER: Final = re.compile(_SPACE + "([,}])")


@dataclass(frozen=True, slots=True)
class Members:
    """The members of an event's JSON object.

    Attributes:
        attributes: name to canonical string, in the order in which they came.
        others: what else stood there, as spelled; `data` and `data_base64` among it.
        types: as in `Event`.
    """

    attributes: dict[str, str]
    others: dict[str, bytes]
    types: dict[str, str]


def decode_object(body: bytes) -> Event:
    """The event of one JSON object. Raises BadEvent."""
    members = read_members(body)
    form, codec = check_data(members)
    if form is Form.JSON:
        content: bytes | None = members.others["data"]
    elif form is Form.TEXT:
        try:
            content = decode_string("data", members.others["data"]).encode(codec)
        except UnicodeEncodeError:
            raise bad_text() from None
    elif form is Form.BASE64:
        text = decode_string("data_base64", members.others["data_base64"])
        try:
            content = decode_base64(text)
        except ValueError:  # binascii.Error, and characters outside ASCII
            raise bad_base64() from None
    else:
        content = None
    return event_of_members(members, content, form)


def event_of_members(members: Members, content: bytes | None, form: Form) -> Event:
    """The event that has these members, and this data."""
    return Event(attributes=members.attributes, data=content, form=form, types=members.types)


def read_members(body: bytes) -> Members:
    """The members of one JSON object, checked but for its data. Raises BadEvent."""
    text = _utf8(body)
    try:
        parsed = _DECODE_OBJECT(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEvent("event", _json_fault(error, "object")) from None
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        _check_depth(body, len(parsed))
    attributes: dict[str, str] = {}
    others: dict[str, bytes] = {}
    at = text.index("{") + 1
    delimiter = "," if parsed else "}"
    while delimiter == ",":
        found = _PLAIN_MEMBER.match(text, at)
        if found is not None:
            name, value, delimiter = found.groups()
            if name in attributes:
                raise _duplicate(name)
            check = CHECKS.get(name)
            if check is not None:
                check(name, value)
            attributes[name] = value
            at = found.end()
        else:
            name, at, delimiter = _other_member(text, at, parsed, others)
            if name in attributes:
                raise _duplicate(name)
            attributes[name] = ""  # Keeps the place; replaced or removed below.
    types = _take_others(attributes, others) if others else {}
    check_required(attributes)
    return Members(attributes, others, types)


def _other_member(
    text: str, at: int, parsed: Mapping[str, msgspec.Raw], others: dict[str, bytes]
) -> tuple[str, int, str]:
    """Take any member at `at`: its name, the place after its delimiter, the delimiter.

    The parser kept the last value of each name. If another value stands here, this name comes
    again: two equal ones in a row come to light when the second is taken.
    """
    found = _MEMBER.match(text, at)
    assert found is not None, "the parser saw a member here"
    quoted = found.group(1)
    name = _DECODE_TEXT(quoted) if "\\" in quoted else quoted[1:-1]
    raw = bytes(parsed[name])
    value = raw.decode("utf-8")
    delimiter = _DELIMITER.match(text, found.end() + len(value))
    if not text.startswith(value, found.end()) or delimiter is None:
        raise _duplicate(name)
    others[name] = raw
    return name, delimiter.end(), delimiter.group(1)


def _take_others(attributes: dict[str, str], others: dict[str, bytes]) -> dict[str, str]:
    """Give the members that were not plain their values as attributes; return their types."""
    types: dict[str, str] = {}
    for name, raw in others.items():
        if name in ("data", "data_base64"):
            del attributes[name]
            continue
        check_name(name)
        if raw == b"null":  # A null attribute is an absent one (JSON format 2.2).
            del attributes[name]
            continue
        attributes[name], kind = _attribute(name, raw)
        check_value(name, attributes[name])
        if kind is not None:
            types[name] = kind
    return types


def _duplicate(name: str) -> BadEvent:
    return BadEvent(printable(name), "occurs twice in the event; send each member once")


_CORE: Final = frozenset(REQUIRED + OPTIONAL)
_INTEGER_MAX: Final = 2**31 - 1


def _attribute(name: str, raw: bytes) -> tuple[str, str | None]:
    """The canonical string of a JSON attribute value, and its type if that is not String."""
    first = raw[:1]
    if first == b'"':
        return decode_string(name, raw), None
    if name in _CORE:
        raise BadEvent(name, "is not a JSON string; put it in double quotes")
    if first in (b"t", b"f"):
        return raw.decode("ascii"), "boolean"
    if first in (b"{", b"["):
        raise BadEvent(name, "is an object or array; attributes are strings, booleans or integers")
    try:
        number = msgspec.json.decode(raw, type=int)
    except msgspec.DecodeError:
        number = _INTEGER_MAX + 1
    if not -_INTEGER_MAX - 1 <= number <= _INTEGER_MAX:
        raise BadEvent(name, "is not a 32-bit integer; send the number as a string")
    return str(number), "integer"


def bad_text() -> BadEvent:
    """The data has a character that its charset lacks."""
    return BadEvent("data", "does not fit the charset of datacontenttype")


def decode_base64(text: str) -> bytes:
    """Base64 with padding, and nothing else. Raises ValueError."""
    if len(text) % 4 or text.endswith("==="):  # Python's strict mode takes `AAAA=`
        raise ValueError("no whole groups of four characters")
    return binascii.a2b_base64(text, strict_mode=True)


def bad_base64() -> BadEvent:
    """The data is no base64."""
    return BadEvent("data_base64", "is not base64 (RFC 4648, with padding)")


def check_data(members: Members) -> tuple[Form, str]:
    """How the data is spelled, and the codec of a text. Raises BadEvent."""
    data, data_base64 = members.others.get("data"), members.others.get("data_base64")
    if data_base64 == b"null":
        data_base64 = None
    if data is not None and data_base64 is not None:
        raise BadEvent("data_base64", "is sent together with data; send one of the two")
    if data_base64 is not None:
        if data_base64[:1] != b'"':
            raise BadEvent("data_base64", "is not a JSON string")
        return Form.BASE64, ""
    if data is None:
        return Form.NONE, ""
    content_type = members.attributes.get("datacontenttype")
    if content_type is None or is_json(content_type):
        return Form.JSON, ""
    if data == b"null":  # No text: the way in which some senders say that there is no data.
        return Form.NONE, ""
    if data[:1] != b'"':
        raise BadEvent(
            "data",
            f"is a JSON value but datacontenttype is {printable(content_type)}; "
            "send a string, or data_base64",
        )
    codec = charset_codec(content_type)
    if codec is None:
        raise BadEvent("data", "has a charset that is not supported; send data_base64")
    return Form.TEXT, codec


def decode_string(name: str, raw: bytes) -> str:
    """The text that a JSON string spells. Raises BadEvent."""
    try:
        return _DECODE_TEXT(raw)
    except msgspec.DecodeError:
        raise BadEvent(name, "is not a valid JSON string") from None


def _check_depth(body: bytes, count: int) -> None:
    """Raise BadEvent for an object with so many members that has too many values within one
    another. (How deep the parser goes by itself depends on the version of Python.)"""
    spans = array("q", bytes(8 * SPAN_COLUMNS * (count + 1)))
    if children(body, 0, len(body), ord("{"), count + 1, spans) == TOO_DEEP:
        raise BadEvent("event", "is nested too deeply")


def _utf8(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadEvent("event", f"is not UTF-8 at byte {error.start}; JSON is UTF-8") from None


def _json_fault(error: Exception, wanted: str) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return f"is not a JSON {wanted}"
    return f"is not JSON: {error}"


def id_of(element: bytes) -> str | None:
    """The id of a bad event for the error, as far as it can be read."""
    try:
        return printable(msgspec.json.decode(element, type=_OnlyId).id)
    except (msgspec.DecodeError, RecursionError):
        return None


class _OnlyId(msgspec.Struct):
    id: str


# --- writing ----------------------------------------------------------------------------------


def encode_binary(event: Event) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of an event in binary mode."""
    headers = [
        (f"ce-{name}", encode_header_value(value))
        for name, value in event.attributes.items()
        if name != "datacontenttype"
    ]
    content_type = event.content_type
    if content_type is not None:
        headers.append(("Content-Type", content_type))
    return headers, event.data or b""


def encode_structured(event: Event) -> bytes:
    """The JSON object of an event."""
    encode = msgspec.json.encode
    types = event.types
    parts = [
        b'"%s":%s'
        % (name.encode("ascii"), value.encode("ascii") if name in types else encode(value))
        for name, value in event.attributes.items()
    ]
    if event.data is not None:
        parts.append(_spell_data(event, event.data))
    return b"{" + b",".join(parts) + b"}"


def encode_batch(events: Sequence[Event]) -> bytes:
    """The JSON array of a batch."""
    return b"[" + b",".join([encode_structured(event) for event in events]) + b"]"


def _spell_data(event: Event, data: bytes) -> bytes:
    form = event.form
    declared = event.attributes.get("datacontenttype")
    if form is Form.JSON:
        return b'"data":' + data
    if form is Form.TEXT or (
        form is Form.BINARY and declared is not None and media_type(declared).startswith("text/")
    ):
        text = _decoded_text(declared or "", data)
        # A subtype of text may be JSON (text/json): then a string would be a JSON value.
        if text is not None and not is_json(declared or ""):
            return b'"data":' + msgspec.json.encode(text)
    if form is Form.BINARY and declared is not None and is_json(declared) and is_json_value(data):
        return b'"data":' + data
    return b'"data_base64":"' + b64encode(data) + b'"'


def _decoded_text(content_type: str, data: bytes) -> str | None:
    codec = charset_codec(content_type)
    if codec is None:
        return None
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return None
    # A codec may lose something (a byte order mark): then the text does not stand for the bytes.
    return text if text.encode(codec, "replace") == data else None


def is_json_value(data: bytes) -> bool:
    """Whether the bytes are one JSON value in UTF-8, so that they can stand inside a document."""
    try:
        data.decode("utf-8")
        msgspec.json.decode(data, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False
    return True
