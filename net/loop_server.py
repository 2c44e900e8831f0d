"""Listening sockets whose connections are on the event loop's own transports: TLS, HTTP, and plain
TCP where there is no socket plane.

Connections are accepted here, not by the loop's servers: those begin a handshake with everybody who
connects, so a stranger who says nothing would hold a descriptor for as long as a handshake may
take, whatever the limits say. Here, who is one too many is closed at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from polymq.net.proxied import Proxies
from polymq.net.proxy_protocol import ProxyError, ProxyHeader
from polymq.net.tls_source import TlsSource

log = logging.getLogger(__name__)

TLS_HANDSHAKE_SECONDS: Final = 5.0
ACCEPTS_MAX: Final = 32
"""New connections in one turn of the loop. Those that have to go for them are closed in later turns
and use descriptors until then. With twice as many, 300 strangers at a TLS listener used up 256."""
EXHAUSTED_SECONDS: Final = 1.0
"""How long nothing is accepted after the system had no descriptor or memory for a connection."""
WARNING_INTERVAL_SECONDS: Final = 60.0
"""How often the log says so, at most."""
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
GONE: Final = (errno.EINTR, errno.ECONNABORTED, errno.EPROTO, errno.EPERM)


class Exhaustion:
    """Says that the system has no room for new connections, but not every second."""

    def __init__(self) -> None:
        self._warned_at = -WARNING_INTERVAL_SECONDS

    def tell(self, now: float, error: OSError) -> None:
        """It happened at `now`, in seconds."""
        if now - self._warned_at >= WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            log.warning(
                "no new connections for the moment: %s. The server tries again every %g s; "
                "existing connections continue. Allow more open files (ulimit -n) or lower "
                "connections_max",
                error.strerror,
                EXHAUSTED_SECONDS,
            )


class LoopServer:
    """Accepts connections of some listening sockets, from `open` until `close`.

    Args:
        make: the protocol of a new connection, whose remote address it is given; None if there may
            be no more.
        failed: told of a protocol whose connection was never made: the handshake failed.
        refusal: what is written, as far as it fits, to a connection without TLS that is one too
            many.
        proxies: behind which the clients are; None: they connect by themselves.
        named: told what the proxy says of a connection that is being made.
        adopt: takes over the descriptor of a socket without TLS that is ready for its protocol, in
            place of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        make: Callable[[str], asyncio.BaseProtocol | None],
        failed: Callable[[asyncio.BaseProtocol], None],
        tls: TlsSource | None = None,
        refusal: bytes = b"",
        proxies: Proxies | None = None,
        named: Callable[[asyncio.BaseProtocol, ProxyHeader], None] | None = None,
        adopt: Callable[[int, asyncio.BaseProtocol], None] | None = None,
    ) -> None:
        self._loop = loop
        self._make = make
        self._failed = failed
        self._tls = tls
        self._refusal = refusal
        self._proxies = proxies
        self._named = named
        self._adopt = adopt
        self._connecting: set[asyncio.Task[None]] = set()
        self._unmade: dict[asyncio.BaseProtocol, socket.socket] = {}
        self._exhaustion = Exhaustion()
        self.sockets: list[socket.socket] = []

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Accept what connects to these, which do not block: they are ours from now on."""
        self.sockets = list(sockets)
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no more."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = []

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            if listening not in self.sockets:
                return
            try:
                accepted, peer = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhaustion.tell(self._loop.time(), error)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(EXHAUSTED_SECONDS, self._resume, listening)
                    return
                if error.errno in GONE:
                    continue
                raise
            self._take(accepted, peer[0] if isinstance(peer, tuple) else "")

    def _resume(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def interrupt(self, protocol: asyncio.BaseProtocol) -> bool:
        """End the connection of a protocol if it is still being made: within its handshake, which
        fails then. Returns whether it was."""
        accepted = self._unmade.get(protocol)
        if accepted is None:
            return False
        try:
            accepted.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was quicker
        return True

    def _take(self, accepted: socket.socket, address: str) -> None:
        if self._proxies is not None and not self._proxies.trusts(address):
            self._proxies.failed(address, "it is not in proxy_networks")
            accepted.close()
            return
        protocol = self._make(address)
        accepted.setblocking(False)
        if protocol is None:
            with accepted:
                if self._tls is None and self._refusal:
                    try:
                        accepted.send(self._refusal)
                    except OSError:
                        pass  # it is gone, or reads nothing
            return
        self._unmade[protocol] = accepted
        task = self._loop.create_task(self._connect(accepted, protocol))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        tls = None if self._tls is None else self._tls()
        seconds = None if tls is None else TLS_HANDSHAKE_SECONDS
        try:
            if self._proxies is not None:
                header = await self._proxies.read(self._loop, accepted)
                if self._named is not None:
                    self._named(protocol, header)
                if tls is None and self._adopt is not None:
                    self._adopt(accepted.detach(), protocol)
                    return
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # also ssl.SSLError, TimeoutError: the peer's fault, and its loss
            accepted.close()
            self._failed(protocol)
        except ProxyError as error:
            assert self._proxies is not None
            self._proxies.failed(_peer_of(accepted), str(error))
            accepted.close()
            self._failed(protocol)
        except BaseException:
            accepted.close()
            self._failed(protocol)
            raise
        finally:
            del self._unmade[protocol]


def _peer_of(accepted: socket.socket) -> str:
    """For log lines."""
    try:
        host, port = accepted.getpeername()[:2]
    except OSError:
        return "a proxy that is gone"
    return f"{host}:{port}"
