"""AMQP's exchanges and bindings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from polymq.broker.port.infos import ExchangeInfo
from polymq.broker.port.publishing import Route, Template
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch


class ExchangePort(Protocol):
    """The operations on exchanges, and on what is bound to them."""

    def info(self, name: str) -> ExchangeInfo | None:
        """The exchange, or None. A topic that exists is a durable exchange of type `topic`, unless
        the exchange of its name was deleted."""

    def declare(
        self,
        name: str,
        *,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> Position:
        """Declare (direct, fanout, topic, headers, x-delayed-message). The argument
        `alternate-exchange` names where messages go that nothing is bound for. Raises Refused:
        DIFFERENT, FORBIDDEN (`amq.` names, the default exchange), BAD_ARGUMENT (unknown type)."""

    def delete(self, name: str, *, if_unused: bool) -> Position:
        """Delete with its bindings; no error if there is none. Raises Refused: IN_USE,
        FORBIDDEN."""

    def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """What `source` gets and the binding matches goes on to the queues of `destination`; the
        same binding twice is one. Raises Refused: NOT_FOUND, FORBIDDEN, LIMIT."""

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """Undo it; no error if there was none, or none of the two. Raises Refused: FORBIDDEN."""

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """Bind; the same binding twice is one. Raises Refused: NOT_FOUND, LOCKED, FORBIDDEN."""

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """Undo a bind; no error if there was none, or no such queue or exchange. Raises Refused:
        LOCKED, FORBIDDEN."""

    def route(self, exchange: str, routing_key: str) -> Route | None:
        """Where messages to an exchange with a routing key go: `TopicPort.route` by AMQP's names
        (part 7 of ARCHITECTURE.md).

        Returns:
            The route, or None when the message has nowhere to go at all (default exchange, no
            such queue, no such topic): it is dropped, or returned if mandatory.

        Raises:
            Refused: NOT_FOUND for an unknown exchange; FORBIDDEN for an internal one.
        """

    def copying_route(self, exchange: str, routing_key: str, copies: Sequence[str]) -> Route | None:
        """As `route`, for messages that also go to the named queues that other routing
        keys of the exchange lead to, once to each queue. For one use: it does not follow changes of
        bindings. Raises Refused as `route` does for any of the keys."""

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """Whether a queue or a live subscriber would get this row now: for routes `by_headers`."""
