"""AMQP's exchanges and queues as values, and how a binding key is read.

What is done with them is in `exchanges.py` and `named_queues/named_queues.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from polymq.broker.accounts.owners import is_owner, owner_of
from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.names import ROOT_EXCHANGE, SERVER_NAMED
from polymq.broker.port.infos import ExchangeInfo, Pause, QueueInfo
from polymq.broker.port.values import ONE_LEVEL, REST, Address, Position
from polymq.broker.queues.leases import Lease
from polymq.broker.queues.priorities import Levels
from polymq.broker.queues.queue import Group, Queue, Registration
from polymq.broker.queues.settings import QueueSettings, settings_of
from polymq.broker.routing.bindings import BindingKey, Bindings
from polymq.broker.routing.header_match import pattern_text
from polymq.broker.routing.patterns import normal_form
from polymq.broker.state.journal import Op

TYPES: Final = ("direct", "fanout", "topic", "headers")
"""How an exchange reads its bindings."""
DELAYED_TYPE: Final = "x-delayed-message"
"""An exchange that routes messages when they are due, as its argument `x-delayed-type` says."""
DELAYED_ARGUMENT: Final = "x-delayed-type"
ALTERNATE_ARGUMENT: Final = "alternate-exchange"
"""Names the exchange that gets what an exchange has no binding for."""
EXCHANGE_ARGUMENTS: Final = {ALTERNATE_ARGUMENT: None, DELAYED_ARGUMENT: None}
"""Those of an exchange that mean something here, with what is meant without them."""
PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    ROOT_EXCHANGE: "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}

NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
"""Shared by all queues without arguments."""


class Exchange:
    """A declared exchange."""

    __slots__ = ("arguments", "auto_delete", "by", "durable", "internal", "name", "type")

    def __init__(self, name: str, value: Mapping[str, Any]) -> None:
        self.name = name
        self.type: str = value["type"]
        self.durable: bool = value["durable"]
        self.auto_delete: bool = value["auto_delete"]
        self.internal: bool = value["internal"]
        self.arguments: Mapping[str, Any] = value["arguments"]
        self.by: str = value.get("by", "")
        """Its owner, in whose name its alternate exchange gets messages (`accounts/owners.py`)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a queue was declared with. Queues that were declared alike share one.

    Attributes:
        maker: the owner (`accounts/owners.py`) who declared it: whose quota it counts for, and
            whose it is if the server made its name up. Empty before there were users.
        by: the owner in whose name its dead letters are published: its maker, or who declared it
            again after the maker was gone.
        settings: what the arguments ask for.
    """

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    maker: str
    by: str
    settings: QueueSettings

    @classmethod
    def of(cls, name: str, value: Mapping[str, Any]) -> Terms:
        """The terms of the queue `name` from its op or its row. Raises Refused: BAD_ARGUMENT."""
        arguments = value["arguments"] or NO_ARGUMENTS
        maker = value.get("u", "")
        if maker and not is_owner(maker):  # a user's name: the row is older than owners
            maker = owner_of(maker)
        return cls(
            durable=value["durable"],
            exclusive=value["exclusive"],
            auto_delete=value["auto_delete"],
            arguments=arguments,
            maker=maker,
            by=value.get("by", maker),
            settings=settings_of(name, arguments),
        )


class NamedQueue:
    """An AMQP queue or a named subscription: a queue, its one group, its terms and bindings.

    A server may have a hundred thousand of them that are idle, so what only few have stands
    elsewhere, or is None.

    Attributes:
        owner: the connection that an exclusive queue belongs to.
        pause: an operator's, who has stopped its deliveries (`named_queues/pausing.py`).
        exclusive_registration: of the consumer that has the queue for itself.
        bound_by_name, bound_more: see `Bound`.
    """

    __slots__ = (
        "bound_by_name",
        "bound_more",
        "exclusive_registration",
        "group",
        "lease",
        "owner",
        "pause",
        "queue",
        "terms",
    )

    def __init__(self, queue: Queue, group: Group | Levels, terms: Terms) -> None:
        self.queue = queue
        self.group = group
        self.terms = terms
        self.lease: Lease | None = None
        self.pause: Pause | None = None
        self.owner: object = None
        self.exclusive_registration: Registration | None = None
        self.bound_by_name = False
        self.bound_more: dict[BindingKey, Address] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.queue.name

    @property
    def bindings(self) -> Bindings:
        """Its bindings, to be read and changed."""
        return Bindings(self)

    def value(self) -> dict[str, Any]:
        """As in the op that declared it."""
        terms = self.terms
        return {
            "durable": terms.durable,
            "exclusive": terms.exclusive,
            "auto_delete": terms.auto_delete,
            "arguments": dict(terms.arguments),
        }

    def info(self) -> QueueInfo:
        """As the port tells it."""
        terms = self.terms
        return QueueInfo(
            name=self.name,
            ready_count=self.group.ready_count,
            consumer_count=len(self.group.registrations),
            durable=terms.durable,
            exclusive=terms.exclusive,
            auto_delete=terms.auto_delete,
            arguments=terms.arguments,
        )


def topic_and_tag(exchange: str, routing_key: str) -> tuple[str, str | None]:
    """Topic and tag of what is published to `exchange` with this key."""
    if not exchange:
        return routing_key, None
    if exchange == ROOT_EXCHANGE:
        topic, separator, tag = routing_key.partition(".")
        return topic.replace("/", "."), tag if separator else None
    return exchange, routing_key or None


def binding_address(exchange: Exchange, routing_key: str) -> Address:
    """The pattern of a binding, in its normal form."""
    kind = exchange.reads
    if kind in ("fanout", "headers"):  # what headers leave out of it is not in the pattern
        return (exchange.name, REST)
    address = tuple(routing_key.split("."))
    if kind == "topic":
        address = normal_form(
            tuple({"*": ONE_LEVEL, "#": REST}.get(level, level) for level in address)
        )
    if exchange.name == ROOT_EXCHANGE:
        return (address[0].replace("/", "."), *address[1:])
    if not routing_key:
        return (exchange.name,)
    return (exchange.name, *address)


def everything_in(exchange: str) -> Address:
    """The filter of all that is published to an exchange, whatever its key."""
    return (REST,) if exchange in ("", ROOT_EXCHANGE) else (exchange, REST)


def is_server_named(queue: str) -> bool:
    """Whether the server made up the queue's name: then nobody has a right by that name."""
    return queue.startswith(SERVER_NAMED)


# --- for those who change them -------------------------------------------------------------


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as text: equal for equal arguments."""
    return repr(sorted(arguments.items())) if arguments else "{}"


def need_queue(queues: Mapping[str, NamedQueue], name: str, owner: object) -> NamedQueue:
    """The queue, or Refused NOT_FOUND or LOCKED."""
    found = queues.get(name)
    if found is None:
        raise Refused(Reason.NOT_FOUND, f"no queue '{name}' in vhost '/'")
    if found.terms.exclusive and found.owner is not owner:
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
    kind: str,
    name: str,
    existing: Mapping[str, Any],
    wanted: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> None:
    """Whether a declaration asks for what is there. Arguments that mean nothing here are not
    compared, as in RabbitMQ.

    Args:
        arguments: those that are compared, with what is meant where they are left out.

    Raises:
        Refused: DIFFERENT, names the first setting or argument that differs.
    """
    pairs = [(key, wanted[key], value) for key, value in existing.items() if key != "arguments"]
    for key, default in arguments.items():
        received = wanted["arguments"].get(key, default)
        pairs.append((key, received, existing["arguments"].get(key, default)))
    for key, received, current in pairs:
        if received == current and isinstance(received, bool) is isinstance(current, bool):
            continue
        received, current = ("none" if value is None else value for value in (received, current))
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
