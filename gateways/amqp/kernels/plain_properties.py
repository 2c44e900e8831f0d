"""The inner loop over the properties of a content (AMQP 4.2.6.1), in plain Python.

See `frames.py` for what a plain form is. What passes here is well-formed to its last byte, so that
whoever decodes it later meets no surprise.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from polymq.gateways.amqp.kernels.codes import CHECKED, KEYED, LONG_BYTES, PERSISTENT

Buffer = bytes | bytearray | memoryview

TABLE_DEPTH_MAX: Final = 64

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
# Property bits 15 to 2: s short string, t table, b octet, q u64.
_PROPERTY_KINDS: Final = "sstbbssssqssss"
_DELIVERY_MODE: Final = 1 << 12
_BEFORE_DELIVERY_MODE: Final = 0xE000
_MESSAGE_ID: Final = 1 << 7
_REPLY_TO: Final = 1 << 9
_BEFORE_REPLY_TO: Final = 0xFC00
_CHECKED_BITS: Final = 1 << 11 | 1 << 8 | 1 << 4  # priority, expiration, user-id
_DIRECT_REPLY_TO: Final = b"\x15amq.rabbitmq.reply-to"
_COPY_NAMES: Final = (b"\x02CC", b"\x03BCC")

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


def scan_properties(buffer: Buffer, start: int, end: int) -> int:
    """Check that [start, end) is property flags and properties of class basic.

    Returns:
        `PERSISTENT`, `CHECKED` and `KEYED` bits, or -1 if it is anything else.
    """
    if end - start < 2:
        return -1
    flags = _U16.unpack_from(buffer, start)[0]
    if flags & 3:  # no property there, and no property word follows in class basic
        return -1
    result = CHECKED if flags & _CHECKED_BITS or end - start > LONG_BYTES else 0
    if flags & _MESSAGE_ID:
        result |= KEYED
    mode = (flags & _BEFORE_DELIVERY_MODE).bit_count() if flags & _DELIVERY_MODE else -1
    reply = (flags & _BEFORE_REPLY_TO).bit_count() if flags & _REPLY_TO else -1
    at = start + 2
    for index, kind in enumerate(_kinds_of(flags)):
        if kind == "s":
            if at >= end:
                return -1
            if index == reply and buffer[at : at + 1 + buffer[at]] == _DIRECT_REPLY_TO:
                result |= CHECKED
            at += 1 + buffer[at]
        elif kind == "b":
            if at >= end:
                return -1
            if index == mode and buffer[at] == 2:
                result |= PERSISTENT
            at += 1
        elif kind == "q":
            at += 8
        else:
            if end - at < 4:
                return -1
            size = _U32.unpack_from(buffer, at)[0]
            found = _look_at_table(buffer, at + 4, at + 4 + size) if size <= end - at - 4 else -1
            if found < 0:
                return -1
            result |= found
            at += 4 + size
        if at > end:
            return -1
    return result if at == end else -1


@lru_cache(maxsize=256)
def _kinds_of(flags: int) -> str:
    """The kinds of the properties that are there, in their order."""
    return "".join(kind for i, kind in enumerate(_PROPERTY_KINDS) if flags & 0x8000 >> i)


def _look_at_table(buffer: Buffer, at: int, end: int) -> int:
    """Whether [at, end) holds the pairs of a field table. Never recursive, bounded in depth.

    Returns:
        -1 if it does not, `CHECKED` if there is a header `CC` or `BCC`, else 0.
    """
    result = 0
    ends = [end]
    arrays = [False]
    while ends:
        stop = ends[-1]
        if at == stop:
            ends.pop()
            arrays.pop()
            continue
        if not arrays[-1]:
            name = at
            at += 1 + buffer[at]
            if at >= stop:
                return -1
            if len(ends) == 1 and at - name <= 4 and buffer[name:at] in _COPY_NAMES:
                result = CHECKED
        kind = buffer[at]
        at += 1
        size = _VALUE_SIZES.get(kind)
        if size is None:
            if kind not in b"SxFA" or stop - at < 4:
                return -1
            size = _U32.unpack_from(buffer, at)[0]
            at += 4
            if size > stop - at:
                return -1
            if kind in b"FA":
                if len(ends) >= TABLE_DEPTH_MAX:
                    return -1
                ends.append(at + size)
                arrays.append(kind == ord("A"))
                continue
        if size > stop - at:
            return -1
        at += size
    return result
