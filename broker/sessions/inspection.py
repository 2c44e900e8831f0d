"""What operators see of sessions, put together in steps so that a session with very many
subscriptions does not stop the loop.

Each function here is a generator, as those in `queues/inspection.py` are.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from polymq.broker.port.sessions import SubscriptionOptions
from polymq.broker.port.values import Address
from polymq.broker.queues.inspection import Need, bytes_of, ready_stretches
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.subscription import Subscription

ENTRIES_MAX: Final = 1_000_000
"""Entries that are looked at for one session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """One subscription.

    Attributes:
        waiting_count: messages that wait, those in flight not included.
        waiting_bytes: their size in the log, as far as they were looked at.
    """

    address: Address
    options: SubscriptionOptions
    durable: bool
    waiting_count: int
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One session.

    Attributes:
        connected: whether its client is connected.
        clean: it ends with its connection, and the log does not know it.
        expiry_seconds: how long it outlives its connection; None: for ever.
        away_ms: since when its client is away, in milliseconds since the epoch; 0: it is connected,
            or that is not noted yet.
        ends_ms: when it ends if its client stays away; 0: not known, or never.
        inflight_count: messages of QoS 1 and 2 that were sent and not acknowledged.
        dropped_count: messages that it lost since the start because too many waited.
    """

    client_id: str
    user: str
    connected: bool
    clean: bool
    expiry_seconds: int | None
    away_ms: int
    ends_ms: int
    subscriptions_count: int
    inflight_count: int
    waiting_count: int
    dropped_count: int
    has_will: bool


def inspect_session(session: MqttSession) -> Generator[None, None, SessionInfo]:
    """A session, with how much waits for it."""
    subscriptions = list(session.subscriptions.values())
    waiting = 0
    for subscription in subscriptions:
        waiting += waiting_count(subscription)
        yield
    backlog = session.backlog
    return SessionInfo(
        client_id=session.client_id,
        user=session.principal,
        connected=session.link is not None,
        clean=session.clean,
        expiry_seconds=session.expiry_seconds,
        away_ms=session.left_ms or session.away_ms,
        ends_ms=session.due_ms,
        subscriptions_count=len(subscriptions),
        inflight_count=session.unacked.count + len(session.releasing),
        waiting_count=waiting,
        dropped_count=0 if backlog is None else backlog.dropped_count,
        has_will=session.will is not None,
    )


def waiting_count(subscription: Subscription) -> int:
    """Messages that wait for a subscription, those in flight not included."""
    return 0 if subscription.group is None else subscription.group.ready_count


def inspect_subscriptions(
    session: MqttSession,
) -> Generator[Need | None, bytes | None, tuple[list[SubscriptionInfo], bool]]:
    """The subscriptions of a session in the order of their addresses, with the bytes that wait.

    Returns:
        The subscriptions, and whether all that waits was looked at.
    """
    left = ENTRIES_MAX
    found: list[SubscriptionInfo] = []
    for address in sorted(session.subscriptions):
        subscription = session.subscriptions.get(address)
        if subscription is None:
            continue  # it ended meanwhile
        count = waiting_count(subscription)
        size = 0
        group = subscription.group
        if group is not None:
            for first, many in ready_stretches(group):
                looked, bytes_found = yield from bytes_of(group, first, min(many, left))
                left -= looked
                size += bytes_found
        found.append(
            SubscriptionInfo(
                address=address,
                options=subscription.options,
                durable=subscription.durable,
                waiting_count=count,
                waiting_bytes=size,
            )
        )
        yield None
    return found, left > 0
