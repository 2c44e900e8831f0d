"""Webhooks: how their deliveries go, and pausing, resuming and hurrying them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from polymq.admin.commits import Committed
from polymq.admin.gateways import Gateways
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.steps import in_steps

if TYPE_CHECKING:
    from polymq.gateways.http_cloudevents.operating import WebhookControl, WebhookInfo


class WebhookAttempt(Value):
    """A request to a sink that failed.

    Attributes:
        at_ms: when it ended, in milliseconds since the epoch.
        status: of the answer; 0: there was none.
        text: what went wrong.
        seconds: how long it took.
        events: how many it carried.
    """

    at_ms: int
    status: int
    text: str
    seconds: float
    events: int


class WebhookValue(Value):
    """A subscription that is delivered to a sink.

    Attributes:
        name: of the subscription.
        topic: whose events it gets.
        sink: its URL without the query, where secrets are.
        owner: whose rights it has; empty for nobody's.
        state: `active`; `failing` while the last request failed in a way that may pass; `paused` by
            an operator; `disabled` for another reason.
        why: why it is paused or disabled; empty while it works.
        waiting: events that wait in its queue.
        held: events that were taken from the queue, and are not delivered.
        attempts: failed requests for the event that is next.
        next_seconds: until the next attempt; null: none is waited for.
        delivered_ms: when the last request was answered well, since it was started; null: none.
        failures: the last ten requests that failed, the oldest first. They are in memory only.
    """

    name: str
    topic: str
    sink: str
    owner: str
    state: Literal["active", "failing", "paused", "disabled"]
    why: str
    waiting: int
    held: int
    attempts: int
    next_seconds: float | None
    delivered_ms: int | None
    failures: list[WebhookAttempt]


class Hurried(Value):
    """Whether an attempt came earlier.

    Attributes:
        waited: whether one was waited for. Otherwise a request is under way, or there is nothing
            to deliver.
    """

    waited: bool


class WebhookHandlers:
    """Carries out the operations on webhooks.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed, gateways: Gateways) -> None:
        self._engine = engine
        self._committed = committed
        self._gateways = gateways
        self._pausing = engine.named_queues.pausing

    def group(self) -> Group:
        """The operations."""
        named = {"name": "of the subscription"}
        return Group(
            name="webhooks",
            about="Subscriptions over HTTP that are delivered to a sink.",
            operations=[
                Operation(
                    method="GET",
                    path="/webhooks",
                    name="listWebhooks",
                    summary="List webhooks and how their deliveries go",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[WebhookValue],
                ),
                Operation(
                    method="GET",
                    path="/webhooks/{name}",
                    name="getWebhook",
                    summary="Show a webhook with its last failed requests",
                    right="monitor",
                    handler=self._show,
                    answer=WebhookValue,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/webhooks/{name}/pause",
                    name="pauseWebhook",
                    summary="Deliver nothing to a webhook until it is resumed",
                    about="Also after a restart. Its events are collected meanwhile.",
                    right="operate",
                    handler=self._pause,
                    answer=WebhookValue,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/webhooks/{name}/resume",
                    name="resumeWebhook",
                    summary="Deliver to a webhook again",
                    about="Also to one that was disabled because its sink answered 410.",
                    right="operate",
                    handler=self._resume,
                    answer=WebhookValue,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/webhooks/{name}/try",
                    name="tryWebhook",
                    summary="Make the next attempt now",
                    right="operate",
                    handler=self._try,
                    answer=Hurried,
                    path_about=named,
                ),
            ],
        )

    def _control(self) -> WebhookControl:
        found = self._gateways.webhooks()
        if found is None:
            raise Refused(Reason.NOT_FOUND, "the HTTP listener is not enabled")
        return found

    async def _list(self, call: Call[PageQuery]) -> Page[WebhookValue]:
        control = self._gateways.webhooks()
        listing: Listing[Any, WebhookValue] = Listing(
            names=() if control is None else control.names(),
            find=lambda name: None if control is None else control.show(name),
            row=lambda _name, info: self._value(info),
        )
        return await in_steps(page_of(listing, call.query))

    async def _show(self, call: Call[Given]) -> WebhookValue:
        return self._shown(call.path["name"])

    def _shown(self, name: str) -> WebhookValue:
        info = self._control().show(name)
        if info is None:
            raise Refused(Reason.NOT_FOUND, f"there is no webhook {name!r}")
        return self._value(info)

    def _value(self, info: WebhookInfo) -> WebhookValue:
        found = self._engine.named_queues.queues.get(SUBSCRIPTION_PREFIX + info.name)
        return WebhookValue(
            name=info.name,
            topic=info.topic,
            sink=info.sink,
            owner=self._engine.exchanges.owners.principal_of(info.owner) if info.owner else "",
            state=info.state,
            why=info.why,
            waiting=0 if found is None else found.group.ready_count,
            held=info.held,
            attempts=info.attempts,
            next_seconds=info.next_seconds,
            delivered_ms=info.delivered_ms,
            failures=[WebhookAttempt(*one) for one in info.failures],
        )

    async def _pause(self, call: Call[Given]) -> WebhookValue:
        name = call.path["name"]
        self._control().need(name)
        position = self._pausing.pause(SUBSCRIPTION_PREFIX + name, by=call.caller)
        await self._committed(position)
        audit.note("webhook paused", subscription=name, by=call.caller)
        return self._shown(name)

    async def _resume(self, call: Call[Given]) -> WebhookValue:
        name = call.path["name"]
        self._control().need(name)
        await self._committed(self._pausing.resume(SUBSCRIPTION_PREFIX + name))
        await self._control().enable(name)
        audit.note("webhook resumed", subscription=name, by=call.caller)
        return self._shown(name)

    async def _try(self, call: Call[Given]) -> Hurried:
        return Hurried(waited=self._control().try_now(call.path["name"]))
