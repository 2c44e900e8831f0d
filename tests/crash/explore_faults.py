"""States of one seed on a disk any call of which may fail: see `explore.py`.

The workload is carried out a few times more, with errors sprinkled over all of its calls, those of
openings and of readers included, and every state is started with errors before it is checked.

* What passes (no descriptor, no memory, no room) never ends a workload. It is over then, and the
  store has to go on by itself.
* A start that meets an error either refuses, or has everything that was promised. One that refuses
  gives all its descriptors back, and a later start is as good as if it had been the first.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from polymq.core_log.errors import StoreRefused
from tests.crash.actor import READING, Actor, Workload, open_store
from tests.crash.checks import check_contents, demand, was_cut
from tests.crash.disk import Disk
from tests.crash.explore import AGAIN_CHANCE, Explorer
from tests.crash.faults import SPRINKLED, START_CHANCES, Sprinkled
from tests.crash.losses import DAMAGES, EVERYTHING, NOTHING, POWER_CUTS
from tests.crash.tally import Tally, repeatable

CHANCES: Final = (0.003, 0.01, 0.02)
"""How many of the calls fail which can."""
STATE_CHANCE: Final = 0.06
"""At how many changes a state is built."""
START_CHANCE: Final = 0.6
"""How often a start meets errors; and again, and again."""
ONE_FILE_CHANCE: Final = 0.5
ONE_FILE_ERRORS: Final = 0.3
"""How often it is one file alone that has them, and how many of its calls fail then."""


class FaultsExplorer(Explorer):
    """Goes through the states of one seed whose disk has errors."""

    def run(self) -> Tally:
        """All states."""
        random = Random(f"sprinkled {self.seed}")
        self._settings = replace(self._settings, open_segments_max=random.choice((1, 2, 64)))
        for name, errors in SPRINKLED:
            chance = random.choice(CHANCES)
            self._run_with(Sprinkled(name, errors=errors, chance=chance, random=random))
        self._run_damaged(Random(f"damaged {self.seed}"))
        return self.tally

    def _run_damaged(self, chance: Random) -> None:
        """The same without errors while it runs, and starts with errors on damaged bytes."""
        disk = Disk()
        self._workload = self._make_workload(disk)

        def on_change() -> None:
            if chance.random() < STATE_CHANCE:
                kind = chance.choice(list(DAMAGES))
                self._state(f"errors and {kind}", kind)

        disk.on_change = on_change
        self._carry_out(self._workload, None)

    def _disturb_damaged(
        self, disk: Disk, random: Random, reported: list[str]
    ) -> tuple[Disk, bool]:
        cut = False
        while random.random() < START_CHANCE:
            self.tally.recoveries += 1
            name, errors = random.choice(SPRINKLED)
            one_file = random.random() < ONE_FILE_CHANCE
            chance = ONE_FILE_ERRORS if one_file else random.choice(START_CHANCES)
            fault = Sprinkled(name, errors=errors, chance=chance, random=random)
            if one_file:
                fault.below = random.choice(sorted(disk.files()))
            disk.fault = fault
            try:
                cut |= was_cut(open_store(disk, self._settings).recovery)
                reported.append(f"started with {fault.failed} of {name}, {fault.last}")
            except StoreRefused as refused:
                cut = True  # perhaps it did, and did not come to say so
                reported.append(f"refused: {refused}, {fault.last}")
            disk.fault = None
            disk = disk.crash(NOTHING) if fault.is_silent else disk.kill()
        return disk, cut

    def _make_workload(self, disk: Disk) -> Workload:
        return Workload(Random(self.seed), self._settings, disk, READING)

    def _state_chance(self) -> float:
        """How often a state is built at a change."""
        return STATE_CHANCE

    def _run_with(self, fault: Sprinkled) -> None:
        disk = Disk()
        disk.fault = fault
        workload = self._workload = self._make_workload(disk)
        chance = Random(f"states {self._number}")

        def on_change() -> None:
            if chance.random() < self._state_chance() and not fault.is_silent:
                kind = chance.choice(["kill", *POWER_CUTS])
                self._state(f"{fault.name} then {kind}", kind)

        disk.on_change = on_change
        self._carry_out(workload, fault)
        self.tally.faults += fault.failed > 0
        workload.disk.fault = None
        if not fault.is_final:
            alone = self._only is not None
            with repeatable(self.tally, self.seed, self._first, [fault.name], alone=alone):
                self._goes_on(workload)
        self._ends_of(fault)

    def _goes_on(self, workload: Workload) -> None:
        """What was short is there again: the store works, without being opened anew."""
        actor = workload.actor
        assert actor is not None
        actor.write_all()
        actor.publish(3, 20)
        actor.flush()
        actor.prepare()
        actor.store_prepared()
        store = actor.store
        demand(
            store.log.flushed == store.log.appended, "what was short is there, and nothing works"
        )
        demand(store.checkpointed == store.log.flushed, "the checkpoint does not go on")
        actor.close()
        demand(workload.disk.open_count == 0, "a store that was closed keeps files open")

    def _disturb(self, disk: Disk, random: Random, reported: list[str]) -> Disk:
        while random.random() < START_CHANCE:
            disk = self._start_with_errors(disk, random, reported)
        while random.random() < AGAIN_CHANCE:
            disk = self._cut_again(disk, random, reported)
        return disk

    def _start_with_errors(self, disk: Disk, random: Random, reported: list[str]) -> Disk:
        """A start that meets errors. Returns what the next one finds."""
        self.tally.recoveries += 1
        name, errors = random.choice(SPRINKLED)
        fault = Sprinkled(name, errors=errors, chance=random.choice(START_CHANCES), random=random)
        attempted = self._workload.attempted
        disk.fault = fault
        try:
            actor = Actor(disk, self._settings, attempted)
        except StoreRefused as refused:
            reported.append(f"refused: {refused}, {fault.last}")
            demand(disk.open_count == 0, "a start that was refused keeps files open")
            disk.fault = None
        else:
            reported.append(f"started with {fault.failed} of {name}, {fault.last}")
            disk.fault = None
            left = disk.crash(NOTHING)
            actor.prepare()  # where there was no room for it, entries are in memory only
            actor.store_prepared()
            remaining = check_contents(actor.store, attempted)
            served = Actor(left, self._settings, attempted)
            demand(served.own.end_offset == remaining, "(e) what was served is gone")
        if fault.is_silent or (fault.is_final and random.random() < 0.5):
            return disk.crash(random.choice((NOTHING, EVERYTHING)))
        return disk.kill()
