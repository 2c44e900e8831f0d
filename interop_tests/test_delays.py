"""Delayed messages with real clients, all into one place: what comes, and in which order."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import paho.mqtt.publish
import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.people import polymq
from interop_tests.remoting_wire import Client

Channel: TypeAlias = Any


@pytest.fixture
def channel(shared_server: Server) -> Iterator[Channel]:
    """A channel with the exchange `plans`, and the queue `due` of everything that comes there."""
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(shared_server.host, shared_server.amqp_port)
    )
    made = connection.channel()
    made.exchange_declare(
        "plans", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"}
    )
    made.queue_delete("due")
    made.queue_declare("due", durable=True)
    made.queue_bind("due", "plans", "#")
    made.confirm_delivery()
    yield made
    connection.close()


def receive(channel: Channel, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    for method, _, body in channel.consume("due", inactivity_timeout=20):
        assert method is not None, f"only {bodies} came in time"
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def delay(channel: Channel, body: bytes, milliseconds: int) -> None:
    properties = pika.BasicProperties(headers={"x-delay": milliseconds}, delivery_mode=2)
    channel.basic_publish("plans", "a.b", body, properties)


def post(server: Server, body: bytes, **headers: str) -> int:
    url = f"http://{server.host}:{server.http_port}/topics/plans"
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return int(answer.status)


def test_every_protocol_can_delay(shared_server: Server, channel: Channel) -> None:
    """AMQP by milliseconds, HTTP by milliseconds and by a time, MQTT by seconds."""
    host, port = shared_server.host, shared_server.mqtt_port
    paho.mqtt.publish.single("$delayed/2/plans/c", b"mqtt", qos=1, hostname=host, port=port)
    at = datetime.now(UTC) + timedelta(milliseconds=1500)
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": "event"}
    event["deliverattime"] = at.isoformat()
    headers = {"Content-Type": "application/cloudevents+json"}
    assert post(shared_server, json.dumps(event).encode(), **headers) == 204
    assert post(shared_server, b"http", **{"PolyMQ-Delay-Ms": "1000", "Content-Type": "a/b"}) == 204
    delay(channel, b"amqp", 500)
    channel.basic_publish("plans", "k", b"now")
    assert receive(channel, 5) == [b"now", b"amqp", b"http", b'"event"', b"mqtt"]


def test_delays_survive_a_kill(server: Server) -> None:
    """Confirmed, killed before the time, started after it for one and before it for the other:
    both come, once, in their order."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    sender = connection.channel()
    sender.exchange_declare(
        "plans", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    sender.queue_declare("due", durable=True)
    sender.queue_bind("due", "plans")
    sender.confirm_delivery()
    delay(sender, b"second", 2500)
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert b"polymq_delayed_messages 1.0" in answer.read()
    delay(sender, b"first", 10)
    assert receive(sender, 1) == [b"first"]
    delay(sender, b"first again", 50)
    server.kill()
    server.start()
    again = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    bodies = receive(again.channel(), 1)
    if bodies == [b"first"]:  # its ack was under way
        bodies = receive(again.channel(), 1)
    bodies += receive(again.channel(), 1)
    assert bodies == [b"first again", b"second"]
    again.close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        sender.queue_declare("due", passive=True)


@pytest.mark.slow
def test_a_message_that_does_not_fit_any_more_stops_no_other(server: Server) -> None:
    """A property leaves no room for 255 queues, which are bound after the answer: the message is
    set aside and counted, also after a restart, and what is due behind it comes."""
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    connection = pika.BlockingConnection(parameters)
    made = connection.channel()
    made.exchange_declare(
        "plans", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    with Client(server.host, server.rocketmq_port) as client:
        answer = client.publish("plans", b"poison", DELAY="3", note="x" * 32_000)  # ten seconds
        assert answer.code == 0
    made.queue_declare("due", durable=True)
    made.queue_bind("due", "plans")
    for number in range(254):
        made.queue_declare(f"queue{number}", durable=True)
        made.queue_bind(f"queue{number}", "plans")
    delay(made, b"behind it", 10_100)
    assert receive(made, 1) == [b"behind it"]
    connection.close()
    assert set_aside(server) == 1
    server.kill()
    server.start()
    assert set_aside(server) == 1
    shown = polymq(server, "message", "read", "%DLQ%polymq_set_aside")
    assert (shown.returncode, "poison" in shown.stdout) == (0, True), shown


def set_aside(server: Server) -> int:
    with urllib.request.urlopen(f"http://{server.host}:{server.admin_port}/health") as answer:
        return int(json.load(answer)["set_aside"])
