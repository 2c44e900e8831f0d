"""JSON that is more than a small event: batches, and events with much data. Decoded in steps.

Rules:

* What looks at every byte of a body is `kernels.children`, which needs no lock of the interpreter:
  it may run in a thread. It has checked the grammar and UTF-8 before anything else is done.
* Everything else is a `Work`. No step handles more than some `PIECE_BYTES`, or copies a body.
* A large event is decoded by `codec.py` as a small one: with 0 in place of its data, which is
  decoded behind it, piece by piece.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from polymq.gateways.http_cloudevents.codec import (
    Event,
    Form,
    Members,
    bad_base64,
    bad_text,
    check_data,
    decode_base64,
    decode_object,
    decode_string,
    event_of_members,
    id_of,
    read_members,
)
from polymq.gateways.http_cloudevents.errors import BadBatch, BadEvent, BatchFault, Problem
from polymq.gateways.http_cloudevents.kernels.codes import (
    NAME_END,
    NAME_START,
    NOT_UTF8,
    SPAN_COLUMNS,
    TOO_DEEP,
    TOO_MANY,
    VALUE_END,
    VALUE_START,
    WRONG_KIND,
)
from polymq.gateways.http_cloudevents.kernels.texts import children
from polymq.gateways.http_cloudevents.work import Work

PIECE_BYTES: Final = 64 * 1024
"""Of a text or of base64, decoded in one step: some 0.1 ms. An event up to this size is decoded as
a whole."""
MEMBERS_MAX: Final = 4_096
"""Of a large event. The attributes of an event end at 27,000 bytes as stored."""
SMALL_MEMBERS_BYTES_MAX: Final = 256 * 1024
"""Of the members of a large event beside its data, as spelled in JSON, likewise."""

_ARRAY, _OBJECT = b"[{"
_DATA_MEMBERS: Final = ("data", "data_base64")


@dataclass(frozen=True, slots=True)
class LargeEvent:
    """A large JSON object, taken apart.

    Attributes:
        rest: the same object with 0 in place of its data.
        data: the values that were taken out, as spelled, by the names of their members.
    """

    rest: bytes
    data: Mapping[str, bytes]


Element = bytes | LargeEvent | BadEvent
"""An event to be decoded: the JSON text of a small one; a large one; or what is wrong with it."""


def scan_batch(body: bytes, *, count_max: int) -> list[Element]:
    """The events of a batch, to be decoded by `decode_batch`.

    Args:
        count_max: more events are refused, because they are published together.

    Raises:
        BadEvent: the body is no JSON array.
        Problem: 413, too many events.
    """
    spans = array("q", bytes(8 * SPAN_COLUMNS * count_max))
    count = children(body, 0, len(body), _ARRAY, count_max, spans)
    if count == TOO_MANY:
        raise Problem(
            413, "Batch too large", f"the batch has more than {count_max} events; split it"
        )
    if count < 0:
        raise _fault("batch", count, spans[0], "array")
    return [
        _element(body, spans[row + VALUE_START], spans[row + VALUE_END])
        for row in range(0, count * SPAN_COLUMNS, SPAN_COLUMNS)
    ]


def scan_event(body: bytes) -> Element:
    """One event in structured mode, to be decoded by `decode_event`."""
    return _element(body, 0, len(body))


def decode_batch(elements: list[Element], *, faults_max: int = 100) -> Work[list[Event]]:
    """The events of a batch; an empty batch is legal.

    Args:
        faults_max: how many bad events are named.

    Raises:
        BadBatch: some elements are no events.
    """
    events: list[Event] = []
    faults: list[BatchFault] = []
    for index, element in enumerate(elements):
        try:
            events.append((yield from decode_event(element)))
        except BadEvent as error:
            if len(faults) == faults_max:
                raise BadBatch(faults, count=len(elements), more=True) from None
            text = element.rest if isinstance(element, LargeEvent) else element
            faults.append(
                BatchFault(
                    index=index,
                    id=id_of(text) if isinstance(text, bytes) else None,
                    attribute=error.attribute,
                    text=error.text,
                )
            )
        yield
    if faults:
        raise BadBatch(faults, count=len(elements), more=False)
    return events


def decode_event(element: Element) -> Work[Event]:
    """The event. Raises BadEvent."""
    if isinstance(element, BadEvent):
        raise element
    if isinstance(element, bytes):
        return decode_object(element)
    members = read_members(element.rest)
    yield
    members.others.update(element.data)
    form, codec = check_data(members)
    content = yield from _content(members, form, codec)
    return event_of_members(members, content, form)


def _content(members: Members, form: Form, codec: str) -> Work[bytes | None]:
    """The data as binary mode would carry it. Raises BadEvent."""
    if form is Form.JSON:
        return members.others["data"]
    if form is Form.TEXT:
        return (yield from _encoded("data", members.others["data"], codec))
    if form is Form.BASE64:
        return (yield from _from_base64(members.others["data_base64"]))
    return None


def _encoded(name: str, raw: bytes, codec: str) -> Work[bytes]:
    encoder = codecs.getincrementalencoder(codec)()
    parts: list[bytes] = []
    try:
        for text in _texts(name, raw):
            parts.append(encoder.encode(text))
            yield
    except UnicodeEncodeError:
        raise bad_text() from None
    parts.append(encoder.encode("", final=True))
    return b"".join(parts)


def _from_base64(raw: bytes) -> Work[bytes]:
    """The last characters wait for what follows, because padding ends a text."""
    parts: list[bytes] = []
    waiting = ""
    try:
        for text in _texts("data_base64", raw):
            waiting += text
            size = (len(waiting) - 1) // 4 * 4
            if size > 0:
                if waiting[size - 1] == "=":
                    raise bad_base64()
                parts.append(decode_base64(waiting[:size]))
                waiting = waiting[size:]
            yield
        parts.append(decode_base64(waiting))
    except BadEvent:
        raise
    except ValueError:  # binascii.Error, and characters outside ASCII
        raise bad_base64() from None
    return b"".join(parts)


_UNITS: Final = re.compile(
    rb"(?:[^\\\x80-\xff]++|[\xc0-\xff][\x80-\xbf]++|\\[^u]"
    rb"|(?!\\u[dD][89abAB])\\u....|\\u[dD][89abAB]..\\u....)*+"
)
"""What may not be cut: characters, escapes, and pairs of escapes that are one character."""
_PAIR_SIZE: Final = 12


def _texts(name: str, raw: bytes) -> Iterator[str]:
    """The text of a JSON string that the kernel has checked, in pieces."""
    at, end = 1, len(raw) - 1
    while at < end:
        stop = min(at + PIECE_BYTES, end)
        while stop < end and raw[stop] & 0xC0 == 0x80:
            stop -= 1
        found = _UNITS.match(raw, at, stop)
        assert found is not None
        # No unit fits where a pair ends behind the piece.
        stop = found.end() if found.end() > at else min(at + _PAIR_SIZE, end)
        yield decode_string(name, b'"' + raw[at:stop] + b'"')
        at = stop


def _element(body: bytes, start: int, end: int) -> Element:
    if end - start <= PIECE_BYTES:
        return body[start:end]
    spans = array("q", bytes(8 * SPAN_COLUMNS * MEMBERS_MAX))
    count = children(body, start, end, _OBJECT, MEMBERS_MAX, spans)
    if count == TOO_MANY:
        return BadEvent("event", f"has more than {MEMBERS_MAX} members")
    if count < 0:
        return _fault("event", count, spans[0], "object")
    try:
        return _taken_apart(body, start, end, spans[: count * SPAN_COLUMNS])
    except BadEvent as error:
        return error


def _taken_apart(body: bytes, start: int, end: int, spans: array[int]) -> LargeEvent:
    parts: list[bytes] = []
    data: dict[str, bytes] = {}
    size = 0
    at = start  # of what comes next into the rest
    for row in range(0, len(spans), SPAN_COLUMNS):
        name = decode_string(
            "event", b'"' + body[spans[row + NAME_START] : spans[row + NAME_END]] + b'"'
        )
        if name in _DATA_MEMBERS:
            value_start, value_end = spans[row + VALUE_START], spans[row + VALUE_END]
            data[name] = body[value_start:value_end]
            parts += (body[at:value_start], b"0")
            size += value_start - at
            at = value_end
    size += end - at
    if size > SMALL_MEMBERS_BYTES_MAX:
        raise BadEvent("event", f"has {size} bytes beside its data; attributes may have 27,000")
    parts.append(body[at:end])
    return LargeEvent(b"".join(parts), data)


def _fault(what: str, code: int, at: int, wanted: str) -> BadEvent:
    if code == NOT_UTF8:
        return BadEvent("event", f"is not UTF-8 at byte {at}; JSON is UTF-8")
    if code == TOO_DEEP:
        return BadEvent(what, "is nested too deeply")
    if code == WRONG_KIND:
        return BadEvent(what, f"is not a JSON {wanted}")
    return BadEvent(what, f"is not JSON: malformed at byte {at}")
