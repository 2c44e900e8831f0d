"""What a gateway stores as it came is the same, byte for byte, wherever its message goes: dead
letters, delays, several moves, a start in between."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest

from polymq.broker.port import Message, Publishing, Template
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from tests.broker.queue_bench import bind, consume, declare, exchange
from tests.harness.broker import Broker

BLOCK = b"\x01\x01\x02\0\0\0\x3c\x09\0\x02\xff\0\x26\0\x01n\0\x01\x01\x26\0\x01n\0\0"
"""A property block of MQTT 5, with bytes that have a meaning in records, and a name twice."""
CONSTANT: Mapping[str, str] = {"PMQ_PROTO": "mqtt5", "PMQ_QOS": "1"}
NAMES = pytest.mark.parametrize("name", ["PMQ_MQTT5", "PMQ_AMQP"])


def template(broker: Broker, queue: str, name: str, **more: str) -> Template:
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    return broker.port.topics.template(
        route, properties={**CONSTANT, **more}, extra_kind=EXTRA_BASE64, extra_name=name
    )


def rows(*blocks: bytes) -> Batch:
    """A message with the body `x` for each block."""
    batch = Batch()
    batch.buffer = b"x" + b"".join(blocks)
    at = 1
    for block in blocks:
        batch.add((0, 0), (0, 1), (at, len(block)))
        at += len(block)
    return batch


def read(broker: Broker, name: str) -> list[Message]:
    consumer, registration = consume(broker, name)
    registration.cancel()
    return consumer.messages


def is_whole(message: Message, name: str, block: bytes) -> bool:
    """Whether it has this block, and the constant properties that it was published with."""
    same = base64.b64decode(message.properties[name], validate=True) == block
    return same and message.body == b"x" and CONSTANT.items() <= message.properties.items()


@NAMES
def test_in_a_queue_and_after_a_start(broker: Broker, name: str) -> None:
    """Equal or not, the messages of one read are one run."""
    declare(broker, "q")
    blocks = (BLOCK, b"", BLOCK[:2])
    broker.port.publish(template(broker, "q", name), rows(*blocks), 0, 3)
    broker.step(1.0)
    broker.restart()
    messages = read(broker, "q")
    assert len(messages) == len(blocks)
    assert is_whole(messages[0], name, BLOCK)
    assert is_whole(messages[1], name, b"")
    assert is_whole(messages[2], name, BLOCK[:2])


@NAMES
def test_in_dead_letters_of_dead_letters(broker: Broker, name: str) -> None:
    """One that was rejected, and died of its time to live once more, behind a start."""
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    declare(broker, "second", x_message_ttl=5_000, x_dead_letter_exchange="dlx")
    declare(
        broker,
        "first",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="second",
    )
    broker.port.publish(template(broker, "first", name), rows(BLOCK), 0, 1)
    broker.step(1.0)
    _, registration = consume(broker, "first")
    registration.reject(0, 1)
    broker.step(1.0)
    broker.restart()
    broker.step(6.0)
    (message,) = read(broker, "dead")
    assert message.topic == "dlx"
    assert is_whole(message, name, BLOCK)


@NAMES
@pytest.mark.parametrize("restarts", [False, True])
def test_in_delayed_messages(broker: Broker, name: str, restarts: bool) -> None:
    declare(broker, "q")
    broker.port.delays.publish_later(
        template(broker, "q", name), rows(BLOCK, BLOCK[:2]), 0, 2, delay_ms=60_000
    )
    broker.step(1.0)
    if restarts:
        broker.restart()
    assert read(broker, "q") == []
    broker.step(61.0)
    first, second = read(broker, "q")
    assert is_whole(first, name, BLOCK)
    assert is_whole(second, name, BLOCK[:2])


@NAMES
def test_in_a_transaction(broker: Broker, name: str) -> None:
    declare(broker, "q")
    publishing = Publishing(
        template=template(broker, "q", name), batch=rows(BLOCK), first=0, last=1
    )
    broker.port.transactions.commit([publishing], [])
    broker.step(1.0)
    (message,) = read(broker, "q")
    assert is_whole(message, name, BLOCK)
