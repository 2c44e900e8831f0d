"""RocketMQ in the demo: our own client, a blocking producer and an asyncio consumer.

The broker's door answers routes, too, so its address is given as the name server's.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator

from examples.demo.messages import CONTENT_TYPE, TOPIC, Item
from examples.demo.workers import HOST, Receiver, say, say_acked, until_input_closes
from remoting.awaiting import consume
from remoting.consumer import Consumer
from remoting.consumer_settings import Begin, ConsumerSettings
from remoting.driver_asyncio import AsyncioDriver
from remoting.driver_blocking import BlockingDriver
from remoting.messages import KEYS, TAGS, Message
from remoting.producer import Producer, ProducerSettings
from remoting.records import Record, parse_properties
from remoting.routes import NameServers, Routes
from remoting.steps import Address

SEND_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.05
QUICK = ConsumerSettings(begin=Begin.FIRST, look_seconds=0.1, pause_seconds=0.1)
"""Looks for its topic often: the demo does not want to wait a second."""


def make_producer(port: int, group: str) -> Producer:
    """A producer that sends once: a message that is sent again may be there twice."""
    return Producer(
        group=group,
        client_id=f"{group}-{secrets.token_hex(4)}",
        routes=_routes(port),
        clock=time.monotonic,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        choose=random.randrange,
        new_id=lambda: secrets.token_hex(16).upper(),
        settings=ProducerSettings(send_seconds=SEND_SECONDS_MAX, attempts_max=1),
    )


def make_consumer(port: int, group: str, topic: str, settings: ConsumerSettings) -> Consumer:
    """A consumer of all that a topic gets."""
    return Consumer(
        group=group,
        client_id=f"{group}-{secrets.token_hex(4)}",
        routes=_routes(port),
        subscriptions={topic: "*"},
        started_ms=time.time_ns() // 1_000_000,
        settings=settings,
    )


def _routes(port: int) -> Routes:
    return Routes(NameServers((Address(HOST, port),), random.randrange))


def publish_rocketmq(port: int, items: Iterator[Item], _window: int) -> None:
    """`send` returns on SEND_OK."""
    driver, producer = BlockingDriver(), make_producer(port, "demo-publisher")
    for item in items:
        message = Message(
            topic=TOPIC,
            body=item.body(),
            tag=item.tag,
            keys=(item.identity,),
            properties={"kind": item.kind, "content-type": CONTENT_TYPE},
        )
        sent = time.monotonic()
        answer = driver.run(producer.send(message))
        if answer.code:
            raise RuntimeError(f"the message is stored less safely than asked: {answer.code}")
        say_acked(item.tag, sent)
    driver.close()


def subscribe_rocketmq(port: int, name: str, receiver: Receiver | None) -> None:
    """A group of one consumer, which is pushed to and commits what it handled."""
    if receiver is None:
        declare_group(port, name, TOPIC)
        say(event="ready")
        return

    async def handle(record: Record) -> None:
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

    asyncio.run(_consume(make_consumer(port, name, TOPIC, QUICK), handle))


def declare_group(port: int, group: str, topic: str) -> None:
    """Make a group whose offsets are the ends of the topic's queues."""
    settings = ConsumerSettings(begin=Begin.LAST, hold_seconds=0)
    consumer = make_consumer(port, group, topic, settings)
    driver = BlockingDriver(handler=consumer.asked)
    for queue in driver.run(consumer.share()):
        while driver.run(consumer.pull(queue)):  # a young queue is read from its first message
            consumer.handled(queue)
    driver.run(consumer.leave())
    driver.close()


async def _consume(consumer: Consumer, handle: Callable[[Record], Awaitable[None]]) -> None:
    driver = AsyncioDriver(handler=consumer.asked)
    consuming = asyncio.create_task(consume(driver, consumer, handle))
    while not any(queue.topic == TOPIC for queue in consumer.queues):
        await asyncio.wait([consuming], timeout=LOOK_SECONDS)
        if consuming.done():
            consuming.result()
    say(event="ready")
    await asyncio.to_thread(until_input_closes)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    driver.close()
