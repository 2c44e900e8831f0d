"""Keeps on the disk up to where records may have been acknowledged, for a broker that leads, and
says that all of it may have been, for one that follows. See `core_log/acknowledged.py`.

Theory. Acknowledgements wait for it, so the way to the thread that syncs and back is short: a lock
that wakes it, two system calls, and an eventfd that the loop watches. While a position is on its
way, the next ones gather (`broker/replicas.py`), and the last of them stands for all.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from polymq.core_log.acknowledged import (
    ACKNOWLEDGED_NAME,
    EVERYTHING,
    Acknowledged,
    AcknowledgedFile,
)
from polymq.core_log.files import Files
from polymq.core_log.store import Store
from polymq.net.connection import Context


class Acknowledging:
    """One broker's file, in one role.

    Args:
        directory: of the store, which is open.
        leads: whether the broker takes messages.
        disks: how many disks its answers wait for, where a topic has no number of its own.
        failed: told when the file cannot be written: what waits for it is never acknowledged.

    Attributes:
        position: what is on the disk.

    Raises:
        OSError: from the constructor.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        store: Store,
        *,
        leads: bool,
        disks: int,
        failed: Callable[[Exception], None],
    ) -> None:
        self._file = AcknowledgedFile(files, directory)
        self._failed = failed
        self._context: Context | None = None
        self._pending: list[tuple[int, Callable[[], None]]] = []  # those that the thread is not at
        self._current: list[Callable[[], None]] = []  # who waits for what the thread is at
        self._wanted = 0  # written by the loop's thread while the other one sleeps
        self._error: OSError | None = None  # written by the other thread while the loop waits
        self._stopping = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._report = -1
        self._thread: threading.Thread | None = None
        self._disks = disks
        # Records of this opening wait for so many disks: all others are before this place.
        self._begin = store.log.flushed
        if leads:
            self._file.write(self._of_a_master(self._file.value))
        self.position = self._file.value.position

    def _of_a_master(self, found: Acknowledged) -> Acknowledged:
        if found.position >= EVERYTHING:  # it followed, or nothing is known
            return Acknowledged(position=self._begin, disks=self._disks)
        return Acknowledged(position=found.position, disks=min(found.disks, self._disks))

    @property
    def value(self) -> Acknowledged:
        """What is on the disk."""
        return self._file.value

    def start(self, context: Context) -> None:
        """Begin to take positions."""
        self._context = context
        self._report = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        context.add_reader(self._report, self._written)
        self._thread = threading.Thread(target=self._run, name="acknowledged", daemon=True)
        self._thread.start()

    def keep(self, position: int, done: Callable[[], None]) -> None:
        """Call back when everything before the position counts as acknowledged, on the disk."""
        self._pending.append((position, done))
        if not self._current:
            self._next()

    def _next(self) -> None:
        self._wanted = max(position for position, _ in self._pending)
        self._current = [done for _, done in self._pending]
        self._pending.clear()
        self._wake.release()

    def _run(self) -> None:
        """The thread."""
        while True:
            self._wake.acquire()
            if self._stopping:
                return
            try:
                self._write(self._wanted)
            except OSError as error:
                self._error = error
            os.eventfd_write(self._report, 1)

    def _write(self, position: int) -> None:
        known = self._file.value
        found = Acknowledged(
            position=max(position, known.position),
            disks=self._disks if position >= self._begin else known.disks,
        )
        if found != known:
            self._file.write(found)

    def _written(self) -> None:
        try:
            os.eventfd_read(self._report)
        except BlockingIOError:
            return
        if self._error is not None:
            self._failed(self._error)  # and nobody is called back, ever
            return
        self.position = self._file.value.position
        current, self._current = self._current, []
        for done in current:
            done()
        if self._pending and not self._current:
            self._next()

    def follow(self) -> None:
        """This log is a copy of another one from now on: whatever comes to its disk is told to the
        master. Once in a role, before the first such word: it waits for the disk. Raises OSError.
        """
        if self._file.value.position < EVERYTHING:
            self._file.write(Acknowledged())
            self.position = EVERYTHING

    def close(self) -> None:
        """Wait for what is being written, and close the file."""
        if self._thread is not None and self._context is not None:
            self._context.remove_reader(self._report)
            if self._current and self._error is None:
                select.select([self._report], [], [])  # it is on its way: its end is near
            self._stopping = True
            self._wake.release()
            self._thread.join()
            os.close(self._report)
        self._file.close()


def is_stored(files: Files, directory: str) -> bool:
    """Whether a store has such a file. Raises OSError."""
    return ACKNOWLEDGED_NAME in files.list(directory)
