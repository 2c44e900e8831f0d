"""AMQP's exchanges and queues as values, and how a binding key is read.

What is done with them is in `exchanges.py` and `named_queues.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from broker.core import Core
from broker.errors import Reason, Refused
from broker.header_match import pattern_text
from broker.journal import Op
from broker.names import ROOT_EXCHANGE
from broker.port import ONE_WORD, REST, ExchangeInfo, Position, QueueInfo, Words
from broker.queues.leases import Lease
from broker.queues.priorities import Levels
from broker.queues.queue import Group, Hold, Queue
from broker.queues.settings import QueueSettings, settings_of

TYPES: Final = ("direct", "fanout", "topic", "headers")
"""How an exchange reads its bindings."""
DELAYED_TYPE: Final = "x-delayed-message"
"""An exchange that routes messages when they are due, as its argument `x-delayed-type` says."""
DELAYED_ARGUMENT: Final = "x-delayed-type"
ALTERNATE_ARGUMENT: Final = "alternate-exchange"
"""Names the exchange that gets what an exchange has no binding for."""
PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    ROOT_EXCHANGE: "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}

BindingKey = tuple[str, str, str]
"""Exchange, routing key, arguments as canonical text (`binding_key`)."""
NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
"""Shared by all queues without arguments."""


class Bindings(MutableMapping[BindingKey, Words]):
    """The bindings of one queue: their patterns by key, in the order of their making.

    Nearly every queue is bound to the default exchange by its name, and to nothing else: that
    binding is a flag here, and costs no tuples and no dictionary.

    Args:
        name: the queue's.
    """

    __slots__ = ("_by_name", "_more", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_name = False
        self._more: dict[BindingKey, Words] | None = None

    def _is_default(self, key: BindingKey, words: Words | None = None) -> bool:
        return key == ("", self._name, "{}") and words in (None, (self._name,))

    def __getitem__(self, key: BindingKey) -> Words:
        if self._by_name and self._is_default(key):
            return (self._name,)
        if self._more is None:
            raise KeyError(key)
        return self._more[key]

    def __setitem__(self, key: BindingKey, words: Words) -> None:
        if self._is_default(key, words):
            self._by_name = True
            if self._more is not None:
                self._more.pop(key, None)
            return
        if self._is_default(key):
            self._by_name = False
        if self._more is None:
            self._more = {}
        self._more[key] = words

    def __delitem__(self, key: BindingKey) -> None:
        if self._by_name and self._is_default(key):
            self._by_name = False
            return
        if self._more is None:
            raise KeyError(key)
        del self._more[key]

    def __iter__(self) -> Iterator[BindingKey]:
        if self._by_name:
            yield ("", self._name, "{}")
        yield from self._more or ()

    def __len__(self) -> int:
        return self._by_name + len(self._more or ())

    def chosen(self) -> Sequence[BindingKey]:
        """The keys of those that somebody chose: all but the one to the default exchange."""
        return () if self._more is None else tuple(key for key in self._more if key[0])


class Exchange:
    """A declared exchange."""

    __slots__ = ("arguments", "auto_delete", "bindings", "durable", "internal", "name", "type")

    def __init__(self, name: str, value: Mapping[str, Any]) -> None:
        self.name = name
        self.type: str = value["type"]
        self.durable: bool = value["durable"]
        self.auto_delete: bool = value["auto_delete"]
        self.internal: bool = value["internal"]
        self.arguments: Mapping[str, Any] = value["arguments"]
        self.bindings: set[BindingKey] = set()
        """(queue, routing key, arguments) of the queues that are bound to it."""

    @property
    def reads(self) -> str:
        """How it reads its bindings: one of `TYPES`."""
        if self.type == DELAYED_TYPE:
            return str(self.arguments[DELAYED_ARGUMENT])
        return self.type

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what it has no binding for."""
        return self.arguments.get(ALTERNATE_ARGUMENT)

    def value(self) -> dict[str, Any]:
        """As in the op that declared it."""
        return {
            "type": self.type,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": dict(self.arguments),
        }

    def info(self) -> ExchangeInfo:
        """As the port tells it."""
        return ExchangeInfo(name=self.name, **self.value())


class NamedQueue:
    """An AMQP queue or a named subscription: a queue, its one group, its bindings."""

    __slots__ = (
        "arguments",
        "auto_delete",
        "bindings",
        "durable",
        "exclusive",
        "exclusive_hold",
        "group",
        "had_consumer",
        "lease",
        "name",
        "owner",
        "queue",
        "settings",
        "user",
    )

    def __init__(
        self, name: str, queue: Queue, group: Group | Levels, value: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.queue = queue
        self.group = group
        self.durable: bool = value["durable"]
        self.exclusive: bool = value["exclusive"]
        self.auto_delete: bool = value["auto_delete"]
        self.arguments: Mapping[str, Any] = value["arguments"] or NO_ARGUMENTS
        self.user: str = value.get("u", "")
        """Who declared it, for the quota; empty before there were users."""
        self.settings: QueueSettings = settings_of(name, self.arguments)
        self.lease: Lease | None = None
        self.owner: object = None
        """The connection that an exclusive queue belongs to."""
        self.bindings = Bindings(name)
        self.exclusive_hold: Hold | None = None
        self.had_consumer = False

    def value(self) -> dict[str, Any]:
        """As in the op that declared it."""
        return {
            "durable": self.durable,
            "exclusive": self.exclusive,
            "auto_delete": self.auto_delete,
            "arguments": dict(self.arguments),
        }

    def info(self) -> QueueInfo:
        """As the port tells it."""
        return QueueInfo(
            name=self.name,
            ready_count=self.group.ready_count,
            consumer_count=len(self.group.holds),
            durable=self.durable,
            exclusive=self.exclusive,
            auto_delete=self.auto_delete,
            arguments=self.arguments,
        )


def place_of(exchange: str, routing_key: str) -> tuple[str, str | None]:
    """Topic and tag of what is published to `exchange` with this key."""
    if not exchange:
        return routing_key, None
    if exchange == ROOT_EXCHANGE:
        topic, separator, tag = routing_key.partition(".")
        return topic.replace("/", "."), tag if separator else None
    return exchange, routing_key or None


def binding_words(exchange: Exchange, routing_key: str) -> Words:
    """The pattern of a binding."""
    kind = exchange.reads
    if kind in ("fanout", "headers"):  # what headers leave out of it is not in the pattern
        return (exchange.name, REST)
    words = tuple(routing_key.split("."))
    if kind == "topic":
        words = tuple({"*": ONE_WORD, "#": REST}.get(word, word) for word in words)
    if exchange.name == ROOT_EXCHANGE:
        return (words[0].replace("/", "."), *words[1:])
    if not routing_key:
        return (exchange.name,)
    return (exchange.name, *words)


# --- for those who change them -------------------------------------------------------------


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as text: equal for equal arguments."""
    return repr(sorted(arguments.items())) if arguments else "{}"


def need_queue(queues: Mapping[str, NamedQueue], name: str, owner: object) -> NamedQueue:
    """The queue, or Refused NOT_FOUND or LOCKED."""
    found = queues.get(name)
    if found is None:
        raise Refused(Reason.NOT_FOUND, f"no queue '{name}' in vhost '/'")
    if found.exclusive and found.owner is not owner:
        raise locked(name)
    if found.lease is not None:
        found.lease.touch()
    return found


def binding_key(exchange: Exchange, routing_key: str, arguments: Mapping[str, Any]) -> BindingKey:
    """What tells bindings to this exchange from each other. Raises Refused: BAD_ARGUMENT."""
    if exchange.reads == "headers":
        return exchange.name, routing_key, pattern_text(arguments)
    return exchange.name, routing_key, canonical(arguments)


def locked(name: str) -> Refused:
    """The queue belongs to another connection."""
    return Refused(
        Reason.LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It was declared on "
        "another connection, or not with the same 'exclusive'",
    )


def check_equal(
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


def write_op(core: Core, op: Op, *, durable: bool) -> Position:
    """Write the op, or only apply it when what it is about goes with the process. Raises
    Refused."""
    if durable:
        core.check_writable(frees=op["op"].endswith("-"))
        return core.journal.write(op)
    core.journal.apply(op)
    return Position(0)


def position_of(core: Core, *, durable: bool) -> Position:
    """What the answer to a change waits for."""
    return Position(core.log.appended if durable else 0)
