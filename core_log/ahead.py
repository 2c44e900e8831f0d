"""One thread that makes the next segment ready, so that neither the loop nor the flusher does.

The flusher tells how far the log is (`request`), after a turn, if there is something to do. The
thread works in steps of a slice each (`next_segment.py`) until the goal of that moment is met. What
it syncs is the next segment's file alone; the flusher's syncs go on beside it.

Zeros save work for each sync, whatever its size, and cost work for each byte. So where syncs are
large (`zeroed_sync_bytes_max`, on average), the next file is only given its room.

A full disk is not a failure here, neither is a want of descriptors: the append that needs the
segment meets it, and the thread tries again after a pause. Any other error is final for the log, as
everywhere, and `failed` is called.

A simulation has no threads: `stepped`, the work is done when `request` is called.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from polymq.core_log.errors import StorageFull, StoreError
from polymq.core_log.segments import Segments

SYNCS_WEIGHED: Final = 64
"""About so many of the last syncs count for the average: a tenth of a second of a busy log."""
PAUSE_SECONDS: Final = 0.2
"""Between two attempts to make the file."""


class Ahead:
    """Makes segments of one log ready. Started by the constructor, ended by `stop`.

    Args:
        position: how far the log is synced.
        failed: called in the thread when the log's directory has failed.
        stepped: no thread and no descriptor.
    """

    def __init__(
        self,
        *,
        segments: Segments,
        position: int,
        failed: Callable[[], None],
        stepped: bool = False,
    ) -> None:
        self._segments = segments
        self._failed = failed
        self._position = position  # written by the flusher's thread
        self._sync_bytes = 0.0  # on average; the flusher's thread
        self._stopping = threading.Event()
        self._wake = -1
        self._thread: threading.Thread | None = None
        if not stepped:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
            self._thread.start()

    def request(self, position: int) -> None:
        """The log was synced up to `position`: do what is due. Returns at once, but for a stepped
        one. One thread."""
        following = self._segments.following
        if position > self._position:
            self._sync_bytes += (position - self._position - self._sync_bytes) / SYNCS_WEIGHED
            following.weigh(self._sync_bytes)
        self._position = position
        if not following.is_due(*self._segments.filled(position)):
            return
        if self._thread is None:
            self._work()
        else:
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread, after the slice that it is at."""
        self._stopping.set()
        if self._thread is not None and self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        while not self._stopping.is_set():
            os.eventfd_read(self._wake)  # blocks; takes all requests that came together
            self._work()

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():  # bounded: a file has so many slices
                if not self._segments.following.work(*self._segments.filled(self._position)):
                    return
        except StorageFull:
            if self._thread is not None:
                self._stopping.wait(PAUSE_SECONDS)
        except StoreError:
            self._failed()
