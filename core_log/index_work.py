"""What a checkpoint has to store of the indexes, and where it was stored: in columns.

A checkpoint may concern a hundred thousand indexes for some seconds. With an object or more for
each, Python's garbage collector would look at every object of the process, several times while one
checkpoint is made and stored: 0.7 s each, and nothing else runs meanwhile. It does not look at
integers and bytes. So there is one list for each attribute, and the entries of an index, of which
there mostly are a few, are copied; only large blocks are taken as views.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polymq.core_log.queue_index import Extents, QueueIndex

COPIED_BYTES_MAX: Final = 1024
"""Entries of one index that are copied: to take a view of them costs as much."""


class Work:
    """What there is to store, by index, each once."""

    def __init__(self) -> None:
        self._entries: dict[QueueIndex, bytes | list[memoryview]] = {}
        self._firsts = array("q")
        self._counts = array("q")
        self._begins = array("q")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, index: QueueIndex) -> bool:
        return index in self._entries

    def add(
        self, index: QueueIndex, first: int, views: list[memoryview], count: int, begin: int
    ) -> None:
        """Entries [first, first + count) of an index that was not added yet, and the offset that it
        begins at."""
        assert index not in self._entries
        small = count * index.entry_size <= COPIED_BYTES_MAX
        self._entries[index] = b"".join(views) if small else views
        self._firsts.append(first)
        self._counts.append(count)
        self._begins.append(begin)

    def __iter__(self) -> Iterator[tuple[QueueIndex, int, list[memoryview], int, int]]:
        """What was given to `add`, in that order."""
        rows = zip(self._entries.items(), self._firsts, self._counts, self._begins, strict=True)
        for (index, entries), first, count, begin in rows:
            views = [memoryview(entries)] if isinstance(entries, bytes) else entries
            yield index, first, views, count, begin

    def begins(self) -> Iterator[tuple[QueueIndex, int]]:
        """(index, the offset that it begins at) of all."""
        return zip(self._entries, self._begins, strict=True)


class Locations:
    """Where indexes are stored."""

    def __init__(self) -> None:
        self._indexes: list[QueueIndex] = []
        self._extents: list[Extents] = []
        self._ends = array("q")

    def add(self, index: QueueIndex, extents: Extents, end: int) -> None:
        """The entries up to the offset `end` are in these extents, and in files before them."""
        self._indexes.append(index)
        self._extents.append(extents)
        self._ends.append(end)

    def __iter__(self) -> Iterator[tuple[QueueIndex, Extents, int]]:
        """What was given to `add`, in that order."""
        return zip(self._indexes, self._extents, self._ends, strict=True)
