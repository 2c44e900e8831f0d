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
    first = await _next_part(steps)
    if first is None or request.method == "HEAD":
        steps.close()
        return web.Response(content_type=JSON, headers=more)
    following = await _next_part(steps)
    if following is None:  # it is short, as nearly all are
        return web.Response(body=first, content_type=JSON, headers=more)
    response = web.StreamResponse(headers={**more, "Content-Type": JSON})
    with contextlib.closing(steps):
        await response.prepare(request)
        await response.write(first)
        part: bytes | None = following
        while part is not None:
            await response.write(part)
            part = await _next_part(steps)
        await response.write_eof()
    return response


async def _next_part(steps: Steps) -> bytes | None:
    """Make at least PART_BYTES more, with pauses for others; None at the end."""
    parts: list[bytes] = []
    size, begin = 0, time.perf_counter()
    for part in steps:
        if part is not None:
            parts.append(part)
            size += len(part)
            if size >= PART_BYTES:
                break
        if time.perf_counter() - begin > SLICE_SECONDS:
            await asyncio.sleep(0)
            begin = time.perf_counter()
    return b"".join(parts) if parts else None
