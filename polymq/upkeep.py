"""Saving what makes a start fast: the folded state (`state.db`) and the indexes.

Nothing here is needed for correctness: the log has everything. It runs every `save_seconds`, the
quick part on the loop, the slow part in a thread, one saving at a time. A snapshot may only be
saved once the log is flushed up to it; otherwise it could name a position that a crash takes away.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

from broker.engine import Engine
from broker.port import Durability, Position
from core_log.errors import StoreError
from core_log.store import Store
from polymq.logs import logger
from polymq.workers import Workers


class Upkeep:
    """Saves every `save_seconds` between `start` and `stop`."""

    def __init__(
        self, *, engine: Engine, store: Store, workers: Workers, save_seconds: float
    ) -> None:
        self._engine = engine
        self._store = store
        self._workers = workers
        self._save_seconds = save_seconds
        self._task: asyncio.Task[None] | None = None
        self.saved_count = 0
        self.save_failures_count = 0

    def start(self) -> None:
        """Begin to save."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Save a last time, unless the log has failed, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._engine.core.failure is None:
            await self.save()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._save_seconds)
            if self._engine.core.failure is None:
                # Shielded: a saving that has begun is brought to its end before `stop` goes on.
                await asyncio.shield(self.save())

    async def save(self) -> None:
        """Save once. A failure is logged and costs only time at the next start."""
        core = self._engine.core
        core.write_acks()
        changed = set(core.journal.dirty)
        save_state = self._engine.snapshot()
        save_indexes = self._store.prepare_checkpoint()
        if save_state is not None:
            await self._flushed(Position(core.log.appended))
            if core.failure is not None:
                return
            try:
                await self._workers.run(save_state)
            except (sqlite3.Error, OSError) as error:
                self._failed("state", error)
                self._engine.snapshot_failed(changed)
        try:
            await self._workers.run(save_indexes)
        except (StoreError, OSError) as error:
            self._failed("indexes", error)
        self.saved_count += 1

    async def _flushed(self, position: Position) -> None:
        """Wait for the flush of `position`, or for the end of all flushes."""
        done = asyncio.Event()
        self._engine.when_storage_fails(_discard(done.set))
        self._engine.when_committed(position, Durability.FLUSHED, done.set)
        await done.wait()

    def _failed(self, what: str, error: Exception) -> None:
        self.save_failures_count += 1
        logger("polymq.upkeep").warning("not saved", what=what, error=str(error))


def _discard(callback: Callable[[], None]) -> Callable[[object], None]:
    return lambda _: callback()
