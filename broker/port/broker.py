"""All operations of the broker together: what a client has from its login on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polymq.broker.durability import Durability
from polymq.broker.port.delays import DelayPort
from polymq.broker.port.documents import DocumentPort
from polymq.broker.port.exchanges import ExchangePort
from polymq.broker.port.groups import GroupPort
from polymq.broker.port.principals import AdmissionPort, PrincipalPort
from polymq.broker.port.publishing import Publish
from polymq.broker.port.queries import QueryPort
from polymq.broker.port.queues import QueuePort
from polymq.broker.port.sessions import SessionPort
from polymq.broker.port.storage import StoragePort
from polymq.broker.port.topics import TopicPort
from polymq.broker.port.transactions import HalfMessagePort, TransactionPort
from polymq.broker.port.values import Position


class WhenCommitted(Protocol):
    """How one waits for a commit point (`BrokerPort.when_committed`)."""

    def __call__(
        self,
        position: Position,
        durability: Durability,
        callback: Callable[..., None],
        /,
        *args: object,
    ) -> None:
        """Call back once `position` is committed; at once if it is already.

        After a storage failure, callbacks of uncommitted positions never run.
        """


class BrokerPort(Protocol):
    """What gateways call: operations by what they are about, each done by the part of the broker
    that has it, or by what asks for the right to it first. What is asked for every run of messages
    stands here."""

    @property
    def publish(self) -> Publish:
        """Publish a run of rows: see `Publish`."""

    @property
    def when_committed(self) -> WhenCommitted:
        """Wait for a commit point: see `WhenCommitted`."""

    @property
    def committed(self) -> Callable[[Position, Durability], bool]:
        """Whether `when_committed` would call back at once."""

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """Whether the disk is behind, so that a publisher's socket should not be read for now.

        If so, `resume` is called once it has caught up. Ask after each read that published.
        """

    @property
    def state_durability(self) -> Durability:
        """What the answer to a change of state waits for (declare, bind, SUBSCRIBE, documents):
        FLUSHED, or IN_SYNC where the broker itself asks for replicas. Never changes."""

    @property
    def topics(self) -> TopicPort:
        """Topics."""

    @property
    def exchanges(self) -> ExchangePort:
        """Exchanges and bindings."""

    @property
    def queues(self) -> QueuePort:
        """Queues that have a name."""

    @property
    def sessions(self) -> SessionPort:
        """MQTT's sessions."""

    @property
    def delays(self) -> DelayPort:
        """Messages that are due later."""

    @property
    def transactions(self) -> TransactionPort:
        """Atomic batches."""

    @property
    def half_messages(self) -> HalfMessagePort:
        """RocketMQ's half messages."""

    @property
    def queries(self) -> QueryPort:
        """Reading without a consumer."""

    @property
    def groups(self) -> GroupPort:
        """Consumer groups."""

    @property
    def documents(self) -> DocumentPort:
        """A gateway's own settings."""

    @property
    def storage(self) -> StoragePort:
        """The log and its disk."""

    @property
    def admission(self) -> AdmissionPort:
        """Who comes in."""

    @property
    def principal(self) -> PrincipalPort:
        """Whose port this is, and what it may do."""
