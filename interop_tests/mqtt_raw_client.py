"""An MQTT 3.1.1 client by hand over a socket: what no library lets a test say.

Every wait has a deadline, because a packet that never comes has to fail and not hang.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import TracebackType

from interop_tests.mqtt_wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    connack,
    connect,
    puback,
    pubcomp,
    pubrec,
    suback,
    subscribe,
)

WAIT_SECONDS_MAX = 20.0


class Publish:
    """A PUBLISH that came from the server, taken apart."""

    def __init__(self, data: bytes) -> None:
        assert data[0] >> 4 == 3, f"not a PUBLISH: {data[:40].hex()}"
        at = 1
        while data[at] > 127:
            at += 1
        at += 1
        size = int.from_bytes(data[at : at + 2], "big")
        self.topic = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        self.qos = data[0] >> 1 & 3
        self.retain = bool(data[0] & 1)
        self.duplicate = bool(data[0] & 8)
        self.packet_id = 0
        if self.qos:
            self.packet_id = int.from_bytes(data[at : at + 2], "big")
            assert self.packet_id
            at += 2
        self.body = data[at:]


class RawClient:
    """A socket that sends bytes and reads whole packets."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:  # before the connection: it decides the window
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WAIT_SECONDS_MAX)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    @classmethod
    def connected(
        cls,
        port: int,
        client_id: str,
        *,
        clean: bool = True,
        present: bool = False,
        keep_alive: int = 0,
        will: tuple[str, bytes, int, bool] | None = None,
    ) -> RawClient:
        """A client whose CONNECT was accepted."""
        client = cls(port)
        client.send(connect(client_id, clean=clean, keep_alive=keep_alive, will=will))
        client.expect(connack(present=present))
        return client

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        self.socket.sendall(b"".join(packets))

    def receive(self) -> bytes:
        """The next packet; b"" when the server has closed."""
        while (size := self._packet_size()) is None:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._buffer, "the server closed within a packet"
                return b""
            self._buffer += data
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _packet_size(self) -> int | None:
        size, shift, at = 0, 0, 1
        while True:
            if at >= len(self._buffer):
                return None
            byte = self._buffer[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return at + size if at + size <= len(self._buffer) else None

    def receive_publish(self) -> Publish:
        return Publish(self.receive())

    def publishes(self, count: int) -> Iterator[Publish]:
        """The next `count` packets, which have to be PUBLISH."""
        for _ in range(count):
            yield self.receive_publish()

    def acknowledge(self, count: int) -> Iterator[Publish]:
        """The next `count` PUBLISH packets, each acknowledged to the end of its QoS as it comes. So
        the server's window never closes."""
        owed: set[int] = set()
        while count or owed:
            packet = self.receive()
            assert packet, "the server closed"
            packet_id = int.from_bytes(packet[2:4], "big")
            if packet[0] >> 4 == 6:  # PUBREL
                owed.remove(packet_id)
                self.send(pubcomp(packet_id))
                continue
            found = Publish(packet)
            count -= 1
            if found.qos == 1:
                self.send(puback(found.packet_id))
            elif found.qos == 2:
                owed.add(found.packet_id)
                self.send(pubrec(found.packet_id))
            yield found

    def expect(self, *packets: bytes) -> None:
        """The next packets are exactly these."""
        for expected in packets:
            found = self.receive()
            assert found == expected, f"{found[:80].hex()} came, not {expected[:80].hex()}"

    def expect_nothing_before_ping(self) -> None:
        """Nothing is on its way: the answer to a ping comes first."""
        self.send(PINGREQ)
        self.expect(PINGRESP)

    def expect_closed(self) -> None:
        """The server closes; nothing more comes."""
        assert self.receive() == b""
        self.socket.close()

    def subscribe(self, *filters: tuple[str, int], packet_id: int = 1) -> None:
        self.send(subscribe(packet_id, *filters))
        self.expect(suback(packet_id, *(qos for _, qos in filters)))

    def disconnect(self) -> None:
        """DISCONNECT, and wait until the server has closed too."""
        self.send(DISCONNECT)
        self.expect_closed()

    def vanish(self) -> None:
        """The network is gone: a reset, no DISCONNECT."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()
