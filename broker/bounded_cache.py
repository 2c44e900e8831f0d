"""A dictionary with a limit, in which the oldest entry gives way to a new one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

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
