"""States of one seed whose messages are large: see `explore.py`.

A large message becomes its record in the memory that it came in (`core_log/large_record.py`), is
written in slices, one in each iteration of the loop, and is read back by more than one read of the
disk. What counts as large is a few hundred bytes here. Between two slices others publish, the
flusher syncs what stands before, power is cut, and writes fail.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from polymq.core_log.settings import StoreSettings
from tests.crash import threads
from tests.crash.actor import SLICED, Workload
from tests.crash.disk import Disk
from tests.crash.explore_faults import FaultsExplorer
from tests.crash.explore_threads import ThreadsExplorer
from tests.crash.faults import EVERY, FULL, SHORTAGES, Sprinkled
from tests.crash.schedule import Schedule
from tests.crash.tally import Tally
from tests.crash.threads import ThreadedWorkload

SPRINKLED: Final = (
    ("large, no errors", frozenset[int]()),
    ("large, shortages and a full disk", SHORTAGES | FULL),
    ("large, any errors", EVERY),
)
"""What is wrong with the disk, each time that the workload is carried out."""
ERRORS_CHANCE: Final = 0.01
SLICES: Final = (200, 700, 700, 1 << 20)
"""Bytes that one write hands over."""
READS: Final = (300, 1 << 20)
"""Bytes of one read of the disk."""
MESSAGE_BYTES_MAX: Final = 3000
STATE_CHANCE: Final = 0.05
IN_SLICES_CHANCE: Final = 0.3
"""At how many changes a state is built; and while a message is written in slices."""


def with_slices(settings: StoreSettings, random: Random) -> StoreSettings:
    """The same store with other ideas of what is large."""
    return replace(
        settings,
        segment_bytes=2 * settings.segment_bytes,
        message_bytes_max=MESSAGE_BYTES_MAX,
        write_slice_bytes=random.choice(SLICES),
        read_bytes_max=random.choice(READS),
    )


class LargeExplorer(FaultsExplorer):
    """Goes through the states of one seed whose messages are large."""

    def run(self) -> Tally:
        """All states."""
        random = Random(f"large {self.seed}")
        self._settings = with_slices(self._settings, random)
        for name, errors in SPRINKLED:
            self._run_with(
                Sprinkled(name, errors=errors, chance=ERRORS_CHANCE, random=Random(random.random()))
            )
        return self.tally

    def _make_workload(self, disk: Disk) -> Workload:
        return Workload(Random(self.seed), self._settings, disk, SLICED)

    def _state_chance(self) -> float:
        actor = self._workload.actor
        log = None if actor is None else actor.store.log
        is_in_slices = log is not None and log.written < log._handed
        return IN_SLICES_CHANCE if is_in_slices else STATE_CHANCE


class LargeThreadsExplorer(ThreadsExplorer):
    """The same with threads that take turns."""

    _name = "large, threads"
    _runs = (None, "any errors")

    def run(self) -> Tally:
        """All states."""
        self._settings = with_slices(self._settings, Random(f"large {self.seed}"))
        return super().run()

    def _make_workload(self, random: Random, disk: Disk, schedule: Schedule) -> ThreadedWorkload:
        steps = Random(random.random())
        return ThreadedWorkload(steps, self._settings, disk, schedule, threads.SLICED)
