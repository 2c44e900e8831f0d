"""Compressed bodies: what the system flag says of them, and zlib. Pure.

A producer may compress a body; the broker keeps it as it came, and the record's system flag says
so: bit 0 that it is compressed, bits 8 to 10 with what (0 and 3: zlib, 1: LZ4, 2: ZSTD). Only zlib
is in Python's library. Whoever reads what LZ4 or ZSTD compressed hands in a function for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final

from remoting.errors import BadBody

COMPRESSED: Final = 0x1
TYPE_MASK: Final = 0x700
_TYPE_SHIFT: Final = 8
LZ4, ZSTD, ZLIB = 1, 2, 3
_OLD_ZLIB: Final = 0
"""What clients before 5.0 say: no type at all."""
ZLIB_FLAG: Final = COMPRESSED | ZLIB << _TYPE_SHIFT
"""What a producer sets, as RocketMQ's Java client does."""
_NAMES: Final = {LZ4: "LZ4", ZSTD: "ZSTD"}

PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a body that was compressed: four times what may be sent."""

Decompressors = Mapping[int, Callable[[bytes], bytes]]
"""For types that are not here: `LZ4`, `ZSTD`. What such a function raises makes the body a bad one;
how much it may return is its own to bound."""


def compress(body: bytes, level: int) -> bytes | None:
    """The body compressed with zlib; None if that makes it no shorter."""
    packed = zlib.compress(body, level)
    return packed if len(packed) < len(body) else None


def decompress(body: bytes, system_flag: int, decompressors: Decompressors) -> bytes:
    """What the body of a record means.

    Raises:
        BadBody: it is damaged, too long, or compressed in a way for which nothing is here.
    """
    if not system_flag & COMPRESSED:
        return body
    kind = (system_flag & TYPE_MASK) >> _TYPE_SHIFT
    if kind in decompressors:
        try:
            return decompressors[kind](body)
        except Exception as error:  # whatever the function of the user raises
            raise BadBody(f"its body does not decompress: {error}") from error
    if kind not in (_OLD_ZLIB, ZLIB):
        name = _NAMES.get(kind, f"type {kind}")
        raise BadBody(
            f"its body is compressed with {name}: give the consumer a decompressor for it, "
            "or set the producer to zlib"
        )
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, PLAIN_BYTES_MAX)
    except zlib.error as error:
        raise BadBody(f"its body does not decompress: {error}") from error
    if not inflate.eof:
        raise BadBody(f"its body ends early, or has over {PLAIN_BYTES_MAX} bytes decompressed")
    return plain
