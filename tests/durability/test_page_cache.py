"""Where `page_cache` was chosen by name, answers and consumers do not wait for the disk; everything
else on the same broker does."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from polymq.admin.client import AdminClient
from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, MqttWire, Sink, pull
from tests.durability.publishers import SAFE, Publisher
from tests.durability.readers import TOPIC, Readers
from tests.durability.running import Running, running

spec = pika.spec
QUICK = {"durability": "page_cache"}
SAFE_TOPIC = "safe"
OF_STATE = ("AMQP transaction", "AMQP dead letter", "RocketMQ transaction")
"""Ways to publish that settle something, too: a change of state waits for the disk everywhere."""
LOOKS_MAX = 10_000
"""Each is a connection and a pull; the lazy flush takes 0.2 seconds."""


@pytest.fixture
def admin(server: Running) -> AdminClient:
    """The server's admin port, with the readers' topic set to `page_cache`."""
    client = AdminClient(server.ports)
    client.create_topic(TOPIC, 1, QUICK)
    return client


@pytest.mark.parametrize("way", [way for way in SAFE if way not in OF_STATE])
@pytest.mark.usefixtures("admin")
def test_nobody_waits_for_the_disk(
    server: Running, sink: Sink, publisher: Publisher, way: str
) -> None:
    """The answer comes and consumers get the message while every sync is held back. Readers by
    offset see it when the disk has it, which the lazy flush sees to."""
    with Readers(server, sink) as readers:
        server.disk.block()
        publisher.publish(way, b"body")
        publisher.expect_answer(way)
        server.disk.held.wait_until_held()  # somebody asked for a sync, or the lazy one came
        seen = readers.seen()
        assert seen.pop("pull") == []
        # What has a packet id waits for that id to be on the disk.
        assert seen.pop("MQTT, persistent session") == []
        seen["HTTP, webhook"] = seen["HTTP, webhook"] or [sink.bodies.get(timeout=20)]
        if way == "AMQP persistent":  # another connection: its time is not ours to tell
            seen = {name: bodies for name, bodies in seen.items() if bodies}
        assert set(map(tuple, seen.values())) == {(b"body",)}, seen
        server.disk.release()
    looks = (pull(server.ports, TOPIC) for _ in range(LOOKS_MAX))
    assert [b"body"] in looks


@pytest.mark.usefixtures("admin")
def test_mqtt_acks_keep_their_order(server: Running) -> None:
    """A page_cache message is acknowledged at once, unless an earlier one of its client waits for
    the disk. Another client's is not held up by that."""
    assert server.ports.mqtt is not None
    with (
        MqttWire.connected(server.ports.mqtt, "a") as client,
        MqttWire.connected(server.ports.mqtt, "b") as other,
    ):
        server.disk.block()
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=1))
        client.expect(mqtt.puback(1))
        client.send(mqtt.publish(SAFE_TOPIC, qos=1, packet_id=2))
        assert client.came() == []
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=3))
        assert client.came() == []
        other.send(mqtt.publish(TOPIC, qos=1, packet_id=1))
        other.expect(mqtt.puback(1))
        server.disk.release()
        client.expect(mqtt.puback(2), mqtt.puback(3))
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=4))
        client.expect(mqtt.puback(4))


@pytest.mark.usefixtures("admin")
def test_both_kinds_in_one_read(server: Running) -> None:
    """One answer covers all publishes of a read, so it waits for the safest of them."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "a") as client:
        server.disk.block()
        client.send(
            mqtt.publish(SAFE_TOPIC, qos=1, packet_id=1), mqtt.publish(TOPIC, qos=1, packet_id=2)
        )
        assert client.came() == []
        server.disk.release()
        client.expect(mqtt.puback(1), mqtt.puback(2))


@pytest.mark.usefixtures("admin")
def test_amqp_confirms_keep_their_order(server: Running) -> None:
    """As with MQTT; and what changes state waits for the disk as ever."""
    assert server.ports.amqp is not None
    with AmqpWire(server.ports.amqp, confirms=True) as client:
        declare = spec.Exchange.Declare(exchange=SAFE_TOPIC, type="topic", durable=True)
        client.ask(declare, spec.Exchange.DeclareOk)
        server.disk.block()
        client.publish(TOPIC, "k", b"1")
        assert client.expect(spec.Basic.Ack).delivery_tag == 1
        client.publish(SAFE_TOPIC, "k", b"2")
        server.disk.held.wait_until_held()
        client.publish(TOPIC, "k", b"3")
        with AmqpWire(server.ports.amqp, confirms=True) as other:
            other.publish(TOPIC, "k", b"1")
            other.expect(spec.Basic.Ack)
            assert not client.has_bytes()
            other.send(spec.Queue.Declare(queue="q", durable=True))
            other.publish(TOPIC, "k", b"2")
            server.disk.release()
            other.expect(spec.Queue.DeclareOk)
            other.expect(spec.Basic.Ack)
        tags = [client.expect(spec.Basic.Ack).delivery_tag]
        while tags[-1] < 3:
            tags.append(client.expect(spec.Basic.Ack).delivery_tag)
        assert tags in ([2, 3], [3])


def test_a_changed_setting_counts_from_then_on(server: Running, admin: AdminClient) -> None:
    """A client that publishes all the time notices: its next message waits for something else."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "a") as client:
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=1))
        client.expect(mqtt.puback(1))
        admin.set_topic(TOPIC, {"durability": "fsync"})
        server.disk.block()
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=2))
        assert client.came() == []
        server.disk.release()
        client.expect(mqtt.puback(2))
        admin.set_topic(TOPIC, QUICK)
        server.disk.block()
        client.send(mqtt.publish(TOPIC, qos=1, packet_id=3))
        client.expect(mqtt.puback(3))
        server.disk.release()


def test_chosen_for_the_whole_broker(tmp_path: Path) -> None:
    """Every topic that says nothing else; one that says `fsync` waits."""
    with running(tmp_path / "data", topics__durability="page_cache") as server:
        AdminClient(server.ports).create_topic(SAFE_TOPIC, 1, {"durability": "fsync"})
        assert server.ports.mqtt is not None
        with (
            MqttWire.connected(server.ports.mqtt, "a") as client,
            MqttWire.connected(server.ports.mqtt, "b") as other,
        ):
            other.send(mqtt.publish("any/topic", qos=1, packet_id=1))
            other.expect(mqtt.puback(1))
            server.disk.block()
            client.send(mqtt.publish(SAFE_TOPIC, qos=1, packet_id=1))
            other.send(mqtt.publish("any/topic", qos=1, packet_id=2))
            other.expect(mqtt.puback(2))
            assert client.came() == []
            server.disk.release()
            client.expect(mqtt.puback(1))
