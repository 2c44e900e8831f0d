"""Queues that have a name: AMQP's, and HTTP's named subscriptions, which are such queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from polymq.broker.messages.message import Delivery
from polymq.broker.messages.runs import TakesApart
from polymq.broker.port.infos import QueueInfo
from polymq.broker.port.values import Address, Position


class Consumer(Protocol):
    """What the engine delivers a queue's messages to. Implemented by gateways."""

    def credit(self) -> int:
        """How many more messages it takes now; 0 while its transport is paused."""

    def deliver(self, delivery: Delivery) -> None:
        """Take the messages (at most `credit()` of them). Settle or requeue them later."""

    def cancelled(self) -> None:
        """The queue is gone; nothing more comes."""


class QueueConsumer(Protocol):
    """A consumer's hold on a queue, as `QueuePort.consume` returns it."""

    @property
    def paused(self) -> bool:
        """Whether an operator wants nothing handed out: nothing comes, and who has taken messages
        ahead of their use gives them back before the next."""

    def settle(self, first_offset: int, count: int) -> None:
        """These are done with; they never come again."""

    def requeue(self, first_offset: int, count: int) -> None:
        """Back to their old places, flagged redelivered."""

    def reject(self, first_offset: int, count: int) -> None:
        """The consumer does not want them: dead letters where the queue has a place for them,
        else as `settle`."""

    def ready(self) -> None:
        """Credit has grown: look for messages."""

    def cancel(self) -> None:
        """No more deliveries. What is not settled stays with the caller: settle or requeue it."""


Settlement = tuple[QueueConsumer, int, int]
"""A holder, and the first offset and the count of what is settled in its queue."""


class QueuePort(Protocol):
    """The operations on queues that have a name."""

    def info(self, name: str, *, owner: object) -> QueueInfo:
        """Look a queue up. Raises Refused: NOT_FOUND, LOCKED (exclusive to another owner)."""

    def declare(
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

    def delete(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """Delete; returns how many ready messages went with it. 0 if there is no such queue.
        Consumers get `cancelled()`. Raises Refused: IN_USE, NOT_EMPTY, LOCKED."""

    def purge(self, name: str, *, owner: object) -> tuple[int, Position]:
        """Drop all ready messages. Raises Refused: NOT_FOUND, LOCKED."""

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

    def declare_subscription(self, name: str, address: Address) -> Position:
        """A durable queue of what matches `address` from now on, consumed like an AMQP queue under
        the name that `subscription_queue(name)` gives. Idempotent for equal words; DIFFERENT
        otherwise."""

    def delete_subscription(self, name: str) -> Position:
        """Delete; no error if there is none."""

    def subscription_queue(self, name: str) -> str:
        """The queue name to give to `consume`, `get` and `info`."""
