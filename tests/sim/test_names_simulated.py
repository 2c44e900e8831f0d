"""Clusters of name servers, brokers and clients under faults, 500 of them, in virtual time.

`python -m tests.sim --seeds 20000` looks further. A seed that found something becomes a test here,
under the name of what it found.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="the simulation needs trio")

from polymq.remoting.steps import Address
from tests.sim.names import FAULTS, Report, Violation, run_seed
from tests.sim.network import PORT, Network

SEEDS_COUNT = 500
PARTS_COUNT = 4  # so that several processes share the work


def run(seed: int) -> Report:
    """One seed; what it violates without the nurseries that it came through."""
    try:
        return run_seed(seed)
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if isinstance(found, Violation):
            raise found from None
        raise


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS_COUNT))
def test_no_seed_violates_an_invariant(part: int) -> None:
    """And every kind of fault comes often enough to mean something."""
    faults: Counter[str] = Counter()
    answered_count = 0
    for seed in range(part, SEEDS_COUNT, PARTS_COUNT):
        report = run(seed)
        faults += report.faults
        answered_count += report.answered_count
    assert set(faults) == set(FAULTS)
    assert min(faults.values()) >= 50, faults
    assert answered_count > 500


@pytest.mark.parametrize("seed", [3, 17])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert first == second
    assert first.trace != run(seed + 1).trace


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(145, id="a name server that had just started knew no topic yet"),
        pytest.param(173, id="another one knew the topic"),
    ],
)
def test_what_seeds_found(seed: int) -> None:
    """Clients gave up a topic because the first name server that they asked did not know it."""
    run(seed)


# --- the network itself -----------------------------------------------------------------------


def test_the_network_does_what_it_says() -> None:
    """Bytes wait for a cut link, come in pieces over a slow one, and a dead host is silent."""

    async def scenario() -> None:
        network = Network()
        taken: list[trio.abc.Stream] = []
        host, link = network.host("b"), network.link("a", "b")
        host.is_up, host.serve = True, taken.append
        connect = network.connect_from("a")
        stream = await connect(Address("b", PORT))
        link.slow(1.0, 2)
        await stream.send_all(b"abc")
        assert await taken[0].receive_some() == b"ab"
        assert trio.current_time() >= 1.0
        assert await taken[0].receive_some() == b"c"
        link.cut()
        await stream.send_all(b"later")
        with trio.move_on_after(50) as waited:
            await taken[0].receive_some()
        assert waited.cancelled_caught
        link.heal()
        assert await taken[0].receive_some() == b"later"
        await taken[0].aclose()
        assert await stream.receive_some() == b""
        host.serve = None
        with pytest.raises(OSError, match="refused"):
            await connect(Address("b", PORT))
        host.is_up = False
        with pytest.raises(OSError, match="timed out"):
            await connect(Address("b", PORT))

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
