"""A failed write or fdatasync is final: nothing that waited is ever acked, publishers are refused
in the way of their protocol, and what was committed before can still be read."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from polymq.errors import ExitCode, Failure
from polymq.open_store import open_store
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
from tests.durability.running import SECONDS_MAX, Disk, Running, running, settings_for

spec = pika.spec

SERVER_UNAVAILABLE = 3
"""CONNACK code."""
RESOURCE_ERROR = 506
SYNC, WRITE = "fdatasync", "pwritev"


def break_disk(server: Running, call: str, ask: Callable[[], None]) -> None:
    """Let the disk fail under what `ask` asks for: in the write, or in the sync after it."""
    if call == WRITE:
        server.disk.fail(WRITE)
        ask()
        return
    before = server.appended()
    server.disk.block()
    ask()
    server.wait_appended(before)
    server.disk.held.wait_until_held()
    server.disk.fail(SYNC)
    server.disk.release()


def prepare(server: Running) -> None:
    """One committed message, in a queue, a subscription, a session, and in the log."""
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


def admin(server: Running, path: str) -> bytes:
    assert server.ports.admin is not None
    connection = http.client.HTTPConnection(HOST, server.ports.admin, timeout=SECONDS_MAX)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


CALLS = [SYNC, pytest.param(WRITE, marks=pytest.mark.slow)]
"""What fails. Each answer is the same for both, so a quick run asks for one."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "question",
    [
        pytest.param(mqtt.publish("t/k", b"new", qos=1, packet_id=7), id="publish-qos-1"),
        pytest.param(mqtt.publish("t/k", b"new", qos=2, packet_id=7), id="publish-qos-2"),
        pytest.param(mqtt.subscribe(7, ("new/#", 1)), id="subscribe"),
        pytest.param(mqtt.unsubscribe(7, "t/#"), id="unsubscribe"),
    ],
)
def test_mqtt_gets_no_ack_ever(server: Running, call: str, question: bytes) -> None:
    """MQTT 3.1.1 cannot say no to a PUBLISH: the connection is closed [MQTT-3.3.5-2]."""
    prepare(server)
    assert server.ports.mqtt is not None
    with MqttWire(server.ports.mqtt, "kept", clean=False) as client:
        client.expect(mqtt.connack(present=True))
        old = client.read()
        assert old is not None
        assert bodies_of([old]) == [b"old"]
        break_disk(server, call, lambda: client.send(question))
        assert client.came_before_close() == []


@pytest.mark.parametrize("call", CALLS)
def test_mqtt_gets_no_connack_for_a_session_that_could_not_be_stored(
    server: Running, call: str
) -> None:
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "first") as first:
        made: list[MqttWire] = []
        port = server.ports.mqtt
        break_disk(server, call, lambda: made.append(MqttWire(port, "c", clean=False)))
        with made[0] as client:
            assert client.came_before_close() == []
        assert first.came_before_close() == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client: client.publish("t", "k", b"new"), id="publish"),
        pytest.param(
            lambda client: client.send(spec.Queue.Declare(queue="new", durable=True)),
            id="queue.declare",
        ),
        pytest.param(
            lambda client: client.send(spec.Queue.Delete(queue="kept")), id="queue.delete"
        ),
        pytest.param(
            lambda client: client.send(
                spec.Queue.Bind(queue="kept", exchange="amq.direct", routing_key="k")
            ),
            id="queue.bind",
        ),
    ],
)
@pytest.mark.slow
def test_amqp_gets_no_confirm_ever(
    server: Running, call: str, ask: Callable[[AmqpWire], None]
) -> None:
    """The connection is closed with a reason; what waited is left without an answer."""
    prepare(server)
    assert server.ports.amqp is not None
    with AmqpWire(server.ports.amqp, confirms=True) as client:
        break_disk(server, call, lambda: ask(client))
        (close,) = client.came_before_close()
        assert isinstance(close, spec.Connection.Close)
        assert close.reply_code == RESOURCE_ERROR


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client: post(client, "t", "k", b"new"), id="event"),
        pytest.param(
            lambda client: client.send("PUT", "/subscriptions/new", {"topic": "t"}),
            id="subscription",
        ),
    ],
)
def test_http_gets_an_error(server: Running, call: str, ask: Callable[[HttpWire], None]) -> None:
    prepare(server)
    assert server.ports.http is not None
    with HttpWire(server.ports.http) as client:
        break_disk(server, call, lambda: ask(client))
        status, problem = client.answer()
        assert status == 503, problem


def fail_now(server: Running, call: str) -> None:
    """Let the log fail, by a publish of which nobody ever hears again."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "victim") as victim:
        question = mqtt.publish("t/k", b"new", qos=1, packet_id=1)
        break_disk(server, call, lambda: victim.send(question))
        assert victim.came_before_close() == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.slow
def test_publishers_are_refused_from_then_on(server: Running, call: str) -> None:
    """Even if the disk works again: after a failed sync nobody knows what is on it."""
    prepare(server)
    fail_now(server, call)
    server.disk.heal()
    before = server.appended()
    assert server.ports.mqtt is not None
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    with MqttWire.connected(server.ports.mqtt, "new") as client:
        assert client.came() == []
        client.send(mqtt.publish("t/k", b"refused", qos=1, packet_id=1))
        assert client.came_before_close() == []
    with MqttWire(server.ports.mqtt, "unknown", clean=False) as client:
        assert client.came_before_close() == [mqtt.connack(SERVER_UNAVAILABLE)]
    with AmqpWire(server.ports.amqp, confirms=True) as channel:
        channel.publish("t", "k", b"refused")
        channel.expect(spec.Basic.Nack)
    with AmqpWire(server.ports.amqp) as channel:
        channel.publish("t", "k", b"refused")
        (close,) = channel.came_before_close()
        assert isinstance(close, spec.Connection.Close)
        assert close.reply_code == RESOURCE_ERROR
    with AmqpWire(server.ports.amqp) as channel:
        channel.send(spec.Queue.Declare(queue="new", durable=True))
        (close,) = channel.came_before_close()
        assert close.reply_code == RESOURCE_ERROR
    with HttpWire(server.ports.http) as web:
        post(web, "t", "k", b"refused")
        assert web.answer()[0] == 503
        assert web.ask("PUT", "/subscriptions/new", {"topic": "t"})[0] == 503
    assert server.appended() == before


@pytest.mark.parametrize("call", CALLS)
def test_readers_still_read_what_was_committed(server: Running, call: str) -> None:
    """And nothing that was not."""
    prepare(server)
    fail_now(server, call)
    assert server.ports.mqtt is not None
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    assert pull(server.ports, "t") == [b"old"]
    with AmqpWire(server.ports.amqp) as channel:
        channel.consume("kept")
        message = channel.message()
        assert message.body == b"old"
        channel.send(spec.Basic.Ack(delivery_tag=message.method.delivery_tag))
        channel.ask(spec.Basic.Get(queue="kept"), spec.Basic.GetEmpty)
    path = "/topics/t/subscriptions/kept"
    with HttpWire(server.ports.http) as web:
        status, answer = web.ask("POST", f"{path}:receive?maxEvents=10&maxWaitTime=5")
        assert (status, received_bodies(answer)) == (200, [b"old"])
        tokens = [event["brokerProperties"]["lockToken"] for event in answer["value"]]
        status, outcome = web.ask("POST", f"{path}:acknowledge", {"lockTokens": tokens})
        assert (status, outcome["succeededLockTokens"]) == (200, tokens)
        status, answer = web.ask("POST", f"{path}:receive?maxEvents=10&maxWaitTime=0")
        assert (status, received_bodies(answer)) == (200, [])


@pytest.mark.parametrize("call", CALLS)
def test_mqtt_sessions_stay_whole(server: Running, call: str) -> None:
    """A packet id is on the disk before its PUBLISH leaves, which is no longer possible: what the
    session has not been sent waits in it until the server has been started again. The connection
    is good all the same."""
    prepare(server)
    fail_now(server, call)
    assert server.ports.mqtt is not None
    with MqttWire(server.ports.mqtt, "kept", clean=False) as client:
        client.expect(mqtt.connack(present=True))
        assert client.came() == []


@pytest.mark.parametrize("call", CALLS)
def test_retained_messages_are_those_that_were_committed(server: Running, call: str) -> None:
    """A retained message of which nobody got an ack is not handed to a new subscriber."""
    assert server.ports.mqtt is not None
    with MqttWire.connected(server.ports.mqtt, "publisher") as publisher:
        publisher.send(mqtt.publish("t/old", b"old", qos=1, packet_id=1, retain=True))
        publisher.expect(mqtt.puback(1))
        question = mqtt.publish("t/new", b"new", qos=1, packet_id=2, retain=True)
        break_disk(server, call, lambda: publisher.send(question))
        assert publisher.came_before_close() == []
    with MqttWire.connected(server.ports.mqtt, "subscriber") as subscriber:
        subscriber.send(mqtt.subscribe(1, ("t/#", 1)))
        subscriber.expect(mqtt.suback(1, 1))
        found: list[bytes] = []
        while b"old" not in found:
            packet = subscriber.read()
            assert packet is not None, "closed without the old one"
            found += bodies_of([packet])
        assert found + bodies_of(subscriber.came()) == [b"old"]


@pytest.mark.parametrize("call", CALLS)
def test_the_operator_is_told(server: Running, call: str) -> None:
    """Health and metrics of the admin listener, and the health of the HTTP listener."""
    assert json.loads(admin(server, "/health"))["status"] == "ok"
    fail_now(server, call)
    assert "read-only" in json.loads(admin(server, "/health"))["status"]
    assert b"\npolymq_read_only 1.0\n" in admin(server, "/metrics")
    assert "disk has failed" in json.loads(admin(server, "/health/ready"))["status"]
    assert json.loads(admin(server, "/health/live"))["status"] == "ok"
    assert server.ports.http is not None
    with HttpWire(server.ports.http) as web:
        assert web.ask("GET", "/healthz")[0] == 503


@pytest.mark.parametrize("call", CALLS)
def test_a_restart_has_everything_that_was_acked(tmp_path: Path, call: str) -> None:
    """On a disk that works again. What was acked by consumers while nothing could be stored comes
    once more, flagged or not: that is what at least once means."""
    directory = tmp_path / "data"
    with running(directory) as server:
        prepare(server)
        fail_now(server, call)
    with running(directory) as server:
        assert server.ports.amqp is not None
        with AmqpWire(server.ports.amqp, confirms=True) as channel:
            found = channel.ask(
                spec.Queue.Declare(queue="kept", passive=True), spec.Queue.DeclareOk
            )
            assert found.message_count in (1, 2)
            channel.send(spec.Basic.Get(queue="kept"))
            assert channel.message().body == b"old"
            channel.publish("t", "k", b"newer")
            channel.expect(spec.Basic.Ack)
        stored = pull(server.ports, "t")
        assert stored in ([b"old", b"newer"], [b"old", b"new", b"newer"])


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_cannot_write_does_not_start(tmp_path: Path, call: str) -> None:
    """The first thing that a start does is to sync what it keeps. One sentence says what failed."""
    settings = settings_for(tmp_path / "data")
    disk = Disk()
    disk.fail(call)
    with pytest.raises(Failure, match="Input/output error") as raised:
        open_store(settings, files=disk.stepped)
    assert raised.value.code == ExitCode.DISK_FAILED
