"""Turns of connections: who waits goes on in order, and never longer than its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from polymq.net.turns import PASSED_COUNT, TURN_SECONDS, TURN_SECONDS_MIN, Turns


class Loop:
    """A loop and a clock in the test's hands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(self.soon.append, clock=lambda: self.now)

    def iterate(self) -> None:
        soon = self.soon[:]
        self.soon.clear()
        for callback in soon:
            callback()

    def pass_by(self) -> None:
        """The iterations between two that serve."""
        for _ in range(PASSED_COUNT):
            self.iterate()


def test_a_turn_has_an_end() -> None:
    loop = Loop()
    loop.turns.begin()
    assert not loop.turns.is_over()
    loop.now += TURN_SECONDS
    assert loop.turns.is_over()


def test_turns_are_shorter_where_many_wait() -> None:
    """But long enough to be worth the change."""
    loop = Loop()
    for count in range(100):
        loop.turns.begin()
        share = max(TURN_SECONDS / (1 + count), TURN_SECONDS_MIN)
        loop.now += share * 0.99
        assert not loop.turns.is_over()
        loop.now += share * 0.02
        assert loop.turns.is_over()
        loop.turns.wait(lambda: None)


def test_work_takes_at_least_one_step_and_no_more_than_its_turn() -> None:
    loop = Loop()
    done: list[int] = []

    def steps() -> Iterator[None]:
        for number in range(4):
            done.append(number)
            loop.now += TURN_SECONDS * 0.6
            yield

    work = iter(steps())
    loop.turns.begin()
    assert not loop.turns.go_on(work)
    assert done == [0, 1]
    assert not loop.turns.go_on(work), "the turn is over, and one step is taken"
    assert done == [0, 1, 2]
    loop.turns.begin()
    assert loop.turns.go_on(work)
    assert done == [0, 1, 2, 3]


def test_those_who_wait_share_one_turn_of_an_iteration_and_keep_their_order() -> None:
    """Each takes half a turn: two of them are served in an iteration."""
    loop = Loop()
    served: list[str] = []

    def waiting(name: str) -> Callable[[], None]:
        def turn() -> None:
            served.append(name)
            loop.now += TURN_SECONDS / 2
            loop.turns.wait(turn)

        return turn

    for name in "abc":
        loop.turns.wait(waiting(name))
    for _ in range(3):
        loop.iterate()
        served.append("|")
        assert len(loop.soon) == 1
        loop.pass_by()
    assert "".join(served) == "ab|ca|bc|"


def test_an_error_in_one_turn_does_not_take_the_others_away() -> None:
    loop = Loop()
    served: list[str] = []

    def fails() -> None:
        raise RuntimeError("a bug")

    loop.turns.wait(fails)
    loop.turns.wait(lambda: served.append("next"))
    try:
        loop.iterate()
    except RuntimeError:
        served.append("failed")
    loop.pass_by()
    loop.iterate()
    assert served == ["failed", "next"]


def test_a_request_of_several_iterations_waits_for_one_turn_of_others() -> None:
    """An HTTP request is read, handled, stored and answered in iterations of their own. With a turn
    in each of them it would take many times as long as a request that is answered in one."""
    loop = Loop()

    def turn() -> None:
        loop.now += TURN_SECONDS
        loop.turns.wait(turn)

    loop.turns.wait(turn)
    loop.iterate()
    began = loop.now
    for _ in range(PASSED_COUNT):
        loop.iterate()
    assert loop.now == began
    loop.iterate()
    assert loop.now == began + TURN_SECONDS


def test_who_comes_when_nobody_waits_is_served_in_the_next_iteration() -> None:
    loop = Loop()
    served: list[int] = []
    for number in range(3):
        loop.turns.wait(partial(served.append, number))
        loop.iterate()
    assert served == [0, 1, 2]
