"""States of one seed whose threads take turns: see `explore.py` and `threads.py`.

The workload is carried out a few times, each time with other turns; the last time on a disk that is
short of something now and then.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from tests.crash.disk import Disk
from tests.crash.explore import Explorer
from tests.crash.faults import SPRINKLED, Sprinkled
from tests.crash.losses import POWER_CUTS
from tests.crash.schedule import Schedule
from tests.crash.tally import Tally
from tests.crash.threads import ThreadedWorkload

RUNS: Final = (None, None, None, "shortages", "any errors")
"""What is wrong with the disk, each time that the workload is carried out."""
SWITCHING: Final = (0.1, 0.3, 0.6)
"""How likely it is that a thread hands on at a call of the disk."""
STATE_CHANCE: Final = 0.05
NEW_STATE_CHANCE: Final = 0.5
"""At how many changes a state is built; and where more was promised since the last change."""
KINDS: Final = {"kill": 2, **dict.fromkeys(POWER_CUTS, 1), "nothing": 4, "names": 3}
"""What becomes of it, and how often that is drawn: races show where little is kept."""
ZEROED_CHANCE: Final = 0.5
"""How often the next segment is written with zeros; else it is only given room."""
ERRORS_CHANCE: Final = 0.01


class ThreadsExplorer(Explorer):
    """Goes through the states of one seed whose threads take turns."""

    _name = "threads"
    _runs: tuple[str | None, ...] = RUNS

    def run(self) -> Tally:
        """All states."""
        for run, errors in enumerate(self._runs):
            self._run_threads(Random(f"threads {self.seed} {run}"), errors)
        return self.tally

    def _make_workload(self, random: Random, disk: Disk, schedule: Schedule) -> ThreadedWorkload:
        return ThreadedWorkload(Random(random.random()), self._settings, disk, schedule)

    def _run_threads(self, random: Random, errors: str | None) -> None:
        disk = Disk()
        fault = None
        if errors is not None:
            fault = Sprinkled(
                errors, errors=dict(SPRINKLED)[errors], chance=ERRORS_CHANCE, random=random
            )
        disk.fault = fault
        self._settings = replace(
            self._settings,
            open_segments_max=random.choice((1, 2, 64)),
            segments_zeroed=random.random() < ZEROED_CHANCE,
        )
        schedule = Schedule(Random(random.random()), random.choice(SWITCHING))
        workload = self._workload = self._make_workload(random, disk, schedule)
        chance = Random(random.random())

        promised = -1

        def on_change() -> None:
            nonlocal promised
            is_new = workload.attempted.promised != promised
            promised = workload.attempted.promised
            if chance.random() >= (NEW_STATE_CHANCE if is_new else STATE_CHANCE):
                return
            if fault is None or not fault.is_silent:
                kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
                self._state(f"{self._name}: {kind}", kind)

        disk.on_change = on_change
        self._carry_out(workload, fault)
        workload.disk.yields = None
        if fault is None or not fault.is_silent:
            for kind in ("kill", *POWER_CUTS):
                self._state(f"{self._name}: {kind}", kind)
