"""Exchanges: their rows, and what is done with them.

Every topic is an exchange of type `topic`. Those that stand only for a queue of the same name,
because somebody published to it through the default exchange, are left out of lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from polymq.broker.accounts import audit
from polymq.broker.exchanges.entities import Exchange
from polymq.broker.names import is_own_topic
from polymq.gateways.amqp import mapping
from polymq.management.callers import Rank
from polymq.management.context import Context
from polymq.management.errors import missing
from polymq.management.json_values import plain
from polymq.management.lists import Items
from polymq.management.routing import VHOST, Call, Created, Route

DEFAULT_NAME: Final = "amq.default"
"""How paths name the default exchange, which has an empty name."""
PREDECLARED_PREFIX: Final = "amq."


def exchange_name(text: str) -> str:
    """The name of the exchange that a path names."""
    return "" if text == DEFAULT_NAME else text


class ExchangeHandlers:
    """The answers below `/exchanges`, but for bindings and messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._exchanges = context.engine.exchanges
        self._topics = context.engine.topics.topics

    def routes(self) -> list[Route]:
        """For the table."""
        rank, one = Rank.MANAGEMENT, "/exchanges/{vhost}/{exchange}"
        return [
            Route("GET", "/exchanges", rank, self._list),
            Route("GET", "/exchanges/{vhost}", rank, self._list),
            Route("GET", one, rank, self._show),
            Route("PUT", one, rank, self._declare),
            Route("DELETE", one, rank, self._delete),
        ]

    async def _list(self, call: Call) -> Items:
        exchanges, caller = self._exchanges, call.caller
        declared, queues = exchanges.exchanges, exchanges.queues

        def wants(name: str) -> bool:
            if name in declared:
                is_known = not name or name.startswith(PREDECLARED_PREFIX)
                return is_known or caller.may_know(name)
            if name in queues or is_own_topic(name) or exchanges.exchange(name) is None:
                return False
            return caller.may_know(name)

        def row(name: str) -> Mapping[str, Any] | None:
            found = exchanges.exchange(name)
            return None if found is None else self._row(found)

        entries = [*declared, *(name for name in self._topics if name not in declared)]
        return Items(entries=entries, row=row, name=str, wants=wants)

    def _row(self, found: Exchange) -> dict[str, Any]:
        topic = self._topics.get(found.name)
        stored = 0 if topic is None else sum(queue.flushed for queue in topic.queues)
        published = {"publish_in": stored, "publish_out": stored}
        row = {
            "name": found.name,
            "vhost": VHOST,
            "type": found.type,
            "durable": found.durable,
            "auto_delete": found.auto_delete,
            "internal": found.internal,
            "arguments": plain(found.arguments),
            "policy": None,
            "message_stats": self._context.rates.with_rates(("exchange", found.name), published),
        }
        owner = self._exchanges.owners.principal_of(found.by)
        if owner:
            row["user_who_performed_action"] = owner
        return row

    async def _show(self, call: Call) -> Mapping[str, Any]:
        found = self._found(call)
        return {**self._row(found), "incoming": [], "outgoing": []}

    def _found(self, call: Call) -> Exchange:
        name = exchange_name(call.names["exchange"])
        found = self._exchanges.exchange(name)
        if found is None:
            raise missing()
        return found

    async def _declare(self, call: Call) -> Created | None:
        name, body = exchange_name(call.names["exchange"]), call.body
        existed = self._exchanges.exchange(name) is not None
        position = call.caller.port.exchanges.declare(
            mapping.strip_name(name),
            type=body.text("type"),
            durable=body.flag("durable", True),
            auto_delete=body.flag("auto_delete", False),
            internal=body.flag("internal", False),
            arguments=mapping.exchange_arguments(body.table("arguments")),
        )
        if not existed:
            audit.note("exchange declared", exchange=name, by=call.caller.name)
        await self._context.committed(position)
        return None if existed else Created()

    async def _delete(self, call: Call) -> None:
        found = self._found(call)
        position = call.caller.port.exchanges.delete(
            found.name, if_unused=call.query.get("if-unused") == "true"
        )
        audit.note("exchange deleted", exchange=found.name, by=call.caller.name)
        await self._context.committed(position)
