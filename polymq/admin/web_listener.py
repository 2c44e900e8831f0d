"""Ports on which aiohttp answers operators and their tools, with one count of their connections."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from polymq.admin.connections import ADMIN_CONNECTIONS_MAX, AdminConnection
from polymq.errors import ExitCode, Failure
from polymq.net.budget import Share
from polymq.net.listener import bind, explain
from polymq.net.loop_server import LoopServer
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource

PER_ADDRESS_MAX: Final = ADMIN_CONNECTIONS_MAX // 2
"""Connections of one address, on ports for other machines: nobody keeps out all others."""
STOP_SECONDS: Final = 60.0
"""How long answers under way may take at a stop."""


class WebListener:
    """See the head of this file.

    Args:
        name: what messages about it begin with.
        share: how many connections there may be.
        stop_seconds: how long answers under way may take at a stop.

    Attributes:
        roster: the connections of all ports.
    """

    def __init__(self, name: str, share: Share, *, stop_seconds: float = STOP_SECONDS) -> None:
        self.roster: Roster[AdminConnection] = Roster(
            share, close=self._close_newcomer, now=time.monotonic
        )
        self._name = name
        self._stop_seconds = stop_seconds
        self._runners: list[web.AppRunner] = []
        self._servers: list[LoopServer] = []

    async def open(
        self,
        app: web.Application,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
        *,
        accepts: Callable[[str], bool] | None = None,
    ) -> int:
        """Listen on one more port; returns it.

        Args:
            app: what answers.
            sockets: that listen already; without them, host and port are bound.
            accepts: whether an address is not banned; None: bans do not concern this port.

        Raises:
            Failure: CANNOT_LISTEN, and everything is stopped.
        """
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=self._stop_seconds
        )
        await runner.setup()
        self._runners.append(runner)
        server, loop = runner.server, asyncio.get_running_loop()
        assert server is not None
        try:
            bound = list(sockets) or await bind(loop, host, port)
        except OSError as error:
            await self.stop()
            text = f"{self._name}: {explain(host, port, error)}"
            raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        make = partial(self._admit, server, accepts)
        listening = LoopServer(loop, make=make, failed=self._never_made, tls=tls)
        listening.open(bound)
        self._servers.append(listening)
        chosen = int(bound[0].getsockname()[1])
        self.roster.where = self.roster.where or f"{host}:{chosen}"
        return chosen

    async def stop(self) -> None:
        """Close the ports and what is open on them."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    def _admit(
        self, server: web.Server, accepts: Callable[[str], bool] | None, address: str
    ) -> AdminConnection | None:
        """A connection for an address, if it may have one."""
        if accepts is not None:
            if not accepts(address):
                return None
            if self._count_of(address) >= PER_ADDRESS_MAX:
                self.roster.refuse(address, f"an address may have {PER_ADDRESS_MAX} of them")
                return None
        make = partial(
            AdminConnection,
            server,
            loop=asyncio.get_running_loop(),
            roster=self.roster,
            address="" if accepts is None else address,
        )
        return self.roster.admit(make, address)

    def _count_of(self, address: str) -> int:
        return sum(one.address == address for one in self.roster.connections)

    def _never_made(self, connection: asyncio.BaseProtocol) -> None:
        assert isinstance(connection, AdminConnection)
        self.roster.gone(connection)

    def _close_newcomer(self, connection: AdminConnection) -> None:
        """To make room. Its transport may not be made yet."""
        if not any(server.interrupt(connection) for server in self._servers):
            connection.abort()
