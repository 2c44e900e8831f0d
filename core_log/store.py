"""The store: one directory with a log, the indexes of its queues and what recovery needs.

    commitlog/<position of the first byte>     segments of the log
    commitlog/next, spare1, spare2             the next segment, made ready; files to be used again
    consumequeue/<number>/<byte offset>        indexes of queues with many messages
    packedqueue/<generation>                   indexes of all others, and the catalogue of all
    index/<when it was begun>                  key index
    epochFileCheckpoint                        every opening for writing, and where it began
    bookmark                                   a place that the engine wants to find again
    ballast                                    room that is given up when the disk is full
    checkpoint                                 up to where everything is synced
    acknowledged                               up to where records may have been acknowledged
    abort                                      exists while a process has the store open
    lock                                       held by that process

This file only ties the parts together; each part's own file says how it works.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from polymq.core_log.ballast import Ballast
from polymq.core_log.bookmark import read_bookmark, write_bookmark
from polymq.core_log.checkpoint import make_abort, remove_abort
from polymq.core_log.commit_log import CommitLog
from polymq.core_log.epochs import (
    TERM_EPOCHS,
    encode_epochs,
    epoch_covers,
    epoch_template,
    mark_of,
    term_of,
    write_epochs,
)
from polymq.core_log.errors import (
    CorruptRecord,
    FailureLatch,
    StoreError,
    StoreRefused,
    describe,
    is_full,
    is_short,
)
from polymq.core_log.files import Files, make_directories
from polymq.core_log.flusher import Flusher
from polymq.core_log.indexes import INDEXES_NAME, Indexes, Preparation
from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.batch import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    RECORD_BODY_AT,
    RECORD_STORE_MS_AT,
)
from polymq.core_log.kernels.layout import (
    NO_BATCH,
    REASONS,
    STOP_BATCH,
    STOP_BLANK,
    STOP_END,
    STOP_SHORT,
)
from polymq.core_log.key_index import KeyIndex
from polymq.core_log.packs import PACKS_NAME
from polymq.core_log.queue_index import Index, QueueIndex
from polymq.core_log.reader import LogReader, Walk
from polymq.core_log.record import Record
from polymq.core_log.recovery import LOCK_NAME, LOG_NAME, RecoveryReport, recover
from polymq.core_log.segments import Segments
from polymq.core_log.settings import StoreSettings


class Store:
    """An open store. Made by `open` only.

    Attributes:
        log: where records are appended and read.
        keys: finds messages by key.
        ballast: room for saving and deleting on a full disk.
        flusher: syncs the log.
        epoch: of this opening.
        epochs: (epoch, start position) of every opening, oldest first, this one included.
        recovery: what recovery found, cut and made again.
    """

    def __init__(
        self,
        *,
        directory: str,
        files: Files,
        lock: int,
        clock_ms: Callable[[], int],
        settings: StoreSettings,
        stepped: bool,
        follows: str,
        above_term: int | None,
    ) -> None:
        """Recover the directory and begin an epoch. Raises StoreError, OSError."""
        self._directory = directory
        self._files = files
        self._lock = lock
        self._clock_ms = clock_ms
        self._closed = False
        self._failure = FailureLatch()
        recovered = recover(
            directory=directory,
            files=files,
            settings=settings,
            failure=self._failure,
            now_ms=clock_ms(),
        )
        self.recovery: RecoveryReport = recovered.report
        self.epochs = recovered.epochs
        self._marks = recovered.marks
        self._epochs_noted = True  # the file lists all of them
        self._indexes: Indexes = recovered.indexes
        self._indexes.before_checkpoint = self._write_epochs
        self._segments: Segments = recovered.segments
        self._reader: LogReader = recovered.reader
        self.keys = KeyIndex(
            directory=directory,
            files=files,
            reader=self._reader,
            settings=settings,
            clock_ms=clock_ms,
        )
        self.ballast = Ballast(
            directory=directory,
            files=files,
            bytes_min=settings.ballast_bytes_min,
            bytes_max=settings.ballast_bytes_max,
        )
        try:
            self._start(settings, stepped, follows, above_term)
        except BaseException:
            self._segments.close()
            raise

    def _start(
        self, settings: StoreSettings, stepped: bool, follows: str, above_term: int | None
    ) -> None:
        """Say that the store is open, and begin its epoch."""
        files = self._files
        make_abort(files, self._directory)
        self.log = CommitLog(
            files=files,
            segments=self._segments,
            reader=self._reader,
            settings=settings,
            failure=self._failure,
            position=self.recovery.end,
        )
        if follows:
            self.log.follow(follows)
            self.epoch = self.epochs[-1][0] if self.epochs else 0
            # The file may tell of epochs that were cut: what comes is of an earlier one, maybe.
            self._note_epochs()
        else:
            self.epoch = self._begin_epoch(above_term)
        self.flusher = Flusher(
            log=self.log, segments=self._segments, failure=self._failure, stepped=stepped
        )

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        files: Files,
        clock_ms: Callable[[], int],
        settings: StoreSettings | None = None,
        stepped: bool = False,
        follows: str = "",
        above_term: int | None = None,
    ) -> Store:
        """Open a directory for writing; make it if it is not there.

        Waits for the disk: everything that recovery keeps is synced before this returns.

        Args:
            stepped: the flusher has no thread and works when it is told to (`Flusher.step`).
            follows: why nothing may be appended but copies of another log (`Following`): in the
                words that an append then raises. No epoch begins. Empty: the log is one's own.
            above_term: this is a promotion: a term begins that is higher than the log's own and
                than this one.

        Raises:
            StoreRefused: another process has it, it cannot be written, or it lost data that had
                been synced. The sentence says which; nothing was changed.
        """
        lock = take_lock(files, directory)
        try:
            return cls(
                directory=directory,
                files=files,
                lock=lock,
                clock_ms=clock_ms,
                settings=settings or StoreSettings(),
                stepped=stepped,
                follows=follows,
                above_term=above_term,
            )
        except OSError as error:
            files.close(lock)
            raise StoreRefused(f"{directory} cannot be opened: {describe(error)}") from error
        except StoreRefused:
            files.close(lock)
            raise
        except StoreError as error:
            files.close(lock)
            raise StoreRefused(f"{directory} cannot be opened: {error}") from error

    def _begin_epoch(self, above_term: int | None) -> int:
        """Append the record that begins this opening's epoch, and sync it."""
        epoch = self.epochs[-1][0] + 1 if self.epochs else 1
        if above_term is not None:
            epoch = (max(term_of(epoch), above_term) + 1) * TERM_EPOCHS
        now_ms = self._clock_ms()
        span = self.log.append_record(epoch_template(epoch), b"", born_ms=now_ms, store_ms=now_ms)
        self.log.write()
        self._segments.sync(self.log.flushed, self.log.written)
        self.log.flushed = self.log.written
        self.epochs.append((epoch, span.position))
        self._marks.pop(epoch, None)  # of a record that was cut
        self.epoch_mark(epoch, span.position)
        self._note_epochs()
        return epoch

    def _note_epochs(self) -> None:
        """Write the list of epochs; with the next checkpoint if the disk is full. Until then
        recovery finds the new ones in the log, behind the checkpoint. Raises OSError."""
        self._epochs_noted = False
        try:
            self._write_epochs()
        except OSError as error:
            if not is_full(error) and not is_short(error):
                raise

    def _write_epochs(self) -> None:
        if not self._epochs_noted:
            write_epochs(self._files, self._directory, self.epochs, self._marks)
            self._epochs_noted = True

    def epoch_mark(self, epoch: int, start: int) -> int:
        """What tells this epoch apart from others of its number: see `core_log.epochs`. 0 if it is
        not known any more."""
        if epoch not in self._marks and start >= self.log.start:
            try:
                record = self.find_record(start)
            except CorruptRecord:
                record = None
            if record is not None:
                self._marks[epoch] = mark_of(record)
        return self._marks.get(epoch, 0)

    def saw_epochs(self, found: Sequence[tuple[int, int]], marks: Mapping[int, int]) -> None:
        """A copied record begins an epoch (or says again which there were). Raises OSError."""
        self._marks.update(marks)
        known = dict(self.epochs)
        if not known.keys() >= dict(found).keys():
            self.epochs = sorted({**dict(found), **known}.items())
            self.epoch = self.epochs[-1][0]
            self._note_epochs()

    # --- indexes --------------------------------------------------------------------------------

    def index(self, number: int, entry_size: int) -> QueueIndex:
        """The index of a queue, made if there is none.

        Raises:
            ValueError: it exists with another entry size, or was dropped.
        """
        return self._indexes.get(number, entry_size)

    def find_index(self, number: int) -> QueueIndex | None:
        """The index of a queue, or None."""
        return self._indexes.find(number)

    def begin_index(self, number: int, entry_size: int, first_offset: int) -> QueueIndex:
        """The index of a queue whose messages come as copies, made if there is none."""
        found = self._indexes.find(number)
        if found is None:
            found = self._indexes.add(number, entry_size, first_offset, first_offset)
        return found

    def drop_index(self, number: int) -> None:
        """Forget a queue's index: what says so is appended. Its files go with a checkpoint behind
        that."""
        self._indexes.drop(number, self.log.appended)

    def index_numbers(self) -> Collection[int]:
        """The numbers of all indexes. After a crash these may include queues that were dropped
        shortly before: drop them again."""
        return self._indexes.numbers()

    def begin_checkpoint(self) -> Preparation:
        """Begin to take note of what a checkpoint has to store. Loop's thread.

        Returns:
            The preparation: call `gather` until it is done, in as many loop iterations as it
            takes, then call it in a worker thread. That raises StorageFull (prepare another one
            later) or StorageFailed.
        """
        return self._indexes.prepare(
            position=self.log.flushed,
            tail_start=self.log.tail_start,
            store_ms=self._clock_ms(),
        )

    def prepare_checkpoint(self) -> Callable[[], None]:
        """`begin_checkpoint`, and all of `gather` at once."""
        preparation = self.begin_checkpoint()
        preparation.gather_all()
        return preparation

    # --- room -----------------------------------------------------------------------------------

    def space(self) -> tuple[int, int]:
        """Bytes that may still be written to the disk, and its size. Any thread. Raises
        OSError."""
        return self._files.space(self._directory)

    def segments(self) -> list[tuple[int, int]]:
        """(start, end) of the log's files, oldest first."""
        return [(segment.start, segment.end) for segment in self._segments.all()]

    @property
    def segment_bytes(self) -> int:
        """The size of a new file of the log."""
        return self._segments.segment_bytes

    @property
    def short_count(self) -> int:
        """How many calls of the file system did not happen, for want of a descriptor or memory,
        and were or will be repeated."""
        return self._failure.short_count

    @property
    def short_text(self) -> str:
        """The last of them, in words."""
        return self._failure.short_text

    @property
    def open_segments(self) -> int:
        """How many of the log's files are open."""
        return self._segments.open_count

    @property
    def checkpointed(self) -> int:
        """Where the last checkpoint of this opening is; 0 before the first."""
        return self._indexes.checkpointed

    def restate_epochs(self) -> int:
        """Append a record with all epochs, so that the log knows them without its oldest segments.
        Returns its end. Raises as `CommitLog.append_run`."""
        now_ms = self._clock_ms()
        for epoch, start in self.epochs:
            self.epoch_mark(epoch, start)
        body = encode_epochs(self.epochs, self._marks)
        template = epoch_template(self.epoch)
        self.log.append_record(template, body, born_ms=now_ms, store_ms=now_ms)
        return self.log.appended

    def retire(self, position: int) -> int:
        """Let the log begin with the segment that holds `position`, which has to be checkpointed.
        Nothing of what is given up may be wanted again. `discard` removes the files.

        Returns:
            How many bytes of the log that gives up; 0 if there is no whole segment.
        """
        assert position <= self.checkpointed
        return self._segments.retire(position)

    def discard(self) -> None:
        """Remove the files of what was retired. One worker's thread. Raises OSError (it is tried
        again), StorageFailed."""
        self._segments.discard()

    def drop_spares(self) -> int:
        """The disk is short of room: remove the files that wait to be used again. Any thread.
        Returns how many bytes that frees. Raises StorageFailed."""
        return self._segments.drop_spares()

    def store_ms_at(self, position: int) -> int:
        """When the record at `position` was appended. It has to be written. Any thread.

        Raises:
            CorruptRecord: it cannot be read.
        """
        segment = self._segments.at(position)
        if segment is None:
            raise CorruptRecord(position, "the log has no such position")
        memory = self._reader.pread(segment, position, RECORD_BODY_AT)
        if len(memory) < RECORD_BODY_AT or memory[4:8] != MAGIC_V1.to_bytes(4, "big"):
            raise CorruptRecord(position, "no record starts there")
        return int.from_bytes(memory[RECORD_STORE_MS_AT : RECORD_STORE_MS_AT + 8], "big")

    def walk(self, position: int) -> Walk:
        """All records from a record's place on, from the disk, as far as they are sound. Any
        thread."""
        return self._reader.walk(position)

    def record_at(self, position: int) -> Record:
        """The record at `position`, from the disk, checked. Any thread. Raises CorruptRecord."""
        record = self._reader.record_at(position)
        if record is None:
            raise CorruptRecord(position, "there is no sound record")
        return record

    def find_record(self, position: int) -> Record | None:
        """The sound record at a place that somebody names, or None. Any thread. Ask only for what
        is flushed. Raises CorruptRecord if the disk cannot read it."""
        return self._reader.record_at(position)

    def range_of_history(self, position: int, size_max: int) -> tuple[int, bytes]:
        """What stands in the log from `position` (where a record starts) on, from the disk and
        checked. Ask only for what is written. Any thread.

        Returns:
            The place of the first byte, which is behind `position` only where a segment ended
            there, and whole records: at least one, and no more than fit into `size_max` behind
            that; a blank record, where the segment ends.

        Raises:
            CorruptRecord: what stands there is no sound record.
        """
        segment = self._segments.at(position)
        if segment is None:
            raise CorruptRecord(position, "the log has no such position")
        remaining = segment.end - position
        memory = self._reader.pread(segment, position, min(max(size_max, BLANK_SIZE), remaining))
        size, _, reason, _ = walking.scan(memory, 0, len(memory), position, NO_BATCH)
        if not size and reason == STOP_SHORT:
            record_size = int.from_bytes(memory[:4], "big")
            memory = self._reader.pread(segment, position, min(record_size, remaining))
            size, _, reason, _ = walking.scan(memory, 0, len(memory), position, NO_BATCH)
        if reason == STOP_BLANK and size + BLANK_SIZE <= len(memory):
            return position, memory[: size + BLANK_SIZE]
        if not size and reason == STOP_BATCH:  # within an atomic batch: one of its records
            reason = walking.check_record(memory, 0, len(memory), position)
            size = int.from_bytes(memory[:4], "big") if reason == STOP_END else 0
        if not size:
            raise CorruptRecord(position, REASONS[reason])
        return position, memory[:size]

    def position_behind(self, start: int, data: bytes) -> int:
        """The place behind a piece of the log: where a segment ends with it, the next one's."""
        end = start + len(data)
        segment = self._segments.at(start)
        if segment is not None and data[-4:] == MAGIC_BLANK.to_bytes(4, "big"):
            blank = end - BLANK_SIZE
            if int.from_bytes(data[-8:-4], "big") == segment.end - blank:
                return segment.end
        return end

    # --- reading --------------------------------------------------------------------------------

    def read_history(
        self, index: Index, first: int, count_max: int, bytes_max: int
    ) -> tuple[bytes, int]:
        """Records of a queue from offset `first` on, from the disk. Any thread.

        Every record is checked, also that it names this place in this queue. Ask only for what is
        flushed.

        Returns:
            The records, one after the other, and how many: at least one if `first` is stored, at
            most `count_max`, and no more than fit into `bytes_max` behind the first.

        Raises:
            CorruptRecord, StorageFailed: what stands there cannot be served.
        """
        entries = index.read_cold(first, count_max)
        count = writing.fit(entries, index.entry_size, count_max, bytes_max)
        if count == 0:
            return b"", 0
        records = self.log.read_cold(entries[: count * index.entry_size], index.entry_size)
        if isinstance(index, QueueIndex):
            wrong = walking.check_targets(records, index.number, first)
            if wrong >= 0:
                at = wrong * index.entry_size
                position = int.from_bytes(entries[at : at + 8], "big")
                raise CorruptRecord(
                    position, f"it is not message {first + wrong} of queue {index.number}"
                )
        return records, count

    def replay(self, position: int, system_flags: int | None = None) -> Iterator[Record]:
        """The records from `position` (0 means the first that the log has) to the end of what
        recovery kept.

        Args:
            system_flags: only system records, and those with one of these bits in their system
                flag; None for all.

        Raises:
            CorruptRecord: no record starts at `position`, or one on the way is not sound.
        """
        start = max(position, self.log.start)
        return self._reader.walk(start).records(self.recovery.end, system_flags)

    def records(self, position: int, end: int) -> Iterator[Record]:
        """The records between two positions of the log, all of them written. Any thread.

        Raises:
            CorruptRecord: no record starts at `position`, or one on the way is not sound.
        """
        return self._reader.walk(position).records(end)

    def set_bookmark(self, position: int) -> None:
        """Note a place of the log, which is flushed, for a later opening: a hint that may be lost.
        One worker's thread. Raises OSError."""
        write_bookmark(self._files, self._directory, position)

    def bookmark(self) -> int | None:
        """The place that was noted last, if the log still has it. A hint that cannot be read is
        none: whoever asks reads the log."""
        try:
            position = read_bookmark(self._files, self._directory)
        except OSError:
            return None
        return position if position is not None and position >= self.log.start else None

    def is_record_boundary(self, position: int, epoch: int) -> bool:
        """Whether this log has that place in that epoch, and a record starts or ends there."""
        if not epoch_covers(self.epochs, epoch, position, self.log.flushed):
            return False
        if position in (self.log.flushed, self.log.start):
            return True
        segment = self._segments.at(position)
        if segment is None:
            return False
        try:
            if self._reader.record_at(position) is not None:
                return True
            blank = self._reader.pread(segment, position, 8)
        except CorruptRecord:
            return False
        remaining = (segment.end - position).to_bytes(4, "big")
        return blank == remaining + MAGIC_BLANK.to_bytes(4, "big")

    # --- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, store everything, say that the store was closed in order, and unlock.

        Raises:
            StorageFull, StorageFailed: not all of it was possible. The lock is released all the
                same; the next opening recovers.
        """
        if self._closed:
            return
        self._closed = True
        try:
            try:
                self.log.on_unwritten = None
                self.log.write()
            finally:
                self.flusher.stop()
            self.prepare_checkpoint()()
            remove_abort(self._files, self._directory)
        except OSError as error:
            raise self._failure.translate("closing the store", error) from error
        finally:
            self._segments.close()
            self._files.close(self._lock)


def take_lock(files: Files, directory: str) -> int:
    """Make the directories and take the store's lock.

    Raises:
        StoreRefused: the directory cannot be written, or another process has the lock.
    """
    path = f"{directory}/{LOCK_NAME}"
    try:
        if not files.list(directory):  # before anything else is made in it
            make_directories(files, os.path.abspath(directory))
        files.make_directory(f"{directory}/{LOG_NAME}")
        files.make_directory(f"{directory}/{INDEXES_NAME}")
        files.make_directory(f"{directory}/{PACKS_NAME}")
        files.sync_directory(directory)
        handle = files.open(path, create=True)
    except OSError as error:
        raise StoreRefused(f"{directory} cannot be written: {describe(error)}") from error
    try:
        locked = files.lock(handle)
    except OSError as error:
        files.close(handle)
        raise StoreRefused(f"{path} cannot be locked: {describe(error)}") from error
    if not locked:
        files.close(handle)
        raise StoreRefused(f"{directory} is in use: another process holds {path}")
    return handle
