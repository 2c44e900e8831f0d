"""Listening sockets, and the count of connections behind each."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from polymq.net.accept_rate import AcceptRate
from polymq.net.budget import Share
from polymq.net.connection import Context, SocketConnection
from polymq.net.loop_server import EXHAUSTED_SECONDS, Exhaustion, LoopServer
from polymq.net.plane import Acceptor, Plane
from polymq.net.proxied import Proxies
from polymq.net.proxy_protocol import ProxyHeader
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""Handshakes that the kernel holds while the loop is busy: a fleet that reconnects at once."""
CLOSE_SECONDS: Final = 5.0
"""How long sockets that were asked to close may take before they are aborted."""


class CannotListen(Exception):
    """The address is taken or not ours; the text says which and what to do."""


class Server(Protocol):
    """What accepts: a `LoopServer` or a `PlaneServer`."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets."""

    def close(self) -> None:
        """Accept no more."""

    def interrupt(self, protocol: asyncio.BaseProtocol) -> bool:
        """End the connection of a protocol if it is still being made. Returns whether it was."""


class PlaneServer:
    """Listening sockets whose connections are in the socket plane."""

    def __init__(
        self, context: Context, plane: Plane, factory: Callable[[str], SocketConnection]
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._context = context
        self._plane = plane
        self._factory = factory
        self._acceptors: list[Acceptor] = []
        self._exhaustion = Exhaustion()

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Accept what connects to these: they are ours from now on."""
        self.sockets = list(sockets)
        for index, listening in enumerate(sockets):
            exhausted = partial(self._exhausted, index)
            acceptor = self._plane.accept(listening.fileno(), self._factory, exhausted)
            self._acceptors.append(acceptor)

    def _exhausted(self, index: int, error: OSError) -> None:
        """The kernel keeps those who connect now; they are accepted later."""
        self._exhaustion.tell(self._context.now(), error)
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

    def interrupt(self, protocol: asyncio.BaseProtocol) -> bool:
        """See `Server`. Without TLS a connection is made at once."""
        return False


class Listener:
    """A bound address and its connections. Made by `listen`.

    Args:
        share: how many connections it may have.
        newcomers_max: how many of them may be newcomers; by default what the share says.
        peer: what stands for the address of every client, where they have none (a Unix socket).
        rate_max: how many new connections it accepts in a second; 0: no limit.
    """

    def __init__(
        self,
        context: Context,
        share: Share,
        newcomers_max: int | None = None,
        *,
        peer: str = "",
        rate_max: float = 0,
    ) -> None:
        self._context = context
        self.port = 0
        self._peer = peer
        self._rate = AcceptRate(rate_max, context.now()) if rate_max else None
        self.roster: Roster[SocketConnection] = Roster(
            share,
            close=self._close_newcomer,
            now=context.now,
            newcomers_max=newcomers_max,
            emptied=self._emptied,
        )
        self._server: Server | None = None
        self._empty = asyncio.Event()

    @property
    def connections(self) -> set[SocketConnection]:
        """Those that were let in and are not gone."""
        return self.roster.connections

    def change(self, *, connections_max: int, rate_max: float = 0) -> None:
        """Accept by these limits from now on. Open connections stay."""
        self.roster.resize(connections_max)
        self._rate = AcceptRate(rate_max, self._context.now()) if rate_max else None

    def accept(self, factory: Callable[[], SocketConnection], address: str) -> SocketConnection:
        """A connection for a new socket; one over the limit is closed as soon as it is made."""
        connection = self.admit(factory, address)
        if connection is None:
            connection = SocketConnection(self._context)
            connection.opened = connection.close  # type: ignore[method-assign]
        return connection

    def admit(
        self, factory: Callable[[], SocketConnection], address: str
    ) -> SocketConnection | None:
        """A connection for a new socket of this remote address; None if there are too many, or the
        address is not accepted."""
        accepts = self._context.accepts
        if accepts is not None and not accepts(address):
            return None
        if self._rate is not None and not self._rate.take(self._context.now()):
            self.roster.refuse(address, "connection_rate_max allows no more in this second")
            return None
        connection = self.roster.admit(factory, self._peer or address)
        if connection is not None:
            connection.roster = self.roster
            if self._peer:
                connection.peer = self._peer
        return connection

    def _close_newcomer(self, connection: SocketConnection) -> None:
        if self._server is None or not self._server.interrupt(connection):
            connection.abort()

    def _emptied(self) -> None:
        self._empty.set()

    def never_made(self, connection: asyncio.BaseProtocol) -> None:
        """A connection that was admitted did not come about: its handshake failed."""
        assert isinstance(connection, SocketConnection)
        self.roster.gone(connection)

    def named(self, connection: asyncio.BaseProtocol, header: ProxyHeader) -> None:
        """A proxy says who the client of a connection is that is being made."""
        assert isinstance(connection, SocketConnection)
        connection.proxied_name = header.common_name
        if header.address is not None:
            connection.peer = header.peer
            self.roster.moved(connection, connection.address)

    def attach(self, server: Server) -> None:
        """Take charge of the bound server."""
        self._server = server
        if self._peer:
            self.roster.where = self._peer
            return
        host, self.port = server.sockets[0].getsockname()[:2]
        self.roster.where = f"{host}:{self.port}"

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
    factory: Callable[[], SocketConnection],
    *,
    host: str,
    port: int,
    tls: TlsSource | None = None,
    connections_max: int,
    newcomers_max: int | None = None,
    sockets: Sequence[socket.socket] = (),
    peer: str = "",
    rate_max: float = 0,
    proxies: Proxies | None = None,
) -> Listener:
    """Bind and listen; port 0 lets the system pick (see `Listener.port`).

    Args:
        connections_max: no more than so many, and than the context's budget has.
        newcomers_max: how many of them may be newcomers (`roster.py`); by default a part of them.
        sockets: sockets that already listen (`bind`), in place of binding `host` and `port`. They
            belong to the listener from now on.
        peer, rate_max: see `Listener`.
        proxies: behind which the clients are.

    Raises:
        CannotListen: in one sentence for the user.
    """
    share = context.budget.share(connections_max)
    listener = Listener(context, share, newcomers_max, peer=peer, rate_max=rate_max)
    plane = context.plane() if tls is None else None
    try:
        bound = sockets or await bind(context.loop, host, port)
        if plane is None or proxies is not None:
            accepting = LoopServer(
                context.loop,
                make=partial(listener.admit, factory),
                failed=listener.never_made,
                tls=tls,
                proxies=proxies,
                named=listener.named,
                adopt=None if plane is None else partial(_adopt, plane),
            )
            accepting.open(bound)
            listener.attach(accepting)
        else:
            server = PlaneServer(context, plane, partial(listener.accept, factory))
            server.open(bound)
            listener.attach(server)
    except OSError as error:
        raise CannotListen(explain(host, port, error)) from error
    return listener


def _adopt(plane: Plane, descriptor: int, connection: asyncio.BaseProtocol) -> None:
    assert isinstance(connection, SocketConnection)
    plane.adopt(descriptor, connection)


async def reserve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
    """Sockets that listen and of which nobody accepts yet. Raises CannotListen."""
    try:
        return await bind(loop, host, port)
    except OSError as error:
        raise CannotListen(explain(host, port, error)) from error


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


def explain(host: str, port: int, error: OSError) -> str:
    """Why the address cannot be listened on, and what to do, in one sentence."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what uses it, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
