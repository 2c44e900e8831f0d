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
* A link and an alternate exchange carry messages as long as their owner may do what they do: read
  at the one end and publish at the other. It is asked when a route is made; a change of rights
  makes the routes invalid (`rights_changed`), so publishing pays nothing for it.
* A change of any binding that a walk may have seen makes all routes invalid that have a `Beyond`
  (`changed`): they are few, and are made anew when they are used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.access.owners import Owners
from broker.access.users import Change
from broker.beyond import Beyond
from broker.bindings import BindingKey
from broker.entities import Exchange, NamedQueue, everything_in, place_of
from broker.errors import Reason, Refused
from broker.header_index import HeaderIndex
from broker.header_match import HeaderPattern, Tagged
from broker.names import ROOT_EXCHANGE
from broker.notices import Notices
from broker.patterns import Patterns
from broker.port import REST, Words
from broker.queues.queue import Queue
from broker.routing import ROUTES_MAX, Router, words_of
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
        by: its owner, in whose name messages go over it (`access/owners.py`).
    """

    destination: str
    words: Words
    headers: HeaderPattern | None
    by: str = ""


class _Links:
    """The exchanges that are bound to one exchange."""

    __slots__ = ("by_headers", "by_key", "by_words")

    def __init__(self) -> None:
        self.by_key: dict[LinkKey, Link] = {}
        self.by_words: Patterns[LinkKey] = Patterns()
        self.by_headers: HeaderIndex[LinkKey] = HeaderIndex()


class _Bound:
    """The queues that are bound to one exchange.

    Attributes:
        keys: queue, routing key and arguments of each binding.
        by_words: the same by their patterns. (The router has them, too, but not by exchange, and
            an exchange with many bindings may be linked at any time.)
    """

    __slots__ = ("by_headers", "by_words", "keys")

    def __init__(self) -> None:
        self.keys: set[BindingKey] = set()
        self.by_headers: HeaderIndex[tuple[str, BindingKey]] = HeaderIndex()
        self.by_words: Patterns[Queue] = Patterns()


class _Walk:
    """What one walk has found, and how many exchanges it visited."""

    __slots__ = ("by_headers", "fallback", "queues", "walked")

    def __init__(self) -> None:
        self.walked = 0
        self.queues: dict[Queue, None] = {}  # a set that keeps its order
        self.fallback: dict[Queue, None] = {}
        self.by_headers = False


class ExchangeGraph:
    """The links and the headers bindings of one engine.

    Args:
        exchange: finds an exchange by its name.
        queues: all named queues; whoever owns them changes it.
        walked_max: exchanges that one message is led through.
    """

    def __init__(
        self,
        *,
        exchange: Callable[[str], Exchange | None],
        queues: Mapping[str, NamedQueue],
        router: Router[Target, TopicRoute],
        walked_max: int,
        owners: Owners,
        notices: Notices,
    ) -> None:
        self._walked_max = walked_max
        self._owners = owners
        self._notices = notices
        self._exchange = exchange
        self._queues = queues
        self._router = router
        self.link_count = 0
        self._owned: dict[str, int] = {}  # links and alternate exchanges, by owner
        self._links: dict[str, _Links] = {}  # by their source
        self._bound: dict[str, _Bound] = {}  # by exchange
        self._alternates: dict[str, str] = {}  # the owners of exchanges that have one
        self._routes: dict[Words, None] = {}  # those that have a `Beyond`

    # --- links ----------------------------------------------------------------------------

    def links(self, source: str) -> Mapping[LinkKey, Link]:
        """The exchanges that are bound to `source`."""
        links = self._links.get(source)
        return {} if links is None else links.by_key

    def sources(self) -> list[str]:
        """The exchanges that others are bound to."""
        return list(self._links)

    def links_of(self, name: str) -> Iterator[tuple[str, LinkKey]]:
        """(source, key) of the links to and from an exchange."""
        for source, links in self._links.items():
            for key in links.by_key:
                if name in (source, key[0]):
                    yield source, key

    def add_link(self, source: str, key: LinkKey, link: Link) -> None:
        """The exchange `source` has one more exchange bound to it."""
        links = self._links.setdefault(source, _Links())
        before = links.by_key.get(key)
        if before is None:
            self.link_count += 1
        else:
            self._count(before.by, -1)
        self._count(link.by, 1)
        links.by_key[key] = link
        if link.headers is None:
            links.by_words.add(link.words, key)
        else:
            links.by_headers.add(key, link.headers)
        self._begins(source)

    def remove_link(self, source: str, key: LinkKey) -> bool:
        """Returns False if there was none."""
        links = self._links.get(source)
        link = None if links is None else links.by_key.pop(key, None)
        if links is None or link is None:
            return False
        self.link_count -= 1
        self._count(link.by, -1)
        if link.headers is None:
            links.by_words.remove(link.words, key)
        else:
            links.by_headers.remove(key)
        if not links.by_key:
            del self._links[source]
        self.changed()
        return True

    # --- bindings of queues -----------------------------------------------------------------

    def bound_to(self, exchange: str) -> Collection[BindingKey]:
        """Queue, routing key and arguments of all bindings to an exchange that somebody chose."""
        bound = self._bound.get(exchange)
        return () if bound is None else bound.keys

    def headers_count(self, exchange: str) -> int:
        """How many of them look at headers."""
        bound = self._bound.get(exchange)
        return 0 if bound is None else len(bound.by_headers)

    def bind(
        self, queue: Queue, key: BindingKey, words: Words, headers: HeaderPattern | None
    ) -> None:
        """A queue is bound to the exchange that the key names."""
        exchange = key[0]
        bound = self._bound.setdefault(exchange, _Bound())
        bound.keys.add((queue.name, key[1], key[2]))
        if headers is not None:
            bound.by_headers.add((queue.name, key), headers)
            self._begins(exchange)
            return
        bound.by_words.add(words, queue)
        self.changed()

    def unbind(self, queue: Queue, key: BindingKey, words: Words, *, last: bool) -> None:
        """It is not any more.

        Args:
            last: whether no other binding of the queue has the same pattern.
        """
        bound = self._bound.get(key[0])
        if bound is None:
            return
        bound.keys.discard((queue.name, key[1], key[2]))
        bound.by_headers.remove((queue.name, key))
        if last or not self._is_bound(queue.name, key[0], words):
            bound.by_words.remove(words, queue)
        if not bound.keys:
            del self._bound[key[0]]
        self.changed()

    def _is_bound(self, queue: str, exchange: str, words: Words) -> bool:
        """Whether a binding of the queue to the exchange has this pattern. Looks at all of them."""
        bindings = self._queues[queue].bindings
        return any(key[0] == exchange and found == words for key, found in bindings.items())

    # --- exchanges --------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """An exchange is there, or has another owner."""
        if exchange.alternate is not None:
            self._count(self._alternates.get(exchange.name, ""), -1)
            self._alternates[exchange.name] = exchange.by
            self._count(exchange.by, 1)
        self.changed()

    def ended(self, exchange: Exchange) -> None:
        """An exchange is gone; its bindings went before."""
        self._count(self._alternates.pop(exchange.name, ""), -1)
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

    # --- rights ---------------------------------------------------------------------------

    def rights_changed(self, change: Change) -> None:
        """Rights of users have changed: if links are theirs, their routes are made anew."""
        if any(self._owners.concerned(owner, change) for owner in self._owned):
            self.changed()

    def passes(self, link: Link) -> bool:
        """Whether the link's owner may have it now."""
        return not link.by or self._owners.may_link(
            link.by, link.words, everything_in(link.destination)
        )

    def passes_alternate(self, exchange: Exchange) -> bool:
        """Whether the exchange's owner may have its alternate exchange, if it has one."""
        alternate = exchange.alternate
        if alternate is None or not exchange.by:
            return True
        return self._owners.may_link(exchange.by, (exchange.name, REST), everything_in(alternate))

    def stopped_count(self) -> int:
        """Links and alternate exchanges whose owner may not have them now (a metric)."""
        links = [link for links in self._links.values() for link in links.by_key.values()]
        exchanges = [self._exchange(name) for name in self._alternates]
        return sum(not self.passes(link) for link in links) + sum(
            exchange is not None and not self.passes_alternate(exchange) for exchange in exchanges
        )

    def _stopped(self, source: str, destination: str, by: str) -> None:
        self._notices.warn(
            "a link between exchanges is stopped: its owner lost a right",
            "links",
            source=source,
            destination=destination,
            owner=by.partition(":")[0],
        )

    def _count(self, owner: str, change: int) -> None:
        """The owner has so many links more."""
        if owner:
            count = self._owned.get(owner, 0) + change
            if count:
                self._owned[owner] = count
            else:
                del self._owned[owner]

    # --- routes ---------------------------------------------------------------------------

    def beyond(self, words: Words) -> Beyond | None:
        """What the messages of a route reach beyond the trie's patterns; None for nothing, now
        and whatever their headers are."""
        topic = words[0]
        if not (
            topic in self._links
            or self.headers_count(topic)
            or topic in self._alternates
            or ROOT_EXCHANGE in self._links
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
        if ROOT_EXCHANGE in self._links and topic != ROOT_EXCHANGE:
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
        """Look at an exchange and all that follow from it. Raises Refused: LIMIT.

        Args:
            is_start: its patterns are the route's own: the router has them.
        """
        seen = {start}
        work = deque((start,))
        while work:
            name = work.popleft()
            walk.walked += 1
            if walk.walked > self._walked_max:
                raise Refused(
                    Reason.LIMIT,
                    f"a message to exchange '{start}' is led through more than {self._walked_max} "
                    "exchanges: bind queues closer to it",
                )
            here = words_of(*place_of(name, key))
            first = is_start and name == start
            hits = self._hits(walk, name, here, headers, by_words=not first)
            found.update(dict.fromkeys(hits))
            destinations = []
            links = self._links.get(name)
            if links is not None:
                walk.by_headers = walk.by_headers or len(links.by_headers) > 0
                for found_key in (*links.by_words.match(here), *links.by_headers.match(headers)):
                    if self.passes(links.by_key[found_key]):
                        destinations.append(found_key[0])
                    else:
                        self._stopped(name, found_key[0], links.by_key[found_key].by)
            if not hits and not destinations and name in self._alternates:
                exchange = self._exchange(name)
                assert exchange is not None
                alternate = exchange.alternate
                assert alternate is not None
                if not self.passes_alternate(exchange):
                    self._stopped(name, alternate, exchange.by)
                elif first:  # whether something else matched is for the route to say
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

    def _hits(
        self,
        walk: _Walk,
        exchange: str,
        words: Words,
        headers: Mapping[str, Tagged],
        *,
        by_words: bool,
    ) -> list[Queue]:
        """The queues that are bound to an exchange by what matches."""
        bound = self._bound.get(exchange)
        if bound is None:
            return []
        if len(bound.by_headers):
            walk.by_headers = True
            return [self._queues[name].queue for name, _ in bound.by_headers.match(headers)]
        if not by_words:
            return []
        return list(dict.fromkeys(bound.by_words.match(words)))
