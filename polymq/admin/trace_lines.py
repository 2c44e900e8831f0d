"""The lines of a trace on their way to who reads it: bounded, and never in anybody's way."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

LINES_MAX: Final = 10_000
"""That wait for who reads a trace: some MiB."""


class TraceLines:
    """Lines that wait. What finds no room is dropped, and counted.

    Args:
        request: who reads them.

    Attributes:
        dropped_all: lines that found no room.
        is_over: the trace was ended; what waits is still read.
    """

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.dropped_all = 0
        self.is_over = False
        self._lines: deque[str] = deque()
        self._dropped = 0  # since the last line that says so
        self._woken = asyncio.Event()

    def add(self, line: Mapping[str, Any]) -> None:
        """One more line."""
        if len(self._lines) >= LINES_MAX:
            self.drop(1)
            return
        self._lines.append(json.dumps(line) + "\n")
        self._woken.set()

    def drop(self, count: int) -> None:
        """So many are not shown."""
        self._dropped += count
        self.dropped_all += count

    def take(self, count: int) -> list[str]:
        """The next lines; behind the last of them, how many were dropped."""
        lines = [self._lines.popleft() for _ in range(min(count, len(self._lines)))]
        if not self._lines and self._dropped:
            lines.append(json.dumps({"dropped": self._dropped}) + "\n")
            self._dropped = 0
        return lines

    def close(self) -> None:
        """No more lines come."""
        self.is_over = True
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Until there is a line, or the time is over."""
        self._woken.clear()
        if self._lines or self.is_over:
            return
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return
