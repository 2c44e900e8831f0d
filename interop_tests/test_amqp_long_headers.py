"""AMQP headers up to 128 KiB: pika publishes and reads them, and readers of other protocols get the
body, and of the headers what fits."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from typing import Any
from urllib.request import Request, urlopen

import pika
import pika.exceptions
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server
from interop_tests.remoting_wire import Client, Message, messages_of

WAIT_SECONDS_MAX = 60.0
HEADERS: Mapping[str, Any] = {
    "first": "of all",
    "number": 7,
    "deep": {"list": [1, "two", {"three": 3}]},
    **{f"name-{number}": "x" * 1000 for number in range(100)},
    "huge": "y" * 20_000,
    "last": "of all",
}
"""About 120 KiB."""
BODY = b"the body"
MIB = 1 << 20


def properties_of(headers: Mapping[str, Any] = HEADERS, **others: Any) -> pika.BasicProperties:
    return pika.BasicProperties(
        delivery_mode=2,
        content_type="text/plain",
        message_id="m-1",
        headers=dict(headers),
        **others,
    )


def connect(server: Server, **parameters: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(server.host, server.amqp_port, heartbeat=0, **parameters)
    )


@pytest.fixture
def connection(server: Server) -> Iterator[pika.BlockingConnection]:
    with connect(server) as connection:
        yield connection


def confirming(connection: pika.BlockingConnection) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def get(server: Server, queue: str, **parameters: Any) -> tuple[pika.BasicProperties, bytes]:
    """The next message of a queue, which has one or soon gets it."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with connect(server, **parameters) as connection:
        channel = connection.channel()
        while time.monotonic() < deadline:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is not None:
                return properties, body
            connection.sleep(0.02)
    raise AssertionError(f"nothing came to {queue}")


def check(properties: pika.BasicProperties, body: bytes, expected: bytes = BODY) -> None:
    assert properties.headers == HEADERS
    assert (properties.content_type, properties.message_id) == ("text/plain", "m-1")
    assert body == expected


@pytest.mark.parametrize(
    "body", [BODY, b"x" * 200_000, pytest.param(b"y" * 5 * MIB, marks=pytest.mark.slow)]
)
def test_in_and_out(server: Server, connection: pika.BlockingConnection, body: bytes) -> None:
    """By consume and by get, from memory and after a kill; among others that are short."""
    channel = confirming(connection)
    channel.queue_declare("q", durable=True)
    for _ in range(2):
        channel.basic_publish("", "q", b"before")
        channel.basic_publish("", "q", body, properties_of())
        channel.basic_publish("", "q", b"behind")
    found = []
    reader = connection.channel()
    reader.tx_select()  # the kill may take acks that no commit waits for
    for method, properties, its_body in reader.consume("q", inactivity_timeout=WAIT_SECONDS_MAX):
        found.append((properties, its_body))
        reader.basic_ack(method.delivery_tag)
        if len(found) == 3:
            break
    reader.tx_commit()
    reader.cancel()
    connection.close()
    server.kill()
    server.start()
    found += [get(server, "q") for _ in range(3)]
    assert [its_body for _, its_body in found] == 2 * [b"before", body, b"behind"]
    for count in (1, 4):
        check(*found[count], body)


class Device:
    """An MQTT client with a session that stays, and the bodies that arrive at it."""

    def __init__(self, server: Server) -> None:
        self.found: SimpleQueue[bytes] = SimpleQueue()
        ready: SimpleQueue[bool] = SimpleQueue()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, "device", clean_session=False)
        client.on_connect = lambda client, *_: client.subscribe("orders/#", 1)
        client.on_subscribe = lambda *_: ready.put(True)
        client.on_message = lambda _c, _u, message: self.found.put(bytes(message.payload))
        client.connect(server.host, server.mqtt_port)
        client.loop_start()
        assert ready.get(timeout=WAIT_SECONDS_MAX)
        self.client = client

    def take(self) -> bytes:
        return self.found.get(timeout=WAIT_SECONDS_MAX)

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def ask(server: Server, method: str, path: str, body: object = None) -> Any:
    """An HTTP request with JSON on both sides."""
    request = Request(
        f"http://{server.host}:{server.http_port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"content-type": "application/json"},
    )
    with urlopen(request, timeout=WAIT_SECONDS_MAX) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def received(server: Server) -> Any:
    """The next event of the subscription `all`."""
    (found,) = ask(server, "POST", "/topics/orders/subscriptions/all:receive?maxWaitTime=20")[
        "value"
    ]
    return found["event"]


def read(server: Server, *arguments: str) -> list[dict[str, Any]]:
    """What `polymq message ...` prints."""
    command = [sys.executable, "-m", "polymq", "message", *arguments, "--format", "json"]
    command += ["--data-directory", str(server.data_directory)]
    lines = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def check_short(message: Message) -> None:
    """The headers that fit, in their order, in words and in AMQP's form; and the body alone."""
    assert message.body == BODY
    shown = message.properties
    assert (shown["first"], shown["last"], shown["number"]) == ("of all", "of all", "7")
    assert (shown["KEYS"], shown["content-type"]) == ("m-1", "text/plain")
    assert [name for name in shown if name.startswith("name-")] == [f"name-{n}" for n in range(7)]
    assert shown["PMQ_LONG"] == "0"
    assert len(base64.b64decode(shown["PMQ_AMQP"])) <= 8192


def test_everybody_reads_the_body(server: Server, connection: pika.BlockingConnection) -> None:
    """Live, later, and by offset; only our own readers get all headers."""
    ask(server, "PUT", "/subscriptions/all", {"topic": "orders"})
    device = Device(server)
    channel = confirming(connection)
    channel.exchange_declare("orders", "topic", durable=True)
    channel.basic_publish("orders", "a.b", BODY, properties_of())
    assert device.take() == BODY
    device.leave()
    channel.basic_publish("orders", "a.b", BODY, properties_of())
    device = Device(server)
    assert device.take() == BODY
    device.leave()
    event = received(server)
    assert event.get("data") == BODY.decode()
    assert (event["first"], event["last"]) == ("of all", "of all")
    with Client(server.host, server.rocketmq_port) as rocketmq:
        pulled = [message for at in range(2) for message in rocketmq.pull("orders", offset=at)[1]]
        found = rocketmq.ask(
            12, topic="orders", key="m-1", maxNum=10, beginTimestamp=0, endTimestamp=2**53
        )
        given_back = {"group": "readers", "offset": pulled[0].position, "delayLevel": -1}
        assert rocketmq.ask(36, **given_back).code == 0
        _, (dead,) = rocketmq.pull("%DLQ%readers")
    assert dead.body == BODY
    assert len(pulled) == 2
    for message in (*pulled, *messages_of(found.body)):
        check_short(message)
    shown = [*read(server, "read", "orders"), *read(server, "find", "orders", "--key", "m-1")]
    assert len(shown) == 4
    for one in shown:
        assert base64.b64decode(one["body_base64"]) == BODY
        assert len(base64.b64decode(one["properties"]["PMQ_AMQP"])) > 120_000
        assert "PMQ_LONG" not in one["properties"]


def test_they_stay_where_the_message_goes(server: Server) -> None:
    """Through a headers exchange that looks at the last of them, a delay, a queue that dead-letters
    what expires, and what a consumer rejects, with a kill in between."""
    connection = connect(server)
    channel = confirming(connection)
    channel.exchange_declare(
        "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "headers"}
    )
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "second"}
    channel.queue_declare("first", durable=True, arguments=dead | {"x-message-ttl": 10})
    dead["x-dead-letter-routing-key"] = "third"
    channel.queue_declare("second", durable=True, arguments=dead)
    channel.queue_declare("third", durable=True)
    channel.queue_bind("first", "late", arguments={"last": "of all", "x-match": "all"})
    channel.queue_bind("third", "late", arguments={"last": "none", "x-match": "all"})
    properties = properties_of({**HEADERS, "x-delay": 100})
    channel.basic_publish("late", "k", BODY, properties)
    connection.close()
    server.kill()
    server.start()
    with connect(server) as again:
        channel = again.channel()
        for method, _, _ in channel.consume("second", inactivity_timeout=WAIT_SECONDS_MAX):
            channel.basic_reject(method.delivery_tag, requeue=False)
            break
    found, body = get(server, "third")
    headers = dict(found.headers or {})
    assert [death["queue"] for death in headers["x-death"]] == ["second", "first"]
    assert headers["x-first-death-reason"] == "expired"
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert headers["x-delay"] == -100
    assert body == BODY


def test_transactions_copies_and_returns(
    server: Server, connection: pika.BlockingConnection
) -> None:
    channel = connection.channel()
    channel.queue_declare("one", durable=True)
    channel.queue_declare("two", durable=True)
    channel.tx_select()
    for headers in ({}, HEADERS, {"CC": ["two"], **HEADERS}, {}):
        channel.basic_publish("", "one", BODY, properties_of(headers))
    channel.tx_commit()
    assert [len(get(server, "one")[0].headers or {}) for _ in range(4)] == [
        0,
        len(HEADERS),
        len(HEADERS) + 1,
        0,
    ]
    properties, body = get(server, "two")
    assert {name: (properties.headers or {})[name] for name in HEADERS} == HEADERS
    assert body == BODY
    channel = confirming(connection)
    with pytest.raises(pika.exceptions.UnroutableError) as returned:
        channel.basic_publish("", "nowhere", BODY, properties_of(), mandatory=True)
    (message,) = returned.value.messages
    check(message.properties, message.body)


def headers_of(size: int) -> dict[str, str]:
    """Headers of a message whose properties, flags and all, have so many bytes."""
    return {"h": "x" * (size - 2 - 4 - 2 - 5)}


def test_the_largest(server: Server) -> None:
    """What a frame holds is taken, and delivered; more is an error of the frame, as in RabbitMQ."""
    largest = 131_072 - 8 - 12
    with connect(server) as connection:
        channel = confirming(connection)
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"", pika.BasicProperties(headers=headers_of(largest)))
        assert get(server, "q")[0].headers == headers_of(largest)
        properties = pika.BasicProperties(headers=headers_of(largest + 1))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("", "q", b"", properties)
        assert refused.value.reply_code == 406
        assert "at most 131052" in refused.value.reply_text
        channel = confirming(connection)
        properties = pika.BasicProperties(headers=headers_of(largest + 9))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            channel.basic_publish("", "q", b"", properties)
        assert closed.value.reply_code == 501


def test_headers_count_with_the_body(server: Server, connection: pika.BlockingConnection) -> None:
    """The largest body leaves no room for them; a 406 says it."""
    channel = confirming(connection)
    channel.queue_declare("q", durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_publish("", "q", bytes(16 * MIB), properties_of())
    assert refused.value.reply_code == 406
    assert "headers of more than 16384 bytes count" in refused.value.reply_text


def test_a_client_with_small_frames_gets_what_fits(
    server: Server, connection: pika.BlockingConnection
) -> None:
    """And is told how many headers are missing; they are still there for others."""
    channel = confirming(connection)
    channel.queue_declare("few", durable=True)
    some = {name: HEADERS[name] for name in list(HEADERS)[:15]}
    channel.basic_publish("", "few", BODY, properties_of(some))
    found = get(server, "few", frame_max=8192)[0].headers
    assert found is not None
    assert found["x-headers-left-out"] == len(some) - len(found) + 1
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", BODY, properties_of())
    with connect(server, frame_max=8192) as small:
        its = small.channel()
        method, properties, body = its.basic_get("q")
        headers = dict(properties.headers)
        assert headers["x-headers-left-out"] == len(HEADERS) - len(headers) + 1
        assert (headers["first"], headers["last"]) == ("of all", "of all")
        assert body == BODY
        its.basic_reject(method.delivery_tag)
    check(*get(server, "q"))
