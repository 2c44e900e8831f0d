"""The operator's listener: metrics, health, topics, users. HTTP on loopback, whatever the other
listeners bind to. Who may use it is in `access.py`; users and permissions are in
`users.py`.

Rules against web pages that a browser on this machine happens to show: the `Host` header must
name loopback (DNS rebinding), and what changes something must carry the header `X-PolyMQ-Admin`,
which no page can send to another origin without asking first, and nobody answers that question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import prometheus_client
from aiohttp import web

from polymq.admin.access import Access, named_topic
from polymq.admin.bans import BanHandlers
from polymq.admin.connections import AdminConnection, problem
from polymq.admin.mqtt import MqttHandlers
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.queries import QueryHandlers
from polymq.admin.queues import QueueHandlers
from polymq.admin.trace import TraceHandlers
from polymq.admin.users import UserHandlers
from polymq.broker.engine import Engine
from polymq.broker.port import Position, Reason, Refused, StorageFailed, TopicInfo, display_name
from polymq.errors import ExitCode, Failure
from polymq.gateways.http_cloudevents.cycle_free import unknown
from polymq.metrics.registry import metrics_route
from polymq.net.budget import Share
from polymq.net.listener import explain
from polymq.net.roster import Roster
from polymq.ports import ADMIN_HEADER, ADMIN_HOST
from polymq.settings import is_loopback

BODY_BYTES_MAX: Final = 64 * 1024
QUEUES_MAX: Final = 1024
"""Of one topic: more readers in parallel than any group has."""
COMMIT_SECONDS_MAX: Final = 10.0
"""A change that is not on disk by then is answered 503: it may still happen."""

STATUS: Final = {
    Reason.NOT_FOUND: 404,
    Reason.DIFFERENT: 409,
    Reason.LOCKED: 409,
    Reason.IN_USE: 409,
    Reason.NOT_EMPTY: 409,
    Reason.FORBIDDEN: 403,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.BAD_NAME: 400,
    Reason.BAD_ARGUMENT: 400,
    Reason.TOO_LARGE: 413,
    Reason.LIMIT: 409,
    Reason.BANNED: 403,
    Reason.RATE: 429,
    Reason.UNDECIDED: 503,
    Reason.READ_ONLY: 503,
    Reason.STORAGE_FULL: 507,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """Serves operators and their tools.

    Args:
        engine: what is administered.
        token: the operator's (`operator_token.py`).
        registry: what `/metrics` shows.
        health: the values of `/health`; `status` is `ok` or says what is wrong.
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
        registry: prometheus_client.CollectorRegistry,
        health: Callable[[], dict[str, Any]],
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
        self._access = Access(port=engine.port, admission=engine.admission, token=token)
        self._users = UserHandlers(engine, self._committed)
        names = MqttNames(engine.port, mqtt_topic)
        self._mqtt = MqttHandlers(engine, self._committed, names)
        self._queues = QueueHandlers(engine, self._committed)
        self._traces = TraceHandlers(engine, names)
        self._bans = BanHandlers(engine, self._committed, connections)
        self._registry = registry
        self._health = health
        self._store = store
        self._more = list(more)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._paused = False
        self._waiting: set[asyncio.Future[None]] = set()  # requests whose change is not on disk
        engine.core.when_failed(self._storage_failed)

    async def start(self, port: int) -> int:
        """Listen; returns the bound port. Raises Failure."""
        app = web.Application(
            client_max_size=BODY_BYTES_MAX, middlewares=[_guard, _translate, self._let_in]
        )
        app.add_routes(
            [
                metrics_route(self._registry),
                web.get("/health", self._get_health),
                web.get("/store", self._get_store),
                web.get("/topics", self._get_topics),
                web.get("/topics/{name}", self._get_topic),
                web.put("/topics/{name}", self._put_topic),
                web.patch("/topics/{name}", self._patch_topic),
                web.delete("/topics/{name}", self._delete_topic),
                *self._users.routes(),
                *self._queues.routes(),
                *self._mqtt.routes(),
                *self._bans.routes(),
                *self._traces.routes(),
                *self._more,
                *QueryHandlers(self._port).routes(),
                unknown(_refuse_unknown),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None
        try:
            self._listener = await loop.create_server(
                lambda: AdminConnection(server, loop=loop, roster=self.roster), ADMIN_HOST, port
            )
        except OSError as error:
            await self.stop()
            text = f"admin: {explain(ADMIN_HOST, port, error)}"
            raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        bound = int(self._listener.sockets[0].getsockname()[1])
        self.roster.where = f"{ADMIN_HOST}:{bound}"
        return bound

    def pause(self) -> None:
        """Answer what was asked before, and refuse everything else: the engine is closed."""
        self._paused = True
        self._traces.stop()

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        self._traces.stop()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._paused:
            raise Refused(Reason.READ_ONLY, "the broker is changing its role: try again soon")
        await self._access.check(request)
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

    async def _committed(self, position: Position) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        self._port.when_committed(position, self._port.state_durability, _finish, done)
        try:
            await asyncio.wait_for(done, COMMIT_SECONDS_MAX)
        except TimeoutError as error:
            raise Refused(
                Reason.READ_ONLY, "the change is not on disk yet, and may never be: see the log"
            ) from error
        finally:
            self._waiting.discard(done)

    def _storage_failed(self, error: StorageFailed) -> None:
        for done in self._waiting:
            if not done.done():
                done.set_exception(error)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


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
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback(_host_name(request.headers.get("Host", ""))):
        return problem(403, "this listener is for this machine only: use the host 127.0.0.1")
    if request.method not in ("GET", "HEAD") and ADMIN_HEADER not in request.headers:
        return problem(403, f"send the header {ADMIN_HEADER} with requests that change something")
    return await handler(request)


def _host_name(host: str) -> str:
    """The name in a Host header; empty if it is none."""
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""


@web.middleware
async def _translate(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        response = problem(STATUS[error.reason], error.text)
        if response.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="polymq admin"'
        return response
    except StorageFailed as error:
        return problem(503, str(error))


def _refuse_unknown(request: web.Request, allowed: Collection[str]) -> web.Response:
    if not allowed:
        return problem(404, f"there is nothing at {request.path}")
    response = problem(405, f"{request.method} is not allowed here")
    response.headers["Allow"] = ",".join(sorted(allowed))
    return response
