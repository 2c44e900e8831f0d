"""Routes: one (topic, tag), and everything that its messages reach.

What `routing/trie.py` finds in the trie, sorted into what the publish path needs, with what
`exchanges/graph.py` finds beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, Protocol

from polymq.broker.kernels.targets import LiveTarget
from polymq.broker.port.values import Address
from polymq.broker.queues.queue import Queue
from polymq.broker.routing.header_match import Tagged
from polymq.broker.routing.trie import CachedRoute, Router
from polymq.broker.topics.beyond import Beyond

Target = Queue | LiveTarget

NUMBER: Final = attrgetter("number")
NOTHING_BEYOND: Final = Beyond((), (), by_headers=False)


class RouteGraph(Protocol):
    """What finds the ways that the trie does not have (`exchanges/graph.py`)."""

    def beyond(self, route: TopicRoute) -> Beyond | None:
        """What messages of a new route reach beyond the trie's patterns."""

    def branch(self, route: TopicRoute, headers: Mapping[str, Tagged]) -> TopicRoute:
        """The part of a route that messages with these headers take."""


class TopicRoute(CachedRoute[Target]):
    """One (topic, tag): who gets its messages.

    Attributes:
        live: live subscriptions that match.
        queues: all queues that do: made anew with every change, so that who derives something from
            it sees whether it is still the same.
    """

    __slots__ = ("beyond", "durable", "router", "tag", "topic", "volatile")

    queues: tuple[Queue, ...]

    def __init__(self, address: Address, router: Router[Target, TopicRoute]) -> None:
        super().__init__(address)
        self.router = router
        self.topic = address[0]
        self.tag = ".".join(address[1:]) if len(address) > 1 else None
        self.durable: tuple[Queue, ...] = ()
        self.volatile: tuple[Queue, ...] = ()
        self.beyond: Beyond | None = None
        """What it reaches beyond the trie's patterns; most routes have none."""

    def exact_changed(self) -> None:
        """Of its branches, too: some are asked before the route is used."""
        super().exact_changed()
        if self.beyond is not None:
            self.beyond.base_changed()

    def targets_changed(self) -> None:
        """Sort the targets into what the publish path needs."""
        queues = [target for target in self.counts if isinstance(target, Queue)]
        if self.beyond is not None:
            queues += self.beyond.more(self.counts)
            self.beyond.base_changed()
        self._sort(queues)

    def _sort(self, queues: Sequence[Queue]) -> None:
        self.durable = tuple(sorted([queue for queue in queues if queue.durable], key=NUMBER))
        self.volatile = tuple([queue for queue in queues if not queue.durable])
        self.live = tuple([target for target in self.counts if not isinstance(target, Queue)])
        self.queues = self.durable + self.volatile

    @property
    def routed(self) -> bool:
        """See `port.Route`."""
        self.router.refresh(self)
        return bool(self.queues or self.live) or self.by_headers

    @property
    def by_headers(self) -> bool:
        """See `port.Route`."""
        return self.beyond is not None and self.beyond.by_headers


class OwnRoute(TopicRoute):
    """A route to the topic's own queue and to live subscribers, whatever queue is bound: nothing
    in a record depends on who reads it. For one use, never cached."""

    __slots__ = ()

    def _sort(self, queues: Sequence[Queue]) -> None:
        super()._sort(())


class Copying(TopicRoute):
    """A route that takes in further queues: for one use, never cached.

    Args:
        copies: they get its messages, too.
    """

    __slots__ = ("base", "copies")

    def __init__(
        self, base: TopicRoute, router: Router[Target, TopicRoute], copies: tuple[Queue, ...]
    ) -> None:
        super().__init__(base.address, router)
        self.base = base
        self.copies = copies
        beyond = base.beyond or NOTHING_BEYOND
        queues = tuple(dict.fromkeys((*beyond.queues, *copies)))
        self.beyond = Beyond(queues, beyond.fallback, by_headers=beyond.by_headers)


class Detour(TopicRoute):
    """A route that leaves some queues out: for one use, never cached."""

    __slots__ = ("base", "skipped")

    def __init__(
        self, base: TopicRoute, router: Router[Target, TopicRoute], skipped: frozenset[Queue]
    ) -> None:
        super().__init__(base.address, router)
        self.base = base
        self.skipped = skipped
        beyond = base.beyond
        if beyond is not None:
            self.beyond = Beyond(beyond.queues, beyond.fallback, by_headers=beyond.by_headers)

    def _sort(self, queues: Sequence[Queue]) -> None:
        super()._sort([queue for queue in queues if queue not in self.skipped])
