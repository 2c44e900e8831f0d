"""What is published: routes, templates, and runs of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from polymq.broker.durability import Durability
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch


class Route(Protocol):
    """Where messages of one (topic, tag) go. Lives as long as its topic; patched in place."""

    @property
    def topic(self) -> str:
        """The user's name of the topic (decoded)."""

    @property
    def tag(self) -> str | None:
        """In dot form; None where the message has none."""

    @property
    def routed(self) -> bool:
        """Whether a queue or a live subscriber would get a message now (AMQP `mandatory`). Where
        this depends on headers, whether one could: `ExchangePort.is_routed` tells
        for each message."""

    @property
    def by_headers(self) -> bool:
        """Whether it depends on the headers of a message where it goes."""


class Template(Protocol):
    """How one kind of message on one route is stored. Built once, used for many runs."""

    @property
    def route(self) -> Route:
        """The route that it was built for."""

    @property
    def durability(self) -> Durability:
        """What its messages wait for, and so their acks: what was asked for, or less where
        `page_cache` was chosen for the topic or the broker, or more where `min_in_sync` was."""

    @property
    def valid(self) -> bool:
        """False once its topic or exchange was deleted, or the topic's settings were changed:
        build a new one."""

    @property
    def rows_at_once(self) -> int:
        """How many rows one call of `publish` should have, so that it does not stop the loop: few
        where each message goes to many queues."""

    @property
    def queues(self) -> Sequence[object]:
        """The queues that took the run that was just published."""

    @property
    def overflowed(self) -> int:
        """How many messages of the run that was just published a full queue did not take
        (`x-overflow`). They are stored, and in all other queues."""

    @property
    def refused(self) -> Sequence[tuple[int, int]]:
        """Which: rows [first, last) of the batch, in order."""


class Publish(Protocol):
    """How runs are published (`BrokerPort.publish`)."""

    def __call__(self, template: Template, batch: Batch, first: int, last: int, /) -> Position:
        """Append rows [first, last) of the batch: all or none.

        Returns:
            The position that their ack waits for (with the template's durability).

        Raises:
            Refused: TOO_LARGE (a body or its properties), LIMIT, READ_ONLY, STORAGE_FULL. Nothing
                was stored and no offset was taken.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Rows [first, last) of a batch, to be stored as `template` says: a part of a transaction.

    Attributes:
        delay_ms: how long after the commit they are due. What waits until then goes with the
            exchange of the topic's name, as with `by_exchange` of
            `DelayPort.publish_later`.
    """

    template: Template
    batch: Batch
    first: int
    last: int
    delay_ms: int = 0


class Placed(NamedTuple):
    """Where a run of messages was stored.

    Attributes:
        position: what the ack waits for, with the template's durability.
        offset: of the first in the topic's own queue; the others follow.
        positions: the byte position of each record.
    """

    position: Position
    offset: int
    positions: tuple[int, ...]
