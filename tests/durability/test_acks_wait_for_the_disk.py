"""No answer that promises something leaves before fdatasync has returned; then all of them do.

The sync is held back. What the client asked has then been taken and stands in the log (the log has
grown), the flusher is inside fdatasync, and on the same connection a later answer that does not
wait for the disk arrives without it.
"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest

from interop_tests.remoting_wire import Client as RocketmqClient
from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, HttpWire, MqttWire, bodies_of, post
from tests.durability.running import Running

spec = pika.spec
PASSWORD = {"password": "correct horse battery staple"}
RULE = {"subject": "old", "effect": "allow", "actions": ["publish"], "topic": "t/#"}


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
        pytest.param(
            mqtt.publish("$delayed/60/t/1", b"body", qos=1, packet_id=7),
            mqtt.puback(7),
            id="publish-delayed-qos-1",
        ),
        pytest.param(
            mqtt.publish("$delayed/60/t/1", b"body", qos=2, packet_id=7),
            mqtt.pubrec(7),
            id="publish-delayed-qos-2",
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
        server.disk.block()
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
        server.disk.block()
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
        server.disk.stepped.block()
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
    chain = spec.Exchange.Bind(destination="x", source="y", routing_key="k")
    client.ask(chain, spec.Exchange.BindOk)
    delayed = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    later = spec.Exchange.Declare(exchange="later", durable=True, **delayed)
    client.ask(later, spec.Exchange.DeclareOk)
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
        pytest.param(
            spec.Exchange.Bind(destination="y", source="x", routing_key="k"),
            spec.Exchange.BindOk,
            id="exchange.bind",
        ),
        pytest.param(
            spec.Exchange.Unbind(destination="x", source="y", routing_key="k"),
            spec.Exchange.UnbindOk,
            id="exchange.unbind",
        ),
    ],
)
def test_amqp_declarations(
    server: Running, question: pika.amqp_object.Method, answer: type[pika.amqp_object.Method]
) -> None:
    """What is durable is on the disk before its -ok."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.block()
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
        pytest.param(
            lambda client: client.publish("later", "k", b"body", headers={"x-delay": 60_000}),
            id="delayed",
        ),
    ],
)
def test_amqp_confirms(server: Running, publish: Callable[[AmqpWire], None]) -> None:
    """A confirm means durable whatever the delivery mode, also where no queue is bound: readers by
    offset are."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.block()
        publish(client)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        expect_mark(client)
        server.disk.release()
        assert client.expect(spec.Basic.Ack).delivery_tag == 3


@pytest.mark.parametrize("what", ["publish", "ack", "both"])
def test_amqp_transactions(server: Running, what: str) -> None:
    """commit-ok means that all of it is on the disk, also where that is acknowledgements only."""
    assert server.ports.amqp is not None
    with amqp_with_marks(server) as client, AmqpWire(server.ports.amqp) as transactional:
        client.publish("", "durable", b"to be acknowledged")
        client.expect(spec.Basic.Ack)
        transactional.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        transactional.consume("durable")
        tag = transactional.message().method.delivery_tag
        before = server.wait_flushed()
        server.disk.block()
        if what != "ack":
            transactional.publish("", "marks", b"body")
        if what != "publish":
            transactional.send(spec.Basic.Ack(delivery_tag=tag))
        transactional.send(spec.Tx.Commit())
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        expect_mark(client)
        assert not transactional.has_bytes()
        server.disk.release()
        transactional.expect(spec.Tx.CommitOk)


def test_amqp_closing_does_not_hurry_confirms(server: Running) -> None:
    """connection.close after a publish: the confirm comes first, and both wait."""
    with amqp_with_marks(server) as client:
        before = server.appended()
        server.disk.block()
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
            lambda client: client.send(
                "POST", "/topics/t", b"body", PolyMQ_Tag="k", PolyMQ_Delay_Ms="60000"
            ),
            204,
            id="delayed",
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
        server.disk.block()
        ask(client)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        assert other.ask("GET", "/healthz")[0] == 200
        assert other.ask("GET", "/healthz")[0] == 200
        assert not client.has_answer()
        server.disk.release()
        assert client.answer()[0] == status


@pytest.mark.parametrize(
    ("method", "path", "value", "status"),
    [
        pytest.param("PUT", "/api/v1/users/new", PASSWORD, 201, id="new-user"),
        pytest.param("PATCH", "/api/v1/users/old", {"disabled": True}, 200, id="user"),
        pytest.param("DELETE", "/api/v1/users/old", None, 204, id="deleted-user"),
        pytest.param("POST", "/api/v1/permissions", RULE, 200, id="permission"),
        pytest.param("PUT", "/api/v1/topics/new", {"queues": 1}, 201, id="topic"),
    ],
)
def test_administration(
    server: Running, method: str, path: str, value: object, status: int
) -> None:
    """An operator who took a right away, and was told so, can rely on it."""
    assert server.ports.admin is not None
    with HttpWire(server.ports.admin) as client, HttpWire(server.ports.admin) as other:
        operator = {"Authorization": f"Bearer {server.token()}", "X-PolyMQ-Admin": "1"}
        assert client.ask("PUT", "/api/v1/users/old", PASSWORD, **operator)[0] == 201
        before = server.wait_flushed()
        server.disk.block()
        client.send(method, path, value, **operator)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        assert other.ask("GET", "/health")[0] == 200
        assert not client.has_answer()
        server.disk.release()
        assert client.answer()[0] == status


# --- RocketMQ: the marker is the answer to a question about a topic ------------------------------


def rocketmq_send(client: RocketmqClient, flag: int = 0, **properties: str) -> None:
    """Send one message, and do not wait for the answer."""
    named = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    where = {"a": "producers", "b": "t", "c": "TBW102", "d": 4, "e": 0}
    client.send(310, b"body", **where, f=flag, g=0, h=0, i=named, j=0)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client, half: rocketmq_send(client, TAGS="k"), id="send"),
        pytest.param(lambda client, half: rocketmq_send(client, DELAY="18"), id="delayed"),
        pytest.param(
            lambda client, half: rocketmq_send(client, 4, TRAN_MSG="true", PGROUP="producers"),
            id="half-message",
        ),
        pytest.param(lambda client, half: client.send(37, commitOrRollback=8, **half), id="commit"),
        pytest.param(
            lambda client, half: client.send(37, commitOrRollback=12, **half), id="rollback"
        ),
        pytest.param(
            lambda client, half: client.send(
                17, topic="new", readQueueNums=1, writeQueueNums=1, perm=6, defaultTopic="TBW102"
            ),
            id="topic",
        ),
    ],
)
def test_rocketmq(
    server: Running, ask: Callable[[RocketmqClient, dict[str, object]], None]
) -> None:
    """SEND_OK means durable; so does the answer to a decision about a half message."""
    assert server.ports.rocketmq is not None
    with RocketmqClient(server.ports.host, server.ports.rocketmq) as client:
        sent = client.publish("t", b"x", system_flag=4, TRAN_MSG="true", PGROUP="producers")
        half: dict[str, object] = {
            "producerGroup": "producers",
            "tranStateTableOffset": sent.fields["queueOffset"],
            "commitLogOffset": int(sent.fields["msgId"][16:], 16),
        }
        assert client.publish("t", b"seed").code == 0
        before = server.wait_flushed()
        server.disk.block()
        ask(client, half)
        server.wait_appended(before)
        server.disk.held.wait_until_held()
        marker = client.send(30, topic="t", queueId=0)
        assert client.read().header["opaque"] == marker
        server.disk.release()
        answer = client.read()
        assert (answer.header["opaque"], answer.code) == (marker - 1, 0)
