"""Entries of damaged indexes, made again from the log.

Theory. Every record names its queues and its offset in each, so an entry can be made again as long
as the log has its record. A damaged index needs no other one to be touched:

* What stands in files of its own (`mend`) is written over, entry by entry, by a walk over the log.
  What is sound does not change by that, so a crash on the way is followed by the same once more;
  a note beside the files tells of it (`index_files.py`), because half of it may look whole.
* A single private entry whose check is wrong (`entry_again`) is made again when it is read, from
  the record before on. Nothing is written; it is made again the next time.

A damaged record ends a walk. The next segment begins with a record, so the walk goes on there. The
entries that lie between point to the damaged record: reading one is an error, as it is for every
message that is damaged, and offsets stay what they were. Nothing is ever served in its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from polymq.core_log.index_files import IndexFiles
from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.layout import ENTRY_SIZE, RECORD_SIZE_MIN
from polymq.core_log.reader import LogReader

HELD_BYTES_MAX: Final = 64 << 20
"""Entries made again that may be in memory before they are written."""
OWN_ENTRY: Final = struct.Struct(">qiq")

Take = Callable[[int, int, bytes], None]
"""Called with a queue's number, an offset, and the entries from there on."""


class Contradiction(Exception):
    """A record of the log does not follow in its queues."""


@dataclass(slots=True)
class Mending:
    """An index whose files are damaged, and how far they have been made again.

    Attributes:
        number, entry_size: the index.
        first, end: what stands in files of its own: the offsets [first, end). The log may have less
            of it: then `first` moves.
        next: the offset that comes next.
        lost: entries whose record cannot be found behind a damaged one.
    """

    number: int
    entry_size: int
    first: int
    end: int
    next: int
    lost: int = 0
    _from: int = field(default=0, init=False)
    _pieces: list[bytes] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._from = self.next

    def take(self, first: int, entries: bytes, hole: int | None, now_ms: int) -> int:
        """Take entries from `first` on. Returns how many bytes wait to be written.

        Args:
            hole: the last damaged record on the way; None if there was none.
        """
        size = self.entry_size
        entries = entries[max(self.next - first, 0) * size : max(self.end - first, 0) * size]
        first = max(first, self.next)
        if not entries:
            return 0
        if first > self.next:
            self.skip_to(first, hole, now_ms)
        self._pieces.append(entries)
        self.next = first + len(entries) // size
        return len(entries)

    def skip_to(self, offset: int, hole: int | None, now_ms: int) -> None:
        """The log has no records of what comes before `offset`: they went with its beginning, or
        they stand behind a damaged one."""
        count = offset - self.next
        if hole is not None:
            entry = OWN_ENTRY.pack(hole, RECORD_SIZE_MIN, 0)
            if self.entry_size != ENTRY_SIZE:
                entry = writing.widen(entry, now_ms)
            self._pieces.append(entry * count)
            self.lost += count
        elif self.next == self.first:
            self.first = self._from = offset
        else:
            raise Contradiction(f"queue {self.number} goes on at {offset}, not at {self.next}")
        self.next = offset

    def write(self, own: IndexFiles) -> None:
        """Write what was taken to the files. Raises OSError."""
        pieces = [memoryview(piece) for piece in self._pieces]
        if pieces:
            own.write(self.number, self.entry_size, self._from, pieces)
        self._from, self._pieces = self.next, []


def mend(
    mendings: Mapping[int, Mending],
    *,
    own: IndexFiles,
    reader: LogReader,
    stop: int,
    now_ms: int,
) -> None:
    """Make the entries of damaged indexes again, of all records before the position `stop`.

    Raises:
        Contradiction: the log itself is not what it should be. OSError.
    """
    for number in mendings:
        own.begin_mending(number)
    waiting = 0
    hole: int | None = None
    position = reader.start
    while position < stop:  # every turn goes on in another segment
        walk = reader.walk(position)
        for memory, size, _ in walk.stretches():
            tables: dict[int, list[object]] = {}
            if walking.dispatch(memory, 0, size, tables) >= 0:
                raise Contradiction("a record does not follow in its queues")
            for number in mendings.keys() & tables.keys():
                entry_size, first, _next, entries = tables[number]
                if entry_size != mendings[number].entry_size:
                    raise Contradiction(f"queue {number} has entries of another size")
                assert isinstance(first, int)
                assert isinstance(entries, bytearray)
                waiting += mendings[number].take(first, bytes(entries), hole, now_ms)
            if waiting > HELD_BYTES_MAX:
                for mending in mendings.values():
                    mending.write(own)
                waiting = 0
            if walk.position >= stop:
                break
        if walk.position >= stop:
            break
        hole = walk.position
        position = max(reader.segment_end(hole), position + 1)
    for mending in mendings.values():
        if mending.next < mending.end:
            mending.skip_to(mending.end, hole, now_ms)
        mending.write(own)
    own.sync_names()
    for number in mendings:
        own.end_mending(number)


def entry_again(reader: LogReader, number: int, offset: int, start: int) -> bytes | None:
    """The entry of a queue's message, from the log. Any thread.

    Args:
        start: where a record stands that is not behind this one's.

    Returns:
        None if the way there is damaged, or the log does not have it.
    """
    for memory, size, _ in reader.walk(start).stretches():
        tables: dict[int, list[object]] = {}
        if walking.dispatch(memory, 0, size, tables) >= 0 or number not in tables:
            continue
        entry_size, first, after, entries = tables[number]
        assert isinstance(entry_size, int)
        assert isinstance(first, int)
        assert isinstance(after, int)
        assert isinstance(entries, bytearray)
        if first > offset:
            return None
        if offset < after:
            at = (offset - first) * entry_size
            return bytes(entries[at : at + entry_size])
    return None
