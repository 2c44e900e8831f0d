"""A cache at its limit: the oldest goes, at the same price as below the limit."""

from __future__ import annotations

import time

from polymq.broker.bounded_cache import BoundedCache


def test_the_oldest_gives_way() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    assert cache.add("a", 1) is None
    assert cache.add("b", 2) is None
    assert cache.add("a", 3) is None  # replaced, and as old as before
    assert cache.add("c", 4) == 3
    assert list(cache.items()) == [("b", 2), ("c", 4)]
    assert cache.add("b", cache.pop("b")) is None  # used: now the newest
    assert cache.add("d", 5) == 4
    assert list(cache) == ["b", "d"]


def test_an_entry_beyond_the_limit_costs_what_others_cost() -> None:
    """A plain dictionary takes some twenty times as long there."""
    count = 100_000
    cache: BoundedCache[int, int] = BoundedCache(count)

    def seconds(first: int) -> float:
        before = time.process_time()
        for key in range(first, first + count):
            cache.add(key, key)
        return time.process_time() - before

    below = seconds(0)
    assert seconds(count) < 5 * below
    assert len(cache) == count
