"""The few threads beside the loop: history reads, and saving state.

Rule: a thread gets a function that touches nothing of the loop's, and its result comes back to
the loop as a callback. Nothing else crosses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

HASHERS_COUNT: Final = 2
"""Passwords that are hashed at a time, 16 MiB and 50 ms of a core each: a flood of logins leaves
the other cores to those who are in."""
READERS_COUNT: Final = 4
"""History reads at a time: what a disk serves in parallel before reads only wait for each other."""


class Workers:
    """A bounded pool whose results come back to the loop (`broker.messages.readers.Readers`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, name: str, count: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._closed = False

    def submit(
        self,
        read: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
    ) -> None:
        """Run `read` in a thread; then `done` with its result or its error, on the loop. After
        `close` neither is called: whoever still asks is about to end, too."""
        if self._closed:
            return

        def finished(future: Future[T]) -> None:
            if not self._loop.is_closed() and not future.cancelled():
                self._loop.call_soon_threadsafe(tell, future)

        def tell(future: Future[T]) -> None:
            error = future.exception()
            if error is None:
                done(future.result(), None)
            elif isinstance(error, Exception):
                done(None, error)
            else:
                raise error

        self._pool.submit(read).add_done_callback(finished)

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread and wait for its result."""
        return await self._loop.run_in_executor(self._pool, function)

    def close(self) -> None:
        """Wait for what runs; what has not begun does not run."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
