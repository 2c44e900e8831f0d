"""Messages that nobody sees before they are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from polymq.broker.port.publishing import Placed, Template
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch


class DelayPort(Protocol):
    """The operations on delayed messages."""

    def publish_later(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """As `BrokerPort.publish`, but nobody sees the messages before they are due.

        They are stored and acknowledged now, and routed when they are due. A time that has passed
        means at once.

        Args:
            delay_ms: so long from now; or
            deliver_ms: at this time, in milliseconds since the epoch.
            by_exchange: whether an exchange of the topic's name delays them: if that ends before
                they are due, they are dropped.

        Raises:
            Refused: as `BrokerPort.publish`; BAD_ARGUMENT also for a time more than a year ahead,
                LIMIT for too many messages that wait.
        """

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, deliver_ms: int
    ) -> Placed:
        """`publish_later`, and where the records are. The offset of messages that wait is 0: they
        get theirs when they are due. Raises Refused as `publish_later`."""

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """When a message that has these properties of RocketMQ's (`DELAY`, `TIMER_DELAY_SEC`,
        `TIMER_DELAY_MS`, `TIMER_DELIVER_MS`) is to be delivered; None for at once. Raises Refused:
        BAD_ARGUMENT for a value that is no number."""
