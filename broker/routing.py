"""Which queues and live subscribers a message goes to: one trie for all protocols.

Theory. A message has words: its topic, then the words of its tag (`a.b` is `a`, `b`; an absent
tag has none). A subscription is a pattern of words with `ONE_WORD` and `REST`. The trie over
patterns answers "who matches these words" in time that grows with the depth, not with the number
of subscriptions.

The answer for each distinct (topic, tag) is kept as a `Route` and patched:

* A pattern without wildcards concerns exactly one Route, which is patched at once.
* A wildcard change is written to a short journal; each Route replays what it has not seen when it
  is next used. So ten thousand subscribing clients do not rebuild each other's routes.
* A Route that fell behind the journal (`JOURNAL_MAX`) is matched anew.

A target may be reached by several patterns (an AMQP queue with two bindings); it gets the message
once, so Routes count how many patterns reach each target.

Leading wildcards don't match topics that begin with `$` [MQTT-4.7.2-1].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Generic, TypeVar

from broker.kernels import RouteEnd, RouterEnd
from broker.port import ONE_WORD, REST, Words

ROUTES_MAX: Final = 100_000
"""Cached routes; about 0.5 KiB each. Beyond that the least recently used is matched anew."""
JOURNAL_MAX: Final = 4096
"""Wildcard changes that a Route can replay before matching anew is cheaper."""

Target = TypeVar("Target")


def words_of(topic: str, tag: str | None) -> Words:
    """The words of a message."""
    return (topic,) if tag is None else (topic, *tag.split("."))


def is_exact(pattern: Words) -> bool:
    """Whether the pattern has no wildcard."""
    return ONE_WORD not in pattern and REST not in pattern


def matches(pattern: Words, words: Words) -> bool:
    """Whether a message with these words matches: the definition the trie is tested against."""
    if words[0].startswith("$") and pattern and pattern[0] in (ONE_WORD, REST):
        return False
    return _matches(pattern, words)


def _matches(pattern: Words, words: Words) -> bool:
    states = {0}
    for word in words:
        reached = set()
        for at in _closure(pattern, states):
            if at < len(pattern):
                if pattern[at] == REST:
                    reached.add(at)
                elif pattern[at] in (ONE_WORD, word):
                    reached.add(at + 1)
        states = reached
    return len(pattern) in _closure(pattern, states)


def _closure(pattern: Words, states: set[int]) -> set[int]:
    """The states reachable without a word: REST may match nothing."""
    closed = set(states)
    for state in states:
        at = state
        while at < len(pattern) and pattern[at] == REST:
            at += 1
            closed.add(at)
    return closed


class Node(Generic[Target]):
    """A place in the trie: what ends here, and what goes on by the next word of the pattern.

    Nearly every node has one target and no children, or children and no target. The former is no
    node at all: its parent has the target in its place (but for `REST`, below which a match may
    stay). A node's targets are kept as what they are, and become a dictionary when there are more
    than one. (A hundred thousand exact bindings would hold 36 MB of nodes and dictionaries.)
    """

    __slots__ = ("_only", "_targets", "children")

    def __init__(self, only: Target | None = None) -> None:
        self.children: dict[str, Node[Target] | Target] | None = None
        self._only = only  # the target, while there is but one
        self._targets: dict[Target, None] | None = None  # a set that keeps its order

    def child(self, word: str) -> Node[Target] | Target | None:
        """Where patterns go on with this word, or the one target of the pattern that ends so."""
        return None if self.children is None else self.children.get(word)

    def grow(self, word: str) -> Node[Target]:
        """The node that goes on with this word, made if there is none."""
        if self.children is None:
            self.children = {}
        child = self.children.get(word)
        if not isinstance(child, Node):
            child = self.children[word] = Node(child)
        return child

    def put(self, word: str, target: Target) -> bool:
        """Add the target of a pattern that ends with this word. Returns False if it was there."""
        child = self.child(word)
        if child is None and word != REST:
            if self.children is None:
                self.children = {}
            self.children[word] = target
            return True
        return child != target and self.grow(word).add(target)

    def cut(self, word: str) -> None:
        """No pattern goes on with this word any more."""
        assert self.children is not None
        del self.children[word]
        if not self.children:
            self.children = None

    @property
    def targets(self) -> Collection[Target]:
        """The targets of the pattern that ends here, in the order of their coming."""
        if self._targets is not None:
            return self._targets
        return () if self._only is None else (self._only,)

    def add(self, target: Target) -> bool:
        """Returns False if it was there already."""
        if target in self.targets:
            return False
        if self._targets is not None:
            self._targets[target] = None
        elif self._only is None:
            self._only = target
        else:
            self._targets = {self._only: None, target: None}
            self._only = None
        return True

    def remove(self, target: Target) -> bool:
        """Returns False if it was not there."""
        if target not in self.targets:
            return False
        if self._targets is None:
            self._only = None
            return True
        del self._targets[target]
        if not self._targets:
            self._targets = None
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the trie does not need it."""
        return self.children is None and self._only is None and self._targets is None


_Reached = dict[object, tuple[Node[Target] | Target, bool]]
"""What words lead to, by what tells places from each other: a node, or the target in its place, and
whether it is a REST."""


class Trie(Generic[Target]):
    """Patterns, of a word at least, and their targets. The same target under the same pattern
    counts once."""

    def __init__(self) -> None:
        self._root: Node[Target] = Node()

    def add(self, pattern: Words, target: Target) -> bool:
        """Returns False if it was there already."""
        node = self._root
        for word in pattern[:-1]:
            node = node.grow(word)
        return node.put(pattern[-1], target)

    def remove(self, pattern: Words, target: Target) -> bool:
        """Returns False if it was not there. Empty nodes go with it."""
        path: list[Node[Target]] = [self._root]
        for word in pattern[:-1]:
            child = path[-1].child(word)
            if not isinstance(child, Node):
                return False
            path.append(child)
        last = path[-1].child(pattern[-1])
        if isinstance(last, Node):
            if not last.remove(target):
                return False
            path.append(last)
        elif last == target:
            path[-1].cut(pattern[-1])
        else:
            return False
        for parent, node, word in reversed(list(zip(path, path[1:], pattern, strict=False))):
            if not node.is_empty:
                break
            parent.cut(word)
        return True

    def match(self, words: Words) -> Iterator[Target]:
        """Targets of every pattern that matches; a target once for each such pattern."""
        nodes: _Reached[Target] = {}
        self._reach(self._root, nodes, words[0].startswith("$"), first=True)
        for word in words:
            reached: _Reached[Target] = {}
            for node, rest in nodes.values():
                if not isinstance(node, Node):
                    continue
                if rest:  # this node is a REST: it may take the word and stay
                    reached[id(node)] = (node, True)
                dollar = node is self._root and word.startswith("$")
                for way in (word,) if dollar else (word, ONE_WORD):
                    child = node.child(way)
                    if isinstance(child, Node):
                        self._reach(child, reached)
                    elif child is not None:
                        reached[id(node), way] = (child, False)
            nodes = reached
        for node, _ in nodes.values():
            if isinstance(node, Node):
                yield from node.targets
            else:
                yield node

    def _reach(
        self,
        node: Node[Target],
        reached: _Reached[Target],
        dollar: bool = False,
        *,
        first: bool = False,
        rest: bool = False,
    ) -> None:
        """Note the node, and the REST nodes below it, which match no word."""
        if id(node) not in reached or rest:
            reached[id(node)] = (node, rest)
        child = node.child(REST)
        if child is not None and not (first and dollar):
            assert isinstance(child, Node)
            self._reach(child, reached, rest=True)


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
    """The trie with its cache of routes.

    Args:
        new_route: makes the (subclass of) `CachedRoute` for a message's words.
    """

    def __init__(self, new_route: Callable[[Words], R], *, routes_max: int = ROUTES_MAX) -> None:
        super().__init__()
        self._trie: Trie[Target] = Trie()
        self._routes: dict[Words, R] = {}
        self._journal: list[tuple[bool, Words, Target]] = []  # the latest wildcard changes
        self._journal_start = 0  # how many there were before those
        self._new_route = new_route
        self._routes_max = routes_max

    def subscribe(self, pattern: Words, target: Target) -> None:
        """From now on, messages that match go to the target too."""
        if self._trie.add(pattern, target):
            self._note(True, pattern, target)

    def unsubscribe(self, pattern: Words, target: Target) -> None:
        """Undo a subscribe; nothing if there was none."""
        if self._trie.remove(pattern, target):
            self._note(False, pattern, target)

    def match(self, words: Words) -> set[Target]:
        """The targets, without the cache."""
        return set(self._trie.match(words))

    def route(self, words: Words) -> R:
        """The route of these words, up to date."""
        route = self._routes.get(words)
        if route is None:
            route = self._new_route(words)
            self._build(route)
            if len(self._routes) >= self._routes_max:
                oldest = next(iter(self._routes))
                self._routes.pop(oldest).evicted = True
            self._routes[words] = route
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
        if route.version < self._journal_start:
            self._build(route)
            return
        changed = False
        for added, pattern, target in self._journal[route.version - self._journal_start :]:
            if matches(pattern, route.words):
                _count(route.counts, target, added)
                changed = True
        route.version = self.version
        if changed:
            route.targets_changed()

    def _build(self, route: R) -> None:
        route.counts = {}
        for target in self._trie.match(route.words):
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
