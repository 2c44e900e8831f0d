"""Reading the log from the disk: records by their entries, and all records from a place on.

Rule: nothing leaves this file unchecked. Size, position and checksum of every record are compared
before a byte of it is given out. All of it may run in any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from polymq.core_log.errors import CorruptRecord, StorageShort, describe, is_short
from polymq.core_log.files import Files
from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.batch import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, RECORD_POSITION_AT
from polymq.core_log.kernels.layout import (
    NO_BATCH,
    REASONS,
    STOP_BLANK,
    STOP_END,
    STOP_SHORT,
    STOP_SIZE,
    STOP_ZERO,
    SYSTEM_TOPIC,
)
from polymq.core_log.record import Record, decode_record
from polymq.core_log.segment_files import CLOSED, Segment
from polymq.core_log.segments import Segments

READ_GAP_MAX: Final = 16 * 1024
"""Between two records: reading this much too much costs less than another call."""


class LogReader:
    """Reads the files of one log.

    Args:
        read_bytes_max: one read of the disk, unless a record alone is larger.
    """

    def __init__(self, *, files: Files, segments: Segments, read_bytes_max: int) -> None:
        self._files = files
        self._segments = segments
        self.read_bytes_max = read_bytes_max

    @property
    def start(self) -> int:
        """The first position that the log has."""
        return self._segments.start

    def read(self, entries: bytes, stride: int) -> bytes:
        """The records of these index entries, one after the other.

        Raises:
            CorruptRecord: one cannot be read, or is not what the entry says.
        """
        parts = []
        index = 0
        count = len(entries) // stride
        while index < count:  # once per read of the disk
            records, taken = self._read_some(entries, stride, index)
            parts.append(records)
            index += taken
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_some(self, entries: bytes, stride: int, index: int) -> tuple[bytes, int]:
        """The records of the first entries from `index` on that one read of the disk gets."""
        at = index * stride
        position = int.from_bytes(entries[at : at + 8], "big")
        segment = self._segments.at(position)
        if segment is None:
            raise CorruptRecord(position, "the log has no such position")
        if position + int.from_bytes(entries[at + 8 : at + 12], "big") > segment.end:
            raise CorruptRecord(position, "it would pass the end of its segment")
        position, size, count = writing.plan_read(
            entries, stride, index, READ_GAP_MAX, self.read_bytes_max, segment.end
        )
        memory = self.pread(segment, position, size)
        records, taken, reason = walking.gather(
            entries, stride, index, memory, position, len(memory), True
        )
        if taken < count:
            at += taken * stride
            bad = int.from_bytes(entries[at : at + 8], "big")
            raise CorruptRecord(bad, REASONS[STOP_SHORT if reason == STOP_END else reason])
        return records, taken

    def pread(self, segment: Segment, position: int, size: int) -> bytes:
        """Bytes of a segment; fewer if its file is shorter.

        Raises:
            CorruptRecord: the disk cannot read them, or the segment was deleted.
            StorageShort: the process has no descriptor or no memory for it; try again.
        """
        try:
            handle = segment.enter()
            if handle == CLOSED:
                raise CorruptRecord(position, "the log no longer has this position")
            try:
                return self._files.pread(handle, size, position - segment.start)
            finally:
                segment.leave()
        except OSError as error:
            if is_short(error):
                raise StorageShort(f"reading {segment.path}: {describe(error)}") from error
            raise CorruptRecord(position, f"it cannot be read: {describe(error)}") from error

    def segment_end(self, position: int) -> int:
        """Where the segment that holds `position` ends; `position` if there is none."""
        segment = self._segments.at(position)
        return position if segment is None else segment.end

    def behind_blank(self, position: int) -> int:
        """The position where the log goes on, if the head of a segment's blank record ends at this
        one; else the same. Checkpoints of former versions may be there."""
        segment = self._segments.at(position)
        if segment is None or position - BLANK_SIZE < segment.start:
            return position
        head = self.pread(segment, position - BLANK_SIZE, BLANK_SIZE)
        remaining = segment.end - position + BLANK_SIZE
        is_blank = head == remaining.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
        return segment.end if is_blank and self._segments.at(segment.end) else position

    def walk(self, position: int) -> Walk:
        """A walk over all records from `position` (a record's place, or where none is yet) on."""
        return Walk(self, self._segments, position)

    def size_at(self, position: int) -> int:
        """The size that a record at `position` would have by its first bytes; 0 if none of that
        size can stand there. Raises CorruptRecord if the disk cannot read it."""
        segment = self._segments.at(position)
        if segment is None:
            return 0
        size = int.from_bytes(self.pread(segment, position, 4), "big")
        return size if position + size <= segment.end else 0

    def record_at(self, position: int) -> Record | None:
        """The sound record that stands at `position`, or None. Raises CorruptRecord if the disk
        cannot read it."""
        segment = self._segments.at(position)
        size = self.size_at(position)
        if segment is None or not size:
            return None
        memory = self.pread(segment, position, size)
        if walking.check_record(memory, 0, len(memory), position) != STOP_END:
            return None
        return Record(memory, 0)

    def looks_like_record(self, position: int, size: int) -> bool:
        """Whether what stands there has the head of a record of that place and size, sound or
        not."""
        segment = self._segments.at(position)
        if segment is None or position + size > segment.end:
            return False
        try:
            head = self.pread(segment, position, RECORD_POSITION_AT + 8)
        except CorruptRecord:
            return True  # nobody can tell
        return head == (
            size.to_bytes(4, "big")
            + MAGIC_V1.to_bytes(4, "big")
            + head[8:RECORD_POSITION_AT]
            + position.to_bytes(8, "big")
        )


class Walk:
    """A walk over the log's records, in their order, as far as they are sound.

    Attributes:
        position: behind the last sound record.
        reason: why the walk ended there (a STOP code); meaningful once `stretches` has ended.
        batch: the atomic batch that is open at `position`, or `NO_BATCH`; its first member is
            the position where the batch begins.
    """

    def __init__(self, reader: LogReader, segments: Segments, position: int) -> None:
        self._reader = reader
        self._segments = segments
        self._segment = segments.at(position)
        self.position = position
        self.reason = STOP_END
        self.batch = NO_BATCH

    def stretches(self) -> Iterator[tuple[bytes, int, int]]:
        """(memory, size, position): memory[:size] are whole, sound records from `position` on."""
        size_wanted = self._reader.read_bytes_max
        while self._segment is not None:  # every turn goes on in the log, or asks for more, once
            segment = self._segment
            size_wanted = min(size_wanted, segment.end - self.position)
            memory = self._reader.pread(segment, self.position, size_wanted)
            size, _, reason, self.batch = walking.scan(
                memory, 0, len(memory), self.position, self.batch
            )
            if size:
                start = self.position
                self.position += size
                yield memory, size, start
            if reason == STOP_END:
                reason = STOP_ZERO if len(memory) < size_wanted or not memory else STOP_END
            elif reason == STOP_SHORT:
                record_size = int.from_bytes(memory[size : size + 4], "big")
                reason = self._short(size, len(memory), size_wanted, record_size)
                if reason == STOP_END and size == 0:
                    size_wanted = record_size
                    continue
            elif reason == STOP_BLANK:
                reason = self._pass_blank(int.from_bytes(memory[size : size + 4], "big"))
            if reason != STOP_END:
                self.reason = reason
                return
            size_wanted = self._reader.read_bytes_max

    def _short(self, size: int, read: int, size_wanted: int, record_size: int) -> int:
        """STOP_END if a record that was read in part may be whole when more is read."""
        assert self._segment is not None
        ends_early = read < size_wanted  # the file is shorter than its segment
        at_end = self.position - size + read == self._segment.end
        if ends_early or (at_end and size == 0):
            return STOP_SHORT
        return STOP_SIZE if record_size > self._segment.end - self.position else STOP_END

    def _pass_blank(self, remaining: int) -> int:
        """Go on in the next segment, if the blank record is right and there is one."""
        assert self._segment is not None
        if remaining != self._segment.end - self.position or self.batch != NO_BATCH:
            return STOP_SIZE
        following = self._segments.at(self._segment.end)
        if following is None:
            return STOP_BLANK
        self._segment = following
        self.position = following.start
        return STOP_END

    def records(self, end: int, system_flags: int | None = None) -> Iterator[Record]:
        """The records up to the position `end`.

        Args:
            system_flags: only system records, and those with one of these bits in their system
                flag; None for all.

        Raises:
            CorruptRecord: one on the way is not sound.
        """
        for memory, size, position in self.stretches():
            size = min(size, end - position)
            if system_flags is None:
                at = 0
                while at < size:
                    record = decode_record(memory, at, verify=False)
                    yield record
                    at += record.size
            else:
                for at in walking.find_marked(memory, 0, size, SYSTEM_TOPIC, system_flags):
                    yield decode_record(memory, at, verify=False)
            if position + size >= end:
                return
        if self.position < end:
            raise CorruptRecord(self.position, REASONS[self.reason])
