"""Hundreds of lives of a master and its slave, and that each of them can be lived again."""

from __future__ import annotations

import pytest

from tests.replication.simulation import Simulation

SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, 200, SEEDS_PER_TEST))
def test_nothing_that_was_in_sync_is_lost(first: int) -> None:
    """See `simulation.py`. A seed that fails is in the message: `Simulation(SEED).run()`."""
    for seed in range(first, first + SEEDS_PER_TEST):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {simulation.counts}") from error


def test_the_same_seed_is_the_same_life() -> None:
    """Or a failure could not be looked into."""
    traces = []
    for _ in range(2):
        simulation = Simulation(7)
        simulation.run()
        traces.append(simulation.trace.hexdigest())
    assert traces[0] == traces[1]


def test_everything_happens() -> None:
    """The kinds of events that the seeds are for do come."""
    counts: dict[str, int] = {}
    for seed in range(40):
        simulation = Simulation(seed)
        simulation.run()
        for what, count in simulation.counts.items():
            counts[what] = counts.get(what, 0) + count
    for what in (
        "fail over",
        "slave Cut",
        "drop",
        "part",
        "settled",
        "slave Range",
        "master deletes",
        "slave deletes",
    ):
        assert counts.get(what), what
    for role in ("master", "slave"):
        for power in ("kill", "nothing", "parts"):
            assert counts.get(f"{role} dies: {power}"), (role, power)
