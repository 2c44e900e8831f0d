# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The one operation on files that may come with every message: to write the end of the log.

One source in two forms: plain Python, and a C extension (`fast_files_end`), for which
`fast_files_end.pxd` says of what types all this is. `files.py` has all others.
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
        if len(buffers) == 1:
            total = len(buffers[0])
            written = os.pwrite(handle, buffers[0], position)  # fewer steps than for several
        else:
            total = sum(map(len, buffers))
            written = os.pwritev(handle, buffers, position)
        if written == total:
            return
        rest = memoryview(b"".join(buffers))
        while written < total:  # bounded: every turn writes at least a byte or raises
            step = os.pwrite(handle, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += step
