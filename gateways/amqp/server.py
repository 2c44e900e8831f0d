"""The socket shell: sockets to clients, heartbeats, deadlines, and the end of a server.

Knows no AMQP beyond that a client has a handshake to finish, a heartbeat, and a polite way to go.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from polymq.broker.port import BrokerPort, StorageFailed
from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.connection import Work
from polymq.gateways.amqp.direct_reply import Replies
from polymq.gateways.amqp.heartbeat import Beat, Heartbeat
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.methods import HEARTBEAT
from polymq.gateways.amqp.publishing import Templates
from polymq.net.connection import Connection, Context
from polymq.net.listener import Listener, listen
from polymq.net.roster import Roster

ABORT_SECONDS: Final = 1.0
"""How long the loop may take to report sockets that were aborted."""

FINE_HEARTBEAT_SECONDS: Final = 20
"""Heartbeats of shorter intervals have a timer of their own: a second is much of half of them."""

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


class AmqpSocket(Connection):
    """One socket and its client: `client.Transport`."""

    def __init__(self, context: Context, limits: Limits, new_client: NewClient) -> None:
        super().__init__(context)
        self.client = new_client(self)
        self._limits = limits
        self._reading_stopped = False
        self._heartbeat: Heartbeat | None = None
        self._beaten_bytes = 0  # `written_bytes` at the last tick of the heartbeat
        self._beat_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # of a fine heartbeat
        self._abort_at: float | None = None

    # --- net.Connection ---------------------------------------------------------------------

    def opened(self) -> None:
        """The protocol header has to come, and all up to connection.open, in time."""
        self.abort_in(self._limits.handshake_seconds)

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """See `net.Connection.consume`."""
        if self._heartbeat is not None:
            self._heartbeat.heard = True
        return self.client.consume(buffer, start, end)

    def drained(self) -> None:
        """See `net.Connection.drained`."""
        self.client.drained()

    def lost(self, error: Exception | None) -> None:
        """See `net.Connection.lost`."""
        if self._timer is not None:
            self._timer.cancel()
        self.client.lost()
        del self.client  # it has this as its transport

    def expired(self, now: float) -> float | None:
        """A tick of the heartbeat, or the end of somebody's patience."""
        if self._abort_at is not None and self._abort_at <= now:
            if self.client.login.is_overdue():
                return self._next_deadline()
            self.abort()
            return None
        if self._heartbeat is not None and self._beat_at is not None and self._beat_at <= now:
            # From tick to tick, so that the coarse deadlines do not add up.
            self._beat_at = max(now, self._beat_at + self._heartbeat.tick_seconds)
            if not self._beat(now):
                return None
        return self._next_deadline()

    def _beat(self, now: float) -> bool:
        """A tick of the heartbeat. False if the client is dead."""
        heartbeat = self._heartbeat
        assert heartbeat is not None
        if self._reading_stopped:  # we do not listen, so silence says nothing
            heartbeat.heard = True
        heartbeat.spoke = self.written_bytes > self._beaten_bytes
        beat = heartbeat.tick(now)
        if beat is Beat.DEAD:
            self.abort()
            return False
        if beat is Beat.SEND:
            self.write(HEARTBEAT)
        self._beaten_bytes = self.written_bytes  # a heartbeat does not count for the next tick
        return True

    def _next_deadline(self) -> float | None:
        times = [at for at in (self._abort_at, self._beat_at) if at is not None]
        return min(times) if times else None

    def fed(self) -> None:
        """See `net.Connection.fed`: who had to wait for the turn's bound may go on."""
        self.client.drained()

    # --- client.Transport -------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """See `client.Transport.full`."""
        if self.turn_bytes >= self._limits.turn_bytes_max:
            self.starved = True
            return True
        return self.paused

    def abort_in(self, seconds: float | None) -> None:
        """See `client.Transport.abort_in`."""
        self._abort_at = None if seconds is None else self.context.now() + seconds
        self.deadline(self._next_deadline())

    def proven(self) -> None:
        """See `client.Transport.proven`."""
        super().proven()
        self.abort_in(None)

    def heartbeat(self, seconds: int) -> None:
        """See `client.Transport.heartbeat`."""
        if seconds:
            now = self.context.now()
            self._heartbeat = Heartbeat(seconds, now)
            if seconds < FINE_HEARTBEAT_SECONDS:
                self._beat_in(self._heartbeat.tick_seconds)
            else:
                self._beat_at = now + self._heartbeat.tick_seconds
                self.deadline(self._next_deadline())

    def _beat_in(self, seconds: float) -> None:
        self._timer = self.context.call_later(seconds, self._beat_finely)

    def _beat_finely(self) -> None:
        """A tick of a heartbeat that deadlines, which are a second late at most, are too coarse
        for."""
        if not self.closing and self._beat(self.context.now()):
            assert self._heartbeat is not None
            self._beat_in(self._heartbeat.tick_seconds)

    def later(self, callback: Callable[[], None]) -> None:
        """See `client.Transport.later`."""
        self.context.loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """See `client.Transport.call_later`."""
        return self.context.call_later(seconds, callback).cancel

    def stop_reading(self) -> None:
        """See `client.Transport`."""
        if not self._reading_stopped:
            self._reading_stopped = True
            super().stop_reading()

    def resume_reading(self) -> None:
        """See `client.Transport`."""
        if self._reading_stopped:
            self._reading_stopped = False
            super().resume_reading()


NewClient = Callable[[AmqpSocket], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures of one server, for metrics."""

    connection_count: int
    channel_count: int
    consumer_count: int
    refused_count: int
    """Connections beyond `connections_max`."""


class AmqpServer:
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
        self._listeners: list[Listener] = []
        self._blocked = ""  # why publishers are refused now
        port.storage.when_failed(self._storage_failed)
        port.storage.when_blocked(self._storage_blocks)

    def _new_client(self, socket: AmqpSocket) -> Client:
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
        )

    def new_socket(self) -> AmqpSocket:
        """A connection for an accepted socket."""
        return AmqpSocket(self._context, self._limits, self._new_client)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port (port 0: one that the system picked).

        Raises:
            net.listener.CannotListen: with a sentence for the user.
        """
        listener = await listen(
            self._context,
            self.new_socket,
            host=host,
            port=port,
            tls=tls,
            connections_max=self._limits.connections_max,
        )
        self._listeners.append(listener)
        return listener.port

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, ask every client to close, abort those that take longer."""
        for listener in self._listeners:
            listener.stop_accepting()
        for socket in self._sockets():
            socket.client.stop()
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
    def rosters(self) -> Sequence[Roster[Connection]]:
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

    def _sockets(self) -> list[AmqpSocket]:
        return [
            connection
            for listener in self._listeners
            for connection in listener.connections
            if isinstance(connection, AmqpSocket)
        ]

    def _storage_failed(self, error: StorageFailed) -> None:
        for socket in self._sockets():
            socket.client.storage_failed(str(error))

    def _storage_blocks(self, reason: str) -> None:
        self._blocked = reason
        for socket in self._sockets():
            socket.client.storage_blocks(reason)
