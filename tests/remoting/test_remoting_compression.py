"""Bodies as producers compress them, and what may be wrong with them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.compression import (
    COMPRESSED,
    LZ4,
    PLAIN_BYTES_MAX,
    ZLIB,
    ZSTD,
    decompress,
    plain_body,
)
from polymq.remoting.errors import BadBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compress = Callable[[bytes], bytes]
KINDS = pytest.mark.parametrize(
    ("kind", "compress"),
    [(0, zlib.compress), (ZLIB, zlib.compress), (LZ4, lz4.frame.compress), (ZSTD, zstd.compress)],
    ids=["old zlib", "zlib", "lz4", "zstd"],
)


def flag(kind: int) -> int:
    return COMPRESSED | kind << 8


@KINDS
@given(body=st.binary())
def test_there_and_back(kind: int, compress: Compress, body: bytes) -> None:
    assert decompress(compress(body), flag(kind), {}) == body


@KINDS
def test_streams_without_a_length_as_javas_are(kind: int, compress: Compress) -> None:
    """Java writes into a stream, whose head does not say how long the body is."""
    body = b"a long story, " * 100_000
    if kind == ZSTD:
        writer = zstd.ZstdCompressor()
        packed = writer.compress(body) + writer.flush()
        assert zstd.get_frame_info(packed).decompressed_size is None
    elif kind == LZ4:
        stream = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        packed = stream.begin() + stream.compress(body) + stream.flush()
    else:
        packed = compress(body)
    assert decompress(packed, flag(kind), {}) == body


@KINDS
def test_the_largest_body_and_one_more_byte(kind: int, compress: Compress) -> None:
    body = bytes(PLAIN_BYTES_MAX)
    assert decompress(compress(body), flag(kind), {}) == body
    with pytest.raises(BadBody, match="over 16777216 bytes"):
        decompress(compress(body + b"x"), flag(kind), {})


@KINDS
def test_what_is_cut_or_something_else_is_no_body(kind: int, compress: Compress) -> None:
    packed = compress(b"hello " * 1000)
    for cut in range(len(packed)):
        with pytest.raises(BadBody):
            decompress(packed[:cut], flag(kind), {})
    with pytest.raises(BadBody, match="does not decompress"):
        decompress(b"something else", flag(kind), {})
    assert plain_body(b"something else", flag(kind)) is None


@KINDS
@given(damage=st.data())
def test_damage_never_raises_anything_else(
    kind: int, compress: Compress, damage: st.DataObject
) -> None:
    packed = bytearray(compress(b"hello, " * 30))
    at = damage.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= damage.draw(st.integers(1, 255))
    found = plain_body(bytes(packed), flag(kind))
    assert found is None or len(found) <= PLAIN_BYTES_MAX


@pytest.mark.parametrize(("kind", "compress"), [(LZ4, lz4.frame.compress), (ZSTD, zstd.compress)])
def test_one_frame_is_a_body_and_two_are_none(kind: int, compress: Compress) -> None:
    with pytest.raises(BadBody):
        decompress(compress(b"one") + compress(b"two"), flag(kind), {})


def test_zstd_may_not_ask_for_a_larger_window_than_a_body() -> None:
    """A window is memory, and a frame names it."""
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 27}
    writer = zstd.ZstdCompressor(options=options)
    packed = writer.compress(b"small") + writer.flush()
    with pytest.raises(BadBody, match="does not decompress"):
        decompress(packed, flag(ZSTD), {})


def test_what_is_not_compressed_is_what_it_is() -> None:
    assert decompress(b"plain", ZSTD << 8, {}) == b"plain"
