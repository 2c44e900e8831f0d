"""What a seed lets the clients of an engine do, and what is demanded after a crash.

A seed draws some of the parts (`parts/`), and how much of each topic stays: so a workload is small,
and still meets most pairs of subjects in some seed. `check_engine` opens a state of the disk twice,
once with a `state.db` that may be old or missing and once without, and demands:

    (a) what was answered is there: messages in order, in every place that was promised them, unless
        they were settled there
    (b) nothing else is delivered, and nothing twice
    (c) queues, bindings, subscriptions, retained messages, users, what a query finds
    (d) the state is the same with and without state.db
    (e) the engine goes on: what is published now comes to all of them
    (f) state.db is of a place that the log has: it is saved when the log is on the disk up to there
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from polymq.broker.state.database import StateDb
from polymq.core_log.recovery import living_epochs
from tests.crash.checks import demand
from tests.crash.disk import Disk
from tests.crash.engine import LAZY_SECONDS, SETTINGS, EngineActor, MemoryStateDb, World
from tests.crash.losses import POWER_CUTS
from tests.crash.parts.admin import Admin
from tests.crash.parts.basics import Basics
from tests.crash.parts.delays import Delays
from tests.crash.parts.halves import Halves
from tests.crash.parts.keys import Keys
from tests.crash.parts.letters import Letters
from tests.crash.parts.lifetimes import Lifetimes
from tests.crash.parts.offsets import Offsets
from tests.crash.parts.once import Once
from tests.crash.parts.owed import Owed
from tests.crash.parts.page_cache import PageCache
from tests.crash.parts.part import Part
from tests.crash.parts.priorities import Priorities
from tests.crash.parts.transactions import Transactions
from tests.crash.parts.wide import Wide
from tests.crash.parts.wills import Wills

PARTS: Final[dict[type[Part], float]] = {
    Basics: 0.5,
    Keys: 0.2,
    PageCache: 0.2,
    Delays: 0.25,
    Halves: 0.2,
    Transactions: 0.2,
    Letters: 0.35,
    Priorities: 0.15,
    Admin: 0.15,
    Offsets: 0.2,
    Once: 0.2,
    Wide: 0.04,
}
"""Every part but some, and how likely it is that a seed has it."""
LATER_PARTS: Final[dict[type[Part], float]] = {Owed: 0.1, Lifetimes: 0.1, Wills: 0.1}
"""The same of those that came later."""
ALL_PARTS: Final[Sequence[type[Part]]] = (*PARTS, *LATER_PARTS)
RETENTIONS: Final = (0, 1500, 1500, 4000)
"""Bytes that each topic keeps; 0: all."""
SEGMENTS: Final = (4096, 4096, 16 * 1024)
"""The last of them holds a record that names 256 queues."""
STEPS: Final = {
    "iterate": 4,
    "flush": 5,
    "wait": 3,
    "save": 2,
    "tidy": 1,
    "drain": 1,
    "kill": 1,
    "crash": 1,
}
"""Steps that belong to no part, and how often each is drawn."""
TIDY_STEPS: Final = {**STEPS, "tidy": 5, "drain": 5}
"""The same for clients that keep their queues short, so that segments go."""
TIDY_CHANCE: Final = 0.3
TIDY_LONGER: Final = 2
"""So much longer are the workloads of those."""
WIDE_SHARE: Final = 0.15
DOWN_SECONDS: Final = (0.0, 0.0, 0.5, 3.0)
"""How long it takes until the next engine starts."""
RETENTION: Final = "retention: segments were gone"


def is_about(part: type[Part], subject: str) -> bool:
    """Whether a part has to do with a subject, which is named in full or in part."""
    return bool(subject) and any(subject in name for name in part.subjects())


def draw_world(random: Random, subject: str) -> World:
    """Some parts, at least one, and a retention. `subject`: a part of this name is among them."""
    parts = [
        part.drawn(random, subject)
        for part, likely in PARTS.items()
        if random.random() < likely or is_about(part, subject)
    ]
    apart = Random()
    apart.setstate(random.getstate())  # a seed draws all else as if there were no such parts
    parts += [
        part.drawn(apart, subject)
        for part, likely in LATER_PARTS.items()
        if apart.random() < likely or is_about(part, subject)
    ]
    wide = any(isinstance(part, Wide) for part in parts)
    return World(
        parts=parts or [Basics()],
        settings=replace(SETTINGS, segment_bytes=SEGMENTS[-1] if wide else random.choice(SEGMENTS)),
        retention_bytes=random.choice(RETENTIONS),
        retention_seconds=random.choice((0, 1, 1)),
    )


class EngineWorkload:
    """Steps drawn from a seed, carried out on a disk.

    Args:
        subject: what it has to be about, among others.

    Attributes:
        deleted: whether segments of the log have gone.
    """

    def __init__(self, random: Random, disk: Disk, subject: str = "") -> None:
        self._random = random
        self.disk = disk
        self.database: StateDb = MemoryStateDb()
        self.world = draw_world(random, subject)
        self.deleted = False
        self._actor: EngineActor | None = None
        self._common: Mapping[str, int] = STEPS

    def note_promises(self) -> None:
        """Take note of what the engine has told its clients until now."""
        if self._actor is not None:
            self._actor.note_promises()

    @property
    def now(self) -> float:
        """The loop's clock."""
        return self.world.now if self._actor is None else self._actor.loop.now

    @property
    def share(self) -> float:
        """How many of its states are worth their time: those with hundreds of queues take long,
        and there are many of them before a message for all of these is on its way."""
        flushed = self.world.flushed
        quiet = any(
            isinstance(part, Wide) and not part.is_under_way(flushed) for part in self.world.parts
        )
        return WIDE_SHARE if quiet else 1.0

    def features(self) -> Iterator[str]:
        """What a state contains now, for the report."""
        for part in self.world.parts:
            yield from part.features()
        if self.deleted:
            yield RETENTION

    def run(self, steps_count: int) -> None:
        """Carry out so many steps."""
        self._actor = self._start(self.disk)
        common = self._common
        if self._random.random() < TIDY_CHANCE:
            common, steps_count = TIDY_STEPS, TIDY_LONGER * steps_count
        steps: dict[tuple[Part | None, str], int] = {
            (None, step): weight for step, weight in common.items()
        }
        for part in self.world.parts:
            steps |= {(part, step): weight for step, weight in part.steps.items()}
        for whose, step in self._random.choices(list(steps), list(steps.values()), k=steps_count):
            if whose is None:
                self._do(self._actor, step)
            else:
                whose.begun = True
                self._let(whose, step, self._actor)
            self._stepped()

    def _let(self, part: Part, step: str, actor: EngineActor) -> None:
        """A step of clients."""
        part.do(step, actor, self._random)

    def _start(self, disk: Disk) -> EngineActor:
        """A new engine."""
        return EngineActor(disk, self.database, self.world)

    def _stepped(self) -> None:
        """A step was taken."""

    def _do(self, actor: EngineActor, step: str) -> None:
        if step in ("kill", "crash"):
            self._end_run(actor, step)
        elif step == "wait":
            actor.flush(self._random.choice((0.05, LAZY_SECONDS)))
        elif step == "drain":
            for part in self.world.parts:
                part.drain(actor)
        elif step == "tidy":
            actor.tidy()
            self.deleted = self.deleted or actor.store.log.start > 0
        else:
            {"iterate": actor.iterate, "flush": actor.flush, "save": actor.save}[step]()

    def _end_run(self, actor: EngineActor, step: str) -> None:
        """The process or the machine dies; the next one goes on with what it finds."""
        if step == "kill":
            found = self.disk.kill()
        else:
            name = self._random.choice(list(POWER_CUTS))
            found = self.disk.crash(POWER_CUTS[name](self.disk, self._random))
            self.world.written = self.world.flushed
        found.on_change, found.fault = self.disk.on_change, self.disk.fault
        self.disk = found
        self.world.now = actor.loop.now + self._random.choice(DOWN_SECONDS)
        self._actor = None
        for part in self.world.parts:
            part.run_ended()
        started = self._start(found)
        take_as_found(self.world, started)
        self._actor = started


def take_as_found(world: World, actor: EngineActor) -> None:
    """An engine has started: only what is there is there, and all of it is promised from now on."""
    world.flushed = world.written = actor.store.log.flushed
    world.epochs = list(actor.store.epochs)
    for part in world.parts:
        part.forget_lost(actor, actor.store.recovery.end)


def check_engine(disk: Disk, database: StateDb, world: World) -> None:
    """(a) to (f) on one state, which is used up.

    Args:
        world: its `now` is when the engine starts, its `flushed` and `written` are what is
            promised.

    Raises:
        Violation, and whatever an engine that cannot start raises.
    """
    for part in world.parts:
        part.run_ended()
    flushed, written = world.flushed, world.written  # before the engine that is checked goes on
    saved = database.load()
    without = EngineActor(disk.kill(), MemoryStateDb(), world)
    actor = EngineActor(disk, database, world)
    end = actor.store.recovery.end
    if saved is not None:  # a start would make it again from the log, and nobody would know
        demand(saved.position <= end, f"(f) state.db is of {saved.position}, the log ends at {end}")
    _check_epochs(actor, world, flushed)
    _check_same_state(actor, without)
    for part in world.parts:
        part.check(actor, flushed, written)


def _check_epochs(actor: EngineActor, world: World, flushed: int) -> None:
    """Every epoch that began in what was flushed and has not left the log is known, and no number
    is given twice."""
    found = actor.store.epochs
    known = [(epoch, start) for epoch, start in world.epochs if start < flushed]
    sure = living_epochs(known, actor.store.log.start)
    demand(found[: len(sure)] == sure, f"(c) the epochs are {found}, and were {sure}")
    numbers = [epoch for epoch, _ in found]
    demand(numbers == sorted(set(numbers)), f"(c) the epochs are {found}")


def _check_same_state(actor: EngineActor, without: EngineActor) -> None:
    """(d): the rows of state.db that the two would write are the same."""
    keys = set(actor.engine.core.journal.dirty) | set(without.engine.core.journal.dirty)
    saved = actor.database.load()
    if saved is not None:
        keys |= {(kind, key) for kind, rows in saved.rows.items() for key, _ in rows}
    for kind, key in sorted(keys):
        if kind == "number":
            continue
        found, wanted = row_of(actor, kind, key), row_of(without, kind, key)
        demand(found == wanted, f"(d) {kind} {key!r}: {found}, and from the log alone {wanted}")
    demand(
        actor.engine.core.next_number == without.engine.core.next_number,
        "(d) a number would be given out again",
    )


def row_of(actor: EngineActor, kind: str, key: str) -> str:
    """An entity as `state.db` would have it."""
    return json.dumps(actor.engine.fold.row(kind, key), sort_keys=True)
