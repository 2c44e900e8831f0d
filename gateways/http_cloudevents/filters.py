"""Filters of subscriptions: CloudEvents Subscriptions API, part 3.2.4. Pure.

A filter is a JSON object with one member, the dialect; a list of filters holds if all hold; an
empty list always holds. An attribute that an event lacks never matches. All values are compared
as canonical strings.

Filters are compiled into one function, which decides when a message is read. What they say about
`type` narrows what the queue collects as well: `mapping.address_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from polymq.gateways.http_cloudevents.attributes import NAME
from polymq.gateways.http_cloudevents.errors import Problem

Attributes = Mapping[str, str]
Predicate = Callable[[Attributes], bool]

DIALECTS: Final = ("exact", "prefix", "suffix", "all", "any", "not")


def compile_filters(filters: object, *, depth_max: int, count_max: int) -> Predicate:
    """The function that decides whether an event passes.

    Args:
        filters: the member `filters` of a subscription, as JSON.
        depth_max, count_max: bounds of the expression.

    Raises:
        Problem: 400, naming the filter at fault.
    """
    compiler = _Compiler(depth_max, count_max)
    return _all(compiler.compile_list(filters, "filters", 0))


class _Compiler:
    def __init__(self, depth_max: int, count_max: int) -> None:
        self._depth_max = depth_max
        self._left = count_max

    def compile_list(self, filters: object, where: str, depth: int) -> list[Predicate]:
        if not isinstance(filters, list):
            raise _bad(where, "is a list of filters")
        if depth >= self._depth_max:
            raise _bad(where, f"is nested deeper than {self._depth_max} levels")
        return [self.compile(item, f"{where}[{n}]", depth) for n, item in enumerate(filters)]

    def compile(self, item: object, where: str, depth: int) -> Predicate:
        self._left -= 1
        if self._left < 0:
            raise _bad(where, "is one filter too many")
        if not isinstance(item, dict) or len(item) != 1:
            raise _bad(where, f"is an object with one member, one of {', '.join(DIALECTS)}")
        ((dialect, value),) = item.items()
        where = f"{where}.{dialect}"
        if dialect in ("exact", "prefix", "suffix"):
            return _compare(dialect, self._comparisons(value, where))
        if dialect in ("all", "any"):
            predicates = self.compile_list(value, where, depth + 1)
            if not predicates:
                raise _bad(where, "holds no filter")
            return _all(predicates) if dialect == "all" else _any(predicates)
        if dialect == "not":
            return _not(self.compile_list([value], where, depth + 1)[0])
        raise _bad(where, f"is not a known dialect; use {', '.join(DIALECTS)}")

    def _comparisons(self, value: object, where: str) -> dict[str, str]:
        if not isinstance(value, dict) or not value:
            raise _bad(where, 'is an object of attributes and strings: {"type": "order.created"}')
        for name, wanted in value.items():
            if NAME.fullmatch(name) is None:
                raise _bad(f"{where}.{name}", "is not an attribute name")
            if not isinstance(wanted, str) or not wanted:
                raise _bad(f"{where}.{name}", "is compared with a string that is not empty")
        return value


def _bad(where: str, text: str) -> Problem:
    return Problem(400, "Bad subscription", f"{where} {text}")


def _compare(dialect: str, wanted: dict[str, str]) -> Predicate:
    pairs = tuple(wanted.items())
    if dialect == "exact":
        return lambda event: all(event.get(name) == value for name, value in pairs)
    if dialect == "prefix":
        return lambda event: all(event.get(name, "").startswith(value) for name, value in pairs)
    return lambda event: all(event.get(name, "").endswith(value) for name, value in pairs)


def _all(predicates: list[Predicate]) -> Predicate:
    return lambda event: all(predicate(event) for predicate in predicates)


def _any(predicates: list[Predicate]) -> Predicate:
    return lambda event: any(predicate(event) for predicate in predicates)


def _not(predicate: Predicate) -> Predicate:
    return lambda event: not predicate(event)
