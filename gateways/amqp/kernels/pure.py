"""The inner loops over frames and records, in plain Python.

The fallback where no compiler is at hand, and the oracle that the compiled twin (`fast.pyx`) is
tested against: same functions, same results and same errors for every input.

`parse` takes only what is entirely in order. Whatever is odd (another method, content in several
frames, a wrong byte) stops it at the start of that frame, and the connection core looks at it.
"""

from __future__ import annotations

import base64
import struct
from array import array
from typing import Final

from core_log.kernels.batch import (
    COLUMNS,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    TOPIC_SIZE,
    TOPIC_START,
    VALUE_END,
    Batch,
)
from core_log.kernels.batch import FLAGS as FLAGS_COLUMN

FORM: Final = "pure"

# Why `parse` stopped.
NEED_DATA: Final = 0
"""The bytes end here: nothing more, part of a frame, or the first frames of a publish."""
FRAME: Final = 1
"""A whole frame that is not for this kernel, or not as it should be, starts here."""
FULL: Final = 2
"""No room for the next row or settlement."""
OVERSIZE: Final = 3
"""A frame announces more than it may have."""
BAD_END: Final = 4
"""A frame does not end in 0xCE."""
BAD_TYPE: Final = 5
"""No frame has this type."""

# Bits of a row's flags; the channel stands above them.
MANDATORY: Final = 1
PERSISTENT: Final = 2
CHECKED: Final = 4
"""Has a user-id, an expiration or a priority, which have to be looked at."""
CHANNEL_SHIFT: Final = 8

# A settlement is five integers: acks, nacks and rejects in the order in which they came.
SETTLEMENT_CHANNEL: Final = 0
SETTLEMENT_FIRST: Final = 1
"""The first delivery tag; single ones that follow each other are one settlement."""
SETTLEMENT_COUNT: Final = 2
SETTLEMENT_BITS: Final = 3
SETTLEMENT_ROWS: Final = 4
"""How many rows the batch had when the first of them came."""
SETTLEMENT_COLUMNS: Final = 5
MULTIPLE: Final = 1
REQUEUE: Final = 2
NEGATIVE: Final = 4

TABLE_DEPTH_MAX: Final = 64
TAG_MAX: Final = 2**63 - 1

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_FRAME: Final = struct.Struct(">BHI")
_METHOD: Final = struct.Struct(">HH")
_CONTENT: Final = struct.Struct(">HHQ")

_EXTRA_HEAD: Final = b"PMQ_AMQP\x01"
# Property bits 15 to 2: s short string, t table, b octet, q u64.
_PROPERTY_KINDS: Final = "sstbbssssqssss"
_DELIVERY_MODE_BIT: Final = 12
_CHECKED_BITS: Final = 1 << 11 | 1 << 8 | 1 << 4  # priority, expiration, user-id

_VALUE_SIZES: Final = {
    ord("t"): 1,
    ord("b"): 1,
    ord("B"): 1,
    ord("s"): 2,
    ord("u"): 2,
    ord("I"): 4,
    ord("i"): 4,
    ord("l"): 8,
    ord("L"): 8,
    ord("f"): 4,
    ord("d"): 8,
    ord("D"): 5,
    ord("T"): 8,
    ord("V"): 0,
}

Buffer = bytes | bytearray | memoryview


def scan_properties(buffer: Buffer, start: int, end: int) -> int:
    """Check that [start, end) is property flags and properties of class basic.

    Returns:
        `PERSISTENT` and `CHECKED` bits, or -1 if it is anything else.
    """
    if end - start < 2:
        return -1
    flags = _U16.unpack_from(buffer, start)[0]
    if flags & 3:  # no property there, and no property word follows in class basic
        return -1
    result = CHECKED if flags & _CHECKED_BITS else 0
    at = start + 2
    for index, kind in enumerate(_PROPERTY_KINDS):
        if not flags & 0x8000 >> index:
            continue
        if kind == "b":
            if at >= end:
                return -1
            if 15 - index == _DELIVERY_MODE_BIT and buffer[at] == 2:
                result |= PERSISTENT
            at += 1
        elif kind == "q":
            at += 8
        elif kind == "s":
            if at >= end:
                return -1
            at += 1 + buffer[at]
        else:
            if end - at < 4:
                return -1
            size = _U32.unpack_from(buffer, at)[0]
            if size > end - at - 4 or not _table_is_sound(buffer, at + 4, at + 4 + size):
                return -1
            at += 4 + size
        if at > end:
            return -1
    return result if at == end else -1


def _table_is_sound(buffer: Buffer, at: int, end: int) -> bool:
    """Whether [at, end) holds the pairs of a field table. Never recursive, bounded in depth."""
    ends = [end]
    arrays = [False]
    while ends:
        stop = ends[-1]
        if at == stop:
            ends.pop()
            arrays.pop()
            continue
        if not arrays[-1]:
            at += 1 + buffer[at]
            if at >= stop:
                return False
        kind = buffer[at]
        at += 1
        size = _VALUE_SIZES.get(kind)
        if size is None:
            if kind not in b"SxFA" or stop - at < 4:
                return False
            size = _U32.unpack_from(buffer, at)[0]
            at += 4
            if size > stop - at:
                return False
            if kind in b"FA":
                if len(ends) >= TABLE_DEPTH_MAX:
                    return False
                ends.append(at + size)
                arrays.append(kind == ord("A"))
                continue
        if size > stop - at:
            return False
        at += size
    return True


def parse(
    buffer: Buffer,
    start: int,
    end: int,
    payload_max: int,
    body_max: int,
    batch: Batch,
    runs: array[int],
    settlements: array[int],
) -> tuple[int, int, int, int]:
    """Take publishes and settlements from the frames in [start, end).

    A publish is a basic.publish method frame, its header frame and at most one body frame, whole,
    one after the other, on one channel. It becomes a row: TOPIC is the bytes of exchange and
    routing key as they stand in the method (each with its size octet), EXTRA the property flags
    and properties, IDENTIFIER its number in the batch.

    Args:
        payload_max: largest payload of a frame.
        body_max: largest body that is taken here.
        batch: filled from its first row on.
        runs: gets the first row of each stretch of rows with equal TOPIC bytes and FLAGS.
        settlements: gets acks, nacks and rejects (see the columns above).

    Returns:
        (where it stopped, why, count of runs, count of settlements).
    """
    rows = batch.rows
    capacity = min(len(rows) // COLUMNS, len(runs))
    settlement_capacity = len(settlements) // SETTLEMENT_COLUMNS
    batch.buffer = buffer
    batch.count = 0
    count = run_count = settlement_count = 0
    at = start
    while True:
        stop = _check_frame(buffer, at, end, payload_max)
        if stop >= 0:
            break
        kind, channel, size = _FRAME.unpack_from(buffer, at)
        stop = FRAME
        if kind != 1 or channel == 0 or size < 4:
            break
        class_id, method_id = _METHOD.unpack_from(buffer, at + 7)
        if class_id != 60:
            break
        if method_id == 40:
            if count >= capacity:
                stop = FULL
                break
            place, next_at = _parse_publish(buffer, at, end, payload_max, body_max)
            if place is None:
                stop = next_at
                break
            row = count * COLUMNS
            rows[row : row + COLUMNS] = array("q", (*place[:6], count, place[6]))
            if count == 0 or not _same_run(buffer, rows, row):
                runs[run_count] = count
                run_count += 1
            count += 1
            at = next_at
            continue
        bits = _settlement_bits(buffer, at, method_id, size)
        tag = _U64.unpack_from(buffer, at + 11)[0] if bits >= 0 else 0
        if bits < 0 or tag > TAG_MAX:
            break
        if settlement_count and _extends(settlements, settlement_count, channel, tag, bits):
            last = (settlement_count - 1) * SETTLEMENT_COLUMNS
            settlements[last + SETTLEMENT_COUNT] += 1
        elif settlement_count >= settlement_capacity:
            stop = FULL
            break
        else:
            place_at = settlement_count * SETTLEMENT_COLUMNS
            settlements[place_at : place_at + SETTLEMENT_COLUMNS] = array(
                "q", (channel, tag, 1, bits, count)
            )
            settlement_count += 1
        at += size + 8
    batch.count = count
    return at, stop, run_count, settlement_count


def _check_frame(buffer: Buffer, at: int, end: int, payload_max: int) -> int:
    """-1 if a whole frame stands at `at`, else why not."""
    if end - at < 7:
        return NEED_DATA
    kind = buffer[at]
    if kind not in (1, 2, 3, 8):
        return BAD_TYPE
    size = _U32.unpack_from(buffer, at + 3)[0]
    if size > payload_max:
        return OVERSIZE
    if end - at < size + 8:
        return NEED_DATA
    return -1 if buffer[at + 7 + size] == 0xCE else BAD_END


def _parse_publish(
    buffer: Buffer, at: int, end: int, payload_max: int, body_max: int
) -> tuple[tuple[int, ...] | None, int]:
    """The first six columns and the flags, and where the publish ends; or None and why not.

    The method frame is known to be whole.
    """
    _, channel, size = _FRAME.unpack_from(buffer, at)
    method_end = at + 7 + size
    topic = at + 13
    middle = topic + 1 + buffer[topic] if topic < method_end else method_end
    bits_at = middle + 1 + buffer[middle] if middle < method_end else method_end
    if bits_at != method_end - 1:
        return None, FRAME
    if buffer[bits_at] & 2:  # immediate: refused where there is a text for it
        return None, FRAME
    header = method_end + 1
    stop = _check_frame(buffer, header, end, payload_max)
    if stop >= 0:
        return None, NEED_DATA if stop == NEED_DATA else FRAME
    kind, header_channel, size = _FRAME.unpack_from(buffer, header)
    if kind != 2 or header_channel != channel or size < 14:
        return None, FRAME
    class_id, weight, body_size = _CONTENT.unpack_from(buffer, header + 7)
    properties = header + 19
    header_end = header + 7 + size
    if class_id != 60 or weight != 0 or body_size > body_max:
        return None, FRAME
    found = scan_properties(buffer, properties, header_end)
    if found < 0:
        return None, FRAME
    flags = buffer[bits_at] & MANDATORY | found | channel << CHANNEL_SHIFT
    next_at = header_end + 1
    body = 0
    if body_size:
        stop = _check_frame(buffer, next_at, end, payload_max)
        if stop >= 0:
            return None, NEED_DATA if stop == NEED_DATA else FRAME
        kind, body_channel, size = _FRAME.unpack_from(buffer, next_at)
        if kind != 3 or body_channel != channel or size != body_size:
            return None, FRAME
        body = next_at + 7
        next_at = body + size + 1
    place = (topic, bits_at - topic, body, body_size, properties, header_end - properties, flags)
    return place, next_at


def _same_run(buffer: Buffer, rows: array[int], row: int) -> bool:
    """Whether the row at `row` has the topic bytes and flags of the one before."""
    before = row - COLUMNS
    size = rows[row + TOPIC_SIZE]
    if rows[before + FLAGS_COLUMN] != rows[row + FLAGS_COLUMN] or rows[before + TOPIC_SIZE] != size:
        return False
    one = rows[before + TOPIC_START]
    two = rows[row + TOPIC_START]
    return bytes(buffer[one : one + size]) == bytes(buffer[two : two + size])


def _settlement_bits(buffer: Buffer, at: int, method_id: int, size: int) -> int:
    """The bits of an ack, nack or reject; -1 if the method is none of them or not as it should."""
    if size != 13:
        return -1
    bits = buffer[at + 19]
    if method_id == 80:
        return bits & MULTIPLE
    if method_id == 120:
        return NEGATIVE | bits & (MULTIPLE | REQUEUE)
    if method_id == 90:
        return NEGATIVE | (REQUEUE if bits & 1 else 0)
    return -1


def _extends(settlements: array[int], count: int, channel: int, tag: int, bits: int) -> bool:
    """Whether a settlement continues the last one."""
    last = (count - 1) * SETTLEMENT_COLUMNS
    return (
        not bits & MULTIPLE
        and settlements[last + SETTLEMENT_CHANNEL] == channel
        and settlements[last + SETTLEMENT_BITS] == bits
        and settlements[last + SETTLEMENT_FIRST] + settlements[last + SETTLEMENT_COUNT] == tag
    )


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
        ValueError: a record is damaged.
    """
    parts: list[bytes] = []
    size_max = frame_max - 8
    method_size = len(method_head) + 9 + len(method_tail)
    flag = b"\x01" if redelivered else b"\x00"
    tag = first_tag
    at = start
    while at < end:
        body, body_size, record_end, text = _read_record(memory, at, end, prefix_size)
        raw = properties if text is None else _decode_properties(text)
        parts.append(_FRAME.pack(1, channel, method_size) + method_head + _U64.pack(tag) + flag)
        parts.append(method_tail + b"\xce")
        parts.append(_FRAME.pack(2, channel, 12 + len(raw)) + _CONTENT.pack(60, 0, body_size))
        parts.append(raw + b"\xce")
        for piece in range(body, body + body_size, size_max):
            size = min(size_max, body + body_size - piece)
            parts.append(_FRAME.pack(3, channel, size) + bytes(memory[piece : piece + size]))
            parts.append(b"\xce")
        tag += 1
        at = record_end
    return b"".join(parts)


def _read_record(
    memory: Buffer, at: int, end: int, prefix_size: int
) -> tuple[int, int, int, bytes | None]:
    """Of the record at `at`: body start and size, where the record ends, and the base64 text of
    its AMQP properties, if it has some."""
    if end - at < RECORD_BODY_AT + 3:
        raise ValueError("damaged record")
    record_size = _U32.unpack_from(memory, at)[0]
    body_size = _U32.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
    if record_size > end - at or RECORD_BODY_AT + body_size + 3 > record_size:
        raise ValueError("damaged record")
    record_end = at + record_size
    body = at + RECORD_BODY_AT
    sizes = body + body_size + 1 + memory[body + body_size]
    if sizes + 2 > record_end:
        raise ValueError("damaged record")
    properties_end = sizes + 2 + _U16.unpack_from(memory, sizes)[0]
    extra = sizes + 2 + prefix_size
    if properties_end > record_end or extra > properties_end:
        raise ValueError("damaged record")
    text = extra + len(_EXTRA_HEAD)
    if text > properties_end or bytes(memory[extra:text]) != _EXTRA_HEAD:
        return body, body_size, record_end, None
    found = bytes(memory[text:properties_end])
    size = found.find(VALUE_END)
    if size < 0:
        raise ValueError("damaged record")
    return body, body_size, record_end, found[:size]


def _decode_properties(text: bytes) -> bytes:
    if not text or len(text) % 4:
        raise ValueError("damaged record")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("damaged record") from error
