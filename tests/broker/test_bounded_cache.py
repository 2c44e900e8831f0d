"""A cache at its limit: the oldest goes, at the same price as below the limit."""

from __future__ import annotations

import time

from polymq.broker.bounded_cache import EVICTED_AT_ONCE, BoundedCache, SizedCache


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


def test_keys_have_a_size_in_all() -> None:
    """One long key takes the place of several short ones; a key that is too long stays alone."""
    cache: SizedCache[str, int] = SizedCache(100, 10, len)
    for key in ("aaa", "bbb", "ccc"):
        assert cache.add(key, 1) == []
    assert cache.add("bbb", 2) == []  # replaced
    assert cache.add("ddddddd", 3) == [1, 2]
    assert cache.pop("ccc") == 1
    assert cache.pop("ccc") is None
    assert cache.add("eee", 4) == []
    assert cache.add("f" * 50, 5) == [3, 4]
    assert list(cache.items()) == [("f" * 50, 5)]
    assert cache.add("g", 6) == [5]
    assert len(cache) == 1
    assert "g" in cache


def test_few_of_the_short_keys_give_way_at_once() -> None:
    """And the number has its limit as ever."""
    cache: SizedCache[str, int] = SizedCache(1000, 1000, len)
    for number in range(200):
        assert cache.add(f"{number:05}", number) == []
    assert len(cache.add("x" * 900, 0)) == EVICTED_AT_ONCE
    small: SizedCache[int, int] = SizedCache(2, 1000, lambda _: 1)
    assert [small.add(number, number) for number in range(4)] == [[], [], [0], [1]]
