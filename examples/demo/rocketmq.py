"""RocketMQ in the demo: our own client, a producer and a consumer for programs with threads.

The broker's listener answers routes, too, so its address is given as the name server's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from examples.demo.messages import CONTENT_TYPE, TOPIC, Item
from examples.demo.workers import HOST, Receiver, say, say_acked, until_input_closes
from polymq.client import (
    Begin,
    ClientOptions,
    ConsumerSettings,
    Message,
    ProducerSettings,
    Record,
)
from polymq.client.threads import open_consumer, open_producer
from polymq.remoting.compose import compose_consumer
from polymq.remoting.consumer import Consumer
from polymq.remoting.driver_blocking import BlockingDriver
from polymq.remoting.messages import KEYS, TAGS
from polymq.remoting.records import parse_properties

READY_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.02
ONCE = ProducerSettings(send_seconds=30.0, attempts_max=1)
"""A message that is sent again may be there twice."""


def options_of(port: int) -> ClientOptions:
    """A broker answers routes, so it is given as the name server."""
    return ClientOptions(name_servers=f"{HOST}:{port}")


def publish_rocketmq(port: int, items: Iterator[Item], _window: int) -> None:
    """`send` returns on SEND_OK."""
    with open_producer("demo-publisher", options_of(port), settings=ONCE) as producer:
        for item in items:
            message = Message(
                topic=TOPIC,
                body=item.body(),
                tag=item.tag,
                keys=(item.identity,),
                properties={"kind": item.kind, "content-type": CONTENT_TYPE},
            )
            sent = time.monotonic()
            answer = producer.send(message)
            if answer.code:
                raise RuntimeError(f"the message is stored less safely than asked: {answer.code}")
            say_acked(item.tag, sent)


def subscribe_rocketmq(port: int, name: str, receiver: Receiver | None) -> None:
    """A group of one consumer, which is pushed to and commits what it handled."""
    if receiver is None:
        declare_group(port, name, TOPIC)
        return

    def handle(record: Record) -> None:
        properties = parse_properties(record.properties)
        receiver.received(
            properties.get(TAGS, ""),
            record.body,
            topic=record.topic,
            key=properties.get(KEYS),
            content_type=properties.get("content-type"),
            kind=properties.get("kind"),
            CE_kind=properties.get("CE_kind"),
        )

    from_first = ConsumerSettings(begin=Begin.FIRST)
    with open_consumer(
        name, {TOPIC: "*"}, handle, options_of(port), settings=from_first
    ) as consumer:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not any(queue.topic == TOPIC for queue in consumer.queues):
            assert time.monotonic() < deadline, "the group got no queue"
            time.sleep(LOOK_SECONDS)
        say(event="ready")
        until_input_closes()


def polling_consumer(
    port: int, group: str, topic: str, settings: ConsumerSettings
) -> tuple[Consumer, BlockingDriver]:
    """A consumer that does what it is told, step by step."""
    consumer = compose_consumer(group, {topic: "*"}, options_of(port), settings, None)
    return consumer, BlockingDriver(handler=consumer.asked)


def declare_group(port: int, group: str, topic: str) -> None:
    """Make a group whose offsets are the ends of the topic's queues."""
    settings = ConsumerSettings(begin=Begin.LAST, long_poll_seconds=0)
    consumer, driver = polling_consumer(port, group, topic, settings)
    for queue in driver.run(consumer.share()):
        while driver.run(consumer.pull(queue)):  # a young queue is read from its first message
            consumer.handled(queue)
    driver.run(consumer.leave())
    driver.close()
