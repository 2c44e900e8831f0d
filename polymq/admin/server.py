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

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

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
from polymq.admin.web_listener import WebListener
from polymq.broker.port import Reason, Refused
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.host_header import names_this_machine
from polymq.metrics.exposition import Exposition, metrics_route
from polymq.net.budget import Share
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.ports import ADMIN_HEADER, ADMIN_HOST

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
        self._listener = WebListener("admin", share)
        self._remote: WebListener | None = None
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
            lambda: chain(connections(), *(one.connections for one in self.rosters)),
        )
        self._groups += more
        self._exposition = exposition
        self._probes = probes
        self._health = health
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
        return await self._listener.open(app, ADMIN_HOST, port, sockets=sockets)

    async def start_remote(
        self,
        host: str,
        port: int,
        tls: TlsSource | None,
        share: Share,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Let operators of other machines use the API; returns the bound port. Raises Failure.

        Args:
            share: how many connections there may be on this port: whoever fills it does not keep
                out those on loopback.
        """
        app = self._application(is_local=False)
        app.add_routes([unknown(refuse_unknown)])
        remote = self._remote = WebListener("api", share)
        return await remote.open(app, host, port, tls, sockets, accepts=self._accepts)

    @property
    def rosters(self) -> Sequence[Roster[AdminConnection]]:
        """The connections on loopback, and those on the other port if it is open."""
        listeners = (self._listener, self._remote)
        return [one.roster for one in listeners if one is not None]

    def _application(self, *, is_local: bool) -> web.Application:
        let_in = partial(self._let_in, is_local=is_local)
        guards = [_guard_host, _guard] if is_local else [_guard]
        app = web.Application(
            client_max_size=BODY_BYTES_MAX,
            middlewares=[*guards, translate, web.middleware(let_in)],
        )
        app.add_routes(api_routes(self._groups, program_version()))
        return app

    def pause(self) -> None:
        """Answer what was asked before, and refuse everything else: the engine is closed."""
        self._paused = True
        self._traces.stop()

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        self._traces.stop()
        if self._remote is not None:
            await self._remote.stop()
        await self._listener.stop()

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
    if not names_this_machine(request.headers.get("Host", "")):
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
