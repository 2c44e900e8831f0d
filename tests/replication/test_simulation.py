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


def test_two_of_three_die_and_the_one_behind_is_promoted() -> None:
    """Sixty messages are on the disks of the master and of one slave, and acknowledged. Both are
    lost a moment later, and the third broker, which was away, is promoted. Neither gives up what
    it has; the old master still does so with what nobody was promised."""
    simulation = Simulation(1)
    promised = left = 0
    for count in (10, 60):
        for _ in range(count):
            simulation.publish()
            simulation.master_syncs()
            promised = synced(simulation)
        if count == 10:
            simulation.leave_spare()
            left = promised
    simulation.promote_spare()
    assert simulation.counts["master keeps what it has"] == 1
    assert simulation.counts["slave keeps what it has"] == 1
    master = simulation.master
    simulation.publish()
    master.sync()
    master.die("kill")
    master.start("slave")
    assert not master.diverged(promised).promised
    assert master.diverged(promised).messages > 0
    assert master.diverged(left).promised_from == left


def synced(simulation: Simulation) -> int:
    """Let the slave have all that the master has, on its disk; the end of that."""
    store = simulation.master.store
    assert store is not None
    for _ in range(10_000):
        simulation.connect()
        simulation.ship()
        simulation.deliver()
        simulation.slave_syncs()
        if simulation.master.in_sync == store.log.flushed:
            return simulation.master.in_sync
    raise AssertionError("the slave has not got it")


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
        "third is promoted",
        "master keeps what it has",
        "slave keeps what it has",
    ):
        assert counts.get(what), what
    for role in ("master", "slave"):
        for power in ("kill", "nothing", "parts"):
            assert counts.get(f"{role} dies: {power}"), (role, power)
