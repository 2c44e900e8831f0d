"""Topics, publishing and transactions, as one principal may use them. See `permitted.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polymq.broker.accounts.permissions import Action
from polymq.broker.admission.permitted import AnsweredTemplate, Permitted, PermittedTemplate
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.infos import TopicInfo
from polymq.broker.port.publishing import Placed, Publishing, Route, Template
from polymq.broker.port.queues import QueueConsumer, Settlement
from polymq.broker.port.transactions import HalfMessage, Prepared
from polymq.broker.port.values import REST, Position
from polymq.broker.routing.trie import address_of
from polymq.core_log.kernels.batch import Batch


class PermittedTopics(Permitted):
    """`port.TopicPort` for one principal."""

    __slots__ = ()

    def infos(self) -> Sequence[TopicInfo]:
        """See `TopicPort.infos`: those that may be read."""
        infos = self._parts.topics.infos()
        return [info for info in infos if self._principal.may_read((info.name, REST))]

    def info(self, name: str) -> TopicInfo | None:
        """See `TopicPort.info`: gateways ask it for themselves, and answer what was checked."""
        return self._parts.topics.info(name)

    def create(
        self, name: str, queue_count: int, settings: Mapping[str, str] | None = None
    ) -> Position:
        """See `TopicPort.create`."""
        self._principal.check(Action.CREATE, (name,))
        if settings:
            self._principal.check(Action.ADMIN, (name,))
        return self._parts.topics.create(name, queue_count, settings)

    def set(self, name: str, settings: Mapping[str, str]) -> Position:
        """See `TopicPort.set`."""
        self._principal.check(Action.ADMIN, (name,))
        return self._parts.topics.set(name, settings)

    def delete(self, name: str) -> Position:
        """See `TopicPort.delete`."""
        self._principal.check(Action.ADMIN, (name,))
        return self._parts.topics.delete(name)

    def route(self, topic: str, tag: str | None) -> Route:
        """See `TopicPort.route`."""
        self._principal.check_publish(topic, tag)
        return self._parts.topics.route(topic, tag)

    def template(self, route: Route, **settings: Any) -> Template:
        """See `TopicPort.template`."""
        principal = self._principal
        until = principal.check(Action.PUBLISH, address_of(route.topic, route.tag))
        inner = self._parts.topics.template(route, **settings)
        if until == math.inf or principal.asker is None:
            return PermittedTemplate(inner, principal.users)
        return AnsweredTemplate(inner, principal.users, principal.asker, until)

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """See `TopicPort.publish_placed`."""
        inner = self._allowed(template)
        before = self._parts.storage.log.appended
        placed = self._parts.topics.publish_placed(inner, batch, first, last, born_ms=born_ms)
        self._spent(last - first, before)
        return placed


class PermittedDelays(Permitted):
    """`port.DelayPort` for one principal."""

    __slots__ = ()

    def publish_later(
        self, template: Template, batch: Batch, first: int, last: int, **when: Any
    ) -> Position:
        """See `DelayPort.publish_later`. The right is asked for now, not when it is due."""
        inner = self._allowed(template)
        before = self._parts.storage.log.appended
        position = self._parts.delays.publish_later(inner, batch, first, last, **when)
        self._spent(last - first, before)
        return position

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, deliver_ms: int
    ) -> Placed:
        """See `DelayPort.publish_placed`, and `publish_later`."""
        inner = self._allowed(template)
        before = self._parts.storage.log.appended
        placed = self._parts.delays.publish_placed(inner, batch, first, last, deliver_ms=deliver_ms)
        self._spent(last - first, before)
        return placed

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """See `DelayPort.deliver_ms`."""
        return self._parts.delays.deliver_ms(properties)


class PermittedTransactions(Permitted):
    """`port.TransactionPort` for one principal."""

    __slots__ = ()

    def commit(
        self, publishes: Sequence[Publishing], settlements: Sequence[Settlement]
    ) -> Position:
        """See `TransactionPort.commit`. A right that was lost meanwhile refuses all."""
        inner = [replace(one, template=self._allowed(one.template)) for one in publishes]
        before = self._parts.storage.log.appended
        position = self._parts.transactions.commit(inner, settlements)
        self._spent(sum(one.last - one.first for one in publishes), before)
        return position

    def publish_settling(
        self,
        template: Template,
        batch: Batch,
        row: int,
        consumer: QueueConsumer,
        offset: int,
        *,
        position: int = 0,
    ) -> Position:
        """See `TransactionPort.publish_settling`."""
        inner = self._allowed(template)
        return self._parts.transactions.publish_settling(
            inner, batch, row, consumer, offset, position=position
        )


class PermittedHalfMessages(Permitted):
    """`port.HalfMessagePort` for one principal."""

    __slots__ = ()

    def prepare(
        self, template: Template, batch: Batch, row: int, *, check_after_ms: int = 0
    ) -> Prepared:
        """See `HalfMessagePort.prepare`. The right is asked for now, and again at the commit."""
        inner = self._allowed(template)
        before = self._parts.storage.log.appended
        prepared = self._parts.half_messages.prepare(
            inner, batch, row, check_after_ms=check_after_ms, owner=self._principal.as_owner
        )
        self._spent(1, before)
        return prepared

    def end(
        self,
        offset: int,
        record_position: int,
        *,
        producer: str,
        commit: bool,
        callback: Callable[[int | Refused], None],
    ) -> None:
        """See `HalfMessagePort.end`: for who prepared it, and for administrators. Who commits
        publishes, so the right to do so is asked for, too."""
        self._parts.half_messages.end(
            offset,
            record_position,
            producer=producer,
            commit=commit,
            callback=callback,
            decider=self._principal,
        )

    def may_end(self, owner: str) -> bool:
        """See `HalfMessagePort.may_end`."""
        return self._principal.may_end(owner)

    def when_unresolved(self, callback: Callable[[HalfMessage], None]) -> None:
        """See `HalfMessagePort.when_unresolved`: the server's own, not a client's."""
        raise Refused(Reason.FORBIDDEN, "only the server looks after half messages")
