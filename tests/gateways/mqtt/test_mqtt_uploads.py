"""Packets that are here in part share a bound: clients wait for it in turn, and are not closed."""

from __future__ import annotations

from interop_tests import mqtt_wire as wire
from polymq.gateways.mqtt.limits import KIB, Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Peer
from tests.gateways.mqtt.test_mqtt_turns import read

PART = 40 * KIB
LIMITS = Limits(parts_bytes_max=5 * PART // 2, part_bytes_min=PART, part_seconds=5.0)


def packet(number: int) -> bytes:
    """A message that comes in three reads."""
    return wire.publish("t", bytes([number]) * (5 * PART // 2), qos=1, packet_id=number)


def senders(broker: Broker, count: int) -> list[tuple[Peer, bytes]]:
    """Clients that have sent the first part of a message; and the rest of it."""
    made = []
    for number in range(1, count + 1):
        peer = broker.peer(wire.connect(f"c{number}"))
        read(peer, packet(number)[:PART])
        made.append((peer, packet(number)[PART:]))
    return made


def reading(made: list[tuple[Peer, bytes]]) -> list[bool]:
    return [peer.transport.reading for peer, _ in made]


def test_clients_wait_for_room_in_the_order_of_their_coming() -> None:
    """The first goes on whatever it takes; all messages arrive, and nobody is closed."""
    broker = Broker(limits=LIMITS)
    made = senders(broker, 4)
    uploads = broker.shared.uploads
    assert uploads.bytes == 4 * PART
    assert reading(made) == [True, True, False, False]
    assert uploads.waiting_count == 2
    second, rest = made[1]
    read(second, rest[:PART])
    made[1] = second, rest[PART:]
    assert reading(made) == [True, False, False, False]
    for peer, rest in made:
        assert peer.transport.reading
        read(peer, rest)
        broker.loop.run()
    assert uploads.bytes == uploads.waiting_count == 0
    assert [message.body[0] for message in broker.port.published] == [1, 2, 3, 4]
    assert [peer.receive() for peer, _ in made] == [[wire.puback(n)] for n in range(1, 5)]


def test_a_client_that_leaves_gives_its_room_back() -> None:
    broker = Broker(limits=LIMITS)
    made = senders(broker, 3)
    assert reading(made) == [True, True, False]
    made[0][0].vanish()
    assert reading(made)[1:] == [True, True]
    assert broker.shared.uploads.bytes == 2 * PART
    for peer, rest in made[1:]:
        read(peer, rest)
        broker.loop.run()
    assert [message.body[0] for message in broker.port.published] == [2, 3]
    assert broker.shared.uploads.bytes == 0


def test_a_client_for_which_others_wait_in_vain_is_closed() -> None:
    """One that goes on is not; nor is one for which nobody waits."""
    broker = Broker(limits=LIMITS)
    alone = Broker(limits=LIMITS)
    idle = senders(alone, 2)
    alone.loop.advance(60)
    assert not any(peer.is_closed() for peer, _ in idle)
    made = senders(broker, 3)
    read(made[0][0], made[0][1][:PART])
    broker.loop.advance(6)
    assert not made[0][0].is_closed()
    broker.loop.advance(5)
    assert made[0][0].is_closed()
    assert not made[1][0].is_closed()
    assert broker.shared.counters.uploads_too_slow == 1
    assert reading(made)[1:] == [True, True]


def test_small_packets_and_parts_never_wait() -> None:
    broker = Broker(limits=LIMITS)
    senders(broker, 3)
    other = broker.peer(wire.connect("other"))
    small = wire.publish("s", b"x" * KIB, qos=1, packet_id=7)
    read(other, small + small[:100])
    broker.loop.run()
    assert other.transport.reading
    read(other, small[100:])
    broker.loop.run()
    assert other.receive() == [wire.puback(7)] * 2
