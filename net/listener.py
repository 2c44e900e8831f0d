"""Listening sockets, and the count of connections behind each."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Final

from net.connection import Connection, Context

BACKLOG: Final = 1024
"""Handshakes that the kernel holds while the loop is busy: a fleet that reconnects at once."""
TLS_HANDSHAKE_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0
"""How long sockets that were asked to close may take before they are aborted."""


class CannotListen(Exception):
    """The address is taken or not ours; the text says which and what to do."""


class Listener:
    """A bound address and its connections. Made by `listen`."""

    def __init__(self, connections_max: int) -> None:
        self.port = 0
        self.connections: set[Connection] = set()
        self.refused_count = 0
        """Connections closed at once because `connections_max` was reached."""
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    def accept(self, factory: Callable[[], Connection]) -> Connection:
        """A connection for a new socket; one over the limit is closed as soon as it is made."""
        connection = factory()
        if len(self.connections) >= self._connections_max:
            self.refused_count += 1
            refused = Connection(connection.context)
            refused.opened = refused.close  # type: ignore[method-assign]
            return refused
        self.connections.add(connection)
        connection.on_lost = self._lost
        return connection

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def attach(self, server: asyncio.Server) -> None:
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
) -> Listener:
    """Bind and listen; port 0 lets the system pick (see `Listener.port`).

    Raises:
        CannotListen: in one sentence for the user.
    """
    listener = Listener(connections_max)
    try:
        server = await context.loop.create_server(
            lambda: listener.accept(factory),
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_SECONDS,
        )
    except OSError as error:
        raise CannotListen(_explain(host, port, error)) from error
    listener.attach(server)
    return listener


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what uses it, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
