"""Bodies that are there as a whole are read in slices."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from gateways.http_cloudevents.bodies import SLICE_BYTES, Budget, read_body
from gateways.http_cloudevents.limits import HttpLimits

CHUNK = b"x" * (SLICE_BYTES // 4)
CHUNKS = 20


class Iterations:
    """Counts the bytes that are read in each iteration of the loop."""

    def __init__(self) -> None:
        self.counts = [0]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.counts.append(0)


class Content:
    """A body that never has to be waited for, as one that a few KiB decompress to."""

    def __init__(self, iterations: Iterations) -> None:
        self._iterations = iterations
        self._left = CHUNKS

    async def readany(self) -> bytes:
        if not self._left:
            return b""
        self._left -= 1
        self._iterations.counts[-1] += len(CHUNK)
        return CHUNK


def request(content: Content) -> web.Request:
    return cast("web.Request", SimpleNamespace(content=content, content_length=None))


async def read(budget: Budget, content: Content) -> bytes:
    with budget.request() as share:
        return await read_body(request(content), size_max=1 << 30, seconds_max=60, share=share)


def test_bodies_that_are_there_are_read_in_slices() -> None:
    """One slice in each iteration, however many requests there are; the first is free."""
    iterations = Iterations()
    budget = Budget(HttpLimits())
    requests = 3

    async def test() -> list[bytes]:
        counting = asyncio.ensure_future(iterations.run())
        bodies = await asyncio.gather(*(read(budget, Content(iterations)) for _ in range(requests)))
        counting.cancel()
        return bodies

    assert [len(body) for body in asyncio.run(test())] == [CHUNKS * len(CHUNK)] * requests
    assert sum(iterations.counts) == requests * CHUNKS * len(CHUNK)
    busy = sorted(count for count in iterations.counts if count)
    assert max(busy[:-1]) <= SLICE_BYTES
    assert busy[-1] <= requests * SLICE_BYTES


def test_a_request_that_is_cancelled_in_a_pause_holds_nobody_up() -> None:
    iterations = Iterations()
    budget = Budget(HttpLimits())

    async def test() -> None:
        first = asyncio.ensure_future(read(budget, Content(iterations)))
        second = asyncio.ensure_future(read(budget, Content(iterations)))
        await asyncio.sleep(0)
        first.cancel()
        assert len(await second) == CHUNKS * len(CHUNK)
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(test())
