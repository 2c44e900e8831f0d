"""A place in the log that whoever uses the store wants to find again without reading all of it.

A small file, replaced whole. It is a hint: it may be missing or old, so who follows it looks
whether what should be there is, and else reads the log from its beginning.

    "PMQB" 4 | version 4 | position 8 | CRC-32 of all before 4
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from polymq.core_log.checkpoint import read_whole_file, write_whole_file
from polymq.core_log.files import Files

BOOKMARK_NAME: Final = "bookmark"

_FIELDS: Final = struct.Struct(">4sIq")
_MAGIC: Final = b"PMQB"
_VERSION: Final = 1
_SIZE: Final = _FIELDS.size + 4


def write_bookmark(files: Files, directory: str, position: int) -> None:
    """Replace the directory's bookmark. Raises OSError."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, position)
    crc = zlib.crc32(fields).to_bytes(4, "big")
    write_whole_file(files, directory, BOOKMARK_NAME, fields + crc)


def read_bookmark(files: Files, directory: str) -> int | None:
    """The directory's bookmark; None if it is missing or not sound. Raises OSError."""
    data = read_whole_file(files, f"{directory}/{BOOKMARK_NAME}", _SIZE + 1)
    if data is None or len(data) != _SIZE:
        return None
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
        return None
    magic, version, position = _FIELDS.unpack_from(data)
    return position if (magic, version) == (_MAGIC, _VERSION) else None
