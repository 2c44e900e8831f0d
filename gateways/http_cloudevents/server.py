"""The HTTP listener: what is served where, start and stop. The answers are in `handlers.py`.

    POST    /topics/{topic}                      publish: binary, structured, batch, or raw
    OPTIONS /topics/{topic}                      consent for other systems' webhooks
    POST    /topics/{topic}/subscriptions/{name}:receive | :acknowledge | :release | :reject
                                                 | :renewLock
    GET, POST        /subscriptions              list, make
    GET, PUT, DELETE /subscriptions/{name}
    GET     /healthz

The server runs on the loop of the other listeners. aiohttp parses and routes; `connection.py`
bounds what it leaves open.
"""

from __future__ import annotations

import asyncio
import errno
import random
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractResolver

from polymq.broker.port import BrokerPort
from polymq.gateways.http_cloudevents.connection import FULL, Census, Connection
from polymq.gateways.http_cloudevents.cycle_free import any_names, unknown
from polymq.gateways.http_cloudevents.handlers import Handlers, allow
from polymq.gateways.http_cloudevents.limits import Limits, WebhookSettings
from polymq.gateways.http_cloudevents.operating import WebhookControl
from polymq.gateways.http_cloudevents.publishing import Commits
from polymq.gateways.http_cloudevents.registry import Registry
from polymq.gateways.http_cloudevents.responses import problems, refuse_unknown
from polymq.gateways.http_cloudevents.shared import Shared
from polymq.gateways.http_cloudevents.sinks import SinkCounts, Sinks
from polymq.gateways.http_cloudevents.statistics import HttpStatistics
from polymq.gateways.http_cloudevents.work import InTurns
from polymq.net.connection import Context
from polymq.net.listener import CannotListen, bind
from polymq.net.loop_server import LoopServer
from polymq.net.message_counts import TrafficCounts
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource

SUBSCRIPTION_METHODS: Final = "GET, PUT, DELETE, OPTIONS"
SECRET_BYTES: Final = 8
"""Of a lock token: 64 bits, and the token is worth nothing outside its subscription."""


class Server:
    """CloudEvents over HTTP.

    Args:
        port: the engine.
        context: the loop.
        limits: bounds.
        webhooks: what an operator decides about webhooks.
        broker_name: begins the ids of wrapped messages.
        routes: more to serve, such as `/metrics`.
        clock_seconds: the time of day.
        random_part: uniform in [0, 1).
        secret: secrets of lock tokens.
        sleep: waits between deliveries.
        resolver: DNS for webhooks; the system's if None.
        webhook_tls: how sinks are trusted; the system's certificates if None.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: Limits | None = None,
        webhooks: WebhookSettings | None = None,
        broker_name: str = "polymq",
        routes: Sequence[web.AbstractRouteDef] = (),
        clock_seconds: Callable[[], float] = time.time,
        random_part: Callable[[], float] = random.random,
        secret: Callable[[], str] = lambda: secrets.token_hex(SECRET_BYTES),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resolver: AbstractResolver | None = None,
        webhook_tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = port
        self._loop = context.loop
        self._numbers = context.numbers
        self._accepts = context.accepts
        self._in_turns = InTurns(context.loop, context.turns)
        self._limits = limits or Limits()
        self._settings = webhooks or WebhookSettings()
        self._broker_name = broker_name
        self._routes = tuple(routes)
        self._clock_seconds = clock_seconds
        self._random_part = random_part
        self._secret = secret
        self._sleep = sleep
        self._resolver = resolver
        self._webhook_tls = webhook_tls
        self.census = Census()
        """Counters of connections, for metrics."""
        self.roster: Roster[Connection] = Roster(
            context.budget.share(self._limits.connections_max),
            close=self._close_newcomer,
            now=context.now,
        )
        """The connections of all ports."""
        self._stopping = False
        self._commits = Commits(port, seconds_max=self._limits.commit_seconds_max)
        self._listeners: list[LoopServer] = []
        self._runner: web.AppRunner | None = None
        self._handlers: Handlers | None = None
        self._registry: Registry | None = None
        self._sinks: Sinks | None = None

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self.roster.connections)

    @property
    def rosters(self) -> Sequence[Roster[Connection]]:
        """For metrics."""
        return (self.roster,)

    def statistics(self) -> HttpStatistics:
        """What happened since the start, and what is under way now."""
        sinks, registry = self._sinks, self._registry
        return HttpStatistics(
            connections_refused={
                "full": self.roster.refused_count,
                "slow": self.census.slow,
                "malformed": self.census.malformed,
            },
            responses={str(status): n for status, n in sorted(self.census.responses.items())},
            webhooks={} if registry is None else registry.webhook_states(),
            webhook_requests={}
            if sinks is None
            else {verdict.value: n for verdict, n in sinks.counts.answers.items()},
            webhook_request_seconds=0.0 if sinks is None else sinks.counts.seconds,
            webhook_requests_under_way=0 if sinks is None else sinks.slots.under_way,
            webhook_requests_waiting=0 if sinks is None else sinks.slots.waiting,
            dead_letters=0 if registry is None else registry.dead_letters_count,
        )

    def traffic(self) -> TrafficCounts:
        """Events and bytes since the start, those of webhooks among them. What is sent counts with
        the bytes of bodies alone."""
        census, sinks = self.census, self._sinks
        sent = SinkCounts() if sinks is None else sinks.counts
        return TrafficCounts(
            messages_received=census.events.received,
            messages_sent=census.events.sent + sent.events,
            bytes_received=census.bytes_received,
            bytes_sent=census.bytes_sent + sent.bytes_sent,
        )

    def webhook_names(self) -> frozenset[str]:
        """The names of the subscriptions that have a sink."""
        return frozenset() if self._registry is None else self._registry.webhooks

    def webhooks(self) -> WebhookControl | None:
        """For operators; None before the start."""
        return None if self._registry is None else WebhookControl(self._registry)

    # --- start and stop -----------------------------------------------------------------------

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that listen already if there are any; port 0 lets the system pick.
        Returns the bound port. Raises CannotListen."""
        limits = self._limits
        self._sinks = self._make_sinks()
        self._registry = self._make_registry(self._sinks)
        self._handlers = Handlers(
            port=self._port,
            limits=limits,
            loop=self._loop,
            in_turns=self._in_turns,
            commits=self._commits,
            registry=self._registry,
            clock_seconds=self._clock_seconds,
            events=self.census.events,
        )
        self._runner = web.AppRunner(
            self._application(self._handlers), handler_cancellation=True, access_log=None
        )
        await self._runner.setup()
        bound = list(sockets) or await self._bind(host, port)
        self._registry.start()
        return self._accept(bound, tls)

    async def listen_too(
        self, host: str, port: int, tls: TlsSource, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """One more port, after `start`. Returns it. Raises CannotListen."""
        return self._accept(list(sockets) or await self._bind(host, port), tls)

    async def _bind(self, host: str, port: int) -> list[socket.socket]:
        try:
            return await bind(self._loop, host, port)
        except OSError as error:
            raise CannotListen(_cannot_listen(host, port, error)) from error

    def _accept(self, bound: list[socket.socket], tls: TlsSource | None) -> int:
        listener = LoopServer(
            self._loop,
            make=self._connection,
            failed=self._never_made,
            tls=tls,
            refusal=FULL,
        )
        listener.open(bound)
        self._listeners.append(listener)
        host, port = bound[0].getsockname()[:2]
        self.roster.where = self.roster.where or f"{host}:{port}"
        return int(port)

    def _connection(self, address: str) -> Connection | None:
        assert self._runner is not None
        server, accepts = self._runner.server, self._accepts
        if server is None or (accepts is not None and not accepts(address)):
            return None
        make = partial(
            Connection,
            server,
            loop=self._loop,
            limits=self._limits,
            census=self.census,
            roster=self.roster,
            number=next(self._numbers),
        )
        return self.roster.admit(make, address)

    def _never_made(self, connection: asyncio.BaseProtocol) -> None:
        assert isinstance(connection, Connection)
        self.roster.gone(connection)

    def _close_newcomer(self, connection: Connection) -> None:
        if not any(listener.interrupt(connection) for listener in self._listeners):
            connection.abort()

    def change(
        self, *, connections_max: int, subscriptions_max: int, webhooks: WebhookSettings
    ) -> None:
        """What holds from now on. Connections, subscriptions and requests that there are stay."""
        self._limits = replace(
            self._limits, connections_max=connections_max, subscriptions_max=subscriptions_max
        )
        self._settings = webhooks
        self.roster.resize(connections_max)
        if self._registry is not None and self._sinks is not None:
            self._registry.change(subscriptions_max, handshake=webhooks.handshake)
            self._sinks.change(webhooks)

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, answer the long polls, let requests and deliveries end, then close.

        Safe after a start that failed, and a second time.
        """
        if self._stopping:
            return
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        if self._handlers is None or self._registry is None:
            return
        self._handlers.stop()
        self._registry.end_polls()
        assert self._runner is not None
        server = self._runner.server
        if server is not None:
            server.pre_shutdown()
            await asyncio.gather(
                server.shutdown(drain_seconds),
                self._handlers.wait_for_changes(),
                self._registry.stop(drain_seconds),
            )
        await self._runner.cleanup()
        assert self._sinks is not None
        await self._sinks.close()
        self._handlers.close()

    def _make_sinks(self) -> Sinks:
        return Sinks(
            settings=self._settings,
            limits=self._limits,
            loop=self._loop,
            clock_seconds=self._clock_seconds,
            resolver=self._resolver,
            tls=self._webhook_tls,
        )

    def _make_registry(self, sinks: Sinks) -> Registry:
        shared = Shared(
            port=self._port,
            limits=self._limits,
            loop=self._loop,
            commits=self._commits,
            sinks=sinks,
            broker_name=self._broker_name,
            random=self._random_part,
            secret=self._secret,
            sleep=self._sleep,
        )
        return Registry(shared, handshake=self._settings.handshake)

    def _application(self, handlers: Handlers) -> web.Application:
        application = web.Application(middlewares=[problems])
        router, expect = application.router, handlers.expect
        topic, named = any_names("/topics/{topic}"), any_names("/subscriptions/{name}")
        router.add_post(topic, handlers.publish, expect_handler=expect)
        router.add_route("OPTIONS", topic, handlers.consent)
        verbs = topic + "/subscriptions/{name:[^/:]+}:{verb}"
        router.add_post(verbs, handlers.pull, expect_handler=expect)
        router.add_get("/subscriptions", handlers.list_all)
        router.add_post("/subscriptions", handlers.create, expect_handler=expect)
        router.add_route("OPTIONS", "/subscriptions", allow("GET, POST, OPTIONS"))
        router.add_get(named, handlers.show)
        router.add_put(named, handlers.put, expect_handler=expect)
        router.add_delete(named, handlers.delete)
        router.add_route("OPTIONS", named, allow(SUBSCRIPTION_METHODS))
        router.add_get("/healthz", handlers.health)
        application.add_routes([*self._routes, unknown(refuse_unknown)])
        return application


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what uses it, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose a port above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
