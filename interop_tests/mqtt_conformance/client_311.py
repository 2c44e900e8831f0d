"""An MQTT 3.1.1 client by hand: that of `mqtt_raw_client.py`, with what the tests of the statements
need beside it."""

from __future__ import annotations

import select
from typing import Any, Final

from interop_tests import mqtt_wire as wire
from interop_tests.mqtt_conformance.client import QUIET_SECONDS, SECONDS_MAX, Names
from interop_tests.mqtt_raw_client import Publish, RawClient

CONNACK, PUBACK, PUBREC, PUBREL = 0x20, 0x40, 0x50, 0x62
PUBCOMP, SUBACK, UNSUBACK, PINGRESP = 0x70, 0x90, 0xB0, 0xD0
SIZES: Final = {
    CONNACK: 4,
    PUBACK: 4,
    PUBREC: 4,
    PUBREL: 4,
    PUBCOMP: 4,
    SUBACK: None,
    UNSUBACK: 4,
    PINGRESP: 2,
}
"""First bytes of packets that a server may send, beside those of PUBLISH, and how long they are."""


def packet_id(packet: bytes) -> int:
    """That of any packet whose content begins with it."""
    return int.from_bytes(packet[2:4], "big")


class Client(RawClient):
    """A connection that speaks MQTT 3.1.1. Every packet that it reads has the right flags and
    size."""

    client_id: str

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.socket.settimeout(SECONDS_MAX)
        self._waiting: list[bytes] = []
        self._packet_id = 0

    def next_id(self) -> int:
        """A packet identifier that it did not use yet."""
        self._packet_id += 1
        return self._packet_id

    def read(self) -> bytes:
        """The next packet."""
        if self._waiting:
            return self._waiting.pop(0)
        data = self.receive()
        assert data, "the server closed"
        if data[0] >> 4 != 3:
            assert data[0] in SIZES, f"{data[:40].hex()} from a server"
            assert SIZES[data[0]] in (None, len(data)), data[:40].hex()
        return data

    def read_kind(self, first_byte: int) -> bytes:
        """The next packet of this type; messages that come before it wait."""
        passed = []
        while (found := self.read())[0] != first_byte:
            assert found[0] >> 4 == 3, f"{found[:40].hex()} came before {first_byte:#x}"
            passed.append(found)
        self._waiting = passed + self._waiting
        return found

    def message(self, *, acknowledged: bool = True) -> Publish:
        """The next packet, which has to be a PUBLISH; by default it is acknowledged to the end."""
        found = Publish(self.read())
        assert found.qos < 3
        assert found.qos or not found.duplicate, "[MQTT-3.3.1-2]"
        if acknowledged:
            self.acknowledge_one(found)
        return found

    def acknowledge_one(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(wire.puback(message.packet_id))
        elif message.qos == 2:
            self.send(wire.pubrec(message.packet_id))
            assert packet_id(self.read_kind(PUBREL)) == message.packet_id
            self.send(wire.pubcomp(message.packet_id))

    def nothing(self) -> None:
        """Nothing is on its way: the answer to a ping comes first, and nothing follows it."""
        self.send(wire.PINGREQ)
        found = self.read()
        assert found == wire.PINGRESP, found[:80].hex()
        self.silent(QUIET_SECONDS)

    def silent(self, seconds: float) -> None:
        """Nothing comes within this time, not even the end."""
        assert not self._waiting
        assert not self._buffer
        ready, _, _ = select.select([self.socket], [], [], seconds)
        assert not ready, f"{self.socket.recv(1 << 16)[:80].hex()} came, or the end"

    def ask_subscribe(self, *filters: tuple[str, int]) -> tuple[int, ...]:
        """SUBSCRIBE; returns the codes of SUBACK."""
        number = self.next_id()
        self.send(wire.subscribe(number, *filters))
        found = self.read_kind(SUBACK)
        assert packet_id(found) == number
        assert len(found) == 4 + len(filters)
        return tuple(found[4:])

    def follow(self, *filters: tuple[str, int]) -> None:
        """SUBSCRIBE, which is granted as it asks."""
        assert self.ask_subscribe(*filters) == tuple(qos for _, qos in filters)

    def ask_unsubscribe(self, *filters: str) -> None:
        number = self.next_id()
        self.send(wire.unsubscribe(number, *filters))
        assert packet_id(self.read_kind(UNSUBACK)) == number

    def send_message(
        self, topic: str, body: bytes = b"", *, qos: int = 1, retain: bool = False
    ) -> None:
        """PUBLISH, and all acknowledgements of its QoS; of QoS 0, an answered ping behind it."""
        number = self.next_id()
        self.send(wire.publish(topic, body, qos=qos, packet_id=number, retain=retain))
        if not qos:
            self.send(wire.PINGREQ)
            self.read_kind(PINGRESP)
            return
        assert packet_id(self.read_kind(PUBREC if qos == 2 else PUBACK)) == number
        if qos == 2:
            self.send(wire.pubrel(number))
            assert packet_id(self.read_kind(PUBCOMP)) == number


class Case(Names):
    """For tests of MQTT 3.1.1."""

    def open(self) -> Client:
        """A connection on which nothing was sent yet."""
        client = Client(self.port)
        self.opened.append(client)
        return client

    def connect(self, suffix: str = "", *, present: bool = False, **options: Any) -> Client:
        """A client whose CONNECT was accepted; `options` are those of `mqtt_wire.connect`."""
        client = self.open()
        client.client_id = self.client_id(suffix)
        client.send(wire.connect(client.client_id, **options))
        found = client.read()
        assert found == wire.connack(present=present), found.hex()
        return client

    def pair(self, *filters: tuple[str, int]) -> tuple[Client, Client]:
        """A publisher, and a subscriber to these filters."""
        subscriber = self.connect("s")
        subscriber.follow(*filters)
        return self.connect("p"), subscriber
