"""AMQP bodies up to 128 MiB: pika publishes and reads them, and readers of other protocols too."""

from __future__ import annotations

import os
import subprocess
import sys
from queue import SimpleQueue
from typing import Any

import pika
import pika.exceptions
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer

MIB = 1 << 20
WAIT_SECONDS_MAX = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"name": "large"})


def body_of(size: int) -> bytes:
    """Bytes that differ from place to place."""
    block = os.urandom(MIB + 1)
    return (block * (size // len(block) + 1))[:size]


def connect(server: Server) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters(server.host, server.amqp_port, heartbeat=0)
    return pika.BlockingConnection(parameters)


def publish(server: Server, queue: str, *bodies: bytes, exchange: str = "") -> None:
    """Publish with confirms."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish(exchange, queue, body, PERSISTENT)


def receive(server: Server, queue: str, count: int) -> list[bytes]:
    """Bodies by basic.consume, acknowledged."""
    bodies = []
    with connect(server) as connection:
        channel = connection.channel()
        for method, properties, body in channel.consume(queue, inactivity_timeout=WAIT_SECONDS_MAX):
            assert method is not None
            assert properties.headers == {"name": "large"}
            bodies.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == count:
                break
    return bodies


def test_16_mib_are_the_default(server: Server) -> None:
    """The largest body and a small one behind it; by get as well; one byte more is a 406."""
    largest = body_of(16 * MIB)
    publish(server, "q", largest, b"small", largest)
    assert receive(server, "q", 2) == [largest, b"small"]
    with connect(server) as connection:
        _, properties, body = connection.channel().basic_get("q", auto_ack=True)
        assert body == largest
        assert properties.headers == {"name": "large"}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        publish(server, "q", largest + b"x")
    assert refused.value.reply_code == 406
    assert "16777217" in refused.value.reply_text


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.slow
def test_128_mib_if_asked_for(start_server: StartServer, restart: bool) -> None:
    """From memory, and from the disk."""
    options = {"storage.message_bytes_max": 128 * MIB, "storage.segment_bytes": 512 * MIB}
    server = start_server(**options)
    body = body_of(128 * MIB)
    publish(server, "q", body, b"small")
    if restart:
        server.kill()
        server.start()
    assert receive(server, "q", 2) == [body, b"small"]


def test_a_body_that_no_file_of_the_log_holds_is_refused(start_server: StartServer) -> None:
    """In words that say so; the channel ends, the connection does not."""
    options = {"storage.message_bytes_max": 64 * MIB, "storage.segment_bytes": 16 * MIB}
    server = start_server(**options)
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("", "q", body_of(17 * MIB), PERSISTENT)
        assert refused.value.reply_code == 406
        assert "segment" in refused.value.reply_text
        assert connection.is_open


class Reader:
    """An MQTT client with a persistent session."""

    def __init__(self, server: Server) -> None:
        self.found: SimpleQueue[bytes] = SimpleQueue()
        ready: SimpleQueue[bool] = SimpleQueue()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, "reader", clean_session=False)

        def subscribe(*_: Any) -> None:
            client.subscribe("large/#", 1)

        client.on_connect = subscribe
        client.on_subscribe = lambda *_: ready.put(True)
        client.on_message = lambda _c, _u, message: self.found.put(bytes(message.payload))
        client.connect(server.host, server.mqtt_port)
        client.loop_start()
        assert ready.get(timeout=WAIT_SECONDS_MAX)
        self.client = client

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.slow
def test_others_read_large_bodies(start_server: StartServer) -> None:
    """MQTT sessions, live and later, and readers by RocketMQ's protocol such as the sink."""
    options = {"storage.message_bytes_max": 64 * MIB, "storage.segment_bytes": 256 * MIB}
    server = start_server(**options)
    body = body_of(20 * MIB)
    reader = Reader(server)
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "large.one", body, PERSISTENT)
        assert reader.found.get(timeout=WAIT_SECONDS_MAX) == body
        reader.leave()
        channel.basic_publish("amq.topic", "large.one", body, PERSISTENT)
    reader = Reader(server)
    assert reader.found.get(timeout=WAIT_SECONDS_MAX) == body
    reader.leave()
    assert polymq(server, "message", "read", "large", "--format", "body") == body + body


def test_a_large_message_is_passed_on_as_a_dead_letter(server: Server) -> None:
    """Rejected, and there again with its body."""
    body = body_of(8 * MIB)
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.basic_publish("", "q", body, PERSISTENT)
        method, _, found = channel.basic_get("q")
        assert found == body
        channel.basic_reject(method.delivery_tag, requeue=False)
        deliveries = channel.consume("dead", inactivity_timeout=WAIT_SECONDS_MAX)
        _, properties, found = next(deliveries)
        assert found == body
        assert properties.headers["x-first-death-queue"] == "q"


def polymq(server: Server, *arguments: str) -> bytes:
    """What a command of the program prints."""
    command = [sys.executable, "-m", "polymq", *arguments]
    command += ["--data-directory", str(server.data_directory)]
    return subprocess.run(command, check=True, capture_output=True).stdout
