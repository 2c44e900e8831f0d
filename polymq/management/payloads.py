"""Messages as the JSON of a get, their payloads in steps: one message may have 64 MiB. Pure."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from polymq.admin.written_answers import Steps
from polymq.management.json_values import encode

STEP_BYTES: Final = 192 * 1024
"""Of a payload that are encoded in one step: below a millisecond. Base64 is made of threes."""

Encoding = Literal["auto", "base64"]
"""What a client asks for: text where a payload is UTF-8, or base64 always."""


class Shown(NamedTuple):
    """A message to be written.

    Attributes:
        row: all but its payload.
        payload: what is shown of it.
    """

    row: Mapping[str, Any]
    payload: memoryview


def write_messages(messages: Iterable[Shown], encoding: Encoding) -> Steps:
    """The JSON text of some messages, in parts."""
    yield b"["
    separator = b""
    for row, payload in messages:
        yield separator + encode(row)[:-1] + b',"payload":"'
        is_text = encoding == "auto" and (yield from _is_text(payload))
        if is_text:
            yield from _write_text(payload)
            yield b'","payload_encoding":"string"}'
        else:
            yield from map(base64.b64encode, _pieces(payload))
            yield b'","payload_encoding":"base64"}'
        separator = b","
    yield b"]"


def _is_text(payload: memoryview) -> Generator[None, None, bool]:
    """Whether it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in _pieces(payload):
            decoder.decode(piece)
            yield
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _write_text(payload: memoryview) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in _pieces(payload):
        yield encode(decoder.decode(piece))[1:-1]


def _pieces(payload: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(payload), STEP_BYTES):
        yield payload[begin : begin + STEP_BYTES]
