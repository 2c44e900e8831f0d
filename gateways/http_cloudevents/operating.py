"""What operators see of webhooks, and do to them: enabling them, trying again at once.

A webhook is paused with its queue, as any other queue (`broker/named_queues/pausing.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from polymq.broker.port import Reason, Refused, display_name
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.registry import Registry
from polymq.gateways.http_cloudevents.subscriptions import Subscription, without_query
from polymq.gateways.http_cloudevents.webhooks import Attempt, Webhook

PAUSED: Final = "paused by an operator"
"""Also what stands in the document of a webhook that was paused before queues could be."""
_REASONS: Final = {
    400: Reason.BAD_ARGUMENT,
    404: Reason.NOT_FOUND,
    409: Reason.LOCKED,
    429: Reason.LIMIT,
}

State = Literal["active", "failing", "paused", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookInfo:
    """A webhook at one moment.

    Attributes:
        sink: its URL without the query, where secrets are.
        owner: whose rights it has; empty for nobody's.
        state: `failing` while the last request failed in a way that may pass.
        why: why it is paused or disabled; empty while it works.
        attempts: requests for what is at the head that failed.
        next_seconds: until the next attempt, if it waits for one.
        held: events that it has taken from its queue.
        delivered_ms: when the last request was answered well; None: not since it was started.
        failures: the last failed requests, the oldest first.
    """

    name: str
    topic: str
    sink: str
    owner: str
    state: State
    why: str
    attempts: int = 0
    next_seconds: float | None = None
    held: int = 0
    delivered_ms: int | None = None
    failures: tuple[Attempt, ...] = ()


class WebhookControl:
    """Operators' side of the subscriptions of one server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def names(self) -> Iterator[str]:
        """Those of all webhooks."""
        return (one.name for one in self._registry.all() if one.sink is not None)

    def show(self, name: str) -> WebhookInfo | None:
        """One webhook; None if there is none of this name."""
        subscription, part = self._registry.webhook(name)
        return None if subscription is None else _info(subscription, part)

    async def enable(self, name: str) -> None:
        """Deliver again, whatever it was stopped for. Raises Refused."""
        self.need(name)
        with _as_refused():
            await self._registry.enable(name)

    async def restore(self, wanted: Subscription) -> None:
        """Make or replace a subscription that another server had. Raises Refused."""
        with _as_refused():
            await self._registry.restore(wanted)

    def try_now(self, name: str) -> bool:
        """Do not wait for the next attempt. Returns whether one was waited for. Raises Refused:
        NOT_FOUND, LOCKED (it is not served)."""
        _, part = self._registry.webhook(self.need(name).name)
        if part is None or part.paused:
            raise Refused(Reason.LOCKED, f"webhook {name!r} is paused or disabled: resume it")
        return part.hurry()

    def need(self, name: str) -> Subscription:
        """One webhook. Raises Refused: NOT_FOUND."""
        subscription, _ = self._registry.webhook(name)
        if subscription is None:
            raise Refused(Reason.NOT_FOUND, f"there is no webhook {name!r}")
        return subscription


@contextlib.contextmanager
def _as_refused() -> Iterator[None]:
    try:
        yield
    except Problem as problem:
        reason = _REASONS.get(problem.status, Reason.READ_ONLY)
        raise Refused(reason, problem.detail) from None


def _info(subscription: Subscription, part: Webhook | None) -> WebhookInfo:
    shown: dict[str, Any] = {
        "name": subscription.name,
        "topic": display_name(subscription.topic),
        "sink": without_query(subscription.sink or ""),
        "owner": subscription.owner,
    }
    if part is None:
        why = subscription.disabled or "it is not served now"
        return WebhookInfo(**shown, state="paused" if why == PAUSED else "disabled", why=why)
    state: State = "failing" if part.failing else "active"
    return WebhookInfo(
        **shown,
        state="paused" if part.paused else state,
        why=PAUSED if part.paused else "",
        attempts=part.attempts,
        next_seconds=None if part.paused else part.next_seconds,
        held=part.held_count,
        delivered_ms=part.delivered_ms,
        failures=tuple(part.failures),
    )
