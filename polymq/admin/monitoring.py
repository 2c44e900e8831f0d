"""The listener for monitoring: metrics and health, for other machines than this one.

It has nothing that changes the server or shows a message. It is closed unless the operator opens
it (`[metrics]`), because metrics may have names of queues. If the operator wants it, whoever asks
for metrics has to log in as a user of the broker, who needs no rights. Health needs no login:
Kubernetes has none for its probes. Banned addresses may not connect.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from polymq.admin.access import principal_of
from polymq.admin.connections import AdminConnection
from polymq.admin.health import HEALTH_PATHS, Health
from polymq.admin.responses import Handler, refuse_unknown, translate
from polymq.admin.web_listener import WebListener
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.metrics.exposition import Exposition, metrics_route
from polymq.net.budget import Share
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
        accepts: whether an address is not banned.
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
        accepts: Callable[[str], bool],
    ) -> None:
        self._accepts = accepts
        self._listener = WebListener("metrics", share, stop_seconds=STOP_SECONDS)
        self.roster = self._listener.roster
        self._port = port
        self._users = users
        self._exposition = exposition
        self._health = health
        self._login = login

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
        return await self._listener.open(app, host, port, tls, sockets, accepts=self._accepts)

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        await self._listener.stop()

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
