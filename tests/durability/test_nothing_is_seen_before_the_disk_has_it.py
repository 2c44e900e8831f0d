"""No consumer of any protocol, and no reader by offset, sees a message before fdatasync has
returned for it. MQTT QoS 0 and AMQP's transient messages are the exception, and say so."""

from __future__ import annotations

import pytest

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import MqttWire, Sink, bodies_of, pull
from tests.durability.publishers import SAFE, Publisher
from tests.durability.readers import TOPIC, Readers
from tests.durability.running import Running


@pytest.mark.parametrize("way", SAFE)
def test_every_reader_waits(server: Running, sink: Sink, publisher: Publisher, way: str) -> None:
    """Held back, nobody sees it; released, everybody does."""
    with Readers(server, sink) as readers:
        publisher.stage(way, b"body")
        before = server.appended()
        server.disk.block()
        publisher.publish(way, b"body")
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        seen = readers.seen()
        assert set(map(tuple, seen.values())) == {()}, seen
        assert not publisher.has_answer()
        server.disk.release()
        publisher.expect_answer(way)
        seen = readers.wait(1)
        assert set(map(tuple, seen.values())) == {(b"body",)}, seen


@pytest.mark.parametrize("way", ["MQTT QoS 0", "AMQP transient"])
def test_what_nobody_acks_is_seen_at_once_but_not_by_offset(
    server: Running, sink: Sink, publisher: Publisher, way: str
) -> None:
    """Consumers get it from the page cache. Readers by offset never do: an offset that they saw is
    never given again, and this one still could be."""
    with Readers(server, sink) as readers:
        before = server.appended()
        server.disk.block()
        publisher.publish(way, b"body")
        server.wait_appended(before)
        seen = readers.seen()
        assert seen.pop("pull") == []
        if way == "AMQP transient":
            # MQTT has no such class: it is delivered with QoS 1, whose packet id is on the disk
            # before the PUBLISH leaves.
            assert seen.pop("MQTT, persistent session") == []
        # The webhook is another connection: its time is not ours to tell.
        seen["HTTP, webhook"] = seen["HTTP, webhook"] or [sink.bodies.get(timeout=20)]
        assert set(map(tuple, seen.values())) == {(b"body",)}, seen
        server.disk.release()
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "last") as client:
        client.send(mqtt.publish("other", qos=1, packet_id=1))
        client.expect(mqtt.puback(1))
    assert pull(server.ports, TOPIC) == [b"body"]


def test_nothing_overtakes_within_a_queue(
    server: Running, sink: Sink, publisher: Publisher
) -> None:
    """QoS 0 behind QoS 1 in the same queues waits with it; order is part of the promise."""
    with Readers(server, sink) as readers:
        before = server.appended()
        server.disk.block()
        publisher.publish("MQTT QoS 1", b"first")
        publisher.publish("MQTT QoS 0", b"second")
        publisher.mqtt.came()
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        seen = readers.seen()
        assert set(map(tuple, seen.values())) == {()}, seen
        server.disk.release()
        seen = readers.wait(2)
    # To a persistent session, what has a packet id waits for that id's flush as well. MQTT asks for
    # order among messages of the same QoS (3.1.1, part 4.6).
    assert sorted(seen.pop("MQTT, persistent session")) == [b"first", b"second"]
    assert set(map(tuple, seen.values())) == {(b"first", b"second")}, seen


def test_a_retained_message_is_not_replayed_before_the_disk_has_it(server: Running) -> None:
    """A subscriber comes, then a retained message. The flush that the SUBACK waits for does not
    cover the message: the SUBACK leaves, the replay must not bring it."""
    assert server.ports.mqtt is not None
    with (
        MqttWire.connected(server.ports.mqtt, "publisher") as publisher,
        MqttWire.connected(server.ports.mqtt, "subscriber", clean=False) as subscriber,
    ):
        publisher.send(mqtt.publish("t/old", b"old", qos=1, packet_id=1, retain=True))
        publisher.expect(mqtt.puback(1))
        before = server.appended()
        server.disk.stepped.block()
        subscriber.send(mqtt.subscribe(1, ("t/#", 1)))
        server.wait_appended(before)
        server.disk.stepped.wait_until_held()
        before = server.appended()
        publisher.send(
            mqtt.publish("t/new", b"new", qos=1, packet_id=2, retain=True),
            mqtt.publish("t/old", b"replaced", qos=1, packet_id=3, retain=True),
        )
        server.wait_appended(before)
        assert publisher.came() == []
        server.disk.stepped.step()
        server.disk.stepped.wait_until_held()
        subscriber.expect(mqtt.suback(1, 1))
        seen = bodies_of(subscriber.came())
        assert b"new" not in seen
        assert b"replaced" not in seen
        server.disk.release()
        publisher.expect(mqtt.puback(2), mqtt.puback(3))
        while not {b"new", b"replaced"} <= set(seen):
            packet = subscriber.read()
            assert packet is not None
            seen += bodies_of([packet])


def test_state_that_is_not_committed_is_not_served_either(server: Running) -> None:
    """A topic's end, as readers by offset are told it, moves with the disk."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "publisher") as publisher:
        publisher.send(mqtt.publish(f"{TOPIC}/k", b"one", qos=1, packet_id=1))
        publisher.expect(mqtt.puback(1))
        before = server.appended()
        server.disk.block()
        publisher.send(mqtt.publish(f"{TOPIC}/k", b"two", qos=1, packet_id=2))
        server.wait_appended(before)
        assert pull(server.ports, TOPIC) == [b"one"]
        server.disk.release()
        publisher.expect(mqtt.puback(2))
    assert pull(server.ports, TOPIC) == [b"one", b"two"]
