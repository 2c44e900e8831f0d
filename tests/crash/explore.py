"""All states of one seed: a workload, power cut at every change, every kind of debris.

A *state* is a disk as it is found after something went wrong. One seed gives some hundreds: the
workload is carried out once, and at each of its changes (`Disk.on_change`) the disks that a power
cut could leave there are built and checked, so nothing is run again for the next state. Then the
same workload meets a failing or a full disk, from some change on. Others go on from here
(`seeds.py`): engines, and disks any call of which may fail.

Every state has a number, and all that is random about it comes from the seed and the number: the
same seed gives the same states, and one state can be repeated alone.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Final

from polymq.core_log.errors import StoreError
from tests.crash.actor import Actor, Workload, draw_settings
from tests.crash.checks import ENDINGS, check, check_damaged, sure_after_damage
from tests.crash.disk import Disk
from tests.crash.faults import NEED_ROOM, NEVER, REMOVE, SYNCS, Fault
from tests.crash.losses import (
    DAMAGES,
    EVERYTHING,
    NOTHING,
    POWER_CUTS,
    Parts,
    Subset,
    live_bytes,
)
from tests.crash.tally import Tally, repeatable

STEPS_COUNT: Final = 45
"""Steps of one workload: a few segments and checkpoints, and a life or two."""
FAULT_RUNS: Final = 6
"""How often the same workload meets a disk that fails or is full."""
FAULT_STATES: Final = 12
"""States of each of those."""
SUBSETS_BITS_MAX: Final = 7
"""Where so few changes are unsynced, all their subsets are gone through, now and then."""
SUBSETS_CHANCE: Final = 0.02
AGAIN_CHANCE: Final = 0.35
"""How often power is cut again during recovery; and again, and again."""
RECOVERY_CHANGES: Final = 24
"""A recovery and an opening have about so many changes."""

KINDS: Final = {
    **dict.fromkeys(POWER_CUTS, 2),
    "nothing": 1,
    "everything": 1,
    "kill": 2,
    **dict.fromkeys(DAMAGES, 3),
}
"""Every kind of state, and how often it is drawn."""


class Explorer:
    """Goes through the states of one seed.

    Args:
        only: the number of the one state to check; None for all.
        first: the number of the first state.
    """

    def __init__(self, seed: int, *, only: int | None = None, first: int = 0) -> None:
        self.seed = seed
        self.tally = Tally()
        self._only = only
        self._first = self._number = first
        self._settings = draw_settings(Random(seed))
        self._workload: Workload

    def run(self) -> Tally:
        """All states."""
        changes_count = self._run(None)
        for run in range(FAULT_RUNS):
            self._run(self._draw_fault(run, changes_count))
        return self.tally

    def _run(self, fault: Fault | None) -> int:
        """The workload once. Returns how many changes it made."""
        disk = Disk()
        disk.fault = fault
        workload = self._workload = Workload(Random(self.seed), self._settings, disk)
        if fault is None:
            disk.on_change = self._each_change
        else:
            chance = Random(fault.first)
            disk.on_change = lambda: self._after_fault(fault, chance)
        self._carry_out(workload, fault)
        if fault is not None and fault.failed:
            self.tally.faults += 1
            self._ends_of(fault)
        return workload.disk.changes_count

    def _carry_out(self, workload: Workload, fault: Fault | None) -> None:
        """The workload's steps. Only what is final for a disk ends them early."""
        reported = ["the workload itself"]
        with repeatable(self.tally, self.seed, self._first, reported, alone=self._only is not None):
            try:
                workload.run(STEPS_COUNT)
            except StoreError:
                if fault is None or not fault.is_final:
                    raise
        workload.disk.on_change = None

    def _ends_of(self, fault: Fault) -> None:
        """Each kind of power cut behind a fault; and a kill, unless nobody could take note of a
        failed sync."""
        for kind in POWER_CUTS:
            self._state(f"{fault.name} then {kind}", kind)
        if not fault.is_silent:
            self._state(f"{fault.name} then kill", "kill")

    def _draw_fault(self, run: int, changes_count: int) -> Fault:
        random = Random(f"fault {self.seed} {run}")
        full = run % 2 == 0
        calls = NEED_ROOM
        if not full:
            calls = random.choice((SYNCS, SYNCS, SYNCS | NEED_ROOM | REMOVE))
        return Fault(
            error=errno.ENOSPC if full else errno.EIO,
            calls=calls,
            first=random.randint(1, changes_count),
            count=random.randint(1, 6) if full else NEVER,
            random=random,
            loss=Parts(random, random.choice((0.0, 0.5, 1.0))),
        )

    # --- states ---------------------------------------------------------------------------------

    def _each_change(self) -> None:
        """One state at each change, of a kind that its number draws; sometimes all subsets."""
        random = Random(f"kind {self.seed} {self._number}")
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        self._state(kind, kind)
        if random.random() < SUBSETS_CHANCE:
            count = Subset(0)
            self._workload.disk.crash(count)
            if count.asked <= SUBSETS_BITS_MAX:
                for mask in range(1 << count.asked):
                    self._state("subset", "subset", mask)

    def _after_fault(self, fault: Fault, chance: Random) -> None:
        """Some states after the fault."""
        if fault.failed and chance.random() < FAULT_STATES / 100:
            kind = chance.choice(list(POWER_CUTS))
            self._state(f"{fault.name} then {kind}", kind)

    def _state(self, label: str, kind: str, mask: int = 0) -> None:
        """Build and check a state, unless another one is wanted."""
        number = self._number
        self._number += 1
        if self._only is not None and number != self._only:
            return
        random = Random(f"state {self.seed} {number}")
        reported = [label]
        with repeatable(self.tally, self.seed, number, reported, alone=self._only is not None):
            self._check(kind, mask, random, reported)
        self.tally.states[label] += 1

    def _check(self, kind: str, mask: int, random: Random, reported: list[str]) -> None:
        disk, attempted = self._workload.disk, self._workload.attempted
        if kind in DAMAGES:
            found = disk.crash(random.choice((NOTHING, EVERYTHING)))
            if not any(live_bytes(path, file) for path, file in found.files().items()):
                return
            reported.append(DAMAGES[kind](found, random))
            sure = sure_after_damage(found, attempted)
            found, cut = self._disturb_damaged(found, random, reported)
            outcome = check_damaged(found, self._settings, attempted, sure=sure, cut=cut)
            self.tally.outcomes[f"{kind}: {outcome}"] += 1
            self.tally.recoveries += 1
            return
        if kind == "kill":
            found = disk.kill()
        elif kind == "subset":
            found = disk.crash(Subset(mask))
        else:
            found = disk.crash(POWER_CUTS[kind](disk, random))
        found = self._disturb(found, random, reported)
        self.tally.note(found)
        ending = random.randrange(ENDINGS)
        self.tally.recoveries += check(found, self._settings, attempted, ending)

    def _disturb_damaged(
        self, disk: Disk, random: Random, reported: list[str]
    ) -> tuple[Disk, bool]:
        """The same for bytes that were damaged; and whether one of those starts has told that it
        cut the log."""
        return disk, False

    def _disturb(self, disk: Disk, random: Random, reported: list[str]) -> Disk:
        """What goes wrong in starts before the one that is checked."""
        while random.random() < AGAIN_CHANCE:
            disk = self._cut_again(disk, random, reported)
        return disk

    def _cut_again(self, disk: Disk, random: Random, reported: list[str]) -> Disk:
        """Power is cut, or the process dies, during the recovery of a state or right after."""
        self.tally.deeper += 1
        self.tally.recoveries += 1
        disk.off_at = random.randint(1, RECOVERY_CHANGES)
        try:
            Actor(disk, self._settings, self._workload.attempted)
        except StoreError:
            pass  # that is how it ends
        kind = random.choice(["kill", *POWER_CUTS])
        reported.append(f"again at change {disk.off_at} of the recovery: {kind}")
        return disk.kill() if kind == "kill" else disk.crash(POWER_CUTS[kind](disk, random))
