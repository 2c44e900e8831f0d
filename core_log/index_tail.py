"""The entries of one queue index that are in memory: blocks, handed out without copying.

Theory. Entries are appended to an *open* block until it is full. A checkpoint takes blocks, not
copies: it closes the open block, whose bytes never change from then on, and gives the worker views
of it; the next entry opens a new block. So taking costs the loop some steps per 64 KiB, whatever
was appended. Small closed blocks are joined into new ones of the next size, so that a queue with
a message now and then does not end up with a list of them.

Rule: only the loop's thread calls this. Views that were handed out stay as they are for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Final

from polymq.core_log.kernels.index_end import Block, TailEnd
from polymq.core_log.kernels.layout import BLOCK_BYTES

_first_of: Final = itemgetter(0)

__all__ = ["BLOCK_BYTES", "IndexTail", "count_before"]


class IndexTail(TailEnd):
    """Entries [start, end) of an index, the newest last.

    Args:
        entry_size: bytes of one entry.
        start: the offset of the first entry that is appended.

    Attributes:
        end: the offset behind the last entry.
    """

    __slots__ = ()

    @property
    def start(self) -> int:
        """The offset of the first entry that is held."""
        return self._before[0][0] if self._before else self._first

    def read(self, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, which is not before `start`; fewer at the end."""
        size = self.entry_size
        parts: list[bytes | bytearray] = []
        missing = count * size
        for block_first, block in self._blocks_from(first):
            start = max(first - block_first, 0) * size
            parts.append(block[start : start + missing])
            missing -= len(parts[-1])
            if missing == 0:
                break
        return b"".join(parts)

    def take(self, first: int, position: int) -> tuple[list[memoryview], int]:
        """The entries from `first` on whose records stand before the log position `position`.

        Returns:
            Views of them in order, never empty ones, and how many entries.
        """
        size = self.entry_size
        if self._before is None and first == self._first:  # as in nearly all queues
            block = self._block
            if block and _position_of(block, len(block) - size) < position:
                self._open = False
                return [memoryview(block)], len(block) // size
        self._close()
        views: list[memoryview] = []
        total = 0
        for block_first, block in self._blocks_from(first):
            start = max(first - block_first, 0)
            end = count_before(block, size, position)
            if end > start:
                views.append(memoryview(block)[start * size : end * size])
                total += end - start
            if end * size < len(block):
                break
        return views, total

    def trim(self, stored: int, position: int) -> bool:
        """Give up the oldest blocks that are stored up to the offset `stored` and whose records
        all stand before `position`. Returns whether anything is left."""
        size = self.entry_size
        blocks = self._blocks_from(self.start)
        count = 0
        for block_first, block in blocks:
            end = block_first + len(block) // size
            if end > stored or (block and _position_of(block, len(block) - size) >= position):
                break
            count += 1
        if count == len(blocks):
            return False
        self._before = blocks[count:-1] or None
        return True

    def _blocks_from(self, first: int) -> list[Block]:
        """The blocks from that on which has the entry `first`."""
        last = (self._first, self._block)
        if self._before is None or first >= self._first:
            return [last]
        index = bisect_right(self._before, first, key=_first_of) - 1
        return [*self._before[max(index, 0) :], last]

    def _close(self) -> None:
        """No entry is added to the blocks that there are; small neighbours become one."""
        self._open = False
        before = self._before
        while before:
            first, block = before[-1]
            if len(block) > len(self._block) or len(block) + len(self._block) > BLOCK_BYTES:
                break
            self._first, self._block = first, block + self._block
            before.pop()
        self._before = before or None


def count_before(block: bytearray, size: int, position: int) -> int:
    """How many of a block's first entries point before `position`."""
    low, high = 0, len(block) // size
    if high and _position_of(block, (high - 1) * size) < position:
        return high
    while low < high:
        middle = (low + high) // 2
        if _position_of(block, middle * size) < position:
            low = middle + 1
        else:
            high = middle
    return low


def _position_of(block: bytearray, at: int) -> int:
    """The log position in the entry at byte `at`."""
    return int.from_bytes(block[at : at + 8], "big")
