"""Runs of rows that are alike, written column by column: a part of `pure.py`.

What comes in bulk is alike: bodies of one size, with the same extra property or none. Then all
records of the run have one size, and differ only in bytes that stand at the same places in each: in
a body, two checksums, an offset and a position. So the run is laid out at one go, from one pattern
and the bodies, and each place is filled for all records by one assignment with a stride, which
costs a few nanoseconds a record; what is left for each is to cut out its body and to sum it twice.

Rule: the same bytes as row by row. What is not alike is left to `pure.append_run`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from polymq.core_log.kernels.batch import (
    BODY_START,
    COLUMNS,
    EXTRA_NONE,
    EXTRA_START,
    PROPERTY_CRC_SIZE,
    Batch,
)
from polymq.core_log.kernels.layout import ENTRY_SIZE

ALIKE_MIN: Final = 32
"""Fewer rows are written faster one by one."""
BODY_BYTES_MAX: Final = 16 << 10
"""Larger bodies gain nothing, and would be copied once more."""
BODY_CRC_AT: Final = 8
OFFSET_AT: Final = 20
POSITION_AT: Final = 28
"""Places in a record."""
CRC_MASK: Final = 0x7FFF_FFFF
CRC_DIGITS: Final = 10
LOW_BITS: Final = bytes(value & 0x7F for value in range(256))
"""The first byte of a checksum without its sign."""


def alike(batch: Batch, first: int, last: int, kind: int) -> tuple[int, bytes] | None:
    """Whether rows [first, last) are alike, and lie in the batch's buffer.

    Returns:
        The size of each body, and the raw bytes of each extra property.
    """
    rows = batch.rows[first * COLUMNS : last * COLUMNS]
    count = last - first
    sizes = rows[BODY_START + 1 :: COLUMNS]
    body_size = sizes[0]
    available = len(batch.buffer)
    if not 0 <= body_size <= BODY_BYTES_MAX or sizes.count(body_size) != count:
        return None
    starts = rows[BODY_START::COLUMNS]
    if min(starts) < 0 or max(starts) + body_size > available:
        return None
    starts, sizes = rows[EXTRA_START::COLUMNS], rows[EXTRA_START + 1 :: COLUMNS]
    size = sizes[0]
    if size < 0 or min(sizes) < 0 or min(starts) < 0 or max(starts) + max(sizes) > available:
        return None
    if kind == EXTRA_NONE:
        return body_size, b""
    raw = bytes(batch.buffer[starts[0] : starts[0] + size])
    if sizes.count(size) != count or any(
        batch.buffer[start : start + size] != raw for start in starts
    ):
        return None
    return body_size, raw


def write_alike(
    memory: bytearray,
    start: int,
    *,
    pattern: tuple[bytes, bytes],
    named: Sequence[tuple[int, int]],
    position: int,
    tag: int,
    batch: Batch,
    first: int,
    count: int,
    body_size: int,
) -> bytes:
    """Write the records of `count` rows from `first` on, which are alike, into memory[start:].

    Args:
        pattern: what stands before and behind the body in the first of them, whole, with anything
            where the records differ.
        named: (place of its digits in what is behind the body, offset of the first row) for each
            target. The first is the topic's own queue.
        position: the log position of the first.
        tag: hash of the tag, for the entries.

    Returns:
        The entries.
    """
    if count == 0:
        return b""
    before, behind = pattern
    size = len(before) + body_size + len(behind)
    rows = batch.rows[first * COLUMNS : (first + count) * COLUMNS]
    starts = rows[BODY_START::COLUMNS]
    low = min(starts)
    source = bytes(memoryview(batch.buffer)[low : max(starts) + body_size])
    bodies = [source[at - low : at - low + body_size] for at in starts]
    pieces = [behind + before] * (2 * count + 1)
    pieces[0] = before
    pieces[1::2] = bodies
    pieces[2 * count] = behind
    records = bytearray().join(pieces)
    sums = struct.pack(f">{count}I", *map(zlib.crc32, bodies))
    records[BODY_CRC_AT::size] = sums[0::4].translate(LOW_BITS)
    for byte in range(1, 4):
        records[BODY_CRC_AT + byte :: size] = sums[byte::4]
    entries = bytearray(struct.pack(">qiq", position, size, tag) * count)
    places = range(position, position + size * count, size)
    packed = struct.pack(f">{count}q", *places)
    for byte in _varying(places, 8):
        column = packed[byte::8]
        records[POSITION_AT + byte :: size] = column
        entries[byte::ENTRY_SIZE] = column
    behind_at = len(before) + body_size
    for index, (place, offset) in enumerate(named):
        offsets = range(offset, offset + count)
        packed = struct.pack(f">{count}q", *offsets)
        if index == 0:
            for byte in _varying(offsets, 8):
                records[OFFSET_AT + byte :: size] = packed[byte::8]
        digits = packed.hex().encode("ascii")
        for digit in _varying(offsets, 4):
            records[behind_at + place + digit - 4 :: size] = digits[digit::16]
    summed = size - PROPERTY_CRC_SIZE
    digits_at = size - CRC_DIGITS - 1
    crc = zlib.crc32
    stretches = struct.iter_unpack(f"{summed}s{PROPERTY_CRC_SIZE}x", records)
    digits = (b"%010d" * count) % tuple([crc(record) & CRC_MASK for (record,) in stretches])
    for digit in range(CRC_DIGITS):
        records[digits_at + digit :: size] = digits[CRC_DIGITS - 1 - digit :: CRC_DIGITS]
    memory[start : start + size * count] = records
    return bytes(entries)


def _varying(values: range, bits: int) -> range:
    """Which of the pieces of so many bits, of 64, are not the same in all of these values, which
    ascend: the last ones. Nothing of the others has to be written."""
    differing = (values[0] ^ values[-1]).bit_length()
    return range(64 // bits - (differing + bits - 1) // bits, 64 // bits)
