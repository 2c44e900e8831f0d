"""A sorted set of names that can be walked in steps while it changes.

Theory. The place of a walk is the last name that it met. So a walk can go on after a restart or at
another broker, whatever was added or removed meanwhile. Names are kept in sorted blocks of bounded
size. Adding, removing and going on cost two binary searches and the move of one block, however
many names there are.

Names are ordered as Python orders tuples of strings: by code points, a name before those that
begin with it. This order is stored with the state of sessions, so it must not change.

A name is either a sequence of levels, or one text, such as a client identifier. What is said here
of levels is then true of the characters of the text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

from polymq.broker.port.values import Address

BLOCK_COUNT_MAX: Final = 512
"""Names of one block. A full block is split in two."""
STEP_COUNT_MAX: Final = 64
"""Names that a walk copies at a time. It misses names that are added among them meanwhile."""


Name = TypeVar("Name", Address, str)


class SortedNames(Generic[Name]):
    """A sorted set of names."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[Name]] = []  # none of them is empty
        self._lasts: list[Name] = []  # the last name of each block

    def add(self, address: Name) -> None:
        """Add a name that is not in the set."""
        blocks, lasts = self._blocks, self._lasts
        if not lasts or address > lasts[-1]:  # names that come in order fill their blocks
            if not blocks or len(blocks[-1]) >= BLOCK_COUNT_MAX:
                blocks.append([])
                lasts.append(address)
            blocks[-1].append(address)
            lasts[-1] = address
            return
        at = bisect_left(lasts, address)
        block = blocks[at]
        insort(block, address)
        if len(block) > BLOCK_COUNT_MAX:
            half = len(block) // 2
            blocks.insert(at, block[:half])
            lasts.insert(at, block[half - 1])
            del block[:half]

    def remove(self, address: Name) -> None:
        """Remove a name that is in the set."""
        at = bisect_left(self._lasts, address)
        block = self._blocks[at]
        index = bisect_left(block, address)
        assert block[index] == address
        del block[index]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def has_below(self, prefix: Name) -> bool:
        """Whether a name begins with these levels."""
        return bool(self._some(prefix, None))

    def below(self, prefix: Name, behind: Name | None = None) -> Iterator[Name]:
        """Walk the names that begin with these levels, in order.

        The set may change meanwhile. A name that is there all the time is met exactly once. One
        that was removed may be met as well.

        Args:
            behind: begin with the first name greater than this one, which need not be in the set.
        """
        while some := self._some(prefix, behind):
            yield from some
            behind = some[-1]

    def _some(self, prefix: Name, behind: Name | None) -> Sequence[Name]:
        """The next names below `prefix`, up to the end of a block."""
        if behind is None or behind < prefix:
            begin, bisect = prefix, bisect_left
        else:
            begin, bisect = behind, bisect_right
        at = bisect(self._lasts, begin)
        if at == len(self._lasts):
            return ()
        block = self._blocks[at]
        first = bisect(block, begin)
        some = block[first : first + STEP_COUNT_MAX]
        size = len(prefix)
        if some[-1][:size] != prefix:
            del some[bisect_right(some, prefix, key=lambda address: address[:size]) :]
        return some
