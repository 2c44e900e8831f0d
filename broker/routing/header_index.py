"""All headers bindings of one exchange, found by the headers of a message. Pure.

A binding is looked for only where one of its arguments is among the headers. One that needs all of
its arguments is kept under a single argument, the one that fewest others are kept under; one that
needs any is kept under each. So a message is compared with few bindings, not with all of them.

Nearly all bindings of one argument, and those that need any, match wherever they are found: they
are not compared at all. So a message that matches ten thousand bindings takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from polymq.broker.routing.header_match import HeaderPattern, Tagged

Key = TypeVar("Key", bound=Hashable)

_VOID: Hashable = ("V",)


def _is_whole(value: Tagged) -> bool:
    """Whether values of one place are equal."""
    return value[0] not in ("F", "A")


def _bucket_value(value: Tagged) -> Hashable:
    """Equal for equal values, and for some others: tables and lists differ by their class only."""
    return tuple(value) if len(value) > 1 and _is_whole(value) else (value[0],)


class _Bucket(Generic[Key]):
    """The bindings that are kept under one argument.

    Attributes:
        matching: those that match a message which has it.
        others: those that have to be compared.
    """

    __slots__ = ("matching", "others")

    def __init__(self) -> None:
        self.matching: dict[Key, None] = {}
        self.others: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self.matching) + len(self.others)


class HeaderIndex(Generic[Key]):
    """Patterns of headers by the keys of their bindings."""

    __slots__ = ("_always", "_buckets", "_names", "_order", "_patterns")

    def __init__(self) -> None:
        self._patterns: dict[Key, HeaderPattern] = {}
        self._order: dict[Key, int] = {}
        self._always: dict[Key, None] = {}  # what needs no header at all
        self._names: dict[str, int] = {}  # how many buckets there are of each name
        self._buckets: dict[tuple[str, Hashable], _Bucket[Key]] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: Key, pattern: HeaderPattern) -> None:
        """Nothing if it is there already."""
        if key in self._patterns:
            return
        self._patterns[key] = pattern
        self._order[key] = next(reversed(self._order.values()), 0) + 1
        if pattern.needs_all and not pattern.wanted:
            self._always[key] = None
        for name, value in self._bucket_key(pattern):
            pair = name, _bucket_value(value)
            bucket = self._buckets.get(pair)
            if bucket is None:
                bucket = self._buckets[pair] = _Bucket()
                self._names[name] = self._names.get(name, 0) + 1
            enough = not pattern.needs_all or len(pattern.wanted) == 1
            into = bucket.matching if enough and _is_whole(value) else bucket.others
            into[key] = None

    def _bucket_key(self, pattern: HeaderPattern) -> Iterable[tuple[str, Tagged]]:
        wanted = pattern.wanted.items()
        if not pattern.needs_all or not wanted:
            return wanted
        return [min(wanted, key=lambda item: len(self._bucket(item[0], _bucket_value(item[1]))))]

    def _bucket(self, name: str, pair: Hashable) -> _Bucket[Key]:
        return self._buckets.get((name, pair)) or _Bucket()

    def remove(self, key: Key) -> bool:
        """Returns False if it was not there."""
        pattern = self._patterns.pop(key, None)
        if pattern is None:
            return False
        del self._order[key]
        self._always.pop(key, None)
        for name, value in pattern.wanted.items():
            pair = name, _bucket_value(value)
            bucket = self._buckets.get(pair)
            if bucket is None:
                continue
            bucket.matching.pop(key, None)
            bucket.others.pop(key, None)
            if not len(bucket):
                del self._buckets[pair]
                self._names[name] -= 1
                if not self._names[name]:
                    del self._names[name]
        return True

    def match(self, headers: Mapping[str, Tagged]) -> list[Key]:
        """The keys of all patterns that match, in the order of their coming."""
        found = set(self._always)
        for name, value in headers.items():
            if name not in self._names:
                continue
            for pair in {_bucket_value(value), _VOID}:
                bucket = self._buckets.get((name, pair))
                if bucket is not None:
                    found.update(bucket.matching)
                    patterns = self._patterns
                    found.update(key for key in bucket.others if patterns[key].matches(headers))
        return sorted(found, key=self._order.__getitem__)
