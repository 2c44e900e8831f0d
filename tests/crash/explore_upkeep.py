"""States of one seed with the program's upkeep and SQLite: see `explore_engine.py`, `upkeep.py`.

A state is built at changes of the disk and at stages of a saving of `state.db`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Final

import structlog

from broker.state_db import StateDb
from core_log.errors import StoreError
from tests.crash.engine import EngineActor
from tests.crash.engine_workload import DOWN_SECONDS, EngineWorkload, check_engine
from tests.crash.explore_engine import (
    AGAIN_CHANCE,
    START_CHANGES,
    STEPS_COUNT,
    EngineExplorer,
    copied,
    left_by,
)
from tests.crash.losses import POWER_CUTS
from tests.crash.schedule import Schedule
from tests.crash.sqlite_files import NAME, write_image
from tests.crash.tally import Tally
from tests.crash.upkeep import KeptWorkload, image_of

IN_MEMORY: Final = Path("/dev/shm")
SWITCHING: Final = (0.1, 0.3, 0.6)
STATE_CHANCE: Final = 0.2
"""At how many changes of the disk, and stages of a saving, a state is built."""


class UpkeepExplorer(EngineExplorer):
    """Goes through the states of one seed of an engine with upkeep.

    Args:
        first: the number of the first state.
    """

    def __init__(self, seed: int, *, only: int | None = None, first: int = 0) -> None:
        self._room = tempfile.TemporaryDirectory(
            prefix="polymq-crash-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None
        )
        super().__init__(seed, only=only)
        self._first = self._number = first

    def _make_workload(self, random: Random) -> EngineWorkload:
        random = Random(f"upkeep {self.seed}")
        self._files = Path(self._room.name) / "files"
        self._found = Path(self._room.name) / "found"
        self._files.mkdir()
        self._found.mkdir()
        schedule = Schedule(Random(random.random()), random.choice(SWITCHING))
        self._kept = KeptWorkload(random, self._disk, schedule, self._files)
        return self._kept

    def run(self) -> Tally:
        """All states."""
        self._disk.on_change = self._kept.state_db.on_change = self._each_change
        told = ["the workload itself"]
        with self._room, structlog.testing.capture_logs(), self._repeatable(self._first, told):
            self._workload.run(2 * STEPS_COUNT)
        return self.tally

    def _each_change(self) -> None:
        random = Random(f"upkeep {self.seed} {self._number}")
        number = self._number
        self._number += 1
        wanted = random.random() < self._workload.share * STATE_CHANCE
        if not wanted or self._only not in (None, number):
            return
        kind = random.choice(["kill", *POWER_CUTS])
        told = [f"upkeep: {kind}"]
        with self._repeatable(number, told):
            self._check(kind, random, told)
        self.tally.states[told[0]] += 1
        self.tally.contained.update(self._workload.features())

    def _check(self, kind: str, random: Random, told: list[str]) -> None:
        self._workload.note_promises()
        world = copied(self._workload.world)
        world.now = self._workload.now + random.choice(DOWN_SECONDS)
        disk = left_by(self._workload.disk, kind, random)
        write_image(self._found, image_of(self._kept, kind, random))
        while random.random() < AGAIN_CHANCE:
            self.tally.deeper += 1
            self.tally.recoveries += 1
            disk.off_at = random.randint(1, START_CHANGES)
            try:
                EngineActor(disk, StateDb(self._found / NAME), copied(world))
            except StoreError:
                pass  # that is how it ends
            if kind != "kill":
                world.written = world.flushed
            kind = random.choice(["kill", *POWER_CUTS])
            told.append(f"again at change {disk.off_at} of the start: {kind}")
            disk = left_by(disk, kind, random)
        if kind != "kill":
            world.written = world.flushed
        self.tally.recoveries += 2
        self.tally.note(disk)
        check_engine(disk, StateDb(self._found / NAME), world)
