"""States of one seed at the engine's level: see `explore.py`, which this goes on from."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Final

from polymq.broker.state.database import StateDb
from polymq.core_log.epochs import EPOCHS_NAME
from polymq.core_log.errors import StoreError
from tests.crash.disk import Disk
from tests.crash.engine import EngineActor, MemoryStateDb, World
from tests.crash.engine_workload import DOWN_SECONDS, EngineWorkload, check_engine
from tests.crash.faults import SPRINKLED, START_CHANCES, Sprinkled
from tests.crash.losses import NOTHING, POWER_CUTS
from tests.crash.tally import Tally, repeatable
from tests.harness.stores import DIRECTORY

FIRST_NUMBER: Final = 100_000
"""The number of the first of these states: those of the store come before. The states of the
second workload begin at twice that, and so on."""
WORKLOADS_COUNT: Final = 3
"""So many workloads of a seed, each with clients of its own."""
STEPS_COUNT: Final = 60
STATE_CHANCE: Final = 0.4
"""At how many changes a state is built."""
AGAIN_CHANCE: Final = 0.3
NO_EPOCHS_CHANCE: Final = 0.1
"""How often the file is gone that only repeats what the log says."""
ERRORS_CHANCE: Final = 0.2
"""How often a start meets errors of the disk; and again."""
START_CHANGES: Final = 40
"""A recovery and the start of an engine have about so many changes."""


class EngineExplorer:
    """Goes through the states of one seed.

    Attributes:
        name: of its states, for the report.
        state_chance: at how many changes a state is built.

    Args:
        workload: which of the seed's workloads, from 0 on.
        subject: what they have to be about; empty for whatever is drawn.
        only: the number of the one state to check; None for all.
    """

    name = "engine"
    state_chance = STATE_CHANCE

    def __init__(
        self, seed: int, workload: int = 0, *, subject: str = "", only: int | None = None
    ) -> None:
        self.seed = seed
        self.tally = Tally()
        self._only = only
        self._subject = subject
        self._first = self._number = FIRST_NUMBER * (workload + 1)
        self._disk = Disk()
        random = Random(f"engine {seed} {workload}")
        self._workload = self._make_workload(random)

    def _make_workload(self, random: Random) -> EngineWorkload:
        return EngineWorkload(random, self._disk, self._subject)

    def run(self) -> Tally:
        """All states."""
        self._disk.on_change = self._each_change
        reported = ["the workload itself"]
        with self._repeatable(self._first, reported):
            self._workload.run(STEPS_COUNT)
        return self.tally

    def _repeatable(self, number: int, reported: list[str]) -> AbstractContextManager[None]:
        alone = self._only is not None
        return repeatable(
            self.tally, self.seed, number, reported, alone=alone, subject=self._subject
        )

    def _each_change(self) -> None:
        """A state at some changes, of a kind that its number draws."""
        self._perhaps_a_state(self.state_chance)

    def _perhaps_a_state(self, chance: float) -> None:
        random = Random(f"{self.name} {self.seed} {self._number}")
        number = self._number
        self._number += 1
        wanted = random.random() < self._workload.share * chance
        if not wanted or self._only not in (None, number):
            return
        fault = self._workload.disk.fault
        if fault is not None and fault.is_silent:
            return  # nobody could take note of a failed sync
        kind = random.choice(["kill", *POWER_CUTS])
        reported = [f"{self.name}: {kind}"]
        with self._repeatable(number, reported):
            self._check(kind, random, reported)
        self.tally.states[reported[0]] += 1
        self.tally.contained.update(self._workload.features())

    def _check(self, kind: str, random: Random, reported: list[str]) -> None:
        self._workload.note_promises()
        world = copied(self._workload.world)
        fault = self._workload.disk.fault
        if fault is not None and fault.is_final:
            world.written = world.flushed
        world.now = self._workload.now + random.choice(DOWN_SECONDS)
        disk = left_by(self._workload.disk, kind, random)
        database_on = self._databases(random)
        while random.random() < AGAIN_CHANCE:
            self.tally.deeper += 1
            self.tally.recoveries += 1
            disk.off_at = random.randint(1, START_CHANGES)
            try:
                EngineActor(disk, database_on(disk), copied(world))
            except StoreError:
                pass  # that is how it ends
            if kind != "kill":
                world.written = world.flushed
            kind = random.choice(["kill", *POWER_CUTS])
            reported.append(f"again at change {disk.off_at} of the start: {kind}")
            disk = left_by(disk, kind, random)
        if kind != "kill":
            world.written = world.flushed
        errors = Random(f"errors {self.seed} {self._number}")
        while errors.random() < ERRORS_CHANCE:
            disk = self._start_with_errors(disk, database_on(disk), world, errors, reported)
        if random.random() < NO_EPOCHS_CHANCE:
            disk.unlink(f"{DIRECTORY}/{EPOCHS_NAME}")
            reported.append("without the list of epochs")
        self.tally.recoveries += 2
        self.tally.note(disk)
        check_engine(disk, database_on(disk), world)

    def _databases(self, random: Random) -> Callable[[Disk], StateDb]:
        """What makes the `state.db` of a start: one that may be old or missing."""
        database = self._workload.database
        assert isinstance(database, MemoryStateDb)
        versions = database.versions
        versions = versions[: random.randint(0, len(versions))]
        return lambda disk: MemoryStateDb(versions)

    def _start_with_errors(
        self, disk: Disk, database: StateDb, world: World, random: Random, reported: list[str]
    ) -> Disk:
        """An engine starts on a disk with errors, or does not. Returns what the next one finds."""
        self.tally.recoveries += 1
        name, errors = random.choice(SPRINKLED)
        chance = random.choice(START_CHANCES)
        fault = disk.fault = Sprinkled(name, errors=errors, chance=chance, random=random)
        try:
            EngineActor(disk, database, copied(world))
        except StoreError as error:
            reported.append(f"refused: {error}, {fault.last}")
        else:
            reported.append(f"started with {fault.failed} of {name}, {fault.last}")
        disk.fault = None
        if fault.is_final:
            world.written = world.flushed  # what a failed sync should have written is gone
        return disk.crash(NOTHING) if fault.is_silent else disk.kill()


def copied(world: World) -> World:
    """A copy that shares nothing with it, a few times sooner than `deepcopy` makes it."""
    copy: World = pickle.loads(pickle.dumps(world, pickle.HIGHEST_PROTOCOL))
    return copy


def left_by(disk: Disk, kind: str, random: Random) -> Disk:
    """The disk that is found after a power cut of this kind, or after a kill."""
    return disk.kill() if kind == "kill" else disk.crash(POWER_CUTS[kind](disk, random))
