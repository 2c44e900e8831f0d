"""The engine's operations on AMQP's entities: handed on to those who have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polymq.broker.core import Core
from polymq.broker.exchanges import Exchanges
from polymq.broker.header_routing import is_routed
from polymq.broker.named_queues import NamedQueues
from polymq.broker.port import (
    Consumer,
    Delivery,
    ExchangeInfo,
    Position,
    QueueConsumer,
    QueueInfo,
    Route,
    TakesApart,
    Template,
    Words,
)
from polymq.broker.topics import TopicTemplate
from polymq.core_log.kernels.batch import Batch


class AmqpOperations:
    """`amqp_port.AmqpPort`: a part of `Engine`."""

    core: Core
    exchanges: Exchanges
    named_queues: NamedQueues

    def exchange(self, name: str) -> ExchangeInfo | None:
        """See `BrokerPort.exchange`."""
        found = self.exchanges.exchange(name)
        return None if found is None else found.info()

    def declare_exchange(self, name: str, **settings: Any) -> Position:
        """See `BrokerPort.declare_exchange`."""
        return self.exchanges.declare_exchange(name, **settings)

    def delete_exchange(self, name: str, *, if_unused: bool) -> Position:
        """See `BrokerPort.delete_exchange`."""
        return self.exchanges.delete_exchange(name, if_unused=if_unused)

    def bind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
    ) -> Position:
        """See `AmqpPort.bind_exchange`. `user`: whose it is."""
        return self.exchanges.bind_exchange(destination, source, routing_key, arguments, user=user)

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `AmqpPort.unbind_exchange`."""
        return self.exchanges.unbind_exchange(destination, source, routing_key, arguments)

    def copying_route(self, exchange: str, routing_key: str, copies: Sequence[str]) -> Route | None:
        """See `AmqpPort.copying_route`."""
        return self.exchanges.copying_route(exchange, routing_key, copies)

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """See `AmqpPort.is_routed`."""
        assert isinstance(template, TopicTemplate)
        return is_routed(self.exchanges.topics, template, batch, row)

    def queue(self, name: str, *, owner: object) -> QueueInfo:
        """See `BrokerPort.queue`."""
        return self.named_queues.need_queue(name, owner).info()

    def declare_queue(self, name: str, **settings: Any) -> tuple[QueueInfo, Position]:
        """See `BrokerPort.declare_queue`."""
        self.core.check_leads()
        return self.named_queues.declare_queue(name, **settings)

    def delete_queue(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """See `BrokerPort.delete_queue`."""
        return self.named_queues.delete_queue(
            name, if_unused=if_unused, if_empty=if_empty, owner=owner
        )

    def purge_queue(self, name: str, *, owner: object) -> tuple[int, Position]:
        """See `BrokerPort.purge_queue`."""
        return self.named_queues.purge_queue(name, owner=owner)

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.bind_queue`."""
        return self.exchanges.bind_queue(queue, exchange, routing_key, arguments, owner=owner)

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.unbind_queue`."""
        return self.exchanges.unbind_queue(queue, exchange, routing_key, arguments, owner=owner)

    def consume(
        self,
        queue: str,
        consumer: Consumer,
        *,
        exclusive: bool,
        owner: object,
        priority: int = 0,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> QueueConsumer:
        """See `BrokerPort.consume`."""
        self.core.check_leads()
        return self.named_queues.consume(
            queue,
            consumer,
            exclusive=exclusive,
            owner=owner,
            priority=priority,
            reads_long=reads_long,
            takes_apart=takes_apart,
        )

    def get(
        self,
        queue: str,
        callback: Callable[[Delivery | None, QueueConsumer, int], None],
        *,
        owner: object,
    ) -> None:
        """See `BrokerPort.get`."""
        self.core.check_leads()
        self.named_queues.get(queue, callback, owner=owner)

    def release_owner(self, owner: object) -> Iterator[None]:
        """See `BrokerPort.release_owner`."""
        return self.named_queues.release_owner(owner)

    # --- named subscriptions, documents -----------------------------------------------------

    def declare_subscription(self, name: str, words: Words) -> Position:
        """See `BrokerPort.declare_subscription`."""
        return self.named_queues.declare_subscription(name, words)

    def delete_subscription(self, name: str) -> Position:
        """See `BrokerPort.delete_subscription`."""
        return self.named_queues.delete_subscription(name)

    def subscription_queue(self, name: str) -> str:
        """See `BrokerPort.subscription_queue`."""
        return f"%SUB%{name}"
