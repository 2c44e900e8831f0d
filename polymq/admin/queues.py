"""Queues that have a name: AMQP's queues and the named subscriptions of HTTP, in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Literal

from polymq.admin.commits import Committed
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Numbers, Page, PageQuery, each, page_of, values_of
from polymq.admin.queue_changes import QueueChangeHandlers
from polymq.admin.queue_moves import QueueMoveHandlers
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.inspection import inspect_backlog, unacknowledged_count
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.steps import in_steps

BINDINGS_MAX: Final = 1_000
"""Bindings of one queue that are shown."""

Kind = Literal["queue", "subscription"]

_NUMBERS: Final[Mapping[str, Numbers[NamedQueue]]] = {
    "ready": each(attrgetter("group.ready_count")),
    "unacknowledged": each(unacknowledged_count),
    "consumers": each(lambda found: len(found.group.registrations)),
}
_NAME: Final = attrgetter("queue.name")


class Queue(Value):
    """A queue and the numbers of its messages.

    Attributes:
        name: of the queue; that of a subscription has %SUB% before its name.
        kind: `queue` (AMQP) or `subscription` (HTTP).
        user: who declared it; empty if there were no users.
        durable: whether it survives a restart.
        exclusive: whether it belongs to one connection.
        auto_delete: whether it ends with its last consumer.
        arguments: as its declaration gave them, such as x-max-length.
        ready: messages that wait for a consumer.
        unacknowledged: messages that were delivered, and are neither acknowledged nor given back.
        consumers: how many there are.
        paused_ms: since when it hands out nothing, because an operator has paused it, in
            milliseconds since the epoch; null: it is not paused.
        paused_by: who has paused it; null: it is not paused.
    """

    name: str
    kind: Kind
    user: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    ready: int
    unacknowledged: int
    consumers: int
    paused_ms: int | None
    paused_by: str | None


class Binding(Value):
    """What brings messages into a queue.

    Attributes:
        exchange: its name; empty for the default exchange.
        routing_key: of the binding.
        arguments: of the binding, as text.
    """

    exchange: str
    routing_key: str
    arguments: str


class QueueDetails(Queue):
    """A queue, what waits in it, and its bindings.

    Attributes:
        ready_bytes: of the messages that wait, as they are in the log.
        ready_bytes_complete: whether all of them were counted; false for very long queues.
        oldest_ms: when the oldest message that waits was stored, in milliseconds since the epoch;
            null: nothing waits.
        bindings: at most 1,000.
    """

    ready_bytes: int
    ready_bytes_complete: bool
    oldest_ms: int | None
    bindings: list[Binding]


class QueueMessages(Value):
    """How many messages a queue lost.

    Attributes:
        name: of the queue.
        messages: how many were removed.
    """

    name: str
    messages: int


class QueuesQuery(PageQuery):
    """Which queues.

    Attributes:
        sort: by name, or by a number, the largest first.
        user: only queues that this user declared.
        kind: only queues of AMQP, or only subscriptions over HTTP.
        paused: only those that are paused, or only those that are not.
    """

    sort: Literal["name", "ready", "unacknowledged", "consumers"] = "name"
    user: str | None = None
    kind: Literal["all", "queue", "subscription"] = "all"
    paused: bool | None = None


class DeleteQuery(Given):
    """When a queue may be deleted.

    Attributes:
        if_unused: only if it has no consumers.
        if_empty: only if no messages are ready in it.
    """

    if_unused: bool = False
    if_empty: bool = False


class QueueHandlers:
    """Carries out the operations on queues.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._named = engine.named_queues
        self._committed = committed
        self._moves = QueueMoveHandlers(engine, committed)

    def group(self) -> Group:
        """The operations."""
        named = {"name": "the queue"}
        return Group(
            name="queues",
            about="Queues of AMQP, and subscriptions that applications pull over HTTP.",
            operations=[
                Operation(
                    method="GET",
                    path="/queues",
                    name="listQueues",
                    summary="List queues with the numbers of their messages and consumers",
                    right="monitor",
                    handler=self._list,
                    query=QueuesQuery,
                    answer=Page[Queue],
                ),
                Operation(
                    method="GET",
                    path="/queues/{name}",
                    name="getQueue",
                    summary="Show a queue, what waits in it, and its bindings",
                    right="monitor",
                    handler=self._show,
                    answer=QueueDetails,
                    path_about=named,
                ),
                *QueueChangeHandlers(self._engine, self._committed).operations(),
                Operation(
                    method="DELETE",
                    path="/queues/{name}",
                    name="deleteQueue",
                    summary="Delete a queue with its messages and bindings",
                    right="operate",
                    handler=self._delete,
                    query=DeleteQuery,
                    answer=QueueMessages,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/queues/{name}/purge",
                    name="purgeQueue",
                    summary="Remove the messages of a queue that are ready",
                    about="Messages that consumers have stay, and other queues keep their copies.",
                    right="operate",
                    handler=self._purge,
                    answer=QueueMessages,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/queues/{name}/pause",
                    name="pauseQueue",
                    summary="Hand out nothing of a queue until it is resumed",
                    about="Also after a restart. Messages are collected meanwhile. Consumers stay, "
                    "and keep what they have.",
                    right="operate",
                    handler=self._pause,
                    answer=Queue,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/queues/{name}/resume",
                    name="resumeQueue",
                    summary="Hand out the messages of a queue again",
                    right="operate",
                    handler=self._resume,
                    answer=Queue,
                    path_about=named,
                ),
                self._moves.operation(),
            ],
        )

    async def _list(self, call: Call[QueuesQuery]) -> Page[Queue]:
        query, queues = call.query, self._named.queues
        kind = query.kind
        listing = Listing(
            names=queues,
            find=queues.get,
            row=lambda name, found: Queue(**self._row(name, found)),
            entries=values_of(queues),
            names_of=lambda some: list(map(_NAME, some)),
            numbers=_NUMBERS.get(query.sort),
            wants_name=None if kind == "all" else lambda name: _kind(name) == kind,
            wants=None if query.user is None and query.paused is None else self._wants(query),
        )
        return await in_steps(page_of(listing, query))

    def _wants(self, query: QueuesQuery) -> Callable[[NamedQueue], bool]:
        user, paused = query.user, query.paused
        return lambda found: (
            (paused is None or (found.pause is not None) == paused)
            and (user is None or self._user(found) == user)
        )

    def _user(self, found: NamedQueue) -> str:
        return self._engine.exchanges.owners.principal_of(found.terms.maker)

    def _row(self, name: str, found: NamedQueue) -> dict[str, Any]:
        terms, pause = found.terms, found.pause
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
            "paused_ms": None if pause is None else pause.since_ms,
            "paused_by": None if pause is None else pause.by,
        }

    def _queue(self, call: Call[Any]) -> NamedQueue:
        name = call.path["name"]
        found = self._named.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        return found

    async def _show(self, call: Call[Given]) -> QueueDetails:
        found = self._queue(call)
        backlog = await in_steps(inspect_backlog(found), self._engine.core.reading)
        bindings: list[Binding] = []
        for (exchange, key, arguments), _ in self._engine.exchanges.bindings_of(found):
            if len(bindings) == BINDINGS_MAX:
                break
            bindings.append(Binding(exchange=exchange, routing_key=key, arguments=arguments))
        return QueueDetails(
            **self._row(found.name, found),
            ready_bytes=backlog.bytes,
            ready_bytes_complete=backlog.is_complete,
            oldest_ms=backlog.oldest_ms,
            bindings=bindings,
        )

    async def _purge(self, call: Call[Given]) -> QueueMessages:
        found = self._queue(call)
        count, position = self._named.purge(found.name, owner=found.owner)
        audit.note("queue purged", queue=found.name, messages=count, by=call.caller)
        await self._committed(position)
        return QueueMessages(name=found.name, messages=count)

    async def _pause(self, call: Call[Given]) -> Queue:
        found = self._queue(call)
        position = self._named.pausing.pause(found.name, by=call.caller)
        audit.note("queue paused", queue=found.name, by=call.caller)
        await self._committed(position)
        return Queue(**self._row(found.name, found))

    async def _resume(self, call: Call[Given]) -> Queue:
        found = self._queue(call)
        position = self._named.pausing.resume(found.name)
        audit.note("queue resumed", queue=found.name, by=call.caller)
        await self._committed(position)
        return Queue(**self._row(found.name, found))

    async def _delete(self, call: Call[DeleteQuery]) -> QueueMessages:
        found = self._queue(call)
        if _kind(found.name) == "subscription":
            name = found.name.removeprefix(SUBSCRIPTION_PREFIX)
            raise Refused(
                Reason.LOCKED,
                f"this is the queue of the subscription {name!r}: delete that over HTTP, "
                f"DELETE /subscriptions/{name}",
            )
        count, position = self._named.delete(
            found.name,
            if_unused=call.query.if_unused,
            if_empty=call.query.if_empty,
            owner=found.owner,
        )
        audit.note("queue deleted", queue=found.name, messages=count, by=call.caller)
        await self._committed(position)
        return QueueMessages(name=found.name, messages=count)


def _kind(name: str) -> Kind:
    return "subscription" if name.startswith(SUBSCRIPTION_PREFIX) else "queue"
