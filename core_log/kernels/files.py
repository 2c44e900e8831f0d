"""The one operation on files that comes with every message: to write the end of the log. In plain
Python; the twin is `files.pyx`, and `core_log/files.py` has all other operations.
"""

from __future__ import annotations

import errno
import os


def write_part(handle: int, memory: bytearray, start: int, end: int, position: int) -> None:
    """Write `memory[start:end]` to a file from `position` on, all of it.

    Raises:
        OSError: any part may have been written.
        ValueError: the memory has no such part.
    """
    if not 0 <= start <= end <= len(memory):
        raise ValueError(f"no part of {len(memory)} bytes: {start} to {end}")
    rest = memoryview(memory)[start:end]
    while rest:  # bounded: every turn writes at least a byte or raises
        written = os.pwrite(handle, rest, position)
        if written == 0:
            raise OSError(errno.EIO, "a write made no progress")
        rest = rest[written:]
        position += written
