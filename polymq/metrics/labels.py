"""Names that clients chose, as values of labels."""

from __future__ import annotations

from typing import Final
from zlib import crc32

CHARACTERS_MAX: Final = 200
"""Of a value. Longer names are cut, and end in a checksum, so that they differ."""


def label_value(name: str) -> str:
    """A name as a value of a label: UTF-8, and not long."""
    raw = name.encode("utf-8", "backslashreplace")
    if len(name) > CHARACTERS_MAX:
        return f"{raw.decode()[:CHARACTERS_MAX]}~{crc32(raw):08x}"
    return raw.decode()
