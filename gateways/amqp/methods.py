"""Methods and frames to bytes and back (AMQP 4.2.3, 4.2.4).

For the cold path: the kernels read publishes and acks, and write deliveries, without these.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.limits import FRAME_OVERHEAD
from polymq.gateways.amqp.long_properties import fitting
from polymq.gateways.amqp.spec import METHODS, Method
from polymq.gateways.amqp.tables import Buffer, decode_sized_table, encode_sized_table

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
"""What clients of 0-9 send; RabbitMQ takes it too, and the wire is the same."""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

FRAME_HEAD: Final = struct.Struct(">BHI")
"""Type, channel, size of the payload."""
METHOD_HEAD: Final = struct.Struct(">HH")
CONTENT_HEAD: Final = struct.Struct(">HHQ")
"""Class, weight (0), size of the body; then the property flags."""

_INTEGERS: Final = {
    "U8": struct.Struct(">B"),
    "U16": struct.Struct(">H"),
    "U32": struct.Struct(">I"),
    "U64": struct.Struct(">Q"),
}
_U32: Final = _INTEGERS["U32"]

M = TypeVar("M", bound=Method)


def decode_method(kind: type[M], buffer: Buffer, at: int, end: int) -> M:
    """The method whose arguments fill [at, end).

    Raises:
        Malformed: they don't, or a name is not UTF-8.
    """
    values: dict[str, Any] = {}
    bits = 0  # bits left in the octet that the last bit came from
    octet = 0
    for name, wire_type in kind.FIELDS:
        if wire_type == "Bit":
            if bits == 0:
                if at >= end:
                    raise Malformed(f"{kind.NAME} ends before {name}")
                octet = buffer[at]
                at += 1
                bits = 8
            values[name] = bool(octet & 1)
            octet >>= 1
            bits -= 1
            continue
        bits = 0
        values[name], at = _decode_field(kind, name, wire_type, buffer, at, end)
    if at != end:
        raise Malformed(f"{kind.NAME} has {end - at} bytes too many")
    return kind(**values)


def _decode_field(
    kind: type[Method], name: str, wire_type: str, buffer: Buffer, at: int, end: int
) -> tuple[Any, int]:
    integer = _INTEGERS.get(wire_type)
    if integer is not None:
        if at + integer.size > end:
            raise Malformed(f"{kind.NAME} ends before {name}")
        return integer.unpack_from(buffer, at)[0], at + integer.size
    if wire_type == "Table":
        return decode_sized_table(buffer, at, end)
    if wire_type == "LongString":
        if at + 4 > end:
            raise Malformed(f"{kind.NAME} ends before {name}")
        start = at + 4
        at = start + int(_U32.unpack_from(buffer, at)[0])
    else:
        if at >= end:
            raise Malformed(f"{kind.NAME} ends before {name}")
        start = at + 1
        at = start + buffer[at]
    if at > end:
        raise Malformed(f"{name} of {kind.NAME} is longer than the frame")
    raw = bytes(buffer[start:at])
    if wire_type == "LongString":
        return raw, at
    if wire_type == "Key":  # any octets: RabbitMQ's clients publish them, and so they are kept
        return raw.decode("utf-8", "surrogateescape"), at
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        raise Malformed(f"{name} of {kind.NAME} is not UTF-8") from None


def encode_method(method: Method) -> bytes:
    """The payload of a method frame: class, method, arguments.

    Raises:
        ValueError: a string or a table does not fit.
    """
    parts = [METHOD_HEAD.pack(method.CLASS_ID, method.METHOD_ID)]
    bits = 0
    octet = 0
    for name, wire_type in method.FIELDS:
        value = getattr(method, name)
        if wire_type == "Bit":
            if bits == 8:
                parts.append(bytes((octet,)))
                octet = bits = 0
            octet |= bool(value) << bits
            bits += 1
            continue
        if bits:
            parts.append(bytes((octet,)))
            octet = bits = 0
        parts.append(_encode_field(wire_type, value))
    if bits:
        parts.append(bytes((octet,)))
    return b"".join(parts)


def _encode_field(wire_type: str, value: Any) -> bytes:
    integer = _INTEGERS.get(wire_type)
    if integer is not None:
        return integer.pack(value)
    if wire_type == "Table":
        assert isinstance(value, Mapping)
        return encode_sized_table(value)
    if wire_type == "LongString":
        return _U32.pack(len(value)) + bytes(value)
    return short_string(value)


def short_string(text: str) -> bytes:
    """A short string: one octet of size, then the text.

    Raises:
        ValueError: it has more than 255 bytes.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise ValueError(f"a short string has at most 255 bytes, not {len(raw)}")
    return bytes((len(raw),)) + raw


def frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return FRAME_HEAD.pack(frame_type, channel, len(payload)) + payload + b"\xce"


def method_frame(channel: int, method: Method) -> bytes:
    """A method in its frame."""
    return frame(FRAME_METHOD, channel, encode_method(method))


def content_frames(
    channel: int, method: bytes, properties: bytes, body: bytes, frame_max: int
) -> bytes:
    """A method with content: method, header and body frames.

    Args:
        method: the method frame's payload.
        properties: property flags and properties.
        frame_max: the largest whole frame that the client takes; bodies are cut to fit, and
            headers that do not fit are left out and counted.
    """
    size_max = frame_max - FRAME_OVERHEAD
    properties = fitting(properties, size_max - CONTENT_HEAD.size, marked=True)
    header = CONTENT_HEAD.pack(60, 0, len(body)) + properties
    parts = [frame(FRAME_METHOD, channel, method), frame(FRAME_HEADER, channel, header)]
    for at in range(0, len(body), size_max):
        parts.append(frame(FRAME_BODY, channel, body[at : at + size_max]))
    return b"".join(parts)


def method_kind(buffer: Buffer, at: int) -> type[Method] | None:
    """The class of the method whose numbers stand at `at`; None if there is no such method."""
    return METHODS.get(METHOD_HEAD.unpack_from(buffer, at))
