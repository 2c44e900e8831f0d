"""RabbitMQ's queue arguments as pika applications use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pika
import pika.exceptions
import pytest

SECONDS_MAX = 20.0

Blocking: TypeAlias = Any
Channel: TypeAlias = Any


@pytest.fixture
def connect(server: Any) -> Iterator[Callable[..., Blocking]]:
    """Makes connections, and closes those that are still open."""
    made: list[Blocking] = []

    def open_one(**options: Any) -> Blocking:
        parameters = pika.ConnectionParameters(server.host, server.amqp_port, **options)
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield open_one
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[..., Blocking]) -> Channel:
    made = connect().channel()
    made.confirm_delivery()
    return made


def get(channel: Channel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue, within the deadline."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, f"nothing comes to {queue}"
        channel.connection.process_data_events(0.02)


def ready(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def dead_letter_queue(channel: Channel) -> None:
    channel.exchange_declare("dlx", "direct", durable=True)
    channel.queue_declare("dead", durable=True)
    channel.queue_bind("dead", "dlx", "gone")


def test_a_rejected_message_is_a_dead_letter(channel: Channel) -> None:
    """x-dead-letter-exchange: the headers that applications look at to decide on a retry."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "work",
        durable=True,
        arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "gone"},
    )
    sent = pika.BasicProperties(
        content_type="text/plain",
        message_id="m1",
        expiration="3600000",
        headers={"colour": "red", "x-death": "forged"},
        delivery_mode=pika.DeliveryMode.Persistent,
    )
    channel.basic_publish("", "work", b"job", sent)
    method, _, _ = get(channel, "work")
    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = get(channel, "dead")
    assert body == b"job"
    assert (method.exchange, method.routing_key) == ("dlx", "gone")
    assert (properties.content_type, properties.message_id) == ("text/plain", "m1")
    assert properties.expiration is None
    headers = properties.headers
    assert headers["colour"] == "red"
    (death,) = headers["x-death"]
    assert death.pop("time").year >= 2026
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "work",
        "exchange": "",
        "routing-keys": ["work"],
        "original-expiration": "3600000",
    }
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-first-death-queue"] == "work"
    assert headers["x-first-death-exchange"] == ""
    channel.basic_ack(method.delivery_tag)


def test_nack_multiple_moves_a_run_in_order(channel: Channel) -> None:
    """A hundred at once."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "work", arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "gone"}
    )
    for number in range(100):
        channel.basic_publish("", "work", str(number))
    for _ in range(100):
        method, _, _ = get(channel, "work")
    channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
    got = [get(channel, "dead")[2] for _ in range(100)]
    assert got == [str(number).encode() for number in range(100)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-exchange"),
        ({"x-dead-letter-exchange": 5}, "text"),
    ],
)
def test_wrong_arguments_are_406(
    connect: Callable[..., Blocking], arguments: dict[str, Any], words: str
) -> None:
    channel = connect().channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("q", arguments=arguments)
    assert closed.value.reply_code == 406
    assert "invalid arg" in closed.value.reply_text
    assert words in closed.value.reply_text
