"""Which queues and live subscribers a message goes to, for all protocols.

Theory. A message has levels: its topic, then the levels of its tag (`a.b` is `a`, `b`; an absent
tag has none). A subscription is a pattern of levels with `ONE_LEVEL` and `REST`. `patterns.py`
answers "who matches these words" in time that does not grow with the number of subscriptions.

The answer for each distinct (topic, tag) is kept as a `Route` and patched:

* A pattern without wildcards concerns exactly one Route, whose counts are patched at once. What
  follows from them is made when the Route is next used.
* A wildcard change is written to a short journal; each Route replays what it has not seen when it
  is next used. So ten thousand subscribing clients do not rebuild each other's routes.
* A Route that fell far behind (`JOURNAL_MAX`, `REPLAY_LEVELS_MAX`) is matched anew.

A target may be reached by several patterns (an AMQP queue with two bindings); it gets the message
once, so Routes count how many patterns reach each target.

What ends with thousands of patterns ends at once, and in little time:

* The patterns of an exchange are kept apart from all others, because all of them begin with its
  name. They are dropped in one piece (`forget_exchanges`).
* A target that is forgotten (`forget_target`) stays among the patterns until it is swept out of
  them, some at a time (`sweep`). Until then every match leaves it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from polymq.broker.bounded_cache import SizedCache
from polymq.broker.errors import Reason, Refused
from polymq.broker.kernels.routes import RouteEnd, RouterEnd
from polymq.broker.names import ROOT_EXCHANGE
from polymq.broker.port.values import Address
from polymq.broker.routing.patterns import Patterns, is_complex, is_exact, matches, normal_form

ROUTES_SIZE_MAX: Final = 16 * 1024 * 1024
"""Characters of the levels of all routes that are cached: a tag may have 32,000."""
ROUTES_MAX: Final = 100_000
"""Cached routes; about 0.5 KiB each. Of more, the oldest goes, and is matched anew with its use."""
JOURNAL_MAX: Final = 4096
"""Wildcard changes that a Route can replay before matching anew is cheaper."""

REPLAY_LEVELS_MAX: Final = 16_384
"""Words that a Route looks at to replay changes: 5 ms. Beyond that it is matched anew."""
COMPLEX_LEVELS_MAX: Final = 500_000
"""See `Limits.complex_levels_max`."""
STALE: Final = -1
"""For the number of changes that a Route knows: it has to be brought up to date in any case."""
_EVERY_PATTERN: Final[Address] = ()
"""In the journal: a target was forgotten. No message and no pattern is without a word."""

Target = TypeVar("Target")


def address_of(topic: str, tag: str | None) -> Address:
    """The levels of a message."""
    return (topic,) if tag is None else (topic, *tag.split("."))


class CachedRoute(RouteEnd, Generic[Target]):
    """Who gets the messages of one (topic, tag): a count of matching patterns per target.

    The engine subclasses it and forgets in `targets_changed` what it derived from `counts`.

    Attributes:
        version: how many wildcard changes of the router it knows; less than none if exact patterns
            have changed since `targets_changed`.
        counted: how many wildcard changes `counts` has; less than none if it has to be made anew.
        evicted: the cache let it go: it is no longer patched, and nobody may use it.
    """

    __slots__ = ("address", "counted", "counts")

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.address = address
        self.counted = STALE
        self.counts: dict[Target, int] = {}

    def exact_changed(self) -> None:
        """An exact pattern of it has changed: `targets_changed` follows with the next use."""
        self.version = STALE

    def forget_counts(self) -> None:
        """Let the next use make `counts` anew."""
        self.counted = self.version = STALE

    def targets_changed(self) -> None:
        """`counts` has changed."""


R = TypeVar("R", bound=CachedRoute[Any])


class Router(RouterEnd, Generic[Target, R]):
    """All patterns with the cache of routes.

    Args:
        new_route: makes the (subclass of) `CachedRoute` for a message's levels.
    """

    def __init__(
        self,
        new_route: Callable[[Address], R],
        *,
        routes_max: int = ROUTES_MAX,
        complex_levels_max: int = COMPLEX_LEVELS_MAX,
    ) -> None:
        super().__init__()
        self.patterns: Patterns[Target] = Patterns()
        """Those of no exchange: of subscriptions, and of queues by their names."""
        self.complex_levels = 0
        """See `Patterns.complex_levels`: of all together."""
        self._of_exchanges: dict[str, Patterns[Target]] = {}
        self.forgotten: set[Target] = set()
        """Targets that were forgotten, and are not swept out of all patterns yet."""
        self._routes: SizedCache[Address, R] = SizedCache(
            routes_max, ROUTES_SIZE_MAX, lambda address: sum(map(len, address))
        )
        self._journal: list[tuple[bool, Address, Target]] = []  # the latest wildcard changes
        self._journal_start = 0  # how many there were before those
        self._new_route = new_route
        self._complex_levels_max = complex_levels_max

    def check_room(self, pattern: Address) -> None:
        """Raises Refused: LIMIT: patterns that are costly to match have too many levels in all."""
        address = normal_form(pattern)
        if not is_complex(address):
            return
        if self.complex_levels + len(address) > self._complex_levels_max:
            raise Refused(
                Reason.LIMIT,
                f"the patterns with many wildcards have {self._complex_levels_max} levels, which "
                "is the limit: use a '#' only at the end, and at most three '*' or '+'",
            )

    def subscribe(self, pattern: Address, target: Target, exchange: str = "") -> bool:
        """From now on, messages that match go to the target too. Returns False if they did.

        Args:
            exchange: the one that the target is bound to, if it is bound to one. Unless that is
                the root, which sees all topics, the pattern begins with its name.
        """
        patterns = self.patterns
        if exchange:
            patterns = self._of_exchanges.setdefault(exchange, Patterns())
        elif len(pattern) == 1 and is_exact(pattern):  # a hundred thousand queues by their names
            added = patterns.add_level(pattern[0], target)
            if added and self._routes:
                self._note(True, pattern, target)
            return added
        before = patterns.complex_levels
        added = patterns.add(pattern, target)
        self.complex_levels += patterns.complex_levels - before
        if added:
            self._note(True, pattern, target)
        return added

    def unsubscribe(self, pattern: Address, target: Target, exchange: str = "") -> None:
        """Undo a subscribe; nothing if there was none."""
        if self._remove(pattern, target, exchange):
            self._note(False, pattern, target)

    def _remove(self, pattern: Address, target: Target, exchange: str) -> bool:
        patterns = self._of_exchanges.get(exchange) if exchange else self.patterns
        if patterns is None:
            return False
        before = patterns.complex_levels
        removed = patterns.remove(pattern, target)
        self.complex_levels += patterns.complex_levels - before
        if patterns.is_empty and exchange:
            del self._of_exchanges[exchange]
        return removed

    def forget_exchanges(self, exchanges: Collection[str]) -> None:
        """Undo all that was subscribed to these exchanges, neither of which is the root."""
        for exchange in exchanges:
            patterns = self._of_exchanges.pop(exchange, None)
            if patterns is not None:
                self.complex_levels -= patterns.complex_levels
        self.forget_topics(exchanges)

    def forget_target(self, target: Target) -> None:
        """Undo all subscriptions of the target. Its patterns go on to take room, until `sweep` was
        called for each of them, then `swept`."""
        self.forgotten.add(target)
        self._note(False, _EVERY_PATTERN, target)

    def sweep(self, pattern: Address, target: Target, exchange: str) -> None:
        """Take a target that was forgotten out of one pattern."""
        self._remove(pattern, target, exchange)

    def swept(self, target: Target) -> None:
        """It is among no patterns any more."""
        self.forgotten.discard(target)

    def match(self, address: Address) -> set[Target]:
        """The targets, without the cache."""
        return set(self._matching(address))

    def match_at(self, exchange: str, address: Address) -> Iterator[Target]:
        """The targets that are bound to an exchange, once for each pattern that reaches them."""
        patterns = self._of_exchanges.get(exchange)
        return iter(()) if patterns is None else self._there(patterns.match(address))

    def _matching(self, address: Address) -> Iterator[Target]:
        """All targets, once for each pattern that reaches them."""
        found = [self.patterns.match(address)]
        for exchange in dict.fromkeys((ROOT_EXCHANGE, address[0])):
            if exchange in self._of_exchanges:
                found.append(self._of_exchanges[exchange].match(address))
        return self._there(chain.from_iterable(found))

    def _there(self, targets: Iterator[Target]) -> Iterator[Target]:
        """Without those that were forgotten."""
        gone = self.forgotten
        return (target for target in targets if target not in gone) if gone else targets

    def route(self, address: Address) -> R:
        """The route of these levels, up to date."""
        route = self._routes.get(address)
        if route is None or route.evicted:
            route = self._new_route(address)
            self._build(route)
            for evicted in self._routes.add(address, route):
                evicted.evicted = True
        else:
            self.refresh(route)
        return route

    def forget(self, address: Address) -> None:
        """Drop a route from the cache (its topic was deleted)."""
        route = self._routes.pop(address)
        if route is not None:
            route.evicted = True

    def forget_topics(self, topics: Collection[str]) -> None:
        """No route of these topics may be used any more. They stay in the cache until their place
        is needed: to take out a hundred thousand would stop the loop. Walks the cache: for
        deletions only."""
        for address, route in self._routes.items():
            if address[0] in topics:
                route.evicted = True

    def forget_all(self) -> None:
        """The same for all routes."""
        for route in self._routes.values():
            route.evicted = True

    def refresh(self, route: R) -> None:
        """Replay what the route has not seen. What the publish path calls per run."""
        if route.version == self.version:
            return
        unseen = self._journal[max(0, route.counted - self._journal_start) :]
        cost = sum(len(pattern) for _, pattern, _ in unseen) + len(unseen) * len(route.address)
        if route.counted < self._journal_start or cost > REPLAY_LEVELS_MAX:
            self._build(route)
            return
        changed = route.version == STALE
        for added, pattern, target in unseen:
            if pattern is _EVERY_PATTERN:
                changed = route.counts.pop(target, None) is not None or changed
            elif matches(pattern, route.address):
                _count(route.counts, target, added)
                changed = True
        route.counted = route.version = self.version
        if changed:
            route.targets_changed()

    def _build(self, route: R) -> None:
        route.counts = dict(Counter(self._matching(route.address)))
        route.counted = route.version = self.version
        route.targets_changed()

    def _note(self, added: bool, pattern: Address, target: Target) -> None:
        if pattern is not _EVERY_PATTERN and is_exact(pattern):
            route = self._routes.get(pattern)
            if route is None:
                return
            # What follows from `counts` is made when the route is used: ten thousand queues may be
            # bound until then.
            if route.counted == self.version:
                _count(route.counts, target, added)
            else:
                route.counted = STALE
            route.exact_changed()
            return
        self.version += 1
        if len(self._journal) >= JOURNAL_MAX:
            self._journal.clear()
            self._journal_start = self.version
            return
        self._journal.append((added, pattern, target))


def _count(counts: dict[Target, int], target: Target, added: bool) -> None:
    count = counts.get(target, 0) + (1 if added else -1)
    assert count >= 0
    if count:
        counts[target] = count
    else:
        del counts[target]
