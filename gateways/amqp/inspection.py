"""What operators see of AMQP's connections, channels and consumers: values of this moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.connection import Connection
from polymq.gateways.amqp.consumer import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """A connection whose client has logged in and opened it.

    Attributes:
        peer, listener: the addresses and ports of both sides.
        user: the principal that it logged in as.
        mechanism: of SASL.
        properties: what the client says of itself.
        opened_ms: when, in milliseconds since the epoch.
        heartbeat_seconds: 0: none.
        frame_max: in bytes.
        written_bytes: to the client, since it connected.
        is_secure: it uses TLS.
        certificate: the subject of the client's certificate; empty: it has none.
        channels: those that are open.
        end: closes it, because an operator wants that; the text says why.
    """

    peer: str
    listener: str
    user: str
    mechanism: str
    properties: Mapping[str, Any]
    opened_ms: int
    heartbeat_seconds: int
    frame_max: int
    written_bytes: int
    is_secure: bool
    certificate: str
    channels: Mapping[int, Channel]
    end: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInfo:
    """An open channel.

    Attributes:
        prefetch: for each consumer; 0: no limit.
        prefetch_shared: for all consumers together; 0: no limit.
        unacked_count: messages that its consumers hold.
        deferred_count, deferred_acks: what waits for tx.commit.
    """

    number: int
    prefetch: int
    prefetch_shared: int
    consumer_count: int
    unacked_count: int
    confirming: bool
    transactional: bool
    deferred_count: int
    deferred_acks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer.

    Attributes:
        channel: the number of its channel.
        peer, listener, user: of its connection.
        no_ack: its messages are settled when they are sent.
        prefetch: 0: no limit of its own.
        active: it may get messages.
    """

    tag: str
    queue: str
    channel: int
    peer: str
    listener: str
    user: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    unacked_count: int
    active: bool
    arguments: Mapping[str, Any]


def connection_info(connection: object) -> ConnectionInfo | None:
    """What is known of a connection; None if it is none of AMQP's, or not open."""
    if not isinstance(connection, Connection) or connection.closing:
        return None
    client: Client | None = getattr(connection, "client", None)  # gone when its socket is
    if client is None or not client.opened_ms or client.is_over:
        return None
    transport = connection.transport
    return ConnectionInfo(
        peer=connection.peer,
        listener=_listener(connection),
        user=client.user,
        mechanism=client.login.mechanism,
        properties=client.login.client_properties,
        opened_ms=client.opened_ms,
        heartbeat_seconds=client.heartbeat_seconds,
        frame_max=client.frame_max,
        written_bytes=connection.written_bytes,
        is_secure=transport is not None and transport.get_extra_info("ssl_object") is not None,
        certificate=connection.certificate_subject(),
        channels=client.channels,
        end=connection.end,
    )


def _listener(connection: Connection) -> str:
    return "" if connection.roster is None else connection.roster.where


def channel_info(channel: Channel) -> ChannelInfo:
    """What is known of a channel."""
    transaction = channel.transaction
    return ChannelInfo(
        number=channel.number,
        prefetch=channel.prefetch,
        prefetch_shared=channel.prefetch_shared,
        consumer_count=len(channel.consumers),
        unacked_count=channel.unacked_count,
        confirming=channel.confirming,
        transactional=transaction is not None,
        deferred_count=0 if transaction is None else transaction.count,
        deferred_acks=0 if transaction is None else len(transaction.settlements),
    )


def consumer_infos(connection: ConnectionInfo, channel: Channel) -> Iterator[ConsumerInfo]:
    """The consumers of a channel."""
    for consumer in list(channel.consumers.values()):
        if isinstance(consumer, Consumer):
            yield _consumer_info(consumer, connection.peer, connection.listener, connection.user)


def consumer_info(consumer: object) -> ConsumerInfo | None:
    """What is known of a queue's consumer; None if it is none of AMQP's."""
    if not isinstance(consumer, Consumer):
        return None
    client = consumer.channel.link
    connection = client.transport if isinstance(client, Client) else None
    if not isinstance(connection, Connection):
        return None
    return _consumer_info(consumer, connection.peer, _listener(connection), client.user)


def _consumer_info(consumer: Consumer, peer: str, listener: str, user: str) -> ConsumerInfo:
    return ConsumerInfo(
        tag=consumer.tag,
        queue=consumer.queue,
        channel=consumer.channel.number,
        peer=peer,
        listener=listener,
        user=user,
        no_ack=consumer.asked.no_ack,
        exclusive=consumer.asked.exclusive,
        prefetch=consumer.prefetch,
        unacked_count=consumer.unacked_count,
        active=not consumer.ended,
        arguments=consumer.asked.arguments,
    )
