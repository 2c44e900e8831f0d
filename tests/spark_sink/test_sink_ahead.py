"""Reading ahead in a thread: order, the bound, errors, and an early end."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Semaphore, active_count

import pytest

from polymq.spark_sink.ahead import read_ahead

SECONDS = 10


def test_the_items_come_in_order() -> None:
    items = [bytes(size) for size in (3, 0, 5, 1, 100, 2)]
    for bytes_max in (0, 1, 4, 1000):
        assert list(read_ahead(iter(items), bytes_max=bytes_max, size=len)) == items


def test_what_comes_next_is_fetched_meanwhile() -> None:
    """While the caller still works on the first item, without being asked."""
    fetched = Semaphore(0)

    def items() -> Iterator[bytes]:
        for number in range(3):
            fetched.release()
            yield bytes([number])

    ahead = read_ahead(items(), bytes_max=100, size=len)
    assert next(ahead) == b"\0"
    for _ in range(3):
        assert fetched.acquire(timeout=SECONDS)
    assert list(ahead) == [b"\1", b"\2"]


def test_no_more_is_fetched_than_may_wait() -> None:
    """The thread stands still when the bound is reached, until an item is taken."""
    fetched: list[int] = []
    two = Event()

    def items() -> Iterator[bytes]:
        for number in range(10):
            fetched.append(number)
            if number >= 2:
                two.set()
            yield bytes(10)

    ahead = read_ahead(items(), bytes_max=20, size=len)
    assert next(ahead) == bytes(10)
    assert two.wait(SECONDS)  # two may wait, and none beside them
    assert fetched == [0, 1, 2]
    assert len(list(ahead)) == 9


def test_an_error_comes_behind_what_was_fetched_before_it() -> None:
    def items() -> Iterator[bytes]:
        yield b"1"
        yield b"2"
        raise ZeroDivisionError("of the thread")

    ahead = read_ahead(items(), bytes_max=100, size=len)
    assert [next(ahead), next(ahead)] == [b"1", b"2"]
    with pytest.raises(ZeroDivisionError, match="of the thread"):
        next(ahead)


def test_an_early_end_ends_the_thread() -> None:
    """Also one that waits for room."""
    before = active_count()
    closed = Event()

    def items() -> Iterator[bytes]:
        try:
            while True:
                yield bytes(10)
        finally:
            closed.set()

    ahead = read_ahead(items(), bytes_max=5, size=len)
    assert next(ahead) == bytes(10)
    ahead.close()
    assert active_count() == before
    assert closed.wait(SECONDS)
