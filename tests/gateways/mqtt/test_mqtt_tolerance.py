"""What clients do that others refuse: bridges that say so below `$SYS`, slow uploads, large wills,
clients of 3.1; and what nobody may do for ever."""

from __future__ import annotations

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.port import WrongAcknowledgement
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Peer

STATE = "$SYS/broker/connection/host.bridge/state"


# --- `$SYS` ---------------------------------------------------------------------------------


def test_a_will_below_sys_is_taken_and_dropped() -> None:
    """As a mosquitto bridge leaves it by default; every other will is published."""
    broker = Broker()
    peer = broker.peer(wire.connect("bridge", will=(STATE, b"0", 1, True)))
    peer.vanish()
    assert broker.port.published == []
    assert broker.shared.counters.publishes_ignored == 1


@pytest.mark.parametrize("topic", [STATE, "$SYS"])
def test_what_is_published_below_sys_is_acknowledged_and_dropped(topic: str) -> None:
    """Also beside others in one read, in the order of what was sent."""
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish(topic, b"1", qos=1, packet_id=1, retain=True))
    assert peer.receive() == [wire.puback(1)]
    peer.send(
        wire.publish("a", b"x", qos=1, packet_id=2),
        wire.publish(topic, b"1", qos=2, packet_id=3),
        wire.publish(topic, b"1"),
        wire.publish("a", b"y", qos=1, packet_id=4),
    )
    assert peer.receive() == [wire.puback(2), wire.pubrec(3), wire.puback(4)]
    peer.send(wire.pubrel(3))
    assert peer.receive() == [wire.pubcomp(3)]
    assert [published.body for published in broker.port.published] == [b"x", b"y"]
    assert broker.shared.counters.publishes_ignored == 3
    assert broker.shared.counters.publishes_refused == 0


def test_other_topics_of_the_server_are_refused() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish("$SYSTEM/x", b"1", qos=1, packet_id=1))
    assert peer.is_closed()
    assert broker.shared.counters.publishes_ignored == 0


# --- slow uploads ---------------------------------------------------------------------------


def upload(peer: Peer, *, bytes_each: int, seconds_each: float, size: int = 200_000) -> int:
    """Send one PUBLISH in pieces; returns how many pieces left before the connection ended."""
    data = wire.publish("a", bytes(size), qos=1, packet_id=1)
    pieces = [data[at : at + bytes_each] for at in range(0, len(data), bytes_each)]
    for number, piece in enumerate(pieces):
        peer.send(piece)
        peer.broker.loop.advance(seconds_each)
        if peer.is_closed():
            return number
    return len(pieces)


def test_a_slow_upload_is_a_sign_of_life() -> None:
    """A packet that takes longer than the keep alive, at a pace that gets to its end."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=2))
    assert upload(peer, bytes_each=2_000, seconds_each=1.0) == 101
    assert peer.receive() == [wire.puback(1)]
    assert len(broker.port.published) == 1


@pytest.mark.parametrize("bytes_each", [1, 100, 255])
def test_a_trickle_is_none(bytes_each: int) -> None:
    """Some bytes now and then, and no packet: closed after one and a half periods."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=4))
    assert upload(peer, bytes_each=bytes_each, seconds_each=1.0) < 9
    assert broker.shared.counters.keep_alives_missed == 1


def test_an_upload_that_stops_is_none() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=4))
    peer.send(wire.publish("a", bytes(100_000), qos=1, packet_id=1)[:50_000])
    broker.loop.advance(9.0)
    assert peer.is_closed()


def test_a_second_upload_is_measured_by_itself() -> None:
    """What came of an earlier packet does not count for the next one."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=4))
    for _ in range(2):
        assert upload(peer, bytes_each=2_000, seconds_each=1.0, size=20_000) == 11
        assert peer.receive() == [wire.puback(1)]
        for _ in range(10):
            peer.send(wire.PINGREQ)
            broker.loop.advance(3.0)
        assert peer.receive() == [wire.PINGRESP] * 10


# --- CONNECT --------------------------------------------------------------------------------


def test_the_largest_connect_that_there_can_be() -> None:
    """A will, a user and a password of 65,535 bytes each [MQTT-3.1.3]."""
    broker = Broker()
    most = 65_535
    broker.port.users = {"u" * most: b"p" * most}
    packet = wire.connect(
        "c" * 256,
        will=("w/" * 100, b"x" * most, 1, False),
        user="u" * most,
        password=b"p" * most,
    )
    peer = broker.peer(None)
    peer.send(packet)
    assert peer.receive() == [wire.connack()]
    assert broker.shared.early_bytes == 0
    peer.vanish()
    (published,) = broker.port.published
    assert published.body == b"x" * most


def test_strangers_with_large_connects_share_their_room() -> None:
    """Whoever goes over it is closed, in the middle of CONNECT or behind it; whoever leaves gives
    it back, and so does whoever is let in."""
    broker = Broker(limits=Limits(early_bytes_max=100_000))
    broker.port.logins_take_time = True
    packet = wire.connect("c", will=("w", bytes(40_000), 0, False))
    half = broker.peer(None)
    half.send(packet[:30_000])
    whole = broker.peer(None)
    whole.send(packet)
    over = broker.peer(None)
    over.send(packet)
    assert [peer.is_closed() for peer in (half, whole, over)] == [False, False, True]
    small = broker.peer(None)
    small.send(wire.connect("small"))
    assert not small.is_closed()
    half.vanish()
    again = broker.peer(None)
    again.send(packet)
    assert not again.is_closed()
    for answer in broker.port.logins:
        answer()
    assert broker.shared.early_bytes == 0
    broker.loop.run()
    assert small.receive() == whole.receive() == [wire.connack()]


@pytest.mark.parametrize(("level", "name", "present"), [(3, "MQIsdp", False), (4, "MQTT", True)])
def test_session_present_is_a_bit_of_3_1_1(level: int, name: str, present: bool) -> None:
    """In 3.1 that byte of CONNACK is reserved."""
    broker = Broker()
    broker.port.present_ids.add("c")
    peer = broker.peer(None)
    peer.send(wire.connect("c", clean=False, level=level, name=name))
    assert peer.receive() == [wire.connack(present=present)]


# --- acknowledgements of the wrong kind -----------------------------------------------------


@pytest.mark.parametrize("packets", [[wire.puback(1)], [wire.puback(1), wire.pubrec(2)]])
def test_a_wrong_acknowledgement_ends_the_connection(
    packets: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read alone or beside others, and counted as a broken protocol; others live on."""
    broker = Broker()
    other = broker.peer()
    peer = broker.peer(wire.connect("c"))

    def wrong(_first: int, _count: int, _more: bool = False) -> None:
        raise WrongAcknowledgement("no")

    monkeypatch.setattr(peer.session, "acknowledged", wrong)
    peer.send(*packets)
    assert peer.is_closed()
    assert broker.shared.counters.protocol_errors == 1
    other.send(wire.PINGREQ)
    assert other.receive() == [wire.PINGRESP]
