"""AMQP bytes for tests, written the long way round: one small function for each kind of frame.

Independent of the kernels, so that it can be their oracle.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from polymq.gateways.amqp.methods import decode_method, encode_method
from polymq.gateways.amqp.spec import METHODS, BasicDeliver, BasicGetOk, BasicPublish, Method
from polymq.gateways.amqp.tables import encode_sized_table


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, value: Method) -> bytes:
    return frame(1, channel, encode_method(value))


def header(channel: int, body_size: int, properties: bytes = b"\x00\x00") -> bytes:
    return frame(2, channel, struct.pack(">HHQ", 60, 0, body_size) + properties)


def body(channel: int, data: bytes) -> bytes:
    return frame(3, channel, data)


def publish(
    channel: int,
    exchange: str,
    routing_key: str,
    data: bytes,
    *,
    properties: bytes = b"\x00\x00",
    mandatory: bool = False,
    immediate: bool = False,
    body_frames: int = 1,
) -> bytes:
    """A whole publish; its body in as many frames as asked for."""
    parts = [
        method(
            channel,
            BasicPublish(
                exchange=exchange,
                routing_key=routing_key,
                mandatory=mandatory,
                immediate=immediate,
            ),
        ),
        header(channel, len(data), properties),
    ]
    if data:
        step = -(-len(data) // body_frames)
        parts += [body(channel, data[at : at + step]) for at in range(0, len(data), step)]
    return b"".join(parts)


def short(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return bytes((len(raw),)) + raw


def properties(
    *,
    content_type: str | None = None,
    headers: dict[str, Any] | None = None,
    delivery_mode: int | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    expiration: str | None = None,
    message_id: str | None = None,
    timestamp: int | None = None,
    user_id: str | None = None,
) -> bytes:
    """Property flags and properties of class basic."""
    flags = 0
    parts: list[bytes] = []
    for bit, value in (
        (15, None if content_type is None else short(content_type)),
        (13, None if headers is None else encode_sized_table(headers)),
        (12, None if delivery_mode is None else bytes((delivery_mode,))),
        (10, None if correlation_id is None else short(correlation_id)),
        (9, None if reply_to is None else short(reply_to)),
        (8, None if expiration is None else short(expiration)),
        (7, None if message_id is None else short(message_id)),
        (6, None if timestamp is None else struct.pack(">Q", timestamp)),
        (4, None if user_id is None else short(user_id)),
    ):
        if value is not None:
            flags |= 1 << bit
            parts.append(value)
    return struct.pack(">H", flags) + b"".join(parts)


@dataclass
class Frame:
    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> Method:
        assert self.kind == 1, self
        kind = METHODS[struct.unpack_from(">HH", self.payload)]
        return decode_method(kind, self.payload, 4, len(self.payload))


def frames(data: bytes) -> Iterator[Frame]:
    """The frames of bytes that end with a whole frame."""
    at = 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        assert data[at + 7 + size] == 0xCE, data[at : at + 40]
        yield Frame(kind, channel, data[at + 7 : at + 7 + size])
        at += size + 8


@dataclass
class Sent:
    """What a server sent: a method, with its content if it has one."""

    channel: int
    method: Method
    properties: bytes = b""
    body: bytes = b""
    body_sizes: list[int] = field(default_factory=list)

    @property
    def delivery(self) -> BasicDeliver | BasicGetOk:
        """The method of a message."""
        assert isinstance(self.method, BasicDeliver | BasicGetOk), self.method
        return self.method


def sent(data: bytes) -> list[Sent]:
    """Methods with their contents. Heartbeats are passed over."""
    result: list[Sent] = []
    left = 0
    for one in frames(data):
        if one.kind == 8:
            continue
        if one.kind == 1:
            assert left == 0, "a method within a content"
            result.append(Sent(one.channel, one.method))
        elif one.kind == 2:
            class_id, weight, left = struct.unpack_from(">HHQ", one.payload)
            assert (class_id, weight) == (60, 0)
            assert result[-1].method.HAS_CONTENT
            assert result[-1].channel == one.channel
            result[-1].properties = one.payload[12:]
        else:
            assert 0 < len(one.payload) <= left
            result[-1].body += one.payload
            result[-1].body_sizes.append(len(one.payload))
            left -= len(one.payload)
    assert left == 0, "a content is not whole"
    return result


def record(
    *,
    topic: bytes = b"topic",
    data: bytes = b"",
    prefix: bytes = b"",
    extra: bytes = b"",
    rest: bytes = b"PMQ_Q\x01\x02__CRC32#\x010123456789\x02",
) -> bytes:
    """A commit-log record as far as deliveries look at it."""
    everything = prefix + extra + rest
    size = 88 + len(data) + 1 + len(topic) + 2 + len(everything)
    head = struct.pack(">II", size, 0xDAA320A7) + bytes(76) + struct.pack(">I", len(data))
    return head + data + short(topic) + struct.pack(">H", len(everything)) + everything


def extra_of(raw_properties: bytes) -> bytes:
    """The property that keeps AMQP's properties in a record."""
    return b"PMQ_AMQP\x01" + base64.b64encode(raw_properties) + b"\x02"
