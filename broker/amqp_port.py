"""The part of the port that is AMQP's: exchanges, bindings, named queues, and HTTP's named
subscriptions, which are such queues.

See `port.py`, of which it is a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from polymq.broker.infos import ExchangeInfo, QueueInfo
from polymq.broker.messages import Delivery
from polymq.broker.runs import TakesApart

if TYPE_CHECKING:
    from polymq.broker.port import Consumer, Position, QueueConsumer, Route, Template, Words
    from polymq.core_log.kernels.batch import Batch


class AmqpPort(Protocol):
    """The operations."""

    def exchange(self, name: str) -> ExchangeInfo | None:
        """The exchange, or None. A topic that exists is a durable exchange of type `topic`, unless
        the exchange of its name was deleted."""

    def declare_exchange(
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

    def delete_exchange(self, name: str, *, if_unused: bool) -> Position:
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

    def copying_route(self, exchange: str, routing_key: str, copies: Sequence[str]) -> Route | None:
        """As `exchange_route`, for messages that also go to the named queues that other routing
        keys of the exchange lead to, once to each queue. For one use: it does not follow changes of
        bindings. Raises Refused as `exchange_route` does for any of the keys."""

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """Whether a queue or a live subscriber would get this row now: for routes `by_headers`."""

    def queue(self, name: str, *, owner: object) -> QueueInfo:
        """Look a queue up. Raises Refused: NOT_FOUND, LOCKED (exclusive to another owner)."""

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        owner: object,
    ) -> tuple[QueueInfo, Position]:
        """Declare; an empty name makes one up (`amq.gen-...`). `owner` is the connection: its
        exclusive queues go with `release_owner`. Raises Refused: DIFFERENT, LOCKED, FORBIDDEN."""

    def delete_queue(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """Delete; returns how many ready messages went with it. 0 if there is no such queue.
        Consumers get `cancelled()`. Raises Refused: IN_USE, NOT_EMPTY, LOCKED."""

    def purge_queue(self, name: str, *, owner: object) -> tuple[int, Position]:
        """Drop all ready messages. Raises Refused: NOT_FOUND, LOCKED."""

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
        """Start delivering to `consumer` (not during the call: call `ready()` when it can take
        messages). Consumers of a higher priority are served first, as long as they have credit.

        Args:
            reads_long: it takes records with AMQP properties in front of their bodies
                (`RunMeta.long`). Others get them without, as all other messages.
            takes_apart: of which kinds it decodes each message by itself; None: of none. Of such
                messages fewer are delivered in one iteration of the loop.

        Raises:
            Refused: NOT_FOUND, LOCKED, FORBIDDEN (exclusive consumer present).
        """

    def get(
        self,
        queue: str,
        callback: Callable[[Delivery | None, QueueConsumer, int], None],
        *,
        owner: object,
    ) -> None:
        """One message, or None: `callback(delivery, holder, ready_count_after)`. The holder is
        what settles or requeues it. As for consumers with `reads_long`. Raises Refused: NOT_FOUND,
        LOCKED."""

    def release_owner(self, owner: object) -> Iterator[None]:
        """The connection is gone: delete its exclusive queues, one in each step of what is
        returned. Cancel its consumers and requeue what they hold before."""

    # --- filter subscriptions by name (HTTP) ------------------------------------------------

    def declare_subscription(self, name: str, words: Words) -> Position:
        """A durable queue of what matches `words` from now on, consumed like an AMQP queue under
        the name that `subscription_queue(name)` gives. Idempotent for equal words; DIFFERENT
        otherwise."""

    def delete_subscription(self, name: str) -> Position:
        """Delete; no error if there is none."""

    def subscription_queue(self, name: str) -> str:
        """The queue name to give to `consume`, `get` and `queue`."""
