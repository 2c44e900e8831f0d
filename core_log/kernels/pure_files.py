"""The one operation on files that comes with every message: to write the end of the log. In plain
Python; `fast_files.pyx` is its twin, and `files.py` has all others.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


class FilesEnd:
    """What of the operating system's files is needed to write; `Files` says what it does."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        """See `Files.pwritev`."""
        written = os.pwritev(handle, buffers, position)
        if written == sum(map(len, buffers)):
            return
        rest = memoryview(b"".join(buffers))
        while written < len(rest):  # bounded: every turn writes at least a byte or raises
            step = os.pwrite(handle, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += step

    def write_part(
        self, handle: int, memory: bytearray, start: int, end: int, position: int
    ) -> None:
        """See `Files.write_part`."""
        if not 0 <= start <= end <= len(memory):
            raise ValueError(f"no part of {len(memory)} bytes: {start} to {end}")
        self.pwritev(handle, (memoryview(memory)[start:end],), position)
