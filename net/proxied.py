"""Connections through a proxy: its header is read from the socket before anything else is.

The header is looked at in the kernel's buffer, and only its own bytes are taken from there. So the
socket is then as if the client had connected by itself: for TLS, for WebSocket and for the plane.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from polymq.net.proxy_protocol import HEADER_BYTES_MAX, ProxyError, ProxyHeader, ProxyParser

log = logging.getLogger(__name__)

HEADER_SECONDS: Final = 5.0
"""From the accepted socket to a whole header. A proxy sends it at once, in one segment."""


class Proxies:
    """The proxies of one listener.

    Args:
        networks: where they are; whoever connects from elsewhere is closed.
        header_seconds: how long a header may take.

    Attributes:
        failed_count: connections that were closed because of their address or their header.
    """

    def __init__(
        self,
        networks: Iterable[IPv4Network | IPv6Network],
        *,
        header_seconds: float = HEADER_SECONDS,
    ) -> None:
        self.failed_count = 0
        self._networks = tuple(networks)
        self._seconds = header_seconds

    def trusts(self, address: str) -> bool:
        """Whether a proxy may have this address."""
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def failed(self, peer: str, why: str) -> None:
        """Count and log a connection that is closed."""
        self.failed_count += 1
        log.warning("closing %s: PROXY protocol: %s", peer, why)

    async def read(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> ProxyHeader:
        """Read the header, and no byte more, from a socket that does not block.

        Raises:
            ProxyError: it is malformed, too long, too late, or not there.
            OSError: the socket is gone.
        """
        parser = ProxyParser()
        try:
            async with asyncio.timeout(self._seconds):
                while parser.header is None:
                    await _readable(loop, accepted)
                    try:
                        data = accepted.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
                    except BlockingIOError:
                        continue
                    if not data:
                        raise ProxyError("the connection ended before its header was whole")
                    accepted.recv(parser.feed(data))
        except TimeoutError:
            raise ProxyError(f"no whole header within {self._seconds:g} s") from None
        return parser.header


async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    readable = loop.create_future()

    def tell() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted.fileno(), tell)
    try:
        await readable
    finally:
        loop.remove_reader(accepted.fileno())
