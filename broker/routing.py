"""Which queues and live subscribers a message goes to, for all protocols.

Theory. A message has words: its topic, then the words of its tag (`a.b` is `a`, `b`; an absent
tag has none). A subscription is a pattern of words with `ONE_WORD` and `REST`. `patterns.py`
answers "who matches these words" in time that does not grow with the number of subscriptions.

The answer for each distinct (topic, tag) is kept as a `Route` and patched:

* A pattern without wildcards concerns exactly one Route, which is patched at once.
* A wildcard change is written to a short journal; each Route replays what it has not seen when it
  is next used. So ten thousand subscribing clients do not rebuild each other's routes.
* A Route that fell far behind (`JOURNAL_MAX`, `REPLAY_WORDS_MAX`) is matched anew.

A target may be reached by several patterns (an AMQP queue with two bindings); it gets the message
once, so Routes count how many patterns reach each target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from broker.bounded_cache import BoundedCache
from broker.errors import Reason, Refused
from broker.kernels import RouteEnd, RouterEnd
from broker.patterns import Patterns, is_complex, is_exact, matches, normal_form
from broker.port import Words

ROUTES_MAX: Final = 100_000
"""Cached routes; about 0.5 KiB each. Of more, the oldest goes, and is matched anew with its use."""
JOURNAL_MAX: Final = 4096
"""Wildcard changes that a Route can replay before matching anew is cheaper."""

REPLAY_WORDS_MAX: Final = 16_384
"""Words that a Route looks at to replay changes: 5 ms. Beyond that it is matched anew."""
COMPLEX_WORDS_MAX: Final = 500_000
"""See `Limits.complex_words_max`."""

Target = TypeVar("Target")


def words_of(topic: str, tag: str | None) -> Words:
    """The words of a message."""
    return (topic,) if tag is None else (topic, *tag.split("."))


class CachedRoute(RouteEnd, Generic[Target]):
    """Who gets the messages of one (topic, tag): a count of matching patterns per target.

    The engine subclasses it and forgets in `targets_changed` what it derived from `counts`.

    Attributes:
        version: how many wildcard changes of the router it knows.
        evicted: the cache let it go: it is no longer patched, and nobody may use it.
    """

    __slots__ = ("counts", "words")

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.words = words
        self.counts: dict[Target, int] = {}

    def targets_changed(self) -> None:
        """`counts` has changed."""


R = TypeVar("R", bound=CachedRoute[Any])


class Router(RouterEnd, Generic[Target, R]):
    """All patterns with the cache of routes.

    Args:
        new_route: makes the (subclass of) `CachedRoute` for a message's words.
    """

    def __init__(
        self,
        new_route: Callable[[Words], R],
        *,
        routes_max: int = ROUTES_MAX,
        complex_words_max: int = COMPLEX_WORDS_MAX,
    ) -> None:
        super().__init__()
        self.patterns: Patterns[Target] = Patterns()
        self._routes: BoundedCache[Words, R] = BoundedCache(routes_max)
        self._journal: list[tuple[bool, Words, Target]] = []  # the latest wildcard changes
        self._journal_start = 0  # how many there were before those
        self._new_route = new_route
        self._complex_words_max = complex_words_max

    def check_room(self, pattern: Words) -> None:
        """Raises Refused: LIMIT: patterns that are costly to match have too many words in all."""
        words = normal_form(pattern)
        if not is_complex(words):
            return
        if self.patterns.complex_words + len(words) > self._complex_words_max:
            raise Refused(
                Reason.LIMIT,
                f"the patterns with many wildcards have {self._complex_words_max} words, which is "
                "the limit: use a '#' only at the end, and at most three '*' or '+'",
            )

    def subscribe(self, pattern: Words, target: Target) -> None:
        """From now on, messages that match go to the target too."""
        if self.patterns.add(pattern, target):
            self._note(True, pattern, target)

    def unsubscribe(self, pattern: Words, target: Target) -> None:
        """Undo a subscribe; nothing if there was none."""
        if self.patterns.remove(pattern, target):
            self._note(False, pattern, target)

    def match(self, words: Words) -> set[Target]:
        """The targets, without the cache."""
        return set(self.patterns.match(words))

    def route(self, words: Words) -> R:
        """The route of these words, up to date."""
        route = self._routes.get(words)
        if route is None:
            route = self._new_route(words)
            self._build(route)
            evicted = self._routes.add(words, route)
            if evicted is not None:
                evicted.evicted = True
        else:
            self.refresh(route)
        return route

    def forget(self, words: Words) -> None:
        """Drop a route from the cache (its topic was deleted)."""
        route = self._routes.pop(words, None)
        if route is not None:
            route.evicted = True

    def forget_topic(self, topic: str) -> None:
        """Drop all routes of a topic. Walks the cache: for deletions only."""
        for words in [words for words in self._routes if words[0] == topic]:
            self.forget(words)

    def forget_all(self) -> None:
        """Drop all routes from the cache."""
        for words in list(self._routes):
            self.forget(words)

    def refresh(self, route: R) -> None:
        """Replay what the route has not seen. What the publish path calls per run."""
        if route.version == self.version:
            return
        unseen = self._journal[max(0, route.version - self._journal_start) :]
        cost = sum(len(pattern) for _, pattern, _ in unseen) + len(unseen) * len(route.words)
        if route.version < self._journal_start or cost > REPLAY_WORDS_MAX:
            self._build(route)
            return
        changed = False
        for added, pattern, target in unseen:
            if matches(pattern, route.words):
                _count(route.counts, target, added)
                changed = True
        route.version = self.version
        if changed:
            route.targets_changed()

    def _build(self, route: R) -> None:
        route.counts = {}
        for target in self.patterns.match(route.words):
            _count(route.counts, target, True)
        route.version = self.version
        route.targets_changed()

    def _note(self, added: bool, pattern: Words, target: Target) -> None:
        if is_exact(pattern):
            route = self._routes.get(pattern)
            if route is None:
                return
            if route.version == self.version:
                _count(route.counts, target, added)
                route.targets_changed()
            else:
                self._build(route)
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
