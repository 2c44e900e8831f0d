"""The gateways as the admin API has them, put together from the protocol servers. A part of the
composition root (`compose.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from polymq.admin.gateways import Gateways
from polymq.net.clients import ClientConnection, ConsumerInfo
from polymq.servers import GatewayServer

if TYPE_CHECKING:
    from polymq.gateways.http_cloudevents.operating import WebhookControl


@runtime_checkable
class GroupServer(Protocol):
    """A server whose clients are members of consumer groups: RocketMQ's."""

    def members_of(self, group: str) -> Sequence[ConsumerInfo]:
        """The members of a group that are connected."""

    def moved(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A group goes on somewhere else in a queue: its members have to know."""


@runtime_checkable
class WebhookServer(Protocol):
    """A server that delivers to webhooks: HTTP's."""

    def webhooks(self) -> WebhookControl | None:
        """For operators; None before the start."""


def gateways_of(servers: Callable[[], Iterable[GatewayServer]]) -> Gateways:
    """What the admin API sees of these servers, and does with them.

    Args:
        servers: those that are open now.
    """

    def connections() -> list[ClientConnection]:
        return [c for server in servers() for roster in server.rosters for c in roster.connections]

    def groups() -> Iterable[GroupServer]:
        return (server for server in servers() if isinstance(server, GroupServer))

    def members(group: str) -> list[ConsumerInfo]:
        return [one for server in groups() for one in server.members_of(group)]

    def moved(group: str, topic: str, queue_id: int, offset: int) -> None:
        for server in groups():
            server.moved(group, topic, queue_id, offset)

    def webhooks() -> WebhookControl | None:
        found = (server.webhooks() for server in servers() if isinstance(server, WebhookServer))
        return next((control for control in found if control is not None), None)

    return Gateways(
        connections=connections, group_members=members, group_moved=moved, webhooks=webhooks
    )
