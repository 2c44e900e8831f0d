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

from polymq.core_log.index_end import BLOCK_BYTES, TailEnd

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
        return self._firsts[0]

    def read(self, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, which is not before `start`; fewer at the end."""
        size = self.entry_size
        place = bisect_right(self._firsts, first) - 1
        start = (first - self._firsts[place]) * size
        found = bytes(self._blocks[place][start : start + count * size])
        if len(found) == count * size or place == len(self._blocks) - 1:
            return found
        parts: list[bytes | bytearray] = [found]
        missing = count * size - len(found)
        for block in self._blocks[place + 1 :]:
            parts.append(block[:missing])
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
        if len(self._blocks) == 1 and first == self._firsts[0]:  # as in nearly all queues
            block = self._blocks[0]
            if block and _position_of(block, len(block) - size) < position:
                self._open = False
                return [memoryview(block)], len(block) // size
        self._close()
        views: list[memoryview] = []
        total = 0
        place = max(bisect_right(self._firsts, first) - 1, 0)
        for at in range(place, len(self._blocks)):
            block = self._blocks[at]
            start = max(first - self._firsts[at], 0)
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
        count = 0
        for at, block in enumerate(self._blocks):
            end = self._firsts[at] + len(block) // size
            if end > stored or (block and _position_of(block, len(block) - size) >= position):
                break
            count += 1
        if count == len(self._blocks):
            return False
        del self._blocks[:count]
        del self._firsts[:count]
        return True

    def _close(self) -> None:
        """No entry is added to the blocks that there are; small neighbours become one."""
        self._open = False
        blocks, firsts = self._blocks, self._firsts
        while len(blocks) > 1 and len(blocks[-2]) <= len(blocks[-1]):
            if len(blocks[-2]) + len(blocks[-1]) > BLOCK_BYTES:
                break
            blocks[-2:] = [blocks[-2] + blocks[-1]]
            del firsts[-1]


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
