"""The memory tail: where a position lies, what is given up, what serves again."""

from __future__ import annotations

from polymq.core_log.kernels.log_end import Chunk
from polymq.core_log.tail import Tail


def filled(tail: Tail, position: int, size: int = 100) -> Chunk:
    """A chunk of 100 bytes with `size` of them used."""
    chunk = tail.add(position, 1, 1 << 30)
    chunk.used = size
    return chunk


def test_a_position_lies_in_the_chunk_that_holds_it() -> None:
    tail = Tail(0, 100)
    first, second = filled(tail, 0), filled(tail, 100, 60)
    third = filled(tail, 500, 10)  # a segment ended in between
    for position, expected in (
        (0, first),
        (99, first),
        (100, second),
        (159, second),
        (160, None),
        (499, None),
        (500, third),
        (510, None),
        (-1, None),
    ):
        assert tail.find(position) is expected
    assert tail.start == 0
    assert tail.last is third


def test_what_is_not_written_yet_is_found_chunk_by_chunk() -> None:
    tail = Tail(0, 100)
    first, second = filled(tail, 0), filled(tail, 100, 60)
    third = filled(tail, 500, 10)
    for position, expected in (
        (0, [first, second, third]),
        (30, [first, second, third]),
        (100, [second, third]),
        (160, [third]),
        (500, [third]),
        (510, []),
    ):
        assert list(tail.since(position)) == expected


def test_the_oldest_chunks_go_first_and_the_newest_stays() -> None:
    tail = Tail(0, 100)
    for number in range(5):
        filled(tail, number * 100)
    assert tail.bytes == 500
    tail.trim(350, 500)
    assert (tail.start, tail.bytes) == (200, 300)
    tail.trim(0, 350)
    assert (tail.start, tail.bytes) == (300, 200)
    tail.trim(0, 500)
    assert (tail.start, tail.bytes) == (400, 100)


def test_memory_serves_again_unless_somebody_holds_it() -> None:
    tail = Tail(0, 100)
    free, held = filled(tail, 0).memory, filled(tail, 100).memory
    filled(tail, 200)
    free_id = id(free)
    del free
    tail.trim(100, 300)
    again = [tail.add(300 + number * 100, 1, 1 << 30).memory for number in range(3)]
    assert free_id in [id(memory) for memory in again]
    assert all(memory is not held for memory in again)


def test_a_view_of_the_memory_holds_it_too() -> None:
    tail = Tail(0, 100)
    view = memoryview(filled(tail, 0).memory)
    filled(tail, 100)
    tail.trim(100, 200)
    assert tail.add(200, 1, 1 << 30).memory is not view.obj


def test_a_chunk_has_room_for_what_comes_next_and_no_more_than_can_be_used() -> None:
    tail = Tail(0, 100)
    assert len(tail.add(0, 10, 1 << 30).memory) == 100
    assert len(tail.add(0, 250, 1 << 30).memory) == 250
    assert len(tail.add(0, 10, 40).memory) == 40
    assert tail.bytes == 390


def test_what_was_begun_is_taken_back() -> None:
    tail = Tail(0, 100)
    chunk = filled(tail, 0, 40)
    mark = tail.mark()
    chunk.used = 90
    filled(tail, 100)
    filled(tail, 200)
    tail.rewind(mark)
    assert (tail.last, chunk.used, tail.bytes) == (chunk, 40, 100)
    assert tail.find(50) is None
