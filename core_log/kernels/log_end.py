# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The end of the commit log in memory: where a run of messages goes that is nothing special.

One source in two forms: plain Python, and a C extension, for which
`log_end.pxd` says of what types all this is. `commit_log.py` has the whole of it: segments
that end, runs that do not fit, disks that do not keep up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymq.core_log.kernels import writing
from polymq.core_log.kernels.layout import ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polymq.core_log.errors import FailureLatch, Follows, StorageFull, StoreError
    from polymq.core_log.files import Files
    from polymq.core_log.kernels.batch import Batch
    from polymq.core_log.record import RecordTemplate


class Span:
    """Records that stand one after the other in memory, as they were appended.

    Attributes:
        memory, start, end: the records are memory[start:end].
        position: the log position of the first record.
        count: how many records.
        entries: their 20-byte index entries.
    """

    __slots__ = ("count", "end", "entries", "memory", "position", "start")

    def __init__(
        self, memory: bytearray, start: int, end: int, position: int, entries: bytes
    ) -> None:
        self.memory = memory
        self.start = start
        self.end = end
        self.position = position
        self.entries = entries
        self.count = len(entries) // ENTRY_SIZE

    def __repr__(self) -> str:
        return f"Span({self.count} records at {self.position})"


class Chunk:
    """Memory that holds the log from `position` on.

    Attributes:
        memory: the bytes; their number never changes.
        position: the log position of memory[0].
        used: how many bytes are filled.
    """

    __slots__ = ("memory", "position", "used")

    def __init__(self, memory: bytearray, position: int) -> None:
        self.memory = memory
        self.position = position
        self.used = 0

    @property
    def end(self) -> int:
        """The log position behind the last filled byte."""
        return self.position + self.used


class ChunksEnd:
    """What of the memory tail is needed here; `Tail` is all of it.

    Attributes:
        last: the chunk that is written to.
    """

    __slots__ = ("last",)

    last: Chunk


class LogEnd:
    """What of a commit log is needed to append to it, and to write what was appended.

    Args:
        files: where it is written.
        position: where the log goes on: all before it is on the disk.
        ready_below: while less than this waits for the disk, whatever fits into a chunk may be
            appended.
        whole_bytes_max: more than this is not written by one call; usual chunks have no more.
        host: address and port as records have them, 8 bytes.
    """

    def __init__(
        self,
        *,
        files: Files,
        tail: ChunksEnd,
        failure: FailureLatch,
        position: int,
        message_bytes_max: int,
        ready_below: int,
        whole_bytes_max: int,
        host: bytes,
    ) -> None:
        self._files = files
        self._tail = tail
        self._failure = failure
        self._message_bytes_max = message_bytes_max
        self._ready_below = ready_below
        self._whole_bytes_max = whole_bytes_max
        self._appender = writing.Appender()
        self.host = host
        """Address and port as records have them, 8 bytes."""
        self._full: StorageFull | Follows | None = None  # why the last write left some
        self._barred: Follows | None = None  # why nothing of one's own is appended
        self._flushed = position
        self._handle = -1  # of the segment that is written to, and where that starts
        self._segment_start = position
        self._records_end = position  # of the segment; what is behind is for a blank record
        self.appended = position
        """End of what is in memory and visible to `read_hot`."""
        self.written = position
        """End of what the operating system has."""
        self.keyed_end = position
        """No record from here on has a key: what the key index need not look at. Of what was there
        before nobody knows."""
        self.runs = 0
        """How many runs were appended by one call of the kernel: for the flusher, which expects as
        many again (`group_commit.py`)."""
        self.records = 0
        """How many records were appended, those included that were taken back. For metrics."""

    def append_plain(
        self,
        template: RecordTemplate,
        batch: Batch,
        first: int,
        last: int,
        targets: Sequence[tuple[int, int]] | None,
        number: int,
        offset: int,
        born_ms: int,
        store_ms: int,
    ) -> Span | None:
        """`CommitLog.append_run` where one call of the kernel does it, and there is nothing to take
        back. None where that is not so: nothing was appended.

        Args:
            targets: at most as many as one record names; None for the queue `number` alone, where
                the first row takes `offset`.
        """
        if (
            self.appended - self._flushed >= self._ready_below
            or self._full is not None
            or self._failure.failed
        ):
            return None
        chunk = self._tail.last
        memory = chunk.memory
        start = chunk.used
        position = chunk.position + start
        limit = min(len(memory), start + self._records_end - position)
        if limit <= start:
            return None
        appender = self._appender
        try:
            count = appender.append(
                memory,
                start,
                limit,
                position,
                template.form,
                self.host,
                targets,
                number,
                offset,
                batch,
                first,
                last,
                born_ms,
                store_ms,
            )
        except ValueError:  # properties that do not fit: measuring says how large they are
            return None
        end = appender.end
        # What was written behind the end counts for nothing. A body may be too large only where
        # all of it is.
        if count == 0 or count != last - first or end - start > self._message_bytes_max:
            return None
        chunk.used = end
        self.appended = position + end - start
        self.runs += 1
        self.records += count
        if template.keyed:
            self.keyed_end = self.appended
        span = Span.__new__(Span)
        span.memory = memory
        span.start = start
        span.end = end
        span.position = position
        span.entries = appender.entries
        span.count = count
        return span

    def write(self) -> None:
        """Hand everything appended to the operating system.

        Raises:
            StorageFull: it stays in memory, appends are refused; call again later.
            StorageFailed: final.
        """
        if self.written == self.appended:
            return
        chunk = self._tail.last
        memory = chunk.memory
        start = self.written - chunk.position
        if start < 0 or chunk.used - start > self._whole_bytes_max or self._failure.failed:
            # Chunks before the last one, a large record, or an error to say.
            self.write_chunks()
            return
        file_at = self.written - self._segment_start
        try:
            self._files.write_part(self._handle, memory, start, chunk.used, file_at)
        except OSError as error:
            raise self.write_failed(error) from error
        self.written = chunk.position + chunk.used
        self._full = self._barred

    def write_chunks(self) -> None:
        """`write`, whatever there is to be written."""
        raise NotImplementedError

    def write_failed(self, error: OSError) -> StoreError:
        """The error to raise, of which note was taken."""
        raise NotImplementedError
