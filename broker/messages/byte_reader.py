"""Reading forward over bytes that a client chose: numbers, pieces of a size, and never beyond the
end.
"""

from __future__ import annotations


class TooShort(Exception):
    """The bytes end before the value does, or are none that a reader knows."""


class ByteReader:
    """Reads forward. Every method raises TooShort where the bytes end.

    Attributes:
        at: where it is.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.at = 0

    @property
    def ended(self) -> bool:
        """Whether there is nothing left."""
        return self.at >= len(self._raw)

    def take(self, size: int) -> bytes:
        """The next bytes."""
        piece = self._raw[self.at : self.at + size]
        if len(piece) != size:
            raise TooShort
        self.at += size
        return piece

    def skip_to(self, at: int) -> None:
        """Go forward."""
        self.at = max(at, self.at)

    def number(self, size: int) -> int:
        """A number of so many bytes, without a sign."""
        return int.from_bytes(self.take(size), "big")

    def sized(self, width: int) -> bytes:
        """The bytes whose size stands before them, in `width` bytes."""
        return self.take(self.number(width))
