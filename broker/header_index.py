"""All headers bindings of one exchange, found by the headers of a message. Pure.

A binding is looked for only where one of its arguments is among the headers. One that needs all of
its arguments is kept under a single argument, the one that fewest others are kept under; one that
needs any is kept under each. So a message is compared with few bindings, not with all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from broker.header_match import HeaderPattern, Tagged

Key = TypeVar("Key", bound=Hashable)

_VOID: Hashable = ("V",)


def _place(value: Tagged) -> Hashable:
    """Equal for equal values, and for some others: tables and lists differ by their class only."""
    return tuple(value) if len(value) > 1 and value[0] not in ("F", "A") else (value[0],)


class HeaderIndex(Generic[Key]):
    """Patterns of headers by the keys of their bindings."""

    __slots__ = ("_always", "_buckets", "_names", "_order", "_patterns")

    def __init__(self) -> None:
        self._patterns: dict[Key, HeaderPattern] = {}
        self._order: dict[Key, int] = {}
        self._always: dict[Key, None] = {}  # what needs no header at all
        self._names: dict[str, int] = {}  # how many buckets there are of each name
        self._buckets: dict[tuple[str, Hashable], dict[Key, None]] = {}

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
        for place in self._places(pattern):
            bucket = self._buckets.get(place)
            if bucket is None:
                bucket = self._buckets[place] = {}
                self._names[place[0]] = self._names.get(place[0], 0) + 1
            bucket[key] = None

    def _places(self, pattern: HeaderPattern) -> list[tuple[str, Hashable]]:
        places = [(name, _place(value)) for name, value in pattern.wanted.items()]
        if pattern.needs_all and places:
            return [min(places, key=lambda place: len(self._buckets.get(place, ())))]
        return places

    def remove(self, key: Key) -> bool:
        """Returns False if it was not there."""
        pattern = self._patterns.pop(key, None)
        if pattern is None:
            return False
        del self._order[key]
        self._always.pop(key, None)
        for name, value in pattern.wanted.items():
            place = name, _place(value)
            bucket = self._buckets.get(place)
            if bucket is None:
                continue
            bucket.pop(key, None)
            if not bucket:
                del self._buckets[place]
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
            for place in {_place(value), _VOID}:
                for key in self._buckets.get((name, place), ()):
                    if key not in found and self._patterns[key].matches(headers):
                        found.add(key)
        return sorted(found, key=self._order.__getitem__)
