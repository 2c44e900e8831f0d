"""The inner loop over records, in plain Python: from the log to frames.

See `frames.py` for what a plain form is.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from typing import Final

from polymq.core_log.kernels.batch import RECORD_BODY_AT, RECORD_BODY_SIZE_AT, VALUE_END

Buffer = bytes | bytearray | memoryview
Sizes = tuple[int, int, int, int]

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_FRAME: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_EXTRA_HEAD: Final = b"PMQ_AMQP\x01"
_END: Final = b"\xce"
_VALUE_END: Final = bytes((VALUE_END,))


def encode_deliveries(
    memory: Buffer,
    start: int,
    end: int,
    channel: int,
    frame_max: int,
    method_head: bytes,
    first_tag: int,
    redelivered: bool,
    method_tail: bytes,
    prefix_size: int,
    properties: bytes,
) -> bytes:
    """Frames that carry the commit-log records in [start, end) to a client.

    Args:
        frame_max: largest whole frame; bodies are cut to fit.
        method_head: class, method and what comes before the delivery tag.
        first_tag: the first record's delivery tag; it counts up from there.
        method_tail: what follows the redelivered bit: exchange, routing key.
        prefix_size: where the per-message property stands in a record's properties.
        properties: property flags and properties for records without `PMQ_AMQP`.

    Raises:
        ValueError: a record is damaged, or a size is impossible.
    """
    if frame_max <= 8 or prefix_size < 0:
        raise ValueError("no frame is that small, no property stands there")
    if start < 0 or end > len(memory):
        raise IndexError("outside of the buffer")
    parts: list[bytes] = []
    size_max = frame_max - 8
    flag = b"\x01" if redelivered else b"\x00"
    before = _FRAME.pack(1, channel, len(method_head) + 9 + len(method_tail)) + method_head
    after = flag + method_tail + _END
    pack_tag = _U64.pack
    tag = first_tag
    at = start
    with memoryview(memory) as view:
        while at < end:
            size, body_size, properties_at, properties_size = _read_record(
                memory, at, end, prefix_size
            )
            body = bytes(view[at + RECORD_BODY_AT : at + RECORD_BODY_AT + body_size])
            extra = bytes(
                view[at + properties_at + prefix_size : at + properties_at + properties_size]
            )
            raw = _properties_of(extra, properties)
            parts += (before, pack_tag(tag), after, _FRAME.pack(2, channel, 12 + len(raw)))
            parts += (_CONTENT.pack(60, 0, body_size), raw, _END)
            parts += _body_frames(body, channel, size_max)
            tag += 1
            at += size
    return b"".join(parts)


def _read_record(memory: Buffer, at: int, end: int, prefix_size: int) -> Sizes:
    """Sizes of the record at `at` and of its body, where its properties begin in it, and their
    size. All fit into each other and into [at, end)."""
    if end - at < RECORD_BODY_AT + 3:
        raise ValueError("damaged record")
    record_size = _U32.unpack_from(memory, at)[0]
    body_size = _U32.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
    if record_size > end - at or RECORD_BODY_AT + body_size + 3 > record_size:
        raise ValueError("damaged record")
    topic_size = memory[at + RECORD_BODY_AT + body_size]
    properties = RECORD_BODY_AT + body_size + 3 + topic_size
    if properties > record_size:
        raise ValueError("damaged record")
    properties_size = _U16.unpack_from(memory, at + properties - 2)[0]
    if properties + properties_size > record_size or prefix_size > properties_size:
        raise ValueError("damaged record")
    return record_size, body_size, properties, properties_size


def _properties_of(extra: bytes, default: bytes) -> bytes:
    """What the property of its own that stands at the start of `extra` says, or `default`."""
    if not extra.startswith(_EXTRA_HEAD):
        return default
    text, found, _ = extra[len(_EXTRA_HEAD) :].partition(_VALUE_END)
    if not found or not text or len(text) % 4:
        raise ValueError("damaged record")
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError("damaged record") from error


def _body_frames(body: bytes, channel: int, size_max: int) -> list[bytes]:
    """The frames of a body, which may be empty."""
    parts = []
    for at in range(0, len(body), size_max):
        piece = body[at : at + size_max]
        parts += [_FRAME.pack(3, channel, len(piece)), piece, _END]
    return parts
