"""An MQTT 5 client by hand, and what a test of either version gets: names and connections of its
own.

Every packet that a client reads is taken apart strictly (`mqtt5_wire.decode`). Every wait has a
deadline; where nothing may come, a test does not wait but sends a PINGREQ, whose answer has to be
the next packet.
"""

from __future__ import annotations

import os
import select
import uuid
from typing import Any, Final, Self

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, Packet, Property, R, decode
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import PINGREQ

PEER: Final = os.environ.get("MQTT_PEER", "polymq")
"""The server under test (`conftest.py`)."""
ASKS_FOR_DISCONNECT: Final = PEER == "polymq"
"""Part 4.13.1 only recommends a DISCONNECT before an error closes a connection, so only PolyMQ has
to send it; another server may just close."""
SECONDS_MAX: Final = 8.0
"""For what has to come."""
QUIET_SECONDS: Final = 0.03
"""For which nothing may follow the answer to a ping, where nothing may come."""
BROKEN: Final = (R.MALFORMED, R.PROTOCOL_ERROR)
"""Of a packet that is both against its format and against the protocol: receivers may look in any
order (part 4.13.2)."""
REFUSED: Final = (R.UNSPECIFIED, R.NOT_AUTHORIZED, R.TOPIC)
"""Of a topic that the server does not give to clients."""


class Client(RawClient):
    """A connection that speaks MQTT 5.

    Attributes:
        client_id: by which it connected.
        connack: the answer to that.
    """

    client_id: str
    connack: Packet

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.socket.settimeout(SECONDS_MAX)
        self._waiting: list[Packet] = []
        self._packet_id = 0

    def next_id(self) -> int:
        """A packet identifier that it did not use yet."""
        self._packet_id += 1
        return self._packet_id

    # --- reading -----------------------------------------------------------------------------

    def read(self) -> Packet:
        """The next packet."""
        if self._waiting:
            return self._waiting.pop(0)
        data = self.receive()
        assert data, "the server closed"
        return decode(data)

    def read_kind(self, kind: Kind) -> Packet:
        """The next packet of this type; messages that come before it wait."""
        passed = []
        while (found := self.read()).kind != kind:
            assert found.kind == Kind.PUBLISH, f"{found} came before {kind.name}"
            passed.append(found)
        self._waiting = passed + self._waiting
        return found

    def message(self, *, acknowledged: bool = True) -> Packet:
        """The next packet, which has to be a PUBLISH; by default it is acknowledged to the end."""
        found = self.read()
        assert found.kind == Kind.PUBLISH, found
        if acknowledged:
            self.acknowledge_one(found)
        return found

    def acknowledge_one(self, message: Packet) -> None:
        if message.qos == 1:
            self.send(wire.puback(message.packet_id))
        elif message.qos == 2:
            self.send(wire.pubrec(message.packet_id))
            assert self.read_kind(Kind.PUBREL).packet_id == message.packet_id
            self.send(wire.pubcomp(message.packet_id))

    def has_more(self) -> bool:
        """Whether a packet is here already."""
        return bool(self._waiting) or self._packet_size() is not None

    def nothing(self) -> None:
        """Nothing is on its way: the answer to a ping comes first, and nothing follows it."""
        self.send(PINGREQ)
        found = self.read()
        assert found.kind == Kind.PINGRESP, found
        self.silent(QUIET_SECONDS)

    def silent(self, seconds: float) -> None:
        """Nothing comes within this time, not even the end."""
        assert not self._waiting
        assert not self._buffer
        ready, _, _ = select.select([self.socket], [], [], seconds)
        assert not ready, f"{self.socket.recv(1 << 16)[:80].hex()} came, or the end"

    def expect_error(self, *reasons: int) -> Packet:
        """DISCONNECT with one of these reasons, and the end."""
        data = self.receive()
        if not data and not ASKS_FOR_DISCONNECT:
            return Packet(kind=Kind.DISCONNECT, flags=0, size=0)
        assert data, "closed without a DISCONNECT"
        found = decode(data)
        assert found.kind == Kind.DISCONNECT, found
        shown = f"DISCONNECT 0x{found.reason:02X}"
        assert found.reason in reasons, f"{shown}, not one of {[hex(one) for one in reasons]}"
        self.expect_closed()
        return found

    def expect_refused(self, *reasons: int) -> None:
        """The end, after a CONNACK with one of these reasons or none."""
        if data := self.receive():
            found = decode(data)
            assert found.kind == Kind.CONNACK, found
            assert found.reason in reasons, f"CONNACK 0x{found.reason:02X}"
            assert not found.present, "[MQTT-3.2.2-6]"
            assert self.receive() == b"", "[MQTT-3.2.2-7]"
        self.socket.close()

    # --- requests ----------------------------------------------------------------------------

    def ask_subscribe(
        self, *filters: tuple[str, int], props: tuple[Property, ...] = ()
    ) -> tuple[int, ...]:
        """SUBSCRIBE; returns the codes of SUBACK."""
        packet_id = self.next_id()
        self.send(wire.subscribe(packet_id, *filters, props=props))
        found = self.read_kind(Kind.SUBACK)
        assert found.packet_id == packet_id
        assert len(found.reasons) == len(filters)
        return found.reasons

    def follow(self, *filters: tuple[str, int], props: tuple[Property, ...] = ()) -> None:
        """SUBSCRIBE, which is granted as it asks."""
        granted = self.ask_subscribe(*filters, props=props)
        assert granted == tuple(options & 3 for _, options in filters)

    def ask_unsubscribe(self, *filters: str) -> tuple[int, ...]:
        """UNSUBSCRIBE; returns the codes of UNSUBACK."""
        packet_id = self.next_id()
        self.send(wire.unsubscribe(packet_id, *filters))
        found = self.read_kind(Kind.UNSUBACK)
        assert found.packet_id == packet_id
        return found.reasons

    def send_message(
        self,
        topic: str,
        body: bytes = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        props: tuple[Property, ...] = (),
    ) -> None:
        """PUBLISH, and all acknowledgements of its QoS; of QoS 0, an answered ping behind it."""
        packet_id = self.next_id()
        self.send(
            wire.publish(topic, body, qos=qos, packet_id=packet_id, retain=retain, props=props)
        )
        if not qos:
            self.send(PINGREQ)
            self.read_kind(Kind.PINGRESP)
            return
        found = self.read_kind(Kind.PUBREC if qos == 2 else Kind.PUBACK)
        assert (found.packet_id, found.reason < 0x80) == (packet_id, True)
        if qos == 2:
            self.send(wire.pubrel(packet_id))
            done = self.read_kind(Kind.PUBCOMP)
            assert (done.packet_id, done.reason) == (packet_id, 0)

    def leave(self, reason: int | None = None, props: tuple[Property, ...] | None = None) -> None:
        """DISCONNECT, and wait until the server has closed, too."""
        self.send(wire.disconnect(reason, props))
        self.expect_closed()


class Names:
    """Names that no other test uses, and the connections of one test.

    Attributes:
        port: of the server under test.
        name: part of all client identifiers and topics of the test.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.name = uuid.uuid4().hex[:10]
        self.opened: list[RawClient] = []

    def topic(self, *levels: str) -> str:
        return "/".join(("conformance", self.name, *levels))

    def client_id(self, suffix: str = "") -> str:
        return self.name + suffix

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.opened:
            client.socket.close()


class Case(Names):
    """For tests of MQTT 5."""

    def open(self) -> Client:
        """A connection on which nothing was sent yet."""
        client = Client(self.port)
        self.opened.append(client)
        return client

    def connect(self, suffix: str = "", *, present: bool = False, **options: Any) -> Client:
        """A client whose CONNECT was accepted; `options` are those of `mqtt5_wire.connect`."""
        client = self.open()
        client.client_id = self.client_id(suffix)
        client.send(wire.connect(client.client_id, **options))
        client.connack = client.read()
        assert client.connack.kind == Kind.CONNACK
        assert client.connack.reason == 0, f"CONNACK 0x{client.connack.reason:02X}"
        assert client.connack.present == present, "Session Present"
        return client

    def pair(self, *filters: tuple[str, int]) -> tuple[Client, Client]:
        """A publisher, and a subscriber to these filters."""
        subscriber = self.connect("s")
        subscriber.follow(*filters)
        return self.connect("p"), subscriber
