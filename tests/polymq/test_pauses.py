"""The garbage collector's policy, and the histograms of what stops the loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from polymq.metrics.registry import distribution
from polymq.pauses import (
    DEPARTED_MAX,
    SETTLE_OBJECTS_MAX,
    SETTLE_ROUNDS,
    SETTLED_MAX,
    YOUNG_OBJECTS,
    Departed,
    Pauses,
    collect_role,
    loading,
)
from tests.polymq.metrics.registries import make_registry


class Thing:
    """Something that may be in a cycle."""

    other: Thing


class Bench:
    """A policy whose loop is a list of callbacks."""

    def __init__(self) -> None:
        self.departed = Departed()
        self.asked: list[Callable[[], object]] = []
        self.pauses = Pauses(self.departed, self.asked.append)

    def turn(self) -> None:
        """One iteration of the loop."""
        asked, self.asked[:] = list(self.asked), []
        for callback in asked:
            callback()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    thresholds = gc.get_threshold()
    with loading():
        pass
    bench.pauses.start()
    yield bench
    bench.pauses.stop()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


def collections() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]


def test_what_survives_is_set_aside_and_not_looked_at_again(bench: Bench) -> None:
    """However much there is, the oldest generation stays small, and no collection of it begins by
    itself."""
    stored = []
    before = collections()[2]
    settled = 0
    most = 0
    for _ in range(20):
        stored += [[index] for index in range(YOUNG_OBJECTS * SETTLE_ROUNDS)]
        settled += len(bench.asked)
        bench.turn()
        most = max(most, len(gc.get_objects(generation=2)))
    assert collections()[2] - before == settled >= 2
    assert gc.get_freeze_count() > len(stored) // 2
    # The round that was not over when the loop had its turn comes on top.
    assert most <= SETTLE_OBJECTS_MAX + YOUNG_OBJECTS * SETTLE_ROUNDS


def test_what_is_in_use_for_the_moment_is_not_set_aside(bench: Bench) -> None:
    """A request, say, that is there in each of many collections by chance. Were it set aside, it
    would stay in memory if it ended in a cycle."""
    bench.pauses.settle()
    for _ in range(5):
        requests = [Thing() for _ in range(SETTLED_MAX // 10)]
        for one in requests:
            one.other = one
            bench.departed.note(one)
        bench.pauses.settle()
        # What is set aside is in no generation any more.
        assert sum(isinstance(one, Thing) for one in gc.get_objects()) == len(requests)
        del requests, one
    bench.pauses.settle()
    assert len(bench.departed) == 0


def test_nothing_is_collected_while_a_store_is_loaded() -> None:
    """What is loaded is not looked at, then or later."""
    before = collections()
    with loading():
        stored = [[index] for index in range(100_000)]
        assert collections() == before
    try:
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(stored)
    finally:
        gc.unfreeze()


def test_what_a_former_role_had_loaded_is_freed() -> None:
    departed = Departed()
    with loading():
        thing = Thing()
        thing.other = thing
        departed.note(thing)
        del thing
    gc.collect()
    assert len(departed) == 1, "it was set aside"
    collect_role()
    assert (len(departed), gc.get_freeze_count()) == (0, 0)


def test_garbage_in_cycles_is_freed_before_it_is_set_aside(bench: Bench) -> None:
    one = Thing()
    one.other = one
    bench.departed.note(one)
    del one
    assert len(bench.departed) == 1
    bench.pauses.settle()
    assert len(bench.departed) == 0
    assert bench.pauses.full_count == 0


@pytest.mark.slow
def test_cycles_that_were_set_aside_have_a_limit(bench: Bench) -> None:
    """Some may stay; too many are worth a full collection."""
    things = [Thing() for _ in range(DEPARTED_MAX + 1)]
    for thing in things:
        thing.other = thing
    more = [[index] for index in range(SETTLED_MAX)]
    bench.pauses.settle()
    for thing in things[1:]:
        bench.departed.note(thing)
    first = things[0]
    del things, thing
    bench.pauses.settle()
    assert (len(bench.departed), bench.pauses.full_count) == (DEPARTED_MAX, 0)
    bench.departed.note(first)
    bench.pauses.settle()
    assert (len(bench.departed), bench.pauses.full_count) == (1, 1)
    del first, more


def test_what_a_full_collection_left_is_not_worth_another(bench: Bench) -> None:
    """Only when twice as many have ended; what goes meanwhile no longer counts."""
    things = [Thing() for _ in range(4 * DEPARTED_MAX)]
    found = []
    for count in (DEPARTED_MAX, DEPARTED_MAX + 1, 2 * DEPARTED_MAX + 2, 2 * DEPARTED_MAX + 3):
        for thing in things[:count]:
            bench.departed.note(thing)
        bench.pauses.settle()
        found.append(bench.pauses.full_count)
    assert found == [0, 1, 1, 2]
    del things[:], thing
    bench.pauses.settle()
    more = [Thing() for _ in range(DEPARTED_MAX + 1)]
    for thing in more:
        bench.departed.note(thing)
    bench.pauses.settle()
    assert bench.pauses.full_count == 3


def test_pauses_and_gaps_are_metrics(bench: Bench) -> None:
    """A collection and a loop that was late."""
    bench.pauses.settle()
    bench.pauses.gaps.observe(0.2)
    registry = make_registry(bench.pauses.probes())
    assert registry.get_sample_value("polymq_gc_pause_seconds_count")
    assert registry.get_sample_value("polymq_loop_gap_seconds_bucket", {"le": "0.15"}) == 0
    assert registry.get_sample_value("polymq_loop_gap_seconds_bucket", {"le": "0.25"}) == 1
    assert registry.get_sample_value("polymq_loop_gap_seconds_sum") == pytest.approx(0.2)


def test_a_gap_is_how_late_the_loop_is() -> None:
    """On a loop whose clock the test moves."""

    class Loop(asyncio.SelectorEventLoop):
        now = 0.0

        def time(self) -> float:
            return self.now

    loop = Loop()
    pauses = Pauses(Departed(), loop.call_soon)
    pauses.measure(loop)
    for late in (0.0, 0.3):
        loop.now += 0.02 + late
        loop.call_soon(loop.stop)
        loop.run_forever()
    pauses.stop()
    loop.close()
    counts = dict(distribution(pauses.gaps).counts)
    assert (counts["0.005"], counts["0.25"], counts["0.5"]) == (1, 1, 2)
