"""A cursor hands out, takes back and settles stretches of offsets."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.queues.cursor import Cursor


def test_messages_are_handed_out_once_in_order() -> None:
    """Nothing is requeued: two takes give consecutive stretches, then nothing is left."""
    cursor = Cursor(10)
    assert cursor.take(3, 15) == (10, 3, False)
    assert cursor.take(9, 15) == (13, 2, False)
    assert cursor.take(1, 15) is None


def test_requeued_messages_come_first_in_their_old_order_and_flagged() -> None:
    """RabbitMQ's order: of a b c d unacked, nack c then a gives a, c, then what is new."""
    cursor = Cursor(0)
    cursor.take(4, 6)
    cursor.requeue(2, 1)
    cursor.requeue(0, 1)
    assert cursor.take(10, 6) == (0, 1, True)
    assert cursor.take(10, 6) == (2, 1, True)
    assert cursor.take(10, 6) == (4, 2, False)


def test_the_floor_follows_the_oldest_unsettled_message() -> None:
    """Settling out of order moves the floor only when the hole below is filled."""
    cursor = Cursor(0)
    cursor.take(5, 5)
    cursor.settle(1, 2)
    assert cursor.floor == 0
    cursor.settle(0, 1)
    assert cursor.floor == 3
    cursor.requeue(3, 1)
    cursor.settle(4, 1)
    assert cursor.floor == 3
    assert cursor.ready_count(5) == 1


def test_a_requeued_message_holds_the_floor_like_one_that_is_out() -> None:
    """Settling what stands before and behind it leaves it there, to be delivered again."""
    cursor = Cursor(0)
    cursor.take(4, 4)
    cursor.settle(1, 1)
    cursor.requeue(2, 1)
    cursor.settle(3, 1)
    cursor.settle(0, 1)
    assert cursor.floor == 2
    assert cursor.take(1, 4) == (2, 1, True)


def test_purging_leaves_what_is_outstanding() -> None:
    """A purge settles what waits (requeued and new) and not what a consumer holds."""
    cursor = Cursor(0)
    cursor.take(3, 10)
    cursor.requeue(1, 1)
    assert cursor.settle_ready(10) == 8
    assert cursor.ready_count(10) == 0
    assert cursor.outstanding_count == 2
    cursor.requeue(0, 3)
    assert cursor.ready_count(10) == 2


def test_after_a_restart_what_was_out_comes_again_flagged() -> None:
    """A snapshot restored: outstanding messages are requeued, settled ones stay settled."""
    cursor = Cursor(0)
    cursor.take(4, 8)
    cursor.settle(1, 1)
    state = cursor.snapshot()
    restored = Cursor.restore(state["floor"], state["next"], state["settled"])  # type: ignore[arg-type]
    restored.reopen()
    assert restored.take(10, 8) == (0, 1, True)
    assert restored.take(10, 8) == (2, 2, True)
    assert restored.take(10, 8) == (4, 4, False)


def test_untaken_messages_were_never_handed_out() -> None:
    """A read that was cut gives the rest back without the redelivered flag."""
    cursor = Cursor(0)
    cursor.take(6, 6)
    cursor.untake(4, 2, False)
    assert cursor.next == 4
    assert cursor.take(9, 6) == (4, 2, False)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(1, 8)), max_size=60))
def test_a_cursor_agrees_with_a_dict_of_states(steps: list[tuple[int, int, int]]) -> None:
    """Any mix of take, settle, requeue, drop and skip gives the same as one state per offset."""
    end = 40
    cursor = Cursor(0)
    states: dict[int, str] = {}
    for action, first, count in steps:
        if action <= 1:
            taken = cursor.take(count, end)
            waiting = sorted(o for o, s in states.items() if s == "requeued")
            if waiting:
                assert taken is not None
                assert taken[0] == waiting[0]
                assert taken[2]
            else:
                new = len(states)
                assert (taken is None) == (new >= end)
            if taken is not None:
                for offset in range(taken[0], taken[0] + taken[1]):
                    assert states.get(offset, "requeued") == "requeued"
                    states[offset] = "out"
            continue
        if action >= 4:
            waiting = sorted(o for o, s in states.items() if s == "requeued")
            waiting += range(len(states), end)
            if action == 4:
                dropped = cursor.drop(count, end)
                gone = [] if dropped is None else list(range(dropped[0], sum(dropped)))
                assert gone == waiting[: len(gone)]
                assert bool(gone) == bool(waiting)
            else:
                gone = [offset for offset in waiting if offset < first]
                assert cursor.skip_waiting(first) == len(gone)
            states.update(dict.fromkeys(gone, "settled"))
            continue
        first %= max(len(states), 1)
        for offset in range(first, min(first + count, len(states))):
            if states[offset] != "out":
                continue
            if action == 2:
                cursor.settle(offset, 1)
                states[offset] = "settled"
            else:
                cursor.requeue(offset, 1)
                states[offset] = "requeued"
        assert [cursor.is_settled(o) for o in states] == [s == "settled" for s in states.values()]
    unsettled = [o for o, s in states.items() if s != "settled"]
    assert cursor.floor == (min(unsettled) if unsettled else len(states))
    requeued = sum(state == "requeued" for state in states.values())
    assert cursor.ready_count(end) == requeued + end - len(states)


def test_nothing_behind_the_stop_is_for_the_consumer() -> None:
    """Until the cursor goes on behind what it left out; a snapshot has the stop."""
    cursor = Cursor(0)
    cursor.stop = 5
    row = json.loads(json.dumps(cursor.snapshot()))
    cursor = Cursor.restore(row["floor"], row["next"], row["settled"], row["stop"])
    assert cursor.ready_count(20) == 5
    assert cursor.peek(9, 20) == (0, 5)
    assert cursor.take(9, 20) == (0, 5, False)
    assert cursor.take(9, 20) is None
    assert cursor.peek(9, 20) is None
    assert cursor.drop(9, 20) is None
    cursor.requeue(4, 1)
    assert cursor.settle_ready(20) == 1
    assert cursor.next == 5
    assert cursor.skip_waiting(10) == 5
    assert cursor.take(9, 20) == (10, 9, False)
    cursor.settle(0, 4)
    assert cursor.floor == 10


def test_a_snapshot_with_many_holes_is_packed() -> None:
    """More stretches than are listed: the same cursor comes back, in less space."""
    cursor = Cursor(5)
    cursor.delivered_to(10_005)
    for offset in range(6, 10_000, 3):
        cursor.settle(offset, 1)
    value = cursor.snapshot()
    assert len(json.dumps(value)) < 1000
    again = Cursor.restore(value["floor"], value["next"], value["settled"])  # type: ignore[arg-type]
    assert (again.floor, again.next, again.take_settled()) == (5, 10_005, [])
    assert [again.is_settled(n) for n in range(10_005)] == [
        cursor.is_settled(n) for n in range(10_005)
    ]


def test_settled_flags_say_which_are_settled() -> None:
    """From any offset on, also beyond what was ever delivered; requeued ones are not settled."""
    cursor = Cursor(10)
    cursor.delivered_to(20)
    for offset in (12, 13, 17):
        cursor.settle(offset, 1)
    cursor.requeue(15, 1)
    for first in (10, 12, 19, 25):
        flags = cursor.settled_flags(first, 12)
        assert list(flags) == [cursor.is_settled(first + at) for at in range(12)]


def test_what_was_settled_behind_the_dropped_goes_with_them() -> None:
    """Else it would hold the log. What is still out there does not go."""
    cursor = Cursor(0)
    cursor.take(5, 5)
    cursor.settle(2, 1)
    cursor.settle(4, 1)
    assert cursor.skip_to(2) == 0
    assert cursor.floor == 3
    assert cursor.skip_to(4) == 0
    assert (cursor.floor, cursor.next) == (5, 5)


def test_idle_cursors_share_what_they_do_not_have() -> None:
    """Many queues are idle: what one gets with its first message is its own."""
    first, second = Cursor(5), Cursor(7)
    assert first._states is second._states
    assert first.take(2, 9) == (5, 2, False)
    second.delivered_to(9)
    third = Cursor.restore(3, 3, ())
    third.settle(3, 1)
    fourth = Cursor.restore(3, 5, ((4, 1),))
    fourth.reopen()
    fifth = Cursor(0)
    fifth.reopen()
    fifth.clamp(2, 4)
    fifth.settle(1, 3)
    assert fifth.floor == 4
    assert len(Cursor(0)._states) == 0
    assert (first.outstanding_count, second.outstanding_count) == (2, 2)
    assert (third.floor, third.next, fourth.take(9, 5)) == (4, 4, (3, 1, True))


def test_who_watches_hears_of_what_is_ready_and_no_longer_there() -> None:
    """What is dropped is told once, as far as it was ready and lay below the cut; a stretch that
    begins at the cut stays, and nobody is told of no messages."""
    cursor = Cursor(0)
    cursor.take(6, 10)
    cursor.requeue(1, 2)
    cursor.requeue(4, 2)
    reported: list[tuple[int, int, int]] = []
    cursor.watch = lambda first, count, sign: reported.append((first, count, sign))
    assert cursor.skip_to(2) == 1
    assert cursor.skip_to(4) == 1
    assert cursor.skip_to(5) == 1
    assert cursor.skip_to(8) == 3
    assert reported == [(1, 1, -1), (2, 1, -1), (4, 1, -1), (5, 1, -1), (6, 2, -1)]


@given(st.randoms(use_true_random=False))
def test_who_watches_knows_what_is_ready(random: Random) -> None:
    """Whatever happens to a cursor: each message is told of once, when it is ready no more or is
    again. After a purge nothing is."""
    cursor, end = Cursor(0), 0
    ready: set[int] = set()

    def watch(first: int, count: int, sign: int) -> None:
        reported = set(range(first, first + count))
        assert reported <= ready if sign < 0 else ready.isdisjoint(reported)
        ready.symmetric_difference_update(reported)

    cursor.watch = watch
    for _ in range(60):
        first, count = random.randint(0, end), random.randint(1, 5)
        match random.randrange(10):
            case 0 | 1:
                ready.update(range(end, end + count))
                end += count
            case 2 | 3:
                taken = cursor.take(count, end)
                if taken is not None and random.random() < 0.3:
                    cursor.untake(*taken)
            case 4:
                cursor.settle(first, min(count, end - first))
            case 5:
                cursor.requeue(first, min(count, cursor.next - first))
            case 6:
                if first + count <= cursor.next:
                    cursor.put_back(first, count)
            case 7:
                cursor.drop(count, end)
            case 8:
                cursor.skip_waiting(first)
                cursor.delivered_to(min(cursor.next + 1, end))
            case 9 if random.random() < 0.2:
                cursor.settle_ready(end)
                ready.clear()
            case 9:
                cursor.skip_to(first)
        assert ready == {
            offset for offset in range(end) if offset >= cursor.next or cursor.is_requeued(offset)
        }
