"""A port that leads to whichever server is the master now, as an address that moves over would.

Clients keep one address while roles change hands behind it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16


class Relay:
    """Passes connections on to `target`, a port of this machine. While nothing listens there, they
    are closed at once.

    Attributes:
        port: where clients connect.
        target: where new connections go.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # wakes the thread
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self.target))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until either side ends, then end both."""
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()
