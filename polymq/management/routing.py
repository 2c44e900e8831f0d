"""The paths of the API as data: which method of which path does what, and for whom.

Rules:

* A part of a path in braces names something, and may have any character (percent-encoded). A part
  called `vhost` has to be `/`, the one virtual host that there is.
* HEAD is allowed where GET is. A slash at the end of a path means nothing, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from polymq.management.bodies import Body
from polymq.management.callers import Caller, Rank
from polymq.management.errors import METHOD_NOT_ALLOWED, Problem, missing

PREFIX: Final = "api"
VHOST: Final = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        names: the parts of the path that name something.
        query: the parameters; of several with one name, the last.
        body: what was sent.
        caller: who asks.
        headers: of the request.
    """

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Body
    caller: Caller
    headers: Mapping[str, str]


Handler = Callable[[Call], Awaitable[Any]]
"""Returns what is sent as JSON, its text in steps, `lists.Items` for a list, `Created`, or None for
nothing (204)."""


@dataclass(frozen=True, slots=True)
class Created:
    """What a handler returns when it made something: status 201 without a body.

    Attributes:
        location: where it is, below the path of the request; empty: at that path.
    """

    location: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        path: below `/api`.
        rank: what the caller has to be, at least.
        bytes_max: of the body.
    """

    method: str
    path: str
    rank: Rank
    handler: Handler
    bytes_max: int = 64 * 1024


class Table:
    """Finds routes by path and method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for route in routes:
            parts = tuple(route.path.strip("/").split("/"))
            methods = self._by_length.setdefault(len(parts), {}).setdefault(parts, {})
            assert route.method not in methods, route.path
            methods[route.method] = route

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """The route of a request, and the names in its path.

        Args:
            raw_path: percent-encoded.

        Raises:
            Problem: there is no such path, virtual host or method.
        """
        parts = [unquote(part, errors="surrogateescape") for part in raw_path.split("/")[1:]]
        if parts and not parts[-1]:
            parts.pop()
        if parts[:1] != [PREFIX]:
            raise missing()
        methods, names = self._match(parts[1:])
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise Problem(METHOD_NOT_ALLOWED, f"{method} is not allowed here: use {_list(methods)}")
        if names.get("vhost", VHOST) != VHOST:
            raise missing()
        return route, names

    def _match(self, parts: Sequence[str]) -> tuple[Mapping[str, Route], dict[str, str]]:
        """The path with the most literal parts counts."""
        best: tuple[Mapping[str, Route], dict[str, str]] | None = None
        for wanted, methods in self._by_length.get(len(parts), {}).items():
            names: dict[str, str] = {}
            for part, given in zip(wanted, parts, strict=True):
                if part.startswith("{"):
                    names[part[1:-1]] = given
                elif part != given:
                    break
            else:
                if best is None or len(names) < len(best[1]):
                    best = methods, names
        if best is None:
            raise missing()
        return best


def _list(methods: Iterable[str]) -> str:
    return ", ".join(sorted(methods))
