"""Bindings: their rows, their names, and what is done with them.

A binding has no name in AMQP. RabbitMQ makes one up (`properties_key`): the routing key, or `~` for
an empty one, and behind it `~` and a hash of the arguments, if there are any.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from polymq.broker.accounts import audit
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.routing.header_match import MATCH, is_pattern, untagged
from polymq.gateways.amqp import mapping
from polymq.management.callers import Caller, Rank
from polymq.management.context import Context
from polymq.management.errors import missing
from polymq.management.exchanges import exchange_name
from polymq.management.json_values import plain
from polymq.management.lists import Items
from polymq.management.routing import VHOST, Call, Created, Route

HASH_CHARACTERS: Final = 16
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
_KINDS: Final = ("q", "e")
"""How paths name the kinds of destinations."""


class Binding(NamedTuple):
    """One binding.

    Attributes:
        kind: of the destination: QUEUE or EXCHANGE.
        text: the arguments, as the broker keeps them.
    """

    source: str
    kind: str
    destination: str
    key: str
    text: str

    @property
    def properties_key(self) -> str:
        """The name that RabbitMQ makes up."""
        key = quote_plus(self.key, errors="surrogateescape").replace("~", "%7E") or "~"
        if not arguments_of(self.text):
            return key
        digest = hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()
        return f"{key}~{digest[:HASH_CHARACTERS]}"

    def row(self) -> dict[str, Any]:
        """What lists show."""
        return {
            "source": self.source,
            "vhost": VHOST,
            "destination": self.destination,
            "destination_type": self.kind,
            "routing_key": self.key,
            "arguments": plain(arguments_of(self.text)),
            "properties_key": self.properties_key,
        }


NO_ARGUMENTS: Final = "{}"


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a binding, from the text that the broker keeps."""
    if is_pattern(text):
        mode, wanted = json.loads(text.partition(":")[2])
        found: dict[str, Any] = {MATCH: mode} if wanted or mode != "all" else {}
        return found | {name: untagged(value) for name, value in wanted}
    if text == NO_ARGUMENTS:
        return {}
    try:
        return dict(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return {}


class BindingHandlers:
    """The answers below `/bindings`, and the bindings of queues and exchanges."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._exchanges = context.engine.exchanges

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.MANAGEMENT
        both = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
        of_exchange = "/exchanges/{vhost}/{exchange}/bindings"
        return [
            Route("GET", "/bindings", rank, self._list),
            Route("GET", "/bindings/{vhost}", rank, self._list),
            Route("GET", "/queues/{vhost}/{queue}/bindings", rank, self._of_queue),
            Route("GET", f"{of_exchange}/source", rank, self._from_exchange),
            Route("GET", f"{of_exchange}/destination", rank, self._to_exchange),
            Route("GET", both, rank, self._between),
            Route("POST", both, rank, self._bind),
            Route("GET", f"{both}/{{properties}}", rank, self._show),
            Route("DELETE", f"{both}/{{properties}}", rank, self._unbind),
        ]

    # --- lists ----------------------------------------------------------------------------

    async def _list(self, call: Call) -> Items:
        return self._items(self.everything(call.caller))

    def _items(self, entries: Iterator[Binding | None]) -> Items:
        return Items(entries=entries, row=Binding.row)

    def everything(self, caller: Caller) -> Iterator[Binding | None]:
        """All bindings that the caller may see; None where it may not."""
        for name in list(self._engine.named_queues.queues):
            found = self._engine.named_queues.queues.get(name)
            yield None
            if found is not None and caller.may_see(self._engine, found):
                yield from self._of(found)
        for source in self._exchanges.graph.sources():
            yield None
            if caller.may_know(source):
                yield from self._links(source)

    def _of(self, found: NamedQueue) -> Iterator[Binding]:
        is_subscription = found.name.startswith(SUBSCRIPTION_PREFIX)
        for (source, key, text), _ in self._exchanges.bindings_of(found):
            if source or not is_subscription:
                yield Binding(source, QUEUE, found.name, key, text)

    def _links(self, source: str) -> Iterator[Binding]:
        for destination, key, text in list(self._exchanges.graph.links(source)):
            yield Binding(source, EXCHANGE, destination, key, text)

    async def _of_queue(self, call: Call) -> Items:
        return self._items(self._of(self._context.queue(call)))

    async def _from_exchange(self, call: Call) -> Items:
        return self._items(self._from(self._need(call.names["exchange"]), call.caller))

    def _from(self, source: str, caller: Caller) -> Iterator[Binding | None]:
        if not source:
            return (
                one if one is not None and not one.source else None
                for one in self.everything(caller)
            )
        return self._from_named(source, caller)

    def _from_named(self, source: str, caller: Caller) -> Iterator[Binding | None]:
        queues = self._engine.named_queues.queues
        for queue, key, text in list(self._exchanges.graph.bound_to(source)):
            found = queues.get(queue)
            sees = found is not None and caller.may_see(self._engine, found)
            yield Binding(source, QUEUE, queue, key, text) if sees else None
        yield from self._links(source)

    async def _to_exchange(self, call: Call) -> Items:
        name = self._need(call.names["exchange"])

        def entries() -> Iterator[Binding | None]:
            for source in sorted(self._exchanges.graph.sources_of(name)):
                for one in self._links(source):
                    yield one if one.destination == name else None

        return self._items(entries())

    def _need(self, text: str) -> str:
        name = exchange_name(text)
        if self._exchanges.exchange(name) is None:
            raise missing()
        return name

    # --- one ------------------------------------------------------------------------------

    def _ends(self, call: Call) -> tuple[str, str, str]:
        """Source, kind of the destination, destination. Raises Problem: one is not there."""
        source = self._need(call.names["source"])
        if call.names["kind"] not in _KINDS:
            raise missing()
        if call.names["kind"] == _KINDS[0]:
            queue = self._engine.named_queues.queues.get(call.names["destination"])
            if queue is None or not call.caller.may_see(self._engine, queue):
                raise missing()
            return source, QUEUE, queue.name
        return source, EXCHANGE, self._need(call.names["destination"])

    def _of_both(self, call: Call) -> Iterator[Binding]:
        source, kind, destination = self._ends(call)
        if kind == QUEUE:
            found = self._engine.named_queues.queues[destination]
            return (one for one in self._of(found) if one.source == source)
        return (one for one in self._links(source) if one.destination == destination)

    async def _between(self, call: Call) -> Items:
        return self._items(self._of_both(call))

    def _find(self, call: Call) -> Binding:
        """The binding that a path names. Some clients quote less or more than RabbitMQ does, or
        give the routing key as it is."""
        wanted = call.names["properties"]
        found: Binding | None = None
        for one in self._of_both(call):
            if wanted == one.properties_key:
                return one
            if unquote_plus(wanted) == unquote_plus(one.properties_key) or wanted == one.key:
                found = found or one
        if found is None:
            raise missing()
        return found

    async def _show(self, call: Call) -> Mapping[str, Any]:
        return self._find(call).row()

    async def _bind(self, call: Call) -> object:
        source, kind, destination = self._ends(call)
        key = call.body.text("routing_key", "")
        arguments = mapping.binding_arguments(call.body.table("arguments"))
        exchanges = call.caller.port.exchanges
        if kind == QUEUE:
            owner = self._engine.named_queues.queues[destination].owner
            position = exchanges.bind_queue(
                destination, source, key, arguments, owner=owner if call.caller.operates else None
            )
        else:
            position = exchanges.bind_exchange(destination, source, key, arguments)
        self._note("bound", source, destination, key, call)
        await self._context.committed(position)
        for one in self._of_both(call):
            if one.key == key and arguments_of(one.text).items() >= dict(arguments).items():
                return Created(f"{_quoted(destination)}/{_quoted(one.properties_key)}")
        return Created()

    async def _unbind(self, call: Call) -> None:
        one = self._find(call)
        arguments, exchanges = arguments_of(one.text), call.caller.port.exchanges
        if one.kind == QUEUE:
            owner = self._engine.named_queues.queues[one.destination].owner
            position = exchanges.unbind_queue(
                one.destination,
                one.source,
                one.key,
                arguments,
                owner=owner if call.caller.operates else None,
            )
        else:
            position = exchanges.unbind_exchange(one.destination, one.source, one.key, arguments)
        self._note("unbound", one.source, one.destination, one.key, call)
        await self._context.committed(position)

    def _note(self, what: str, source: str, destination: str, key: str, call: Call) -> None:
        audit.note(
            f"binding {what}",
            source=source,
            destination=destination,
            key=key,
            by=call.caller.name,
        )


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogateescape")
