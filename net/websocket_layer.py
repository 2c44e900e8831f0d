"""A WebSocket between a socket and a gateway's connection: the thin shell around `websocket.py`.

The connection above it is the one that TCP has: it sees the bytes that the frames carry, and its
back-pressure, its deadlines and its turns hold as they are. What is added:

* The client's Close, and whatever ends the WebSocket, is the end of the socket to the connection.
  It comes in its place behind the data: while the connection reads no further, because something
  has its turn or has to be waited for, its end waits as well.
* If the connection closes first, the socket stays for the client's Close, as long as a closed
  connection may take; where the server goes away it does not stay.
* A client that reads nothing has one Pong waiting, not one for each Ping.
"""

from __future__ import annotations

from typing import Final

from polymq.net.connection import SocketConnection
from polymq.net.kernels.streams import Layer
from polymq.net.kernels.websocket import READ_BYTES_MAX
from polymq.net.websocket import NORMAL, WebSocket
from polymq.net.websocket_handshake import Offer

CLOSE_SECONDS: Final = 5.0
"""How long the last bytes may take to be read, after the client has ended the WebSocket."""


class WebSocketLayer(Layer):
    """The WebSocket of one connection, whose `layer` it has to be."""

    room = READ_BYTES_MAX

    def __init__(self, connection: SocketConnection, offer: Offer) -> None:
        self._connection = connection
        self._core = WebSocket(offer)
        self._code = NORMAL

    def goes_away(self, code: int) -> None:
        """The server ends the connection soon, for reasons of its own: say this code then, and wait
        for no answer."""
        self._code = code

    def failed(self, peer: str, text: str) -> None:
        """The client did what it may not do, and its connection is about to close. For a gateway to
        count, and to log."""

    def take(self, buffer: bytearray, start: int, end: int) -> int:
        at = self._core.receive(buffer, start, end)
        if self._core.has_answer:
            self.drained()
        return at

    def taken(self) -> None:
        end = self._core.end
        if end is None:
            return
        connection = self._connection
        transport = connection.transport
        if transport is None:
            return
        if connection.closing:  # that was the answer to our Close
            transport.close()
        elif transport.is_reading():
            if end.is_failure:
                self.failed(connection.peer, end.text)
            connection.deadline(connection.context.now() + CLOSE_SECONDS)
            connection.close()

    def wrap(self, data: bytes) -> bytes:
        return self._core.wrap(data)

    def drained(self) -> None:
        if self._core.has_answer and not self._connection.paused:
            self._connection.write(b"")

    def goodbye(self) -> bool:
        stays = self._core.goodbye(self._code)
        if self._core.has_answer:
            self._connection.write(b"")
        return stays and self._code == NORMAL
