"""States of one seed with the program's upkeep and SQLite: see `explore_engine.py`, `upkeep.py`.

`state.db` is on the simulated disk as all other files are (`sqlite_disk.py`). In some workloads
SQLite's calls fail now and then: nothing but the saving of that state may know of it. In others any
call of the disk does, while clients are served. What passes stops nothing for good, what was
answered is there after a start, and what was refused is not expected by those who were told.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from polymq.broker.state.database import StateDb
from tests.crash.disk import Disk
from tests.crash.engine_workload import EngineWorkload
from tests.crash.explore_engine import STEPS_COUNT, EngineExplorer
from tests.crash.faults import EVERY, FULL, SHORTAGES, Sprinkled
from tests.crash.schedule import Schedule
from tests.crash.sqlite_disk import PATH, DiskStateDb
from tests.crash.tally import Tally
from tests.crash.upkeep import SurvivingWorkload

SWITCHING: Final = (0.1, 0.3, 0.6)
ERRORS: Final = (
    (PATH, EVERY, (0.0, 0.0, 0.01, 0.04)),
    (PATH, EVERY, (0.0, 0.0, 0.01, 0.04)),
    ("", SHORTAGES, (0.003, 0.01)),
    ("", SHORTAGES | FULL, (0.003, 0.01)),
    ("", EVERY, (0.001, 0.004)),
)
"""Whose calls fail (SQLite's, or all), with which errors, and how many of them."""
SAVED_CHANCE: Final = 0.7
"""How often a state is built when `state.db` has just been saved, and nothing else was yet."""


class UpkeepExplorer(EngineExplorer):
    """Goes through the states of one seed of an engine with upkeep.

    Args:
        first: the number of the first state.
    """

    name = "upkeep"
    state_chance = 0.07

    def __init__(self, seed: int, *, only: int | None = None, first: int = 0) -> None:
        super().__init__(seed, only=only)
        self._first = self._number = first

    def _make_workload(self, random: Random) -> EngineWorkload:
        random = Random(f"upkeep {self.seed}")
        schedule = Schedule(Random(random.random()), random.choice(SWITCHING))
        workload = SurvivingWorkload(random, self._disk, schedule)
        errors = Random(random.random())
        below, kinds, chances = errors.choice(ERRORS)
        chance = errors.choice(chances)
        self._disk.fault = Sprinkled("errors", errors=kinds, chance=chance, random=errors)
        self._disk.fault.below = below
        workload.on_saved = lambda: self._perhaps_a_state(SAVED_CHANCE)
        workload.on_failed = lambda: self._perhaps_a_state(1.0)
        return workload

    def run(self) -> Tally:
        """All states."""
        self._disk.on_change = self._each_change
        reported = ["the workload itself"]
        with structlog.testing.capture_logs(), self._repeatable(self._first, reported):
            self._workload.run(2 * STEPS_COUNT)
        return self.tally

    def _databases(self, random: Random) -> Callable[[Disk], StateDb]:
        return DiskStateDb
