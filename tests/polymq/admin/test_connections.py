"""Connections to the operator's listener that ask for nothing."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from polymq.admin import connections as admin_connections
from polymq.admin.connections import AdminConnection
from polymq.net.budget import Budget
from polymq.net.roster import Roster


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold a descriptor for ever. One that has made a valid request may be silent."""
    monkeypatch.setattr(admin_connections, "FIRST_SECONDS_MAX", 0.02)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        made: list[AdminConnection] = []
        roster: Roster[AdminConnection] = Roster(
            Budget().share(10), close=AdminConnection.abort, now=loop.time
        )

        def connect() -> AdminConnection:
            connection = roster.admit(
                lambda: AdminConnection(server, loop=loop, roster=roster), "127.0.0.1"
            )
            assert connection is not None
            made.append(connection)
            return connection

        async def answer(_request: web.BaseRequest) -> web.Response:
            made[0].proven()
            return web.Response(text="ok")

        server = web.Server(answer)
        listener = await loop.create_server(connect, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        silent, _writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(10):
            assert await silent.read() == b""
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(10):
            while b"HTTP/1.1 200 " not in await reader.readline():
                pass
        writer.close()
        _writer.close()
        listener.close()
        await server.shutdown()

    asyncio.run(scenario())
