# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The end of a queue's index in memory: where the entries of a run go.

One source in two forms: plain Python, and a C extension, for which
`index_end.pxd` says of what types all this is. `queue_index.py` and `index_tail.py` have the
rest of both, in classes that inherit from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polymq.core_log.kernels.layout import BLOCK_BYTES

if TYPE_CHECKING:
    from polymq.core_log.queue_index import Index

Block = tuple[int, bytearray]
"""The offset of the first entry, and the entries."""


class TailEnd:
    """What of an index's blocks is needed to add to them; `IndexTail` says what they are.

    Nearly all have one block, so the last one stands by itself: ten thousand queues may get their
    first entry with one message.
    """

    __slots__ = ("_before", "_block", "_first", "_open", "end", "entry_size")

    def __init__(self, entry_size: int, start: int) -> None:
        self.entry_size = entry_size
        self.end = start
        self._block = bytearray()  # the last
        self._first = start  # the offset of its first entry
        self._open = True  # whether it may grow
        self._before: list[Block] | None = None  # the others, in order

    def append(self, entries: bytes, count: int) -> None:
        """Add `count` entries."""
        block = self._block
        if not self._open or len(block) >= BLOCK_BYTES:
            if self._before is None:
                self._before = []
            self._before.append((self._first, block))
            block = self._block = bytearray()
            self._first = self.end
            self._open = True
        block += entries
        self.end += count


class IndexEnd:
    """What of an index is needed to add to it; `Index` says what the attributes mean."""

    __slots__ = ("_tail", "end_offset", "entry_size", "first_offset", "number")

    def __init__(self, number: int, entry_size: int, first_offset: int, end_offset: int) -> None:
        self.number = number
        self.entry_size = entry_size
        self.first_offset = first_offset
        self.end_offset = end_offset
        self._tail: Any = None  # entries [its start, end_offset)

    def begin_tail(self) -> TailEnd:
        """There are entries in memory from now on."""
        raise NotImplementedError

    def append(self, entries: bytes) -> None:
        """Add entries (a multiple of `entry_size` bytes) at the end."""
        count = len(entries) // self.entry_size
        if count * self.entry_size != len(entries):
            raise ValueError(f"not whole entries of {self.entry_size} bytes")
        tail = self._tail
        if tail is None:
            tail = self.begin_tail()
        TailEnd.append(tail, entries, count)
        self.end_offset += count


def targets_of(indexes: tuple[Index, ...]) -> list[tuple[int, int]]:
    """(queue number, end offset) of each."""
    return [(index.number, index.end_offset) for index in indexes]


def append_to_all(indexes: tuple[Index, ...], entries: bytes) -> None:
    """Add the same entries at the end of each."""
    for index in indexes:
        index.append(entries)
