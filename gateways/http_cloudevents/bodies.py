"""Reading request bodies within bounds of time, size and number.

aiohttp reads a body as it comes and checks its size only then; here a declared size is checked
first (also before `100 Continue`), the whole body has a deadline, and all bodies that are in
memory count against one budget.

aiohttp would decompress whatever arrives: before the login, and also bodies that no handler reads,
because it reads on after the answer. So that is turned off (`connection.py`), and a body is
decoded here, for a handler that wants it (`content_codings.py`). A few KiB may stand for many MiB,
so a request pauses after each slice, and of all requests that paused one goes on in each iteration
of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from aiohttp import web

from polymq.gateways.http_cloudevents.attributes import printable
from polymq.gateways.http_cloudevents.content_codings import (
    ACCEPTED,
    PIECE_BYTES,
    BrokenCoding,
    Decoder,
    content_coding,
)
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.limits import Limits

SLICE_BYTES: Final = 1024 * 1024
"""Of one body, read without a pause: some 3 ms where it has to be decoded."""


class Budget:
    """Publish requests under way, and the bytes of their bodies."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests = 0
        self._bytes = 0
        self._paused: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    @contextlib.contextmanager
    def request(self) -> Iterator[Share]:
        """One request's share, given back at the end. Raises Problem: 429."""
        if self._requests >= self._limits.pending_requests_max:
            raise _busy(f"{self._requests} requests wait for the disk")
        self._requests += 1
        share = Share(self)
        try:
            yield share
        finally:
            self._requests -= 1
            self._bytes -= share.size

    def grow(self, size: int) -> None:
        """Count bytes. The first body is always taken, whatever its size."""
        if self._bytes and self._bytes + size > self._limits.pending_bytes_max:
            raise _busy(f"{self._bytes} bytes wait for the disk")
        self._bytes += size

    async def pause(self) -> None:
        """Return in a later iteration of the loop, when all that paused before have gone on."""
        turn = asyncio.get_running_loop().create_future()
        self._paused.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        while self._paused:
            turn = self._paused.popleft()
            if not turn.done():  # its request was cancelled meanwhile
                turn.set_result(None)
                break
        if self._paused:
            self._schedule()


class Share:
    """What one request holds of the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> None:
        """Take more bytes. Raises Problem: 429."""
        self._budget.grow(size)
        self.size += size


def _busy(text: str) -> Problem:
    return Problem(429, "Too many requests under way", f"{text}; send slower")


def check_declared_size(request: web.Request, size_max: int) -> None:
    """Raise Problem, 413, if the declared size is over the bound."""
    declared = request.content_length
    if declared is not None and declared > size_max:
        raise _too_large(f"the body has {declared} bytes", size_max)


async def read_body(
    request: web.Request,
    *,
    size_max: int,
    seconds_max: float,
    pause: Callable[[], Awaitable[None]],
    share: Share | None = None,
) -> bytes:
    """The whole body, decoded.

    Args:
        size_max: of the body, as it comes and decoded.
        pause: see `Budget.pause`.
        share: what it counts against; None for small bodies.

    Raises:
        Problem: 400, 408, 413, 415, 429.
    """
    check_declared_size(request, size_max)
    coding = _coding(request)
    decoder = None if coding is None else Decoder(coding)
    parts: list[bytes] = []
    received = size = 0
    # Small bodies that arrive together are decoded without a pause; the rest of each larger waits.
    slice_end = SLICE_BYTES if decoder is None else PIECE_BYTES
    try:
        async with asyncio.timeout(seconds_max):
            while chunk := await request.content.readany():
                received += len(chunk)
                if received > size_max:
                    raise _too_large(f"the body has more than {size_max} bytes", size_max)
                for piece in (chunk,) if decoder is None else decoder.decode(chunk):
                    size += len(piece)
                    if size > size_max:
                        raise _too_large(
                            f"the decoded body has more than {size_max} bytes", size_max
                        )
                    if share is not None:
                        share.grow(len(piece))
                    parts.append(piece)
                    if size >= slice_end:
                        await pause()
                        slice_end = size + SLICE_BYTES
            if decoder is not None:
                decoder.finish()
    except TimeoutError:
        raise Problem(
            408, "Body too slow", f"the body did not arrive within {seconds_max:g} seconds"
        ) from None
    except (web.RequestPayloadError, BrokenCoding) as error:
        raise Problem(400, "Broken body", f"the body cannot be read: {error}") from None
    return b"".join(parts)


def _coding(request: web.Request) -> str | None:
    """The content coding of the body. Raises Problem, 415."""
    try:
        return content_coding(request.headers.getall("Content-Encoding", []))
    except ValueError as error:
        raise Problem(
            415,
            "Unsupported content coding",
            f"the body is encoded as {printable(str(error))}; send it plain, or in one of "
            f"{ACCEPTED}",
            headers={"Accept-Encoding": ACCEPTED},
        ) from None


def _too_large(text: str, size_max: int) -> Problem:
    return Problem(413, "Body too large", f"{text} and the limit is {size_max}; split the batch")
