"""Patterns of levels, and all patterns that match a message.

A pattern is a sequence of levels with `ONE_LEVEL` (MQTT `+`, AMQP `*`) and `REST` (`#`: any number
of levels, none included). Leading wildcards don't match topics that begin with `$` [MQTT-4.7.2-1].

Theory. Clients choose both the patterns and the levels, so the cost of a match has a bound for
every choice. Patterns are kept in two ways:

* A *trie* takes exact patterns, and patterns with few `ONE_LEVEL` and a `REST` only at their end. A
  level leads from a node to two nodes at most, the second by way of a `ONE_LEVEL`. So a match
  visits about 2,500 nodes at most (`TRIE_LEVELS_MAX`, `TRIE_ONE_LEVELS_MAX`), however many patterns
  there are, and usually as many as the message has levels.
* *Blocks* take all others. A block is the states of many patterns side by side in one integer. A
  level moves all of them at once, by a few operations on 2,048 bits, and no state is visited twice.
  A match costs levels times blocks, so the levels in blocks have a limit
  (`Patterns.complex_levels`).

Both work on the normal form of a pattern (`normal_form`): patterns that match the same messages
and differ only in the order of their wildcards are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Generic, TypeVar

from polymq.broker.port.values import ONE_LEVEL, REST, Address

TRIE_LEVELS_MAX: Final = 16
"""Words of a pattern with wildcards in the trie."""
TRIE_ONE_LEVELS_MAX: Final = 3
"""`ONE_LEVEL`s of a pattern in the trie. A match takes at most one branch for each choice of the
places where it passes a `ONE_LEVEL`: 697 choices of up to three among 16 places."""
BLOCK_BITS: Final = 2048
"""States of one block. More make a match cheaper for many patterns, and each level of a pattern
dearer in memory: it has an integer of up to this size."""

Target = TypeVar("Target")


def is_exact(pattern: Address) -> bool:
    """Whether the pattern has no wildcard."""
    return ONE_LEVEL not in pattern and REST not in pattern


def normal_form(pattern: Address) -> Address:
    """The pattern with each run of wildcards in one order: `#.#` is `#`, `#.*.#` is `*.#`.

    Two patterns with the same normal form match the same messages. `REST` stands at the end of its
    run, so what follows one is a literal level or nothing.
    """
    if pattern.count(REST) < 2 and (REST not in pattern or pattern[-1] == REST):
        return pattern
    address: list[str] = []
    open_rest = False
    for level in pattern:
        if level == REST:
            open_rest = True
            continue
        if open_rest and level != ONE_LEVEL:
            address.append(REST)
            open_rest = False
        address.append(level)
    return (*address, REST) if open_rest else tuple(address)


def matches(pattern: Address, address: Address) -> bool:
    """Whether a message with these levels matches the pattern."""
    block = Block()
    block.add(normal_form(pattern))
    return block.match(address) != 0


def is_complex(pattern: Address) -> bool:
    """Whether the trie does not take the pattern. Args: pattern: in normal form."""
    return not is_exact(pattern) and (
        len(pattern) > TRIE_LEVELS_MAX
        or pattern.count(ONE_LEVEL) > TRIE_ONE_LEVELS_MAX
        or REST in pattern[:-1]
    )


class Block:
    """States of patterns as bits of integers.

    A pattern of n levels has n + 1 bits in a row. Bit i is set while its first i levels match what
    was read of the message; the last bit says that all of it matches.

    Attributes:
        size: bits in use.
    """

    __slots__ = (
        "_by_level",
        "_ends",
        "_literal_starts",
        "_one_levels",
        "_rests",
        "_starts",
        "size",
    )

    def __init__(self) -> None:
        self.size = 0
        self._starts = 0
        self._literal_starts = 0  # of patterns without a leading wildcard
        self._ends = 0
        self._rests = 0  # before a REST: the state stays
        self._one_levels = 0
        self._by_level: dict[str, int] = {}

    def add(self, pattern: Address) -> int:
        """Take a pattern in its normal form. Returns its last bit's number."""
        bit = 1 << self.size
        self._starts |= bit
        if pattern[0] not in (ONE_LEVEL, REST):
            self._literal_starts |= bit
        for level in pattern:
            if level == REST:
                self._rests |= bit
            elif level == ONE_LEVEL:
                self._one_levels |= bit
            else:
                self._by_level[level] = self._by_level.get(level, 0) | bit
            bit <<= 1
        self._ends |= bit
        self.size += len(pattern) + 1
        return self.size - 1

    def remove(self, end: int) -> None:
        """The pattern whose last bit this is matches nothing any more; its bits stay in use."""
        self._ends &= ~(1 << end)

    def match(self, address: Address) -> int:
        """The last bits of all patterns that match, as an integer."""
        rests, one_levels, by_level = self._rests, self._one_levels, self._by_level
        state = self._literal_starts if address[0].startswith("$") else self._starts
        state |= (state & rests) << 1  # a REST may be no level
        for level in address:
            stay = state & rests
            state = (state & (one_levels | by_level.get(level, 0))) << 1 | stay
            if not state:
                return 0
            state |= (state & rests) << 1
        return state & self._ends


class Node(Generic[Target]):
    """A place in the trie: what ends here, and what goes on by the next level of the pattern.

    Nearly every node has one target and no children, or children and no target. The former is no
    node at all: its parent has the target in its place. A node's targets are kept as what they are,
    and become a dictionary when there are more than one. (A hundred thousand exact bindings would
    hold 36 MB of nodes and dictionaries.)
    """

    __slots__ = ("_only", "_targets", "children")

    def __init__(self, only: Target | None = None) -> None:
        self.children: dict[str, Node[Target] | Target] | None = None
        self._only = only  # the target, while there is but one
        self._targets: dict[Target, None] | None = None  # a set that keeps its order

    def child(self, level: str) -> Node[Target] | Target | None:
        """Where patterns go on with this level, or the one target of the pattern that ends so."""
        return None if self.children is None else self.children.get(level)

    def grow(self, level: str) -> Node[Target]:
        """The node that goes on with this level, made if there is none."""
        if self.children is None:
            self.children = {}
        child = self.children.get(level)
        if not isinstance(child, Node):
            child = self.children[level] = Node(child)
        return child

    def put(self, level: str, target: Target) -> bool:
        """Add the target of a pattern that ends with this level. Returns False if it was there."""
        children = self.children
        if children is None:
            children = self.children = {}
        child = children.get(level)
        if child is None:
            children[level] = target
            return True
        return child != target and self.grow(level).add(target)

    def cut(self, level: str) -> None:
        """No pattern goes on with this level any more."""
        assert self.children is not None
        del self.children[level]
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


class Trie(Generic[Target]):
    """The patterns of which `is_complex` is false, and their targets."""

    def __init__(self) -> None:
        self._root: Node[Target] = Node()

    @property
    def is_empty(self) -> bool:
        """Whether there is no pattern."""
        return self._root.is_empty

    def add(self, pattern: Address, target: Target) -> bool:
        """Returns False if it was there already."""
        node = self._root
        for level in pattern[:-1]:
            node = node.grow(level)
        return node.put(pattern[-1], target)

    def add_level(self, level: str, target: Target) -> bool:
        """`add` for a pattern of one level."""
        return self._root.put(level, target)

    def remove(self, pattern: Address, target: Target) -> bool:
        """Returns False if it was not there. Empty nodes go with it."""
        path: list[Node[Target]] = [self._root]
        for level in pattern[:-1]:
            child = path[-1].child(level)
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
        for parent, node, level in reversed(list(zip(path, path[1:], pattern, strict=False))):
            if not node.is_empty:
                break
            parent.cut(level)
        return True

    def match(self, address: Address) -> Iterator[Target]:
        """Targets of every pattern that matches; a target once for each such pattern."""
        ends: list[Node[Target] | Target | None] = []
        nodes = [self._root]
        wildcards = not address[0].startswith("$")  # a leading one hides from such topics
        last = len(address) - 1
        for at, level in enumerate(address):
            reached: list[Node[Target]] = []
            for node in nodes:
                children = node.children
                if children is None:
                    continue
                found = [children.get(level)]
                if wildcards:
                    ends.append(children.get(REST))
                    found.append(children.get(ONE_LEVEL))
                for child in found:
                    if isinstance(child, Node):
                        reached.append(child)
                    elif at == last:
                        ends.append(child)
            nodes = reached
            wildcards = True
        for node in nodes:
            ends.append(node)
            ends.append(node.child(REST))
        for end in ends:
            if isinstance(end, Node):
                yield from end.targets
            elif end is not None:
                yield end


class _PatternBlock(Generic[Target]):
    """A block, and whose bits are in it."""

    __slots__ = ("bits", "by_end", "live")

    def __init__(self) -> None:
        self.bits = Block()
        self.by_end: dict[int, tuple[Address, Node[Target]]] = {}
        self.live = 0
        """Bits of patterns that were not removed."""

    def add(self, pattern: Address, targets: Node[Target]) -> int:
        """Returns the pattern's last bit."""
        end = self.bits.add(pattern)
        self.by_end[end] = pattern, targets
        self.live += len(pattern) + 1
        return end


class Patterns(Generic[Target]):
    """Patterns, of a level at least, and their targets. The same target under the same pattern, in
    its normal form, counts once.

    Attributes:
        complex_levels: levels of the patterns in blocks. A match passes over all of them for each
            level of its message, at about 3 us for 2,000 of them and eight levels.
    """

    def __init__(self) -> None:
        self.complex_levels = 0
        self._trie: Trie[Target] = Trie()
        self._blocks: list[_PatternBlock[Target]] = []
        self._entries: dict[Address, tuple[_PatternBlock[Target], int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no pattern."""
        return not self._entries and self._trie.is_empty

    def add(self, pattern: Address, target: Target) -> bool:
        """Returns False if it was there already."""
        if is_exact(pattern):  # as nearly all are
            return self._trie.add(pattern, target)
        pattern = normal_form(pattern)
        if not is_complex(pattern):
            return self._trie.add(pattern, target)
        entry = self._entries.get(pattern)
        if entry is not None:
            return entry[0].by_end[entry[1]][1].add(target)
        self.complex_levels += len(pattern)
        self._insert(pattern, Node(target))
        return True

    def add_level(self, level: str, target: Target) -> bool:
        """`add` for the pattern of one level, no wildcard."""
        return self._trie.add_level(level, target)

    def _insert(self, pattern: Address, targets: Node[Target]) -> None:
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.bits.size + len(pattern) >= BLOCK_BITS:
            block = _PatternBlock()
            self._blocks.append(block)
        self._entries[pattern] = block, block.add(pattern, targets)

    def remove(self, pattern: Address, target: Target) -> bool:
        """Returns False if it was not there."""
        pattern = normal_form(pattern)
        if not is_complex(pattern):
            return self._trie.remove(pattern, target)
        entry = self._entries.get(pattern)
        if entry is None:
            return False
        block, end = entry
        targets = block.by_end[end][1]
        if not targets.remove(target):
            return False
        if targets.is_empty:
            self.complex_levels -= len(pattern)
            del self._entries[pattern], block.by_end[end]
            block.bits.remove(end)
            block.live -= len(pattern) + 1
            if block.live <= block.bits.size // 2:
                self._blocks.remove(block)
                for left, its_targets in block.by_end.values():
                    self._insert(left, its_targets)
        return True

    def match(self, address: Address) -> Iterator[Target]:
        """Targets of every pattern that matches; a target once for each such pattern."""
        yield from self._trie.match(address)
        for block in self._blocks:
            found = block.bits.match(address)
            while found:
                end = found.bit_length() - 1
                found ^= 1 << end
                yield from block.by_end[end][1].targets
