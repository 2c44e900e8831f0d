"""All subscriptions: made, changed, deleted, stored, and each with the part that serves it.

Rules:

* A subscription is a document, and a queue in the engine. The document is written first and the
  queue deleted first, so that a crash between the two leaves a subscription that users see.
* A sink has consented before anything is stored (`Sinks.handshake`).
* What a subscription collects (topic, and filters on `type`) cannot change: its queue would hold
  messages of both meanings.
* A webhook has the rights of who stored it: when they go, it is disabled, and keeps its queue.
  Who receives from a subscription needs rights of his own for each request (`handlers.py`).
* Changes of one subscription come one after the other; another request meanwhile gets 409.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace

from polymq.broker.port import Reason, Refused
from polymq.gateways.http_cloudevents.delivery_counts import DeliveryCounts
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.pull import PullSubscription
from polymq.gateways.http_cloudevents.shared import Shared
from polymq.gateways.http_cloudevents.subscriptions import (
    DOCUMENT_KIND,
    Subscription,
    check,
    disabled,
    from_document,
)
from polymq.gateways.http_cloudevents.webhooks import Webhook

logger = logging.getLogger(__name__)


class Registry:
    """The subscriptions of one server.

    Args:
        handshake: whether sinks have to consent.
    """

    def __init__(self, shared: Shared, *, handshake: bool) -> None:
        self._shared = shared
        self._handshake = handshake
        self._delivery_counts = DeliveryCounts(shared.port)
        self._subscriptions: dict[str, Subscription] = {}
        self._parts: dict[str, PullSubscription | Webhook] = {}  # those that are not disabled
        self._changing: set[str] = set()  # names with a change under way
        self._tasks: set[asyncio.Task[None]] = set()  # parts that are being stopped
        self._why_resting = ""  # why subscriptions are not served by a slave

    def change(self, subscriptions_max: int, *, handshake: bool) -> None:
        """What new subscriptions have to keep to from now on."""
        self._shared.limits = replace(self._shared.limits, subscriptions_max=subscriptions_max)
        self._handshake = handshake

    def start(self) -> None:
        """Take up the stored subscriptions. Where the broker takes no changes (a slave does not)
        they rest, and who asks for one is told why."""
        resting_count = 0
        for name, document in self._shared.port.documents.of_kind(DOCUMENT_KIND).items():
            subscription = from_document(name, document)
            self._subscriptions[name] = subscription
            try:
                self._shared.port.queues.declare_subscription(name, subscription.address)
                self._start_part(subscription)
            except Refused as refused:
                if refused.reason is Reason.READ_ONLY:
                    resting_count += 1
                    self._why_resting = refused.text
                else:
                    logger.error("subscription %s is not served: %s", name, refused)
        if resting_count:
            logger.info(
                "%d subscriptions are not served for now: %s", resting_count, self._why_resting
            )

    # --- reading ------------------------------------------------------------------------------

    @property
    def dead_letters_count(self) -> int:
        """Events that became dead letters since the start."""
        return self._shared.dead_letters.count

    def webhook_states(self) -> dict[str, int]:
        """How many webhooks are `active`, `failing` (the last request failed), `paused` or
        `disabled`."""
        states = {"active": 0, "failing": 0, "paused": 0, "disabled": 0}
        for name, subscription in self._subscriptions.items():
            if subscription.sink is None:
                continue
            part = self._parts.get(name)
            if not isinstance(part, Webhook):
                states["disabled"] += 1
            elif part.paused:
                states["paused"] += 1
            else:
                states["failing" if part.failing else "active"] += 1
        return states

    @property
    def webhooks(self) -> frozenset[str]:
        """The names of the subscriptions that have a sink."""
        found = self._subscriptions.items()
        return frozenset(name for name, subscription in found if subscription.sink is not None)

    def all(self) -> list[Subscription]:
        """All subscriptions, by name."""
        return [self._subscriptions[name] for name in sorted(self._subscriptions)]

    def is_paused(self, name: str) -> bool:
        """Whether an operator has paused a subscription that is served."""
        part = self._parts.get(name)
        return part is not None and part.paused

    def webhook(self, name: str) -> tuple[Subscription | None, Webhook | None]:
        """A subscription that has a sink, and what serves it now; None if there is none."""
        subscription, part = self._subscriptions.get(name), self._parts.get(name)
        if subscription is None or subscription.sink is None:
            return None, None
        return subscription, part if isinstance(part, Webhook) else None

    def get(self, name: str) -> Subscription:
        """One subscription. Raises Problem: 404."""
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise Problem(404, "No such subscription", f"there is no subscription {name!r}")
        return subscription

    def pull(self, name: str, topic: str) -> PullSubscription:
        """What serves a subscription that is received from. Raises Problem: 404, 409."""
        subscription = self.get(name)
        if subscription.topic != topic:
            raise Problem(
                404,
                "No such subscription",
                f"subscription {name!r} is of topic {subscription.topic!r}, not {topic!r}",
            )
        if subscription.sink is not None:
            raise Problem(
                409,
                "The subscription is a webhook",
                f"subscription {name!r} is delivered to its sink; create a subscription without a "
                "sink to receive from it",
            )
        part = self._parts.get(name)
        if not isinstance(part, PullSubscription):
            why = f": {self._why_resting}" if self._why_resting else ""
            text = f"subscription {name!r} is not served now{why}"
            raise Problem(503, "Subscription not served", text)
        return part

    # --- changing -----------------------------------------------------------------------------

    async def put(self, wanted: Subscription, *, create_only: bool) -> bool:
        """Make or replace a subscription. Returns whether it is new.

        Raises:
            Problem: 409 where it cannot be changed so, 422 without the sink's consent, 429, 503.
            Refused: the engine's reasons.
        """
        with self._change(wanted.name):
            existing = self._subscriptions.get(wanted.name)
            self._check(wanted, existing, create_only=create_only)
            if wanted.sink is not None:
                self._shared.sinks.check_url(wanted.sink)
                if self._handshake:
                    granted = await self._shared.sinks.handshake(wanted)
                else:
                    granted = wanted.config.rate_per_minute
                wanted = replace(wanted, granted_per_minute=granted)
            await self._keep(wanted)
            return existing is None

    async def restore(self, wanted: Subscription) -> None:
        """Make or replace a subscription that another server had: its sink has consented there,
        and is not asked again. Raises as `put`."""
        with self._change(wanted.name):
            self._check(wanted, self._subscriptions.get(wanted.name), create_only=False)
            if wanted.sink is not None:
                self._shared.sinks.check_url(wanted.sink)
            check(wanted, self._shared.limits)
            await self._keep(wanted)

    async def _keep(self, wanted: Subscription) -> None:
        position = self._shared.port.documents.put(DOCUMENT_KIND, wanted.name, wanted.document())
        declared = self._shared.port.queues.declare_subscription(wanted.name, wanted.address)
        await self._shared.commits.wait(max(position, declared))
        self._subscriptions[wanted.name] = wanted
        await self._replace_part(wanted)

    async def enable(self, name: str) -> None:
        """Deliver a webhook again that was disabled. Raises Problem: 404, 409, 503."""
        with self._change(name):
            subscription = self.get(name)
            if subscription.disabled is None:
                return
            changed = replace(subscription, disabled=None)
            position = self._shared.port.documents.put(DOCUMENT_KIND, name, changed.document())
            await self._shared.commits.wait(position)
            self._subscriptions[name] = changed
            self._start_part(changed)

    async def delete(self, name: str) -> None:
        """Delete a subscription with its queue. Raises Problem: 404, 409, 503."""
        with self._change(name):
            subscription = self.get(name)
            await self._stop_part(name, drain_seconds=0.0)
            self._delivery_counts.forget(name)  # before the queue: its offsets may begin again
            try:
                position = self._shared.port.queues.delete_subscription(name)
            except Refused:
                self._start_part(subscription)
                raise
            position = max(position, self._shared.port.documents.put(DOCUMENT_KIND, name, None))
            self._shared.retry_states.forget(name)
            del self._subscriptions[name]
            await self._shared.commits.wait(position)

    def end_polls(self) -> None:
        """Answer all waiting polls, with nothing."""
        for part in self._parts.values():
            if isinstance(part, PullSubscription):
                part.end_polls()

    async def stop(self, drain_seconds: float) -> None:
        """Stop all parts and put back what they hold."""
        names = list(self._parts)
        for name, part in self._parts.items():
            if isinstance(part, PullSubscription):
                part.close()
                self._delivery_counts.put(name, part.counts)
        await asyncio.gather(
            *(self._stop_part(name, drain_seconds=drain_seconds) for name in names), *self._tasks
        )

    # --- inside -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        if name in self._changing:
            raise Problem(
                409, "Change under way", f"subscription {name!r} is being changed; try again"
            )
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def _check(
        self, wanted: Subscription, existing: Subscription | None, *, create_only: bool
    ) -> None:
        if existing is None:
            if len(self._subscriptions) >= self._shared.limits.subscriptions_max:
                raise Problem(
                    429,
                    "Too many subscriptions",
                    f"there are {self._shared.limits.subscriptions_max} subscriptions; delete some",
                )
            return
        if create_only:
            raise Problem(
                409,
                "Subscription exists",
                f"subscription {wanted.name!r} exists; change it with PUT",
            )
        if wanted.address != existing.address:
            raise Problem(
                409,
                "Subscription exists with other events",
                f"the topic and the type filters of {wanted.name!r} cannot change, because its "
                "queue contains what they selected; delete it first, or create another",
            )

    def _start_part(self, subscription: Subscription) -> None:
        name = subscription.name
        assert name not in self._parts
        if subscription.disabled is not None:
            return
        if subscription.sink is None:
            counts = self._delivery_counts.get(name)
            self._parts[name] = PullSubscription(subscription, self._shared, counts=counts)
        else:
            port = self._shared.port.admission.for_owner(subscription.owner)
            self._parts[name] = Webhook(subscription, self._shared, port, retired=self._retire)

    async def _replace_part(self, subscription: Subscription) -> None:
        part = self._parts.get(subscription.name)
        if isinstance(part, PullSubscription) and subscription.sink is None:
            part.reconfigure(subscription)
            return
        await self._stop_part(subscription.name, drain_seconds=subscription.config.timeout_seconds)
        self._shared.retry_states.forget(subscription.name)  # a new sink is called at once
        self._start_part(subscription)

    async def _stop_part(self, name: str, *, drain_seconds: float) -> None:
        part = self._parts.pop(name, None)
        if isinstance(part, PullSubscription):
            part.close()
        elif part is not None:
            await part.stop(drain_seconds)

    def _retire(self, subscription: Subscription, reason: str) -> None:
        """The sink answered 410, or the owner lost its rights: stop, and keep the queue."""
        stopped = disabled(subscription, reason)
        self._subscriptions[subscription.name] = stopped
        logger.warning("subscription %s is disabled: %s", subscription.name, reason)
        try:
            self._shared.port.documents.put(DOCUMENT_KIND, subscription.name, stopped.document())
        except Refused as refused:  # It will find out again after the next start.
            logger.error("subscription %s: not stored as disabled: %s", subscription.name, refused)
        task = self._shared.loop.create_task(self._stop_part(subscription.name, drain_seconds=0.0))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
