"""Creating queues, and binding them: as a client of AMQP may, with the rights of who asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.operations import Call, Given, Made, Operation, Value
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue, binding_key
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import Position
from polymq.gateways.amqp import mapping

BINDINGS_MAX: Final = 100
"""Bindings that one request makes: some 3 ms. Others are made one by one."""

Natural = Annotated[int, msgspec.Meta(ge=0)]


class BindingBody(Given):
    """What brings messages into a queue.

    Attributes:
        exchange: its name; a topic is an exchange, too.
        routing_key: of the binding.
        arguments: of the binding, such as the headers that an exchange of type `headers` compares.
    """

    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class NewQueue(Given):
    """What a new queue is. Null: as if it were left out.

    Attributes:
        durable: whether it survives a restart.
        auto_delete: whether it ends with its last consumer.
        max_length: at most so many messages are ready in it.
        max_length_bytes: at most so many bytes.
        overflow: what gives way when there are more: the oldest message, or what is published.
        message_ttl_ms: how long a message waits before it expires.
        expires_ms: how long the queue may be unused before it is deleted.
        dead_letter_exchange: where messages go that the queue gives up; empty: the default
            exchange, whose routing keys are names of queues.
        dead_letter_routing_key: the routing key that they get there, instead of their own.
        max_priority: messages with a higher priority come first, up to this one.
        delivery_limit: how often a message is delivered again before the queue gives it up.
        single_active_consumer: one consumer at a time gets messages.
        arguments: others, by AMQP's names, such as x-consumer-timeout.
        bindings: made with it, at most 100.
    """

    durable: bool = True
    auto_delete: bool = False
    max_length: Natural | None = None
    max_length_bytes: Natural | None = None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None = None
    message_ttl_ms: Natural | None = None
    expires_ms: Natural | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: Natural | None = None
    delivery_limit: int | None = None
    single_active_consumer: bool | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    bindings: Annotated[list[BindingBody], msgspec.Meta(max_length=BINDINGS_MAX)] = msgspec.field(
        default_factory=list
    )


class CreatedQueue(Value):
    """A queue that is there now.

    Attributes:
        name: of the queue.
        arguments: by AMQP's names.
        bindings: how many of those that the request has are there.
    """

    name: str
    arguments: dict[str, Any]
    bindings: int


class BindingValue(Value):
    """A binding.

    Attributes:
        queue: its name.
        exchange: its name.
        routing_key: of the binding.
    """

    queue: str
    exchange: str
    routing_key: str


_ARGUMENTS: Final[Mapping[str, str]] = {
    "max_length": "x-max-length",
    "max_length_bytes": "x-max-length-bytes",
    "overflow": "x-overflow",
    "message_ttl_ms": "x-message-ttl",
    "expires_ms": "x-expires",
    "dead_letter_exchange": "x-dead-letter-exchange",
    "dead_letter_routing_key": "x-dead-letter-routing-key",
    "max_priority": "x-max-priority",
    "delivery_limit": "x-delivery-limit",
    "single_active_consumer": "x-single-active-consumer",
}
"""Fields of a new queue, and AMQP's names for them."""


class QueueChangeHandlers:
    """Carries out changes of queues.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._named = engine.named_queues
        self._committed = committed

    def operations(self) -> list[Operation]:
        """The operations."""
        named = {"name": "the queue"}
        return [
            Operation(
                method="PUT",
                path="/queues/{name}",
                name="createQueue",
                summary="Create a queue",
                about="The caller also has to have the rights that a client needs for this. A "
                "queue that is there stays as it is, and the answer is 200; it is 409 if that "
                "queue is another one. If a binding is refused, the queue and the bindings before "
                "it stay, and the request may be sent again.",
                right="operate",
                handler=self._create,
                body=NewQueue,
                answer=CreatedQueue,
                may_make=True,
                path_about=named,
            ),
            Operation(
                method="POST",
                path="/queues/{name}/bind",
                name="bindQueue",
                summary="Bind a queue to an exchange",
                about="The caller also has to have the rights that a client needs for this. A "
                "binding that is there stays.",
                right="operate",
                handler=self._bind,
                body=BindingBody,
                answer=BindingValue,
                path_about=named,
            ),
            Operation(
                method="POST",
                path="/queues/{name}/unbind",
                name="unbindQueue",
                summary="Remove a binding of a queue",
                about="The caller also has to have the rights that a client needs for this.",
                right="operate",
                handler=self._unbind,
                body=BindingBody,
                answer=BindingValue,
                path_about=named,
            ),
        ]

    async def _create(self, call: Call[Given]) -> CreatedQueue | Made:
        name, wanted = call.path["name"], call.body
        if mapping.strip_name(name) != name:
            raise Refused(Reason.BAD_NAME, "the name of a queue has no line ends")
        for binding in wanted.bindings:
            self._check_exchange(binding.exchange)
        existed = name in self._named.queues
        _, position = call.port.queues.declare(
            name,
            durable=wanted.durable,
            exclusive=False,
            auto_delete=wanted.auto_delete,
            arguments=mapping.queue_arguments(_arguments(wanted)),
            owner=None,
        )
        if not existed:
            audit.note("queue created", queue=name, by=call.caller)
        for binding in wanted.bindings:
            position = max(position, self._bound(call, self._named.queues[name], binding))
        await self._committed(position)
        created = CreatedQueue(
            name=name,
            arguments=dict(self._need(name).terms.arguments),
            bindings=len(wanted.bindings),
        )
        return created if existed else Made(created)

    async def _bind(self, call: Call[Given]) -> BindingValue:
        found = self._queue_to_bind(call)
        self._check_exchange(call.body.exchange)
        await self._committed(self._bound(call, found, call.body))
        return _shown(found, call.body)

    async def _unbind(self, call: Call[Given]) -> BindingValue:
        found, wanted = self._queue_to_bind(call), call.body
        exchanges = self._engine.exchanges
        arguments = mapping.binding_arguments(wanted.arguments)
        self._check_exchange(wanted.exchange)
        source = exchanges.need_exchange(wanted.exchange)
        key = binding_key(source, wanted.routing_key, arguments)
        if not exchanges.graph.is_bound(found.queue, key):
            raise Refused(
                Reason.NOT_FOUND,
                f"queue {found.name!r} has no such binding to exchange {wanted.exchange!r} with "
                f"the routing key {wanted.routing_key!r}: see its bindings",
            )
        position = call.port.exchanges.unbind_queue(
            found.name, wanted.exchange, wanted.routing_key, arguments, owner=found.owner
        )
        self._note("binding unbound", call, found, wanted)
        await self._committed(position)
        return _shown(found, wanted)

    def _bound(self, call: Call[Given], found: NamedQueue, wanted: BindingBody) -> Position:
        position = call.port.exchanges.bind_queue(
            found.name,
            wanted.exchange,
            wanted.routing_key,
            mapping.binding_arguments(wanted.arguments),
            owner=found.owner,
        )
        self._note("binding bound", call, found, wanted)
        return position

    def _note(self, what: str, call: Call[Given], found: NamedQueue, wanted: BindingBody) -> None:
        audit.note(
            what,
            source=wanted.exchange,
            destination=found.name,
            key=wanted.routing_key,
            by=call.caller,
        )

    def _check_exchange(self, name: str) -> None:
        """Raises Refused: NOT_FOUND, LOCKED."""
        if not name:
            raise Refused(
                Reason.LOCKED, "every queue is bound to the default exchange, by its name only"
            )
        if self._engine.exchanges.exchange(name) is None:
            raise Refused(Reason.NOT_FOUND, f"there is no exchange {name!r}")

    def _need(self, name: str) -> NamedQueue:
        found = self._named.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        return found

    def _queue_to_bind(self, call: Call[Given]) -> NamedQueue:
        found = self._need(call.path["name"])
        if found.name.startswith(SUBSCRIPTION_PREFIX):
            raise Refused(
                Reason.LOCKED, "what a subscription collects is chosen when it is made, over HTTP"
            )
        return found


def _arguments(wanted: NewQueue) -> dict[str, Any]:
    """AMQP's. Raises Refused: BAD_ARGUMENT: something is said twice."""
    arguments = dict(wanted.arguments)
    for field, name in _ARGUMENTS.items():
        value = getattr(wanted, field)
        if value is None:
            continue
        if name in arguments:
            raise Refused(Reason.BAD_ARGUMENT, f"{field} and the argument {name} are the same")
        arguments[name] = value
    return arguments


def _shown(found: NamedQueue, wanted: BindingBody) -> BindingValue:
    return BindingValue(queue=found.name, exchange=wanted.exchange, routing_key=wanted.routing_key)
