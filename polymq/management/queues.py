"""Queues: their rows, and what is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from polymq.broker.accounts import audit
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.inspection import inspect_backlog, unacknowledged_count
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.gateways.amqp import mapping
from polymq.management.callers import Rank
from polymq.management.consumers import consumers_of_queue
from polymq.management.context import Context
from polymq.management.errors import bad
from polymq.management.figures import COUNTERS, GAUGES, Rater, with_details
from polymq.management.json_values import plain
from polymq.management.lists import Items, wanted_of
from polymq.management.routing import VHOST, Call, Created, Route
from polymq.steps import in_steps

QUEUE_TYPE: Final = "x-queue-type"
CLASSIC: Final = "classic"
_SORTED: Final = frozenset((name,) for name in (*GAUGES, "consumers"))
"""Fields that a list is sorted by without making its rows."""
_NAME: Final = attrgetter("queue.name")
_ACTIONS: Final = ("sync", "cancel_sync")


def counts_of(found: NamedQueue) -> dict[str, int]:
    """The numbers of a queue's messages. What was delivered or acknowledged once is counted as of
    the queue's beginning, and so is what was dropped or purged."""
    ready = unacknowledged = published = delivered = settled = 0
    for group in found.group.all_groups():
        cursor = group.cursor
        outstanding = cursor.outstanding_count
        ready += group.ready_count
        unacknowledged += outstanding
        published += group.queue.visible
        delivered += cursor.next - cursor.requeued_count
        settled += cursor.next - cursor.requeued_count - outstanding
    return {
        "messages": ready + unacknowledged,
        "messages_ready": ready,
        "messages_unacknowledged": unacknowledged,
        "publish": published,
        "deliver_get": delivered,
        "ack": settled,
    }


def number_of(found: NamedQueue, name: str) -> int:
    """One of the numbers that most lists are sorted by, without those around it."""
    if name == "consumers":
        return len(found.group.registrations)
    ready = 0 if name == "messages_unacknowledged" else found.group.ready_count
    return ready if name == "messages_ready" else ready + unacknowledged_count(found)


class QueueHandlers:
    """The answers below `/queues`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._named = context.engine.named_queues

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.MANAGEMENT
        one = "/queues/{vhost}/{queue}"
        return [
            Route("GET", "/queues", rank, self._list),
            Route("GET", "/queues/{vhost}", rank, self._list),
            Route("GET", "/queues/detailed", rank, self._list),
            Route("GET", one, rank, self._show),
            Route("PUT", one, rank, self._declare),
            Route("DELETE", one, rank, self._delete),
            Route("DELETE", f"{one}/contents", rank, self._purge),
            Route("POST", f"{one}/actions", rank, self._act),
        ]

    # --- rows -----------------------------------------------------------------------------

    async def _list(self, call: Call) -> Items:
        queues, engine, caller = self._named.queues, self._engine, call.caller
        wanted = wanted_of(call.query)
        shown_count = len(queues) if wanted.page is None else wanted.page_size
        rates = self._context.rates.rates_of_many(shown_count)

        def row(found: NamedQueue) -> Mapping[str, Any] | None:
            return self.row(found, rates) if queues.get(found.name) is found else None

        def number(found: NamedQueue) -> int:
            assert wanted.sort is not None
            return number_of(found, wanted.sort[0])

        return Items(
            entries=list(queues.values()),
            row=row,
            name=_NAME,
            wants=None if caller.sees_all else lambda found: caller.may_see(engine, found),
            key=number if wanted.sort is not None and tuple(wanted.sort) in _SORTED else None,
        )

    def row(self, found: NamedQueue, rates: Rater | None = None) -> dict[str, Any]:
        """What lists show of a queue.

        Args:
            rates: those of its numbers; None: a sample is taken.
        """
        terms, pause, node = found.terms, found.pause, self._context.node.name
        counts = counts_of(found)
        changes = (rates or self._context.rates.rates)(("queue", found.name), counts)
        kind = terms.arguments.get(QUEUE_TYPE, CLASSIC)
        row: dict[str, Any] = {
            "name": found.name,
            "vhost": VHOST,
            "type": kind,
            "durable": terms.durable,
            "auto_delete": terms.auto_delete,
            "exclusive": terms.exclusive,
            "arguments": plain(terms.arguments) if terms.arguments else {},
            "node": node,
            "state": "running",
            "paused": None if pause is None else {"since_ms": pause.since_ms, "by": pause.by},
            "policy": None,
            "operator_policy": None,
            "effective_policy_definition": {},
            "consumers": len(found.group.registrations),
            "consumer_utilisation": 0,
            "consumer_capacity": 0,
            "exclusive_consumer_tag": None,
            "single_active_consumer_tag": None,
            "memory": 0,
            "messages_ram": 0,
            "messages_persistent": counts["messages"] if terms.durable else 0,
            "message_stats": with_details(counts, changes, COUNTERS),
            **with_details(counts, changes, GAUGES),
        }
        if kind != CLASSIC:
            row |= {"leader": node, "members": [node], "online": [node]}
        owner = self._engine.exchanges.owners.principal_of(terms.maker)
        if owner:
            row["user_who_performed_action"] = owner
        return row

    async def _show(self, call: Call) -> Mapping[str, Any]:
        found = self._context.queue(call)
        backlog = await in_steps(inspect_backlog(found), self._engine.core.reading)
        oldest = backlog.oldest_ms
        consumers = consumers_of_queue(found, self._context.node.name)
        return {
            **self.row(found),
            "message_bytes": backlog.bytes,
            "message_bytes_ready": backlog.bytes,
            "message_bytes_unacknowledged": 0,
            "message_bytes_persistent": backlog.bytes if found.terms.durable else 0,
            "message_bytes_ram": 0,
            "head_message_timestamp": None if oldest is None else oldest // 1000,
            "consumer_details": consumers,
            "deliveries": [],
            "incoming": [],
        }

    # --- changes --------------------------------------------------------------------------

    async def _declare(self, call: Call) -> Created | None:
        name, body = call.names["queue"], call.body
        existed = name in self._named.queues
        _, position = call.caller.port.queues.declare(
            mapping.strip_name(name),
            durable=body.flag("durable", True),
            exclusive=False,
            auto_delete=body.flag("auto_delete", False),
            arguments=mapping.queue_arguments(body.table("arguments")),
            owner=None,
        )
        if not existed:
            audit.note("queue declared", queue=name, by=call.caller.name)
        await self._context.committed(position)
        return None if existed else Created()

    async def _delete(self, call: Call) -> None:
        found = self._context.queue(call)
        _check_is_queue(found)
        port, owner = self._acting(call, found)
        count, position = port.queues.delete(
            found.name,
            if_unused=call.query.get("if-unused") == "true",
            if_empty=call.query.get("if-empty") == "true",
            owner=owner,
        )
        audit.note("queue deleted", queue=found.name, messages=count, by=call.caller.name)
        await self._context.committed(position)

    async def _purge(self, call: Call) -> None:
        found = self._context.queue(call)
        port, owner = self._acting(call, found)
        count, position = port.queues.purge(found.name, owner=owner)
        audit.note("queue purged", queue=found.name, messages=count, by=call.caller.name)
        await self._context.committed(position)

    def _acting(self, call: Call, found: NamedQueue) -> tuple[Any, object]:
        """The port to act with, and as whom: operators may act on all queues."""
        if call.caller.operates:
            return self._engine.port, found.owner
        return call.caller.port, None

    async def _act(self, call: Call) -> None:
        """There are no mirrors: all that could be synchronized is."""
        self._context.queue(call)
        action = call.body.text("action")
        if action not in _ACTIONS:
            raise bad(f"unknown action {action!r}: use one of {', '.join(_ACTIONS)}")


def _check_is_queue(found: NamedQueue) -> None:
    if found.name.startswith(SUBSCRIPTION_PREFIX):
        name = found.name.removeprefix(SUBSCRIPTION_PREFIX)
        raise bad(
            f"this is the queue of the subscription {name!r}: delete that over HTTP, "
            f"DELETE /subscriptions/{name}"
        )
