"""What the tests of queues' rules share: declaring, publishing and consuming through the engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from polymq.broker.port import (
    TTL_PROPERTY,
    Delivery,
    Durability,
    Message,
    QueueConsumer,
    ttl_property,
)
from tests.harness.broker import Broker, SpyConsumer

OWNER = object()
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class MessagesConsumer(SpyConsumer):
    """Keeps messages as values, too."""

    def __init__(self, credit: int = 1000) -> None:
        super().__init__(credit)
        self.messages: list[Message] = []

    def deliver(self, delivery: Delivery) -> None:
        self.messages += delivery.messages()
        super().deliver(delivery)


def declare(broker: Broker, name: str, *, durable: bool = True, **arguments: Any) -> None:
    """A queue; `x_message_ttl=5` is the argument `x-message-ttl`."""
    broker.port.queues.declare(
        name,
        durable=durable,
        exclusive=False,
        auto_delete=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        owner=OWNER,
    )


def exchange(broker: Broker, name: str, kind: str = "fanout", **settings: bool) -> None:
    """A durable exchange."""
    broker.port.exchanges.declare(
        name,
        type=kind,
        durable=True,
        auto_delete=False,
        internal=settings.get("internal", False),
        arguments={},
    )


def bind(broker: Broker, queue: str, source: str, key: str = "") -> None:
    broker.port.exchanges.bind_queue(queue, source, key, {}, owner=OWNER)


def publish(
    broker: Broker,
    queue: str,
    *bodies: bytes,
    source: str = "",
    durability: Durability = Durability.FLUSHED,
    ttl_ms: int | None = None,
    priority: int = 0,
    constant: Mapping[str, str] = NO_PROPERTIES,
    **properties: str,
) -> None:
    """Publish one run to a queue, or to a key of another exchange.

    `constant` are properties whose names are no words of Python.
    """
    route = broker.port.exchanges.route(source, queue)
    assert route is not None
    named = {"PMQ_EXCHANGE": source} if source != route.topic else {}
    if ttl_ms is not None or priority:
        properties[TTL_PROPERTY] = ttl_property(ttl_ms, priority)
    template = broker.port.topics.template(
        route, properties={**named, **constant, **properties}, durability=durability
    )
    broker.publish(template, *bodies)


def consume(
    broker: Broker, name: str, credit: int = 1000, **settings: Any
) -> tuple[MessagesConsumer, QueueConsumer]:
    """A consumer that has got what there is."""
    consumer = MessagesConsumer(credit)
    registration = broker.port.queues.consume(
        name, consumer, exclusive=False, owner=OWNER, **settings
    )
    registration.ready()
    broker.step()
    return consumer, registration


def ready(broker: Broker, name: str) -> int:
    return broker.port.queues.info(name, owner=OWNER).ready_count


def look(broker: Broker, name: str) -> list[bytes]:
    """The bodies that are ready, in order, taken out."""
    consumer, registration = consume(broker, name)
    registration.cancel()
    for offset, _, _ in consumer.got:
        registration.settle(offset, 1)
    return consumer.bodies
