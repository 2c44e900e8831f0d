"""Waiting until a change that an operator asked for is on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from polymq.broker.engine import Engine
from polymq.broker.port import Durability, Position, Reason, Refused, StorageFailed

COMMIT_SECONDS_MAX: Final = 10.0
"""A change that is not on disk by then is answered 503: it may still happen."""

Committed = Callable[[Position], Awaitable[None]]
"""Returns when the change at a position is on the disk. Raises Refused: READ_ONLY,
StorageFailed."""


class Commits:
    """The changes that operators wait for."""

    def __init__(self, engine: Engine) -> None:
        self._port = engine.port
        self._waiting: set[asyncio.Future[None]] = set()
        engine.core.when_failed(self._storage_failed)

    async def committed(self, position: Position) -> None:
        """Wait for a change of state. Raises Refused: READ_ONLY (it takes too long),
        StorageFailed."""
        await self.stored(position, self._port.state_durability)

    async def stored(self, position: Position, durability: Durability) -> None:
        """Wait for a message. Raises as `committed`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        self._port.when_committed(position, durability, _finish, done)
        try:
            await asyncio.wait_for(done, COMMIT_SECONDS_MAX)
        except TimeoutError as error:
            raise Refused(
                Reason.READ_ONLY, "the change is not on disk yet, and may never be: see the log"
            ) from error
        finally:
            self._waiting.discard(done)

    def _storage_failed(self, error: StorageFailed) -> None:
        for done in self._waiting:
            if not done.done():
                done.set_exception(error)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
