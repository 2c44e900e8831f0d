"""Messages at which a remote broker closes the connection to a bridge: they are set aside, and
nothing else is."""

from __future__ import annotations

import pytest

from interop_tests import mqtt_wire
from polymq.gateways.mqtt.bridging.failures import Failure
from polymq.gateways.mqtt.packets import (
    PacketType,
)
from tests.gateways.mqtt.bridge_harness import CONNACK_5, Remote
from tests.gateways.mqtt.mqtt_harness import make_run

PINGS = (b"\xc0\0", b"\xd0\0")


class Refusing(Remote):
    """A remote that may close when it gets a message. There is a message in flight, sent again at
    each connection."""

    def accept(self, tag: str = "a", packet_id: int = 7, qos: int = 1) -> list[bytes]:
        """Connect, and answer the ping of a probation. Returns the messages that came."""
        if self.connection.transport is None or self.connection.closing:
            self.connect()
        five = self.bridge.settings.version != "3.1.1"
        self.send(CONNACK_5 if five else mqtt_wire.connack(present=True))
        sent = self.receive()
        if PINGS[0] in sent:
            assert ("resume",) not in self.calls
            assert ("send_singly", True) in self.calls
            self.send(PINGS[1])
        assert ("resume",) in self.calls
        self.deliver(tag, packet_id, qos)
        return [packet for packet in self.receive() if packet[0] >> 4 == PacketType.PUBLISH]

    def deliver(self, tag: str = "a", packet_id: int = 7, qos: int = 1) -> None:
        """What the session sends."""
        self.connection.fast_path.send_publishes(
            make_run("t", tag, [b"body"]),
            qos=qos,
            first_packet_id=packet_id,
            duplicate=False,
            retain=False,
            identifiers=(1,),
        )
        self.loop.run()

    def close(self, error: Exception | None = None) -> None:
        """The connection ends, as the transport says it."""
        self.connection.connection_lost(error)
        self.loop.run()

    def refuse(self, count: int) -> None:
        """Close so many connections when the message comes."""
        for _ in range(count):
            assert len(self.accept()) == 1
            self.close()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_the_remote_does_not_survive(
    caplog: pytest.LogCaptureFixture, version: str, qos: int
) -> None:
    """Five connections were closed when it came, the last three when it was alone: on the next one
    it is set aside, counted and logged, and what is behind it is sent."""
    remote = Refusing(version=version)
    for _ in range(5):
        assert len(remote.accept("a\ufffe" + "b" * 200, qos=qos)) == 1
        assert ("rejected", 7, 1) not in remote.calls
        if version == "5":
            remote.send(b"\xe0\x01\x81")
        remote.close()
    assert remote.accept("a\ufffe" + "b" * 200, qos=qos) == []
    assert ("rejected", 7, 1) in remote.calls
    assert remote.bridge.counters.not_taken == 1
    said = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(said) == 1
    assert "5 connections before it acknowledged it: topic 't/a\\ufffebbb" in said[0]
    assert f"...', QoS {qos}, 4 bytes, position 0 of the log" in said[0]
    assert ("malformed packet (0x81)" in said[0]) is (version == "5")
    assert "b" * 100 not in said[0]
    remote.deliver("b", 8)
    assert len(remote.receive()) == 1
    assert ("rejected", 8, 1) not in remote.calls


def test_others_are_not_blamed() -> None:
    """What takes the culprit's turn, because that has expired, gets its own attempts."""
    remote = Refusing()
    remote.refuse(5)
    for _ in range(3):
        assert len(remote.accept("b", 8)) == 1
        remote.close()
    assert remote.bridge.counters.not_taken == 0
    assert remote.accept("b", 8) == []
    assert ("rejected", 8, 1) in remote.calls


@pytest.mark.parametrize(
    "way", ["no message", "no ping", "network", "ours", "another reason", "PUBACK", "PUBREC", "run"]
)
def test_a_remote_that_comes_and_goes_loses_nothing(way: str) -> None:
    """Only what it closes when it has got a message, and acknowledged none, counts."""
    remote = Refusing()
    for turn in range(20):
        if way in ("no message", "no ping"):
            remote.connect()
            remote.send(CONNACK_5)
            assert (PINGS[0] in remote.receive()) is (way == "no ping" and turn >= 2)
            if way == "no ping" and turn < 2:
                remote.deliver()
        else:
            assert len(remote.accept(qos=2 if way == "PUBREC" else 1)) == 1
        error: Exception | None = None
        if way == "network":
            error = TimeoutError("timed out")
        elif way == "ours":
            remote.send(b"\xf0\0")  # what no server sends
        elif way == "another reason":
            remote.send(b"\xe0\x01\x8e")
        elif way == "PUBACK":
            remote.send(mqtt_wire.puback(7))
        elif way == "PUBREC":
            remote.send(mqtt_wire.pubrec(7))
        elif way == "run":
            remote.send(mqtt_wire.puback(7) + mqtt_wire.puback(9))
        remote.close(error)
    assert remote.bridge.counters.not_taken == 0
    assert not any(call[0] == "rejected" for one in remote.port.connected for call in one.calls)


def test_the_end_of_a_probation() -> None:
    """An acknowledgement clears the strikes. The window opens when a hundred messages were taken
    one by one: others before the culprit may have lost their acknowledgements."""
    remote = Refusing()
    remote.refuse(2)
    assert len(remote.accept()) == 1
    remote.deliver(qos=0, packet_id=0)
    assert remote.receive() == []  # it could be the culprit
    for number in range(100):
        assert ("send_singly", False) not in remote.calls
        if number % 2:
            remote.send(mqtt_wire.puback(7))
        else:
            remote.send(mqtt_wire.puback(7), PINGS[1])
    assert ("send_singly", False) in remote.calls
    remote.deliver(qos=0, packet_id=0)
    assert len(remote.receive()) == 1
    assert remote.connection.fast_path.session is remote.port.connected[-1]
    remote.close()
    remote.accept()
    assert ("send_singly", True) not in remote.calls


def test_a_remote_that_does_not_answer_the_ping_of_a_probation() -> None:
    remote = Refusing(connect_seconds=5)
    remote.refuse(2)
    remote.connect()
    remote.send(CONNACK_5)
    remote.loop.advance(7)
    assert remote.failures[-1] == Failure("no_answer", "it did not answer PINGREQ")
