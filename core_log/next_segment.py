"""The file that becomes the next segment, made ahead of use, and the spare files it is made of.

Theory. The first sync of a place in a file that was only given room has to record that the place
holds data now, and every ack waits for that. In a file that was written once it does not. So the
next file is filled with zeros while the log goes through the present one: in slices, each synced by
itself, as many as the log's progress asks for (`goal`). The zeros are done when seven eighths of
the present segment are. Where syncs are large, the record that a place holds data is little beside
what they write, and zeros would be as much again: then the file is only given room (`weigh`).

A file that retention has no use for any more (`keep`) waits under the name of a spare, and is taken
for the next segment instead of a new one. It is full of sound records of other places, and, as
bodies are the clients', of what looks like sound records of any place. So:

    <position>  --keep-->  spare1, spare2  --work-->  next  --take-->  <position>
                                            zeros, slice by slice

Rules:

* An old byte is never behind the log's end. A spare becomes a segment only when all of it was
  overwritten with zeros **and** that was synced. What is not ready when the log needs it goes back
  to the spares, and the log gets a new file with room, as if there had been no spare.
* A new file may be taken at any time: what was not written of it reads as zeros.
* Each renaming is on the disk before the file is written to, and the file a spare was is nobody's
  to read (`Segments.discard`): no order of what a crash leaves shows a segment with foreign zeros.
* Zeros are written only while `_lock` is held, and only if the file was not taken since: they can
  not meet a record. A piece is small, because `take` waits for it.
* Spares and the next file are room that can be had at once: they go first when the disk is full.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from polymq.core_log.errors import FailureLatch, StorageFull
from polymq.core_log.files import Files, sync_file, sync_names

PREPARED_NAME: Final = "next"
SPARE_NAMES: Final = ("spare1", "spare2")
"""All names that a spare can have: so many can be kept."""
SLICE_BYTES: Final = 1 << 20
"""Written between two syncs of the next file. Larger ones make syncs of the log wait longer: on a
virtual disk under load, 0.9 ms (99th percentile) beside slices of 1 MiB, 2.3 beside 4 MiB."""
SLICES_MIN: Final = 8
"""Slices of a small segment."""
PIECE_BYTES: Final = 256 << 10
"""One write of zeros: some 50 microseconds that the loop waits if it rolls just then."""
BEGIN_PART: Final = 8
"""Zeros begin when the log has filled an eighth of its segment, and end when an eighth is left."""

ZEROS: Final = bytes(PIECE_BYTES)


class NextSegment:
    """What stands ready when a segment is full. `take`, `keep` and `drop_spares` may be called from
    any thread, `work` from one.

    Args:
        directory: the log's directory.
        segment_bytes: the size of new segments.
        zeroed: whether the next file is written with zeros; else it is only given room, when the
            log has passed the middle of its segment.
        zeroed_sync_bytes_max: above this average of the log's syncs it is only given room, too.
        spares_max: how many retired files are kept to be used again, up to two; only if `zeroed`.
        spares: names of those that an earlier process left.

    Attributes:
        zeroed_bytes: how many zeros were written.
        reused_count: how many segments were made of spares.
    """

    def __init__(
        self,
        *,
        directory: str,
        files: Files,
        segment_bytes: int,
        failure: FailureLatch,
        zeroed: bool,
        zeroed_sync_bytes_max: int,
        spares_max: int,
        spares: Iterable[str] = (),
    ) -> None:
        self._directory = directory
        self._path = f"{directory}/{PREPARED_NAME}"
        self._files = files
        self._segment_bytes = segment_bytes
        self._slice_bytes = max(1, min(SLICE_BYTES, segment_bytes // SLICES_MIN))
        self._failure = failure
        self._zeroing = zeroed  # at present; written by `weigh`
        self._zeroed_sync_bytes_max = zeroed_sync_bytes_max if zeroed else -1
        self._names = SPARE_NAMES[: spares_max if zeroed else 0]
        self._lock = threading.Lock()  # held while what follows changes
        self._spares = sorted(spares)
        self._handle: int | None = None  # of the file that is made ready
        self._recycled = False  # old bytes stand behind its zeros
        self._written = 0  # zeros that were written to it
        self._synced = 0  # zeros that are on the disk
        self._serial = 0  # how many files were begun: `work` notices that its file was taken
        # The worker's own: it may be in a sync of a file that is taken and closed.
        self._work_handle: int | None = None
        self._work_serial = 0
        self.zeroed_bytes = 0
        self.reused_count = 0

    @property
    def spare_bytes(self) -> int:
        """The room that spares hold."""
        return len(self._spares) * self._segment_bytes

    # --- making it ready (one worker's thread) ----------------------------------------------

    def weigh(self, sync_bytes: float) -> None:
        """Zeros from now on, or none.

        Args:
            sync_bytes: what the log's syncs have to write, on average.
        """
        self._zeroing = sync_bytes <= self._zeroed_sync_bytes_max

    def goal(self, filled: int, size: int) -> int:
        """How many bytes of the next file should be ready when so many of the present segment's
        `size` are filled; -1: it need not be there."""
        if not self._zeroing:
            return 0 if filled > size // 2 else -1
        begin = size // BEGIN_PART
        if filled <= begin:
            return -1
        part = (filled - begin) * BEGIN_PART // (BEGIN_PART - 2)
        return min(part * self._segment_bytes // size + self._slice_bytes, self._segment_bytes)

    def is_due(self, filled: int, size: int) -> bool:
        """Whether `work` has something to do. Any thread, cheap."""
        goal = self.goal(filled, size)
        return goal >= 0 and (self._handle is None or self._synced < goal)

    def work(self, filled: int, size: int) -> bool:
        """Do one step: make the file, or write and sync one slice of zeros.

        Returns:
            Whether there is more to do at once.

        Raises:
            StorageFull: there is no room for the file. StorageFailed: final.
        """
        if not self.is_due(filled, size):
            return False
        try:
            self._step()
        except OSError as error:  # a failed sync is final, whatever the error (`sync_file`)
            raise self._failure.translate(f"making {self._path} ready", error) from error
        return self.is_due(filled, size)

    def _step(self) -> None:
        with self._lock:
            zeroing = self._zeroing
            if self._handle is None:
                if not (zeroing and self._take_spare()):
                    self._begin(self._make(), recycled=False)
            serial = self._serial
            if self._work_serial != serial:
                self._end_work()  # that file was taken
            if zeroing and self._work_handle is None:
                self._work_handle = self._files.open(self._path)
                self._work_serial = serial
        if zeroing:
            self._zero_slice(serial)

    def _zero_slice(self, serial: int) -> None:
        """Write one slice and sync it. Raises OSError."""
        handle = self._work_handle
        assert handle is not None
        if not self._written:
            sync_names(self._files, self._directory)  # its old name must not come back
        end = min(self._written + self._slice_bytes, self._segment_bytes)
        while True:
            with self._lock:
                if self._serial != serial or self._handle is None:
                    self._end_work()
                    return
                count = min(end - self._written, PIECE_BYTES)
                if count <= 0:
                    break
                self._files.pwritev(handle, (memoryview(ZEROS)[:count],), self._written)
                self._written += count
                self.zeroed_bytes += count
        sync_file(self._files, handle)
        with self._lock:
            if self._serial != serial or self._handle is None:
                self._end_work()
            else:
                self._synced = end
                if end == self._segment_bytes:
                    self._end_work()

    def _take_spare(self) -> bool:
        """Go on with the oldest spare that has the right size. Raises OSError."""
        while self._spares:
            path = f"{self._directory}/{self._spares[0]}"
            try:
                handle = self._files.open(path)
            except FileNotFoundError:  # somebody made room by hand
                del self._spares[0]
                continue
            try:
                fits = self._files.size(handle) == self._segment_bytes
                if fits:
                    self._files.rename(path, self._path)
            except OSError:
                self._files.close(handle)
                raise
            if fits:
                del self._spares[0]
                self._begin(handle, recycled=True)
                return True
            self._files.close(handle)
            self._files.unlink(path)
            del self._spares[0]
        return False

    def _begin(self, handle: int, *, recycled: bool) -> None:
        self._handle = handle
        self._recycled = recycled
        self._written = self._synced = 0
        self._serial += 1

    def _end_work(self) -> None:
        if self._work_handle is not None:
            self._files.close(self._work_handle)
            self._work_handle = None

    # --- using it (loop's thread) -----------------------------------------------------------

    def take(self, path: str) -> int:
        """Give the file its name in the log; a new one if none is ready. Returns its handle.

        Raises:
            StorageFull, StorageFailed: there is none; nothing changed.
        """
        with self._lock:
            try:
                if self._handle is not None and self._recycled:
                    if self._synced < self._segment_bytes:
                        self._put_back()
                    else:
                        self.reused_count += 1
                if self._handle is None:
                    self._begin(self._make(), recycled=False)
                handle = self._handle
                assert handle is not None
                self._files.rename(self._path, path)
            except OSError as error:
                raise self._failure.translate(f"naming {path}", error) from error
            self._handle = None
            return handle

    def _put_back(self) -> None:
        """The file is not free of old bytes: it is a spare again. Raises OSError."""
        handle, self._handle = self._handle, None
        assert handle is not None
        self._files.close(handle)
        name = self._free_name()
        if name is None:
            self._files.unlink(self._path)
        else:
            self._files.rename(self._path, f"{self._directory}/{name}")
            self._spares.append(name)

    def _make(self) -> int:
        """A new file of full size, under the name of the next one; spares go if there is no room.

        Raises:
            StorageFull, StorageFailed.
        """
        try:
            return self._make_new()
        except StorageFull:
            if not self._spares:
                raise
            self._remove_spares()
            return self._make_new()

    def _make_new(self) -> int:
        handle = None
        try:
            self._files.unlink(self._path)  # one that an earlier attempt could not finish
            handle = self._files.open(self._path, create=True)
            self._files.preallocate(handle, self._segment_bytes)
        except OSError as error:
            if handle is not None:
                self._discard(handle)
            raise self._failure.translate(f"making {self._path}", error) from error
        return handle

    # --- spares -----------------------------------------------------------------------------

    def keep(self, path: str, size: int) -> bool:
        """Make a spare of a file that nobody reads any more; the caller syncs the directory.

        Returns:
            False: there are enough, or it has another size; it is where it was.

        Raises:
            OSError: it is where it was.
        """
        with self._lock:
            name = self._free_name()
            if name is None or size != self._segment_bytes:
                return False
            self._files.rename(path, f"{self._directory}/{name}")
            self._spares.append(name)
            return True

    def _free_name(self) -> str | None:
        return next((name for name in self._names if name not in self._spares), None)

    def drop_spares(self) -> int:
        """The disk is short of room: remove the spares. Returns how many bytes that frees.

        Raises:
            StorageFailed: final.
        """
        with self._lock:
            freed = self.spare_bytes
            self._remove_spares()
        return freed

    def _remove_spares(self) -> None:
        while self._spares:
            path = f"{self._directory}/{self._spares[-1]}"
            try:
                self._files.unlink(path)
            except OSError as error:
                raise self._failure.translate(f"removing {path}", error) from error
            del self._spares[-1]

    # --- closing ----------------------------------------------------------------------------

    def discard(self) -> None:
        """Remove the file that was made ready, if there is one; nobody works on it any more."""
        with self._lock:
            self._end_work()
            if self._handle is not None:
                self._discard(self._handle)
                self._handle = None

    def _discard(self, handle: int) -> None:
        """Remove a file that is not needed, or could not be finished: it holds room."""
        try:
            self._files.close(handle)
            self._files.unlink(self._path)
        except OSError:
            return  # it is removed by the next attempt or by recovery
