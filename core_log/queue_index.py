"""The index of one queue: fixed-size entries that say where its messages stand in the log.

Theory. Entries are appended in memory by the engine, right after the records they point to. A
checkpoint takes the entries whose records are flushed and stores them; after a crash recovery
makes the rest again from the log. So no file holds an entry whose record may be lost, and an ack
never waits for an index.

Where stored entries are, by offset:

    first_offset      filed_offset           stored_offset         end_offset
         | files of its own | extents in the packs | memory only      |
           (index_files.py)   (packs.py)             (index_tail.py)

A queue with few entries has no files of its own and costs no name on the disk; many entries move
from the packs to files in RocketMQ's form.

Rules:

* `append`, `read_hot` and `trim` belong to the loop's thread, storing to the one worker that runs
  a checkpoint, `read_cold` to any thread.
* Entries leave memory only after they were written and synced (`stored_offset` has passed them).
* The worker replaces `extents` as a whole, before it moves `stored_offset`: a reader that took
  both in the other order finds every stored entry.
* An idle index holds no open file and no memory but this object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from polymq.core_log.errors import StorageFailed, StorageShort, describe, is_short
from polymq.core_log.index_files import IndexFiles
from polymq.core_log.index_tail import IndexTail
from polymq.core_log.kernels import writing
from polymq.core_log.kernels.index_end import IndexEnd
from polymq.core_log.kernels.layout import ENTRY_SIZE, PRIVATE_ENTRY_SIZE
from polymq.core_log.packs import Packs

widen = writing.widen

IDLE_TAIL_BYTES_MAX: Final = 4096
"""What an idle queue may hold in memory is below this: a reader gets it from the disk in one
read."""
READ_ATTEMPTS_MAX: Final = 8
"""How often a read looks again because a compaction has moved what it was about to read."""

ENTRY_SIZES: Final = frozenset((ENTRY_SIZE, PRIVATE_ENTRY_SIZE))

Extents = tuple[int, ...]
"""Offset and place of each extent in the packs, in order: (offset, place, offset, place, ...). An
extent ends where the next one begins, the last at `stored_offset`."""


class Index(Protocol):
    """What a reader of a queue needs of its index, on the disk or not."""

    number: int
    entry_size: int
    first_offset: int
    end_offset: int

    def append(self, entries: bytes) -> None:
        """Add entries at the end."""

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on; None if they have to be read from the disk."""

    def read_cold(self, first: int, count: int) -> bytes:
        """The same from the disk: at least one entry where `read_hot` gave None."""

    def trim_before(self, offset: int) -> None:
        """Let the index begin at `offset`, if it begins before."""

    def begin_at(self, offset: int) -> None:
        """The same, and let it end there if it ends before."""


class IndexHome:
    """What the indexes of a store have in common.

    Args:
        own: the files of large indexes.
        packs: the shared files of all others.

    Attributes:
        entry_again: makes an entry from the log: (number, offset, where a record stands before it,
            or None) -> the entry, or None.
        changed: indexes with entries in memory.
        trimmed: indexes whose first offset has moved since it was stored.
    """

    __slots__ = ("changed", "entry_again", "own", "packs", "trimmed")

    def __init__(self, own: IndexFiles, packs: Packs) -> None:
        self.own = own
        self.packs = packs
        self.entry_again: Callable[[int, int, int | None], bytes | None] = lambda *_: None
        self.changed: dict[QueueIndex, None] = {}
        self.trimmed: dict[QueueIndex, None] = {}


class QueueIndex(IndexEnd):
    """The index of a queue that survives a restart.

    Attributes:
        number: the queue's name inside the store.
        entry_size: 20 (a topic's own queue) or 32.
        first_offset: the first offset that the index has.
        end_offset: the offset that the next entry takes.
        stored_offset: the end of what is on the disk.
        extents: what of that is in the packs.
    """

    __slots__ = (
        "_home",
        "extents",
        "stored_offset",
    )

    def __init__(
        self,
        number: int,
        entry_size: int,
        home: IndexHome,
        first_offset: int = 0,
        end_offset: int = 0,
        extents: Extents = (),
    ) -> None:
        if entry_size not in ENTRY_SIZES:
            raise ValueError(f"an index entry has 20 or 32 bytes, not {entry_size}")
        IndexEnd.__init__(self, number, entry_size, first_offset, end_offset)
        self.stored_offset = end_offset
        self.extents = extents
        self._home = home

    @property
    def filed_offset(self) -> int:
        """The end of what is in files of its own."""
        extents = self.extents
        return extents[0] if extents else self.stored_offset

    # --- the loop's side ------------------------------------------------------------------------

    def begin_tail(self) -> IndexTail:
        """See `IndexEnd`."""
        tail = self._tail = IndexTail(self.entry_size, self.end_offset)
        self._home.changed[self] = None
        return tail

    def trim_before(self, offset: int) -> None:
        """Let the index begin at `offset`, if it begins before: the messages are not wanted any
        more. What that frees on the disk is given back with the next checkpoint."""
        offset = min(offset, self.end_offset)
        if offset > self.first_offset:
            self.first_offset = offset
            self._home.trimmed[self] = None

    def begin_at(self, offset: int) -> None:
        """An index that lost its entries with the log's oldest segments goes on at `offset`; one
        that reaches that far gives up what is before it. At a start, before the first append."""
        if offset > self.end_offset:
            self._tail = None
            self._home.changed.pop(self, None)
            self.extents = ()
            self.stored_offset = self.end_offset = offset
        if offset > self.first_offset:
            self.trim_before(offset)

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on, from memory; fewer at the end.

        Returns:
            None if `first` is not in memory: `read_cold` has it. Empty if it is gone.
        """
        if first < self.first_offset:
            return b""
        tail = self._tail
        if tail is None:
            return b"" if first >= self.end_offset else None
        return tail.read(first, count) if first >= tail.start else None

    def take_dirty(self, position: int) -> tuple[int, list[memoryview], int]:
        """The entries to store: not stored yet, and their records stand before `position`.

        Returns:
            The offset of the first, views of the entries, and how many.
        """
        first = self.stored_offset
        if self._tail is None or first == self.end_offset:
            return first, [], 0
        views, count = self._tail.take(first, position)
        return first, views, count

    def trim(self, position: int) -> bool:
        """Give up stored entries whose records are not in memory either; an idle index gives up
        the few that it has in any case.

        Args:
            position: the oldest log position in memory.

        Returns:
            Whether entries are left in memory.
        """
        tail = self._tail
        if tail is None:
            return False
        stored = self.stored_offset
        if (
            stored == self.end_offset
            and (stored - tail.start) * self.entry_size <= IDLE_TAIL_BYTES_MAX
        ):
            left = False
        else:
            left = tail.trim(stored, position)
        if not left:
            self._tail = None
        return left

    # --- the disk -------------------------------------------------------------------------------

    def read_cold(self, first: int, count: int) -> bytes:
        """Entries from `first` on, from one file or extent: at most `count`, at least one if
        `first` is stored. Any thread.

        Raises:
            StorageFailed: they cannot be read, or are damaged.
            StorageShort: the process has no descriptor or no memory for it; try again.
        """
        count = min(count, self.stored_offset - first)
        if first < self.first_offset or count <= 0:
            return b""
        for _ in range(READ_ATTEMPTS_MAX):
            extents = self.extents
            try:
                entries = self._read(extents, first, count)
                return self._sound(extents, first, entries)
            except FileNotFoundError as error:
                if self.extents is extents:
                    text = f"reading queue {self.number}: {describe(error)}"
                    raise StorageFailed(text) from error
            except OSError as error:
                text = f"reading queue {self.number}: {describe(error)}"
                raise (StorageShort if is_short(error) else StorageFailed)(text) from error
        raise StorageFailed(f"reading queue {self.number}: its entries are moved all the time")

    def _sound(self, extents: Extents, first: int, entries: bytes) -> bytes:
        """The first of the entries that are as they were written; if the first is not, it is made
        again from the log. An own entry has no check: all that is done with it begins with the
        record that it names. Raises OSError, StorageFailed."""
        size = self.entry_size
        if size != PRIVATE_ENTRY_SIZE:
            return entries
        wrong = writing.find_damaged(entries)
        if wrong < 0:
            return entries
        if wrong > 0:
            return entries[: wrong * size]
        position = None
        if first > self.first_offset:
            before = self._read(extents, first - 1, 1)
            if writing.find_damaged(before) < 0:
                position = int.from_bytes(before[:8], "big")
        made = self._home.entry_again(self.number, first, position)
        if made is None or len(made) != size:
            raise StorageFailed(
                f"the index entry of message {first} of queue {self.number} is damaged, and the log"
                " has no sound record of it"
            )
        return made

    def _read(self, extents: Extents, first: int, count: int) -> bytes:
        """`read_cold` with the extents of one moment. Raises OSError, StorageFailed."""
        size = self.entry_size
        if not extents or first < extents[0]:
            if extents:
                count = min(count, extents[0] - first)
            return self._home.own.read(self.number, size, first, count)
        at = len(extents) - 2
        while extents[at] > first:
            at -= 2
        end = extents[at + 2] if at + 2 < len(extents) else self.stored_offset
        expected = (end - extents[at]) * size
        start, entries = self._home.packs.read(extents[at + 1], self.number, expected)
        skip = (first - start) * size
        return entries[skip : skip + count * size]


class MemoryIndex(IndexEnd):
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
    )

    def __init__(self, entry_size: int, count_max: int, *, number: int = 0) -> None:
        if count_max <= 0:
            raise ValueError("a queue holds at least one entry")
        super().__init__(number, entry_size, 0, 0)
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

    def trim_before(self, offset: int) -> None:
        """The same as `forget`."""
        self.forget(offset)

    def begin_at(self, offset: int) -> None:
        """Nothing of it survives, so there is nothing to go on with."""
        self.forget(offset)

    def read_hot(self, first: int, count: int) -> bytes | None:
        """Up to `count` entries from `first` on; empty if `first` is gone (see `first_offset`)."""
        if first < self.first_offset:
            return b""
        start = (first - self.first_offset) * self.entry_size
        return bytes(self._entries[start : start + count * self.entry_size])

    def read_cold(self, first: int, count: int) -> bytes:
        """The same: there is nothing on a disk."""
        return self.read_hot(first, count) or b""
