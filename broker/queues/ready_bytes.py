"""How many bytes are ready in a queue for one group: those of the records as they are stored.

Nothing is kept for a message. The count is of what is ready below an offset, its `end`. It follows
what becomes ready there and what is taken, with one look into the index for each stretch
(`Cursor.watch`). Where entries have to come from the disk, the count is not known until they are
there.

The `end` is moved in one of two ways: as messages come (`came`), or piece by piece where a count is
behind (`count_on`): after a start, or where nobody needed to know.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Final

from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.heads import sizes_of
from polymq.broker.queues.queue import Queue
from polymq.core_log.queue_index import Index

COUNT_ENTRIES: Final = 65_536
"""Entries of one read while a start counts what is in a queue: 2 MiB."""

ReadEntries = Callable[[Index, int, int, Callable[[int, "bytes | None"], None]], None]
"""Reads entries from the disk: see `Reading.entries`."""


class ReadyBytes:
    """The count of one cursor.

    Args:
        changed: called when the count is known, which it was not because something was read first.

    Attributes:
        bytes: of what is ready below `end`.
        end: what is from this offset on is not counted.
        has_lost: entries of what was taken are gone, or could not be read: the count is wrong.
        looked_at: the sizes of records from an offset on, which somebody has read from the disk:
            they are not read once more when they are taken.
    """

    __slots__ = (
        "_behind",
        "_changed",
        "_cursor",
        "_queue",
        "_read",
        "_unknown",
        "bytes",
        "end",
        "has_lost",
        "looked_at",
    )

    def __init__(
        self, read: ReadEntries, queue: Queue, cursor: Cursor, changed: Callable[[], None]
    ) -> None:
        self._read = read
        self._queue = queue
        self._cursor = cursor
        self._changed = changed
        self._unknown = 0  # stretches that were taken or given back and are being read
        self._behind = False  # a piece that is not counted yet is being read
        self.bytes = 0
        self.end = cursor.floor
        self.has_lost = False
        self.looked_at: tuple[int, array[int]] = (0, array("I"))

    @property
    def is_known(self) -> bool:
        """Whether `bytes` is the count of what is ready below `end`."""
        return not self._unknown

    @property
    def is_reading(self) -> bool:
        """Whether `changed` will be called."""
        return self._behind or self._unknown > 0

    def is_behind(self, offset: int) -> bool:
        """Whether something before the offset is not counted."""
        return self._next_end() < offset

    def __call__(self, first: int, count: int, sign: int) -> None:
        """Messages became ready (1) or are not any more (-1): `Cursor.watch`."""
        count = min(count, self.end - first)
        if count > 0:
            self._add(first, count, sign)

    def came(self, first: int, count: int) -> None:
        """Messages became visible behind all others."""
        self.end = first + count
        self._add(first, count, 1)

    def came_at_end(self, first: int, count: int, size: int) -> None:
        """The same, of messages with so many bytes, if all that is before them is counted."""
        if self._next_end() == first:
            self.end = first + count
            self.bytes += size

    def count_now(self) -> None:
        """Count all that is ready, read from wherever it is: at a start, or of a new queue."""
        cursor = self._cursor
        self.end = self._queue.visible
        self.bytes = sum(self._bytes_now(first, count) for first, count in cursor.requeued())
        self.bytes += self._bytes_now(cursor.next, self._queue.visible - cursor.next)

    def count_on(self, before: int, most: int) -> int:
        """Count up to `most` entries more, of those before an offset. Returns how many; 0 if they
        are read first, or all are counted."""
        if self._behind:
            return 0
        index = self._queue.index
        self.end = max(self._next_end(), index.first_offset)
        count = min(before - self.end, most)
        if count <= 0:
            return 0
        entries = index.read_hot(self.end, count)
        if entries:
            return self._count(self.end, entries)
        self._behind = True
        self._read(index, self.end, count, self._took_behind)
        return 0

    def purged(self) -> None:
        """Nothing is ready any more."""
        self.bytes = 0

    # --- inside ---------------------------------------------------------------------------

    def _next_end(self) -> int:
        """The first offset from `end` on that may be ready."""
        cursor = self._cursor
        return max(self.end, cursor.floor if cursor.requeued_count else cursor.next)

    def _count(self, first: int, entries: bytes) -> int:
        """Add what is ready of the entries from `first` on, which is the end. Returns how many
        entries these are."""
        sizes, cursor = sizes_of(entries), self._cursor
        end = self.end = first + len(sizes)
        if first < cursor.next:
            for at, count in cursor.requeued(first, min(end, cursor.next)):
                self.bytes += sum(sizes[at - first : at - first + count])
            sizes = sizes[cursor.next - first :]
        self.bytes += sum(sizes)
        return end - first

    def _took_behind(self, first: int, entries: bytes | None) -> None:
        self._behind = False
        if entries:  # else the read failed, which was told: the next message asks again
            if first == self.end:
                self._count(first, entries)
            self._changed()

    def _add(self, first: int, count: int, sign: int) -> None:
        start, known = self.looked_at
        entries = self._queue.index.read_hot(first, count)
        if entries:
            self.bytes += sign * sum(sizes_of(entries))
        elif 0 <= first - start <= len(known) - count:
            self.bytes += sign * sum(known[first - start : first - start + count])
        elif entries is None:
            self._unknown += 1
            self._read(
                self._queue.index,
                first,
                count,
                lambda first, entries: self._took(first, count, sign, entries),
            )
        else:
            self.has_lost = True

    def _took(self, first: int, count: int, sign: int, entries: bytes | None) -> None:
        found = len(entries or b"") // self._queue.index.entry_size
        self.bytes += sign * sum(sizes_of(entries or b""))
        if 0 < found < count:
            self._add(first + found, count - found, sign)
        elif not found:
            self.has_lost = True
        self._unknown -= 1
        self._changed()

    def _bytes_now(self, first: int, count: int) -> int:
        """The bytes of a stretch, read from wherever it is."""
        index = self._queue.index
        total = 0
        while count > 0:
            most = min(count, COUNT_ENTRIES)
            entries = index.read_hot(first, most)
            if entries is None:
                entries = index.read_cold(first, most)
            found = len(entries) // index.entry_size
            if not found:
                break
            total += sum(sizes_of(entries))
            first += found
            count -= found
        return total


def count_within(sizes: Iterable[int], room: int) -> int:
    """How many of the first messages fit into so many bytes."""
    count = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count


def count_of(sizes: Iterable[int], excess: int) -> int:
    """How many of the first messages have at least so many bytes; all, if they have less."""
    count = 0
    for size in sizes:
        if excess <= 0:
            break
        excess -= size
        count += 1
    return count
