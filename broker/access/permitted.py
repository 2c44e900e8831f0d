"""The engine as one principal sees it: every operation is checked, then handed on.

A gateway gets one of these when a client has logged in (`BrokerPort.for_principal`), and uses it
like the engine.

Rules:

* Publishing is checked when a template is made. A template remembers the version of the users that
  it was made under, and is not `valid` under any other: the hot path pays one comparison of
  integers for a run of messages.
* Reading is checked when it begins: a subscription, a consumer, a resumed session. It ends when
  the right does (`admission.py`), so no delivery is checked.
* A queue is a view on what its bindings collect. Who consumes from it needs the right to read all
  of that, whoever bound it; who binds it needs it as well. Queues with names that the server made
  up (`amq.gen-`) need no right of their own: they are their maker's. Others need the rights that
  they would need for any queue of that name, for a reply-to gives the name away.
* Every operation of the port stands here, or, if it reads by offset, in `permitted_reading.py`,
  checked or handed on by choice; a test holds this class complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polymq.broker.access import audit
from polymq.broker.access.permissions import Action, format_pattern
from polymq.broker.access.permitted_reading import PermittedReading
from polymq.broker.access.readers import Reader
from polymq.broker.entities import (
    ALTERNATE_ARGUMENT,
    binding_words,
    everything_in,
    is_server_named,
    place_of,
)
from polymq.broker.errors import Reason, Refused, StorageFailed
from polymq.broker.names import ROOT_EXCHANGE
from polymq.broker.port import (
    REST,
    BrokerPort,
    Consumer,
    Delivery,
    Durability,
    ExchangeInfo,
    Placed,
    Position,
    Publishing,
    QueueConsumer,
    QueueInfo,
    Route,
    Session,
    SessionLink,
    Settlement,
    Template,
    Words,
)
from polymq.broker.queues.settings import DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY
from polymq.broker.routing import words_of
from polymq.broker.session import MqttSession
from polymq.broker.transaction_port import HalfMessage, Prepared
from polymq.core_log.kernels.batch import Batch


class PermittedTemplate:
    """A template that was allowed under one version of the users."""

    __slots__ = ("_users", "durability", "inner", "version")

    def __init__(self, inner: Template, users: Any, version: int) -> None:
        self.inner = inner
        self.durability = inner.durability
        self.version = version
        self._users = users

    @property
    def route(self) -> Route:
        """See `port.Template`."""
        return self.inner.route

    @property
    def valid(self) -> bool:
        """See `port.Template`."""
        return self.version == self._users.version and self.inner.valid

    @property
    def rows_at_once(self) -> int:
        """See `port.Template`."""
        return self.inner.rows_at_once

    @property
    def queues(self) -> Sequence[object]:
        """See `port.Template`."""
        return self.inner.queues

    @property
    def overflowed(self) -> int:
        """See `port.Template`."""
        return self.inner.overflowed

    @property
    def refused(self) -> Sequence[tuple[int, int]]:
        """See `port.Template`."""
        return self.inner.refused


class Permitted(PermittedReading):
    """`broker.port.BrokerPort` for one principal.

    Args:
        client_id: of an MQTT connection, for rules that name it.
    """

    __slots__ = ()

    # --- queues as what they collect --------------------------------------------------------

    def may_consume(self, queue: str) -> bool:
        """Whether everything that the queue collects may be read."""
        return all(self.may_read(words) for words in self._collected(queue))

    def _collected(self, queue: str) -> list[Words]:
        return self._engine.exchanges.collected(queue)

    def _check_consume(self, queue: str) -> None:
        filters = self._collected(queue)
        by_name = not self._made(queue) if is_server_named(queue) else not filters
        if by_name:
            self._check_filter((queue,))
        for words in filters:
            self._check_filter(words)

    def _check_queue(self, queue: str) -> None:
        if not is_server_named(queue) or not self._made(queue):
            self._check(Action.CREATE, (queue,))

    def _made(self, queue: str) -> bool:
        """Whether a queue that the server named is this user's, or gone."""
        found = self._engine.named_queues.queues.get(queue)
        return found is None or found.terms.maker == self.as_owner

    # --- who it is ------------------------------------------------------------------------

    @property
    def as_owner(self) -> str:
        """See `BrokerPort.as_owner`."""
        return self._engine.owners.of(self.principal)

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
    ) -> Callable[[], None]:
        """See `BrokerPort.authenticate`."""
        return self._engine.authenticate(user, password, address, answer)

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """See `BrokerPort.check_signature`."""
        return self._engine.check_signature(access_key, content, digest, address)

    def listener_principal(self, user: str) -> str:
        """See `BrokerPort.listener_principal`."""
        return self._engine.listener_principal(user)

    def for_principal(self, principal: str, client_id: str | None = None) -> BrokerPort:
        """See `BrokerPort.for_principal`."""
        return self._engine.for_principal(principal, client_id)

    def for_owner(self, owner: str) -> BrokerPort:
        """See `BrokerPort.for_owner`."""
        return self._engine.for_owner(owner)

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """See `BrokerPort.enter`."""
        return self._admission.enter(self.principal, expelled, access_key, address)

    def for_group(self, name: str) -> BrokerPort:
        """See `RocketmqPort.for_group`."""
        self.check_group(name)
        return self._admission.for_group(self.principal, name)

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """See `BrokerPort.check_publish`."""
        if every_tag:
            self._check_filter((topic, REST), Action.PUBLISH)
            return
        words = words_of(topic, tag)
        self._check(Action.PUBLISH, words)
        if not self._engine.exchanges.is_made(topic):
            self._check(Action.CREATE, words)

    def check_read(self, words: Words) -> None:
        """See `BrokerPort.check_read`."""
        self._check_filter(words)

    # --- publishing -----------------------------------------------------------------------

    def route(self, topic: str, tag: str | None) -> Route:
        """See `BrokerPort.route`."""
        self.check_publish(topic, tag)
        return self._engine.route(topic, tag)

    def exchange_route(self, exchange: str, routing_key: str) -> Route | None:
        """See `BrokerPort.exchange_route`."""
        self._check_place(exchange, routing_key)
        return self._engine.exchange_route(exchange, routing_key)

    def copying_route(self, exchange: str, routing_key: str, copies: Sequence[str]) -> Route | None:
        """See `AmqpPort.copying_route`. Each key asks for the right to publish there."""
        self._check_place(exchange, routing_key)
        for key in copies:
            self._check(Action.PUBLISH, words_of(*place_of(exchange, key)))
        return self._engine.copying_route(exchange, routing_key, copies)

    def _check_place(self, exchange: str, routing_key: str) -> None:
        topic, tag = place_of(exchange, routing_key)
        words = words_of(topic, tag)
        self._check(Action.PUBLISH, words)
        if exchange in ("", ROOT_EXCHANGE) and not self._engine.exchanges.is_made(topic):
            leads = exchange or self._engine.topics_.router.match(words)
            if leads:  # else it goes nowhere, and makes nothing
                self._check(Action.CREATE, words)

    def template(self, route: Route, **settings: Any) -> Template:
        """See `BrokerPort.template`."""
        self._check(Action.PUBLISH, words_of(route.topic, route.tag))
        inner = self._engine.template(route, **settings)
        return PermittedTemplate(inner, self._users, self._users.version)

    def _inner(self, template: Template) -> Template:
        """The engine's template, if it is still allowed."""
        assert isinstance(template, PermittedTemplate)
        if template.version != self._users.version:
            self._check(Action.PUBLISH, words_of(template.route.topic, template.route.tag))
            template.version = self._users.version
        return template.inner

    def publish(self, template: Template, batch: Batch, first: int, last: int) -> Position:
        """See `BrokerPort.publish`."""
        inner = self._inner(template)
        if not self._pace.limited:
            return self._engine.publish(inner, batch, first, last)
        log = self._engine.core.log
        before = log.appended
        position = self._engine.publish(inner, batch, first, last)
        self._pace.used(last - first, log.appended - before, self._now())
        return position

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """See `RocketmqPort.publish_placed`."""
        inner = self._inner(template)
        log = self._engine.core.log
        before = log.appended
        placed = self._engine.publish_placed(inner, batch, first, last, born_ms=born_ms)
        self._pace.used(last - first, log.appended - before, self._now())
        return placed

    def publish_later(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """See `BrokerPort.publish_later`. The right is asked for now, not when it is due."""
        inner = self._inner(template)
        log = self._engine.core.log
        before = log.appended
        position = self._engine.publish_later(
            inner,
            batch,
            first,
            last,
            delay_ms=delay_ms,
            deliver_ms=deliver_ms,
            by_exchange=by_exchange,
        )
        self._pace.used(last - first, log.appended - before, self._now())
        return position

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """See `BrokerPort.deliver_ms`."""
        return self._engine.deliver_ms(properties)

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        row: int,
        session: Session,
        packet_id: int,
        *,
        delay_ms: int = 0,
    ) -> Position:
        """See `BrokerPort.publish_once`."""
        inner = self._inner(template)
        log = self._engine.core.log
        before = log.appended
        position = self._engine.publish_once(
            inner, batch, row, session, packet_id, delay_ms=delay_ms
        )
        self._pace.used(1, log.appended - before, self._now())
        return position

    def publish_settling(
        self, template: Template, batch: Batch, row: int, consumer: QueueConsumer, offset: int
    ) -> Position:
        """See `BrokerPort.publish_settling`."""
        inner = self._inner(template)
        return self._engine.publish_settling(inner, batch, row, consumer, offset)

    def prepare(
        self, template: Template, batch: Batch, row: int, *, check_after_ms: int = 0
    ) -> Prepared:
        """See `TransactionPort.prepare`. The right is asked for now, and again at the commit."""
        inner = self._inner(template)
        log = self._engine.core.log
        before = log.appended
        prepared = self._engine.prepare(
            inner, batch, row, check_after_ms=check_after_ms, owner=self.as_owner
        )
        self._pace.used(1, log.appended - before, self._now())
        return prepared

    def end_half(
        self,
        offset: int,
        place: int,
        *,
        producer: str,
        commit: bool,
        callback: Callable[[int | Refused], None],
    ) -> None:
        """See `TransactionPort.end_half`: for who prepared it, and for administrators. Who commits
        publishes, so the right to do so is asked for, too."""
        self._engine.end_half(
            offset,
            place,
            producer=producer,
            commit=commit,
            callback=callback,
            decider=self,
        )

    def may_end_half(self, owner: str) -> bool:
        """See `TransactionPort.may_end_half`."""
        return owner == self.as_owner or self._is_admin()

    def check_commit(self, route: Route) -> None:
        """See `half_messages.Decider`."""
        self._check(Action.PUBLISH, words_of(route.topic, route.tag))

    def _is_admin(self) -> bool:
        self._refresh()
        return self._rules.decide_filter(Action.ADMIN, (REST,)).allowed

    def when_half_unresolved(self, callback: Callable[[HalfMessage], None]) -> None:
        """See `TransactionPort.when_half_unresolved`: the server's own, not a client's."""
        raise Refused(Reason.FORBIDDEN, "only the server looks after half messages")

    def commit_batch(
        self, publishes: Sequence[Publishing], settlements: Sequence[Settlement]
    ) -> Position:
        """See `TransactionPort.commit_batch`. A right that was lost meanwhile refuses all."""
        inner = [replace(one, template=self._inner(one.template)) for one in publishes]
        log = self._engine.core.log
        before = log.appended
        position = self._engine.commit_batch(inner, settlements)
        count = sum(one.last - one.first for one in publishes)
        self._refresh()
        self._pace.used(count, log.appended - before, self._now())
        return position

    def when_committed(
        self,
        position: Position,
        durability: Durability,
        callback: Callable[..., None],
        *args: object,
    ) -> None:
        """See `BrokerPort.when_committed`."""
        self._engine.when_committed(position, durability, callback, *args)

    @property
    def state_durability(self) -> Durability:
        """See `BrokerPort.state_durability`."""
        return self._engine.state_durability

    def committed(self, position: Position, durability: Durability) -> bool:
        """See `BrokerPort.committed`."""
        return self._engine.committed(position, durability)

    def appended(self) -> Position:
        """See `BrokerPort.appended`."""
        return self._engine.appended()

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """See `BrokerPort.overloaded`: here also while the user is ahead of its rates."""
        self._refresh()
        if self._pace.limited:
            seconds = self._pace.pause_seconds(self._now())
            if seconds > 0:
                self._engine.core.scheduler.call_later(seconds, resume)
                return True
        return self._engine.overloaded(resume)

    def when_storage_blocks(self, callback: Callable[[str], None]) -> None:
        """See `BrokerPort.when_storage_blocks`."""
        self._engine.when_storage_blocks(callback)

    def when_storage_fails(self, callback: Callable[[StorageFailed], None]) -> None:
        """See `BrokerPort.when_storage_fails`."""
        self._engine.when_storage_fails(callback)

    # --- MQTT -----------------------------------------------------------------------------

    def connect_session(
        self,
        client_id: str,
        *,
        clean: bool,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
    ) -> Session:
        """See `BrokerPort.connect_session`. When the session is resumed, it loses the
        subscriptions that are not allowed any more (`end_forbidden`)."""
        sessions = self._engine.sessions
        quotas = self._admission.quotas_of(self.principal)
        if not clean and client_id not in sessions.by_client:
            count = sessions.counts.get(self.principal, 0)
            self._check_quota("sessions", count, quotas.sessions)
        if quotas.inflight is not None:
            inflight_max = min(quotas.inflight, inflight_max or quotas.inflight)
        try:
            session = sessions.connect(
                client_id,
                clean=clean,
                link=link,
                principal=self.principal,
                inflight_max=inflight_max,
            )
        except Refused as error:
            if error.reason is Reason.FORBIDDEN:
                audit.warn(
                    audit.REFUSED, user=self.principal, what="session", client_id=client_id, rule=""
                )
            raise
        session.guard = self
        return session

    def end_forbidden(self, session: MqttSession, words: Words) -> bool:
        """End a subscription that is not allowed any more, with all that waits for it or is in
        flight. Returns whether it was one. Raises Refused: the log takes nothing."""
        if words not in session.subscriptions or self.may_read(words):
            return False
        if self._is_new("subscription", words):
            audit.warn(
                "subscription ended",
                user=self.principal,
                client_id=session.client_id,
                place=format_pattern(words),
            )
        self._engine.sessions.unsubscribe(session, words, forget=True)
        return True

    def check_subscribe(self, session: MqttSession, words: Words) -> None:
        """The session's question before it subscribes. Raises Refused: FORBIDDEN, LIMIT."""
        self._check_filter(words)
        if words not in session.subscriptions:
            most = self._admission.quotas_of(self.principal).subscriptions
            count = self._engine.sessions.subscription_counts.get(self.principal, 0)
            self._check_quota("subscriptions", count, most)

    def _check_quota(self, what: str, count: int, most: int | None) -> None:
        if most is not None and count >= most:
            if self._is_new(what, ()):
                audit.warn(audit.REFUSED, user=self.principal, what=what, reason="quota")
            raise Refused(
                Reason.LIMIT, f"user '{self.principal}' has {count} {what}, and may have {most}"
            )

    # --- AMQP -----------------------------------------------------------------------------

    def exchange(self, name: str) -> ExchangeInfo | None:
        """See `BrokerPort.exchange`: that one exists is no secret to who can name it."""
        return self._engine.exchange(name)

    def declare_exchange(
        self, name: str, *, arguments: Mapping[str, Any], **settings: Any
    ) -> Position:
        """See `BrokerPort.declare_exchange`. What it has no binding for is read here, and
        published to its alternate exchange, in this user's name."""
        self._check(Action.CREATE, (name,))
        alternate = arguments.get(ALTERNATE_ARGUMENT)
        if isinstance(alternate, str):
            self._check_filter((name, REST))
            self._check_all_of(alternate)
        return self._engine.declare_exchange(
            name, arguments=arguments, user=self.principal, **settings
        )

    def delete_exchange(self, name: str, *, if_unused: bool) -> Position:
        """See `BrokerPort.delete_exchange`."""
        self._check(Action.CREATE, (name,))
        return self._engine.delete_exchange(name, if_unused=if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `AmqpPort.bind_exchange`. Who binds reads the source and publishes to the
        destination from now on, as a program could that does both."""
        self._check_link(destination, source, routing_key)
        return self._engine.bind_exchange(
            destination, source, routing_key, arguments, user=self.principal
        )

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> Position:
        """See `AmqpPort.unbind_exchange`."""
        self._check_link(destination, source, routing_key)
        return self._engine.unbind_exchange(destination, source, routing_key, arguments)

    def _check_link(self, destination: str, source: str, routing_key: str) -> None:
        origin = self._engine.exchanges.need_exchange(source)
        self._check_filter(binding_words(origin, routing_key))
        self._check_all_of(destination)

    def _check_all_of(self, exchange: str) -> None:
        """Whether the user may publish to an exchange with every key."""
        self._check_filter(everything_in(exchange), Action.PUBLISH)

    def is_routed(self, template: Template, batch: Batch, row: int) -> bool:
        """See `AmqpPort.is_routed`."""
        return self._engine.is_routed(self._inner(template), batch, row)

    def queue(self, name: str, *, owner: object) -> QueueInfo:
        """See `BrokerPort.queue`: for who may consume from it, or make it."""
        if is_server_named(name) or not self.may_consume(name):
            self._check_queue(name)
        return self._engine.queue(name, owner=owner)

    def declare_queue(
        self, name: str, *, arguments: Mapping[str, Any], **settings: Any
    ) -> tuple[QueueInfo, Position]:
        """See `BrokerPort.declare_queue`. Its dead letters are read and published in this user's
        name, and are checked one by one; what can be said of them now is checked now."""
        if name:
            self._check_queue(name)
        dead = arguments.get(DEAD_LETTER_EXCHANGE)
        if isinstance(dead, str):
            if name:
                self._check_consume(name)
            key = arguments.get(DEAD_LETTER_KEY)
            if isinstance(key, str):
                self._check(Action.PUBLISH, words_of(*place_of(dead, key)))
            else:
                self._check_some(everything_in(dead), Action.PUBLISH)
        named = self._engine.named_queues
        if name not in named.queues:
            most = self._admission.quotas_of(self.principal).queues
            self._check_quota("queues", named.counts.get(self.as_owner, 0), most)
        return self._engine.declare_queue(
            name, arguments=arguments, user=self.principal, **settings
        )

    def delete_queue(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """See `BrokerPort.delete_queue`."""
        self._check_queue(name)
        return self._engine.delete_queue(name, if_unused=if_unused, if_empty=if_empty, owner=owner)

    def purge_queue(self, name: str, *, owner: object) -> tuple[int, Position]:
        """See `BrokerPort.purge_queue`: it takes messages away, as reading them would."""
        self._check_consume(name)
        return self._engine.purge_queue(name, owner=owner)

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.bind_queue`. Consumers that may not read what it brings end."""
        self._check_queue(queue)
        source = self._engine.exchanges.need_exchange(exchange)
        self._check_filter(binding_words(source, routing_key))
        position = self._engine.bind_queue(queue, exchange, routing_key, arguments, owner=owner)
        self._engine.readers.check_queue(queue, lambda guard: True)
        return position

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any],
        *,
        owner: object,
    ) -> Position:
        """See `BrokerPort.unbind_queue`."""
        self._check_queue(queue)
        return self._engine.unbind_queue(queue, exchange, routing_key, arguments, owner=owner)

    def consume(
        self, queue: str, consumer: Consumer, *, exclusive: bool, owner: object, **settings: Any
    ) -> QueueConsumer:
        """See `BrokerPort.consume`."""
        self._check_consume(queue)
        reading = self._engine.named_queues.consume(
            queue, consumer, exclusive=exclusive, owner=owner, **settings
        )
        self._engine.readers.add(queue, Reader(self, consumer, reading))
        return reading

    def get(
        self,
        queue: str,
        callback: Callable[[Delivery | None, QueueConsumer, int], None],
        *,
        owner: object,
    ) -> None:
        """See `BrokerPort.get`."""
        self._check_consume(queue)
        self._engine.get(queue, callback, owner=owner)

    def release_owner(self, owner: object) -> Iterator[None]:
        """See `BrokerPort.release_owner`."""
        return self._engine.release_owner(owner)

    # --- filter subscriptions by name -------------------------------------------------------

    def declare_subscription(self, name: str, words: Words) -> Position:
        """See `BrokerPort.declare_subscription`."""
        self._check_filter(words)
        return self._engine.declare_subscription(name, words)

    def delete_subscription(self, name: str) -> Position:
        """See `BrokerPort.delete_subscription`: the gateway knows whose it is."""
        return self._engine.delete_subscription(name)

    def subscription_queue(self, name: str) -> str:
        """See `BrokerPort.subscription_queue`."""
        return self._engine.subscription_queue(name)

    # --- documents: the gateway's own -------------------------------------------------------

    def put_document(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        """See `BrokerPort.put_document`."""
        return self._engine.put_document(kind, key, value)

    def documents(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """See `BrokerPort.documents`."""
        return self._engine.documents(kind)
