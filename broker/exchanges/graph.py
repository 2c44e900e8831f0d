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

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from polymq.broker.accounts.owners import Owners
from polymq.broker.accounts.users import Change
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import Exchange, everything_in, topic_and_tag
from polymq.broker.names import ROOT_EXCHANGE
from polymq.broker.notices import Notices
from polymq.broker.pacing.sweeping import Sweeper
from polymq.broker.port.values import REST, Address
from polymq.broker.queues.queue import Queue
from polymq.broker.routing.bindings import BindingKey
from polymq.broker.routing.header_index import HeaderIndex
from polymq.broker.routing.header_match import HeaderPattern, Tagged
from polymq.broker.routing.patterns import Patterns
from polymq.broker.routing.trie import ROUTES_MAX, Router, address_of
from polymq.broker.topics.beyond import Beyond
from polymq.broker.topics.routes import Target, TopicRoute

BRANCHES_MAX: Final = 1_024
"""Outcomes that one route keeps; beyond that all are forgotten, and found again with use."""

LinkKey = tuple[str, str, str]
"""Destination, routing key, arguments as canonical text."""
BoundKey = tuple[Queue, str, str]
"""Queue, routing key, arguments as canonical text."""


@dataclass(frozen=True, slots=True)
class Link:
    """An exchange that is bound to another.

    Attributes:
        address: the pattern at the source.
        headers: what the source compares, if it is a headers exchange.
        by: its owner, in whose name messages go over it (`accounts/owners.py`).
    """

    destination: str
    address: Address
    headers: HeaderPattern | None
    by: str = ""


class _Links:
    """The exchanges that are bound to one exchange."""

    __slots__ = ("by_address", "by_headers", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[LinkKey, Link] = {}
        self.by_address: Patterns[LinkKey] = Patterns()
        self.by_headers: HeaderIndex[LinkKey] = HeaderIndex()


class _Bound:
    """The queues that are bound to one exchange. The router has the patterns of those that are
    bound by levels.

    Attributes:
        keys: queue, routing key and arguments of each binding.
        gone: how many of those are of queues that are forgotten, and not swept out yet.
        alike: how many bindings of a queue have the same pattern, where they are several.
    """

    __slots__ = ("alike", "by_headers", "gone", "keys")

    def __init__(self) -> None:
        self.keys: dict[BoundKey, None] = {}  # a set that keeps its order
        self.gone = 0
        self.by_headers: HeaderIndex[BoundKey] = HeaderIndex()
        self.alike: dict[tuple[Queue, Address], int] = {}


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
        walked_max: exchanges that one message is led through.
    """

    def __init__(
        self,
        *,
        exchange: Callable[[str], Exchange | None],
        router: Router[Target, TopicRoute],
        walked_max: int,
        owners: Owners,
        notices: Notices,
        sweeper: Sweeper,
    ) -> None:
        self._walked_max = walked_max
        self._owners = owners
        self._notices = notices
        self._exchange = exchange
        self._sweeper = sweeper
        self._router = router
        self.link_count = 0
        self._owned: dict[str, int] = {}  # links and alternate exchanges, by owner
        self._links: dict[str, _Links] = {}  # by their source
        self._links_to: dict[str, dict[tuple[str, LinkKey], None]] = {}  # by their destination
        self._bound: dict[str, _Bound] = {}  # by exchange
        self._alternates: dict[str, str] = {}  # the owners of exchanges that have one
        self._routes: list[TopicRoute] = []  # those that have a `Beyond`

    # --- links ----------------------------------------------------------------------------

    def links(self, source: str) -> Mapping[LinkKey, Link]:
        """The exchanges that are bound to `source`."""
        links = self._links.get(source)
        return {} if links is None else links.by_key

    def sources(self) -> list[str]:
        """The exchanges that others are bound to."""
        return list(self._links)

    def sources_of(self, name: str) -> set[str]:
        """The exchanges that this one is bound to."""
        return {source for source, _ in self._links_to.get(name, ())}

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
        self._links_to.setdefault(link.destination, {})[source, key] = None
        if link.headers is None:
            links.by_address.add(link.address, key)
        else:
            links.by_headers.add(key, link.headers)
        self._begins(source)

    def remove_link(self, source: str, key: LinkKey) -> bool:
        """Returns False if there was none."""
        links = self._links.get(source)
        link = None if links is None else links.by_key.pop(key, None)
        if links is None or link is None:
            return False
        self._uncount_link(source, key, link)
        if link.headers is None:
            links.by_address.remove(link.address, key)
        else:
            links.by_headers.remove(key)
        if not links.by_key:
            del self._links[source]
        self.changed()
        return True

    def _uncount_link(self, source: str, key: LinkKey, link: Link) -> None:
        self.link_count -= 1
        self._count(link.by, -1)
        to = self._links_to[link.destination]
        del to[source, key]
        if not to:
            del self._links_to[link.destination]

    def _drop_links(self, name: str) -> None:
        """An exchange is gone, and all links from it and to it. The patterns of the latter stay
        until they are swept out."""
        ended = self._links.pop(name, None)
        if ended is not None:
            for key, link in ended.by_key.items():
                self._uncount_link(name, key, link)
        left: list[tuple[_Links, LinkKey, Link]] = []
        for source, key in list(self._links_to.get(name, ())):
            links = self._links[source]
            link = links.by_key.pop(key)
            self._uncount_link(source, key, link)
            if links.by_key:
                left.append((links, key, link))
            else:
                del self._links[source]
        if left:
            self._sweeper.add(_sweep_links(left))

    # --- bindings of queues -----------------------------------------------------------------

    def bound_exchanges(self) -> list[str]:
        """The exchanges that have such bindings."""
        return list(self._bound)

    def bound_count(self, exchange: str) -> int:
        """How many bindings of queues to an exchange there are."""
        bound = self._bound.get(exchange)
        return 0 if bound is None else len(bound.keys) - bound.gone

    def bound_to(self, exchange: str) -> Iterator[BindingKey]:
        """The names of their queues, their routing keys and arguments."""
        bound = self._bound.get(exchange)
        for queue, routing_key, arguments in () if bound is None else bound.keys:
            if queue not in self._router.forgotten:
                yield queue.name, routing_key, arguments

    def is_bound(self, queue: Queue, key: BindingKey) -> bool:
        """Whether the queue has this binding to the exchange that the key names. One that ended
        with its exchange stands at its queue until it is swept out."""
        bound = self._bound.get(key[0])
        return bound is not None and (queue, key[1], key[2]) in bound.keys

    def headers_count(self, exchange: str) -> int:
        """How many of them look at headers."""
        bound = self._bound.get(exchange)
        return 0 if bound is None else len(bound.by_headers)

    def bind(
        self, queue: Queue, key: BindingKey, address: Address, headers: HeaderPattern | None
    ) -> None:
        """A queue is bound to the exchange that the key names."""
        exchange = key[0]
        bound = self._bound.setdefault(exchange, _Bound())
        bound_key = (queue, key[1], key[2])
        if bound_key in bound.keys:
            return
        bound.keys[bound_key] = None
        if headers is not None:
            bound.by_headers.add(bound_key, headers)
            self._begins(exchange)
            return
        if not self._router.subscribe(address, queue, exchange):
            bound.alike[queue, address] = bound.alike.get((queue, address), 1) + 1
        self.changed()

    def unbind(self, queue: Queue, key: BindingKey, address: Address) -> None:
        """It is not any more."""
        exchange = key[0]
        bound = self._bound.get(exchange)
        bound_key = (queue, key[1], key[2])
        if bound is None or bound_key not in bound.keys:
            return
        bound.keys.pop(bound_key, None)
        if not bound.by_headers.remove(bound_key):
            alike = bound.alike.pop((queue, address), 1)
            if alike == 1:
                self._router.unsubscribe(address, queue, exchange)
            elif alike > 2:
                bound.alike[queue, address] = alike - 1
        if not bound.keys:
            del self._bound[exchange]
        self.changed()

    def forget_queue(self, queue: Queue, bindings: Collection[tuple[BindingKey, Address]]) -> None:
        """A queue with all of these bindings is gone. They stay until they are swept out."""
        self._router.forget_target(queue)
        exchanges = {key[0] for key, _ in bindings}
        found = {exchange: self._bound.get(exchange) for exchange in exchanges}
        for key, _ in bindings:
            bound = found[key[0]]
            if bound is not None and (queue, key[1], key[2]) in bound.keys:
                bound.gone += 1
        self.changed()
        self._sweeper.add(self._sweep_queue(queue, bindings, found))

    def _sweep_queue(
        self,
        queue: Queue,
        bindings: Collection[tuple[BindingKey, Address]],
        found: Mapping[str, _Bound | None],
    ) -> Iterator[None]:
        """Args: found: where the queue was bound. One whose exchange is gone is left alone."""
        for key, address in bindings:
            exchange, bound = key[0], found[key[0]]
            bound_key = (queue, key[1], key[2])
            if exchange and (bound is None or self._bound.get(exchange) is not bound):
                pass
            elif bound is not None and bound_key in bound.keys:
                bound.gone -= 1
                bound.keys.pop(bound_key, None)
                if not bound.by_headers.remove(bound_key):
                    bound.alike.pop((queue, address), None)
                    self._router.sweep(address, queue, exchange)
                if not bound.keys:
                    del self._bound[exchange]
            elif not exchange:
                self._router.sweep(address, queue, exchange)
            yield
        self._router.swept(queue)

    # --- exchanges --------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """An exchange is there, or has another owner."""
        if exchange.alternate is not None:
            self._count(self._alternates.get(exchange.name, ""), -1)
            self._alternates[exchange.name] = exchange.by
            self._count(exchange.by, 1)
        self.changed()

    def ended(self, names: Collection[str]) -> Iterator[tuple[Queue, BindingKey]]:
        """These exchanges are gone, with all that is bound to them and to what they are bound.

        Returns:
            The bindings of queues that ended with them. They stand at the queues until whoever
            asks for this takes them away.
        """
        ended: list[tuple[str, _Bound]] = []
        for name in names:
            self._count(self._alternates.pop(name, ""), -1)
            bound = self._bound.pop(name, None)
            if bound is not None:
                ended.append((name, bound))
            self._drop_links(name)
        self._router.forget_exchanges(names)
        self.changed()
        return (
            (queue, (name, routing_key, arguments))
            for name, bound in ended
            for queue, routing_key, arguments in bound.keys
        )

    def unused_without(
        self, exchanges: Iterable[str], bindings: Iterable[BindingKey] = ()
    ) -> Iterator[str]:
        """The auto-delete exchanges that end when these exchanges do, and a queue with these
        bindings: those that have nothing else bound to them."""
        lost = Counter(key[0] for key in bindings)
        given = set(exchanges)
        ending: set[str] = set()
        work = deque((*given, *lost))
        while work:
            name = work.popleft()
            if name in ending:
                continue
            if name not in given:
                used = self.bound_count(name) + len(self.links(name))
                found = self._exchange(name)
                if lost[name] < used or found is None or not found.auto_delete:
                    continue
                yield name
            ending.add(name)
            for source, _ in self._links_to.get(name, ()):
                lost[source] += 1
                work.append(source)

    def _begins(self, source: str) -> None:
        """Messages of this exchange have to be looked at that maybe were not until now."""
        if source == ROOT_EXCHANGE:
            self._router.forget_all()
            self._routes.clear()
        else:
            self._router.forget_topics((source,))
            self.changed()

    def changed(self) -> None:
        """Something that walks look at has changed: nobody may use their routes any more."""
        for route in self._routes:
            route.evicted = True
        self._routes.clear()

    # --- rights ---------------------------------------------------------------------------

    def rights_changed(self, change: Change) -> None:
        """Rights of users have changed: if links are theirs, their routes are made anew."""
        if any(self._owners.concerned(owner, change) for owner in self._owned):
            self.changed()

    def passes(self, link: Link) -> bool:
        """Whether the link's owner may have it now."""
        return not link.by or self._owners.may_link(
            link.by, link.address, everything_in(link.destination)
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

    def beyond(self, route: TopicRoute) -> Beyond | None:
        """What the messages of a route reach beyond the trie's patterns; None for nothing, now
        and whatever their headers are."""
        address = route.address
        topic = address[0]
        if not (
            topic in self._links
            or self.headers_count(topic)
            or topic in self._alternates
            or ROOT_EXCHANGE in self._links
        ):
            return None
        walk = self._walk(address, {})
        if len(self._routes) >= ROUTES_MAX:
            self.changed()
        self._routes.append(route)
        return Beyond(tuple(walk.queues), tuple(walk.fallback), by_headers=walk.by_headers)

    def branch(self, route: TopicRoute, headers: Mapping[str, Tagged]) -> TopicRoute:
        """The route of those messages of a route that have these headers."""
        beyond = route.beyond
        assert beyond is not None
        assert beyond.by_headers
        walk = self._walk(route.address, headers)
        found = Beyond(tuple(walk.queues), tuple(walk.fallback), by_headers=False)
        outcome = found.queues, found.fallback
        branch = beyond.branches.get(outcome)
        if branch is None:
            branch = TopicRoute(route.address, self._router)
            branch.beyond = found
            if len(beyond.branches) >= BRANCHES_MAX:
                beyond.branches.clear()
            beyond.branches[outcome] = branch
        return branch

    # --- the walk -------------------------------------------------------------------------

    def _walk(self, address: Address, headers: Mapping[str, Tagged]) -> _Walk:
        walk = _Walk()
        topic, tag = address[0], ".".join(address[1:])
        self._visit(walk, topic, tag, headers, found=walk.queues, is_start=True)
        if ROOT_EXCHANGE in self._links and topic != ROOT_EXCHANGE:
            first = topic.replace(".", "/")  # as `topic_and_tag` reads it
            key = f"{first}.{tag}" if len(address) > 1 else first
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
                    f"a message to exchange '{start}' is routed through more than "
                    f"{self._walked_max} exchanges: bind queues closer to it",
                )
            here = address_of(*topic_and_tag(name, key))
            first = is_start and name == start
            hits = self._hits(walk, name, here, headers, by_address=not first)
            found.update(dict.fromkeys(hits))
            destinations = []
            links = self._links.get(name)
            if links is not None:
                walk.by_headers = walk.by_headers or len(links.by_headers) > 0
                for found_key in (*links.by_address.match(here), *links.by_headers.match(headers)):
                    link = links.by_key.get(found_key)
                    if link is None:
                        continue  # gone, and not swept out yet
                    if self.passes(link):
                        destinations.append(found_key[0])
                    else:
                        self._stopped(name, found_key[0], link.by)
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
        address: Address,
        headers: Mapping[str, Tagged],
        *,
        by_address: bool,
    ) -> list[Queue]:
        """The queues that are bound to an exchange by what matches."""
        bound = self._bound.get(exchange)
        if bound is None:
            return []
        if len(bound.by_headers):
            walk.by_headers = True
            keys = bound.by_headers.match(headers)
            gone = self._router.forgotten
            return [queue for queue, _, _ in keys if queue not in gone]
        if not by_address:
            return []
        found = self._router.match_at(exchange, address)
        return list(dict.fromkeys(queue for queue in found if isinstance(queue, Queue)))


def _sweep_links(left: Collection[tuple[_Links, LinkKey, Link]]) -> Iterator[None]:
    """Take links that are gone out of the patterns of their sources."""
    for links, key, link in left:
        if key not in links.by_key:  # else there is one of this key again
            if link.headers is None:
                links.by_address.remove(link.address, key)
            else:
                links.by_headers.remove(key)
        yield
