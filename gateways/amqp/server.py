"""AMQP's listeners, what a server says of itself, and how it stops."""

from __future__ import annotations

import platform
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from polymq.broker.port import BrokerPort, StorageFailed
from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.connection import Connection
from polymq.gateways.amqp.direct_reply import Replies
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.protocol import Work
from polymq.gateways.amqp.templates import Templates
from polymq.net.connection import Context, SocketConnection
from polymq.net.kernels.streams import Traffic
from polymq.net.listener import Listener, listen
from polymq.net.message_counts import MessageCounts, TrafficCounts
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource

ABORT_SECONDS: Final = 1.0
"""How long the loop may take to report sockets that were aborted."""

CAPABILITIES: Final[Mapping[str, bool]] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "consumer_priorities": True,
    "connection.blocked": True,
    "exchange_exchange_bindings": True,
    "direct_reply_to": True,
}


def server_properties() -> Mapping[str, Any]:
    """What connection.start says of us."""
    try:
        product_version = version("polymq")
    except PackageNotFoundError:  # run from a tree that is not installed
        product_version = "0"
    return {
        "product": "PolyMQ",
        "version": product_version,
        "platform": f"Python {platform.python_version()}",
        "cluster_name": "polymq",
        "capabilities": CAPABILITIES,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures of one server, for metrics."""

    connection_count: int
    channel_count: int
    consumer_count: int
    refused_count: int
    """Connections beyond `connections_max`."""


class Server:
    """AMQP listeners over one engine.

    Args:
        port: the engine.
        context: the loop's shared buffers and deadlines.
        new_tag: makes random consumer tags.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: Limits | None = None,
        new_tag: Callable[[], str] | None = None,
    ) -> None:
        self._port = port
        self._context = context
        self._limits = limits or Limits()
        self._new_tag = new_tag or (lambda: f"amq.ctag-{secrets.token_urlsafe(16)}")
        self._work = Work()
        self._replies = Replies()
        self._templates = Templates(port=port, count_max=self._limits.templates_max)
        self._properties = server_properties()
        self._counts = MessageCounts()
        self._bytes = Traffic()
        self._listeners: list[Listener] = []
        self._blocked = ""  # why publishers are refused now
        port.storage.when_failed(self._storage_failed)
        port.storage.when_blocked(self._storage_blocks)

    def _new_client(self, socket: Connection) -> Client:
        return Client(
            port=self._port,
            transport=socket,
            work=self._work,
            templates=self._templates,
            replies=self._replies,
            limits=self._limits,
            properties=self._properties,
            new_tag=self._new_tag,
            blocked=lambda: self._blocked,
            turns=self._context.turns,
            counts=self._counts,
        )

    def new_socket(self) -> Connection:
        """A connection for an accepted socket."""
        connection = Connection(self._context, self._limits, self._new_client)
        connection.traffic = self._bytes
        return connection

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that listen already if there are any; returns the port (port 0: one
        that the system picked).

        Raises:
            net.listener.CannotListen: with a sentence for the user.
        """
        listener = await listen(
            self._context,
            self.new_socket,
            host=host,
            port=port,
            tls=tls,
            sockets=sockets,
            connections_max=self._limits.connections_max,
        )
        self._listeners.append(listener)
        return listener.port

    def change(self, limits: Limits) -> None:
        """What holds from now on: `connections_max` at once, the others for new connections."""
        self._limits = limits
        for listener in self._listeners:
            listener.change(connections_max=limits.connections_max)

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, ask every client to close, abort those that take longer."""
        for listener in self._listeners:
            listener.stop_accepting()
        for accepted in self._sockets():
            accepted.client.stop()
        deadline = self._context.now() + drain_seconds
        for listener in self._listeners:
            left = max(0.0, deadline - self._context.now())
            if not await listener.wait_empty(left):
                for connection in list(listener.connections):
                    connection.abort()
                await listener.wait_empty(ABORT_SECONDS)

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""
        return sum(len(listener.connections) for listener in self._listeners)

    @property
    def rosters(self) -> Sequence[Roster[SocketConnection]]:
        """For metrics."""
        return [listener.roster for listener in self._listeners]

    def statistics(self) -> Statistics:
        """Figures of this moment."""
        sockets = self._sockets()
        return Statistics(
            connection_count=len(sockets),
            channel_count=sum(len(socket.client.channels) for socket in sockets),
            consumer_count=sum(socket.client.consumer_count for socket in sockets),
            refused_count=sum(one.roster.refused_count for one in self._listeners),
        )

    def traffic(self) -> TrafficCounts:
        """Messages and bytes since the start."""
        return TrafficCounts(
            messages_received=self._counts.received,
            messages_sent=self._counts.sent,
            bytes_received=self._bytes.received,
            bytes_sent=self._bytes.sent,
        )

    def _sockets(self) -> list[Connection]:
        return [
            connection
            for listener in self._listeners
            for connection in listener.connections
            if isinstance(connection, Connection)
        ]

    def _storage_failed(self, error: StorageFailed) -> None:
        for accepted in self._sockets():
            accepted.client.storage_failed(str(error))

    def _storage_blocks(self, reason: str) -> None:
        self._blocked = reason
        for accepted in self._sockets():
            accepted.client.storage_blocks(reason)
