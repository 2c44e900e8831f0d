"""The files of the log: equal sizes, named by the position of their first byte, one after another.

Rules:

* Only the last segment is written to. It has its full size from the start, so that writing can
  not meet a full disk; what is not written yet is zero.
* The next segment is made ahead of use by a thread, under a name of its own (`next_segment.py`).
  It becomes part of the log by `roll`, on the loop's thread, which makes it itself only if it is
  not there yet.
* A segment's name is synced by the flusher before any flush that covers the segment is reported.
* Segments are added at the end and taken away at the start (`retire`), by the loop's thread alone.
  The list is replaced, never changed in place, so it may be read from any thread.
* Only some of the files are open (`segment_files.py`).
* A retired segment's name goes before the next one's does, so the log never has a hole. A file that
  nobody reads may be kept as a spare.
* A failed sync leaves a note, an empty file: the kernel may have given up the pages and yet show
  them to the next process, where no sync writes them any more. With a note there, recovery looks at
  the disk itself. The note need not survive a power cut, which the pages would not either.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from polymq.core_log.errors import FailureLatch, NotBegun, StorageShort, StoreError
from polymq.core_log.files import Files, sync_file, sync_names
from polymq.core_log.next_segment import NextSegment
from polymq.core_log.segment_files import OpenSegments, Segment

NAME_DIGITS = 20
"""RocketMQ's file names: the first position, padded to the width of the largest long."""
UNSYNCED_NAME = "unsynced"
"""The note that a failed sync leaves."""


def segment_name(position: int) -> str:
    """The file name of the segment that starts at `position`."""
    return f"{position:0{NAME_DIGITS}d}"


class Segments:
    """The segments of a log, oldest first.

    Args:
        directory: the log's directory (`commitlog`).
        segment_bytes: the size of new segments.
        segments: those that recovery found; may be empty, then the first starts at 0.
        opened: their open files.
        following: makes new ones.
    """

    def __init__(
        self,
        *,
        directory: str,
        files: Files,
        segment_bytes: int,
        failure: FailureLatch,
        segments: list[Segment],
        opened: OpenSegments,
        following: NextSegment,
    ) -> None:
        self._directory = directory
        self._files = files
        self.segment_bytes = segment_bytes
        self._failure = failure
        self._segments = segments
        self._opened = opened
        self.following = following
        # The start of the newest segment whose name is on the disk. Of those that were found nobody
        # knows: an earlier process may have died between naming one and syncing the directory.
        self._named = -1
        self._leaving: list[Segment] = []  # retired; their files are there still
        self._nameless: Segment | None = None  # the first of them, once its name has gone
        files.keep_directory(directory)
        if segments:
            self.last.pin()
        else:
            self._begin()

    def _begin(self) -> None:
        """Make the first segment."""
        try:
            self.roll(0)
        except StoreError:
            self.following.discard()
            raise

    @property
    def last(self) -> Segment:
        """The segment that is written to."""
        return self._segments[-1]

    @property
    def open_count(self) -> int:
        """How many of the files are open."""
        return self._opened.count

    @property
    def start(self) -> int:
        """The first position that the log still has."""
        return self._segments[0].start

    def at(self, position: int) -> Segment | None:
        """The segment that holds `position`, or None."""
        segments = self._segments
        last = bisect_right(segments, position, key=attrgetter("start")) - 1
        if last < 0 or position >= segments[last].end:
            return None
        return segments[last]

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that hold positions of [start, end), oldest first."""
        return [
            segment for segment in self._segments if segment.start < end and segment.end > start
        ]

    def all(self) -> list[Segment]:
        """All segments, oldest first."""
        return list(self._segments)

    def cut_after(self, position: int) -> list[Segment]:
        """Take the segments behind the one that holds `position` out of the list, newest first.
        Recovery only; the caller closes them."""
        cut = []
        while self._segments[-1].start > position:
            cut.append(self._segments.pop())
        self.last.pin()
        return cut

    # --- growing (loop's thread) --------------------------------------------------------------

    def roll(self, position: int) -> Segment:
        """Begin the segment at `position`, the end of the last one (or find it begun: an append
        that was taken back leaves its segment behind, empty).

        Raises:
            StorageFull, StorageFailed: there is no next segment; nothing changed.
        """
        if self._segments and self.last.start == position:
            return self.last
        path = f"{self._directory}/{segment_name(position)}"
        handle = self._take(path)
        segment = Segment(position, position + self.segment_bytes, path, self._opened, handle)
        segment.pinned = True
        self._segments = [*self._segments, segment]
        return segment

    def _take(self, path: str) -> int:
        while True:
            try:
                return self.following.take(path)
            except StorageShort:
                if not self._opened.close_one():  # bounded: there is one less to close
                    raise

    # --- shrinking ------------------------------------------------------------------------------

    def retire(self, position: int) -> int:
        """Take the segments that end at or before `position` out of the list; the last one stays.
        Loop's thread; `discard` removes their files. Returns how many bytes they hold."""
        segments = self._segments
        count = sum(1 for segment in segments[:-1] if segment.end <= position)
        self._segments = segments[count:]
        self._leaving += segments[:count]
        return sum(segment.end - segment.start for segment in segments[:count])

    def discard(self) -> None:
        """Remove the files of retired segments, durably, oldest first, or keep them as spares. One
        worker's thread.

        Raises:
            OSError: one could not be removed; the next call tries again.
            StorageFailed: final, because names of new segments may be lost as well.
        """
        while self._leaving:
            segment = self._leaving[0]
            if self._nameless is not segment:
                size = segment.end - segment.start
                if not (segment.shut() and self.following.keep(segment.path, size)):
                    self._files.unlink(segment.path)
                self._nameless = segment
            try:
                sync_names(self._files, self._directory)  # or a later name might go first
            except NotBegun:
                raise
            except OSError as error:
                raise self._failure.fail(f"removing {segment.path}", error) from error
            del self._leaving[0]
            self._nameless = None
            segment.close()

    def drop_spares(self) -> int:
        """The disk is short of room: remove the spares. Any thread. Returns how many bytes that
        frees. Raises StorageFailed."""
        return self.following.drop_spares()

    # --- syncing (flusher's thread) -------------------------------------------------------------

    def sync(self, start: int, end: int) -> None:
        """Sync the positions [start, end), then the names of segments that were added.

        Raises:
            NotBegun: it was not all tried; try again.
            OSError: nobody knows what is on the disk, and a note says so.
        """
        covered = self.between(start, end)
        try:
            for segment in covered:
                self._sync_one(segment)
            last = self.last.start
            if last > self._named:
                sync_names(self._files, self._directory)
                self._named = last
        except NotBegun:
            raise
        except OSError:
            self._leave_note()
            raise
        for segment in covered:
            if segment.end <= end and segment is not self.last:
                segment.pinned = False  # all of it is on the disk, and nothing more is written
        self._opened.trim()

    def _sync_one(self, segment: Segment) -> None:
        try:
            handle = segment.enter()
        except OSError as error:  # only in recovery: later, what is to be synced is open
            raise NotBegun(error.errno, error.strerror, segment.path) from error
        try:
            sync_file(self._files, handle)
        finally:
            segment.leave()

    def _leave_note(self) -> None:
        try:
            self._files.close(self._files.open(f"{self._directory}/{UNSYNCED_NAME}", create=True))
        except OSError:
            return  # a disk that takes not even that has to be replaced

    def filled(self, position: int) -> tuple[int, int]:
        """How much of the last segment the log has used when it ends at `position`, and its
        size. Any thread."""
        last = self.last
        return position - last.start, last.end - last.start

    # --- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the file that was made ready, and close all others."""
        self.following.discard()
        for segment in (*self._leaving, *self._segments):
            segment.close()
        self._files.forget_directory(self._directory)
