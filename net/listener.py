"""Listening sockets, and the count of connections behind each."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from net.connection import Connection, Context
from net.plane import Acceptor, Plane

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""Handshakes that the kernel holds while the loop is busy: a fleet that reconnects at once."""
TLS_HANDSHAKE_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0
"""How long sockets that were asked to close may take before they are aborted."""
EXHAUSTED_SECONDS: Final = 1.0
"""How long nothing is accepted after the system had no descriptor or memory for a connection."""


class CannotListen(Exception):
    """The address is taken or not ours; the text says which and what to do."""


class Server(Protocol):
    """What accepts: the loop's server, or `PlaneServer`."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets."""

    def close(self) -> None:
        """Accept no more."""


class PlaneServer:
    """Listening sockets whose connections are in the socket plane."""

    def __init__(self, context: Context, plane: Plane, factory: Callable[[], Connection]) -> None:
        self.sockets: list[socket.socket] = []
        self._context = context
        self._plane = plane
        self._factory = factory
        self._acceptors: list[Acceptor] = []

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Accept what connects to these: they are ours from now on."""
        self.sockets = list(sockets)
        for index, listening in enumerate(sockets):
            exhausted = partial(self._exhausted, index)
            acceptor = self._plane.accept(listening.fileno(), self._factory, exhausted)
            self._acceptors.append(acceptor)

    def _exhausted(self, index: int, error: OSError) -> None:
        """The kernel keeps those who connect now; they are accepted later."""
        log.warning(
            "no new connections for %g s: %s. Connections that exist go on; "
            "allow more open files (ulimit -n) or lower connections_max",
            EXHAUSTED_SECONDS,
            error.strerror,
        )
        self._context.call_later(EXHAUSTED_SECONDS, partial(self._resume, index))

    def _resume(self, index: int) -> None:
        if self.sockets:
            self._acceptors[index].resume()

    def close(self) -> None:
        """Accept no more."""
        for acceptor in self._acceptors:
            acceptor.close()
        for listening in self.sockets:
            listening.close()
        self.sockets = []


class LoopServers:
    """Servers of the loop, one for each of several listening sockets."""

    def __init__(self, servers: Sequence[asyncio.Server]) -> None:
        self._servers = servers

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets."""
        return [listening for server in self._servers for listening in server.sockets]

    def close(self) -> None:
        """Accept no more."""
        for server in self._servers:
            server.close()


class Listener:
    """A bound address and its connections. Made by `listen`."""

    def __init__(self, connections_max: int) -> None:
        self.port = 0
        self.connections: set[Connection] = set()
        self._shaking: dict[Connection, float] = {}  # within their TLS handshake, since when
        self.refused_count = 0
        """Connections closed at once because `connections_max` was reached."""
        self._connections_max = connections_max
        self._server: Server | None = None
        self._empty = asyncio.Event()

    def accept(self, factory: Callable[[], Connection]) -> Connection:
        """A connection for a new socket; one over the limit is closed as soon as it is made."""
        connection = factory()
        now = connection.context.now()
        self._forget_failed(now)
        if len(self.connections) + len(self._shaking) >= self._connections_max:
            self.refused_count += 1
            refused = Connection(connection.context)
            refused.opened = refused.close  # type: ignore[method-assign]
            return refused
        self._shaking[connection] = now
        connection.on_made = self._made
        connection.on_lost = self._lost
        return connection

    def _forget_failed(self, now: float) -> None:
        """Let go of what did not get through its handshake: the loop tells nobody of that."""
        for connection, since in list(self._shaking.items()):  # oldest first
            if now - since < TLS_HANDSHAKE_SECONDS:
                break
            del self._shaking[connection]

    def _made(self, connection: Connection) -> None:
        self._shaking.pop(connection, None)
        self.connections.add(connection)

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def attach(self, server: Server) -> None:
        """Take charge of the bound server."""
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        """Close the listening socket; connections stay."""
        if self._server is not None:
            self._server.close()

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until no connection is left; False when the time is up before."""
        if not self.connections:
            return True
        self._empty.clear()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop accepting, close every connection, abort what does not go in time."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close()
        if not await self.wait_empty(CLOSE_SECONDS):
            for connection in list(self.connections):
                connection.abort()
            await self.wait_empty(CLOSE_SECONDS)


async def listen(
    context: Context,
    factory: Callable[[], Connection],
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    connections_max: int,
    sockets: Sequence[socket.socket] = (),
) -> Listener:
    """Bind and listen; port 0 lets the system pick (see `Listener.port`).

    Args:
        sockets: sockets that already listen (`bind`), in place of binding `host` and `port`. They
            belong to the listener from now on.

    Raises:
        CannotListen: in one sentence for the user.
    """
    listener = Listener(connections_max)
    plane = context.plane() if tls is None else None
    try:
        if plane is None and sockets:
            servers = [
                await context.loop.create_server(
                    lambda: listener.accept(factory),
                    sock=listening,
                    ssl=tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_SECONDS,
                )
                for listening in sockets
            ]
            listener.attach(LoopServers(servers))
        elif plane is None:
            listener.attach(
                await context.loop.create_server(
                    lambda: listener.accept(factory),
                    host,
                    port,
                    ssl=tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_SECONDS,
                )
            )
        else:
            server = PlaneServer(context, plane, lambda: listener.accept(factory))
            server.open(sockets or await bind(context.loop, host, port))
            listener.attach(server)
    except OSError as error:
        raise CannotListen(_explain(host, port, error)) from error
    return listener


async def bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of the host, as the loop's own servers do.

    Raises:
        OSError: all that were bound are closed again.
    """
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the name has an address of a kind that this system does not speak
            bound.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError:
        for listening in bound:
            listening.close()
        raise
    return bound


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what uses it, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
