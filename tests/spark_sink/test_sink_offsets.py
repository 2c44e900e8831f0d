"""Which messages a batch reads: beginnings, admission, replays, losses, all without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.spark_sink import offsets
from polymq.spark_sink.errors import BadOption, DataLoss, Unavailable
from polymq.spark_sink.offsets import (
    TASK_ROWS,
    Bounds,
    Positions,
    Queue,
    Range,
    Snapshot,
    Tasks,
    check_found,
    count_between,
    ending_positions,
    next_positions,
    split,
    starting_positions,
    times_of,
)
from polymq.spark_sink.selection import Selection

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
    target: Snapshot | None = None,
    fail: bool = True,
    topics: frozenset[str] | None = None,
    brokers: frozenset[str] = frozenset("b"),
) -> Positions:
    return next_positions(
        start,
        snapshot,
        brokers=brokers,
        wants=Selection(topics=topics).wants_queue,
        rows_max=rows_max,
        target=target,
        fail_on_data_loss=fail,
    )


def plan(
    start: Positions,
    end: Positions,
    snapshot: Held,
    *,
    fail_on_data_loss: bool,
    brokers: frozenset[str] = frozenset("b"),
) -> list[Range]:
    return offsets.plan(start, end, snapshot, brokers=brokers, fail_on_data_loss=fail_on_data_loss)


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
    reached=offsets_by_queue,
    incarnations=st.dictionaries(st.text(max_size=5), st.none() | st.integers(0, 2**62)),
    unread=offsets_by_queue,
    origin=st.none() | offsets_by_queue,
    initial=st.booleans(),
)
def test_positions_survive_json(
    reached: dict[Queue, int],
    incarnations: dict[str, int | None],
    unread: dict[Queue, int],
    origin: dict[Queue, int] | None,
    initial: bool,
) -> None:
    """Topics with slashes too. Spark compares the text: it has to be the same after a reading."""
    positions = Positions(
        offsets=reached, incarnations=incarnations, unread=unread, origin=origin, initial=initial
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
    assert ending_positions("latest", snapshot).offsets == {A: 9, B: 5}
    assert ending_positions('{"t": {"0": 4}}', snapshot).offsets == {A: 4, B: 5}


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
    target = held((0, 10))
    later = held((0, 25), (0, 5))
    first = advance(at(0), later, target=target, rows_max=6)
    second = advance(first, later, target=target, rows_max=6)
    assert (first.offsets, second.offsets) == ({A: 6}, {A: 10})
    assert advance(second, later, target=target) is second


def test_a_target_behind_the_position_moves_nothing_back() -> None:
    start = at(7)
    assert advance(start, held((0, 9)), target=held((0, 3))) is start


def test_a_target_that_retention_has_overtaken_is_reached_all_the_same() -> None:
    reached = advance(at(0), held((50, 60)), target=held((0, 10)), fail=False)
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


# --- topics that are deleted and created again --------------------------------------------------


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_was_wholly_read_may_go_without_a_word(fail: bool) -> None:
    """Another topic of its broker or not: nothing happens, not even an empty batch."""
    start = at(9)
    assert advance(start, {}, fail=fail) is start
    other = held((0, 4), topic="u")
    reached = advance(start, other, fail=fail)
    assert reached.offsets == {A: 9, Queue("b", "u", 0): 4}
    assert advance(reached, other, fail=fail) is reached


def test_a_topic_that_was_out_of_reach_is_read_on() -> None:
    """Its broker was away from the name servers: with the same incarnation it is the same topic."""
    nobody: frozenset[str] = frozenset()
    half = advance(at(0), held((0, 20)), rows_max=5)
    assert advance(half, {}, brokers=nobody) is half
    with pytest.raises(Unavailable, match="broker 'b' is not there, which has queue b/t/0"):
        plan(at(0), half, {}, fail_on_data_loss=False, brokers=nobody)
    reached = advance(advance(at(9), {}), held((0, 12)))
    assert reached.offsets == {A: 12}
    assert spans(plan(at(9), reached, held((0, 12)), fail_on_data_loss=True)) == [(0, 9, 12)]


@pytest.mark.parametrize("end", [0, 5, 9, 50])
def test_a_topic_that_was_created_again_is_read_from_its_beginning(end: int) -> None:
    """With the same offsets, with more, with fewer."""
    again = held((0, end), incarnation=2)
    reached = advance(at(9), again)
    assert (reached.offsets, reached.incarnations) == ({A: end}, {"b/t": 2})
    planned = plan(at(9), reached, again, fail_on_data_loss=True)
    assert spans(planned) == ([(0, 0, end)] if end else [])
    assert {item.incarnation for item in planned} <= {2}
    assert advance(reached, again) is reached


def test_a_new_generation_with_fewer_queues_leaves_no_position_of_the_old_one() -> None:
    """It would count for a queue that is added to the new one."""
    reached = advance(at(9, 7), held((0, 3), incarnation=2))
    assert reached.offsets == {A: 3}
    more = held((0, 3), (0, 8), incarnation=2)
    planned = plan(reached, advance(reached, more), more, fail_on_data_loss=True)
    assert spans(planned) == [(1, 0, 8)]


@pytest.mark.parametrize("now", [{}, held((0, 3), incarnation=2)], ids=["deleted", "recreated"])
def test_a_topic_that_was_deleted_unread_is_a_loss(now: Held) -> None:
    """As far as we saw it: the batch was smaller than what there was."""
    reached = advance(at(0), held((0, 20)), rows_max=5)
    assert (reached.offsets, reached.unread) == ({A: 5}, {A: 20})
    with pytest.raises(
        DataLoss, match=r"b/t/0 is gone, 5 to 20 were not read.*--fail-on-data-loss"
    ):
        advance(reached, now)
    assert advance(reached, {}, topics=frozenset("u")).offsets == {A: 5}


def test_or_it_is_given_up_and_the_new_generation_comes_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each batch of a replay says again what is missing."""
    again = held((0, 3), incarnation=2)
    before = advance(at(0), held((0, 20)), rows_max=5)
    given_up = advance(before, again, fail=False)
    assert (given_up.offsets, given_up.incarnations) == ({A: 20}, {"b/t": 1})
    for _ in range(2):
        caplog.clear()
        assert plan(before, given_up, again, fail_on_data_loss=False) == []
        assert "b/t/0 is gone, 5 to 20 were not read" in caplog.text
    caplog.clear()
    followed = advance(given_up, again, fail=False)
    planned = plan(given_up, followed, again, fail_on_data_loss=False)
    assert [(item.first, item.end, item.incarnation) for item in planned] == [(0, 3, 2)]
    assert advance(followed, again, fail=False) is followed
    assert not caplog.text


def test_a_batch_that_was_planned_never_reads_another_generation() -> None:
    """It was deleted, and created again, after the batch was logged and before it was read."""
    again = held((0, 9), incarnation=2)
    with pytest.raises(DataLoss, match="3 to 9 were not read"):
        plan(at(3), at(9), again, fail_on_data_loss=True)
    assert plan(at(3), at(9), again, fail_on_data_loss=False) == []
    assert plan(at(3), at(9), {}, fail_on_data_loss=False) == []


def test_a_query_begins_with_a_new_generation_if_there_is_one_by_then() -> None:
    """Created again between the first look and the first batch, and replayed."""
    start = starting_positions("latest", held((0, 9)))
    again = held((0, 4), incarnation=2)
    reached = advance(start, again)
    logged = Positions.from_json(json.loads(json.dumps(reached.to_json())))
    for first in (start, starting_positions("latest", again)):
        planned = plan(first, logged, again, fail_on_data_loss=True)
        assert spans(planned) == [(0, 0, 4)]


def test_available_now_leaves_a_topic_alone_that_is_created_again_meanwhile() -> None:
    """What its target had of the old one is lost; the new one is for the next run."""
    target, again = held((0, 20)), held((0, 3), incarnation=2)
    with pytest.raises(DataLoss, match="5 to 20"):
        advance(at(5), again, target=target)
    given_up = advance(at(5), again, target=target, fail=False)
    assert given_up.offsets == {A: 20}
    assert advance(given_up, again, target=target, fail=False) is given_up
    read = at(20)
    assert advance(read, again, target=target) is read
    assert advance(read, again, target=again).offsets == {A: 3}


def test_what_is_read_of_a_topic_is_no_loss_later() -> None:
    """The rest was read after the limited batch."""
    half = advance(at(0), held((0, 20)), rows_max=5)
    whole = advance(half, held((0, 20)))
    assert (whole.offsets, whole.unread) == ({A: 20}, {})
    assert advance(whole, {}) is whole


def test_positions_of_deleted_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten, if their broker is there."""
    monkeypatch.setattr(offsets, "GONE_QUEUES_MAX", 3)
    start = at(0)
    for number in range(10):
        start = advance(start, held((0, 1), topic=f"u{number}", incarnation=number + 2))
    names = sorted(queue.topic for queue in start.offsets)
    assert names == ["u6", "u7", "u8", "u9"]
    assert sorted(start.incarnations) == [f"b/{name}" for name in names]
    other = {Queue("c", "x", 0): Bounds(first=0, end=1, incarnation=99)}
    reached = advance(start, other, brokers=frozenset("c"))
    assert reached.offsets == {**start.offsets, Queue("c", "x", 0): 1}


@given(
    story=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 20)),
            st.tuples(st.just("look"), st.integers(1, 12)),
            st.tuples(st.sampled_from(["delete", "create", "away"]), st.just(0)),
        ),
        max_size=30,
    )
)
def test_no_story_of_deletions_reads_a_message_twice_or_leaves_one_out(
    story: list[tuple[str, int]],
) -> None:
    """Every look is a batch, and each batch is planned again by a replay."""
    sizes = {1: 0}  # by generation
    current: int | None = 1
    position = starting_positions("earliest", held((0, 0)))
    read: list[tuple[int | None, int]] = []
    for kind, number in [*story, *[("look", 1000)] * 3]:
        if kind == "append" and current is not None:
            sizes[current] += number
        elif kind == "delete":
            current = None
        elif kind == "create" and current is None:
            current = max(sizes) + 1
            sizes[current] = 0
        snapshot: Held = {}
        if current is not None and kind != "away":
            snapshot = held((0, sizes[current]), incarnation=current)
        if kind in ("look", "away"):
            brokers = frozenset("b" if kind == "look" else "")
            reached = advance(
                position, snapshot, rows_max=max(number, 1), fail=False, brokers=brokers
            )
            planned = plan(position, reached, snapshot, fail_on_data_loss=False)
            logged = Positions.from_json(json.loads(json.dumps(reached.to_json())))
            assert plan(position, logged, snapshot, fail_on_data_loss=False) == planned
            read += [(item.incarnation, n) for item in planned for n in range(item.first, item.end)]
            position = reached
    assert len(read) == len(set(read))
    if current is not None:
        assert [n for generation, n in read if generation == current] == list(range(sizes[current]))


# --- positions of the first version -------------------------------------------------------------

FORMER = {
    "version": 1,
    "offsets": {"b//0": 4, "b/t/0": 9, "b/||/0": 2},
    "incarnations": {"b/": 5, "b/t": 1, "b/gone": 3, "b/||": 6},
}
"""As it stands in checkpoints."""


def test_positions_of_the_first_version_are_read_on() -> None:
    """The topic without a name has one now, and the one that had that name has another."""
    start = Positions.from_json(FORMER)
    nameless = held((0, 6), topic="||", incarnation=5)
    bars = held((0, 2), topic="|||", incarnation=6)
    snapshot = {**nameless, **held((0, 12)), **bars}
    reached = advance(start, snapshot)
    planned = plan(start, reached, snapshot, fail_on_data_loss=True)
    assert [(item.queue.topic, item.first, item.end) for item in planned] == [
        ("t", 9, 12),
        ("||", 4, 6),
    ]
    assert not any(item.former for item in planned)
    assert reached.to_json()["version"] == 2
    assert advance(reached, snapshot) is reached


def test_a_batch_that_the_first_version_logged_keeps_its_names() -> None:
    start, end = at(3), Positions.from_json({**FORMER, "offsets": {"b/t/0": 9}})
    (planned,) = plan(start, end, held((0, 20)), fail_on_data_loss=True)
    assert (planned.first, planned.end, planned.former) == (3, 9, True)


def test_a_topic_that_is_not_wanted_any_more_keeps_its_position() -> None:
    other = held((0, 4), topic="u")
    without = advance(at(9), other, topics=frozenset("u"))
    assert without.offsets == {A: 9, Queue("b", "u", 0): 4}
    again = advance(without, {**other, **held((0, 12))}, topics=frozenset("tu"))
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


@given(lost=st.integers(0, 30), size=st.integers(1, 60), rows_max=st.integers(1, 40))
def test_retention_moves_no_piece(lost: int, size: int, rows_max: int) -> None:
    """A file that a batch wrote before a crash has the name of the piece in its replay, though the
    beginning of the range is gone by then."""
    whole = Range(queue=A, first=5, end=5 + size, planned_first=5, incarnation=1)
    before = {(piece.planned_first, piece.end) for piece in split([whole], rows_max)}
    late = replace(whole, first=min(5 + lost, whole.end))
    pieces = split([late], rows_max)
    assert {(piece.planned_first, piece.end) for piece in pieces} <= before
    assert [n for piece in pieces for n in range(piece.first, piece.end)] == list(
        range(late.first, late.end)
    )


@pytest.mark.parametrize(
    ("tasks", "total", "rows"),
    [
        (Tasks(), 5_000_000, TASK_ROWS),
        (Tasks(rows_max=100), 5_000_000, 100),
        (Tasks(count_min=4), 1_000, 250),
        (Tasks(count_min=4), 3, 1),
        (Tasks(count_min=4), 0, 1),
        (Tasks(rows_max=100, count_min=4), 1_000, 100),
        (Tasks(count_min=4), 50_000_000, TASK_ROWS),
    ],
)
def test_how_many_messages_a_task_reads(tasks: Tasks, total: int, rows: int) -> None:
    assert tasks.rows(total) == rows


def test_a_batch_is_replayed_in_the_pieces_that_were_logged() -> None:
    """The options have changed meanwhile. A batch of a version that did not cut any is not cut."""
    snapshot = held((0, 10))
    start = at(0)
    end = next_positions(
        start,
        snapshot,
        brokers={"b"},
        wants=lambda _topic, _number: True,
        rows_max=None,
        target=None,
        fail_on_data_loss=True,
        tasks=Tasks(rows_max=4),
    )
    logged = Positions.from_json(json.loads(json.dumps(end.to_json())))
    assert logged == end
    ranges = plan(start, logged, snapshot, fail_on_data_loss=True)
    assert [(one.first, one.end) for one in split(ranges, logged.task_rows)] == [
        (0, 4),
        (4, 8),
        (8, 10),
    ]
    older = {key: value for key, value in end.to_json().items() if key != "taskRows"}
    assert split(ranges, Positions.from_json(older).task_rows) == ranges


# --- places by time ---------------------------------------------------------------------------


def test_times_are_for_all_queues_or_for_some() -> None:
    snapshot = held((0, 5), (0, 5))
    assert times_of("17", snapshot, "startingTimestamp") == {A: 17, B: 17}
    by_queue = times_of('{"t": {"1": 9}}', snapshot, "startingOffsetsByTimestamp")
    assert by_queue == {B: 9}
    assert starting_positions("earliest", snapshot, {B: 3}).offsets == {A: 0, B: 3}
    assert ending_positions("latest", snapshot, {B: 3}).offsets == {A: 5, B: 3}


@pytest.mark.parametrize("text", ['{"t": {"1": -1}}', '{"t": {"7": 1}}', '{"u": {"0": 1}}', "soon"])
def test_wrong_times_are_named(text: str) -> None:
    with pytest.raises(BadOption, match=r"^startingOffsetsByTimestamp: "):
        times_of(text, held((0, 5), (0, 5)), "startingOffsetsByTimestamp")


def test_a_time_that_no_message_has_reached_is_an_error() -> None:
    snapshot = held((0, 5), (0, 5))
    check_found({A: 4, B: 0}, {A: 1, B: 1}, snapshot, "startingTimestamp")
    with pytest.raises(BadOption, match=r"^startingTimestamp: queue b/t/1 has no message"):
        check_found({A: 4, B: 5}, {A: 1, B: 2}, snapshot, "startingTimestamp")


def test_a_queue_that_is_not_assigned_any_more_keeps_its_position() -> None:
    """It is no loss, either, though nothing of it is seen."""
    start = at(3, 4, unread={B: 9})
    reached = next_positions(
        start,
        held((0, 8)),
        brokers={"b"},
        wants=Selection(topics=frozenset("t"), assigned={"t": frozenset({0})}).wants_queue,
        rows_max=None,
        target=None,
        fail_on_data_loss=True,
    )
    assert reached.offsets == {A: 8, B: 4}
    assert count_between(start, reached) == 5
