"""A look at what one connection receives and sends, for an operator who traces it.

A `Tap` stands between the socket and the connection while somebody looks, and nothing is there at
other times: so a connection that nobody traces pays nothing. It hands on copies of the bytes, which
are whole packets where a look begins (`packet_lines.py` makes lines of them).
"""

from __future__ import annotations

from collections.abc import Callable

from polymq.net.connection import SocketConnection
from polymq.net.kernels.streams import BUFFER_BYTES, Layer

Look = Callable[[bool, bytes], None]
"""Called with whether bytes came from the client, and the bytes."""


class Tap(Layer):
    """The layer of a connection that is looked at.

    Args:
        inner: the layer that the connection had before; None if it had none.
    """

    def __init__(self, inner: Layer | None) -> None:
        self.inner = inner
        self.room = BUFFER_BYTES if inner is None else inner.room
        self.looks: dict[Look, bool] = {}
        """Who looks, and whether it has seen something of what came."""

    def take(self, buffer: bytearray, start: int, end: int) -> int:
        """See `Layer`. In front of `start` is what a former read left of a packet: who has just
        begun to look gets that, too."""
        if self.inner is not None:
            end = self.inner.take(buffer, start, end)
        if end > start:
            for look, has_seen in list(self.looks.items()):
                look(True, bytes(buffer[start if has_seen else 0 : end]))
                if look in self.looks:
                    self.looks[look] = True
        return end

    def taken(self) -> None:
        """See `Layer`."""
        if self.inner is not None:
            self.inner.taken()

    def wrap(self, data: bytes) -> bytes:
        """See `Layer`."""
        if data:
            for look in list(self.looks):
                look(False, bytes(data))
        return data if self.inner is None else self.inner.wrap(data)

    def drained(self) -> None:
        """See `Layer`."""
        if self.inner is not None:
            self.inner.drained()

    def goodbye(self) -> bool:
        """See `Layer`."""
        return self.inner is not None and self.inner.goodbye()


def trace_connection(connection: SocketConnection, look: Look) -> Callable[[], None]:
    """Let `look` see all that the connection receives and sends from now on. Call what is returned
    to end that; it may be called again, and after the connection has ended."""
    tap = connection.layer
    if not isinstance(tap, Tap):
        tap = connection.layer = Tap(connection.layer)
    tap.looks[look] = False

    def stop() -> None:
        tap.looks.pop(look, None)
        if not tap.looks and connection.layer is tap:
            connection.layer = tap.inner

    return stop
