"""Records whose body is large: made in the memory that the body came in.

Theory. Copying a body of 100 MiB, and summing it up twice, takes a tenth of a second, in which
nobody else is served. So who receives such a body piece by piece leaves room for a record's head in
front of it, and sums up the pieces as they come (`LargeBatch`). What is missing then is small: the
head, and topic and properties behind the body. The sum of the whole record follows from the sums of
its parts, because a CRC is linear: the sum of A and B together is that of A, moved on by the size
of B (multiplied by x to the power of its bits, modulo the polynomial), plus that of B.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from polymq.core_log.atomic import part_of, row_of
from polymq.core_log.kernels import writing
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    EXTRA_START,
    PROPERTY_CRC,
    PROPERTY_CRC_SIZE,
    RECORD_BODY_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_SIZE_AT,
    LargeBatch,
)
from polymq.core_log.record import RecordTemplate

CRC_MASK: Final = 0x7FFF_FFFF
_U32: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">qiq")
_POLYNOMIAL: Final = 0xEDB8_8320  # bits reversed, as everywhere here
_ONE: Final = 1 << 31
_BITS_OF_BYTE: Final = 3


def seal_large(
    template: RecordTemplate,
    batch: LargeBatch,
    position: int,
    size: int,
    *,
    host: bytes,
    targets: Sequence[tuple[int, int]],
    born_ms: int,
    store_ms: int,
) -> tuple[bytearray, bytes]:
    """Make the batch's memory the record of its only row, which has `size` bytes at `position`.

    The batch has no row any more then.

    Returns:
        The record, and its index entry.
    """
    body_size = batch.rows[BODY_SIZE]
    assert batch.rows[BODY_START] == RECORD_BODY_AT
    small = bytearray(size - body_size)
    without_body = row_of(b"", part_of(batch, 0, EXTRA_START))
    count, end, entry = writing.append_run(
        *(small, 0, len(small), position, template.form, host, b"", targets, 0),
        *(without_body, 0, 1, born_ms, store_ms),
    )
    assert (count, end) == (1, len(small))
    _U32.pack_into(small, RECORD_SIZE_AT, size)
    _U32.pack_into(small, RECORD_BODY_CRC_AT, batch.body_crc & CRC_MASK)
    _U32.pack_into(small, RECORD_BODY_SIZE_AT, body_size)
    head, rest = bytes(small[:RECORD_BODY_AT]), bytes(small[RECORD_BODY_AT:-PROPERTY_CRC_SIZE])
    crc = zlib.crc32(rest, combined_crc(zlib.crc32(head), batch.body_crc, body_size)) & CRC_MASK
    memory = batch.take()
    memory[:RECORD_BODY_AT] = head
    del memory[RECORD_BODY_AT + body_size :]
    memory += rest
    memory += b"%s\x01%s\x02" % (PROPERTY_CRC, (b"%010d" % crc)[::-1])
    assert len(memory) == size
    offset, _, tag_hash = _ENTRY.unpack(entry)
    return memory, _ENTRY.pack(offset, size, tag_hash)


def combined_crc(first: int, second: int, second_size: int) -> int:
    """The CRC-32 of two pieces together, by the CRC-32 of each."""
    return _product(_power(second_size, _BITS_OF_BYTE), first) ^ second


def _product(a: int, b: int) -> int:
    """a times b modulo the polynomial."""
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _squares() -> list[int]:
    """x to the power of 2 to the power of n."""
    powers = [_ONE >> 1]
    while len(powers) < 64:
        powers.append(_product(powers[-1], powers[-1]))
    return powers


_SQUARES: Final = _squares()


def _power(count: int, shift: int) -> int:
    """x to the power of `count` times 2 to the power of `shift`."""
    power = _ONE
    while count:
        if count & 1:
            power = _product(_SQUARES[shift], power)
        count >>= 1
        shift += 1
    return power
