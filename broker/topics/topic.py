"""A topic, and the templates of messages in it.

A template is one kind of message on one route. What is derived from the route is kept with it, and
brought up to date before a run is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from polymq.broker.durability import FLUSHED, Durability
from polymq.broker.kernels.path import PlainTemplate
from polymq.broker.messages.runs import RunMeta
from polymq.broker.port.infos import TopicInfo
from polymq.broker.port.values import Position
from polymq.broker.queues.gates import Gate
from polymq.broker.queues.queue import Queue
from polymq.broker.routing.trie import Router
from polymq.broker.topics.gated import publish_gated
from polymq.broker.topics.header_routing import TemplateBranches, publish_by_headers
from polymq.broker.topics.routes import Target, TopicRoute
from polymq.broker.topics.settings import TopicSettings, Value
from polymq.core_log.kernels.batch import Batch
from polymq.core_log.queue_index import Index
from polymq.core_log.record import RecordTemplate

if TYPE_CHECKING:
    from polymq.broker.topics.topics import Topics

TARGETS_AT_ONCE: Final = 8192
"""Messages times queues of one publish: some 5 ms."""
BRANCHING_AT_ONCE: Final = 64
"""Messages of one publish where each has to be asked by its headers where it goes."""


class SpecialPublish(Protocol):
    """Publishes rows that may not all go the same way: `Topics.publish` without its checks."""

    def __call__(
        self,
        topics: Topics,
        template: TopicTemplate,
        batch: Batch,
        first: int,
        last: int,
        record: RecordTemplate | None,
        born_ms: int | None,
        /,
    ) -> Position:
        """Raises Refused."""


class Topic:
    """A topic and its own queues."""

    __slots__ = (
        "exchange_deleted",
        "exchange_ended_at",
        "first_offsets",
        "incarnation",
        "name",
        "own_values",
        "queues",
        "settings",
        "stored",
    )

    def __init__(
        self,
        name: str,
        stored: str,
        queues: list[Queue],
        incarnation: int,
        first_offsets: Sequence[int],
        own_values: Mapping[str, Value],
        settings: TopicSettings,
    ) -> None:
        self.name = name
        self.stored = stored
        self.queues = queues
        self.incarnation = incarnation
        self.first_offsets = first_offsets
        """Where retention lets each queue begin. Empty: it has taken nothing yet."""
        self.own_values = own_values
        """Settings that somebody chose for this topic."""
        self.settings = settings
        """What holds for it: its own values, the broker's defaults for the rest."""
        self.exchange_deleted = False
        self.exchange_ended_at = 0
        """AMQP clients deleted the exchange of this name, so the topic is none by itself."""

    def settings_changed(self) -> None:
        """Tell the topic's queues what follows for them."""
        for queue in self.queues:
            queue.read_point = self.settings.read_point

    def info(self) -> TopicInfo:
        """As the port tells it."""
        return TopicInfo(
            name=self.name,
            min_offsets=tuple(queue.index.first_offset for queue in self.queues),
            max_offsets=tuple(queue.flushed for queue in self.queues),
            incarnation=self.incarnation,
            settings=self.settings.values(),
            own_settings=tuple(self.own_values),
        )


class TopicTemplate(PlainTemplate):
    """One kind of message on one route."""

    __slots__ = (
        "branches",
        "gates",
        "named",
        "overflowed",
        "private",
        "refused",
        "retain",
        "special",
        "targets",
        "topic",
    )

    route: TopicRoute
    queue: Queue
    queues: tuple[Queue, ...]

    def __init__(
        self,
        *,
        route: TopicRoute,
        topic: Topic,
        queue: Queue,
        record: RecordTemplate,
        meta: RunMeta,
        durability: Durability,
        retain: bool,
    ) -> None:
        super().__init__(route, queue, record, meta, durability)
        self.topic: Topic | None = topic
        self.retain = retain
        self.named: tuple[Queue, ...] = ()
        """The queues that a record of this template names, the topic's own first."""
        self.targets: tuple[Index, ...] = ()
        """Their indexes."""
        self.private: tuple[Index, ...] = ()
        """The indexes of all queues but the topic's own."""
        self.gates: tuple[tuple[Queue, Gate], ...] = ()
        """Those that may refuse a message."""
        self.overflowed = 0
        self.refused: Sequence[tuple[int, int]] = ()
        self.special: SpecialPublish | None = None
        """How messages are published to its queues, where not all rows may go the same way."""
        self.branches = TemplateBranches() if route.by_headers else None
        """Where messages go by their headers, if they do."""

    def refresh(self, router: Router[Target, TopicRoute]) -> None:
        """Bring the route and what follows from it up to date: before each run. Raises Refused."""
        route = self.route
        if route.version != router.version:
            router.refresh(route)
        if self.derived_from is not route.queues:
            if self.meta.ttl_code:
                for queue in route.queues:
                    if queue.on_expiring is not None and not queue.expiring:
                        queue.on_expiring(queue)
            durable, volatile = route.durable, route.volatile
            # Comprehensions, not generators: there may be ten thousand queues.
            if [True for queue in route.queues if queue.levels is not None]:
                durable = self._at_their_level(durable)
                volatile = self._at_their_level(volatile)
            self.derived_from = route.queues
            self.private = tuple([queue.index for queue in durable + volatile])
            self.gates = tuple(
                [(queue, queue.gate) for queue in route.queues if queue.gate is not None]
            )
            self.set_refused(())
            self.special = publish_gated if self.gates else None
            if self.branches is not None:
                self.special = publish_by_headers
            self.named = (self.queue, *durable)
            self.targets = (self.queue.index, *self.private[: len(durable)])
            self.queues = (*self.named, *volatile)
            ordinary = self.special is None and not self.private and not self.retain
            self.plain = ordinary and self.durability <= FLUSHED

    @property
    def rows_at_once(self) -> int:
        """See `port.Template`."""
        if self.branches is not None:
            return BRANCHING_AT_ONCE
        route = self.route
        if route.version != route.router.version:
            route.router.refresh(route)
        return TARGETS_AT_ONCE // (1 + len(route.queues)) or 1

    def set_refused(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Rows [first, last) of the batch that was published which a full queue did not take."""
        self.refused = stretches
        self.overflowed = sum(last - first for first, last in stretches)

    def _at_their_level(self, queues: Sequence[Queue]) -> tuple[Queue, ...]:
        """The queues, priority queues by what they have for the priority of these messages."""
        priority = self.meta.priority
        return tuple(
            queue if queue.levels is None else queue.levels.queue_for(priority) for queue in queues
        )
