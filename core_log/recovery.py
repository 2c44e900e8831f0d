"""Opening what a process left behind. The only module that does so; nothing else guesses.

Theory. Three things survive a crash that the log can trust: what a checkpoint covers (its file is
replaced whole, after everything it speaks of was synced), records whose checksum and position are
right, and names of files in a synced directory. Everything else is a candidate. Bytes that were
written but not synced may be there, not be there, or be there in part, in any order.

The passes, in order. Each can be interrupted by another crash and is then simply done again, and
so are all of them until the next checkpoint.

    1. Leftovers   half-made files are removed, also `next`, which was made ready for the log;
                   `spare1` and `spare2` are files that wait to be used again, and stay as far as
                   they are wanted; names that are not ours are left alone and named
    2. Segments    the log's files are put in order; a gap below the checkpoint refuses to open
    3. Scan        from the checkpoint on, as far as records are sound, in place and in whole
                   atomic batches: there the log ends. After a failed sync (see `core_log.segments`)
                   nothing that is only in memory counts
    4. Cut         what is behind the end goes: later files are removed, the rest is zero again,
                   so that no old record can ever stand behind a new one; what is kept is synced
    5. Epochs      from their file, completed from the scanned part (or from the whole log)
    6. Indexes     see `core_log.index_recovery`

What refuses (`StoreCorrupt`, before anything is changed): the log ends before the checkpoint, or a
file below it is missing. What was synced and is damaged behind the checkpoint looks like a torn
tail: it is cut, and the report says so (`behind_cut`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymq.core_log.acknowledged import ACKNOWLEDGED_NAME
from polymq.core_log.ballast import BALLAST_NAME
from polymq.core_log.bookmark import BOOKMARK_NAME
from polymq.core_log.checkpoint import (
    ABORT_NAME,
    CHECKPOINT_NAME,
    CLOSED_NAME,
    Checkpoint,
    read_checkpoint,
)
from polymq.core_log.epochs import EPOCHS_NAME, epochs_of, marks_of, read_epochs, read_marks
from polymq.core_log.errors import FailureLatch, StoreCorrupt, is_full
from polymq.core_log.files import Files
from polymq.core_log.index_recovery import recover_indexes
from polymq.core_log.indexes import INDEXES_NAME, Indexes
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.batch import MAGIC_V1
from polymq.core_log.kernels.layout import NO_BATCH, PROPERTY_EPOCH, REASONS, STOP_ZERO
from polymq.core_log.key_index import KEY_INDEX_NAME
from polymq.core_log.next_segment import PREPARED_NAME, SPARE_NAMES, NextSegment
from polymq.core_log.packs import PACKS_NAME
from polymq.core_log.reader import LogReader, Walk
from polymq.core_log.record import SYSTEM_TOPIC, decode_record
from polymq.core_log.segment_files import OpenSegments, Segment
from polymq.core_log.segments import NAME_DIGITS, UNSYNCED_NAME, Segments
from polymq.core_log.settings import StoreSettings

LOG_NAME: Final = "commitlog"
LOCK_NAME: Final = "lock"
OUR_NAMES: Final = frozenset(
    (
        LOG_NAME,
        INDEXES_NAME,
        PACKS_NAME,
        KEY_INDEX_NAME,
        CHECKPOINT_NAME,
        ABORT_NAME,
        CLOSED_NAME,
        EPOCHS_NAME,
        BOOKMARK_NAME,
        ACKNOWLEDGED_NAME,
        BALLAST_NAME,
        LOCK_NAME,
    )
)
SEARCH_BYTES_MAX: Final = 64 << 20
"""How far behind the cut sound records are looked for: enough to tell a torn tail from a hole."""
CANDIDATES_MAX: Final = 10_000
"""How many places that look like a record are examined there."""
CANDIDATES_BYTES_MAX: Final = 256 << 20
"""How much is read for that: a client's bytes may look like heads of records of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did, for the log line at start.

    Attributes:
        clean: whether the last process had closed the store, and it is as it was left.
        start, end: the positions that the log has: [start, end).
        scanned_bytes: how much of the log was read and checked.
        cut_bytes: how far behind the end bytes were found (searched up to 64 MiB).
        cut_reason: why the log ends there.
        behind_cut: the position of a sound record behind the end, or None. A power cut can leave
            one (a disk may write later pages first), and so can a damaged disk.
        removed: files that were removed, with the reason.
        strays: files that are not ours and were left alone.
        rebuilt: queue number -> the first offset whose entry was made again from the log. Private
            entries that were made again have no expiry, priority or flags.
        rebuilt_all: why all indexes were made again; empty if they were not.
        mended: indexes that were damaged and made again by themselves, in words.
    """

    clean: bool
    start: int
    end: int
    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    behind_cut: int | None = None
    removed: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    rebuilt: dict[int, int] = field(default_factory=dict)
    rebuilt_all: str = ""
    mended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a store goes on with. `marks` are of epochs, by number: see `core_log.epochs`."""

    segments: Segments
    reader: LogReader
    indexes: Indexes
    epochs: list[tuple[int, int]]
    marks: dict[int, int]
    report: RecoveryReport


def recover(
    *,
    directory: str,
    files: Files,
    settings: StoreSettings,
    failure: FailureLatch,
    now_ms: int,
) -> Recovered:
    """Bring a directory into order: all passes.

    Raises:
        StoreRefused, StoreCorrupt: nothing was changed. StorageFull, StorageFailed, OSError: what
            was done is what a next recovery would do too.
    """
    return Recovery(directory, files, settings, failure).run(now_ms)


class Recovery:
    """One recovery. The fields are what the passes learn, in their order."""

    def __init__(
        self, directory: str, files: Files, settings: StoreSettings, failure: FailureLatch
    ) -> None:
        self._directory = directory
        self._log_directory = f"{directory}/{LOG_NAME}"
        self._files = files
        self._settings = settings
        self._failure = failure
        self._removed: list[str] = []
        self._strays: list[str] = []
        self._marks: dict[int, int] = {}  # of epochs, as far as they were read
        self._excess: list[str] = []  # segments behind a gap: they go in pass 4
        self._spares: list[str] = []  # files that may be used again
        self._unsynced = False  # a sync of the log has failed
        self._opened = OpenSegments(files=files, count_max=settings.open_segments_max)

    def run(self, now_ms: int) -> Recovered:
        """All passes."""
        files = self._files
        checkpoint = read_checkpoint(files, self._directory)
        found = self._open_segments(checkpoint)
        segments: Segments | None = None
        try:
            fresh = checkpoint is None and not found
            clean = (fresh or checkpoint is not None) and not self._was_left_open()
            self._remove_leftovers()
            segments = Segments(
                directory=self._log_directory,
                files=files,
                segment_bytes=self._settings.segment_bytes,
                failure=self._failure,
                segments=found,
                opened=self._opened,
                following=NextSegment(
                    directory=self._log_directory,
                    files=files,
                    segment_bytes=self._settings.segment_bytes,
                    failure=self._failure,
                    zeroed=self._settings.segments_zeroed,
                    zeroed_sync_bytes_max=self._settings.zeroed_sync_bytes_max,
                    spares_max=self._settings.spare_segments_max,
                    spares=self._spares,
                ),
            )
            return self._run_on(segments, checkpoint, clean, now_ms)
        except BaseException:
            for segment in found if segments is None else segments.all():
                segment.close()
            files.forget_directory(self._log_directory)
            raise

    def _run_on(
        self, segments: Segments, checkpoint: Checkpoint | None, clean: bool, now_ms: int
    ) -> Recovered:
        """Passes 3 to 6."""
        reader = LogReader(
            files=self._files,
            segments=segments,
            read_bytes_max=self._settings.read_bytes_max,
        )
        start = segments.start
        if checkpoint is not None:
            start = reader.behind_blank(checkpoint.position)
        if self._unsynced:
            self._look_at_the_disk(segments, start)
        end, reason, epochs = self._scan(reader, start)
        last = segments.last
        untouched = clean and end == start and reason == STOP_ZERO
        untouched = untouched and not self._excess and not self._unsynced
        clean = untouched and last.start <= end and last.end == self._file_end(last)
        cut_bytes, behind = (0, None) if clean else self._search(segments, reader, end)
        if not clean:
            self._cut(segments, start, end)
        epochs = living_epochs(self._earlier_epochs(reader, start) + epochs, segments.start)
        indexes = recover_indexes(
            directory=self._directory,
            files=self._files,
            reader=reader,
            settings=self._settings,
            failure=self._failure,
            checkpoint=checkpoint,
            start=segments.start,
            end=end,
            now_ms=now_ms,
        )
        report = RecoveryReport(
            clean=clean and not indexes.rebuilt_all and not indexes.mended,
            start=segments.start,
            end=end,
            scanned_bytes=end - start,
            cut_bytes=cut_bytes,
            cut_reason=REASONS[reason],
            behind_cut=behind,
            removed=(*self._removed, *indexes.removed),
            strays=(*self._strays, *indexes.strays),
            rebuilt=indexes.rebuilt,
            rebuilt_all=indexes.rebuilt_all,
            mended=tuple(indexes.mended),
        )
        return Recovered(
            segments=segments,
            reader=reader,
            indexes=indexes.indexes,
            epochs=epochs,
            marks={epoch: self._marks[epoch] for epoch, _ in epochs if epoch in self._marks},
            report=report,
        )

    def _was_left_open(self) -> bool:
        return ABORT_NAME in self._files.list(self._directory)

    # --- pass 1: leftovers ----------------------------------------------------------------------

    def _remove_leftovers(self) -> None:
        """Remove what a crash left half made; name what is not ours."""
        for name in self._files.list(self._directory):
            if name.endswith(".new"):
                self._remove(f"{self._directory}/{name}", "it was not finished")
            elif name not in OUR_NAMES:
                self._strays.append(f"{self._directory}/{name}")
        for name in self._files.list(self._log_directory):
            path = f"{self._log_directory}/{name}"
            if name == PREPARED_NAME:
                self._remove(path, "it was made ahead and never used")
            elif name in SPARE_NAMES[: self._settings.spares_max]:
                self._spares.append(name)
            elif name in SPARE_NAMES:
                self._remove(path, "no spare is wanted any more")
            elif name == UNSYNCED_NAME:
                self._unsynced = True
            elif not is_segment_name(name):
                self._strays.append(path)

    def _remove(self, path: str, reason: str) -> None:
        self._files.unlink(path)
        self._removed.append(f"{path}: {reason}")

    # --- pass 2: segments -----------------------------------------------------------------------

    def _open_segments(self, checkpoint: Checkpoint | None) -> list[Segment]:
        """The log's files in order, up to the first gap. Changes nothing. Raises StoreCorrupt."""
        synced = 0 if checkpoint is None else checkpoint.position
        names = [name for name in self._files.list(self._log_directory) if is_segment_name(name)]
        segments: list[Segment] = []
        try:
            for name in names:
                start = int(name)
                if segments and not self._follows(segments[-1], start, synced):
                    self._excess.append(f"{self._log_directory}/{name}")
                    continue
                segment = Segment(start, start, f"{self._log_directory}/{name}", self._opened)
                segments.append(segment)
                size = max(self._size(segment), self._settings.segment_bytes)
                segment.end = start + size
            self._check_covers(segments, synced)
        except BaseException:
            for segment in segments:
                segment.close()
            raise
        return segments

    def _follows(self, last: Segment, start: int, synced: int) -> bool:
        """Whether a file at `start` goes on where the last one ends; fixes the last one's end."""
        size = self._size(last)
        if not self._excess and last.start + size == start:
            last.end = start
            return True
        if start <= synced:
            raise StoreCorrupt(
                f"{self._log_directory} was synced up to {synced}, but its files from"
                f" {last.start} to {start} do not fit together: restore what is missing"
            )
        return False

    def _check_covers(self, segments: list[Segment], synced: int) -> None:
        """Raise unless the files hold what the checkpoint says is synced."""
        if not segments:
            if synced:
                raise StoreCorrupt(f"{self._log_directory} was synced up to {synced}, but is empty")
            return
        if synced and synced < segments[0].start:
            raise StoreCorrupt(
                f"{self._log_directory} starts at {segments[0].start}, behind its checkpoint at"
                f" {synced}: restore the missing files"
            )
        if synced > self._file_end(segments[-1]):
            raise StoreCorrupt(
                f"{self._log_directory} was synced up to {synced}, but ends at"
                f" {self._file_end(segments[-1])}: restore the missing part"
            )

    def _file_end(self, segment: Segment) -> int:
        """The position behind the last byte of a segment's file."""
        return segment.start + self._size(segment)

    def _size(self, segment: Segment) -> int:
        handle = segment.enter()
        try:
            return self._files.size(handle)
        finally:
            segment.leave()

    # --- pass 3: scan ---------------------------------------------------------------------------

    def _look_at_the_disk(self, segments: Segments, start: int) -> None:
        """Forget what memory holds of the log from `start` on: it may never have been written."""
        segments.sync(start, segments.last.end)
        for segment in segments.between(start, segments.last.end):
            handle = segment.enter()
            try:
                self._files.drop_cache(handle)
            finally:
                segment.leave()

    def _scan(self, reader: LogReader, start: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Where the log ends, why there, and the epochs that begin on the way."""
        walk = reader.walk(start)
        epochs = find_epochs(walk, self._marks)
        end = walk.position if walk.batch == NO_BATCH else walk.batch[0]
        return end, walk.reason, epochs  # none in an open batch: its record would break it

    def _search(self, segments: Segments, reader: LogReader, end: int) -> tuple[int, int | None]:
        """What is behind the end: how far there are bytes, and the first sound record."""
        segment = segments.at(end)
        assert segment is not None
        magic = MAGIC_V1.to_bytes(4, "big")
        position = end
        last_byte = end
        candidates = 0
        left = CANDIDATES_BYTES_MAX
        behind = None
        limit = min(segment.end, end + SEARCH_BYTES_MAX)
        while position < limit:
            memory = reader.pread(segment, position, min(1 << 20, limit - position))
            if not memory:
                break
            if memory == bytes(len(memory)):  # as nearly always; quicker than looking closely
                position += len(memory)
                continue
            last_byte = position + len(memory.rstrip(b"\0"))
            at = memory.find(magic)
            while at >= 0 and behind is None and candidates < CANDIDATES_MAX:
                candidates += 1
                position_found = position + at - 4
                size = reader.size_at(position_found) if position_found > end else 0
                if 0 < size <= left:
                    left -= size
                    if reader.record_at(position_found) is not None:
                        behind = position_found
                at = memory.find(magic, at + 1)
            position += len(memory)
        return last_byte - end, behind

    # --- pass 4: cut ----------------------------------------------------------------------------

    def _cut(self, segments: Segments, start: int, end: int) -> None:
        """Remove what is behind the end, and sync what is kept."""
        for path in reversed(self._excess):
            self._remove(path, "it is behind a gap in the log")
        behind = segments.cut_after(end)
        for segment in behind:  # all of them first: a removal that fails ends the start
            segment.close()
        for segment in behind:
            self._remove(segment.path, "it is behind the end of the log")
        last = segments.last
        self._files.truncate(last.handle, end - last.start)
        self._give_room(last)
        segments.sync(start, last.end)
        if self._unsynced:
            self._files.unlink(f"{self._log_directory}/{UNSYNCED_NAME}")

    def _give_room(self, last: Segment) -> None:
        """Give the last segment its whole size again. If somebody took the room just now, writing
        there may meet a full disk: then records wait in memory, and nothing is lost."""
        size = last.end - last.start
        try:
            self._files.preallocate(last.handle, size)
        except OSError as error:
            if not is_full(error):
                raise
            self._files.truncate(last.handle, size)

    # --- pass 5: epochs -------------------------------------------------------------------------

    def _earlier_epochs(self, reader: LogReader, start: int) -> list[tuple[int, int]]:
        """The epochs that begin before the part that was scanned, from their file or the log."""
        listed = read_epochs(self._files, self._directory)
        if listed is None:
            listed = []
            if start > reader.start:
                listed = find_epochs(reader.walk(reader.start), self._marks)
        self._marks = {**read_marks(self._files, self._directory), **self._marks}
        return [
            (epoch, position_found) for epoch, position_found in listed if position_found < start
        ]


def find_epochs(walk: Walk, marks: dict[int, int]) -> list[tuple[int, int]]:
    """The epochs that begin on a walk (which is brought to its end); their marks are added."""
    epochs: dict[int, int] = {}
    for memory, size, position in walk.stretches():
        for at in walking.find_system(memory, 0, size, SYSTEM_TOPIC, PROPERTY_EPOCH):
            record = decode_record(memory, at, verify=False)
            epochs.update(epochs_of(record, position + at))
            marks.update(marks_of(record))
    return sorted(epochs.items())


def living_epochs(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The epochs, each once, without those that ended before the log's present start. One that
    ended there counts: another log may go on from there in another way."""
    listed = sorted(dict(epochs).items())
    ends = [begin for _, begin in listed[1:]]
    return [found for found, end in zip(listed, ends, strict=False) if end >= start] + listed[-1:]


def is_segment_name(name: str) -> bool:
    """Whether a file name says a place: 20 digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
