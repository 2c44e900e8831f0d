"""The index of one queue: fixed-size entries that say where its messages stand in the log.

Theory. Entries are appended in memory by the engine, right after the records they point to. A
checkpoint takes the entries whose records are flushed and writes them to the index's files; after
a crash recovery makes the rest again from the log. So a file never holds an entry whose record
may be lost, and an ack never waits for an index.

    consumequeue/<number>/<byte offset of the file's first entry, 20 digits>

Rules:

* `append`, `read_hot`, `take_dirty` and `trim` belong to the loop's thread, `write_files` to the
  one worker that runs a checkpoint, `read_cold` to any thread.
* Entries leave memory only after they were written and synced (`stored_offset` has passed them).
* An idle index holds no open file and no memory but this object.
"""

from __future__ import annotations

from typing import Final, Protocol

from core_log import kernels
from core_log.errors import StorageFailed, describe
from core_log.files import Files
from core_log.kernels.layout import ENTRY_SIZE, PRIVATE_ENTRY_SIZE
from core_log.segments import NAME_DIGITS

widen = kernels.widen

KEPT_BYTES_MAX: Final = 4096
"""Entries that stay in memory though they are on the disk: for a reader just behind the tail."""


class Index(Protocol):
    """What a reader of a queue needs of its index, on the disk or not."""

    entry_size: int
    first_offset: int
    end_offset: int

    def append(self, entries: bytes) -> None:
        """Add entries at the end."""

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on; None if they have to be read from the disk."""

    def read_cold(self, first: int, count: int) -> bytes:
        """The same from the disk: at least one entry where `read_hot` gave None."""


class QueueIndex:
    """The index of a queue that survives a restart.

    Args:
        changed: the store's set of indexes with entries in memory; this one adds itself.

    Attributes:
        number: the queue's name inside the store.
        entry_size: 20 (a topic's own queue) or 32.
        first_offset: the first offset that the index has.
        end_offset: the offset that the next entry takes.
        stored_offset: the end of what is in the files.
    """

    __slots__ = (
        "_changed",
        "_directory",
        "_file_entries",
        "_files",
        "_listed",
        "_tail",
        "_tail_offset",
        "end_offset",
        "entry_size",
        "first_offset",
        "number",
        "stored_offset",
    )

    def __init__(
        self,
        *,
        number: int,
        entry_size: int,
        directory: str,
        files: Files,
        file_entries: int,
        changed: set[QueueIndex],
        first_offset: int = 0,
        end_offset: int = 0,
    ) -> None:
        if entry_size not in (ENTRY_SIZE, PRIVATE_ENTRY_SIZE):
            raise ValueError(f"an index entry has 20 or 32 bytes, not {entry_size}")
        self.number = number
        self.entry_size = entry_size
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.stored_offset = end_offset
        self._directory = directory
        self._files = files
        self._file_entries = file_entries
        self._changed = changed
        self._listed = False  # whether this index is in `_changed`
        self._tail = bytearray()  # entries [_tail_offset, end_offset)
        self._tail_offset = end_offset

    # --- the loop's side ------------------------------------------------------------------------

    def append(self, entries: bytes) -> None:
        """Add entries (a multiple of `entry_size` bytes) at the end."""
        count, rest = divmod(len(entries), self.entry_size)
        if rest:
            raise ValueError(f"not whole entries of {self.entry_size} bytes")
        self._tail += entries
        self.end_offset += count
        if not self._listed:
            self._listed = True
            self._changed.add(self)

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on, from memory; fewer at the end.

        Returns:
            None if `first` is not in memory: `read_cold` has it.
        """
        if first < self._tail_offset:
            return None
        start = (first - self._tail_offset) * self.entry_size
        return bytes(self._tail[start : start + count * self.entry_size])

    def take_dirty(self, position: int) -> tuple[int, bytes]:
        """The entries to store: not stored yet, and their records stand before `position`.

        Returns:
            The offset of the first, and the entries, copied.
        """
        first = self.stored_offset
        start = (first - self._tail_offset) * self.entry_size
        end = start + self._count_before(position, start) * self.entry_size
        with memoryview(self._tail) as tail:  # a slice of the bytearray would be copied twice
            return first, bytes(tail[start:end])

    def _count_before(self, position: int, start: int) -> int:
        """How many entries of the tail from byte `start` on point before `position`."""
        size = self.entry_size
        low, high = 0, (len(self._tail) - start) // size
        if high and int.from_bytes(self._tail[-size : 8 - size], "big") < position:
            return high
        while low < high:
            middle = (low + high) // 2
            at = start + middle * size
            if int.from_bytes(self._tail[at : at + 8], "big") < position:
                low = middle + 1
            else:
                high = middle
        return low

    def trim(self, position: int) -> None:
        """Give up stored entries whose records are not in memory either.

        Args:
            position: the oldest log position in memory.
        """
        size = self.entry_size
        stored = (self.stored_offset - self._tail_offset) * size
        cut = min(stored, self._count_before(position, 0) * size)
        if cut == len(self._tail) or cut > KEPT_BYTES_MAX:
            del self._tail[:cut]
            self._tail_offset += cut // size
        if not self._tail and self._listed:
            self._listed = False
            self._changed.discard(self)

    # --- files ------------------------------------------------------------------------------------

    def write_files(self, first: int, entries: bytes) -> bool:
        """Write and sync entries from offset `first` on. Raises OSError.

        Returns:
            Whether a file was made (then the directory above has to be synced too).
        """
        made = False
        size = self.entry_size
        self._files.make_directory(self._directory)
        offset = first
        end = first + len(entries) // size
        while offset < end:
            file_start = offset - offset % self._file_entries
            count = min(end, file_start + self._file_entries) - offset
            at = (offset - first) * size
            name = f"{file_start * size:0{NAME_DIGITS}d}"
            handle = self._files.open(f"{self._directory}/{name}", create=True)
            try:
                new = self._files.size(handle) == 0
                place = (offset - file_start) * size
                self._files.pwritev(handle, (entries[at : at + count * size],), place)
                self._files.fdatasync(handle)
            finally:
                self._files.close(handle)
            if new:
                self._files.sync_directory(self._directory)
                made = True
            offset += count
        self.stored_offset = max(self.stored_offset, end)
        return made

    def read_cold(self, first: int, count: int) -> bytes:
        """Entries from `first` on, from one file: at most `count`, at least one if `first` is
        stored. Any thread.

        Raises:
            StorageFailed: the file can not be read.
        """
        count = min(count, self.stored_offset - first)
        if first < self.first_offset or count <= 0:
            return b""
        size = self.entry_size
        file_start = first - first % self._file_entries
        count = min(count, file_start + self._file_entries - first)
        path = f"{self._directory}/{file_start * size:0{NAME_DIGITS}d}"
        try:
            handle = self._files.open(path)
            try:
                entries = self._files.pread(handle, count * size, (first - file_start) * size)
            finally:
                self._files.close(handle)
        except OSError as error:
            raise StorageFailed(f"reading {path}: {describe(error)}") from error
        if len(entries) < size:
            raise StorageFailed(f"reading {path}: it is shorter than it was written")
        return entries[: len(entries) // size * size]


class MemoryIndex:
    """The index of a queue that does not survive: bounded, never on the disk.

    Args:
        count_max: beyond that the oldest entries are dropped.

    Attributes:
        dropped: how many entries were dropped because the index was full.
    """

    __slots__ = (
        "_count_max",
        "_entries",
        "dropped",
        "end_offset",
        "entry_size",
        "first_offset",
        "number",
    )

    def __init__(self, entry_size: int, count_max: int, *, number: int = 0) -> None:
        if count_max <= 0:
            raise ValueError("a queue holds at least one entry")
        self.number = number
        self.entry_size = entry_size
        self.first_offset = 0
        self.end_offset = 0
        self.dropped = 0
        self._count_max = count_max
        self._entries = bytearray()

    def append(self, entries: bytes) -> None:
        """Add entries at the end; the oldest go if there are too many."""
        count, rest = divmod(len(entries), self.entry_size)
        if rest:
            raise ValueError(f"not whole entries of {self.entry_size} bytes")
        self._entries += entries
        self.end_offset += count
        excess = self.end_offset - self.first_offset - self._count_max
        if excess > 0:
            self.dropped += excess
            self.forget(self.first_offset + excess)

    def forget(self, first_offset: int) -> None:
        """Give up the entries before `first_offset` (they are settled)."""
        count = min(first_offset, self.end_offset) - self.first_offset
        if count > 0:
            del self._entries[: count * self.entry_size]
            self.first_offset += count

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on; empty if `first` is gone (see `first_offset`)."""
        if first < self.first_offset:
            return b""
        start = (first - self.first_offset) * self.entry_size
        return bytes(self._entries[start : start + count * self.entry_size])

    def read_cold(self, first: int, count: int) -> bytes:
        """The same: there is nothing on a disk."""
        return self.read_hot(first, count) or b""
