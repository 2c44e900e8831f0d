"""Other clients' subscriptions: what a broker has to route around while it is measured.

A broker with nothing but the measured subscriber has nothing to route. These clients subscribe to
filters that are near the measured topics and match none of them: a third below the same first
level, a third there with a wildcard, a third elsewhere. They stay connected and get nothing.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import HOST

PER_CLIENT: Final = 100
PER_PACKET: Final = 10
ANSWER_SECONDS_MAX: Final = 20.0


def filter_for(index: int) -> str:
    """The topic filter of one subscription."""
    return (f"bench/other/{index}", f"bench/+/other/{index}", f"elsewhere/{index}/#")[index % 3]


class OtherSubscriptions:
    """A context in which `count` subscriptions of MQTT clients exist on the server."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> None:
        for first in range(0, self._count, PER_CLIENT):
            self._open_client(first, min(first + PER_CLIENT, self._count))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for opened in self._sockets:
            opened.close()

    def _open_client(self, first: int, last: int) -> None:
        opened = socket.create_connection((HOST, self._port), timeout=ANSWER_SECONDS_MAX)
        self._sockets.append(opened)
        name = f"other-{first}".encode()
        opened.sendall(_packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + _string(name)))
        self._expect(opened, 4, "CONNECT")
        for at in range(first, last, PER_PACKET):
            filters = [filter_for(i).encode() for i in range(at, min(at + PER_PACKET, last))]
            content = b"\x00\x01" + b"".join(_string(text) + b"\x00" for text in filters)
            opened.sendall(_packet(0x82, content))
            self._expect(opened, 4 + len(filters), "SUBSCRIBE")

    @staticmethod
    def _expect(opened: socket.socket, size: int, what: str) -> None:
        answer = b""
        while len(answer) < size:
            received = opened.recv(size - len(answer))
            if not received:
                raise BenchmarkFailed(f"the server closed the connection on {what}")
            answer += received


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _packet(first: int, content: bytes) -> bytes:
    """An MQTT packet of any length below 16 KiB."""
    size = len(content)
    length = bytes((size,)) if size < 128 else bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((first,)) + length + content
