"""The commit log: one writer appends, the end moves in three steps.

    appended   in memory, visible to `read_hot`
    written    handed to the operating system (`write`, once per loop iteration)
    flushed    on the disk (`Flusher.collect`)

Rules:

* All methods but `read_cold` belong to the loop's thread.
* An append takes all of its rows or none. Whatever refuses it (size, full disk, a disk that does
  not keep up) is known before a record is visible, and what was begun is taken back.
* A record never crosses a segment's end: what does not fit leaves a blank record there (RocketMQ's
  filler) and goes to the next segment. An atomic batch lies in one segment wholly.
* `write` never waits for the disk itself, only for the page cache. If the disk is full, records
  that were appended stay in memory and the next `write` tries again.
* A large record is written in slices, if somebody calls again for the next one (`on_unwritten`).
  `written` stays before it until all of it is handed over.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from polymq.core_log.atomic import (
    Piece,
    batch_property,
    continuation,
    expand,
    part_of,
    row_of,
)
from polymq.core_log.errors import (
    FailureLatch,
    Follows,
    StorageBusy,
    StorageFull,
    StoreError,
    TooLarge,
)
from polymq.core_log.files import Files
from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.batch import (
    BLANK_SIZE,
    BODY_START,
    DISPATCH_TARGETS_MAX,
    EXTRA_START,
    MAGIC_BLANK,
    PROPERTIES_SIZE_MAX,
    Batch,
    LargeBatch,
)
from polymq.core_log.kernels.layout import PROPERTY_BATCH_SIZE
from polymq.core_log.kernels.log_end import Chunk, LogEnd, Span
from polymq.core_log.large_record import seal_large
from polymq.core_log.reader import LogReader
from polymq.core_log.record import RecordParts, RecordTemplate, encode_host
from polymq.core_log.segment_files import Segment
from polymq.core_log.segments import Segments
from polymq.core_log.settings import StoreSettings
from polymq.core_log.tail import Tail

BLANK: Final = struct.Struct(">II")
ENTRY_HEAD: Final = struct.Struct(">qi")
"""The beginning of an index entry: position and size of its record."""
BATCH_COUNT_MAX: Final = 0xFFFF
"""Four hex digits count the records of an atomic batch."""
NO_SLICES: Final = 1 << 62


class CommitLog(LogEnd):
    """The log of one store.

    Args:
        position: where the log goes on: all before it is on the disk.
    """

    _segment: Segment
    _tail: Tail

    def __init__(
        self,
        *,
        files: Files,
        segments: Segments,
        reader: LogReader,
        settings: StoreSettings,
        failure: FailureLatch,
        position: int,
    ) -> None:
        super().__init__(
            files=files,
            tail=Tail(position, settings.chunk_bytes),
            failure=failure,
            position=position,
            message_bytes_max=settings.message_bytes_max,
            ready_below=settings.unflushed_bytes_max - settings.chunk_bytes,
            whole_bytes_max=settings.chunk_bytes,
            host=encode_host(settings.host, settings.port),
        )
        self._segments = segments
        self._settings = settings
        self._reader = reader
        self._handed = position  # of a record that is written in slices: what is behind `written`
        self._atomic: deque[tuple[int, int]] = deque()
        """Where atomic batches begin and end that may not be written yet, in order."""
        self.on_unwritten: Callable[[], None] | None = None
        """Told when `write` left something for its next call; None: it leaves nothing."""
        self._enter(segments.last)

    def _enter(self, segment: Segment) -> None:
        """Records go into this segment from now on."""
        self._segment = segment
        self._handle = segment.handle
        self._segment_start = segment.start
        self._records_end = segment.end - BLANK_SIZE

    def stand_at(self, address: str, port: int) -> None:
        """Where readers find the records that are written from now on, by their ids.

        Args:
            address: an IPv4 address: records have room for no other.
        """
        self.host = encode_host(address, port)

    @property
    def flushed(self) -> int:
        """End of what is on the disk."""
        return self._flushed

    @flushed.setter
    def flushed(self, position: int) -> None:
        assert self._flushed <= position <= self.written
        self._flushed = position
        self._tail.trim(self._settings.tail_bytes_max, position)

    @property
    def start(self) -> int:
        """The first position that the log still has."""
        return self._segments.start

    @property
    def tail_start(self) -> int:
        """The oldest position that is in memory."""
        return self._tail.start

    @property
    def body_bytes_max(self) -> int:
        """A body that is surely taken, and leaves most of a segment to others."""
        return min(self._settings.message_bytes_max, self._settings.segment_bytes // 4)

    @property
    def unflushed_bytes(self) -> int:
        """How much waits for the disk."""
        return self.appended - self._flushed

    # --- appending ----------------------------------------------------------------------------

    def append_run(
        self,
        template: RecordTemplate,
        batch: Batch,
        first: int,
        last: int,
        *,
        targets: Sequence[tuple[int, int]],
        born_ms: int,
        store_ms: int,
    ) -> list[Span]:
        """Append rows [first, last) of the batch: all or none.

        Args:
            targets: (queue number, offset) of each queue, the topic's own first. Row k of the run
                takes the offset plus k there. More than 256 continue in system records of the
                same atomic batch.

        Returns:
            The records in order; normally one span, more where a chunk or a segment ended.

        Raises:
            TooLarge, StorageFull, StorageBusy, StorageFailed: nothing was appended.
        """
        if len(targets) > DISPATCH_TARGETS_MAX:
            return self._append_wide_run(
                template, batch, first, last, targets=targets, born_ms=born_ms, store_ms=store_ms
            )
        if isinstance(batch, LargeBatch) and batch.count:
            return [self._append_large(template, batch, targets, born_ms, store_ms)]
        span = self.append_plain(template, batch, first, last, targets, 0, 0, born_ms, store_ms)
        if span is not None:
            return [span]
        total = self._measure(template, batch, first, last, len(targets), 0)
        self._check_ready(total)
        with self._all_or_none(keyed=template.keyed):
            return self._write_rows(template, b"", targets, batch, first, last, born_ms, store_ms)

    def _append_large(
        self,
        template: RecordTemplate,
        batch: LargeBatch,
        targets: Sequence[tuple[int, int]],
        born_ms: int,
        store_ms: int,
    ) -> Span:
        """`append_run` for a large body, without copying it: its memory becomes a chunk."""
        size = self._measure(template, batch, 0, 1, len(targets), 0)
        self._check_ready(size)
        with self._all_or_none(keyed=template.keyed):
            if self._tail.last.end + size > self._segment.end - BLANK_SIZE:
                self._roll(0)
            position = self._tail.last.end
            memory, entry = seal_large(
                template,
                batch,
                position,
                size,
                host=self.host,
                targets=targets,
                born_ms=born_ms,
                store_ms=store_ms,
            )
            self._tail.add_full(memory, position)
            self.records += 1
            # What comes next needs a chunk in any case; what is not the last is written in slices.
            self._tail.add(position + size, 0, self._segment.end - position - size)
        return Span(memory, 0, size, position, entry)

    def append_record(
        self,
        template: RecordTemplate,
        body: bytes,
        *,
        extra: bytes = b"",
        targets: Sequence[tuple[int, int]] = (),
        born_ms: int,
        store_ms: int,
    ) -> Span:
        """Append one record. The cold path: `append_run` is for all that comes in numbers.

        Raises:
            As `append_run`.
        """
        return self.append_run(
            template, row_of(body, extra), 0, 1, targets=targets, born_ms=born_ms, store_ms=store_ms
        )[0]

    def append_atomic(self, records: Sequence[RecordParts], *, store_ms: int) -> list[Span]:
        """Append records that belong together: after a crash all of them are there, or none.

        Returns:
            One span per record, in their order.

        Raises:
            TooLarge: also if the batch is larger than a segment or has more than 65,535 records.
            StorageFull, StorageBusy, StorageFailed: nothing was appended.
        """
        with self._all_or_none(keyed=True):  # any of them may have a key
            return self._write_atomic(expand(records), store_ms)

    def _append_wide_run(
        self,
        template: RecordTemplate,
        batch: Batch,
        first: int,
        last: int,
        targets: Sequence[tuple[int, int]],
        born_ms: int,
        store_ms: int,
    ) -> list[Span]:
        """`append_run` for more targets than one record names: each row is an atomic batch."""
        spans = []
        with self._all_or_none(keyed=template.keyed):
            for row in range(first, last):
                record = RecordParts(
                    template=template,
                    body=part_of(batch, row, BODY_START),
                    extra=part_of(batch, row, EXTRA_START),
                    targets=[(number, offset + row - first) for number, offset in targets],
                    born_ms=born_ms,
                )
                spans += self._write_atomic(expand((record,)), store_ms)
        return spans

    def _write_atomic(self, pieces: Sequence[Piece], store_ms: int) -> list[Span]:
        """Write an atomic batch into memory: consecutive, in one segment."""
        if len(pieces) > BATCH_COUNT_MAX:
            raise TooLarge(f"an atomic batch of {len(pieces)} records")
        suffix_size = PROPERTY_BATCH_SIZE if len(pieces) > 1 else 0
        rows = [row_of(piece.body, piece.extra) for piece in pieces]
        total = sum(
            self._measure(piece.template, row, 0, 1, len(piece.targets), suffix_size)
            for piece, row in zip(pieces, rows, strict=True)
        )
        if total > self._settings.segment_bytes - BLANK_SIZE:
            raise TooLarge(f"an atomic batch of {total} bytes, more than a segment holds")
        self._check_ready(total)
        if self._tail.last.end + total + BLANK_SIZE > self._segment.end:
            self._roll(total)
        identifier = self._tail.last.end
        spans: list[Span] = []
        for index, (piece, row) in enumerate(zip(pieces, rows, strict=True)):
            template = piece.template
            if piece.continues is not None:
                continued = pieces[piece.continues].template
                template = continuation(spans[piece.continues].entries, continued)
            suffix = batch_property(identifier, index, len(pieces)) if suffix_size else b""
            spans += self._write_rows(
                template, suffix, piece.targets, row, 0, 1, piece.born_ms, store_ms
            )
        if suffix_size:
            while self._atomic and self._atomic[0][1] <= self.written:
                self._atomic.popleft()
            self._atomic.append((identifier, self._tail.last.end))
        return [span for span, piece in zip(spans, pieces, strict=True) if piece.continues is None]

    # --- copies (replication) -----------------------------------------------------------------

    def follow(self, why: str) -> None:
        """From now on only `append_copy` adds to the log: all else raises `Follows`."""
        self._full = self._barred = Follows(why)

    def append_copy(self, records: bytes | memoryview) -> None:
        """Append whole records, which were checked and belong at the log's end, as they are.

        Raises:
            StorageFailed: nothing was appended.
        """
        self._failure.check()
        size = len(records)
        chunk = self._tail.last
        if chunk.end != self.appended or len(chunk.memory) - chunk.used < size:
            chunk = self._tail.add(self.appended, size, self._segment.end - self.appended)
        chunk.memory[chunk.used : chunk.used + size] = records
        chunk.used += size
        self.appended = self.keyed_end = chunk.end

    def roll_copy(self) -> None:
        """Close the segment where the other log did, with its blank record, and go on in the next.

        Raises:
            StorageFull: there is no room for the next segment; nothing has changed.
            StorageFailed: final.
        """
        assert self.remaining >= BLANK_SIZE
        following = self._segments.roll(self._segment.end)
        self.append_copy(BLANK.pack(self.remaining, MAGIC_BLANK))
        self.write()
        self._enter(following)
        self._tail.add(following.start, 0, following.end - following.start)
        self.appended = self.written = following.start

    @property
    def remaining(self) -> int:
        """Bytes between the log's end and its segment's."""
        return self._segment.end - self.appended

    def tail_range(self, position: int) -> tuple[int, bytes] | None:
        """What is written and in memory from `position` (where a record starts, or the end) on.

        Returns:
            The place of the first byte, which is behind `position` only where a segment ended
            there, and bytes of the log without a hole, which end where a record ends; empty at the
            end. None: it is not in memory any more, or never was.
        """
        if position < self._tail.start:
            return None
        for chunk in self._tail.since(position):
            start = max(chunk.position, position)
            end = min(chunk.end, self.written)
            at = start - chunk.position
            return start, bytes(memoryview(chunk.memory)[at : at + max(end - start, 0)])
        return position, b""

    # --- room ---------------------------------------------------------------------------------

    def _measure(
        self,
        template: RecordTemplate,
        batch: Batch,
        first: int,
        last: int,
        target_count: int,
        suffix_size: int,
    ) -> int:
        """The bytes that the rows need in all. Raises TooLarge."""
        total, record_max, body_max, properties_max = writing.run_size(
            batch, first, last, template.form, target_count, suffix_size
        )
        if body_max > self._settings.message_bytes_max:
            limit = self._settings.message_bytes_max
            raise TooLarge(f"a body of {body_max} bytes; the limit is {limit}")
        if properties_max > PROPERTIES_SIZE_MAX:
            raise TooLarge(
                f"properties of {properties_max} bytes; the limit is {PROPERTIES_SIZE_MAX}"
            )
        if record_max > self._settings.segment_bytes - BLANK_SIZE:
            raise TooLarge(f"a record of {record_max} bytes, more than a segment holds")
        return total

    def _check_ready(self, size: int) -> None:
        """Raise unless the disk has kept up and has not failed."""
        self._failure.check()
        if self._full is not None:
            raise type(self._full)(str(self._full))
        waiting = self._tail.last.end - self._flushed
        if waiting and waiting + size > self._settings.unflushed_bytes_max:
            raise StorageBusy(f"{waiting} bytes wait for the disk")

    @contextmanager
    def _all_or_none(self, *, keyed: bool) -> Iterator[None]:
        """What is written inside is appended at the end; after an error it is taken back, and
        nobody has seen it.

        Args:
            keyed: whether a record of it may have a key.
        """
        tail_mark, segment = self._tail.mark(), self._segment
        try:
            yield
        except BaseException:
            self._enter(segment)
            self._tail.rewind(tail_mark)
            while self._atomic and self._atomic[-1][1] > self._tail.last.end:
                self._atomic.pop()
            raise
        self.appended = self._tail.last.end
        if keyed:
            self.keyed_end = self.appended

    def _write_rows(
        self,
        template: RecordTemplate,
        suffix: bytes,
        targets: Sequence[tuple[int, int]],
        batch: Batch,
        first: int,
        last: int,
        born_ms: int,
        store_ms: int,
    ) -> list[Span]:
        """Write the rows into memory, beginning chunks and segments where they are needed."""
        spans = []
        row = first
        while row < last:
            chunk = self._tail.last
            start = chunk.used
            room = max(self._segment.end - BLANK_SIZE - chunk.end, 0)
            count, end, entries = writing.append_run(
                chunk.memory,
                start,
                min(len(chunk.memory), start + room),
                chunk.end,
                template.form,
                self.host,
                suffix,
                targets,
                row - first,
                batch,
                row,
                last,
                born_ms,
                store_ms,
            )
            if count:
                spans.append(Span(chunk.memory, start, end, chunk.end, entries))
                chunk.used = end
                row += count
                self.records += count
                continue
            size = writing.run_size(batch, row, row + 1, template.form, len(targets), len(suffix))[
                0
            ]
            if size > room:
                self._roll(size)
            else:
                self._tail.add(chunk.end, size, room)
        return spans

    def _roll(self, size: int) -> None:
        """Close the segment with a blank record and go on in the next, with room for `size`."""
        chunk = self._tail.last
        remaining = self._segment.end - chunk.end
        assert remaining >= BLANK_SIZE
        following = self._segments.roll(self._segment.end)
        if len(chunk.memory) - chunk.used < BLANK_SIZE:
            chunk = self._tail.add(chunk.end, BLANK_SIZE, BLANK_SIZE)
        BLANK.pack_into(chunk.memory, chunk.used, remaining, MAGIC_BLANK)
        chunk.used += BLANK_SIZE
        self._enter(following)
        self._tail.add(following.start, size, following.end - BLANK_SIZE - following.start)

    # --- writing ------------------------------------------------------------------------------

    def write_chunks(self) -> None:
        """See `LogEnd.write_chunks`."""
        self._failure.check()
        left = NO_SLICES if self.on_unwritten is None else self._settings.write_slice_bytes
        try:
            chunks = list(self._tail.since(self.written))
            for chunk, following in pairwise((*chunks, None)):
                assert chunk is not None
                segment = self._segments.at(chunk.position)
                assert segment is not None
                # A usual chunk may grow while it is written: in slices it might never be.
                is_large = len(chunk.memory) > self._settings.chunk_bytes
                left -= self._write_chunk(chunk, segment, left if is_large else NO_SLICES)
                if self._handed >= chunk.end:
                    end = chunk.end if following is None else following.position
                    self.written = self._resting_position(end)
                if left <= 0:
                    break
        except OSError as error:
            raise self.write_failed(error) from error
        if self.written < self.appended:
            assert self.on_unwritten is not None
            self.on_unwritten()
            return
        self._full = self._barred

    def write_failed(self, error: OSError) -> StoreError:
        """See `LogEnd.write_failed`."""
        failed = self._failure.translate("writing the log", error)
        if isinstance(failed, StorageFull):
            self._full = failed
        return failed

    def _write_chunk(self, chunk: Chunk, segment: Segment, left: int) -> int:
        """Write what the operating system does not have of the chunk, up to `left` bytes. Returns
        how many. Raises OSError."""
        start = max(self._handed, self.written, chunk.position) - chunk.position
        end = min(chunk.used, start + left)
        if start >= end:
            return 0
        with memoryview(chunk.memory) as whole, whole[start:end] as piece:
            self._files.pwritev(segment.handle, (piece,), chunk.position + start - segment.start)
        self._handed = chunk.position + end
        return end - start

    def _resting_position(self, position: int) -> int:
        """How far the log is written, for all who ask, when all before a position is. What is
        flushed may be named by a checkpoint, and a start goes on from there. So it is never within
        an atomic batch, whose end may be missing after a crash; nor between the head of a blank
        record and its segment's end, where there are zeros."""
        atomic = self._atomic
        while atomic and atomic[0][1] <= position:
            atomic.popleft()
        return atomic[0][0] if atomic and atomic[0][0] < position else position

    # --- reading ------------------------------------------------------------------------------

    def read_hot(self, entries: bytes, stride: int) -> bytes | None:
        """The records of these index entries, one after the other, from memory.

        Returns:
            None unless all of them are in memory: then `read_cold` has them.
        """
        parts = []
        index = 0
        count = len(entries) // stride
        while index < count:  # once per chunk
            position = int.from_bytes(entries[index * stride : index * stride + 8], "big")
            chunk = self._tail.find(position)
            if chunk is None:
                return None
            records, taken, _ = walking.gather(
                entries, stride, index, chunk.memory, chunk.position, chunk.used, False
            )
            if taken == 0:
                return None
            parts.append(records)
            index += taken
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view_hot(self, entry: bytes) -> memoryview | None:
        """The record of one index entry where it stands in memory; None if it does not."""
        position, size = ENTRY_HEAD.unpack_from(entry)
        chunk = self._tail.find(position)
        if chunk is None or position + size > chunk.end:
            return None
        start = position - chunk.position
        return memoryview(chunk.memory)[start : start + size]

    def read_cold(self, entries: bytes, stride: int) -> bytes:
        """The records of these index entries, one after the other, from the disk. Any thread.

        The caller asks only for what is written. Every record is checked: size, position and
        checksum.

        Raises:
            CorruptRecord: one cannot be read, or is not what the entry says.
        """
        return self._reader.read(entries, stride)
