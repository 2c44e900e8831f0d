"""The files of segments, of which only some are open.

Theory. A log may have thousands of segments, and a process has few descriptors. So a segment's file
is opened by who reads it, and stays open until others were used more recently: `OpenSegments` keeps
at most `count_max` of them. Its name never changes, so it can be opened again at any time.

Rules:

* A *pinned* file stays open: the one that is written to, and every one with bytes that were not
  synced. The kernel reports a failed write-back to the descriptors that were open then, so a file
  is not closed before its sync has returned.
* `handle` may be used without `enter` only while the segment is pinned.
* A retired segment's file is closed when the last reader has left it.
* Locks: a segment's own is taken first, then that of the table. Who looks for a file to close has
  the lock of another segment already, so it takes locks only as far as they are free.
"""

from __future__ import annotations

import threading
from typing import Final

from polymq.core_log.errors import is_short
from polymq.core_log.files import Files

CLOSED: Final = -1


class Segment:
    """One file of the log: the positions [start, end).

    Attributes:
        start, end: the positions that it holds.
        path: the file.
        handle: the open file, or -1. See the rules above.
        pinned: it is not closed to make room.
    """

    __slots__ = (
        "_lock",
        "_opened",
        "_readers",
        "_retired",
        "end",
        "handle",
        "path",
        "pinned",
        "start",
    )

    def __init__(
        self, start: int, end: int, path: str, opened: OpenSegments, handle: int = CLOSED
    ) -> None:
        self.start = start
        self.end = end
        self.path = path
        self.handle = handle
        self.pinned = False
        self._opened = opened
        self._lock = threading.Lock()
        self._readers = 0
        self._retired = False
        if handle != CLOSED:
            opened.add(self)

    def enter(self) -> int:
        """Open the file if it is not, and keep it open until `leave`. Any thread.

        Returns:
            The handle; -1 if the segment is gone.

        Raises:
            OSError: it cannot be opened; do not call `leave`.
        """
        with self._lock:
            if self._retired:
                return CLOSED
            if self.handle == CLOSED:
                self.handle = self._opened.open(self)
            else:
                self._opened.used(self)
            self._readers += 1
            return self.handle

    def leave(self) -> None:
        """The file is not needed any more. Raises OSError if it was to be closed by that."""
        with self._lock:
            self._readers -= 1
            self._close_if_retired()

    def pin(self) -> None:
        """Open the file and keep it open until `pinned` is reset. Raises OSError."""
        self.pinned = True
        self.enter()
        self.leave()

    def shut(self) -> bool:
        """Nobody may enter any more. Returns whether nobody is inside either."""
        with self._lock:
            self._retired = True
            return self._readers == 0

    def close(self) -> None:
        """Nobody may enter any more; close the file, now or when the last reader leaves."""
        with self._lock:
            self._retired = True
            self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._retired and self._readers == 0 and self.handle != CLOSED:
            handle, self.handle = self.handle, CLOSED
            self._opened.close(self, handle)

    def close_if_idle(self) -> bool:
        """Close the file unless it is in use. Returns whether that freed a descriptor."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._readers or self.pinned or self.handle == CLOSED:
                return False
            handle, self.handle = self.handle, CLOSED
            self._opened.close(self, handle)
            return True
        finally:
            self._lock.release()


class OpenSegments:
    """The open files of one log.

    Args:
        count_max: so many may be open, beside those that are pinned or being read.
    """

    def __init__(self, *, files: Files, count_max: int) -> None:
        self._files = files
        self._count_max = count_max
        self._lock = threading.Lock()
        self._segments: dict[Segment, None] = {}  # the one that was used longest ago comes first

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Its file was opened by somebody else."""
        with self._lock:
            self._segments[segment] = None

    def used(self, segment: Segment) -> None:
        """It is the most recently used one."""
        with self._lock:
            if segment in self._segments:
                del self._segments[segment]
                self._segments[segment] = None

    def open(self, segment: Segment) -> int:
        """Open its file, and close others if there are too many. Raises OSError."""
        self.trim(self._count_max - 1)
        while True:
            try:
                handle = self._files.open(segment.path)
            except OSError as error:
                if is_short(error) and self.close_one():
                    continue  # bounded: there is one less to close
                raise
            self.add(segment)
            return handle

    def trim(self, count: int | None = None) -> None:
        """Close files until only so many are open, or none that is not needed. Raises OSError."""
        wanted = self._count_max if count is None else count
        while len(self._segments) > wanted and self.close_one():
            pass  # bounded: each turn takes one out of the table

    def close(self, segment: Segment, handle: int) -> None:
        """Close the file. Raises OSError."""
        with self._lock:
            self._segments.pop(segment, None)
        self._files.close(handle)

    def close_one(self) -> bool:
        """Give one descriptor back. Returns False if all files are needed."""
        with self._lock:
            segments = list(self._segments)
        return any(segment.close_if_idle() for segment in segments)
