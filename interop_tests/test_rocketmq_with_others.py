"""One message, four protocols: what RocketMQ clients send, others read, and the reverse."""

from __future__ import annotations

import base64
import json
import queue
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import lz4.frame
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server
from interop_tests.remoting_wire import Client, messages_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECONDS_MAX = 20.0
TEXT = b"a long story, " * 1000


@pytest.fixture
def rocketmq(server: Server) -> Iterator[Client]:
    with Client(server.host, server.rocketmq_port) as made:
        yield made


@pytest.fixture
def application(server: Server) -> Iterator[Any]:
    """An AMQP channel with a queue of what is sent to `orders`."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("work", durable=True)
    channel.queue_bind("work", "orders", "#")
    yield channel
    connection.close()


FROM_AMQP = {
    "KEYS": "m1",
    "content-type": "text/plain",
    "CORRELATION_ID": "c1",
    "REPLY_TO": "answers",
    "TTL": "600000",
    "n": "7",
    "colour": "r\u00f6t",
}
"""What a RocketMQ consumer sees of an AMQP message's properties."""


class Device:
    """An MQTT client with a session that stays, and what arrives at it."""

    def __init__(self, server: Server) -> None:
        self.inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
        subscribed: queue.Queue[None] = queue.Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, "device", clean_session=False)
        self.client.on_connect = lambda client, *_: client.subscribe("orders/#", qos=1)
        self.client.on_subscribe = lambda *_: subscribed.put(None)
        self.client.on_message = lambda _c, _u, got: self.inbox.put((got.topic, bytes(got.payload)))
        self.client.connect(server.host, server.mqtt_port)
        self.client.loop_start()
        subscribed.get(timeout=SECONDS_MAX)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def take(self) -> tuple[str, bytes]:
        return self.inbox.get(timeout=SECONDS_MAX)


def ask(server: Server, method: str, path: str, body: object = None) -> Any:
    """An HTTP request with JSON on both sides."""
    request = urllib.request.Request(
        f"http://{server.host}:{server.http_port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def received(server: Server) -> dict[str, Any]:
    """The next event of the subscription `all`."""
    path = "/topics/orders/subscriptions/all:receive?maxWaitTime=20"
    (found,) = ask(server, "POST", path)["value"]
    event: dict[str, Any] = found["event"]
    return event


WAYS = {
    "plain": (0, bytes),
    "zlib": (0x301, zlib.compress),
    "lz4": (0x101, lz4.frame.compress),
    "zstd": (0x201, zstd.compress),
}


@pytest.mark.parametrize(("flag", "compress"), WAYS.values(), ids=WAYS)
def test_everybody_reads_what_rocketmq_sends(
    server: Server,
    rocketmq: Client,
    application: Any,
    flag: int,
    compress: Callable[[bytes], bytes],
) -> None:
    """Live and from a queue that waited, with tag, key and property; a body that the producer
    compressed is plain for who cannot know."""
    ask(server, "PUT", "/subscriptions/all", {"topic": "orders"})
    Device(server).close()  # its session collects from now on
    answer = rocketmq.publish(
        "orders", compress(TEXT), system_flag=flag, TAGS="paid.eu", KEYS="k1", n="7"
    )
    assert answer.code == 0
    device = Device(server)
    try:
        assert device.take() == ("orders/paid/eu", TEXT)
        rocketmq.publish("orders", compress(b"live"), system_flag=flag, TAGS="x")
        assert device.take() == ("orders/x", b"live")
    finally:
        device.close()
    method, _, found = application.basic_get("work", auto_ack=True)
    assert (method.exchange, method.routing_key, found) == ("orders", "paid.eu", TEXT)
    event = received(server)
    data = event.get("data")
    if data is None:
        data = base64.b64decode(event["data_base64"])
    assert (data if isinstance(data, bytes) else str(data).encode()) == TEXT
    assert event["type"] == "paid.eu"


def test_rocketmq_reads_what_everybody_sends(
    server: Server, rocketmq: Client, application: Any
) -> None:
    device = Device(server)
    try:
        device.client.publish("orders/a/b", b"from mqtt", qos=1).wait_for_publish(SECONDS_MAX)
    finally:
        device.close()
    properties = pika.BasicProperties(
        message_id="m1",
        content_type="text/plain",
        correlation_id="c1",
        reply_to="answers",
        expiration="600000",
        headers={"n": 7, "colour": "r\u00f6t", "deep": {"a": 1}, "DELAY": "18", "PMQ_S": "1"},
        delivery_mode=2,
    )
    application.basic_publish("orders", "a.b", b"from amqp", properties)
    event = {
        "specversion": "1.0",
        "id": "e1",
        "source": "/shop",
        "type": "a.b",
        "data": "from http",
        "n": "7",
    }
    request = urllib.request.Request(
        f"http://{server.host}:{server.http_port}/topics/orders",
        data=json.dumps(event).encode(),
        headers={"content-type": "application/cloudevents+json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        assert answer.status == 204
    _, pulled = rocketmq.pull("orders")
    assert [message.body for message in pulled] == [b"from mqtt", b"from amqp", b'"from http"']
    assert {message.properties["TAGS"] for message in pulled} == {"a.b"}
    from_amqp = pulled[1].properties
    assert {name: from_amqp.get(name) for name in FROM_AMQP} == FROM_AMQP
    assert not from_amqp.keys() & {"DELAY", "PMQ_S", "deep"}
    assert pulled[2].properties["KEYS"] == "e1"
    assert pulled[2].properties["CE_n"] == "7"
    found = rocketmq.ask(
        12, topic="orders", key="m1", maxNum=10, beginTimestamp=0, endTimestamp=2**53
    )
    assert found.code == 0
    (again,) = messages_of(found.body)
    assert again.properties == from_amqp
    given_back = {"group": "readers", "offset": pulled[1].position, "delayLevel": -1}
    assert rocketmq.ask(36, **given_back).code == 0
    _, (dead,) = rocketmq.pull("%DLQ%readers")
    assert {name: dead.properties.get(name) for name in FROM_AMQP} == FROM_AMQP


def test_http_reads_headers_and_user_properties_as_extensions(
    server: Server, rocketmq: Client, application: Any
) -> None:
    """What an extension cannot be called, or would change the event, is left out."""
    ask(server, "PUT", "/subscriptions/all", {"topic": "orders"})
    headers = {"n": 7, "big": True, "no-name": "x", "id": "theirs", "deep": {"a": 1}}
    headers |= {"long": "x" * 20_000}  # no sink would take it
    application.basic_publish("orders", "a", b"1", pika.BasicProperties(headers=headers))
    event = received(server)
    assert (event["n"], event["big"]) == ("7", "true")
    assert event["id"] != "theirs"
    assert not event.keys() & {"no-name", "deep", "long"}
    rocketmq.publish("orders", b"2", TAGS="a", KEYS="k1", n="7", dataschema="/x")
    event = received(server)
    assert event["n"] == "7"
    assert not event.keys() & {"KEYS", "keys", "dataschema"}
