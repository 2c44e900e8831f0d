"""Topics: what they are set to, and how messages are published to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from polymq.broker.durability import Durability
from polymq.broker.port.infos import TopicInfo
from polymq.broker.port.publishing import Placed, Route, Template
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import EXTRA_NONE, Batch


class TopicPort(Protocol):
    """The operations on topics."""

    def infos(self) -> Sequence[TopicInfo]:
        """All user topics."""

    def info(self, name: str) -> TopicInfo | None:
        """One topic by the user's name."""

    def create(
        self, name: str, queue_count: int, settings: Mapping[str, str] | None = None
    ) -> Position:
        """Make a topic with a chosen number of queues, and settings by name where they are not
        the broker's defaults. Raises Refused: DIFFERENT (it exists), BAD_NAME, FORBIDDEN, LIMIT,
        BAD_ARGUMENT (a setting)."""

    def set(self, name: str, settings: Mapping[str, str]) -> Position:
        """Change settings of a topic; `default` as a value goes back to the broker's default.
        Raises Refused: NOT_FOUND, BAD_ARGUMENT."""

    def delete(self, name: str) -> Position:
        """Delete a topic with its messages' offsets. Raises Refused: NOT_FOUND."""

    def route(self, topic: str, tag: str | None) -> Route:
        """Where (topic, tag) goes; creates the topic on first use. Raises Refused."""

    def template(
        self,
        route: Route,
        *,
        properties: Mapping[str, str],
        extra_kind: int = EXTRA_NONE,
        extra_name: str = "",
        extra_keyed: bool = True,
        durability: Durability = Durability.FLUSHED,
        retain: bool = False,
        sharding: str = "",
        queue_id: int | None = None,
    ) -> Template:
        """How to store messages of one kind.

        Args:
            durability: what the messages should wait for. FLUSHED means: as safe as an ack has to
                be here, which is APPENDED where `page_cache` was chosen, and IN_SYNC where replicas
                have to have it (`Template.durability`).
            properties: constant properties by RocketMQ's names. `TAGS` is added by the engine.
                A time to live and a priority are one of them: `ttl_property`.
                Values may hold any character but 0x01 and 0x02.
            extra_kind, extra_name: how each row's extra bytes are stored
                (`core_log.kernels.batch`); `PMQ_AMQP` with EXTRA_BASE64 for AMQP's properties.
            extra_keyed: whether a row's extra bytes may have a key (AMQP's message id). What
                surely has none is nothing for the key index to look at.
            retain: the last message of each run replaces the topic's retained message; an empty
                body removes it.
            sharding: messages with the same value go to the same queue of the topic, in order.
            queue_id: which of the topic's queues; None: as `sharding` says. Raises Refused:
                BAD_ARGUMENT if there is no such queue.
        """

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """As `BrokerPort.publish`, and says where the messages are.

        Args:
            born_ms: when their sender made them.
        """
