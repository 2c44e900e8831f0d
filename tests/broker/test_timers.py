"""Timers run at their time, in order, in bounded turns, and not when they were cancelled."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from polymq.broker.errors import Refused
from polymq.broker.limits import Limits
from polymq.broker.pacing.timers import Timers
from tests.broker.queue_bench import declare, look, publish, ready
from tests.harness.broker import START_MS, Broker, ManualLoop, batch_of


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def timers_on(loop: ManualLoop, **limits: float) -> Timers:
    return Timers(loop=loop, clock_ms=loop.clock_ms, limits=Limits(**limits))  # type: ignore[arg-type]


def test_timers_run_in_order_of_time_and_never_early(loop: ManualLoop) -> None:
    """Whatever the order in which they were asked for; equal times in that order."""
    timers = timers_on(loop)
    ran: list[tuple[str, int]] = []
    for name, due in (("late", 900), ("early", 100), ("second", 500), ("third", 500)):
        timers.at(START_MS + due, lambda name: ran.append((name, loop.clock_ms())), name)
    loop.run(0.499)
    assert [name for name, _ in ran] == ["early"]
    loop.run(0.501)
    assert [name for name, _ in ran] == ["early", "second", "third", "late"]
    assert [at - START_MS for _, at in ran] == [100, 500, 500, 900]
    assert len(timers) == 0


def test_a_time_that_has_passed_runs_in_a_later_iteration(loop: ManualLoop) -> None:
    """Never from within `at`: the caller is in the middle of something."""
    timers = timers_on(loop)
    ran: list[int] = []
    timers.at(START_MS - 5, ran.append, 1)
    assert ran == []
    loop.run()
    assert ran == [1]


def test_a_cancelled_timer_does_not_run_and_leaves_the_heap(loop: ManualLoop) -> None:
    """A queue that asks and cancels all day costs a bounded place."""
    timers = timers_on(loop)
    ran: list[int] = []
    stored = timers.at(START_MS + 10, ran.append, 1)
    for _ in range(1000):
        timers.at(START_MS + 5, ran.append, 2).cancel()
    assert len(timers) == 1
    assert len(timers._heap) < 200
    loop.run(1)
    assert ran == [1]
    stored.cancel()  # it has run: nothing
    assert len(timers) == 0


def test_one_iteration_runs_a_bounded_number(loop: ManualLoop) -> None:
    """Ten thousand queues that expire in the same moment do not stop the loop."""
    timers = timers_on(loop, timers_run_max=3)
    ran: list[int] = []
    for number in range(10):
        timers.at(START_MS, ran.append, number)
    turns: list[int] = []

    def other_work() -> None:
        turns.append(len(ran))
        if len(ran) < 10:
            loop.call_later(0, other_work)

    loop.call_later(0, other_work)
    loop.run()
    assert ran == list(range(10))
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 3


def test_a_timer_that_asks_for_now_again_and_again_lets_others_run(loop: ManualLoop) -> None:
    """What is asked for during a turn waits for the next one."""
    timers = timers_on(loop)
    turns: list[int] = []

    def again() -> None:
        turns.append(1)
        if len(turns) < 5:
            timers.at(loop.clock_ms(), again)

    timers.at(START_MS, again)
    timers._run_due()
    assert len(turns) == 1
    loop.run()
    assert len(turns) == 5


def test_a_clock_that_is_set_forward_is_noticed(loop: ManualLoop) -> None:
    """The loop sleeps by another clock, and not for longer than its bound."""
    jump = 0

    def clock_ms() -> int:
        return loop.clock_ms() + jump

    timers = Timers(loop=loop, clock_ms=clock_ms, limits=Limits())
    ran: list[int] = []
    timers.at(START_MS + 3_600_000, ran.append, 1)
    timers.at(START_MS + 7_200_000, ran.append, 2)
    loop.run(0.5)
    jump = 3_600_000
    loop.run(1)
    assert ran == [1]
    jump = -3_600_000
    loop.run(3_600)
    assert ran == [1]


def test_one_look_a_second_is_all_that_waiting_costs(loop: ManualLoop) -> None:
    """A thousand timers of the far future: the loop wakes up once a second for all of them."""
    timers = timers_on(loop)
    for number in range(1_000):
        timers.at(START_MS + 86_400_000 + number, print)
    wakes = 0
    wake = timers._wake

    def count(armed_ms: int) -> None:
        nonlocal wakes
        wakes += 1
        wake(armed_ms)

    timers._wake = count  # type: ignore[method-assign]
    loop.run(60)
    assert 55 <= wakes <= 61
    assert loop.timer_count == 1


def test_everything_with_a_time_follows_a_clock_that_is_set_forward(tmp_path: Path) -> None:
    """Delayed messages, messages that expire and queues that do: a second after the wall clock was
    set forward by an hour, and none before."""
    broker = Broker(tmp_path / "data")
    declare(broker, "late")
    declare(broker, "dead")
    declare(
        broker,
        "short",
        x_message_ttl=1_800_000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    declare(broker, "unused", x_expires=1_800_000)
    publish(broker, "short", b"expires")
    route = broker.port.exchanges.route("", "late")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.delays.publish_later(template, batch_of(b"delayed"), 0, 1, delay_ms=1_800_000)
    broker.step(5)
    assert (ready(broker, "late"), ready(broker, "dead"), ready(broker, "short")) == (0, 0, 1)
    broker.loop.jump_ms = 3_600_000
    broker.step(1.1)
    assert look(broker, "late") == [b"delayed"]
    assert look(broker, "dead") == [b"expires"]
    with pytest.raises(Refused):
        broker.port.queues.info("unused", owner=None)
    broker.loop.jump_ms = 0
    broker.stop()


def test_a_timer_that_fails_does_not_hold_up_the_others(loop: ManualLoop) -> None:
    """A bug is loud, and the rest goes on."""
    timers = timers_on(loop)
    ran: list[int] = []

    def fail() -> None:
        raise RuntimeError("bug")

    failing: Callable[..., None] = fail
    timers.at(START_MS, failing)
    timers.at(START_MS + 1, ran.append, 1)
    with pytest.raises(RuntimeError):
        loop.run(1)
    loop.run(1)
    assert ran == [1]


def test_whoever_was_called_is_free_although_it_keeps_its_timer(loop: ManualLoop) -> None:
    """Without the garbage collector: a queue that expired, say, knows the timer that ended it."""

    class Lease:
        """Something with a timer of its own."""

        def __init__(self, timers: Timers) -> None:
            self.timer = timers.at(START_MS + 10, self.due)

        def due(self) -> None:
            """Its time is over."""

    timers = timers_on(loop)
    gc.disable()
    try:
        lease = Lease(timers)
        gone = weakref.ref(lease)
        loop.run(0.011)
        assert not lease.timer.active
        del lease
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_runs_after_the_end(loop: ManualLoop) -> None:
    """The threads that a timer would ask have gone."""
    timers = timers_on(loop)
    ran: list[int] = []
    timers.at(START_MS + 10, ran.append, 1)
    timers.stop()
    timers.at(START_MS + 20, ran.append, 2)
    loop.run(60)
    assert ran == []
