"""A dictionary with a limit, in which the oldest entry gives way to a new one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

EVICTED_AT_ONCE: Final = 64
"""Entries that give way to one new entry: many small ones may be as large as one."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """At most `count_max` entries, the oldest first.

    Adding an entry takes the same time below the limit and at it. (The first key of a plain
    dictionary is found by walking over all that were deleted in front of it: with 100,000 entries,
    up to a millisecond for each new one.) One entry goes at a time, because freeing all of them at
    once would stop the loop.

    Whoever wants the least recently used to go, and not the oldest, takes an entry out with `pop`
    when it is used, and adds it again.
    """

    def __init__(self, count_max: int) -> None:
        super().__init__()
        self.count_max = count_max

    def add(self, key: K, value: V) -> V | None:
        """Add or replace an entry. Returns the value that gave way to a new one, if any did."""
        gone = None
        if key not in self and len(self) >= self.count_max:
            gone = self.popitem(last=False)[1]
        self[key] = value
        return gone


class SizedCache(Generic[K, V]):
    """At most `count_max` entries, the oldest first, whose keys have at most `size_max` in all.
    Where a client chooses the keys, their number alone says nothing about the memory.

    Args:
        size_of: the size of a key. Always the same for the same key.
    """

    def __init__(self, count_max: int, size_max: int, size_of: Callable[[K], int]) -> None:
        self._entries: BoundedCache[K, V] = BoundedCache(count_max)
        self._size_max = size_max
        self._size_of = size_of
        self._size = 0
        self.get = self._entries.get
        self.values = self._entries.values
        self.items = self._entries.items

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def add(self, key: K, value: V) -> list[V]:
        """Add or replace an entry. Returns the values that gave way to a new one."""
        entries = self._entries
        gone: list[V] = []
        if key not in entries:
            self._size += self._size_of(key)
            while entries and (
                len(entries) >= entries.count_max
                or (self._size > self._size_max and len(gone) < EVICTED_AT_ONCE)
            ):
                gone.append(self.pop_oldest())
        entries[key] = value
        return gone

    def pop_oldest(self) -> V:
        """Take the oldest entry out. Raises KeyError: there is none."""
        key, value = self._entries.popitem(last=False)
        self._size -= self._size_of(key)
        return value

    def pop(self, key: K) -> V | None:
        """Take an entry out, if it is there."""
        if key not in self._entries:
            return None
        self._size -= self._size_of(key)
        return self._entries.pop(key)
