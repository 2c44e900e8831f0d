"""All states of one seed, by who explores them.

The states of each explorer have numbers from a multiple of `FIRST_NUMBER` on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.crash.engine_workload import ALL_PARTS
from tests.crash.explore import Explorer
from tests.crash.explore_engine import FIRST_NUMBER, WORKLOADS_COUNT, EngineExplorer
from tests.crash.explore_faults import FaultsExplorer
from tests.crash.explore_large import LargeExplorer, LargeThreadsExplorer
from tests.crash.explore_threads import ThreadsExplorer
from tests.crash.explore_upkeep import UpkeepExplorer
from tests.crash.sqlite_disk import is_reachable
from tests.crash.tally import Tally

OTHERS: Final[dict[str, tuple[int, type[Explorer] | type[UpkeepExplorer]]]] = {
    "log": (0, Explorer),
    "errors": (WORKLOADS_COUNT + 1, FaultsExplorer),
    "threads": (WORKLOADS_COUNT + 2, ThreadsExplorer),
    "upkeep": (WORKLOADS_COUNT + 3, UpkeepExplorer),
    "large": (WORKLOADS_COUNT + 4, LargeExplorer),
    "large by turns": (WORKLOADS_COUNT + 5, LargeThreadsExplorer),
}
"""Who explores something else than the workloads of an engine alone: by its subject, and where its
states begin."""
SUBJECTS: Final = [*OTHERS, *(name for part in ALL_PARTS for name in part.subjects())]
"""What `make crash` can be limited to."""


def explore(seed: int, only: int | None = None, subject: str = "") -> Tally:
    """All states of one seed, or one of them.

    Args:
        subject: only those that have to do with it.
    """
    tally = Tally()
    for explorer in explorers(seed, only, subject):
        tally.add(explorer.run())
    return tally


def explorers(seed: int, only: int | None, subject: str) -> Iterator[Explorer | EngineExplorer]:
    """Who has states of this seed and subject, and the one with this number."""
    number = None if only is None else only // FIRST_NUMBER
    for name, (begin, explorer) in OTHERS.items():
        if explorer is UpkeepExplorer and not is_reachable():
            continue
        if number in (None, begin) and subject in ("", name):
            yield explorer(seed, only=only, first=begin * FIRST_NUMBER)
    for workload in range(WORKLOADS_COUNT):
        if number in (None, workload + 1) and subject not in OTHERS:
            yield EngineExplorer(seed, workload, subject=subject, only=only)
