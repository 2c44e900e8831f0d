"""Bodies that are there as a whole are read in slices."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from polymq.gateways.http_cloudevents.bodies import SLICE_BYTES, Budget, read_body
from polymq.gateways.http_cloudevents.content_codings import PIECE_BYTES
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits

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


class Compressed:
    """A body that is there as a whole, in gzip."""

    def __init__(self, plain: bytes) -> None:
        self._chunks = [gzip.compress(plain), b""]

    async def readany(self) -> bytes:
        return self._chunks.pop(0)


def request(content: Content | Compressed) -> web.Request:
    headers = CIMultiDict({"Content-Encoding": "gzip"} if isinstance(content, Compressed) else {})
    return cast(
        "web.Request", SimpleNamespace(content=content, content_length=None, headers=headers)
    )


async def read(budget: Budget, content: Content | Compressed) -> bytes:
    with budget.request() as share:
        return await read_body(
            request(content), size_max=1 << 30, seconds_max=60, pause=budget.pause, share=share
        )


async def steps_of(counted: Callable[[], int]) -> list[int]:
    """By how much a number grew in each iteration of the loop, until this is cancelled."""
    steps = []
    before = counted()
    try:
        while True:
            await asyncio.sleep(0)
            steps.append(counted() - before)
            before = counted()
    except asyncio.CancelledError:
        return steps


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


def test_compressed_bodies_are_decoded_in_slices() -> None:
    """Of each body one piece at once, and of all of them one slice in each iteration."""
    budget = Budget(HttpLimits(pending_bytes_max=1 << 30))
    plain = bytes(5 * SLICE_BYTES)
    requests = 8

    async def test() -> list[int]:
        counting = asyncio.ensure_future(steps_of(lambda: budget._bytes))
        reading = [asyncio.ensure_future(read(budget, Compressed(plain))) for _ in range(requests)]
        await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        counting.cancel()
        steps = await counting
        assert await asyncio.gather(*reading) == [plain] * requests
        return steps

    steps = asyncio.run(test())
    assert max(steps) <= max(requests * PIECE_BYTES, SLICE_BYTES + PIECE_BYTES)


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
