"""The operators' listeners: the admin API, metrics and health over HTTP.

One is on loopback, whatever the other listeners bind to. A second one is for operators and consoles
of other machines, if `api.enabled` is set; banned addresses may not connect there. Both serve the
same operations (`groups.py`). Who may use them is in `access.py`.

Rules against web pages that an operator's browser happens to show:

* On loopback, the `Host` header must name loopback (DNS rebinding).
* A POST must have the content type of JSON or the header `X-PolyMQ-Admin`, which no page can send
  to another origin without asking first. Nobody answers that question, nor that for other methods.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from polymq import program_version
from polymq.admin.access import Access
from polymq.admin.api import api_routes
from polymq.admin.commits import Commits
from polymq.admin.connections import AdminConnection, problem
from polymq.admin.groups import all_groups
from polymq.admin.health import Health
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.node import ShownNode
from polymq.admin.operations import Group
from polymq.admin.responses import Handler, refuse_unknown, translate
from polymq.admin.trace import TraceHandlers
from polymq.broker.port import Reason, Refused
from polymq.errors import ExitCode, Failure
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.metrics.exposition import Exposition, metrics_route
from polymq.net.budget import Share
from polymq.net.listener import bind, explain
from polymq.net.loop_server import LoopServer
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.ports import ADMIN_HEADER, ADMIN_HOST
from polymq.settings import is_loopback

BODY_BYTES_MAX: Final = 64 * 1024


class AdminServer:
    """Serves operators and their tools.

    Args:
        node: what is administered.
        token: the operator's (`operator_token.py`).
        exposition: what `/metrics` shows.
        health: the values of `/health`; `status` is `ok` or says what is wrong.
        probes: the paths below `/health`.
        share: how many connections there may be.
        connections: all connections of the listeners for clients.
        more: operations of other parts of the program.
    """

    def __init__(
        self,
        *,
        node: ShownNode,
        token: str,
        exposition: Exposition,
        health: Callable[[], dict[str, Any]],
        probes: Health,
        share: Share,
        connections: Callable[[], Iterable[Any]] = tuple,
        more: Iterable[Group] = (),
    ) -> None:
        self.roster: Roster[AdminConnection] = Roster(
            share, close=self._close_newcomer, now=time.monotonic
        )
        engine = node.engine
        self._access = Access(port=engine.port, admission=engine.admission, token=token)
        self._accepts = engine.bans.accepts
        names = MqttNames(engine.port, node.settings.mqtt.topic)
        self._traces = TraceHandlers(engine, names)
        self._groups = all_groups(
            node,
            Commits(engine).committed,
            names,
            self._traces,
            lambda: chain(connections(), self.roster.connections),
        )
        self._groups += more
        self._exposition = exposition
        self._probes = probes
        self._health = health
        self._runners: list[web.AppRunner] = []
        self._listeners: list[LoopServer] = []
        self._paused = False

    async def start(self, port: int, sockets: Sequence[socket.socket] = ()) -> int:
        """Listen on loopback, on sockets that listen already if there are any; returns the bound
        port. Raises Failure."""
        app = self._application(is_local=True)
        app.add_routes(
            [
                metrics_route(self._exposition),
                *self._probes.routes(),
                web.get("/health", self._get_health),
                unknown(refuse_unknown),
            ]
        )
        bound = await self._listen(app, ADMIN_HOST, port, None, sockets)
        self.roster.where = f"{ADMIN_HOST}:{bound}"
        return bound

    async def start_remote(
        self,
        host: str,
        port: int,
        tls: TlsSource | None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Let operators of other machines use the API; returns the bound port. Raises Failure."""
        app = self._application(is_local=False)
        app.add_routes([unknown(refuse_unknown)])
        return await self._listen(app, host, port, tls, sockets, is_local=False)

    def _application(self, *, is_local: bool) -> web.Application:
        let_in = partial(self._let_in, is_local=is_local)
        guards = [_guard_host, _guard] if is_local else [_guard]
        app = web.Application(
            client_max_size=BODY_BYTES_MAX,
            middlewares=[*guards, translate, web.middleware(let_in)],
        )
        app.add_routes(api_routes(self._groups, program_version()))
        return app

    async def _listen(
        self,
        app: web.Application,
        host: str,
        port: int,
        tls: TlsSource | None,
        sockets: Sequence[socket.socket],
        *,
        is_local: bool = True,
    ) -> int:
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._runners.append(runner)
        server, loop = runner.server, asyncio.get_running_loop()
        assert server is not None
        try:
            bound = list(sockets) or await bind(loop, host, port)
        except OSError as error:
            await self.stop()
            text = f"admin: {explain(host, port, error)}"
            raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        make = partial(self._admit, server, is_local=is_local)
        listener = LoopServer(loop, make=make, failed=self._never_made, tls=tls)
        listener.open(bound)
        self._listeners.append(listener)
        return int(bound[0].getsockname()[1])

    def _admit(self, server: web.Server, address: str, *, is_local: bool) -> AdminConnection | None:
        """A connection for an address, if it may have one. Bans do not concern this machine."""
        if not is_local and not self._accepts(address):
            return None
        make = partial(
            AdminConnection,
            server,
            loop=asyncio.get_running_loop(),
            roster=self.roster,
            address="" if is_local else address,
        )
        return self.roster.admit(make, address)

    def _never_made(self, connection: asyncio.BaseProtocol) -> None:
        assert isinstance(connection, AdminConnection)
        self.roster.gone(connection)

    def _close_newcomer(self, connection: AdminConnection) -> None:
        """To make room. Its transport may not be made yet."""
        if not any(listener.interrupt(connection) for listener in self._listeners):
            connection.abort()

    def pause(self) -> None:
        """Answer what was asked before, and refuse everything else: the engine is closed."""
        self._paused = True
        self._traces.stop()

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        self._traces.stop()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    async def _let_in(
        self, request: web.Request, handler: Handler, *, is_local: bool
    ) -> web.StreamResponse:
        if self._paused:
            raise Refused(Reason.READ_ONLY, "the broker is changing its role: try again soon")
        await self._access.check(request, is_local=is_local)
        assert isinstance(request.protocol, AdminConnection)
        request.protocol.proven()
        return await handler(request)

    # --- handlers -------------------------------------------------------------------------

    async def _get_health(self, _request: web.Request) -> web.Response:
        health = self._health()
        return web.json_response(health, status=200 if health["status"] == "ok" else 503)


@web.middleware
async def _guard_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback(_host_name(request.headers.get("Host", ""))):
        return problem(403, "this listener is for this machine only: use the host 127.0.0.1")
    return await handler(request)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    # Browsers ask before they send other methods to another origin.
    if (
        request.method == "POST"
        and request.content_type != "application/json"
        and ADMIN_HEADER not in request.headers
    ):
        text = f"send the content type application/json or the header {ADMIN_HEADER} with a POST"
        return problem(403, text)
    return await handler(request)


def _host_name(host: str) -> str:
    """The name in a Host header; empty if it is none."""
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""
