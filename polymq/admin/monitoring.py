"""The listener for monitoring: metrics and health, for other machines than this one.

It has nothing that changes the server or shows a message. It is closed unless the operator opens
it (`[metrics]`), because metrics may have names of queues. If the operator wants it, whoever asks
for metrics has to log in as a user of the broker, who needs no rights. Health needs no login:
Kubernetes has none for its probes.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from aiohttp import web

from polymq.admin.access import principal_of
from polymq.admin.connections import AdminConnection
from polymq.admin.health import HEALTH_PATHS, Health
from polymq.admin.responses import Handler, refuse_unknown, translate
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort
from polymq.errors import ExitCode, Failure
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.metrics.exposition import Exposition, metrics_route
from polymq.net.budget import Share
from polymq.net.listener import bind, explain
from polymq.net.loop_server import LoopServer
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource

MONITORS_MAX: Final = 64
"""Connections: a few monitoring systems, and the probes of one machine."""
STOP_SECONDS: Final = 1.0
"""How long answers under way may take at a stop."""


class MonitoringServer:
    """Serves monitoring systems.

    Args:
        exposition: what `/metrics` shows.
        login: whether metrics are for users of the broker only.
        share: how many connections there may be.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        users: Users,
        exposition: Exposition,
        health: Health,
        login: bool,
        share: Share,
    ) -> None:
        self.roster: Roster[AdminConnection] = Roster(
            share, close=self._close_newcomer, now=time.monotonic
        )
        self._port = port
        self._users = users
        self._exposition = exposition
        self._health = health
        self._login = login
        self._runner: web.AppRunner | None = None
        self._listener: LoopServer | None = None

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen; returns the bound port. Raises Failure.

        Args:
            sockets: that listen already; without them, host and port are bound.
        """
        app = web.Application(client_max_size=1, middlewares=[translate, self._let_in])
        app.add_routes(
            [metrics_route(self._exposition), *self._health.routes(), unknown(refuse_unknown)]
        )
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=STOP_SECONDS
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            sockets = sockets or await bind(loop, host, port)
        except OSError as error:
            await self.stop()
            text = f"metrics: {explain(host, port, error)}"
            raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        self._listener = LoopServer(loop, make=self._connection, failed=self._never_made, tls=tls)
        self._listener.open(sockets)
        bound = int(sockets[0].getsockname()[1])
        self.roster.where = f"{host}:{bound}"
        return bound

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- connections --------------------------------------------------------------------------

    def _connection(self, address: str) -> AdminConnection | None:
        server = None if self._runner is None else self._runner.server
        if server is None:
            return None
        loop = asyncio.get_running_loop()
        make = partial(AdminConnection, server, loop=loop, roster=self.roster)
        return self.roster.admit(make, address)

    def _never_made(self, connection: asyncio.BaseProtocol) -> None:
        assert isinstance(connection, AdminConnection)
        self.roster.gone(connection)

    def _close_newcomer(self, connection: AdminConnection) -> None:
        if self._listener is None or not self._listener.interrupt(connection):
            connection.abort()

    # --- requests -----------------------------------------------------------------------------

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._login and request.path not in HEALTH_PATHS:
            await self._check(request)
        assert isinstance(request.protocol, AdminConnection)
        request.protocol.proven()
        return await handler(request)

    async def _check(self, request: web.Request) -> None:
        """Raises Refused: NOT_AUTHENTICATED."""
        scheme = request.headers.get("Authorization", "").partition(" ")[0]
        if scheme.lower() != "basic":
            text = "log in as a user of the broker, by HTTP Basic"
            raise Refused(Reason.NOT_AUTHENTICATED, text)
        if not self._users.closed:
            text = "there are no users yet: create one (polymq user add), and log in"
            raise Refused(Reason.NOT_AUTHENTICATED, text)
        await principal_of(self._port, request)
