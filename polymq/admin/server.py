"""The operators' listeners: the admin API, metrics and health over HTTP.

One is on loopback, whatever the other listeners bind to. A second one is for operators and consoles
of other machines, if `admin.host` names an address. Who may use them is in `access.py`.

Rules against web pages that an operator's browser happens to show:

* On loopback, the `Host` header must name loopback (DNS rebinding).
* What changes something must carry the header `X-PolyMQ-Admin` or a body of JSON, which no page can
  send to another origin without asking first, and nobody answers that question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from polymq import program_version
from polymq.admin.access import Access, named_topic
from polymq.admin.api import api_routes
from polymq.admin.bans import BanHandlers
from polymq.admin.caller import caller_group
from polymq.admin.commits import Commits
from polymq.admin.connections import AdminConnection, problem
from polymq.admin.exposition import Exposition, metrics_route
from polymq.admin.health import Health
from polymq.admin.mqtt import MqttHandlers
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import API_PATH
from polymq.admin.queries import QueryHandlers
from polymq.admin.queues import QueueHandlers
from polymq.admin.responses import Handler, refuse_unknown, translate
from polymq.admin.topics import TopicHandlers
from polymq.admin.trace import TraceHandlers
from polymq.admin.users import UserHandlers
from polymq.broker.engine import Engine
from polymq.broker.port import Reason, Refused, TopicInfo, display_name
from polymq.errors import ExitCode, Failure
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.net.budget import Share
from polymq.net.listener import bind, explain
from polymq.net.loop_server import LoopServer
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.ports import ADMIN_HEADER, ADMIN_HOST
from polymq.settings import is_loopback

BODY_BYTES_MAX: Final = 64 * 1024
QUEUES_MAX: Final = 1024
"""Of one topic: more readers in parallel than any group has."""


class AdminServer:
    """Serves operators and their tools.

    Args:
        engine: what is administered.
        token: the operator's (`operator_token.py`).
        exposition: what `/metrics` shows.
        health: the values of `/health`; `status` is `ok` or says what is wrong.
        probes: the paths below `/health`.
        store: the values of `/store`: the log, its disk, and who holds the oldest segment.
        more: routes of other parts of the server.
        share: how many connections there may be.
        mqtt_topic: the setting `mqtt.topic`.
        connections: all connections of the listeners for clients.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        token: str,
        exposition: Exposition,
        health: Callable[[], dict[str, Any]],
        probes: Health,
        store: Callable[[], dict[str, Any]],
        more: Iterable[web.RouteDef] = (),
        share: Share,
        mqtt_topic: str = "",
        connections: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self.roster: Roster[AdminConnection] = Roster(
            share, close=AdminConnection.abort, now=time.monotonic
        )
        self._port = engine.port
        self._committed = committed = Commits(engine).committed
        self._access = Access(port=engine.port, admission=engine.admission, token=token)
        self._users = UserHandlers(engine, committed)
        names = MqttNames(engine.port, mqtt_topic)
        self._mqtt = MqttHandlers(engine, committed, names)
        self._groups = [
            caller_group(),
            TopicHandlers(engine, committed).group(),
            QueueHandlers(engine, committed).group(),
        ]
        self._traces = TraceHandlers(engine, names)
        self._bans = BanHandlers(engine, committed, connections)
        self._exposition = exposition
        self._probes = probes
        self._health = health
        self._store = store
        self._more = list(more)
        self._runners: list[web.AppRunner] = []
        self._listeners: list[LoopServer] = []
        self._paused = False

    async def start(self, port: int) -> int:
        """Listen on loopback; returns the bound port. Raises Failure."""
        app = self._application(is_local=True)
        app.add_routes(
            [
                metrics_route(self._exposition),
                *self._probes.routes(),
                web.get("/health", self._get_health),
                web.get("/store", self._get_store),
                web.get("/topics", self._get_topics),
                web.get("/topics/{name}", self._get_topic),
                web.put("/topics/{name}", self._put_topic),
                web.patch("/topics/{name}", self._patch_topic),
                web.delete("/topics/{name}", self._delete_topic),
                *self._users.routes(),
                *self._mqtt.routes(),
                *self._bans.routes(),
                *self._traces.routes(),
                *self._more,
                *QueryHandlers(self._port).routes(),
                unknown(refuse_unknown),
            ]
        )
        bound = await self._listen(app, ADMIN_HOST, port, None)
        self.roster.where = f"{ADMIN_HOST}:{bound}"
        return bound

    async def start_remote(self, host: str, port: int, tls: TlsSource | None) -> int:
        """Let operators of other machines use the API; returns the bound port. Raises Failure."""
        app = self._application(is_local=False)
        app.add_routes([unknown(refuse_unknown)])
        return await self._listen(app, host, port, tls)

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
        self, app: web.Application, host: str, port: int, tls: TlsSource | None
    ) -> int:
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._runners.append(runner)
        server, loop = runner.server, asyncio.get_running_loop()
        assert server is not None
        try:
            bound = await bind(loop, host, port)
        except OSError as error:
            await self.stop()
            text = f"admin: {explain(host, port, error)}"
            raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        make = partial(AdminConnection, server, loop=loop, roster=self.roster)
        listener = LoopServer(
            loop, make=partial(self.roster.admit, make), failed=self._never_made, tls=tls
        )
        listener.open(bound)
        self._listeners.append(listener)
        return int(bound[0].getsockname()[1])

    def _never_made(self, connection: asyncio.BaseProtocol) -> None:
        assert isinstance(connection, AdminConnection)
        self.roster.gone(connection)

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

    async def _get_store(self, _request: web.Request) -> web.Response:
        return web.json_response(self._store())

    async def _get_topics(self, _request: web.Request) -> web.Response:
        topics = sorted(self._port.topics.infos(), key=lambda topic: topic.name)
        return web.json_response({"topics": [_topic_value(topic) for topic in topics]})

    async def _get_topic(self, request: web.Request) -> web.Response:
        name = named_topic(request)
        topic = self._port.topics.info(name)
        if topic is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(name)!r}")
        return web.json_response(_topic_value(topic))

    async def _put_topic(self, request: web.Request) -> web.Response:
        name = named_topic(request)
        count = _queue_count(request.query.get("queues", "1"))
        settings = {key: value for key, value in request.query.items() if key != "queues"}
        existed = self._port.topics.info(name) is not None
        if not existed:
            await self._committed(self._port.topics.create(name, count, settings))
        topic = self._port.topics.info(name)
        if topic is None:
            raise Refused(Reason.NOT_FOUND, f"topic {name!r} was deleted at the same time")
        return web.json_response(_topic_value(topic), status=200 if existed else 201)

    async def _patch_topic(self, request: web.Request) -> web.Response:
        name = named_topic(request)
        await self._committed(self._port.topics.set(name, dict(request.query)))
        return await self._get_topic(request)

    async def _delete_topic(self, request: web.Request) -> web.Response:
        await self._committed(self._port.topics.delete(named_topic(request)))
        return web.Response(status=204)


def _queue_count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= QUEUES_MAX:
        raise Refused(
            Reason.BAD_ARGUMENT, f"a topic can have 1 to {QUEUES_MAX} queues, not {text!r}"
        )
    return int(text)


def _topic_value(topic: TopicInfo) -> dict[str, Any]:
    queues = [
        {"queue": number, "first_offset": first, "end_offset": end}
        for number, (first, end) in enumerate(
            zip(topic.min_offsets, topic.max_offsets, strict=True)
        )
    ]
    count = sum(topic.max_offsets) - sum(topic.min_offsets)
    return {
        "name": display_name(topic.name),
        "message_count": count,
        "queues": queues,
        "settings": dict(topic.settings),
        "own_settings": list(topic.own_settings),
    }


@web.middleware
async def _guard_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback(_host_name(request.headers.get("Host", ""))):
        return problem(403, "this listener is for this machine only: use the host 127.0.0.1")
    return await handler(request)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method in ("GET", "HEAD") or ADMIN_HEADER in request.headers:
        return await handler(request)
    if request.path.startswith(API_PATH):
        # Browsers ask before they send these to another origin.
        if request.method != "POST" or request.content_type == "application/json":
            return await handler(request)
        text = f"send the content type application/json or the header {ADMIN_HEADER} with a POST"
        return problem(403, text)
    return problem(403, f"send the header {ADMIN_HEADER} with requests that change something")


def _host_name(host: str) -> str:
    """The name in a Host header; empty if it is none."""
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""
