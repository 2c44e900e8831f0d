"""AMQP's exchanges and what is bound to them.

An exchange is a topic seen by AMQP (part 7 of ARCHITECTURE.md): its messages are the topic's, its
bindings are patterns in the one trie. The type only says how a binding key is read:

* `direct`: the key's words as they are; `fanout`: anything; `topic`: `*` and `#` are wildcards.
* The default exchange: topic = the queue's name, no tag. Every queue has the pattern (name,).
* `amq.topic` is the root: the key's first word is the topic.

The queues themselves are in `named_queues.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.core import Core
from broker.entities import (
    DELAYED_ARGUMENT,
    DELAYED_TYPE,
    PREDECLARED,
    TYPES,
    BindingKey,
    Exchange,
    NamedQueue,
    binding_words,
    canonical,
    check_equal,
    need_queue,
    place_of,
    position_of,
    write_op,
)
from broker.errors import Reason, Refused
from broker.journal import Op, Touched
from broker.port import Position, Words
from broker.queues.queue import Queue
from broker.topics import TopicRoute, Topics


class Exchanges:
    """All exchanges of AMQP and the bindings of its queues.

    Args:
        queues: all of them by name; whoever owns them changes it.
    """

    def __init__(self, core: Core, topics: Topics, queues: Mapping[str, NamedQueue]) -> None:
        self.core = core
        self.topics = topics
        self.queues = queues
        self.exchanges: dict[str, Exchange] = {}
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
        ):
            core.journal.handle(name, handler)

    # --- exchanges ------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange | None:
        """A declared exchange, or the topic of that name seen as one."""
        found = self.exchanges.get(name)
        if found is None and name in self.topics.topics:
            value = {
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            return Exchange(name, value)
        return found

    def need_exchange(self, name: str) -> Exchange:
        """The exchange, or Refused NOT_FOUND."""
        found = self.exchange(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"no exchange '{name}' in vhost '/'")
        return found

    def declare_exchange(
        self,
        name: str,
        *,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> Position:
        """See `BrokerPort.declare_exchange`."""
        value = {
            "type": type,
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "arguments": dict(arguments),
        }
        existing = self.exchanges.get(name)
        if existing is not None:
            check_equal("exchange", name, existing.value(), value)
            return Position(0)
        if name.startswith("amq.") or not name:
            raise Refused(
                Reason.FORBIDDEN,
                f"exchange name '{name}' contains reserved prefix 'amq.*'"
                if name
                else "operation not permitted on the default exchange",
            )
        _check_type(type, arguments)
        return write_op(self.core, {"op": "exchange+", "name": name, **value}, durable=durable)

    def delete_exchange(self, name: str, *, if_unused: bool) -> Position:
        """See `BrokerPort.delete_exchange`."""
        if name in PREDECLARED:
            raise Refused(Reason.FORBIDDEN, f"exchange '{name}' cannot be deleted")
        found = self.exchanges.get(name)
        if found is None:
            return Position(0)
        if if_unused and found.bindings:
            raise Refused(Reason.IN_USE, f"exchange '{name}' in use")
        for queue in list(self.queues.values()):
            for key in [key for key in queue.bindings if key[0] == name]:
                self.unbind(queue, key)
        return write_op(self.core, {"op": "exchange-", "name": name}, durable=found.durable)

    def _apply_exchange(self, op: Op) -> Touched:
        self.exchanges[op["name"]] = Exchange(op["name"], op)
        if op["type"] == DELAYED_TYPE:  # whoever publishes there has to look again
            self.topics.router.forget_topic(op["name"])
        return [("exchange", op["name"])]

    def _apply_exchange_end(self, op: Op) -> Touched:
        ended = self.exchanges.pop(op["name"], None)
        if ended is not None and ended.type == DELAYED_TYPE:
            self.topics.router.forget_topic(op["name"])
        return [("exchange", op["name"])]

    # --- bindings -------------------------------------------------------------------------

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.bind_queue`."""
        found = need_queue(self.queues, queue, owner)
        source = self.need_exchange(exchange)
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        key = (exchange, routing_key, canonical(arguments))
        if key in found.bindings:
            return Position(0)
        words = binding_words(source, routing_key)
        self.bind(found, key, words)
        return position_of(self.core, durable=found.queue.durable)

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.unbind_queue`."""
        found = need_queue(self.queues, queue, owner)
        source = self.need_exchange(exchange)
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        key = (exchange, routing_key, canonical(arguments))
        if key not in found.bindings:
            return Position(0)
        self.unbind(found, key)
        if source.auto_delete and not source.bindings:
            self.delete_exchange(exchange, if_unused=True)
        return position_of(self.core, durable=found.queue.durable)

    def bind(self, found: NamedQueue, key: BindingKey, words: Words) -> None:
        """Bind by a pattern. Raises Refused."""
        write_op(
            self.core,
            {"op": "bind+", "queue": found.name, "key": list(key), "w": list(words)},
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

    def load_binding(self, found: NamedQueue, key: BindingKey, words: Words) -> None:
        """Take a binding from its op or its snapshot."""
        # Two keys may give the same pattern (topic `a` and direct `a`): the trie has it once.
        found.bindings[key] = words
        if key == ("", found.name, "{}"):
            words = found.bindings[key]  # the same strings again, not copies of them
        self.topics.router.subscribe(words, found.queue)
        source = self.exchanges.get(key[0])
        if source is not None and key[0]:  # nobody asks what is bound to the default exchange
            source.bindings.add((found.name, key[1]))

    def forget_queue(self, found: NamedQueue) -> None:
        """The queue is gone: nothing is routed to it any more."""
        for words in found.bindings.values():
            self.topics.router.unsubscribe(words, found.queue)

    def _apply_unbind(self, op: Op) -> Touched:
        found = self.queues.get(op["queue"])
        key = tuple(op["key"])
        words = found.bindings.pop(key, None) if found is not None else None
        if found is None or words is None:
            return []
        if words not in found.bindings.values():
            self.topics.router.unsubscribe(words, found.queue)
        source = self.exchanges.get(key[0])
        if source is not None:
            source.bindings.discard((found.name, key[1]))
        return [("queue", found.name)]

    # --- routes ---------------------------------------------------------------------------

    def route(
        self, exchange: str, routing_key: str, *, internal: bool = False
    ) -> TopicRoute | None:
        """See `BrokerPort.exchange_route`. `internal`: the broker itself publishes."""
        if not exchange:
            words: Words = (routing_key,)
            known = routing_key in self.queues or routing_key in self.topics.topics
            if not known and not self.topics.router.match(words):
                return None
            return self.topics.route(routing_key, None)
        source = self.need_exchange(exchange)
        if source.internal and not internal:
            raise Refused(
                Reason.FORBIDDEN, f"cannot publish to internal exchange '{exchange}' in vhost '/'"
            )
        return self.topics.route(*place_of(exchange, routing_key))

    def dead_letter_route(self, exchange: str, routing_key: str) -> TopicRoute | None:
        """See `dead_letters.Places`."""
        if exchange and self.exchange(exchange) is None:
            return None
        return self.route(exchange, routing_key, internal=True)

    def queues_named(self, names: set[str]) -> frozenset[Queue]:
        """See `dead_letters.Places`."""
        return frozenset(self.queues[name].queue for name in names if name in self.queues)

    # --- snapshot -------------------------------------------------------------------------

    def load_exchange(self, name: str, value: Mapping[str, Any]) -> None:
        """Take an exchange from its snapshot."""
        self.exchanges[name] = Exchange(name, value)

    def row_exchange(self, name: str) -> Mapping[str, Any] | None:
        """The exchange as a JSON value for the snapshot, unless it goes with the process."""
        found = self.exchanges.get(name)
        return found.value() if found is not None and found.durable else None

    def reopen(self) -> None:
        """After a restart: forget bindings to exchanges that went with the process."""
        for found in self.queues.values():
            for key in found.bindings.chosen():
                if self.exchange(key[0]) is None:
                    self._apply_unbind({"queue": found.name, "key": list(key)})


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
