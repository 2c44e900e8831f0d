"""Which queues a message reaches beyond the patterns on its own place: by way of exchanges that are
bound to exchanges, by its headers, and by alternate exchanges.

Theory. A binding of a queue to an exchange is a pattern in the trie, and most messages need no more
than that. Three things have no place there, and are found by walking a graph:

* a *link*: an exchange that is bound to another. What matches the link at its source is looked at
  as if it had been published to the destination, with the same routing key;
* a *headers binding*, which looks at the message's headers instead of its key;
* an *alternate exchange*: it is looked at when nothing at all matched at an exchange.

The walk visits each exchange once, so cycles end. It begins at the topic's exchange, and at the
root `amq.topic`, which sees every topic.

What a walk finds is kept at the route as its `Beyond`. Where headers were looked at, messages of
one route may go different ways: each outcome is a route of its own, a *branch* (`branch`).

Rules:

* Only queues that were bound to an exchange by AMQP are reached in this way. A message belongs to
  the topic that it was published to: subscriptions of MQTT and HTTP, and readers by offset, find it
  there and nowhere else.
* A change of any binding that a walk may have seen makes all routes invalid that have a `Beyond`
  (`changed`): they are few, and are made anew when they are used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.beyond import Beyond
from broker.bindings import BindingKey
from broker.entities import Exchange, NamedQueue, place_of
from broker.header_match import HeaderPattern, Tagged
from broker.names import ROOT_EXCHANGE
from broker.port import Words
from broker.queues.queue import Queue
from broker.routing import ROUTES_MAX, Router, matches, words_of
from broker.topic_routes import Target, TopicRoute

BRANCHES_MAX: Final = 1_024
"""Outcomes that one route keeps; beyond that all are forgotten, and found again with use."""

LinkKey = tuple[str, str, str]
"""Destination, routing key, arguments as canonical text."""


@dataclass(frozen=True, slots=True)
class Link:
    """An exchange that is bound to another.

    Attributes:
        words: the pattern at the source.
        headers: what the source compares, if it is a headers exchange.
    """

    destination: str
    words: Words
    headers: HeaderPattern | None


class _Walk:
    """What one walk has found."""

    __slots__ = ("by_headers", "fallback", "queues")

    def __init__(self) -> None:
        self.queues: dict[Queue, None] = {}  # a set that keeps its order
        self.fallback: dict[Queue, None] = {}
        self.by_headers = False


class ExchangeGraph:
    """The links and the headers bindings of one engine.

    Args:
        exchange: finds an exchange by its name.
        queues: all named queues; whoever owns them changes it.
    """

    def __init__(
        self,
        *,
        exchange: Callable[[str], Exchange | None],
        queues: Mapping[str, NamedQueue],
        router: Router[Target, TopicRoute],
    ) -> None:
        self._exchange = exchange
        self._queues = queues
        self._router = router
        self.links: dict[str, dict[LinkKey, Link]] = {}
        """By their source."""
        self._headers: dict[str, dict[tuple[str, BindingKey], HeaderPattern]] = {}
        self._alternates: set[str] = set()  # exchanges that have one
        self._routes: dict[Words, None] = {}  # those that have a `Beyond`

    # --- changes --------------------------------------------------------------------------

    def add_link(self, source: str, key: LinkKey, link: Link) -> None:
        """The exchange `source` has one more exchange bound to it."""
        self.links.setdefault(source, {})[key] = link
        self._begins(source)

    def remove_link(self, source: str, key: LinkKey) -> bool:
        """Returns False if there was none."""
        links = self.links.get(source, {})
        if links.pop(key, None) is None:
            return False
        if not links:
            del self.links[source]
        self.changed()
        return True

    def add_headers(self, queue: str, key: BindingKey, pattern: HeaderPattern) -> None:
        """A queue is bound to the headers exchange that the key names."""
        self._headers.setdefault(key[0], {})[queue, key] = pattern
        self._begins(key[0])

    def remove_headers(self, queue: str, key: BindingKey) -> None:
        """It is not any more."""
        bound = self._headers.get(key[0])
        if bound is not None and bound.pop((queue, key), None) is not None:
            if not bound:
                del self._headers[key[0]]
            self.changed()

    def declared(self, exchange: Exchange) -> None:
        """An exchange is there."""
        if exchange.alternate is not None:
            self._alternates.add(exchange.name)
        self.changed()

    def ended(self, exchange: Exchange) -> None:
        """An exchange is gone; its bindings went before."""
        self._alternates.discard(exchange.name)
        self.changed()

    def _begins(self, source: str) -> None:
        """Messages of this exchange have to be looked at that maybe were not until now."""
        if source == ROOT_EXCHANGE:
            self._router.forget_all()
            self._routes.clear()
        else:
            self._router.forget_topic(source)
            self.changed()

    def changed(self) -> None:
        """Something that walks look at has changed: nobody may use their routes any more."""
        for words in self._routes:
            self._router.forget(words)
        self._routes.clear()

    def links_of(self, name: str) -> Iterator[tuple[str, LinkKey]]:
        """(source, key) of the links to and from an exchange."""
        for source, links in self.links.items():
            for key in links:
                if name in (source, key[0]):
                    yield source, key

    # --- routes ---------------------------------------------------------------------------

    def beyond(self, words: Words) -> Beyond | None:
        """What the messages of a route reach beyond the trie's patterns; None for nothing, now
        and whatever their headers are."""
        topic = words[0]
        if not (
            topic in self.links
            or topic in self._headers
            or topic in self._alternates
            or ROOT_EXCHANGE in self.links
        ):
            return None
        walk = self._walk(words, {})
        if len(self._routes) >= ROUTES_MAX:
            self.changed()
        self._routes[words] = None
        return Beyond(tuple(walk.queues), tuple(walk.fallback), by_headers=walk.by_headers)

    def branch(self, route: TopicRoute, headers: Mapping[str, Tagged]) -> TopicRoute:
        """The route of those messages of a route that have these headers."""
        beyond = route.beyond
        assert beyond is not None
        assert beyond.by_headers
        walk = self._walk(route.words, headers)
        found = Beyond(tuple(walk.queues), tuple(walk.fallback), by_headers=False)
        outcome = found.queues, found.fallback
        branch = beyond.branches.get(outcome)
        if branch is None:
            branch = TopicRoute(route.words, self._router)
            branch.beyond = found
            if len(beyond.branches) >= BRANCHES_MAX:
                beyond.branches.clear()
            beyond.branches[outcome] = branch
        return branch

    # --- the walk -------------------------------------------------------------------------

    def _walk(self, words: Words, headers: Mapping[str, Tagged]) -> _Walk:
        walk = _Walk()
        topic, tag = words[0], ".".join(words[1:])
        self._visit(walk, topic, tag, headers, found=walk.queues, is_start=True)
        if ROOT_EXCHANGE in self.links and topic != ROOT_EXCHANGE:
            first = topic.replace(".", "/")  # as `place_of` reads it
            key = f"{first}.{tag}" if len(words) > 1 else first
            self._visit(walk, ROOT_EXCHANGE, key, headers, found=walk.queues, is_start=True)
        if walk.queues:
            walk.fallback.clear()
        return walk

    def _visit(
        self,
        walk: _Walk,
        start: str,
        key: str,
        headers: Mapping[str, Tagged],
        *,
        found: dict[Queue, None],
        is_start: bool,
    ) -> None:
        """Look at an exchange and all that follow from it.

        Args:
            is_start: its patterns are the route's own: they are in the trie.
        """
        seen = {start}
        work = deque((start,))
        while work:
            name = work.popleft()
            here = words_of(*place_of(name, key))
            first = is_start and name == start
            hits = [] if first else list(self._bound(name, here))
            for (queue, _), pattern in self._headers.get(name, {}).items():
                walk.by_headers = True
                if pattern.matches(headers):
                    hits.append(self._queues[queue].queue)
            found.update(dict.fromkeys(hits))
            destinations = []
            for link in self.links.get(name, {}).values():
                walk.by_headers = walk.by_headers or link.headers is not None
                if link.headers.matches(headers) if link.headers else matches(link.words, here):
                    destinations.append(link.destination)
            if not hits and not destinations and name in self._alternates:
                exchange = self._exchange(name)
                assert exchange is not None
                alternate = exchange.alternate
                assert alternate is not None
                if first:  # whether something else matched is for the route to say
                    if self._exchange(alternate) is not None:
                        self._visit(
                            walk, alternate, key, headers, found=walk.fallback, is_start=False
                        )
                elif self._exchange(alternate) is not None:
                    destinations.append(alternate)
            for destination in destinations:
                if destination not in seen:
                    seen.add(destination)
                    work.append(destination)

    def _bound(self, exchange: str, words: Words) -> Iterator[Queue]:
        """The queues that are bound to an exchange by a pattern that matches."""
        if exchange in self._headers:
            return
        for target in self._router.match(words):
            if not isinstance(target, Queue) or not target.name:
                continue
            named = self._queues.get(target.name)
            if named is not None and any(
                key[0] == exchange and matches(pattern, words)
                for key, pattern in named.bindings.items()
            ):
                yield target
