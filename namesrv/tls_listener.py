"""A listener with TLS whose certificate may change while it listens."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio


class TlsListener(trio.abc.Listener[trio.SSLStream[trio.SocketStream]]):
    """As `trio.SSLListener`, but each connection has the context of its time.

    Args:
        listener: accepts the connections below.
        source: the context for a new connection.
    """

    def __init__(self, listener: trio.SocketListener, source: Callable[[], ssl.SSLContext]) -> None:
        self._listener = listener
        self._source = source

    async def accept(self) -> trio.SSLStream[trio.SocketStream]:
        """The next connection; its handshake is still to be made."""
        stream = await self._listener.accept()
        return trio.SSLStream(stream, self._source(), server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        """Accept no more."""
        await self._listener.aclose()
