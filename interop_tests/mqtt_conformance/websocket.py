"""As much of WebSocket (RFC 6455) as a client needs to carry MQTT: the handshake, masked frames of
less than 64 KiB, and no fragments."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
from types import TracebackType
from typing import Final, Self

TEXT, BINARY, CLOSE = 1, 2, 8
SECONDS_MAX: Final = 8.0
ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Behind the client's key, in what the server answers."""


class WebSocket:
    """A connection whose handshake is still to come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def upgrade(self, protocols: str) -> str | None:
        """The handshake, with these subprotocols offered; returns the one that was selected."""
        key = base64.b64encode(os.urandom(16))
        self._socket.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Protocol: %b\r\n\r\n"
            % (key, protocols.encode())
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._take(1)
        status, *lines = head.decode().strip().split("\r\n")
        assert status.split()[1] == "101", status
        fields = {
            name.lower(): text.strip() for name, _, text in (one.partition(":") for one in lines)
        }
        accept = base64.b64encode(hashlib.sha1(key + ACCEPT_SUFFIX).digest()).decode()
        assert fields["sec-websocket-accept"] == accept
        return fields.get("sec-websocket-protocol")

    def send_frame(self, opcode: int, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode])
        head += bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self._socket.sendall(head + mask + masked)

    def read_frame(self, opcode: int) -> bytes:
        """The content of the next frame, which has to be of this kind."""
        first, size = self._take(2)
        assert first == 0x80 | opcode, f"a frame of the kind {first:#x}"
        if size == 126:
            size = int.from_bytes(self._take(2), "big")
        return self._take(size)

    def expect_closed(self) -> None:
        """The end. Where a frame says so before, it is answered, as the server may wait for it."""
        with contextlib.suppress(ConnectionError):  # a server need not wait for the answer
            while head := self._socket.recv(2):
                content = self._take(head[1])
                if head[0] & 15 == CLOSE:
                    self.send_frame(CLOSE, content[:2])
                else:
                    assert head[0] & 15 == BINARY  # a DISCONNECT may come first

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the server closed"
            data += part
        return data
