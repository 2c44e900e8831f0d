"""Definitions of topics, of AMQP's exchanges, queues and bindings, and of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from polymq.broker.accounts.permissions import ANONYMOUS
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import PREDECLARED, binding_key, canonical
from polymq.broker.exchanges.entities import Exchange as BrokerExchange
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.names import (
    SERVER_NAMED,
    SERVER_TOPICS,
    check_characters,
    display_name,
    encode_name,
    is_own_topic,
    parse_display_name,
)
from polymq.broker.port import Position
from polymq.broker.routing.header_match import is_pattern, pattern_of
from polymq.broker.topics.settings import DEFAULT, parse_settings
from polymq.definitions.accounts import USERS
from polymq.definitions.kinds import Kind, Need
from polymq.definitions.models import (
    DELETED,
    BindingDefinition,
    ConsumerGroupDefinition,
    ExchangeDefinition,
    QueueDefinition,
    TopicDefinition,
)
from polymq.definitions.ordering import in_order
from polymq.gateways.rocketmq.mapping import check_group
from polymq.management.bindings import NO_ARGUMENTS, arguments_of

D = TypeVar("D")

QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"


# --- owners ---------------------------------------------------------------------------------


def shown_owner(engine: Engine, owner: str) -> str | None:
    """An owner in a document; None: nobody."""
    principal = engine.exchanges.owners.principal_of(owner)
    name, numbered, _ = principal.partition(":")
    return f"{name}{DELETED}" if numbered else principal or None


def stored_owner(engine: Engine, owner: str | None) -> str:
    """An owner of a document, as the broker stores it."""
    return engine.exchanges.owners.restored((owner or "").removesuffix(DELETED))


def owner_needs(*owners: str | None) -> Iterator[Need]:
    """The users that owners are."""
    for owner in owners:
        if owner and owner != ANONYMOUS and not owner.endswith(DELETED):
            yield Need(USERS, owner)


# --- topics ---------------------------------------------------------------------------------


def topic_kind(engine: Engine) -> Kind[TopicDefinition]:
    """Topics, but for the broker's own."""
    topics = engine.topics

    def shown(name: str) -> TopicDefinition | None:
        topic = topics.find(name)
        if topic is None or is_own_topic(topic.stored):
            return None
        values = topic.own_values
        settings = {key: values[key] for key in sorted(values)}
        return TopicDefinition(display_name(name), len(topic.queues), settings)

    def check(wanted: TopicDefinition) -> TopicDefinition:
        name = parse_display_name(wanted.name)
        check_characters("a topic", name)
        if is_own_topic(encode_name(name)) or name in SERVER_TOPICS:
            raise Refused(Reason.FORBIDDEN, f"topic {wanted.name!r} is the broker's own")
        values = parse_settings(_texts(wanted))
        settings = {key: values[key] for key in sorted(values) if values[key] is not None}
        return msgspec.structs.replace(wanted, name=display_name(name), settings=settings)

    async def put(wanted: TopicDefinition, current: TopicDefinition | None) -> Position:
        name, texts = parse_display_name(wanted.name), _texts(wanted)
        if current is None:
            return topics.create(name, wanted.queues, texts)
        return topics.set(name, dict.fromkeys(current.settings, DEFAULT) | texts)

    return Kind(
        section="topics",
        model=TopicDefinition,
        name=lambda topic: topic.name,
        everything=lambda: _shown(topics.topics, shown),
        find=lambda topic: shown(parse_display_name(topic.name)),
        check=check,
        put=put,
        changing=frozenset({"settings"}),
    )


def _texts(wanted: TopicDefinition) -> dict[str, str]:
    return {key: str(value) for key, value in wanted.settings.items()}


def _shown(names: Iterable[str], shown: Callable[[str], D | None]) -> Iterator[D | None]:
    return (None if name is None else shown(name) for name in in_order(names))


# --- exchanges and queues -------------------------------------------------------------------


def exchange_kind(engine: Engine) -> Kind[ExchangeDefinition]:
    """Declared exchanges that are durable."""
    exchanges = engine.exchanges

    def shown(name: str) -> ExchangeDefinition | None:
        found = exchanges.exchanges.get(name)
        if found is None or not found.durable or name in PREDECLARED:
            return None
        value = found.value()
        del value["durable"]
        return ExchangeDefinition(name, **value, owner=shown_owner(engine, found.by))

    def check(wanted: ExchangeDefinition) -> ExchangeDefinition:
        found = exchanges.exchanges.get(wanted.name)
        if found is not None and not found.durable:
            raise Refused(
                Reason.DIFFERENT, f"exchange {wanted.name!r} is there, and is not durable"
            )
        exchanges.check_new(wanted.name, wanted.type, wanted.arguments)
        return wanted

    async def put(wanted: ExchangeDefinition, _current: ExchangeDefinition | None) -> Position:
        value = {
            "type": wanted.type,
            "durable": True,
            "auto_delete": wanted.auto_delete,
            "internal": wanted.internal,
            "arguments": wanted.arguments,
        }
        by = stored_owner(engine, wanted.owner)
        return exchanges.create(wanted.name, {**value, "by": by} if by else value)

    return Kind(
        section=EXCHANGES,
        model=ExchangeDefinition,
        name=lambda exchange: exchange.name,
        everything=lambda: _shown(exchanges.exchanges, shown),
        find=lambda exchange: shown(exchange.name),
        check=check,
        put=put,
        needs=lambda exchange: owner_needs(exchange.owner),
        exists=lambda name: exchanges.exchange(name) is not None,
    )


def queue_kind(engine: Engine) -> Kind[QueueDefinition]:
    """Queues that are durable and have a name that a client chose."""
    named = engine.named_queues

    def shown(name: str) -> QueueDefinition | None:
        found = named.queues.get(name)
        if found is None or not found.queue.durable:
            return None
        if name.startswith((SUBSCRIPTION_PREFIX, SERVER_NAMED)):
            return None
        terms = found.terms
        owner = shown_owner(engine, terms.maker)
        by = None if terms.by == terms.maker else shown_owner(engine, terms.by)
        return QueueDefinition(name, terms.auto_delete, dict(terms.arguments), owner, by)

    def check(wanted: QueueDefinition) -> QueueDefinition:
        if shown(wanted.name) is None:
            named.check_new(wanted.name, wanted.arguments)
        return wanted

    async def put(wanted: QueueDefinition, _current: QueueDefinition | None) -> Position:
        maker = stored_owner(engine, wanted.owner)
        by = wanted.dead_letter_owner
        return named.restore(
            wanted.name,
            auto_delete=wanted.auto_delete,
            arguments=wanted.arguments,
            maker=maker,
            by=maker if by is None else stored_owner(engine, by),
        )

    return Kind(
        section=QUEUES,
        model=QueueDefinition,
        name=lambda queue: queue.name,
        everything=lambda: _shown(named.queues, shown),
        find=lambda queue: shown(queue.name),
        check=check,
        put=put,
        needs=lambda queue: owner_needs(queue.owner, queue.dead_letter_owner),
        exists=lambda name: name in named.queues,
    )


# --- bindings -------------------------------------------------------------------------------


class Bindings:
    """The bindings of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._exchanges = engine.exchanges

    def kind(self) -> Kind[BindingDefinition]:
        """One that is there is equal, unless its owner is another."""
        return Kind(
            section="bindings",
            model=BindingDefinition,
            name=_binding_name,
            everything=self._everything,
            find=self._find,
            check=self._check,
            put=self._put,
            changing=frozenset({"owner"}),
            needs=self._needs,
        )

    def _everything(self) -> Iterator[BindingDefinition | None]:
        queues = self._engine.named_queues.queues
        for name in in_order(queues):
            yield None
            found = None if name is None else queues.get(name)
            if name is None or found is None or not found.queue.durable:
                continue
            if name.startswith((SUBSCRIPTION_PREFIX, SERVER_NAMED)):
                continue
            for source, key, text in sorted(found.bindings.chosen()):
                origin = self._durable(source)
                if origin is not None and self._exchanges.graph.is_bound(
                    found.queue, (source, key, text)
                ):
                    yield self._shown(origin, found.name, "queue", key, text, None)
        for source in sorted(self._exchanges.graph.sources()):
            yield None
            origin = self._durable(source)
            links = self._exchanges.graph.links(source)
            for destination, key, text in [] if origin is None else sorted(links):
                link = links.get((destination, key, text))
                if link is not None and self._durable(destination) is not None:
                    owner = shown_owner(self._engine, link.by)
                    yield self._shown(origin, destination, "exchange", key, text, owner)

    def _durable(self, name: str) -> BrokerExchange | None:
        found = self._exchanges.exchange(name)
        return found if found is not None and found.durable else None

    def _shown(
        self, source: Any, destination: str, kind: Any, key: str, text: str, owner: str | None
    ) -> BindingDefinition:
        arguments: Mapping[str, Any] = arguments_of(text)
        exact = None if binding_key(source, key, arguments)[2] == text else text
        shown = {} if exact is not None else dict(arguments)
        return BindingDefinition(source.name, destination, kind, key, shown, exact, owner)

    def _text(self, wanted: BindingDefinition) -> str:
        """The arguments as the broker keeps them. Raises Refused."""
        source = self._exchanges.exchange(wanted.source)
        if wanted.exact is None:
            return "" if source is None else binding_key(source, "", wanted.arguments)[2]
        try:
            if is_pattern(wanted.exact):
                pattern_of(wanted.exact)
            readable = source is None or is_pattern(wanted.exact) == (source.reads == "headers")
        except (ValueError, TypeError, LookupError):
            readable = False
        if not readable:
            text = "exact is not what an exchange of this type compares: use arguments instead"
            raise Refused(Reason.BAD_ARGUMENT, text)
        return wanted.exact

    def _find(self, wanted: BindingDefinition) -> BindingDefinition | None:
        source, graph = self._exchanges.exchange(wanted.source), self._exchanges.graph
        if source is None:
            return None
        text = self._text(wanted)
        if wanted.kind == "queue":
            found = self._engine.named_queues.queues.get(wanted.destination)
            key = (wanted.source, wanted.routing_key, text)
            return wanted if found is not None and graph.is_bound(found.queue, key) else None
        link = graph.links(wanted.source).get((wanted.destination, wanted.routing_key, text))
        if link is None:
            return None
        owner = shown_owner(self._engine, link.by)
        return self._shown(source, wanted.destination, "exchange", wanted.routing_key, text, owner)

    def _check(self, wanted: BindingDefinition) -> BindingDefinition:
        if not wanted.source:
            text = "queues are bound to the default exchange by their names: leave this out"
            raise Refused(Reason.FORBIDDEN, text)
        self._text(wanted)
        return wanted

    def _needs(self, wanted: BindingDefinition) -> Iterable[Need]:
        yield from owner_needs(wanted.owner)
        yield _exchange_need(wanted.source)
        if wanted.kind == "queue":
            yield Need(QUEUES, wanted.destination)
        else:
            yield _exchange_need(wanted.destination)

    async def _put(self, wanted: BindingDefinition, _current: BindingDefinition | None) -> Position:
        source = self._exchanges.need_exchange(wanted.source)
        text = self._text(wanted)
        if wanted.kind == "queue":
            found = self._engine.named_queues.need_queue(wanted.destination, None)
            return self._exchanges.bind_by(found, source, (source.name, wanted.routing_key, text))
        self._exchanges.need_exchange(wanted.destination)
        by = stored_owner(self._engine, wanted.owner)
        return self._exchanges.link(source, (wanted.destination, wanted.routing_key, text), by)


def _exchange_need(name: str) -> Need:
    """A topic is an exchange by itself."""
    return Need(EXCHANGES, name, topic=display_name(name))


def _binding_name(one: BindingDefinition) -> str:
    """Also what differs only in its arguments has another name."""
    name = f"{one.source} to {one.kind} {one.destination} by {one.routing_key!r}"
    arguments = one.exact or canonical(one.arguments)
    return f"{name} with {arguments}" if arguments != NO_ARGUMENTS else name


# --- consumer groups ------------------------------------------------------------------------


def consumer_group_kind(engine: Engine) -> Kind[ConsumerGroupDefinition]:
    """RocketMQ's consumer groups."""
    groups = engine.groups

    def shown(name: str) -> ConsumerGroupDefinition | None:
        found = groups.info(name)
        return None if found is None else ConsumerGroupDefinition(name, dict(found.settings))

    def check(wanted: ConsumerGroupDefinition) -> ConsumerGroupDefinition:
        check_group(wanted.name)
        return wanted

    async def put(
        wanted: ConsumerGroupDefinition, _current: ConsumerGroupDefinition | None
    ) -> Position:
        return groups.put(wanted.name, wanted.settings)

    return Kind(
        section="consumer_groups",
        model=ConsumerGroupDefinition,
        name=lambda group: group.name,
        everything=lambda: _shown(groups.names(), shown),
        find=lambda group: shown(group.name),
        check=check,
        put=put,
        changing=frozenset({"settings"}),
    )
