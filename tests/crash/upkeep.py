"""An engine with the program's own upkeep: `polymq/upkeep.py` on an asyncio loop that takes turns.

Upkeep saves and tidies by itself as the clock goes on. Its jobs run in worker threads that take
turns with the engine (`schedule.py`): at each call of the disk, those of SQLite included
(`sqlite_disk.py`). Between two turns of the loop the clients go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

from polymq.broker.errors import Refused
from polymq.broker.state.database import StateDb
from polymq.upkeep import Upkeep
from polymq.workers import Workers
from tests.crash.checks import demand
from tests.crash.disk import ROOM_BYTES, Disk
from tests.crash.engine import EngineActor, World
from tests.crash.engine_workload import EngineWorkload
from tests.crash.parts.part import Part
from tests.crash.schedule import Schedule
from tests.crash.sqlite_disk import DiskStateDb

SAVE_SECONDS: Final = 0.2
TIDY_SECONDS: Final = 0.5
TURNS_MAX: Final = 30
"""Turns of asyncio's loop behind a step of the clients, at the most."""
FLUSH_CHANCES: Final = (0.03, 0.3)
"""How often the flusher is quick enough to be done with the next turn, by workload."""
TURNS_AT_LAST: Final = 3000
"""Turns that the broker has when its disk has no errors any more."""
SHORT_ROOM: Final = (80_000, 1_000_000)
"""Space of a disk that is so short of it that the ballast is lent for each saving, and not so short
that publishers are refused."""
SHORT_CHANCE: Final = 0.3
"""How many workloads have such a disk now and then."""
ROOM_CHANGE_CHANCE: Final = 0.1
PASSING_SECONDS: Final = (0.0, 0.02, 0.2)
"""How long a step takes."""
STEPS: Final = {
    "iterate": 4,
    "flush": 3,
    "wait": 2,
    "save": 2,
    "tidy": 2,
    "drain": 5,
    "kill": 1,
    "crash": 1,
}
"""Steps that belong to no part, and how often each is drawn: queues are kept short, so that
segments go."""


class TurningLoop(asyncio.BaseEventLoop):
    """An asyncio loop without sockets, whose clock is the engine's. It runs when `turn` is called.

    Attributes:
        error: what a task ended with that nobody foresaw.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._selector = self
        self.error: BaseException | None = None
        self.set_exception_handler(self._take_error)

    def _take_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.error = context.get("exception") or AssertionError(context["message"])

    def time(self) -> float:
        return self._clock()

    def select(self, timeout: float | None) -> list[Any]:
        """There are no sockets; and nobody waits."""
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def turn(self) -> None:
        """One iteration. Raises what a task ended with."""
        self.call_soon(self.stop)
        self.run_forever()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """The process is killed: its tasks end where they are."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        while any(not task.done() for task in tasks):
            self.call_soon(self.stop)
            self.run_forever()
        self.close()


class TurningWorkers:
    """Worker threads, one for each job, that take turns with the loop."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    async def run(self, function: Callable[[], Any]) -> Any:
        """See `Workers.run`."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(function())
            except Exception as error:  # noqa: BLE001  (handed on, as threads do)
                outcome.append(error)

        task = self._schedule.spawn(work, "worker")
        while not task.done:
            await asyncio.sleep(0)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]


class SurvivingActor(EngineActor):
    """A running engine with its upkeep. Raises StoreError as `Store.open`."""

    def __init__(self, disk: Disk, database: StateDb, world: World, schedule: Schedule) -> None:
        super().__init__(disk, database, world)
        self._schedule = schedule
        self._asyncio = TurningLoop(lambda: self.loop.now)
        self.upkeep = Upkeep(
            engine=self.engine,
            store=self.store,
            workers=cast(Workers, TurningWorkers(schedule)),
            save_seconds=SAVE_SECONDS,
            tidy_seconds=TIDY_SECONDS,
        )
        self._asyncio.call_soon(self.upkeep.start)
        self.turn()

    def turn(self) -> None:
        """An iteration of the loop: the engine's part, and that of upkeep."""
        self._schedule.pause()
        self.iterate()
        self._asyncio.turn()

    def flush_once(self) -> None:
        """The flusher syncs what it was asked for."""
        if self.engine.core.flush_pending:
            self.store.flusher.step()
            self.engine.core.flush_finished()
            self.iterate()

    def save(self) -> None:
        """Begin a saving now."""
        self._asyncio.create_task(self.upkeep.save())
        self.turn()

    def tidy(self) -> None:
        """Begin a round of retention now."""
        self._asyncio.create_task(self.upkeep.tidy())
        self.turn()

    def end(self) -> None:
        """The process is killed."""
        self._schedule.end_others()
        self._asyncio.end()


class SurvivingWorkload(EngineWorkload):
    """Steps drawn from a seed, with upkeep beside them.

    Attributes:
        on_saved: called when `state.db` was saved.
        on_failed: called when the disk has failed, and the broker is about to end.
        refused_count: steps that the broker refused, because of the disk.
    """

    def __init__(self, random: Random, disk: Disk, schedule: Schedule) -> None:
        super().__init__(random, disk)
        self._schedule = schedule
        self._common = STEPS
        self._flush_chance = random.choice(FLUSH_CHANCES)
        self.world.trims_early = self._may_be_short = random.random() < SHORT_CHANCE
        self._actor: SurvivingActor | None = None
        self.on_saved: Callable[[], None] | None = None
        self.on_failed: Callable[[], None] | None = None
        self.refused_count = 0
        disk.yields = schedule.point

    def run(self, steps_count: int) -> None:
        with self._schedule.installed():
            try:
                super().run(steps_count)
                self._goes_on()
            finally:
                if self._actor is not None:
                    self._actor.end()

    def _goes_on(self) -> None:
        """Errors that pass have not stopped the broker, and `state.db` is saved again."""
        actor, fault = self._actor, self.disk.fault
        assert actor is not None
        if fault is None:
            return
        if fault.is_final:
            self._failed()
            return
        self.disk.fault = None
        core = actor.engine.core
        for _ in range(TURNS_AT_LAST):
            self._schedule.point()  # calls that take long end when others have made some
            actor.turn()
            actor.flush_once()
            actor.iterate(PASSING_SECONDS[1])
            is_flushed = core.log.flushed == core.log.appended
            if is_flushed and not actor.upkeep._troubles:
                break
        demand(core.failure is None, f"{fault.last}, and the broker is read-only: {core.failure}")
        demand(not actor.upkeep._troubles, f"upkeep still fails: {actor.upkeep._troubles}")
        demand(core.log.flushed == core.log.appended, "the disk is well, and nothing is flushed")

    def _failed(self) -> None:
        """A disk that has failed is not written to any more, so no change of it leads to a look at
        what was answered since."""
        if self.on_failed is not None:
            self.on_failed()

    def _start(self, disk: Disk) -> EngineActor:
        disk.yields = self._schedule.point
        self.database = DiskStateDb(disk, self.on_saved)
        fault, disk.fault = disk.fault, None  # starts with errors are made of states
        try:
            return SurvivingActor(disk, self.database, self.world, self._schedule)
        finally:
            disk.fault = fault

    def _let(self, part: Part, step: str, actor: EngineActor) -> None:
        """What the disk refuses is told to the client, and nothing of it is expected."""
        try:
            super()._let(part, step, actor)
        except Refused:
            if self.disk.fault is None or not self.disk.fault.failed:
                raise
            self.refused_count += 1

    def _stepped(self) -> None:
        actor = self._actor
        assert actor is not None
        for _ in range(self._random.randint(0, TURNS_MAX)):
            actor.turn()
            if self._random.random() < self._flush_chance:
                actor.flush_once()
        actor.iterate(self._random.choice(PASSING_SECONDS))
        if self._may_be_short and self._random.random() < ROOM_CHANGE_CHANCE:
            self.disk.room = self._random.choice((SHORT_ROOM, (ROOM_BYTES, ROOM_BYTES)))
        self.deleted = self.deleted or actor.store.log.start > 0

    def _end_run(self, actor: EngineActor, step: str) -> None:
        assert self._actor is not None
        fault = self.disk.fault
        if fault is not None and fault.is_final:
            self._failed()
        self._actor.end()
        if fault is not None and fault.is_final:
            self.world.written = self.world.flushed  # what a failed sync should have written
            if fault.is_silent:
                step = "crash"
            fault.is_final = fault.is_silent = False
        self.disk.fault = None  # starts with errors are made of states
        super()._end_run(actor, step)
        self.disk.fault = fault
