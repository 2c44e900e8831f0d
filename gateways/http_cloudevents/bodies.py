"""Reading request bodies within bounds of time, size and number.

aiohttp reads a body as it comes and checks its size only then; here a declared size is checked
first (also before `100 Continue`), the whole body has a deadline, and all bodies that are in
memory count against one budget.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aiohttp import web

from gateways.http_cloudevents.errors import Problem
from gateways.http_cloudevents.limits import HttpLimits


class Budget:
    """Publish requests under way, and the bytes of their bodies."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._requests = 0
        self._bytes = 0

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
    request: web.Request, *, size_max: int, seconds_max: float, share: Share | None = None
) -> bytes:
    """The whole body, decompressed.

    Raises:
        Problem: 413, 408, 429.
    """
    check_declared_size(request, size_max)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds_max):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > size_max:
                    raise _too_large(f"the body has more than {size_max} bytes", size_max)
                if share is not None:
                    share.grow(len(chunk))
                parts.append(chunk)
    except TimeoutError:
        raise Problem(
            408, "Body too slow", f"the body did not arrive within {seconds_max:g} seconds"
        ) from None
    except web.RequestPayloadError as error:
        raise Problem(400, "Broken body", f"the body cannot be read: {error}") from None
    return b"".join(parts)


def _too_large(text: str, size_max: int) -> Problem:
    return Problem(413, "Body too large", f"{text} and the limit is {size_max}; split the batch")
