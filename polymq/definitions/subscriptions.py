"""Definitions of HTTP's subscriptions, webhooks among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.names import display_name, parse_display_name
from polymq.broker.port import Position
from polymq.definitions.kinds import Kind
from polymq.definitions.models import SubscriptionDefinition
from polymq.definitions.ordering import in_order
from polymq.definitions.topology import owner_needs, shown_owner, stored_owner
from polymq.gateways.http_cloudevents import subscriptions
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.gateways.http_cloudevents.subscriptions import DOCUMENT_KIND

if TYPE_CHECKING:
    from polymq.gateways.http_cloudevents.operating import WebhookControl


class Subscriptions:
    """The subscriptions of one engine.

    Args:
        control: where subscriptions are changed while they are served; None: there is no HTTP
            listener, and they are served when there is one again.
    """

    def __init__(self, engine: Engine, control: Callable[[], WebhookControl | None]) -> None:
        self._engine = engine
        self._control = control

    def kind(self) -> Kind[SubscriptionDefinition]:
        """What a subscription collects cannot change: its queue would hold both."""
        return Kind(
            section="subscriptions",
            model=SubscriptionDefinition,
            name=lambda one: one.name,
            everything=self._everything,
            find=lambda one: self._shown(one.name),
            check=self._check,
            put=self._put,
            changing=frozenset(
                {"sink", "filters", "config", "granted_per_minute", "disabled", "owner"}
            ),
            needs=lambda one: owner_needs(one.owner),
        )

    def _everything(self) -> Iterator[SubscriptionDefinition | None]:
        for name in in_order(self._engine.documents.of_kind(DOCUMENT_KIND)):
            yield None if name is None else self._shown(name)

    def _shown(self, name: str) -> SubscriptionDefinition | None:
        document = self._engine.documents.of_kind(DOCUMENT_KIND).get(name)
        if document is None:
            return None
        found = subscriptions.from_document(name, document)
        return SubscriptionDefinition(
            name=name,
            topic=display_name(found.topic),
            sink=found.sink,
            filters=[dict(one) for one in found.filters],
            config=msgspec.to_builtins(found.config),
            granted_per_minute=found.granted_per_minute,
            disabled=found.disabled,
            owner=shown_owner(self._engine, found.owner),
        )

    def _stored(self, wanted: SubscriptionDefinition) -> subscriptions.Subscription:
        """Raises Refused."""
        try:
            config = msgspec.convert(wanted.config, subscriptions.Config)
        except msgspec.ValidationError as error:
            raise Refused(Reason.BAD_ARGUMENT, f"config: {error}") from None
        return subscriptions.Subscription(
            name=wanted.name,
            topic=parse_display_name(wanted.topic),
            sink=wanted.sink,
            filters=tuple(wanted.filters),
            config=config,
            granted_per_minute=wanted.granted_per_minute,
            disabled=wanted.disabled,
            owner=stored_owner(self._engine, wanted.owner),
        )

    def _check(self, wanted: SubscriptionDefinition) -> SubscriptionDefinition:
        stored = self._stored(wanted)
        current: Any = self._engine.documents.of_kind(DOCUMENT_KIND).get(wanted.name)
        try:
            subscriptions.check(stored, Limits())
        except Problem as problem:
            raise Refused(Reason.BAD_ARGUMENT, problem.detail) from None
        if current is not None:
            existing = subscriptions.from_document(wanted.name, current)
            if existing.address != stored.address:
                text = "its topic and its filters on the type cannot change: delete it first"
                raise Refused(Reason.DIFFERENT, text)
        config = msgspec.to_builtins(stored.config)
        return msgspec.structs.replace(wanted, topic=display_name(stored.topic), config=config)

    async def _put(
        self, wanted: SubscriptionDefinition, current: SubscriptionDefinition | None
    ) -> Position:
        stored = self._stored(wanted)
        if current is not None and wanted.owner is None:
            was = self._engine.documents.of_kind(DOCUMENT_KIND)[wanted.name]
            stored = replace(stored, owner=was.get("owner", ""))
        control = self._control()
        if control is not None:
            await control.restore(stored)
            return Position(0)  # it has waited for the disk
        position = self._engine.documents.put(DOCUMENT_KIND, stored.name, stored.document())
        declared = self._engine.named_queues.declare_subscription(stored.name, stored.address)
        return max(position, declared)
