"""No answer that promises something leaves before fdatasync has returned; then all of them do.

The sync is held back. What the client asked has then been taken and stands in the log (the log has
grown), the flusher is inside fdatasync, and on the same connection a later answer that does not
wait for the disk arrives without it.
"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, HttpWire, MqttWire, bodies_of, post
from tests.durability.running import Running

spec = pika.spec


# --- MQTT: the marker is PINGRESP --------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        pytest.param(
            mqtt.publish("t/1", b"body", qos=1, packet_id=7), mqtt.puback(7), id="publish-qos-1"
        ),
        pytest.param(
            mqtt.publish("t/1", b"body", qos=2, packet_id=7), mqtt.pubrec(7), id="publish-qos-2"
        ),
        pytest.param(
            mqtt.publish("t/1", b"body", qos=1, packet_id=7, retain=True),
            mqtt.puback(7),
            id="publish-retained",
        ),
        pytest.param(mqtt.pubrel(1), mqtt.pubcomp(1), id="pubrel"),
        pytest.param(mqtt.subscribe(7, ("new/#", 1)), mqtt.suback(7, 1), id="subscribe"),
        pytest.param(mqtt.subscribe(7, ("new/#", 0)), mqtt.suback(7, 0), id="subscribe-qos-0"),
        pytest.param(mqtt.unsubscribe(7, "old/#"), mqtt.unsuback(7), id="unsubscribe"),
    ],
)
def test_mqtt(server: Running, question: bytes, answer: bytes) -> None:
    """A persistent session, with a subscription and an inbound QoS 2 message not yet released."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "c", clean=False) as client:
        client.send(mqtt.publish("t/1", qos=2, packet_id=1), mqtt.subscribe(2, ("old/#", 1)))
        client.expect(mqtt.pubrec(1), mqtt.suback(2, 1))
        before = server.appended()
        server.disk.hold()
        client.send(question)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        assert client.came() == []
        server.disk.release()
        client.expect(answer)


def test_mqtt_connack_of_a_new_persistent_session(server: Running) -> None:
    """Session Present at the next CONNECT would otherwise depend on luck."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "other") as other:
        before = server.appended()
        server.disk.hold()
        with MqttWire(server.ports.mqtt, "c", clean=False) as client:
            server.wait_appended(before)
            server.disk.held.wait_until_held()
            # Nothing may be said to it before CONNACK; the marker comes on another connection.
            assert other.came() == []
            assert not client.has_bytes()
            server.disk.release()
            client.expect(mqtt.connack())


def test_mqtt_packet_ids_are_on_the_disk_before_their_publish(server: Running) -> None:
    """A QoS 2 message gets its packet id, the client is gone before that id is on the disk, and
    comes back: nothing is sent with an id that a crash would forget, not even CONNACK's message."""
    assert server.ports.mqtt is not None
    port = server.ports.mqtt
    with (
        MqttWire.connected(port, "publisher") as publisher,
        MqttWire.connected(port, "c", clean=False) as client,
    ):
        client.send(mqtt.subscribe(1, ("t/#", 2)))
        client.expect(mqtt.suback(1, 2))
        server.disk.stepped.hold()
        publisher.send(mqtt.publish("t/1", b"body", qos=2, packet_id=1))
        server.disk.stepped.wait_until_held()
        server.disk.stepped.step()  # the message; its packet id is given then
        publisher.expect(mqtt.pubrec(1))
        server.disk.stepped.wait_until_held()
        assert client.came() == []
        with MqttWire(port, "c", clean=False) as again:  # takes the session over
            assert client.came_before_close() == []
            assert publisher.came() == []
            assert not again.has_bytes()
            server.disk.release()
            again.expect(mqtt.connack(present=True))
            packet = again.read()
            assert packet is not None
            assert bodies_of([packet]) == [b"body"]


# --- AMQP: the marker is a delivery of a message that is on the disk long since ------------------


def amqp_with_marks(server: Running, count: int = 2) -> AmqpWire:
    """A connection with confirms that has received the first of `count` messages of a queue."""
    assert server.ports.amqp is not None
    client = AmqpWire(server.ports.amqp, confirms=True)
    for name in ("marks", "durable"):
        client.ask(spec.Queue.Declare(queue=name, durable=True), spec.Queue.DeclareOk)
    client.ask(spec.Exchange.Declare(exchange="x", durable=True), spec.Exchange.DeclareOk)
    client.ask(spec.Exchange.Declare(exchange="y", durable=True), spec.Exchange.DeclareOk)
    bind = spec.Queue.Bind(queue="durable", exchange="y", routing_key="k")
    client.ask(bind, spec.Queue.BindOk)
    for number in range(count):
        client.publish("", "marks", b"mark %d" % number)
        client.expect(spec.Basic.Ack)
    client.consume("marks", prefetch=1)
    assert client.message().body == b"mark 0"
    return client


def expect_mark(client: AmqpWire, number: int = 1) -> None:
    """The next mark is the next thing that comes."""
    client.send(spec.Basic.Ack(delivery_tag=number))
    assert client.message().body == b"mark %d" % number


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        pytest.param(
            spec.Queue.Declare(queue="new", durable=True), spec.Queue.DeclareOk, id="queue.declare"
        ),
        pytest.param(spec.Queue.Delete(queue="durable"), spec.Queue.DeleteOk, id="queue.delete"),
        pytest.param(
            spec.Queue.Bind(queue="durable", exchange="x", routing_key="k"),
            spec.Queue.BindOk,
            id="queue.bind",
        ),
        pytest.param(
            spec.Queue.Unbind(queue="durable", exchange="y", routing_key="k"),
            spec.Queue.UnbindOk,
            id="queue.unbind",
        ),
        pytest.param(
            spec.Exchange.Declare(exchange="new", durable=True),
            spec.Exchange.DeclareOk,
            id="exchange.declare",
        ),
        pytest.param(
            spec.Exchange.Delete(exchange="x"), spec.Exchange.DeleteOk, id="exchange.delete"
        ),
    ],
)
def test_amqp_declarations(
    server: Running, question: pika.amqp_object.Method, answer: type[pika.amqp_object.Method]
) -> None:
    """What is durable is on the disk before its -ok."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.hold()
        client.send(question)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        expect_mark(client)
        server.disk.release()
        client.expect(answer)


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(lambda client: client.publish("", "durable", b"body"), id="persistent"),
        pytest.param(
            lambda client: client.publish("", "durable", b"body", persistent=False), id="transient"
        ),
        pytest.param(lambda client: client.publish("x", "k", b"body"), id="to-nobody"),
    ],
)
def test_amqp_confirms(server: Running, publish: Callable[[AmqpWire], None]) -> None:
    """A confirm means durable whatever the delivery mode, also where no queue is bound: readers by
    offset are."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.hold()
        publish(client)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        expect_mark(client)
        server.disk.release()
        assert client.expect(spec.Basic.Ack).delivery_tag == 3


def test_amqp_closing_does_not_hurry_confirms(server: Running) -> None:
    """connection.close after a publish: the confirm comes first, and both wait."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.hold()
        client.publish("", "durable", b"body")
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        expect_mark(client)
        client.send(spec.Connection.Close(200, "bye", 0, 0), channel=0)
        server.disk.release()
        client.expect(spec.Basic.Ack)
        client.expect(spec.Connection.CloseOk)
        assert client.read() is None


# --- HTTP: answers on one connection keep their order, so the marker comes on another -------------


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        pytest.param(lambda client: post(client, "t", "k", b"body"), 204, id="event"),
        pytest.param(
            lambda client: client.send("POST", "/topics/t", b"body", PolyMQ_Tag="k"), 204, id="raw"
        ),
        pytest.param(
            lambda client: client.send("PUT", "/subscriptions/new", {"topic": "t"}),
            201,
            id="subscription",
        ),
        pytest.param(
            lambda client: client.send("DELETE", "/subscriptions/old"), 204, id="unsubscription"
        ),
    ],
)
def test_http(server: Running, ask: Callable[[HttpWire], None], status: int) -> None:
    """2xx means durable."""
    assert server.ports.http is not None
    with HttpWire(server.ports.http) as client, HttpWire(server.ports.http) as other:
        assert client.ask("PUT", "/subscriptions/old", {"topic": "t"})[0] == 201
        before = server.appended()
        server.disk.hold()
        ask(client)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        assert other.ask("GET", "/healthz")[0] == 200
        assert other.ask("GET", "/healthz")[0] == 200
        assert not client.has_answer()
        server.disk.release()
        assert client.answer()[0] == status
