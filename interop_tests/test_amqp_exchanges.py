"""RabbitMQ's exchanges as pika applications use them: headers, bindings between exchanges, and
alternate exchanges; with messages from other protocols on their way through."""

from __future__ import annotations

import datetime as dt
import decimal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, TypeAlias

import paho.mqtt.publish
import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server

SECONDS_MAX = 20.0

Channel: TypeAlias = Any


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all tests here: each has names of its own."""
    return shared_server


@pytest.fixture
def channel(server: Server) -> Iterator[Channel]:
    """A channel in confirm mode."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    made = connection.channel()
    made.confirm_delivery()
    yield made
    if connection.is_open:
        connection.close()


def queue(channel: Channel, name: str) -> str:
    channel.queue_declare(name, durable=True)
    return name


def take(channel: Channel, name: str, count: int) -> list[bytes]:
    """So many messages, within the deadline; and no more of them."""
    got: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(got) < count:
        method, _, body = channel.basic_get(name, auto_ack=True)
        if method is not None:
            got.append(body)
        else:
            assert time.monotonic() < deadline, f"only {got} came to {name}"
            channel.connection.process_data_events(0.02)
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    return got


def publish(channel: Channel, exchange: str, key: str, body: bytes, **headers: Any) -> None:
    channel.basic_publish(
        exchange, key, body, pika.BasicProperties(headers=headers or None, delivery_mode=2)
    )


@pytest.mark.slow
def test_headers_of_every_type_are_compared(channel: Channel, server: Server) -> None:
    """As a binding and as a message's header; the bindings are there after a restart."""
    when = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    values: dict[str, Any] = {
        "text": "a",
        "number": 7,
        "long": 2**40,
        "truth": True,
        "decimal": decimal.Decimal("1.25"),
        "time": when,
        "list": [1, "b", {"c": None}],
        "table": {"d": False},
        "nothing": None,
    }
    channel.exchange_declare("typed", "headers", durable=True)
    for name, value in values.items():
        channel.queue_bind(
            queue(channel, name), "typed", arguments={"x-match": "all", "h": value, "is": name}
        )
        publish(channel, "typed", "", name.encode(), h=value, **{"is": name})
        publish(channel, "typed", "", b"other", h="else", **{"is": name})
    for name in values:
        # Without a value, the name alone counts.
        assert take(channel, name, 2 if name == "nothing" else 1)[0] == name.encode()
    channel.connection.close()
    server.restart()
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    again = connection.channel()
    again.confirm_delivery()
    for name, value in values.items():
        publish(again, "typed", "", b"again", h=value, **{"is": name})
        assert take(again, name, 1) == [b"again"]
    connection.close()


def test_mandatory_and_a_wrong_x_match(channel: Channel) -> None:
    channel.queue_bind(queue(channel, "q"), "amq.headers", arguments={"x-match": "any", "a": 1})
    properties = pika.BasicProperties(headers={"a": 2})
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.headers", "", b"x", properties, mandatory=True)
    properties = pika.BasicProperties(headers={"a": 1})
    channel.basic_publish("amq.headers", "", b"x", properties, mandatory=True)
    assert take(channel, "q", 1) == [b"x"]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-match") as caught:
        channel.queue_bind("q", "amq.headers", arguments={"x-match": "most"})
    assert caught.value.reply_code == 406


def test_other_protocols_publish_to_a_headers_exchange(channel: Channel, server: Server) -> None:
    """A CloudEvent's attributes are its headers; an MQTT message has none."""
    channel.exchange_declare("mixed", "headers", durable=True)
    channel.queue_bind(queue(channel, "alarms"), "mixed", arguments={"ce-severity": "high"})
    channel.queue_bind(queue(channel, "all"), "mixed")
    for number, severity in enumerate(("high", "low")):
        request = urllib.request.Request(
            f"http://{server.host}:{server.http_port}/topics/mixed",
            data=severity.encode(),
            headers={
                "ce-specversion": "1.0",
                "ce-id": str(number),
                "ce-source": "/test",
                "ce-type": "alarm",
                "ce-severity": severity,
                "content-type": "text/plain",
            },
        )
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            assert answer.status < 300
    paho.mqtt.publish.single("mixed/x", b"mqtt", qos=1, hostname=server.host, port=server.mqtt_port)
    assert take(channel, "all", 3) == [b"high", b"low", b"mqtt"]
    assert take(channel, "alarms", 1) == [b"high"]


def test_exchanges_are_bound_to_exchanges(channel: Channel, server: Server) -> None:
    """With the key and the headers that a message has; in a cycle; until it is unbound. MQTT's
    messages come in by way of amq.topic."""
    channel.exchange_declare("events", "topic", durable=True)
    channel.exchange_declare("audit", "fanout", durable=True, internal=True)
    channel.exchange_bind("audit", "events", "order.#")
    channel.exchange_bind("events", "audit")
    channel.exchange_bind("events", "amq.topic", "shop.#")
    channel.queue_bind(queue(channel, "trail"), "audit")
    channel.queue_bind(queue(channel, "shop"), "events", "shop.*")
    publish(channel, "events", "order.new", b"1")
    publish(channel, "events", "user.new", b"2")
    paho.mqtt.publish.single("shop/open", b"3", qos=1, hostname=server.host, port=server.mqtt_port)
    assert take(channel, "trail", 1) == [b"1"]
    assert take(channel, "shop", 1) == [b"3"]
    channel.exchange_unbind("audit", "events", "order.#")
    publish(channel, "events", "order.new", b"4")
    assert channel.queue_declare("trail", passive=True).method.message_count == 0


def test_an_alternate_exchange_takes_what_has_no_route(channel: Channel) -> None:
    channel.exchange_declare("unrouted", "fanout", durable=True)
    channel.exchange_declare(
        "orders", "direct", durable=True, arguments={"alternate-exchange": "unrouted"}
    )
    channel.queue_bind(queue(channel, "eu"), "orders", "eu")
    channel.queue_bind(queue(channel, "rest"), "unrouted")
    for key in ("eu", "us"):
        channel.basic_publish("orders", key, key.encode(), mandatory=True)
    assert take(channel, "eu", 1) == [b"eu"]
    assert take(channel, "rest", 1) == [b"us"]
