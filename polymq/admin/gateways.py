"""What the admin API knows of the gateways: functions, so that it loads none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polymq.net.clients import ClientConnection, ConsumerInfo

if TYPE_CHECKING:
    from polymq.gateways.http_cloudevents.operating import WebhookControl


def _no_webhooks() -> WebhookControl | None:
    return None


def _nobody(_group: str) -> Sequence[ConsumerInfo]:
    return ()


def _without_members(_group: str, _topic: str, _queue: int, _offset: int) -> None:
    """No gateway has members of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """The gateways of this server; by default there are none.

    Attributes:
        connections: all connections of the listeners for clients.
        group_members: the members of a consumer group of RocketMQ that are connected.
        webhooks: what is known of webhooks; None: there is no HTTP listener.
        group_moved: a group goes on at an offset of a queue of a topic: its members have to know.
    """

    connections: Callable[[], Iterable[ClientConnection]] = tuple
    group_members: Callable[[str], Sequence[ConsumerInfo]] = _nobody
    webhooks: Callable[[], WebhookControl | None] = _no_webhooks
    group_moved: Callable[[str, str, int, int], None] = _without_members
