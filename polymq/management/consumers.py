"""The rows of consumers, in RabbitMQ's words."""

from __future__ import annotations

from typing import Any, Final

from polymq.broker.exchanges.entities import NamedQueue
from polymq.gateways.amqp.inspection import ConsumerInfo, consumer_info
from polymq.management.json_values import plain
from polymq.management.names import channel_name, connection_name, host_and_port
from polymq.management.routing import VHOST

CONSUMERS_MAX: Final = 1_000
"""Consumers of one queue that are shown with it."""


def consumers_of_queue(found: NamedQueue, node: str) -> list[dict[str, Any]]:
    """The AMQP consumers of a queue."""
    rows: list[dict[str, Any]] = []
    for registration in list(found.group.registrations)[:CONSUMERS_MAX]:
        info = consumer_info(registration.consumer)
        if info is not None:
            rows.append(consumer_row(info, node))
    return rows


def consumer_row(info: ConsumerInfo, node: str) -> dict[str, Any]:
    """What lists show of a consumer."""
    return {
        "consumer_tag": info.tag,
        "queue": {"name": info.queue, "vhost": VHOST},
        "ack_required": not info.no_ack,
        "active": info.active,
        "activity_status": "up",
        "exclusive": info.exclusive,
        "prefetch_count": info.prefetch,
        "arguments": plain(info.arguments),
        "channel_details": channel_details(
            info.peer, info.listener, info.channel, node=node, user=info.user
        ),
    }


def channel_details(
    peer: str, listener: str, number: int, *, node: str, user: str
) -> dict[str, Any]:
    """A channel, as rows refer to it."""
    connection = connection_name(peer, listener)
    host, port = host_and_port(peer)
    return {
        "name": channel_name(connection, number),
        "number": number,
        "connection_name": connection,
        "node": node,
        "peer_host": host,
        "peer_port": port,
        "user": user,
    }
