"""What asks for replicas is neither acknowledged nor seen before a replica has it on its disk, in
any protocol; and it holds up nothing else. The replica is simulated: the test says what it has."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from polymq.admin.client import AdminClient
from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, MqttWire, Sink, bodies_of, pull
from tests.durability.publishers import SAFE, Publisher
from tests.durability.readers import TOPIC, Readers
from tests.durability.running import Running, running

spec = pika.spec
COPIED = {"min_in_sync": "2"}
OTHER = "other"


@pytest.fixture
def admin(server: Running) -> AdminClient:
    """The server's admin port, with the readers' topic set to two disks."""
    client = AdminClient(server.ports)
    client.create_topic(TOPIC, 1, COPIED)
    return client


@pytest.mark.parametrize("way", SAFE)
@pytest.mark.usefixtures("admin")
def test_nothing_is_acked_or_seen_before_a_replica_has_it(
    server: Running, sink: Sink, publisher: Publisher, way: str
) -> None:
    """The master's own disk is not enough. What other topics get is acked and seen meanwhile, on
    other connections and by the same subscribers; a replica's ack lets all of it go."""
    assert server.ports.mqtt is not None
    with Readers(server, sink) as readers:
        publisher.stage(way, b"body")
        before = server.appended()
        publisher.publish(way, b"body")
        server.wait_appended(before)
        server.wait_flushed()
        seen = readers.seen()
        assert set(map(tuple, seen.values())) == {()}, seen
        assert not publisher.has_answer()
        with MqttWire.connected(server.ports.mqtt, "somebody else") as other:
            other.send(mqtt.publish(OTHER, b"x", qos=1, packet_id=1))
            other.expect(mqtt.puback(1))
        assert pull(server.ports, OTHER) == [b"x"]
        server.acked()
        publisher.expect_answer(way)
        got = readers.wait(1)
        assert set(map(tuple, got.values())) == {(b"body",)}, got


@pytest.mark.usefixtures("admin")
def test_a_replica_that_has_a_part_lets_a_part_go(server: Running) -> None:
    """Acks follow what the replica has, message by message, and in order."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "publisher") as client:
        ends = []
        for packet_id in (1, 2, 3):
            before = server.appended()
            client.send(mqtt.publish(TOPIC, b"%d" % packet_id, qos=1, packet_id=packet_id))
            ends.append(server.wait_appended(before))
        server.wait_flushed()
        assert client.came() == []
        server.acked(ends[1])
        client.expect(mqtt.puback(1), mqtt.puback(2))
        assert client.came() == []
        assert pull(server.ports, TOPIC) == [b"1", b"2"]
        server.acked(ends[0])  # an old report changes nothing
        server.acked(ends[2] - 1)
        assert client.came() == []
        server.acked(ends[2])
        client.expect(mqtt.puback(3))
    assert pull(server.ports, TOPIC) == [b"1", b"2", b"3"]


@pytest.mark.usefixtures("admin")
def test_a_replica_that_is_ahead_of_the_disk_is_not_enough(server: Running) -> None:
    """Two disks are the master's and the replica's, never the replica's alone."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "publisher") as client:
        before = server.appended()
        server.disk.block()
        client.send(mqtt.publish(TOPIC, b"body", qos=1, packet_id=1))
        server.wait_appended(before)
        server.acked()
        assert client.came() == []
        assert pull(server.ports, TOPIC) == []
        server.disk.release()
        client.expect(mqtt.puback(1))
    assert pull(server.ports, TOPIC) == [b"body"]


@pytest.mark.usefixtures("admin")
def test_acks_of_one_client_keep_their_order(server: Running) -> None:
    """A message of a plain topic is acknowledged at once, unless an earlier one of its client waits
    for a replica [MQTT-4.6.0-2]."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "a") as client:
        client.send(mqtt.publish(OTHER, qos=1, packet_id=1))
        client.expect(mqtt.puback(1))
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=2))
        client.send(mqtt.publish(OTHER, qos=1, packet_id=3))
        server.wait_flushed()
        assert client.came() == []
        server.acked()
        client.expect(mqtt.puback(2), mqtt.puback(3))
        client.send(mqtt.publish(OTHER, qos=1, packet_id=4))
        client.expect(mqtt.puback(4))


@pytest.mark.usefixtures("admin")
def test_a_queue_of_two_topics_keeps_its_order(server: Running) -> None:
    """A queue that collects from a topic that waits and from one that does not delivers in order:
    what comes later waits there, while its own topic's readers get it."""
    assert server.ports.mqtt is not None
    with (
        MqttWire.connected(server.ports.mqtt, "all", clean=False) as every,
        MqttWire.connected(server.ports.mqtt, "plain", clean=False) as plain,
        MqttWire.connected(server.ports.mqtt, "publisher") as publisher,
        MqttWire.connected(server.ports.mqtt, "publisher 2") as second,
    ):
        every.send(mqtt.subscribe(1, ("#", 1)))
        every.expect(mqtt.suback(1, 1))
        plain.send(mqtt.subscribe(1, (f"{OTHER}/#", 1)))
        plain.expect(mqtt.suback(1, 1))
        before = server.appended()
        publisher.send(mqtt.publish(TOPIC, b"copied", qos=1, packet_id=1))
        server.wait_appended(before)
        second.send(mqtt.publish(OTHER, b"plain", qos=1, packet_id=1))
        second.expect(mqtt.puback(1))
        packet = plain.read()
        assert packet is not None
        assert bodies_of([packet]) == [b"plain"]
        assert bodies_of(every.came()) == []
        assert pull(server.ports, OTHER) == [b"plain"]
        assert pull(server.ports, TOPIC) == []
        server.acked()
        publisher.expect(mqtt.puback(1))
        found: list[bytes] = []
        while len(found) < 2:
            packet = every.read()
            assert packet is not None
            found += bodies_of([packet])
        assert found == [b"copied", b"plain"]


@pytest.mark.usefixtures("admin")
def test_a_retained_message_is_not_shown_before_a_replica_has_it(server: Running) -> None:
    """A new subscriber gets it when it is safe, although its SUBACK does not wait for that."""
    assert server.ports.mqtt is not None
    with (
        MqttWire.connected(server.ports.mqtt, "publisher") as publisher,
        MqttWire.connected(server.ports.mqtt, "subscriber") as subscriber,
    ):
        before = server.appended()
        publisher.send(mqtt.publish(TOPIC, b"kept", qos=1, packet_id=1, retain=True))
        server.wait_appended(before)
        server.wait_flushed()
        subscriber.send(mqtt.subscribe(1, (f"{TOPIC}/#", 0)))
        subscriber.expect(mqtt.suback(1, 0))
        assert subscriber.came() == []
        server.acked()
        publisher.expect(mqtt.puback(1))
        packet = subscriber.read()
        assert packet is not None
        assert bodies_of([packet]) == [b"kept"]
        assert subscriber.came() == []


def test_a_broker_that_asks_for_replicas_answers_no_change_before(tmp_path: Path) -> None:
    """`min_in_sync` of the broker: declare-ok, SUBACK of a persistent session and a new topic wait
    for the replica, too."""
    with running(tmp_path / "data", replication__min_in_sync=2) as server:
        assert server.ports.mqtt is not None
        assert server.ports.amqp is not None
        # A clean session makes no change of state, so its CONNACK waits for nothing new.
        server.acked()
        with (
            AmqpWire(server.ports.amqp) as channel,
            MqttWire(server.ports.mqtt, "c", clean=False) as client,
        ):
            before = server.appended()
            channel.send(spec.Queue.Declare(queue="q", durable=True))
            server.wait_appended(before)
            server.wait_flushed()
            assert not channel.has_bytes()
            assert not client.has_bytes()
            server.acked()
            channel.expect(spec.Queue.DeclareOk)
            client.expect(mqtt.connack())
            client.send(mqtt.subscribe(1, ("a/#", 1)))
            server.wait_appended(server.wait_flushed() - 1)
            server.wait_flushed()
            assert client.came() == []
            server.acked()
            client.expect(mqtt.suback(1, 1))
