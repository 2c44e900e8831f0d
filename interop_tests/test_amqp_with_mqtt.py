"""One message, two protocols: what devices send over MQTT reaches AMQP queues, and back."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server

SECONDS_MAX = 20.0


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all tests here: each has names of its own."""
    return shared_server


@pytest.fixture
def device(server: Server) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """A connected MQTT client, and what arrives at it."""
    inbox: queue.Queue[Any] = queue.Queue()
    connected: queue.Queue[None] = queue.Queue()
    subscribed: queue.Queue[None] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, "device")
    client.on_message = lambda _client, _data, message: inbox.put((message.topic, message.payload))
    client.on_connect = lambda *_: connected.put(None)
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    connected.get(timeout=SECONDS_MAX)
    client.subscribe("commands/#", qos=1)
    subscribed.get(timeout=SECONDS_MAX)
    yield client, inbox
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize(
    ("exchange", "binding"), [("sensors", "room1.#"), ("amq.topic", "sensors.*.temp")]
)
def test_a_reading_of_a_device_reaches_a_queue(
    server: Server, device: tuple[Any, queue.Queue[Any]], exchange: str, binding: str
) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    if exchange == "sensors":
        channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare("readings", durable=True)
    channel.queue_bind("readings", exchange, binding)
    device[0].publish("sensors/room1/temp", "21.5", qos=1).wait_for_publish(SECONDS_MAX)
    method, properties, body = channel.basic_get("readings", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("sensors", "room1.temp", b"21.5")
    assert properties.delivery_mode == 2
    connection.close()


def test_a_command_of_an_application_reaches_a_device(
    server: Server, device: tuple[Any, queue.Queue[Any]]
) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("commands", "topic", durable=True)
    channel.basic_publish("commands", "room1.heat", b"on", mandatory=True)
    channel.basic_publish("amq.topic", "commands.room2", b"off", mandatory=True)
    assert device[1].get(timeout=SECONDS_MAX) == ("commands/room1/heat", b"on")
    assert device[1].get(timeout=SECONDS_MAX) == ("commands/room2", b"off")
    connection.close()
