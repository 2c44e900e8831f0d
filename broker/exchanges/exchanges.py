"""AMQP's exchanges and what is bound to them.

An exchange is a topic seen by AMQP (part 7 of ARCHITECTURE.md): its messages are the topic's, its
bindings are patterns in the one trie. The type only says how a binding key is read:

* `direct`: the key's levels as they are; `fanout`: anything; `topic`: `*` and `#` are wildcards.
* `headers`: its bindings look at the message's headers; they, and exchanges that are bound to
  exchanges, are not in the trie but in the graph (`graph.py`).
* The default exchange: topic = the queue's name, no tag. Every queue has the pattern (name,).
* `amq.topic` is the root: the key's first level is the topic.

A topic that other protocols have made is an exchange of type `topic` without a declaration, until
AMQP deletes it: then the topic goes on, and notes that it is no exchange (`exchange_deleted`) until
one of its name is declared again.

The queues themselves are in `named_queues/named_queues.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from polymq.broker.accounts.owners import Owners
from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.ends import ExchangeEnds
from polymq.broker.exchanges.entities import (
    ALTERNATE_ARGUMENT,
    DELAYED_ARGUMENT,
    DELAYED_TYPE,
    EXCHANGE_ARGUMENTS,
    PREDECLARED,
    TYPES,
    Exchange,
    NamedQueue,
    binding_address,
    binding_key,
    check_equal,
    is_server_named,
    need_queue,
    position_of,
    topic_and_tag,
    write_op,
)
from polymq.broker.exchanges.graph import ExchangeGraph, Link, LinkKey
from polymq.broker.names import ROOT_EXCHANGE, SERVER_NAMED, check_amqp_name
from polymq.broker.port.infos import ExchangeInfo
from polymq.broker.port.publishing import Template
from polymq.broker.port.values import Address, Position
from polymq.broker.queues.queue import Queue
from polymq.broker.routing.bindings import BindingKey
from polymq.broker.routing.header_match import is_pattern, pattern_of
from polymq.broker.routing.patterns import normal_form
from polymq.broker.routing.trie import address_of
from polymq.broker.state.journal import Entity, Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.header_routing import is_routed
from polymq.broker.topics.routes import Copying, TopicRoute
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import Batch

UNBOUND_AT_ONCE: Final = 16
"""Bindings that are undone with their queue at once. More are swept out later: that costs each
route a look at its targets."""


class Exchanges:
    """All exchanges of AMQP and the bindings of its queues.

    Args:
        queues: all of them by name; whoever owns them changes it.
    """

    def __init__(
        self, core: Core, topics: Topics, queues: Mapping[str, NamedQueue], owners: Owners
    ) -> None:
        self.core = core
        self.owners = owners
        self.topics = topics
        self.queues = queues
        self.exchanges: dict[str, Exchange] = {}
        self.graph = topics.graph = ExchangeGraph(
            exchange=self.exchange,
            router=topics.router,
            walked_max=core.limits.exchanges_walked_max,
            owners=owners,
            notices=core.notices,
            sweeper=core.sweeper,
        )
        self.ends = ExchangeEnds(core, topics, self.graph, exchanges=self.exchanges, queues=queues)
        topics.is_passing = self.is_passing
        self._binding_changes = 0  # of queues: what somebody may read of them may be another now
        for name, kind in PREDECLARED.items():
            self.exchanges[name] = Exchange(
                name,
                {
                    "type": kind,
                    "durable": True,
                    "auto_delete": False,
                    "internal": False,
                    "arguments": {},
                },
            )
        for name, handler in (
            ("exchange+", self._apply_exchange),
            ("exchange-", self._apply_exchange_end),
            ("bind+", self._apply_bind),
            ("bind-", self._apply_unbind),
            ("link+", self._apply_link),
            ("link-", self._apply_unlink),
            ("own", self._apply_owner),
        ):
            core.journal.handle(name, handler)

    # --- exchanges ------------------------------------------------------------------------

    def info(self, name: str) -> ExchangeInfo | None:
        """See `ExchangePort.info`."""
        found = self.exchange(name)
        return None if found is None else found.info()

    def exchange(self, name: str) -> Exchange | None:
        """A declared exchange, or the topic of that name seen as one."""
        found = self.exchanges.get(name)
        if found is None and self._is_by_itself(name):
            value = {
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            return Exchange(name, value)
        return found

    def _is_by_itself(self, name: str) -> bool:
        """Whether a topic is an exchange, where none of this name is declared."""
        topic = self.topics.topics.get(name)
        return topic is not None and not topic.exchange_deleted

    def is_made(self, topic: str) -> bool:
        """Whether somebody with the right to do so has made the topic, or a queue or an exchange
        that its messages are for."""
        return topic in self.topics.topics or topic in self.exchanges or topic in self.queues

    def is_passing(self, queue: str) -> bool:
        """Whether a queue goes by itself, so that its messages make no topic: it is exclusive,
        auto-delete, named by the server, or has an end of its lease."""
        found = self.queues.get(queue)
        if found is None:
            return queue.startswith(SERVER_NAMED)
        terms = found.terms
        return (
            terms.exclusive
            or terms.auto_delete
            or terms.settings.expires_ms is not None
            or queue.startswith(SERVER_NAMED)
        )

    def need_exchange(self, name: str) -> Exchange:
        """The exchange, or Refused NOT_FOUND."""
        found = self.exchange(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"no exchange '{name}' in vhost '/'")
        return found

    def declare(
        self,
        name: str,
        *,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
        user: str = "",
    ) -> Position:
        """See `ExchangePort.declare`. `user`: whose it is. If it exists, and its owner may
        not have its alternate exchange any more, it becomes the user's."""
        value = {
            "type": type,
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "arguments": dict(arguments),
        }
        existing = self.exchanges.get(name)
        if existing is not None:
            check_equal("exchange", name, existing.value(), value, EXCHANGE_ARGUMENTS)
            if self.graph.passes_alternate(existing):
                return Position(0)
            op = {"op": "own", "exchange": name, "by": self.owners.of(user)}
            return write_op(self.core, op, durable=existing.durable)
        if user and ALTERNATE_ARGUMENT in arguments:
            value["by"] = self.owners.of(user)
        return self.create(name, value)

    def create(self, name: str, value: Mapping[str, Any]) -> Position:
        """Make an exchange that is not there, as its row has it. Raises Refused."""
        limit = self.core.limits.exchanges_max
        if len(self.exchanges) >= limit:
            raise Refused(
                Reason.LIMIT, f"there are {limit} exchanges, which is the limit: delete some"
            )
        self.check_new(name, value["type"], value["arguments"])
        op = {"op": "exchange+", "name": name, **value}
        return write_op(self.core, op, durable=value["durable"])

    @staticmethod
    def check_new(name: str, type: str, arguments: Mapping[str, Any]) -> None:
        """Whether there can be such an exchange. Raises Refused."""
        if name.startswith("amq.") or not name:
            raise Refused(
                Reason.FORBIDDEN,
                f"exchange name '{name}' contains reserved prefix 'amq.*'"
                if name
                else "operation not permitted on the default exchange",
            )
        check_amqp_name("an exchange", name)
        _check_type(type, arguments)
        _check_alternate(arguments)

    def delete(self, name: str, *, if_unused: bool) -> Position:
        """See `ExchangePort.delete`."""
        if name in PREDECLARED:
            raise Refused(Reason.FORBIDDEN, f"exchange '{name}' cannot be deleted")
        found = self.exchange(name)
        if found is None:
            return Position(0)
        if if_unused and self.ends.is_used(name):
            raise Refused(Reason.IN_USE, f"exchange '{name}' in use")
        return self.ends.delete(name)

    def _apply_exchange(self, op: Op) -> Touched:
        name = op["name"]
        touched: set[Entity] = set()
        if self.exchange(name) is None and (self.ends.is_used(name) or self.graph.sources_of(name)):
            # In a fold: these were bound to one that went with its process.
            touched.update(self.end((name,), 0))
        found = self.exchanges[name] = Exchange(name, op)
        self._forget_routes(name)
        self.graph.declared(found)
        topic = self.topics.topics.get(name)
        if topic is None or not found.durable:
            return touched | {("exchange", name)}
        topic.exchange_deleted = False
        return touched | {("exchange", name), ("topic", name)}

    def _apply_owner(self, op: Op) -> Touched:
        """Somebody else answers for what goes on by itself in an exchange or a queue."""
        if "queue" in op:
            queue = self.queues.get(op["queue"])
            if queue is not None:
                queue.terms = replace(queue.terms, by=op["by"])
            return [("queue", op["queue"])]
        found = self.exchanges.get(op["exchange"])
        if found is not None:
            found.by = op["by"]
            self.graph.declared(found)
        return [("exchange", op["exchange"])]

    def _apply_exchange_end(self, op: Op) -> Touched:
        return self.end((op["name"], *op.get("x", ())), op.get("at", 0))

    def end(self, names: Sequence[str], at: int) -> Touched:
        """An op ends these exchanges. `at`: see `ExchangeEnds.apply`."""
        self._binding_changes += 1
        return self.ends.apply(names, at)

    def _forget_routes(self, name: str) -> None:
        """Whoever publishes there has to look again: what an exchange allows (internal), and does
        (delay, look at headers), is asked when a template is made."""
        if name in self.topics.topics:
            self.topics.router.forget_topics((name,))

    # --- bindings -------------------------------------------------------------------------

    def bindings_of(self, found: NamedQueue) -> Iterator[tuple[BindingKey, Address]]:
        """A queue's bindings with their patterns."""
        for key, address in found.bindings.pairs():
            if not key[0] or self.graph.is_bound(found.queue, key):
                yield key, address

    def collected(self, name: str) -> list[Address]:
        """The filters of all that a queue collects: what its readers need the right for."""
        found = self.queues.get(name)
        if found is None:
            return []
        return [
            address for _, address in self.bindings_of(found) if not is_server_named(address[0])
        ]

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `ExchangePort.bind_queue`."""
        found = need_queue(self.queues, queue, owner)
        source = self.need_exchange(exchange)
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        return self.bind_by(found, source, binding_key(source, routing_key, arguments))

    def bind_by(self, found: NamedQueue, source: Exchange, key: BindingKey) -> Position:
        """Bind by a key, unless it is bound so. Raises Refused."""
        if self.graph.is_bound(found.queue, key):
            return Position(0)
        address = binding_address(source, key[1])
        self._check_room(found, source, key, address)
        self.bind(found, key, address)
        return position_of(self.core, durable=found.queue.durable)

    def _check_room(
        self, found: NamedQueue, source: Exchange, key: BindingKey, address: Address
    ) -> None:
        """Raises Refused: LIMIT: the queue or the exchange has too many bindings."""
        limits, name = self.core.limits, source.name
        bound_count = len(found.bound_more or ())
        if bound_count >= limits.bindings_per_queue_max:
            bound_count = sum(1 for _ in self.bindings_of(found))
        if bound_count >= limits.bindings_per_queue_max:
            raise Refused(
                Reason.LIMIT,
                f"queue '{found.name}' has {limits.bindings_per_queue_max} bindings, which is the "
                "limit: remove some, or use fewer patterns with wildcards",
            )
        if self.graph.bound_count(name) >= limits.bindings_per_exchange_max:
            raise Refused(
                Reason.LIMIT,
                f"exchange '{name}' has {limits.bindings_per_exchange_max} bindings, which is the "
                "limit: spread them over several exchanges",
            )
        if not is_pattern(key[2]):
            self.topics.router.check_room(address)
        elif self.graph.headers_count(name) >= limits.headers_bindings_per_exchange_max:
            raise Refused(
                Reason.LIMIT,
                f"headers exchange '{name}' has {limits.headers_bindings_per_exchange_max} "
                "bindings, which is the limit: spread them over several exchanges",
            )

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `ExchangePort.unbind_queue`."""
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        source = self.exchange(exchange)
        if queue not in self.queues or source is None:
            return Position(0)  # as RabbitMQ has it: a queue may have gone with its last consumer
        found = need_queue(self.queues, queue, owner)
        key = binding_key(source, routing_key, arguments)
        if not self.graph.is_bound(found.queue, key):
            return Position(0)
        self.unbind(found, key)
        self.ends.delete_unused((exchange,))
        return position_of(self.core, durable=found.queue.durable)

    def bind(self, found: NamedQueue, key: BindingKey, address: Address) -> None:
        """Bind by a pattern. Raises Refused."""
        write_op(
            self.core,
            {"op": "bind+", "queue": found.name, "key": list(key), "w": list(address)},
            durable=found.queue.durable,
        )

    def unbind(self, found: NamedQueue, key: BindingKey) -> None:
        """Undo it. Raises Refused."""
        write_op(
            self.core,
            {"op": "bind-", "queue": found.name, "key": list(key)},
            durable=found.queue.durable,
        )

    def _apply_bind(self, op: Op) -> Touched:
        found = self.queues.get(op["queue"])
        if found is None:
            return []
        self.load_binding(found, tuple(op["key"]), tuple(op["w"]))
        return [("queue", found.name)]

    def load_binding_by_name(self, found: NamedQueue) -> None:
        """`load_binding` for what nearly every queue has: its binding to the default exchange."""
        self._binding_changes += 1
        found.bound_by_name = True
        queue = found.queue
        self.topics.router.subscribe((queue.name,), queue)

    def load_binding(self, found: NamedQueue, key: BindingKey, address: Address) -> None:
        """Take a binding from its op or its snapshot."""
        self._binding_changes += 1
        # Two keys may give the same pattern (topic `a` and direct `a`): the router has it once.
        address = normal_form(address)
        found.bindings[key] = address
        if key == ("", found.name, "{}"):
            address = found.bindings[key]  # the same strings again, not copies of them
        if not key[0]:  # nobody asks what is bound to the default exchange
            self.topics.router.subscribe(address, found.queue)
            return
        headers = pattern_of(key[2]) if is_pattern(key[2]) else None
        self.graph.bind(found.queue, key, address, headers)

    def forget_queue(self, found: NamedQueue) -> None:
        """The queue is gone: nothing is routed to it any more."""
        self._binding_changes += 1
        self.topics.router.forget((found.name,))  # who publishes there has to look again
        bindings = found.bindings.pairs()
        if len(bindings) > UNBOUND_AT_ONCE:
            self.graph.forget_queue(found.queue, bindings)
            return
        for key, address in bindings:
            self._unbind(found.queue, key, address)

    def _unbind(self, queue: Queue, key: BindingKey, address: Address) -> None:
        if key[0]:
            self.graph.unbind(queue, key, address)
        else:
            self.topics.router.unsubscribe(address, queue)

    def _apply_unbind(self, op: Op) -> Touched:
        found = self.queues.get(op["queue"])
        key: BindingKey = tuple(op["key"])
        address = found.bindings.pop(key, None) if found is not None else None
        if found is None or address is None:
            return []
        self._binding_changes += 1
        self._unbind(found.queue, key, address)
        return [("queue", found.name)]

    # --- exchanges that are bound to exchanges ---------------------------------------------

    def bind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
    ) -> Position:
        """See `ExchangePort.bind_exchange`. `user`: whose it is. If it exists, and its owner may
        not have it any more, it becomes the user's."""
        origin, key = self._link_key(destination, source, routing_key, arguments)
        links = self.graph.links(source)
        limits = self.core.limits
        known = links.get(key)
        if known is not None and self.graph.passes(known):
            return Position(0)
        if known is None and self.graph.link_count >= limits.links_max:
            raise Refused(
                Reason.LIMIT,
                f"there are {limits.links_max} bindings between exchanges, which is the limit: "
                "remove some",
            )
        if known is None and len(links) >= limits.exchange_links_max:
            raise Refused(
                Reason.LIMIT,
                f"exchange '{source}' has {len(links)} exchanges bound to it, which is the limit",
            )
        return self.link(origin, key, self.owners.of(user))

    def link(self, source: Exchange, key: LinkKey, by: str) -> Position:
        """Bind an exchange by a key, with the rights of an owner. Raises Refused."""
        address = binding_address(source, key[1])
        op = {"op": "link+", "from": source.name, "key": list(key), "w": list(address)}
        return self._write_link({**op, "by": by} if by else op)

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `ExchangePort.unbind_exchange`."""
        if self.exchange(destination) is None or self.exchange(source) is None:
            return Position(0)
        _, key = self._link_key(destination, source, routing_key, arguments)
        if key not in self.graph.links(source):
            return Position(0)
        position = self._unlink(source, key)
        self.ends.delete_unused((source,))
        return position

    def _link_key(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> tuple[Exchange, LinkKey]:
        origin = self.need_exchange(source)
        self.need_exchange(destination)
        if not source or not destination:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        return origin, (destination, *binding_key(origin, routing_key, arguments)[1:])

    def _unlink(self, source: str, key: LinkKey) -> Position:
        return self._write_link({"op": "link-", "from": source, "key": list(key)})

    def _write_link(self, op: Op) -> Position:
        """It lasts as long as both of its exchanges."""
        ends = (self.exchange(op["from"]), self.exchange(op["key"][0]))
        durable = all(end is not None and end.durable for end in ends)
        return write_op(self.core, op, durable=durable)

    def _apply_link(self, op: Op) -> Touched:
        self._load_link(op["from"], tuple(op["key"]), tuple(op["w"]), op.get("by", ""))
        return [("links", op["from"])]

    def _load_link(self, source: str, key: LinkKey, address: Address, by: str) -> None:
        pattern = pattern_of(key[2]) if is_pattern(key[2]) else None
        self.graph.add_link(source, key, Link(key[0], address, pattern, by))

    def _apply_unlink(self, op: Op) -> Touched:
        self.graph.remove_link(op["from"], tuple(op["key"]))
        return [("links", op["from"])]

    # --- routes ---------------------------------------------------------------------------

    def route(
        self, exchange: str, routing_key: str, *, internal: bool = False
    ) -> TopicRoute | None:
        """See `ExchangePort.route`. `internal`: the broker itself publishes."""
        if not exchange:
            address: Address = (routing_key,)
            known = routing_key in self.queues or routing_key in self.topics.topics
            if not known and not self.topics.router.match(address):
                return None
            if self.topics.makes_no_topic(routing_key):
                return self.topics.router.route(self.topics.address(routing_key, None))
            return self.topics.route(routing_key, None)
        source = self.need_exchange(exchange)
        if source.internal and not internal:
            raise Refused(
                Reason.FORBIDDEN, f"cannot publish to internal exchange '{exchange}' in vhost '/'"
            )
        return self.topics.route(*topic_and_tag(exchange, routing_key))

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """See `ExchangePort.is_routed`."""
        assert isinstance(template, TopicTemplate)
        return is_routed(self.topics, template, batch, row)

    def copying_route(
        self, exchange: str, routing_key: str, copies: Sequence[str], *, internal: bool = False
    ) -> TopicRoute | None:
        """See `ExchangePort.copying_route`. `internal`: the broker itself publishes."""
        route = self.route(exchange, routing_key, internal=internal)
        found: dict[Queue, None] = {}  # a set that keeps its order
        for key in copies:
            other = self.topics.router.route(self.topics.address(*topic_and_tag(exchange, key)))
            found.update((queue, None) for queue in other.queues if queue.name in self.queues)
        if not found:
            return route
        if route is None:
            route = self.topics.route(routing_key, None)
        return Copying(route, self.topics.router, tuple(found))

    def dead_letter_route(
        self, exchange: str, routing_key: str, copies: Sequence[str]
    ) -> TopicRoute | None:
        """See `dead_letters.Locations`."""
        if exchange and self.exchange(exchange) is None:
            return None
        return self.copying_route(exchange, routing_key, copies, internal=True)

    def may_dead_letter(self, queue: str, exchange: str, routing_key: str) -> bool:
        """See `dead_letters.Locations`."""
        found = self.queues.get(queue)
        if found is None or not found.terms.by:
            return True
        by = found.terms.by
        topic, tag = topic_and_tag(exchange, routing_key)
        creates = exchange in ("", ROOT_EXCHANGE) and not self.is_made(topic)
        may_read = self.owners.may_read(
            by, lambda: self.collected(queue), (queue, self._binding_changes)
        )
        return may_read and self.owners.may_publish(by, address_of(topic, tag), creates=creates)

    def queues_named(self, names: set[str]) -> frozenset[Queue]:
        """See `dead_letters.Locations`."""
        return frozenset(self.queues[name].queue for name in names if name in self.queues)

    # --- snapshot -------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (
            StateKind("exchange", self.row_exchange, each(self.load_exchange)),
            StateKind("links", self.row_links, each(self.load_links)),
        )

    def load_exchange(self, name: str, value: Mapping[str, Any]) -> None:
        """Take an exchange from its snapshot."""
        found = self.exchanges[name] = Exchange(name, value)
        self.graph.declared(found)

    def load_links(self, source: str, rows: list[Any]) -> None:
        """Take the exchanges that are bound to one from their snapshot."""
        for key, address, *by in rows:  # those of the time before owners end with the levels
            self._load_link(source, tuple(key), tuple(address), *by or ("",))

    def row_links(self, source: str) -> list[Any] | None:
        """The exchanges that are bound to one, as a JSON value for the snapshot."""
        links = self.graph.links(source)
        origin = self.exchange(source)
        if origin is None or not origin.durable:
            return None
        rows = [
            [list(key), list(link.address), *([link.by] if link.by else ())]
            for key, link in links.items()
            if (end := self.exchange(link.destination)) is not None and end.durable
        ]
        return rows or None

    def row_exchange(self, name: str) -> Mapping[str, Any] | None:
        """The exchange as a JSON value for the snapshot, unless it goes with the process."""
        found = self.exchanges.get(name)
        if found is None or not found.durable:
            return None
        return {**found.value(), "by": found.by} if found.by else found.value()

    def reopen(self) -> None:
        """After a restart: forget bindings to exchanges that went with the process, also in the
        rows of what they bound."""
        dirty = self.core.journal.dirty
        for name in self.graph.bound_exchanges():
            for queue, routing_key, arguments in list(self.graph.bound_to(name)):
                if not self._still_binds(name, arguments):
                    key = [name, routing_key, arguments]
                    dirty.update(self._apply_unbind({"queue": queue, "key": key}))
        for source in self.graph.sources():
            for link in list(self.graph.links(source)):
                if not self._still_binds(source, link[2]) or self.exchange(link[0]) is None:
                    dirty.update(self._apply_unlink({"from": source, "key": link}))

    def _still_binds(self, exchange: str, arguments: str) -> bool:
        """A topic goes on as a topic exchange; it looks at no headers."""
        found = self.exchange(exchange)
        return found is not None and (not is_pattern(arguments) or found.reads == "headers")


def _check_alternate(arguments: Mapping[str, Any]) -> None:
    """Raise Refused unless an alternate exchange, if there is one, has a name. It may come into
    being later."""
    if not isinstance(arguments.get(ALTERNATE_ARGUMENT, ""), str):
        raise Refused(
            Reason.BAD_ARGUMENT, f"invalid arg '{ALTERNATE_ARGUMENT}': the name of an exchange"
        )


def _check_type(type: str, arguments: Mapping[str, Any]) -> None:
    """Raise Refused unless exchanges of this type, with these arguments, are known."""
    if type == DELAYED_TYPE:
        if arguments.get(DELAYED_ARGUMENT) in TYPES:
            return
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"an exchange of type '{DELAYED_TYPE}' needs the argument '{DELAYED_ARGUMENT}': one of "
            f"{', '.join(TYPES)}",
        )
    if type not in TYPES:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"unknown exchange type '{type}': use one of {', '.join(TYPES)}, {DELAYED_TYPE}",
        )
