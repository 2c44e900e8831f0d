"""Which messages a batch reads: beginnings, admission, replays, losses, all without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.errors import BadOption, DataLoss, Recreated
from spark_sink.offsets import (
    Bounds,
    Positions,
    Queue,
    Range,
    ending_offsets,
    latest_positions,
    next_positions,
    plan,
    split,
    starting_positions,
)

A, B = Queue("b", "t", 0), Queue("b", "t", 1)
Held = Mapping[Queue, Bounds]


def held(*bounds: tuple[int, int], topic: str = "t", incarnation: int = 1) -> dict[Queue, Bounds]:
    """Queues 0, 1, ... of a topic with these (first, end)."""
    return {
        Queue("b", topic, number): Bounds(first=first, end=end, incarnation=incarnation)
        for number, (first, end) in enumerate(bounds)
    }


def at(*offsets: int, **more: Any) -> Positions:
    """The end of some batch."""
    queues = {Queue("b", "t", number): offset for number, offset in enumerate(offsets)}
    return Positions(offsets=queues, incarnations={"b/t": 1}, **more)


def advance(
    start: Positions,
    snapshot: Held,
    *,
    rows_max: int | None = None,
    target: Mapping[Queue, int] | None = None,
    fail: bool = True,
    topics: Sequence[str] | None = None,
) -> Positions:
    return next_positions(
        start, snapshot, topics=topics, rows_max=rows_max, target=target, fail_on_data_loss=fail
    )


def spans(ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [(item.queue.queue_id, item.first, item.end) for item in ranges]


# --- as Spark keeps them ----------------------------------------------------------------------

queues = st.builds(
    Queue,
    st.text("ab-_", min_size=1, max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**31 - 1),
)
offsets_by_queue = st.dictionaries(queues, st.integers(0, 2**62), max_size=4)


@given(
    offsets=offsets_by_queue,
    incarnations=st.dictionaries(st.text(max_size=5), st.none() | st.integers(0, 2**62)),
    origin=st.none() | offsets_by_queue,
    initial=st.booleans(),
)
def test_positions_survive_json(
    offsets: dict[Queue, int],
    incarnations: dict[str, int | None],
    origin: dict[Queue, int] | None,
    initial: bool,
) -> None:
    """Topics with slashes too. Spark compares the text: it has to be the same after a reading."""
    positions = Positions(
        offsets=offsets, incarnations=incarnations, origin=origin, initial=initial
    )
    text = json.dumps(positions.to_json())
    again = Positions.from_json(json.loads(text))
    assert again == positions
    assert json.dumps(again.to_json()) == text


def test_another_source_s_checkpoint_is_refused() -> None:
    with pytest.raises(BadOption, match="not positions"):
        Positions.from_json({"sensors": {"0": 23}})


# --- where to begin ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("earliest", [2, 0]),
        (" Latest ", [9, 5]),
        ('{"t": {"0": 4, "1": -1}}', [4, 5]),
        ('{"t": {"1": -2}}', [2, 0]),
        ('{"t": {"b": {"0": 3}}}', [3, 0]),
        ("{}", [2, 0]),
    ],
)
def test_where_a_query_begins(option: str, expected: list[int]) -> None:
    start = starting_positions(option, held((2, 9), (0, 5)))
    assert list(start.offsets.values()) == expected
    assert start.initial


@pytest.mark.parametrize(
    "option",
    [
        "soon",
        "[]",
        "7",
        '{"t": 5}',
        '{"t": {"x": 5}}',
        '{"u": {"0": 1}}',
        '{"t": {"7": 1}}',
        '{"t": {"0": 1}}',
        '{"t": {"0": 10}}',
        '{"t": {"0": -3}}',
    ],
)
def test_a_beginning_that_there_is_not(option: str) -> None:
    """Of another form, of an unknown queue, or outside of what the queue holds."""
    with pytest.raises(BadOption, match="startingOffsets"):
        starting_positions(option, held((2, 9)))


def test_a_topic_on_two_brokers_needs_their_names() -> None:
    snapshot = {**held((0, 5)), Queue("c", "t", 0): Bounds(first=0, end=5, incarnation=1)}
    with pytest.raises(BadOption, match="several brokers"):
        starting_positions('{"t": {"0": 1}}', snapshot)
    start = starting_positions('{"t": {"c": {"0": 1}}}', snapshot)
    assert start.offsets == {A: 0, Queue("c", "t", 0): 1}


def test_a_batch_query_ends_at_the_latest_unless_told() -> None:
    snapshot = held((2, 9), (0, 5))
    assert ending_offsets("latest", snapshot) == {A: 9, B: 5}
    assert ending_offsets('{"t": {"0": 4}}', snapshot) == {A: 4, B: 5}


# --- how far to go ----------------------------------------------------------------------------


def test_without_a_limit_everything_is_read() -> None:
    reached = advance(at(3, 5), held((0, 9), (0, 5)))
    assert reached.offsets == {A: 9, B: 5}


def test_nothing_new_gives_the_very_same_positions() -> None:
    """Spark would run an empty batch for any difference."""
    start = at(9, 5)
    assert advance(start, held((0, 9), (0, 5))) is start


def test_queues_share_a_limit_by_what_they_have_and_none_starves() -> None:
    reached = advance(at(0, 0), held((0, 1_000_000), (0, 10)), rows_max=1000)
    assert reached.offsets == {A: 999, B: 1}


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    rows_max=st.integers(1, 20_000),
)
def test_a_limited_batch_moves_every_queue_and_keeps_about_to_the_limit(
    sizes: list[int], rows_max: int
) -> None:
    snapshot = held(*((0, size) for size in sizes))
    reached = advance(at(*([0] * len(sizes))), snapshot, rows_max=rows_max)
    moved = [reached.offsets[Queue("b", "t", number)] for number in range(len(sizes))]
    assert all(0 <= step <= size for step, size in zip(moved, sizes, strict=True))
    assert all(step > 0 for step, size in zip(moved, sizes, strict=True) if size)
    assert sum(moved) <= max(rows_max + len(sizes), 0)
    if sum(sizes) <= rows_max:
        assert moved == sizes


def test_a_new_queue_is_read_from_its_beginning() -> None:
    reached = advance(at(9), held((0, 9), (0, 4)))
    assert reached.offsets == {A: 9, B: 4}
    assert spans(plan(at(9), reached, held((0, 9), (0, 4)), fail_on_data_loss=True)) == [(1, 0, 4)]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20)), max_size=20
    )
)
def test_batch_after_batch_reads_every_offset_once(steps: list[tuple[int, int, int]]) -> None:
    """Whatever arrives between batches and however small they are."""
    ends = [0, 0]
    read: list[list[int]] = [[], []]
    position = starting_positions("earliest", held((0, 0), (0, 0)))
    for *more, rows_max in [*steps, (0, 0, 10_000)]:
        ends = [end + new for end, new in zip(ends, more, strict=True)]
        snapshot = held(*((0, end) for end in ends))
        reached = advance(position, snapshot, rows_max=rows_max)
        for queue_id, first, end in spans(
            plan(position, reached, snapshot, fail_on_data_loss=True)
        ):
            read[queue_id] += range(first, end)
        position = reached
    assert read == [list(range(end)) for end in ends]


# --- AvailableNow -----------------------------------------------------------------------------


def test_available_now_stops_at_its_target_and_converges() -> None:
    """What arrives later waits, new queues too; at the target nothing changes any more."""
    target = latest_positions(held((0, 10)))
    later = held((0, 25), (0, 5))
    first = advance(at(0), later, target=target, rows_max=6)
    second = advance(first, later, target=target, rows_max=6)
    assert (first.offsets, second.offsets) == ({A: 6}, {A: 10})
    assert advance(second, later, target=target) is second


def test_a_target_behind_the_position_moves_nothing_back() -> None:
    start = at(7)
    assert advance(start, held((0, 9)), target={A: 3}) is start


def test_a_target_that_retention_has_overtaken_is_reached_all_the_same() -> None:
    reached = advance(at(0), held((50, 60)), target={A: 10}, fail=False)
    assert reached.offsets == {A: 10}
    assert plan(at(0), reached, held((50, 60)), fail_on_data_loss=False) == []


# --- replays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["earliest", "latest", '{"t": {"0": 4}}'])
def test_the_first_batch_knows_where_it_began(option: str) -> None:
    """Spark asks for the initial position again when it replays batch 0, and the broker has moved
    on: messages arrived, retention took some, the user changed the option."""
    before = held((2, 9))
    start = starting_positions(option, before)
    more = held((2, 12))
    reached = advance(start, more)
    planned = plan(start, reached, more, fail_on_data_loss=True)
    logged = Positions.from_json(json.loads(json.dumps(reached.to_json())))
    for other in ("earliest", "latest"):
        again = starting_positions(other, held((2, 40)))
        assert plan(again, logged, held((2, 40)), fail_on_data_loss=True) == planned


def test_an_empty_first_batch_knows_where_it_began() -> None:
    """Latest, nothing new: the position is fixed all the same."""
    snapshot = held((0, 9))
    start = starting_positions("latest", snapshot)
    reached = advance(start, snapshot)
    assert (reached.initial, reached.origin) == (False, {A: 9})
    again = starting_positions("earliest", snapshot)
    assert plan(again, reached, snapshot, fail_on_data_loss=True) == []
    following = advance(reached, held((0, 12)))
    assert spans(plan(reached, following, held((0, 12)), fail_on_data_loss=True)) == [(0, 9, 12)]


def test_a_range_does_not_depend_on_what_the_broker_has_now() -> None:
    start, end = at(3, 0), at(8, 5)
    planned = plan(start, end, held((0, 8), (0, 5)), fail_on_data_loss=True)
    assert spans(planned) == [(0, 3, 8), (1, 0, 5)]
    assert plan(start, end, held((0, 99), (0, 50), (0, 7)), fail_on_data_loss=True) == planned


def test_an_empty_second_batch_does_not_read_the_first_again() -> None:
    """Spark may plan a batch from a position to itself, and the first one carries its origin."""
    snapshot = held((0, 9))
    reached = advance(starting_positions("earliest", snapshot), snapshot)
    assert reached.origin == {A: 0}
    assert advance(reached, snapshot) is reached
    assert plan(reached, reached, snapshot, fail_on_data_loss=True) == []


# --- losses -----------------------------------------------------------------------------------


def test_what_retention_took_unread_is_an_error_that_lists_it() -> None:
    with pytest.raises(DataLoss, match=r"b/t/0 begins at 5, 3 was next.*failOnDataLoss"):
        plan(at(3), at(8), held((5, 9)), fail_on_data_loss=True)


def test_or_it_is_left_out_and_the_range_says_so() -> None:
    (left,) = plan(at(3), at(8), held((5, 9)), fail_on_data_loss=False)
    assert (left.planned_first, left.first, left.end) == (3, 5, 8)
    assert plan(at(3), at(8), held((8, 9)), fail_on_data_loss=False) == []


def test_a_new_queue_that_does_not_begin_at_0_has_lost_something() -> None:
    reached = advance(at(9), held((0, 9), (3, 7)))
    with pytest.raises(DataLoss, match="b/t/1 begins at 3, 0 was next"):
        plan(at(9), reached, held((0, 9), (3, 7)), fail_on_data_loss=True)


def test_going_on_without_lost_messages_does_not_crawl_through_the_gap() -> None:
    reached = advance(at(0), held((1_000_000, 1_000_100)), rows_max=10, fail=False)
    assert reached.offsets == {A: 1_000_010}


@pytest.mark.parametrize("fail", [True, False])
def test_a_queue_that_ends_before_our_position_is_always_an_error(fail: bool) -> None:
    with pytest.raises(DataLoss, match="ends at 5, but was read up to 9"):
        advance(at(9), held((0, 5)), fail=fail)
    with pytest.raises(DataLoss, match="ends at 5"):
        plan(at(3), at(9), held((0, 5)), fail_on_data_loss=fail)


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_was_recreated_is_always_an_error(fail: bool) -> None:
    """With the same offsets, with more, with fewer."""
    for end in (5, 9, 50):
        with pytest.raises(Recreated, match="incarnation 1, now it is 2"):
            advance(at(9), held((0, end), incarnation=2), fail=fail)
        with pytest.raises(Recreated):
            plan(at(3), at(9), held((0, end), incarnation=2), fail_on_data_loss=fail)


def test_a_topic_that_is_gone_stays_known() -> None:
    """It is dropped if the user says so; when it comes back, its files must not be overwritten."""
    with pytest.raises(DataLoss, match="b/t/0 is gone, read up to 9"):
        advance(at(9), {})
    without = advance(at(9), {}, fail=False)
    assert without.offsets == {}
    with pytest.raises(Recreated):
        advance(without, held((0, 3), incarnation=2), fail=False)


def test_a_topic_that_is_not_wanted_any_more_keeps_its_position() -> None:
    other = held((0, 4), topic="u")
    without = advance(at(9), other, topics=["u"])
    assert without.offsets == {A: 9, Queue("b", "u", 0): 4}
    again = advance(without, {**other, **held((0, 12))}, topics=["t", "u"])
    assert again.offsets[A] == 12


# --- pieces -----------------------------------------------------------------------------------


@given(first=st.integers(0, 100), size=st.integers(1, 100), rows_max=st.none() | st.integers(1, 40))
def test_pieces_of_a_range_make_up_the_range(first: int, size: int, rows_max: int | None) -> None:
    whole = Range(queue=A, first=first, end=first + size, planned_first=first, incarnation=1)
    pieces = split([whole], rows_max)
    assert [n for piece in pieces for n in range(piece.first, piece.end)] == list(
        range(first, first + size)
    )
    assert rows_max is None or all(piece.end - piece.first <= rows_max for piece in pieces)
