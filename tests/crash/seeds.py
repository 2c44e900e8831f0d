"""All states of one seed, by whom they are explored."""

from __future__ import annotations

from collections.abc import Iterator

from tests.crash.explore import Explorer
from tests.crash.explore_engine import FIRST_NUMBER, WORKLOADS_COUNT, EngineExplorer
from tests.crash.explore_faults import FaultsExplorer
from tests.crash.tally import Tally


def explore(seed: int, only: int | None = None, subject: str = "") -> Tally:
    """All states of one seed, or one of them.

    Args:
        subject: only engines that have to do with it.
    """
    tally = Tally()
    for explorer in explorers(seed, only, subject):
        tally.add(explorer.run())
    return tally


def explorers(seed: int, only: int | None, subject: str) -> Iterator[Explorer | EngineExplorer]:
    """Whoever has states of this seed, and of this number. The states of each have numbers from a
    multiple of `FIRST_NUMBER` on."""
    room = None if only is None else only // FIRST_NUMBER
    if not subject and room in (None, 0):
        yield Explorer(seed, only=only)
    for workload in range(WORKLOADS_COUNT):
        if room in (None, workload + 1):
            yield EngineExplorer(seed, workload, subject=subject, only=only)
    faults = WORKLOADS_COUNT + 1
    if not subject and room in (None, faults):
        yield FaultsExplorer(seed, only=only, first=faults * FIRST_NUMBER)
