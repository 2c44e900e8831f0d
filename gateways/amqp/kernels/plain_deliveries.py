"""The inner loop over records, in plain Python: from the log to frames.

See `frames.py` for what a plain form is. Records of one size, with properties of one size, have all
their parts in the same places: such a stretch is cut up by `struct`, in C, and all that a frame has
beyond tag and body is made once for as long as the properties stay the same.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from collections.abc import Iterator
from typing import Any, Final

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
_BODY_SIZE_GAP: Final = RECORD_BODY_SIZE_AT - 4
"""Between the size of a record and that of its body, which the body follows at once."""
assert RECORD_BODY_AT == RECORD_BODY_SIZE_AT + 4


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
            sizes = _read_record(memory, at, end, prefix_size)
            size, body_size = sizes[:2]
            fits = body_size <= size_max
            text = middle = b""  # no property begins with nothing
            for a, b, body, c, d, extra in _records_like(view, at, end, sizes, prefix_size):
                if (a, b, c, d) != sizes:
                    break
                if not text or not extra.startswith(text):
                    text, raw = _properties_of(extra, properties)
                    middle = after + _FRAME.pack(2, channel, 12 + len(raw))
                    middle += _CONTENT.pack(60, 0, body_size) + raw + _END
                    if fits and body_size:
                        middle += _FRAME.pack(3, channel, body_size)
                parts += (before, pack_tag(tag), middle)
                if not fits:
                    parts += _body_frames(body, channel, size_max)
                elif body_size:
                    parts += (body, _END)
                tag += 1
                at += size
    return b"".join(parts)


def _read_record(memory: Buffer, at: int, end: int, prefix_size: int) -> Sizes:
    """Sizes of the record at `at`, its body, its topic and its properties, which fit into each
    other and into [at, end)."""
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
    return record_size, body_size, topic_size, properties_size


def _records_like(
    view: memoryview, at: int, end: int, sizes: Sizes, prefix_size: int
) -> Iterator[tuple[Any, ...]]:
    """Of the record at `at`, and of what stands behind it in steps of its size: size, body size,
    body, topic size, properties size, and the properties from `prefix_size` on. It is true for as
    long as the sizes are those of the first record."""
    size, body_size, topic_size, properties_size = sizes
    count = (end - at) // size
    if count > 1 and view[at + size : at + size + 4] != view[at : at + 4]:
        count = 1
    body_end = RECORD_BODY_AT + body_size
    extra_at = body_end + 3 + topic_size + prefix_size
    extra_end = extra_at - prefix_size + properties_size
    if count == 1:
        body = view[at + RECORD_BODY_AT : at + body_end].tobytes()
        extra = view[at + extra_at : at + extra_end].tobytes()
        return iter(((size, body_size, body, topic_size, properties_size, extra),))
    form = (
        f">I{_BODY_SIZE_GAP}xI{body_size}sB{topic_size}xH{prefix_size}x{extra_end - extra_at}s"
        f"{size - extra_end}x"
    )
    return struct.iter_unpack(form, view[at : at + count * size])


def _properties_of(extra: bytes, default: bytes) -> tuple[bytes, bytes]:
    """The property of its own that stands at the start of `extra`, encoded, and what it says; if
    there is none, nothing and `default`."""
    if not extra.startswith(_EXTRA_HEAD):
        return b"", default
    size = extra.find(VALUE_END, len(_EXTRA_HEAD)) + 1
    text = extra[len(_EXTRA_HEAD) : size - 1]
    if not size or not text or len(text) % 4:
        raise ValueError("damaged record")
    try:
        return extra[:size], a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError("damaged record") from error


def _body_frames(body: bytes, channel: int, size_max: int) -> list[bytes]:
    """The frames of a body that one frame does not hold, the first one's head included."""
    parts = []
    for at in range(0, len(body), size_max):
        piece = body[at : at + size_max]
        parts += [_FRAME.pack(3, channel, len(piece)), piece, _END]
    return parts
