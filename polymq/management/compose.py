"""The management API, put together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from polymq import program_version
from polymq.admin.commits import Commits
from polymq.broker.engine import Engine
from polymq.management.absent import absent_routes
from polymq.management.bindings import BindingHandlers
from polymq.management.callers import Callers
from polymq.management.clients import ClientHandlers
from polymq.management.context import Context, Listener, Node
from polymq.management.definitions import DefinitionHandlers
from polymq.management.exchanges import ExchangeHandlers
from polymq.management.figures import Rates
from polymq.management.health import HealthHandlers
from polymq.management.messages import MessageHandlers
from polymq.management.overview import OverviewHandlers
from polymq.management.permissions import PermissionHandlers
from polymq.management.queues import QueueHandlers
from polymq.management.routing import Route
from polymq.management.server import CONNECTIONS_MAX, ManagementServer
from polymq.management.users import UserHandlers
from polymq.net.budget import Budget
from polymq.net.kernels.streams import clock_ms
from polymq.net.tls_source import TlsSource
from polymq.settings import Settings, is_loopback

PROTOCOLS: Final[Mapping[str, str]] = {
    "amqp": "amqp",
    "amqps": "amqp/ssl",
    "mqtt": "mqtt",
    "mqtts": "mqtt/ssl",
    "mqtt_ws": "http/web-mqtt",
    "mqtt_wss": "https/web-mqtt",
}
"""RabbitMQ's words for the listeners that it has, too."""


def listeners_of(ports: Mapping[str, int | None], host: str) -> Iterator[Listener]:
    """The open listeners for clients that RabbitMQ has a word for.

    Args:
        ports: by the names of `polymq.ports.Ports`.
    """
    for name, protocol in PROTOCOLS.items():
        port = ports.get(name)
        if port is not None:
            yield Listener(protocol=protocol, host=host, port=port)


def make_routes(engine: Engine, node: Node) -> list[Route]:
    """All that may be asked for."""
    context = Context(
        engine=engine, commits=Commits(engine), rates=Rates(time.monotonic), node=node
    )
    users, permissions = UserHandlers(context), PermissionHandlers(context)
    bindings = BindingHandlers(context)
    parts = (
        OverviewHandlers(context),
        QueueHandlers(context),
        ExchangeHandlers(context),
        bindings,
        MessageHandlers(context),
        ClientHandlers(context),
        users,
        permissions,
        DefinitionHandlers(context, users, permissions, bindings),
        HealthHandlers(context),
    )
    return [*absent_routes(), *(route for part in parts for route in part.routes())]


async def open_management(
    settings: Settings,
    engine: Engine,
    budget: Budget,
    *,
    ports: Mapping[str, int | None],
    tls: TlsSource | None,
    sockets: Sequence[socket.socket],
    health: Callable[[], str],
    connections: Callable[[], Iterable[Any]],
) -> tuple[ManagementServer, int]:
    """Listen; returns the server and its port. Raises Failure.

    Args:
        ports: the open listeners, by the names of `polymq.ports.Ports`.
        sockets: those to listen on; empty: it binds its own.
        health: `ok`, or what is wrong with the broker.
        connections: all connections of the listeners for clients.
    """
    host = settings.management.host or settings.server.host
    listeners: list[Listener] = []
    node = Node(
        name=f"polymq@{settings.names.broker}",
        cluster=settings.names.cluster,
        version=program_version(),
        data_directory=str(settings.server.data_directory),
        started_ms=clock_ms(),
        listeners=lambda: listeners,
        health=health,
        connections=connections,
        certificate=settings.tls.certificate,
        descriptors=budget.total,
    )
    server = ManagementServer(
        routes=make_routes(engine, node),
        callers=Callers(engine, is_local=is_loopback(host)),
        accepts=engine.bans.accepts,
        share=budget.share(CONNECTIONS_MAX),
    )
    port = await server.start(host, settings.management.port, tls, sockets)
    listeners += listeners_of(ports, settings.server.host)
    protocol = "http" if tls is None else "https"
    listeners.append(Listener(protocol=protocol, host=host, port=port))
    return server, port
