"""Content codings of request bodies (RFC 9110 8.4.1): what may be sent, and how it is decoded.

Pure: compressed bytes in, pieces of plain bytes out. A piece is bounded, however much the
compressed bytes stand for, so the caller decides how far to go on: deflate shrinks a thousandfold,
and 200 KB may stand for 200 MB.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

PIECE_BYTES: Final = 64 * 1024
"""Of plain bytes decoded in one step: about 0.2 ms."""
_INPUT_BYTES: Final = 16 * 1024
"""Of compressed bytes in one step. zlib copies what it leaves over, so this bounds the copies."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS
_CODINGS: Final = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
ACCEPTED: Final = "gzip, deflate"
"""For the header Accept-Encoding of an answer 415 (RFC 9110 12.5.3)."""


class BrokenCoding(ValueError):
    """The bytes are not what the coding says. The text says what is wrong."""


def content_coding(values: Iterable[str]) -> str | None:
    """The coding that the headers Content-Encoding name; None if the body is plain.

    Raises:
        ValueError: a coding that is not supported, or more than one.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    codings = [name for name in names if name and name != "identity"]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _CODINGS:
        raise ValueError(", ".join(codings))
    return _CODINGS[codings[0]]


class Decoder:
    """Decodes one body.

    Args:
        coding: "gzip" (RFC 1952) or "deflate": a zlib stream (RFC 1950), or a raw one (RFC 1951),
            which RFC 9110 8.4.1.2 notes that some clients send.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream = zlib.decompressobj(_GZIP) if coding == "gzip" else None

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes, in pieces of at most `PIECE_BYTES`; some may be empty.

        Raises:
            BrokenCoding: these are not bytes of this coding, or more than one stream of it.
        """
        if self._stream is None and data:
            method = data[0] & 0x0F  # 8 in each zlib stream; no raw one begins so in practice
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if method == 8 else _RAW)
        for start in range(0, len(data), _INPUT_BYTES):
            yield from self._decode(data[start : start + _INPUT_BYTES])

    def _decode(self, data: bytes) -> Iterator[bytes]:
        stream = self._stream
        assert stream is not None
        while True:
            try:
                piece = stream.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BrokenCoding(f"it is not {self._coding}: {error}") from None
            yield piece
            data = stream.unconsumed_tail
            # A piece that is full may be followed by bytes that zlib has already taken in.
            if stream.eof or not (data or len(piece) == PIECE_BYTES):
                break
        if stream.unused_data:
            raise BrokenCoding(f"bytes follow the end of the {self._coding} stream")

    def finish(self) -> None:
        """The body has ended. Raises BrokenCoding if it ended too early."""
        if self._stream is None or not self._stream.eof:
            raise BrokenCoding(f"the {self._coding} stream ends too early")
