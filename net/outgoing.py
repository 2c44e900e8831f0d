"""Connections that the server makes itself.

Names are looked up in a thread of their own: the system's resolver may take half a minute, and
nothing waits for a thread when the server stops. Each address of a name gets its part of the time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from typing import Any, Final

from polymq.net.connection import Context, SocketConnection

ADDRESSES_MAX: Final = 8
"""Addresses of a name that are tried."""

Found = list[tuple[socket.AddressFamily, Any]]


class Dialer:
    """Makes connections of one loop to one host, one after the other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looking: threading.Thread | None = None

    async def __call__(
        self,
        connection: SocketConnection,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        """Connect, with TLS if there is a context, within so many seconds.

        Raises:
            OSError: why not, in words; ssl.SSLError and TimeoutError are among them.
        """
        try:
            async with asyncio.timeout(seconds):
                found = await self._look_up(host, port)
                await self._connect(connection, found, host, tls, seconds)
        except TimeoutError as error:
            raise TimeoutError(0, f"no connection within {seconds:g} s") from error

    async def _connect(
        self,
        connection: SocketConnection,
        found: Found,
        host: str,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        connected = await self._reach(found, seconds)
        plane = self._context.plane() if tls is None else None
        if plane is not None:
            plane.adopt(connected.detach(), connection)
            return
        try:
            await self._context.loop.create_connection(
                lambda: connection,
                sock=connected,
                ssl=tls,
                server_hostname=None if tls is None else host,
                ssl_handshake_timeout=None if tls is None else seconds,
            )
        except BaseException:
            connected.close()
            raise

    async def _reach(self, found: Found, seconds: float) -> socket.socket:
        """A socket that is connected to one of the addresses. Raises OSError: the last one's."""
        last: OSError = OSError(0, "its name has no address")
        for family, address in found:
            trying = socket.socket(family, socket.SOCK_STREAM)
            trying.setblocking(False)
            try:
                async with asyncio.timeout(seconds / len(found)):
                    await self._context.loop.sock_connect(trying, address)
            except OSError as error:
                trying.close()
                last = error
                continue
            except BaseException:
                trying.close()
                raise
            return trying
        raise last

    async def _look_up(self, host: str, port: int) -> Found:
        """The addresses of a host. Raises OSError."""
        try:
            family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        except ValueError:
            return await self._ask(host, port)
        return [(family, (host, port))]

    async def _ask(self, host: str, port: int) -> Found:
        if self._looking is not None and self._looking.is_alive():
            raise OSError(0, f"the name {host} is still being looked up")
        loop = self._context.loop
        answer: asyncio.Future[Found] = loop.create_future()

        def tell(found: Found | OSError) -> None:
            if answer.done():
                return  # nobody waits any more
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def look() -> None:
            found: Found | OSError
            try:
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = [(row[0], row[4]) for row in rows[:ADDRESSES_MAX]]
            except OSError as error:
                found = OSError(0, f"the name {host} is not found: {error.strerror or error}")
            try:
                loop.call_soon_threadsafe(tell, found)
            except RuntimeError:
                pass  # the loop is closed

        self._looking = threading.Thread(target=look, name="polymq-lookup", daemon=True)
        self._looking.start()
        return await answer
