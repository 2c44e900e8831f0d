"""AMQP's entities: exchanges, queues, bindings; and the named subscriptions of HTTP, which are
queues bound to a pattern.

An exchange is a topic seen by AMQP (part 7 of ARCHITECTURE.md): its messages are the topic's, its
bindings are patterns in the one trie. The type only says how a binding key is read:

* `direct`: the key's words as they are; `fanout`: anything; `topic`: `*` and `#` are wildcards.
* The default exchange: topic = the queue's name, no tag. Every queue has the pattern (name,).
* `amq.topic` is the root: the key's first word is the topic.

A queue that is durable has its index on disk and its place in every record; one that is not lives
in memory and goes with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    place_of,
)
from broker.errors import Reason, Refused
from broker.journal import Op, Touched
from broker.moves import Moves
from broker.port import (
    Consumer,
    Delivery,
    Position,
    QueueInfo,
    Words,
)
from broker.queues.dead_letters import DeadLetters
from broker.queues.features import QueueFeatures
from broker.queues.priorities import Levels
from broker.queues.queue import Group, Hold, Queue
from broker.queues.settings import settings_of
from broker.topics import TopicRoute, Topics

SUBSCRIPTION_PREFIX: Final = "%SUB%"
"""Queue names of named subscriptions. AMQP clients may not declare them."""


@dataclass(slots=True)
class _AutoDeleting:
    """A hold whose cancelling may delete its queue: the `QueueConsumer` of the port."""

    entities: Exchanges
    queue: NamedQueue
    hold: Hold = field(repr=False)

    def settle(self, first_offset: int, count: int) -> None:
        self.hold.settle(first_offset, count)

    def requeue(self, first_offset: int, count: int) -> None:
        self.hold.requeue(first_offset, count)

    def reject(self, first_offset: int, count: int) -> None:
        self.hold.reject(first_offset, count)

    def ready(self) -> None:
        self.hold.ready()

    def cancel(self) -> None:
        self.hold.cancel()
        self.entities.consumer_left(self.queue, self.hold)

    @property
    def active(self) -> bool:
        """Whether messages may still come."""
        return self.hold.active

    @property
    def group(self) -> Group | Levels:
        """What it holds messages of (for moves)."""
        return self.hold.group


class Exchanges:
    """All exchanges, queues and bindings of AMQP, and the named subscriptions."""

    def __init__(
        self, core: Core, topics: Topics, moves: Moves, new_name: Callable[[], str]
    ) -> None:
        self.core = core
        self.dead_letters = DeadLetters(core, topics, moves, self)
        self.topics = topics
        self.new_name = new_name
        """Makes up the random part of a server-named queue."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, NamedQueue] = {}
        self.features = QueueFeatures(
            core,
            self.dead_letters,
            queues=self.queues,
            write=self._write,
            end=self._end_queue,
        )
        self.counts: dict[str, int] = {}
        """Queues by the user that declared them; users without one are not in it."""
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
            ("queue+", self._apply_queue),
            ("queue-", self._apply_queue_end),
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
            _check_equal("exchange", name, existing.value(), value)
            return Position(0)
        if name.startswith("amq.") or not name:
            raise Refused(
                Reason.FORBIDDEN,
                f"exchange name '{name}' contains reserved prefix 'amq.*'"
                if name
                else "operation not permitted on the default exchange",
            )
        _check_type(type, arguments)
        return self._write({"op": "exchange+", "name": name, **value}, durable=durable)

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
                self._unbind(queue, key)
        return self._write({"op": "exchange-", "name": name}, durable=found.durable)

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

    # --- queues ---------------------------------------------------------------------------

    def need_queue(self, name: str, owner: object) -> NamedQueue:
        """The queue, or Refused NOT_FOUND or LOCKED."""
        found = self.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"no queue '{name}' in vhost '/'")
        if found.exclusive and found.owner is not owner:
            raise _locked(name)
        if found.lease is not None:
            found.lease.touch()
        return found

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        owner: object,
        user: str = "",
    ) -> tuple[QueueInfo, Position]:
        """See `BrokerPort.declare_queue`. `user`: whose quota it counts for."""
        value = {
            "durable": durable,
            "exclusive": exclusive,
            "auto_delete": auto_delete,
            "arguments": dict(arguments),
        }
        settings_of(name, arguments)
        if not name:
            name = f"amq.gen-{self.new_name()}"
        elif name in self.queues:
            existing = self.need_queue(name, owner)
            if existing.exclusive != exclusive:
                raise _locked(name)
            _check_equal("queue", name, existing.value(), value)
            return existing.info(), Position(0)
        elif name.startswith(("amq.", SUBSCRIPTION_PREFIX)):
            raise Refused(Reason.FORBIDDEN, f"queue name '{name}' contains a reserved prefix")
        position = self._create_queue(name, {**value, "u": user} if user else value, owner)
        self._bind(self.queues[name], ("", name, "{}"), (name,))
        return self.queues[name].info(), max(position, self._position(durable))

    def _create_queue(self, name: str, value: Mapping[str, Any], owner: object) -> Position:
        if len(self.queues) >= self.core.limits.queues_max:
            raise Refused(Reason.LIMIT, f"there are {len(self.queues)} queues: delete some")
        # An exclusive queue goes with its connection, so it leaves nothing in the log.
        kept = value["durable"] and not value["exclusive"]
        op: Op = {"op": "queue+", "name": name, "n": 0, **value}
        if kept:
            self.core.check_writable()
            op["n"] = self.core.take_number()
        position = self._write(op, durable=kept)
        self.queues[name].owner = owner if value["exclusive"] else None
        return position

    def delete_queue(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """See `BrokerPort.delete_queue`."""
        if name not in self.queues:
            return 0, Position(0)
        found = self.need_queue(name, owner)
        if if_unused and found.group.holds:
            raise Refused(Reason.IN_USE, f"queue '{name}' in vhost '/' in use")
        if if_empty and found.group.ready_count:
            raise Refused(Reason.NOT_EMPTY, f"queue '{name}' in vhost '/' is not empty")
        return self._delete(found)

    def _delete(self, found: NamedQueue) -> tuple[int, Position]:
        count = found.group.ready_count
        holds = list(found.group.holds)
        for key in list(found.bindings):
            self._unbind(found, key)
        position = self._write({"op": "queue-", "name": found.name}, durable=found.queue.durable)
        for hold in holds:
            hold.active = False
            hold.consumer.cancelled()
        return count, position

    def _end_queue(self, found: NamedQueue) -> None:
        """Its lease has ended."""
        if self.queues.get(found.name) is found:
            self._delete(found)

    def _apply_queue(self, op: Op) -> Touched:
        self.load_queue(op["name"], op)
        return [("queue", op["name"])]

    def _apply_queue_end(self, op: Op) -> Touched:
        found = self.queues.pop(op["name"], None)
        if found is None:
            return []
        for words in found.bindings.values():
            self.topics.router.unsubscribe(words, found.queue)
        self._count(found.user, -1)
        return self.features.drop(found)

    def purge_queue(self, name: str, *, owner: object) -> tuple[int, Position]:
        """See `BrokerPort.purge_queue`."""
        found = self.need_queue(name, owner)
        if found.queue.durable:
            self.core.check_writable(frees=True)
        count = found.group.purge()
        if found.queue.durable:
            self.core.write_acks()
        return count, self._position(found.queue.durable)

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
        found = self.need_queue(queue, owner)
        source = self.need_exchange(exchange)
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        key = (exchange, routing_key, _canonical(arguments))
        if key in found.bindings:
            return Position(0)
        words = binding_words(source, routing_key)
        self._bind(found, key, words)
        return self._position(found.queue.durable)

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
        found = self.need_queue(queue, owner)
        source = self.need_exchange(exchange)
        if not exchange:
            raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")
        key = (exchange, routing_key, _canonical(arguments))
        if key not in found.bindings:
            return Position(0)
        self._unbind(found, key)
        if source.auto_delete and not source.bindings:
            self.delete_exchange(exchange, if_unused=True)
        return self._position(found.queue.durable)

    def _bind(self, found: NamedQueue, key: BindingKey, words: Words) -> None:
        self._write(
            {"op": "bind+", "queue": found.name, "key": list(key), "w": list(words)},
            durable=found.queue.durable,
        )

    def _unbind(self, found: NamedQueue, key: BindingKey) -> None:
        self._write(
            {"op": "bind-", "queue": found.name, "key": list(key)},
            durable=found.queue.durable,
        )

    def _apply_bind(self, op: Op) -> Touched:
        found = self.queues.get(op["queue"])
        if found is None:
            return []
        self._load_binding(found, tuple(op["key"]), tuple(op["w"]))
        return [("queue", found.name)]

    def _load_binding(self, found: NamedQueue, key: BindingKey, words: Words) -> None:
        # Two keys may give the same pattern (topic `a` and direct `a`): the trie has it once.
        found.bindings[key] = words
        if key == ("", found.name, "{}"):
            words = found.bindings[key]  # the same strings again, not copies of them
        self.topics.router.subscribe(words, found.queue)
        source = self.exchanges.get(key[0])
        if source is not None and key[0]:  # nobody asks what is bound to the default exchange
            source.bindings.add((found.name, key[1]))

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

    # --- consuming ------------------------------------------------------------------------

    def consume(
        self,
        name: str,
        consumer: Consumer,
        *,
        exclusive: bool,
        owner: object,
        priority: int = 0,
    ) -> _AutoDeleting:
        """See `BrokerPort.consume`."""
        found = self.need_queue(name, owner)
        if exclusive and found.settings.single_active:
            raise Refused(
                Reason.FORBIDDEN,
                f"queue '{name}' in vhost '/' has a single active consumer: "
                "an exclusive one is not possible",
            )
        if found.exclusive_hold is not None or (exclusive and found.group.holds):
            raise Refused(Reason.FORBIDDEN, f"queue '{name}' in vhost '/' in exclusive use")
        hold = found.group.add(consumer, priority)
        found.had_consumer = True
        if exclusive:
            found.exclusive_hold = hold
        return _AutoDeleting(self, found, hold)

    def consumer_left(self, found: NamedQueue, hold: Hold) -> None:
        """A consumer was cancelled: an auto-delete queue goes with its last."""
        if found.exclusive_hold is hold:
            found.exclusive_hold = None
        if found.lease is not None:
            found.lease.touch()
        if found.auto_delete and not found.group.holds and self.queues.get(found.name) is found:
            self._delete(found)

    def get(
        self,
        name: str,
        callback: Callable[[Delivery | None, Any, int], None],
        *,
        owner: object,
    ) -> None:
        """See `BrokerPort.get`."""
        found = self.need_queue(name, owner)
        if found.settings.single_active:
            raise Refused(
                Reason.LOCKED,
                f"queue '{name}' in vhost '/' has a single active consumer: use basic.consume",
            )
        getter = _Getter(callback)
        hold = Hold(found.group, getter)
        getter.hold = hold
        found.group.give_one(hold)

    def release_owner(self, owner: object) -> None:
        """See `BrokerPort.release_owner`."""
        for found in [q for q in self.queues.values() if q.exclusive and q.owner is owner]:
            self._delete(found)

    # --- named subscriptions ----------------------------------------------------------------

    def declare_subscription(self, name: str, words: Words) -> Position:
        """See `BrokerPort.declare_subscription`."""
        queue_name = SUBSCRIPTION_PREFIX + name
        existing = self.queues.get(queue_name)
        if existing is not None:
            if list(existing.bindings.values()) != [words]:
                raise Refused(Reason.DIFFERENT, f"subscription '{name}' exists with another filter")
            return Position(self.core.log.appended)
        value = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": {}}
        self._create_queue(queue_name, value, None)
        self._bind(self.queues[queue_name], ("", queue_name, "{}"), words)
        return Position(self.core.log.appended)

    def delete_subscription(self, name: str) -> Position:
        """See `BrokerPort.delete_subscription`."""
        found = self.queues.get(SUBSCRIPTION_PREFIX + name)
        return Position(0) if found is None else self._delete(found)[1]

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

    def load_queue(self, name: str, value: Mapping[str, Any]) -> None:
        """Take a queue from its op or its snapshot."""
        found = self.queues[name] = self.features.build(name, value)
        self._count(found.user, 1)
        for key, words in value.get("bindings", ()):
            self._load_binding(found, tuple(key), tuple(words))

    def row_queue(self, name: str) -> Mapping[str, Any] | None:
        """The queue and its bindings as a JSON value for the snapshot."""
        found = self.queues.get(name)
        if found is None or not found.queue.durable:
            return None
        bindings = [[list(key), list(words)] for key, words in found.bindings.items()]
        row = {**found.value(), "n": found.queue.number, "bindings": bindings}
        if found.queue.expiring:
            row["expiring"] = True
        if found.queue.levels is not None:
            row["levels"] = found.queue.levels.rows()
        return {**row, "u": found.user} if found.user else row

    def _count(self, user: str, change: int) -> None:
        if user:
            count = self.counts.get(user, 0) + change
            if count:
                self.counts[user] = count
            else:
                del self.counts[user]

    def reopen(self) -> None:
        """After a restart: requeue what connections held; forget bindings to exchanges that went
        with the process."""
        self.features.reopen()
        for found in self.queues.values():
            for key in found.bindings.chosen():
                if self.exchange(key[0]) is None:
                    self._apply_unbind({"queue": found.name, "key": list(key)})

    # --- helpers --------------------------------------------------------------------------

    def _write(self, op: Op, *, durable: bool) -> Position:
        """Write the op, or only apply it when what it is about goes with the process."""
        if durable:
            self.core.check_writable(frees=op["op"].endswith("-"))
            return self.core.journal.write(op)
        self.core.journal.apply(op)
        return Position(0)

    def _position(self, durable: bool) -> Position:
        return Position(self.core.log.appended if durable else 0)


class _Getter:
    """The consumer of one `get`."""

    def __init__(self, callback: Callable[[Delivery | None, Any, int], None]) -> None:
        self._callback = callback
        self.hold: Hold | None = None

    def credit(self) -> int:
        return 1

    def deliver(self, delivery: Delivery | None) -> None:
        assert self.hold is not None
        self._callback(delivery, self.hold, self.hold.group.ready_count)

    def cancelled(self) -> None:
        """A get is over before its queue can go."""


def _canonical(arguments: Mapping[str, Any]) -> str:
    return repr(sorted(arguments.items())) if arguments else "{}"


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


def _locked(name: str) -> Refused:
    return Refused(
        Reason.LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It was declared on "
        "another connection, or not with the same 'exclusive'",
    )


def _check_equal(
    kind: str, name: str, existing: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    """Raises Refused DIFFERENT, which names the first setting or argument that differs."""
    for key, value in existing.items():
        if wanted[key] == value:
            continue
        received, current = wanted[key], value
        if key == "arguments":
            key = next(
                name for name in {**value, **received} if received.get(name) != value.get(name)
            )
            received, current = received.get(key, "none"), value.get(key, "none")
        raise Refused(
            Reason.DIFFERENT,
            f"inequivalent arg '{key}' for {kind} '{name}' in vhost '/': "
            f"received '{received}' but current is '{current}'",
        )
