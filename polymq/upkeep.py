"""Saving what makes a start fast, the folded state (`state.db`) and the indexes; and retention.

Nothing of the saving is needed for correctness: the log has everything. It runs every
`save_seconds`, the quick part on the loop, the slow part in a thread, one saving at a time. A
snapshot may only be saved once the log is flushed up to it; otherwise it could name a position that
a crash takes away.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any, Final

from polymq.broker.disk import DiskState
from polymq.broker.engine import Engine
from polymq.broker.port import Position
from polymq.broker.retention.retention import InWorker, Round, UntilFlushed
from polymq.core_log.errors import StoreError
from polymq.core_log.store import Store
from polymq.lasting_tasks import report_bug
from polymq.logs import logger
from polymq.workers import Workers

GATHER_COUNT: Final = 200
"""Queue indexes, or changed entities, that one loop iteration takes note of: about a
millisecond."""
SHORT_SECONDS: Final = 5.0
"""So long after the last call for which there was no descriptor, the trouble counts as over."""


class Upkeep:
    """Saves every `save_seconds` between `start` and `stop`, if there is something to save, and
    lets go of what nobody wants every `tidy_seconds`, never both at once."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        workers: Workers,
        save_seconds: float,
        tidy_seconds: float = 10.0,
        watchers: Workers | None = None,
        disk_seconds: float = 0.5,
    ) -> None:
        self._engine = engine
        self._store = store
        self._workers = workers
        self._save_seconds = save_seconds
        self._tidy_seconds = tidy_seconds
        self._watchers = watchers or workers
        self._disk_seconds = disk_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._saving = asyncio.Lock()
        self._leaving = False  # rounds of retention stop where they are
        self._flushed = asyncio.Event()  # what is being saved is on disk, or never will be
        self._saved = -1  # the log's end at the last saving that worked
        self._troubles: set[str] = set()  # what could not be saved, and was told
        self._short_seen = 0  # of `short_count`
        self._short_until = 0.0
        self.saved_count = 0
        self.failures_count = 0
        self.short_text = ""
        """While the process has too few descriptors or too little memory: in words."""
        engine.core.when_failed(lambda _: self._flushed.set())

    def change(self, *, save_seconds: float, tidy_seconds: float, disk_seconds: float) -> None:
        """Other intervals, from the next time on."""
        self._save_seconds = save_seconds
        self._tidy_seconds = tidy_seconds
        self._disk_seconds = disk_seconds

    def start(self) -> None:
        """Begin to save, and to watch the disk."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._watch_disk())]
        for task in self._tasks:
            task.add_done_callback(report_bug)

    async def stop(self) -> None:
        """Save a last time, unless the log has failed, and stop. A round of retention that runs is
        left where it is: over a hundred thousand queues it takes many seconds."""
        self._leaving = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []
        await self.save()

    async def _watch_disk(self) -> None:
        """Tell the engine how much room there is, and make room early if it asks for it."""
        disk, log = self._engine.core.disk, logger("polymq.upkeep")
        loop = asyncio.get_running_loop()
        state = disk.state
        due = 0.0
        while True:
            await self.measure_disk()
            if disk.state is not state:
                state = disk.state
                tell = log.info if state is DiskState.OK else log.warning
                tell("disk", state=state.value, free_bytes=disk.free_bytes, reason=disk.reason)
            excess = self._engine.retention.excess_bytes
            if (disk.wanted_bytes or excess) and loop.time() >= due:
                await self._lend_ballast()
                await asyncio.shield(self.save())
                if not await asyncio.shield(self.tidy(disk.wanted_bytes)):
                    due = (
                        loop.time() + self._tidy_seconds
                    )  # nothing can go: do not ask all the time
                if self._store.ballast.is_lent:
                    await self._see_to_ballast()  # before anybody sees its room as free
            await asyncio.sleep(self._disk_seconds)

    async def measure_disk(self) -> None:
        """Ask how much room there is, in a thread: a file system may take its time. Files that wait
        to be used again go before anything else does."""
        disk = self._engine.core.disk
        try:
            free_bytes, size_bytes = await self._watchers.run(self._store.space)
            disk.measured(free_bytes, size_bytes)
            if disk.wanted_bytes and await self._watchers.run(self._store.drop_spares):
                disk.measured(*await self._watchers.run(self._store.space))
            self._worked("free space")
            await self._see_to_ballast()
        except (OSError, StoreError) as error:
            self._failed("free space", error)
        self._look_for_shortages()

    async def _see_to_ballast(self) -> None:
        """Set room aside for a full disk, or take back what was lent."""
        engine, store = self._engine, self._store
        try:
            await self._watchers.run(
                lambda: store.ballast.see_to(engine.state_bytes(), *store.space())
            )
            self._worked("ballast")
        except OSError as error:
            self._failed("ballast", error)

    async def _lend_ballast(self) -> None:
        """Give room to the saving that is about to begin, if the disk has none for it."""
        engine, ballast = self._engine, self._store.ballast
        free_bytes = engine.core.disk.free_bytes

        def lend() -> int:
            is_needed = free_bytes < ballast.needed(engine.state_bytes())
            return ballast.lend() if is_needed and ballast.held_bytes > 0 else 0

        try:
            lent = await self._watchers.run(lend)
        except OSError as error:
            self._failed("ballast", error)
            return
        if lent:
            logger("polymq.upkeep").info(
                "no room is left to save the state: gave up the ballast", bytes=lent
            )

    @property
    def short_count(self) -> int:
        """How many calls of the file system did not happen for want of a descriptor or memory, and
        are repeated."""
        return self._store.short_count + self._engine.core.patient_readers.repeated_count

    def _look_for_shortages(self) -> None:
        """Say once that there are too few descriptors, and once that it is over."""
        count, now = self.short_count, asyncio.get_running_loop().time()
        log = logger("polymq.upkeep")
        if count != self._short_seen:
            self._short_seen, self._short_until = count, now + SHORT_SECONDS
            if not self.short_text:
                reason = self._store.short_text or "reading the log"
                self.short_text = f"too few file descriptors, or too little memory: {reason}"
                log.warning("the store waits, and tries again", reason=self.short_text)
        elif self.short_text and now >= self._short_until:
            self.short_text = ""
            log.info("the store goes on: there are descriptors and memory again", tried=count)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._tidy_seconds
        while True:
            await asyncio.sleep(self._save_seconds)
            # Shielded: a saving that has begun is brought to its end before `stop` goes on.
            await asyncio.shield(self.save())
            if loop.time() >= due:
                await asyncio.shield(self.tidy())
                due = loop.time() + self._tidy_seconds

    async def save(self) -> None:
        """Save once. A failure is logged and costs only time at the next start."""
        async with self._saving:
            core = self._engine.core
            if self._log_failed():
                return
            core.write_gathered()
            end = core.log.appended
            if end == self._saved:
                return
            save_state = self._engine.begin_snapshot()
            while save_state is not None and not save_state.gather(GATHER_COUNT):
                await asyncio.sleep(0)
            if save_state is not None:
                end = save_state.position
            await self._until_flushed(end)
            if self._log_failed():
                return
            save_indexes = self._store.begin_checkpoint()
            while not save_indexes.gather(GATHER_COUNT):
                await asyncio.sleep(0)
            try:
                if save_state is not None:
                    await self._workers.run(save_state)
            except (sqlite3.Error, OSError) as error:
                assert save_state is not None
                self._engine.snapshot_failed(save_state.entities)
                self._failed("state", error)
                return
            try:
                await self._workers.run(save_indexes)
            except (StoreError, OSError) as error:
                self._failed("indexes", error)
                return
            self._worked("state", "indexes")
            self._saved = end
            self.saved_count += 1
            try:  # behind all else: nobody waits for it, and a search catches up by itself
                # Asked for now, it covers every record before the position.
                keyed_end = self._store.log.keyed_end
                await self._workers.run(
                    lambda: self._store.keys.catch_up(save_indexes.position, keyed_end)
                )
                self._worked("key index")
            except (StoreError, OSError) as error:
                self._failed("key index", error)

    async def tidy(self, wanted_bytes: int = 0) -> int:
        """One round of retention. A failure is logged; the next round goes on.

        Args:
            wanted_bytes: see `Retention.round`.

        Returns:
            How many bytes of the log were deleted.
        """
        standby, retention = self._engine.standby, self._engine.retention
        async with self._saving:
            before = retention.deleted_bytes
            if standby is None:
                steps = retention.round(wanted_bytes)
            else:  # a slave's log is its master's
                steps = retention.round_behind(standby.deletable)
            try:
                await self._drive(steps)
                self._worked("retention")
            except (StoreError, sqlite3.Error, OSError) as error:
                self._failed("retention", error)
            while retention.drops:
                kind, name, count = retention.drops.popleft()
                logger("polymq.upkeep").warning("dropped", kind=kind, name=name, messages=count)
            deleted = retention.deleted_bytes - before
            if deleted:
                start = self._store.log.start
                logger("polymq.upkeep").info("log deleted", bytes=deleted, start=start)
            return deleted

    async def _drive(self, steps: Round) -> None:
        """Do what a round asks for, until it ends, the log has failed, or the server stops. What a
        round has done so far is sound wherever it is left."""
        result: Any = None
        while not self._log_failed() and not self._leaving:
            try:
                step = steps.send(result)
            except StopIteration:
                return
            result = None
            if isinstance(step, InWorker):
                result = await self._workers.run(step.run)
            elif isinstance(step, UntilFlushed):
                await self._until_flushed(step.position)
            else:
                await asyncio.sleep(0)
        steps.close()

    async def _until_flushed(self, position: int) -> None:
        """Return when the log is flushed up to there, or has failed."""
        if self._log_failed():
            return
        self._flushed.clear()
        self._engine.core.when_flushed(Position(position), self._flushed.set)
        await self._flushed.wait()

    def _log_failed(self) -> bool:
        core = self._engine.core
        return core.failure is not None or core.unknown is not None

    def _failed(self, what: str, error: Exception) -> None:
        """Count it, and say it once: it is tried again until it works."""
        self.failures_count += 1
        if what not in self._troubles:
            self._troubles.add(what)
            logger("polymq.upkeep").warning("not saved", what=what, error=str(error))

    def _worked(self, *whats: str) -> None:
        for what in sorted(self._troubles.intersection(whats)):
            self._troubles.discard(what)
            logger("polymq.upkeep").info("saved again", what=what)
