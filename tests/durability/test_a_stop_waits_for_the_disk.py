"""What was taken before SIGTERM is acked before the connections are closed, even by a slow disk."""

from __future__ import annotations

import contextlib

import pika

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, HttpWire, MqttWire, post
from tests.durability.running import Running

spec = pika.spec
CONNECTION_FORCED = 320


def test_pending_acks_leave_before_the_end(server: Running) -> None:
    """Publishes of three protocols wait for a sync when the server is asked to stop. The long poll
    that it ends shows that it has begun to."""
    ports = server.ports
    assert ports.mqtt is not None
    assert ports.amqp is not None
    assert ports.http is not None
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(MqttWire.connected(ports.mqtt, "device"))
        channel = stack.enter_context(AmqpWire(ports.amqp, confirms=True))
        web = stack.enter_context(HttpWire(ports.http))
        poll = stack.enter_context(HttpWire(ports.http))
        assert poll.ask("PUT", "/subscriptions/s", {"topic": "other"})[0] == 201
        channel.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        end = server.appended()
        server.disk.block()
        device.send(mqtt.publish("t/k", b"1", qos=1, packet_id=1))
        end = server.wait_appended(end)
        channel.publish("", "q", b"2")
        end = server.wait_appended(end)
        post(web, "t", "k", b"3")
        server.wait_appended(end)
        server.disk.held.wait_until_held()
        poll.send("POST", "/topics/other/subscriptions/s:receive?maxWaitTime=100")
        server.begin_stop()
        assert poll.answer() == (200, {"value": []})
        assert not device.has_bytes()
        assert not channel.has_bytes()
        assert not web.has_answer()
        server.disk.release()
        assert device.came_before_close() == [mqtt.puback(1)]
        assert web.answer()[0] == 204
        confirm, close = channel.came_before_close()
        assert isinstance(confirm, spec.Basic.Ack)
        assert isinstance(close, spec.Connection.Close)
        assert close.reply_code == CONNECTION_FORCED


def test_a_disk_that_never_answers_gets_no_acks(server: Running) -> None:
    """When the time to take leave is over, connections end without the acks that could not be."""
    ports = server.ports
    assert ports.mqtt is not None
    assert ports.amqp is not None
    with (
        MqttWire.connected(ports.mqtt, "device") as device,
        AmqpWire(ports.amqp, confirms=True) as channel,
    ):
        end = server.appended()
        server.disk.block()
        device.send(mqtt.publish("t/k", b"1", qos=1, packet_id=1))
        end = server.wait_appended(end)
        channel.publish("t", "k", b"2")
        server.wait_appended(end)
        server.disk.held.wait_until_held()
        server.begin_stop()
        assert device.came_before_close() == []
        assert channel.came_before_close() == []
