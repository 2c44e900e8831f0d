"""Exchanges, bindings and queues, as one principal may use them. See `permitted.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polymq.broker.accounts.permissions import Action
from polymq.broker.accounts.queue_readers import Reader
from polymq.broker.admission.permitted import Permitted
from polymq.broker.admission.principal import Principal
from polymq.broker.exchanges.entities import (
    ALTERNATE_ARGUMENT,
    binding_address,
    everything_in,
    is_server_named,
    topic_and_tag,
)
from polymq.broker.messages.message import Delivery
from polymq.broker.names import ROOT_EXCHANGE
from polymq.broker.port.infos import ExchangeInfo, QueueInfo
from polymq.broker.port.publishing import Route, Template
from polymq.broker.port.queues import Consumer, QueueConsumer
from polymq.broker.port.values import REST, Address, Position
from polymq.broker.queues.settings import DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY
from polymq.broker.routing.trie import address_of
from polymq.core_log.kernels.batch import Batch


class _PermittedNames(Permitted):
    """What the rights to a queue are."""

    __slots__ = ()

    def _check_queue(self, queue: str) -> None:
        """Whether the principal may make the queue, or change it. Raises Refused."""
        if not is_server_named(queue) or not self._made(queue):
            self._principal.check(Action.CREATE, (queue,))

    def _made(self, queue: str) -> bool:
        """Whether a queue that the server named is this user's, or gone."""
        found = self._parts.queues.queues.get(queue)
        return found is None or found.terms.maker == self._principal.as_owner


class PermittedExchanges(_PermittedNames):
    """`port.ExchangePort` for one principal."""

    __slots__ = ()

    def info(self, name: str) -> ExchangeInfo | None:
        """See `ExchangePort.info`: that one exists is no secret to who can name it."""
        return self._parts.exchanges.info(name)

    def declare(self, name: str, *, arguments: Mapping[str, Any], **settings: Any) -> Position:
        """See `ExchangePort.declare`. What it has no binding for is read here, and published to
        its alternate exchange, in this user's name."""
        self._principal.check(Action.CREATE, (name,))
        alternate = arguments.get(ALTERNATE_ARGUMENT)
        if isinstance(alternate, str):
            self._principal.lasting.check_filter((name, REST))
            self._check_all_of(alternate)
        return self._parts.exchanges.declare(
            name, arguments=arguments, user=self._principal.name, **settings
        )

    def delete(self, name: str, *, if_unused: bool) -> Position:
        """See `ExchangePort.delete`."""
        self._principal.check(Action.CREATE, (name,))
        return self._parts.exchanges.delete(name, if_unused=if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `ExchangePort.bind_exchange`. Who binds reads the source and publishes to the
        destination from now on, as a program could that does both."""
        self._check_link(destination, source, routing_key)
        return self._parts.exchanges.bind_exchange(
            destination, source, routing_key, arguments, user=self._principal.name
        )

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `ExchangePort.unbind_exchange`."""
        self._check_link(destination, source, routing_key)
        return self._parts.exchanges.unbind_exchange(destination, source, routing_key, arguments)

    def _check_link(self, destination: str, source: str, routing_key: str) -> None:
        origin = self._parts.exchanges.need_exchange(source)
        self._principal.lasting.check_filter(binding_address(origin, routing_key))
        self._check_all_of(destination)

    def _check_all_of(self, exchange: str) -> None:
        """Whether the user may publish to an exchange with every key."""
        self._principal.lasting.check_filter(everything_in(exchange), Action.PUBLISH)

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `ExchangePort.bind_queue`. Consumers that may not read what it brings end."""
        self._check_queue(queue)
        exchanges = self._parts.exchanges
        source = exchanges.need_exchange(exchange)
        self._principal.check_filter(binding_address(source, routing_key))
        position = exchanges.bind_queue(queue, exchange, routing_key, arguments, owner=owner)
        self._parts.readers.check_queue(queue, lambda guard: True)
        return position

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `ExchangePort.unbind_queue`."""
        self._check_queue(queue)
        return self._parts.exchanges.unbind_queue(
            queue, exchange, routing_key, arguments, owner=owner
        )

    def route(self, exchange: str, routing_key: str) -> Route | None:
        """See `ExchangePort.route`."""
        self._check_published(exchange, routing_key)
        return self._parts.exchanges.route(exchange, routing_key)

    def copying_route(self, exchange: str, routing_key: str, copies: Sequence[str]) -> Route | None:
        """See `ExchangePort.copying_route`. Each key asks for the right to publish there."""
        self._check_published(exchange, routing_key)
        for key in copies:
            self._principal.check(Action.PUBLISH, address_of(*topic_and_tag(exchange, key)))
        return self._parts.exchanges.copying_route(exchange, routing_key, copies)

    def _check_published(self, exchange: str, routing_key: str) -> None:
        topic, tag = topic_and_tag(exchange, routing_key)
        address = address_of(topic, tag)
        self._principal.check(Action.PUBLISH, address)
        if exchange in ("", ROOT_EXCHANGE) and not self._parts.exchanges.is_made(topic):
            leads = exchange or self._parts.topics.router.match(address)
            if leads:  # else it goes nowhere, and makes nothing
                self._principal.check(Action.CREATE, address)

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """See `ExchangePort.is_routed`."""
        return self._parts.exchanges.is_routed(self._allowed(template), batch, row)


class PermittedQueues(_PermittedNames):
    """`port.QueuePort` for one principal, and the guard of each consumer that it begins."""

    __slots__ = ()

    @property
    def principal(self) -> str:
        """Whose rights count (`readers.Guard`)."""
        return self._principal.name

    def may_consume(self, queue: str) -> bool:
        """Whether everything that the queue collects may be read."""
        return all(self._principal.may_read(address) for address in self._collected(queue))

    def _collected(self, queue: str) -> list[Address]:
        return self._parts.exchanges.collected(queue)

    def _check_consume(self, queue: str, principal: Principal | None = None) -> None:
        principal = principal or self._principal
        filters = self._collected(queue)
        by_name = not self._made(queue) if is_server_named(queue) else not filters
        if by_name:
            principal.check_filter((queue,))
        for address in filters:
            principal.check_filter(address)

    def info(self, name: str, *, owner: object) -> QueueInfo:
        """See `QueuePort.info`: for who may consume from it, or make it."""
        if is_server_named(name) or not self.may_consume(name):
            self._check_queue(name)
        return self._parts.queues.info(name, owner=owner)

    def declare(
        self, name: str, *, arguments: Mapping[str, Any], **settings: Any
    ) -> tuple[QueueInfo, Position]:
        """See `QueuePort.declare`. Its dead letters are read and published in this user's name,
        and are checked one by one; what can be said of them now is checked now."""
        principal = self._principal
        if name:
            self._check_queue(name)
        dead = arguments.get(DEAD_LETTER_EXCHANGE)
        if isinstance(dead, str):
            lasting = principal.lasting
            if name:
                self._check_consume(name, lasting)
            key = arguments.get(DEAD_LETTER_KEY)
            if isinstance(key, str):
                lasting.check(Action.PUBLISH, address_of(*topic_and_tag(dead, key)))
            else:
                lasting.check_some(everything_in(dead), Action.PUBLISH)
        queues = self._parts.queues
        if name not in queues.queues:
            count = queues.counts.get(principal.as_owner, 0)
            principal.check_quota("queues", count, principal.quotas.queues)
        return queues.declare(name, arguments=arguments, user=principal.name, **settings)

    def delete(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """See `QueuePort.delete`."""
        self._check_queue(name)
        return self._parts.queues.delete(name, if_unused=if_unused, if_empty=if_empty, owner=owner)

    def purge(self, name: str, *, owner: object) -> tuple[int, Position]:
        """See `QueuePort.purge`: it takes messages away, as reading them would."""
        self._check_consume(name)
        return self._parts.queues.purge(name, owner=owner)

    def consume(
        self, queue: str, consumer: Consumer, *, exclusive: bool, owner: object, **settings: Any
    ) -> QueueConsumer:
        """See `QueuePort.consume`."""
        self._check_consume(queue)
        reading = self._parts.queues.consume(
            queue, consumer, exclusive=exclusive, owner=owner, **settings
        )
        self._parts.readers.add(queue, Reader(self, consumer, reading))
        return reading

    def get(
        self,
        queue: str,
        callback: Callable[[Delivery | None, QueueConsumer, int], None],
        *,
        owner: object,
    ) -> None:
        """See `QueuePort.get`."""
        self._check_consume(queue)
        self._parts.queues.get(queue, callback, owner=owner)

    def release_owner(self, owner: object) -> Iterator[None]:
        """See `QueuePort.release_owner`."""
        return self._parts.queues.release_owner(owner)

    def declare_subscription(self, name: str, address: Address) -> Position:
        """See `QueuePort.declare_subscription`."""
        self._principal.check_filter(address)
        return self._parts.queues.declare_subscription(name, address)

    def delete_subscription(self, name: str) -> Position:
        """See `QueuePort.delete_subscription`: the gateway knows whose it is."""
        return self._parts.queues.delete_subscription(name)

    def subscription_queue(self, name: str) -> str:
        """See `QueuePort.subscription_queue`."""
        return self._parts.queues.subscription_queue(name)
