"""Long answers, of which parts are written while the others are made."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Mapping
from typing import Final

from aiohttp import web

from polymq.steps import SLICE_SECONDS

JSON: Final = "application/json"
PART_BYTES: Final = 64 * 1024
"""As many go out at once, at least."""

Steps = Generator[bytes | None, None, None]
"""Parts of an answer; None: nothing yet, let others have their turn."""


async def written(
    request: web.Request, steps: Steps, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Answer with JSON that is made in steps. What the steps raise before their first part is
    raised here, before anything is written."""
    more = dict(headers or {})
    parts = _Parts(steps)
    first = await parts.following()
    if first is None or request.method == "HEAD":
        steps.close()
        return web.Response(content_type=JSON, headers=more)
    following = await parts.following()
    if following is None:  # it is short, as nearly all are
        return web.Response(body=first, content_type=JSON, headers=more)
    response = web.StreamResponse(headers={**more, "Content-Type": JSON})
    with contextlib.closing(steps):
        await response.prepare(request)
        await response.write(first)
        part: bytes | None = following
        while part is not None:
            await response.write(part)
            part = await parts.following()
        await response.write_eof()
    return response


class _Parts:
    """Makes the parts of an answer, with pauses for others. A client that reads fast makes no
    pause: what is written to it goes to the socket at once, so the parts share their time."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._begin = time.perf_counter()

    async def following(self) -> bytes | None:
        """At least PART_BYTES more; None at the end."""
        parts: list[bytes] = []
        size = 0
        for part in self._steps:
            if part is not None:
                parts.append(part)
                size += len(part)
            if time.perf_counter() - self._begin > SLICE_SECONDS:
                await asyncio.sleep(0)
                self._begin = time.perf_counter()
            if size >= PART_BYTES:
                break
        return b"".join(parts) if parts else None
