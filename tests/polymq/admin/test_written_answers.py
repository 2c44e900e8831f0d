"""Long answers that are written while they are made: others have their turn in between."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from polymq.admin import written_answers
from polymq.admin.written_answers import PART_BYTES, Steps, written

PARTS = 20
"""More than one write, and less than a socket takes at once."""


def test_a_client_that_reads_fast_leaves_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is written to such a client goes out at once, so no write waits. Each part takes longer
    than a slice here, and the loop goes on after each."""
    monkeypatch.setattr(written_answers, "SLICE_SECONDS", 0.0)
    turns: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        loop, count = asyncio.get_running_loop(), 0

        def turn() -> None:
            nonlocal count
            count += 1
            if len(turns) < PARTS:
                loop.call_soon(turn)

        def steps() -> Steps:
            for _ in range(PARTS):
                turns.append(count)
                yield b" " * PART_BYTES

        loop.call_soon(turn)
        return await written(request, steps())

    async def ask() -> int:
        application = web.Application()
        application.router.add_get("/", answer)
        async with TestClient(TestServer(application)) as client:
            response = await client.get("/")
            return len(await response.read())

    assert asyncio.run(ask()) == PARTS * PART_BYTES
    assert len(set(turns)) == PARTS, "no two parts were made in one turn of the loop"
