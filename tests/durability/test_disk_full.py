"""A full disk refuses publishers and keeps serving readers; with room again everything goes on by
itself, and what had been taken before is acked late, but acked."""

from __future__ import annotations

import errno
import http.client
import json

import pika
import pytest

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import (
    HOST,
    AmqpWire,
    HttpWire,
    MqttWire,
    bodies_of,
    post,
    pull,
    received_bodies,
)
from tests.durability.running import SECONDS_MAX, Running

spec = pika.spec
SERVER_UNAVAILABLE = 3
SUBSCRIBE_FAILURE = 0x80
RESOURCE_ERROR = 506
ATTEMPTS_MAX = 1_000


def health(server: Running) -> str:
    assert server.ports.admin is not None
    connection = http.client.HTTPConnection(HOST, server.ports.admin, timeout=SECONDS_MAX)
    try:
        connection.request("GET", "/health")
        status: str = json.loads(connection.getresponse().read())["status"]
        return status
    finally:
        connection.close()


def prepare(server: Running) -> None:
    """A queue, a subscription and a session with one committed message."""
    assert server.ports.mqtt is not None
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    with MqttWire.connected(server.ports.mqtt, "kept", clean=False) as session:
        session.send(mqtt.subscribe(1, ("t/#", 1)))
        session.expect(mqtt.suback(1, 1))
    with HttpWire(server.ports.http) as client:
        assert client.ask("PUT", "/subscriptions/kept", {"topic": "t"})[0] == 201
    with AmqpWire(server.ports.amqp, confirms=True) as channel:
        channel.ask(spec.Queue.Declare(queue="kept", durable=True), spec.Queue.DeclareOk)
        declare = spec.Exchange.Declare(exchange="t", type="topic", durable=True)
        channel.ask(declare, spec.Exchange.DeclareOk)
        bind = spec.Queue.Bind(queue="kept", exchange="t", routing_key="#")
        channel.ask(bind, spec.Queue.BindOk)
        channel.publish("t", "k", b"old")
        channel.expect(spec.Basic.Ack)


def fill(server: Running) -> MqttWire:
    """Let the disk be full; the client returned was met by it, its message waits in memory."""
    assert server.ports.mqtt is not None
    client = MqttWire.connected(server.ports.mqtt, "waiting")
    before = server.appended()
    server.disk.fail("pwritev", errno.ENOSPC)
    client.send(mqtt.publish("t/k", b"waiting", qos=1, packet_id=1))
    server.wait_appended(before)
    assert client.came() == []
    assert "full" in health(server)
    return client


def wait_for_room(server: Running) -> None:
    """The server looks for room by itself."""
    for _ in range(ATTEMPTS_MAX):
        if health(server) == "ok":
            return
    raise AssertionError("the server did not go on")


def test_publishers_are_refused_and_served_again(server: Running) -> None:
    """Each protocol's way to say that there is no room; nothing of it is stored."""
    prepare(server)
    assert server.ports.mqtt is not None
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    with (
        fill(server) as waiting,
        AmqpWire(server.ports.amqp, confirms=True) as channel,
        HttpWire(server.ports.http) as web,
    ):
        with MqttWire.connected(server.ports.mqtt, "new") as client:
            client.send(mqtt.publish("t/k", b"refused", qos=1, packet_id=1))
            assert client.came_before_close() == []
        with MqttWire(server.ports.mqtt, "unknown", clean=False) as client:
            assert client.came_before_close() == [mqtt.connack(SERVER_UNAVAILABLE)]
        channel.publish("t", "k", b"refused")
        channel.expect(spec.Basic.Nack)
        post(web, "t", "k", b"refused")
        assert web.answer()[0] == 507
        assert waiting.came() == []
        server.disk.heal()
        waiting.expect(mqtt.puback(1))
        wait_for_room(server)
        channel.publish("t", "k", b"later")
        channel.expect(spec.Basic.Ack)
        post(web, "t", "k", b"latest")
        assert web.answer()[0] == 204
        waiting.send(mqtt.publish("t/k", b"last", qos=1, packet_id=2))
        waiting.expect(mqtt.puback(2))
    assert pull(server.ports, "t") == [b"old", b"waiting", b"later", b"latest", b"last"]


def test_readers_are_served_meanwhile(server: Running) -> None:
    """Their acks, which are lazy, wait for room in memory: nothing comes twice."""
    prepare(server)
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    path = "/topics/t/subscriptions/kept"
    with (
        fill(server) as waiting,
        AmqpWire(server.ports.amqp) as channel,
        HttpWire(server.ports.http) as web,
    ):
        assert pull(server.ports, "t") == [b"old"]
        channel.consume("kept")
        message = channel.message()
        assert message.body == b"old"
        channel.send(spec.Basic.Ack(delivery_tag=message.method.delivery_tag))
        _, answer = web.ask("POST", f"{path}:receive?maxEvents=10&maxWaitTime=5")
        assert received_bodies(answer) == [b"old"]
        tokens = [event["brokerProperties"]["lockToken"] for event in answer["value"]]
        _, outcome = web.ask("POST", f"{path}:acknowledge", {"lockTokens": tokens})
        assert outcome["succeededLockTokens"] == tokens
        # Longer than acks gather for: their record meets the full disk.
        _, answer = web.ask("POST", f"{path}:receive?maxEvents=10&maxWaitTime=1")
        assert received_bodies(answer) == []
        server.disk.heal()
        waiting.expect(mqtt.puback(1))
        assert channel.message().body == b"waiting"
        _, answer = web.ask("POST", f"{path}:receive?maxEvents=10&maxWaitTime=5")
        assert received_bodies(answer) == [b"waiting"]


@pytest.mark.parametrize("qos", [1, 2])
def test_an_mqtt_session_goes_on_where_it_was(server: Running, qos: int) -> None:
    """Its packet ids cannot be stored meanwhile, so nothing is sent to it; later all of it is."""
    prepare(server)
    assert server.ports.mqtt is not None
    with fill(server) as waiting, MqttWire(server.ports.mqtt, "kept", clean=False) as session:
        session.expect(mqtt.connack(present=True))
        assert session.came() == []
        server.disk.heal()
        waiting.expect(mqtt.puback(1))
        bodies: list[bytes] = []
        while len(bodies) < 2:
            packet = session.read()
            assert packet is not None, f"closed after {bodies}"
            bodies += bodies_of([packet])
    assert bodies == [b"old", b"waiting"]


def test_an_mqtt_session_in_the_middle_of_qos_2(server: Running) -> None:
    """PUBREC, PUBREL and PUBCOMP change the session's state. None of them can be stored; the
    connection may be closed, but the exchange must come to its end once there is room."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "s", clean=False) as session:
        session.send(mqtt.subscribe(1, ("t/#", 2)))
        session.expect(mqtt.suback(1, 2))
        session.send(mqtt.publish("t/k", b"old", qos=2, packet_id=1))
        session.expect(mqtt.pubrec(1))
        delivered = session.read()
        assert delivered is not None
        assert bodies_of([delivered]) == [b"old"]
        with fill(server) as waiting:
            session.send(mqtt.pubrel(1), mqtt.pubrec(1))
            session.socket.settimeout(SECONDS_MAX)
            server.disk.heal()
            waiting.expect(mqtt.puback(1))
    with MqttWire(server.ports.mqtt, "s", clean=False) as session:
        session.expect(mqtt.connack(present=True))
        session.send(mqtt.pubrel(1))
        found: list[bytes] = []
        wanted = {mqtt.pubcomp(1), mqtt.pubrel(1)}
        while not wanted <= set(found):
            packet = session.read()
            assert packet is not None, f"closed after {found}"
            if packet[0] >> 4 == 3 and bodies_of([packet]) == [b"old"]:
                session.send(mqtt.pubrec(1))  # its first PUBREC was lost with the connection
            found.append(packet)
        session.send(mqtt.pubcomp(1))


def test_a_full_disk_at_the_end_of_a_segment(server: Running) -> None:
    """No room to make the next file: the publish that needs it is refused, and later stored."""
    assert server.ports.amqp is not None
    body = bytes(1024 * 1024)
    with AmqpWire(server.ports.amqp, confirms=True) as channel:
        channel.ask(spec.Queue.Declare(queue="kept", durable=True), spec.Queue.DeclareOk)
        server.disk.fail("preallocate", errno.ENOSPC)
        for _ in range(40):  # more than two segments
            channel.publish("", "kept", body)
            if isinstance(channel.read(), spec.Basic.Nack):
                break
        else:
            raise AssertionError("nothing was refused")
        server.disk.heal()
        for _ in range(ATTEMPTS_MAX):
            channel.publish("", "kept", body)
            if isinstance(channel.read(), spec.Basic.Ack):
                return
    raise AssertionError("the server did not go on")


def test_mqtt_unsubscribe_is_not_acknowledged(server: Running) -> None:
    """UNSUBACK cannot say no, so the connection is closed; the subscription is still there."""
    prepare(server)
    assert server.ports.mqtt is not None
    with MqttWire(server.ports.mqtt, "kept", clean=False) as session:
        session.expect(mqtt.connack(present=True))
        packet = session.read()
        assert packet is not None
        assert bodies_of([packet]) == [b"old"]
        with fill(server) as waiting:
            session.send(mqtt.unsubscribe(7, "t/#"))
            assert session.came_before_close() == []
            server.disk.heal()
            waiting.expect(mqtt.puback(1))
    with MqttWire(server.ports.mqtt, "kept", clean=False) as session:
        session.expect(mqtt.connack(present=True))
        bodies: list[bytes] = []
        while len(bodies) < 2:
            packet = session.read()
            assert packet is not None, f"closed after {bodies}"
            bodies += bodies_of([packet])
    assert bodies == [b"old", b"waiting"]


def test_mqtt_subscribe_is_told_no(server: Running) -> None:
    """SUBACK has a code for it."""
    prepare(server)
    assert server.ports.mqtt is not None
    with (
        MqttWire.connected(server.ports.mqtt, "session", clean=False) as session,
        fill(server) as waiting,
    ):
        session.send(mqtt.subscribe(7, ("t/#", 1)))
        session.expect(mqtt.suback(7, SUBSCRIBE_FAILURE))
        server.disk.heal()
        waiting.expect(mqtt.puback(1))


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(spec.Queue.Declare(queue="new", durable=True), id="queue.declare"),
        pytest.param(spec.Queue.Delete(queue="kept"), id="queue.delete", marks=pytest.mark.slow),
        pytest.param(spec.Queue.Purge(queue="kept"), id="queue.purge", marks=pytest.mark.slow),
        pytest.param(
            spec.Exchange.Delete(exchange="t"), id="exchange.delete", marks=pytest.mark.slow
        ),
        pytest.param(
            spec.Queue.Unbind(queue="kept", exchange="t", routing_key="#"),
            id="queue.unbind",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_amqp_declarations_are_refused(server: Running, question: pika.amqp_object.Method) -> None:
    """With a close that says why; nothing of it has happened."""
    prepare(server)
    assert server.ports.amqp is not None
    with fill(server) as waiting:
        with AmqpWire(server.ports.amqp) as channel:
            channel.send(question)
            (close,) = channel.came_before_close()
            assert isinstance(close, spec.Connection.Close)
            assert close.reply_code == RESOURCE_ERROR
        server.disk.heal()
        waiting.expect(mqtt.puback(1))
    with AmqpWire(server.ports.amqp) as channel:
        passive = spec.Queue.Declare(queue="kept", passive=True)
        assert channel.ask(passive, spec.Queue.DeclareOk).message_count == 2
