"""Compressed bodies: what the system flag says of them, and what they mean. Pure.

A producer may compress a body; the broker keeps it as it came, and the record's system flag says
so: bit 0 that it is compressed, bits 8 to 10 with what (0 and 3: zlib, 1: LZ4, 2: ZSTD). LZ4 is its
frame format, and each of the three is one stream or frame with nothing behind it.

A body has a bound decompressed, which holds while it is decompressed, whatever a frame says of its
own length: half a kilobyte of ZSTD may be 16 MiB, which take 20 to 35 ms with any of the three.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import lz4.frame

from polymq.remoting.errors import BadBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSED: Final = 0x1
TYPE_MASK: Final = 0x700
_TYPE_SHIFT: Final = 8
LZ4, ZSTD, ZLIB = 1, 2, 3
_OLD_ZLIB: Final = 0
"""What clients before 5.0 say: no type at all."""
ZLIB_FLAG: Final = COMPRESSED | ZLIB << _TYPE_SHIFT
"""What a producer sets, as RocketMQ's Java client does."""

PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a body that was compressed: four times what may be sent."""
_ZSTD_OPTIONS: Final = {int(zstd.DecompressionParameter.window_log_max): 24}
"""A window is as large as a body at most. Java's producers use 4 MiB."""

Decompressors = Mapping[int, Callable[[bytes], bytes]]
"""For types that are not here, or to be used in place of what is. What such a function raises makes
the body a bad one; how much it may return is its own to bound."""


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
    unpack = _UNPACK.get(kind)
    if unpack is None:
        raise BadBody(
            f"its body is compressed with type {kind}: give the consumer a decompressor for it, "
            "or set the producer to zlib, LZ4 or ZSTD"
        )
    try:
        plain, whole = unpack(body)
    except (zlib.error, zstd.ZstdError, RuntimeError, EOFError) as error:  # LZ4's is the third
        raise BadBody(f"its body does not decompress: {error}") from error
    if not whole:
        raise BadBody(f"its body ends early, or has over {PLAIN_BYTES_MAX} bytes decompressed")
    return plain


def plain_body(body: bytes, system_flag: int) -> bytes | None:
    """What the body of a record means; None if that cannot be told."""
    try:
        return decompress(body, system_flag, {})
    except BadBody:
        return None


def _inflate(body: bytes) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, PLAIN_BYTES_MAX)
    return plain, inflater.eof


def _unpack_lz4(body: bytes) -> tuple[bytes, bool]:
    frame = lz4.frame.LZ4FrameDecompressor()
    plain = frame.decompress(body, max_length=PLAIN_BYTES_MAX)
    return plain, frame.eof and not frame.unused_data


def _unpack_zstd(body: bytes) -> tuple[bytes, bool]:
    frame = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
    plain = frame.decompress(body, max_length=PLAIN_BYTES_MAX)
    return plain, frame.eof and not frame.unused_data


_UNPACK: Final[dict[int, Callable[[bytes], tuple[bytes, bool]]]] = {
    _OLD_ZLIB: _inflate,
    LZ4: _unpack_lz4,
    ZSTD: _unpack_zstd,
    ZLIB: _inflate,
}
"""By type: the body decompressed, as far as the bound allows, and whether that is all of it."""
