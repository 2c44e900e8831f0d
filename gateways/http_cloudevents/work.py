"""Work of a request that may be long: done in turns with that of all other clients.

A `Work` is a generator that yields wherever the loop may do something else (`net/turns.py`), and
returns its result. The first turn begins at once, so that what is short is done without a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

from polymq.net.turns import Turns

Result = TypeVar("Result")
Work = Generator[None, None, Result]


class InTurns:
    """Does the work of one server's requests.

    Args:
        turns: shared with the connections of all protocols.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        self._loop = loop
        self._turns = turns
        self._unfinished: set[asyncio.Future[Any]] = set()

    async def do(self, work: Work[Result]) -> Result:
        """Do the work, and return its result. It is given up where the caller is cancelled."""
        ended: asyncio.Future[Result] = self._loop.create_future()
        self._take(work, ended)
        return await ended

    async def finish(self, work: Work[Result]) -> Result:
        """Likewise, but once begun it is done to its end, although nobody may wait for it."""
        ended: asyncio.Future[Result] = self._loop.create_future()
        self._take(work, ended)
        if not ended.done():
            self._unfinished.add(ended)
            ended.add_done_callback(self._finished)
        return await asyncio.shield(ended)

    async def wait_finished(self) -> None:
        """Return when all that has to be done to its end is done."""
        if self._unfinished:
            await asyncio.wait(self._unfinished)

    def _finished(self, ended: asyncio.Future[Result]) -> None:
        self._unfinished.discard(ended)
        ended.exception()  # seen, although the client may have gone

    def _take(self, work: Work[Result], ended: asyncio.Future[Result]) -> None:
        """One turn."""
        turns = self._turns
        turns.begin()
        try:
            while not ended.cancelled():
                next(work)
                if turns.is_over():
                    turns.wait(lambda: self._take(work, ended))
                    return
            work.close()
        except StopIteration as end:
            ended.set_result(end.value)
        except Exception as error:  # noqa: BLE001  (it is the caller's)
            ended.set_exception(error)
