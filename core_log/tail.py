"""The newest part of the log, in memory.

Theory. Records are written into *chunks*: anonymous memory, one after the other, each covering a
stretch of the log without a hole. A record lies in one chunk, never across two, so a reader gets
it as one slice; a record larger than a chunk gets one of its own. At a segment's end a new chunk
begins, because the position jumps there. No file is mapped: a failing disk must be an error of a
call, not a signal.

Rules:

* Only the loop's thread touches this.
* A chunk is given up only when all of it is on the disk (`trim` is told up to where), the oldest
  first. The newest stays, because it is written to.
* The memory of a given-up chunk serves again as a new chunk if nobody else holds it. Memory that
  was touched before is two to three times as fast to fill as memory that the kernel has to zero.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from polymq.core_log.kernels.log_end import Chunk, ChunksEnd

_REFERENCES_OF_UNSHARED = 2
"""What `sys.getrefcount` says of an object that one local variable holds."""
_SPARE_COUNT_MAX = 4
"""Chunks kept for use again: more would only be idle memory."""


class Tail(ChunksEnd):
    """The chunks that are in memory, oldest first. There is always at least one.

    Args:
        position: where the log goes on.
        chunk_bytes: the usual size of a chunk.
    """

    __slots__ = ("_chunk_bytes", "_chunks", "_spare", "bytes")

    def __init__(self, position: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunks: list[Chunk] = []
        self._spare: list[bytearray] = []
        self.bytes = 0
        """Memory that the chunks hold."""
        self.add(position, 0, 0)

    @property
    def start(self) -> int:
        """The oldest log position in memory."""
        return self._chunks[0].position

    def add(self, position: int, size_min: int, size_max: int) -> Chunk:
        """Begin a new chunk at `position`.

        Args:
            size_min: bytes that it must hold (the record that comes next).
            size_max: bytes that it can need at most (the rest of its segment).
        """
        size = max(min(self._chunk_bytes, size_max), size_min)
        if size == self._chunk_bytes and self._spare:
            memory = self._spare.pop()
        else:
            memory = bytearray(size)
        chunk = self.last = Chunk(memory, position)
        self._chunks.append(chunk)
        self.bytes += size
        return chunk

    def add_full(self, memory: bytearray, position: int) -> None:
        """Take memory that is a record already as a chunk of its own, which has no more room."""
        chunk = self.last = Chunk(memory, position)
        chunk.used = len(memory)
        self._chunks.append(chunk)
        self.bytes += len(memory)

    def find(self, position: int) -> Chunk | None:
        """The chunk that holds the byte at `position`, or None."""
        last = bisect_right(self._chunks, position, key=attrgetter("position")) - 1
        if last < 0:
            return None
        chunk = self._chunks[last]
        return chunk if position < chunk.end else None

    def since(self, position: int) -> Iterator[Chunk]:
        """The chunks with bytes at or behind `position`, oldest first."""
        last = bisect_right(self._chunks, position, key=attrgetter("position")) - 1
        for index in range(max(last, 0), len(self._chunks)):
            if self._chunks[index].end > position:
                yield self._chunks[index]

    def trim(self, bytes_max: int, safe: int) -> None:
        """Give up the oldest chunks until at most `bytes_max` are left.

        Args:
            safe: chunks that end behind this position stay: they are not on the disk yet.
        """
        count = 0
        while (
            self.bytes > bytes_max
            and count < len(self._chunks) - 1
            and self._chunks[count].end <= safe
        ):
            self.bytes -= len(self._chunks[count].memory)
            count += 1
        if count:
            given_up = self._chunks[:count]
            del self._chunks[:count]
            while given_up:
                self._keep_spare(given_up.pop())

    def _keep_spare(self, chunk: Chunk) -> None:
        """Keep the chunk's memory for a new chunk, unless a reader still holds it."""
        memory = chunk.memory
        chunk.memory = bytearray()
        if (
            len(self._spare) < _SPARE_COUNT_MAX
            and len(memory) == self._chunk_bytes
            and sys.getrefcount(memory) == _REFERENCES_OF_UNSHARED
        ):
            self._spare.append(memory)

    def mark(self) -> tuple[int, int]:
        """The present end, for `rewind`."""
        return len(self._chunks), self.last.used

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget what was added since `mark` was taken (nothing was trimmed in between)."""
        count, used = mark
        for chunk in self._chunks[count:]:
            self.bytes -= len(chunk.memory)
        del self._chunks[count:]
        self.last = self._chunks[-1]
        self.last.used = used
