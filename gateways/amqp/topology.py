"""exchange.* and queue.*: declaring, binding, deleting. One function for each method.

Each gets the channel and the method, asks the engine, and answers; the engine's `Refused` goes up
to the client, which makes it a close. `HANDLERS` at the end is what the client looks in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from polymq.broker.port import Reason, Refused
from polymq.gateways.amqp import mapping, spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.spec import Method

Handler = Callable[[Channel, Any], None]


def not_implemented(channel: Channel, method: Method) -> None:
    """A method that would be wrong to accept silently (540 closes the connection)."""
    raise RemoteProtocolError(
        ReplyCode.NOT_IMPLEMENTED,
        f"{method.NAME} is not supported",
        class_id=method.CLASS_ID,
        method_id=method.METHOD_ID,
    )


def _queue_name(channel: Channel, name: str) -> str:
    """An empty name is the queue that was declared last on this channel (AMQP 1.7.2.1)."""
    if name:
        return name
    if not channel.last_queue:
        raise Refused(Reason.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def _check_exchange_name(name: str) -> None:
    """The default exchange cannot be declared, deleted or bound."""
    if not name:
        raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")


# --- exchanges -------------------------------------------------------------------------------


def declare_exchange(channel: Channel, method: spec.ExchangeDeclare) -> None:
    """exchange.declare: make it, or check that it is as asked for."""
    name = mapping.strip_name(method.exchange)
    port = channel.link.port
    position = 0
    if method.passive:
        if port.exchanges.info(name) is None:
            raise Refused(Reason.NOT_FOUND, f"no exchange '{name}' in vhost '/'")
    else:
        _check_exchange_name(name)
        position = port.exchanges.declare(
            name,
            type=method.type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=mapping.exchange_arguments(method.arguments),
        )
    if not method.nowait:
        channel.link.reply(channel.number, spec.ExchangeDeclareOk(), position)


def delete_exchange(channel: Channel, method: spec.ExchangeDelete) -> None:
    """exchange.delete: succeeds too if there is none, as in RabbitMQ."""
    _check_exchange_name(method.exchange)
    position = channel.link.port.exchanges.delete(method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        channel.link.reply(channel.number, spec.ExchangeDeleteOk(), position)


def _link(
    method: spec.ExchangeBind | spec.ExchangeUnbind,
) -> tuple[str, str, str, Mapping[str, Any]]:
    """Destination, source, routing key and arguments."""
    _check_exchange_name(method.destination)
    _check_exchange_name(method.source)
    arguments = mapping.binding_arguments(method.arguments)
    return method.destination, method.source, method.routing_key, arguments


def bind_exchange(channel: Channel, method: spec.ExchangeBind) -> None:
    """exchange.bind (RabbitMQ's extension)."""
    position = channel.link.port.exchanges.bind_exchange(*_link(method))
    if not method.nowait:
        channel.link.reply(channel.number, spec.ExchangeBindOk(), position)


def unbind_exchange(channel: Channel, method: spec.ExchangeUnbind) -> None:
    """exchange.unbind: succeeds too if there is no such binding, as in RabbitMQ."""
    position = channel.link.port.exchanges.unbind_exchange(*_link(method))
    if not method.nowait:
        channel.link.reply(channel.number, spec.ExchangeUnbindOk(), position)


# --- queues ----------------------------------------------------------------------------------


def declare_queue(channel: Channel, method: spec.QueueDeclare) -> None:
    """queue.declare: the counts that it answers include what this connection published before."""
    name = mapping.strip_name(method.queue)
    link = channel.link
    port = link.port
    position = 0
    if link.replies.declares(name):  # it is there, and has its one consumer
        channel.last_queue = name
        if not method.nowait:
            declared = spec.QueueDeclareOk(queue=name, message_count=0, consumer_count=1)
            link.reply(channel.number, declared)
        return
    if method.passive:
        info = port.queues.info(_queue_name(channel, name), owner=link)
    else:
        info, position = port.queues.declare(
            name,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=mapping.queue_arguments(method.arguments),
            owner=link,
        )
    channel.last_queue = info.name
    if not method.nowait:
        answer = spec.QueueDeclareOk(
            queue=info.name, message_count=info.ready_count, consumer_count=info.consumer_count
        )
        link.reply(channel.number, answer, position)


def _binding(
    channel: Channel, method: spec.QueueBind | spec.QueueUnbind
) -> tuple[str, str, str, Mapping[str, Any]]:
    """Queue, exchange, routing key and arguments of a binding."""
    queue = _queue_name(channel, method.queue)
    # Neither named: the key is the queue's name (AMQP 1.7.2.3).
    routing_key = method.routing_key if method.queue or method.routing_key else queue
    _check_exchange_name(method.exchange)
    return queue, method.exchange, routing_key, mapping.binding_arguments(method.arguments)


def bind_queue(channel: Channel, method: spec.QueueBind) -> None:
    """queue.bind."""
    link = channel.link
    position = link.port.exchanges.bind_queue(*_binding(channel, method), owner=link)
    if not method.nowait:
        channel.link.reply(channel.number, spec.QueueBindOk(), position)


def unbind_queue(channel: Channel, method: spec.QueueUnbind) -> None:
    """queue.unbind: succeeds too if there is no such binding, as in RabbitMQ."""
    link = channel.link
    position = link.port.exchanges.unbind_queue(*_binding(channel, method), owner=link)
    channel.link.reply(channel.number, spec.QueueUnbindOk(), position)


def purge_queue(channel: Channel, method: spec.QueuePurge) -> None:
    """queue.purge: drops what is ready; what is unacknowledged stays."""
    count, position = channel.link.port.queues.purge(
        _queue_name(channel, method.queue), owner=channel.link
    )
    if not method.nowait:
        channel.link.reply(channel.number, spec.QueuePurgeOk(message_count=count), position)


def delete_queue(channel: Channel, method: spec.QueueDelete) -> None:
    """queue.delete: succeeds too if there is none, as in RabbitMQ."""
    count, position = channel.link.port.queues.delete(
        _queue_name(channel, method.queue),
        if_unused=method.if_unused,
        if_empty=method.if_empty,
        owner=channel.link,
    )
    if not method.nowait:
        channel.link.reply(channel.number, spec.QueueDeleteOk(message_count=count), position)


HANDLERS: Final[Mapping[type[Method], Handler]] = {
    spec.ExchangeDeclare: declare_exchange,
    spec.ExchangeDelete: delete_exchange,
    spec.ExchangeBind: bind_exchange,
    spec.ExchangeUnbind: unbind_exchange,
    spec.QueueDeclare: declare_queue,
    spec.QueueBind: bind_queue,
    spec.QueueUnbind: unbind_queue,
    spec.QueuePurge: purge_queue,
    spec.QueueDelete: delete_queue,
}

SEES_PUBLISHES: Final = frozenset({spec.QueueDeclare, spec.QueuePurge, spec.QueueDelete})
"""Methods whose answer depends on the messages of a queue. RabbitMQ's clients may rely on it that
what they published before on the same connection counts, so these wait for it."""
