"""Queues that have a name at the operator's listener: what the commands `polymq queue` ask for.

They are AMQP's queues and the named subscriptions of HTTP, in one list.

Rules:

* A list is put together in steps, so a broker with very many queues serves its clients meanwhile.
  It is sorted for each request, and nothing is stored for that.
* By name, a list comes in pages. A page says where the next one begins (`after`). By a number it
  has the largest first, and no second page: numbers change from one request to the next.
* Queue names may have any character, so they are in the query, not in the path.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.mqtt import Committed
from polymq.admin.steps import in_steps, page_limit
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.inspection import inspect_backlog, unacknowledged_count
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX

QUEUES_AT_ONCE: Final = 200
"""Queues that are looked at in one step."""
BINDINGS_MAX: Final = 1_000
"""Bindings of one queue that are shown."""

Key = tuple[Any, ...]

_NUMBERS: Final[Mapping[str, Callable[[NamedQueue], int]]] = {
    "ready": lambda found: found.group.ready_count,
    "unacknowledged": unacknowledged_count,
    "consumers": lambda found: len(found.group.registrations),
}
_KINDS: Final = ("queue", "subscription")


class QueueHandlers:
    """The answers at `/queues` and `/queue`.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._named = engine.named_queues
        self._committed = committed

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/queues", self._list),
            web.get("/queue", self._show),
            web.delete("/queue", self._delete),
            web.post("/queue/purge", self._purge),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(await in_steps(self.page(Asked(request.query))))

    def page(self, asked: Asked) -> Generator[None, None, dict[str, Any]]:
        """One page of the list."""
        queues = self._named.queues
        names = list(queues)
        best: list[Key] = []
        bound: Key | None = None  # what comes behind it is not on the page
        total = 0
        for first in range(0, len(names), QUEUES_AT_ONCE):
            some = []
            for name in names[first : first + QUEUES_AT_ONCE]:
                found = queues.get(name)
                if found is None or not asked.wants(name):
                    continue
                if asked.user is not None and asked.user != self._user(found):
                    continue
                total += 1
                if asked.after is None or name > asked.after:
                    key = asked.key(name, found)
                    if bound is None or key < bound:
                        some.append(key)
            best = sorted(best + some)[: asked.limit + 1]
            if len(best) > asked.limit:
                bound = best[-1]
            yield
        rows = []
        for *_, name in best[: asked.limit]:
            found = queues.get(name)
            if found is not None:  # else it was deleted meanwhile
                rows.append(self._row(name, found))
            yield
        has_more = len(best) > asked.limit
        after = best[asked.limit - 1][-1] if has_more and asked.sort == "name" else None
        return {"queues": rows, "after": after, "total": total}

    def _user(self, found: NamedQueue) -> str:
        return self._engine.exchanges.owners.principal_of(found.terms.maker)

    def _row(self, name: str, found: NamedQueue) -> dict[str, Any]:
        terms = found.terms
        return {
            "name": name,
            "kind": _kind(name),
            "user": self._user(found),
            "durable": terms.durable,
            "exclusive": terms.exclusive,
            "auto_delete": terms.auto_delete,
            "arguments": dict(terms.arguments),
            "ready": found.group.ready_count,
            "unacknowledged": unacknowledged_count(found),
            "consumers": len(found.group.registrations),
        }

    def _queue(self, request: web.Request) -> NamedQueue:
        name = request.query.get("name")
        if not name:
            raise Refused(Reason.BAD_ARGUMENT, "name the queue: name")
        found = self._named.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        return found

    async def _show(self, request: web.Request) -> web.Response:
        found = self._queue(request)
        backlog = await in_steps(inspect_backlog(found), self._engine.core.reading)
        bindings: list[dict[str, str]] = []
        for (exchange, key, arguments), _ in self._engine.exchanges.bindings_of(found):
            if len(bindings) == BINDINGS_MAX:
                break
            bindings.append({"exchange": exchange, "routing_key": key, "arguments": arguments})
        return web.json_response(
            {
                **self._row(found.name, found),
                "ready_bytes": backlog.bytes,
                "ready_bytes_complete": backlog.is_complete,
                "oldest_ms": backlog.oldest_ms,
                "bindings": bindings,
            }
        )

    async def _purge(self, request: web.Request) -> web.Response:
        found = self._queue(request)
        count, position = self._named.purge(found.name, owner=found.owner)
        audit.note("queue purged", queue=found.name, messages=count, by=request[CALLER])
        await self._committed(position)
        return web.json_response({"name": found.name, "messages": count})

    async def _delete(self, request: web.Request) -> web.Response:
        found = self._queue(request)
        if _kind(found.name) == "subscription":
            name = found.name.removeprefix(SUBSCRIPTION_PREFIX)
            raise Refused(
                Reason.LOCKED,
                f"this is the queue of the subscription {name!r}: delete that over HTTP, "
                f"DELETE /subscriptions/{name}",
            )
        count, position = self._named.delete(
            found.name,
            if_unused=_flag(request.query, "if_unused"),
            if_empty=_flag(request.query, "if_empty"),
            owner=found.owner,
        )
        audit.note("queue deleted", queue=found.name, messages=count, by=request[CALLER])
        await self._committed(position)
        return web.json_response({"name": found.name, "messages": count})


class Asked:
    """What a request for a list asks for: a page, and filters. Raises Refused: BAD_ARGUMENT."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.limit = page_limit(query)
        self.after = query.get("after")
        self.sort = _one_of(query, "sort", ("name", *_NUMBERS))
        self._number = _NUMBERS.get(self.sort)
        if self.after is not None and self.sort != "name":
            raise Refused(Reason.BAD_ARGUMENT, "only a list that is sorted by name has pages")
        self._prefix = query.get("prefix", "")
        self.user = query.get("user")
        self._kind = _one_of(query, "kind", ("all", *_KINDS))

    def wants(self, name: str) -> bool:
        """Whether a queue of this name passes the filters."""
        return name.startswith(self._prefix) and self._kind in ("all", _kind(name))

    def key(self, name: str, found: NamedQueue) -> Key:
        """By which queues are sorted, ascending. The name stands last."""
        return (name,) if self._number is None else (-self._number(found), name)


def _kind(name: str) -> str:
    return "subscription" if name.startswith(SUBSCRIPTION_PREFIX) else "queue"


def _one_of(query: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = query.get(name, allowed[0])
    if value not in allowed:
        text = f"{name} is one of {', '.join(allowed)}, not {value!r}"
        raise Refused(Reason.BAD_ARGUMENT, text)
    return value


def _flag(query: Mapping[str, str], name: str) -> bool:
    return _one_of(query, name, ("false", "true")) == "true"
