"""Topics, and how messages get into them: routes, templates, the publish path.

A topic is a name, and queues of its own with dense offsets (one, if it was made by publishing to
it). Messages to AMQP queues that go by themselves (exclusive, say) would leave a topic behind for
each queue: they share the system topic `QUEUES_TOPIC`, which nobody is shown.

A `TopicRoute` is one (topic, tag) with everything that its messages reach; a `TopicTemplate` is one
kind of message on it. Python runs here once per run of equal messages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.durability import APPENDED, FLUSHED, Durability
from polymq.broker.errors import Reason, Refused
from polymq.broker.kernels.delivery import QOS_PROPERTY
from polymq.broker.kernels.path import Publisher, Waiting
from polymq.broker.messages.record_header import header_of
from polymq.broker.messages.records import constant_properties
from polymq.broker.names import (
    EXCHANGE_PROPERTY,
    QUEUES_TOPIC,
    SERVER_TOPICS,
    check_characters,
    display_name,
    encode_name,
    is_hashed,
    is_own_topic,
)
from polymq.broker.port.infos import TopicInfo
from polymq.broker.port.publishing import Placed, Route, Template
from polymq.broker.port.values import Address, Position
from polymq.broker.queues.queue import Queue
from polymq.broker.queues.store import QueueStore
from polymq.broker.routing.header_match import Tagged
from polymq.broker.routing.trie import Router, address_of
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.header_routing import (
    HeaderReader,
    PlainHeaders,
)
from polymq.broker.topics.retained import RETAIN_PROPERTY, Retained
from polymq.broker.topics.routes import Copying, Detour, OwnRoute, RouteGraph, Target, TopicRoute
from polymq.broker.topics.settings import TopicSettings, Value, parse_settings
from polymq.broker.topics.topic import Topic, TopicTemplate
from polymq.core_log.errors import StoreError
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    COLUMNS,
    EXTRA_NONE,
    PROPERTIES_SIZE_MAX,
    Batch,
)
from polymq.core_log.kernels.index_end import append_to_all, targets_of
from polymq.core_log.kernels.layout import ENTRY_AT_MOST_ONCE, SYSTEM_FLAG_AT_MOST_ONCE
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.kernels.writing import widen
from polymq.core_log.queue_index import Index
from polymq.core_log.record import RecordTemplate, java_hash

_POSITION: Final = struct.Struct(">Q12x")
QUEUES_TOPIC_QUEUES: Final = 8
"""Own queues of the system topic: within one, what needs no flush waits behind what does."""
NO_VALUES: Final[Mapping[str, Value]] = MappingProxyType({})
"""Shared by all topics without settings of their own."""


class Topics(Publisher):
    """All topics, the router, and the publish path."""

    def __init__(
        self, core: Core, queue_store: QueueStore, retained: Retained, defaults: TopicSettings
    ) -> None:
        self.router: Router[Target, TopicRoute] = Router(
            self._new_route, complex_levels_max=core.limits.complex_levels_max
        )
        super().__init__(core, self.router)
        self.core: Core = core
        self._queue_store = queue_store
        self.defaults = defaults
        self.retained = retained
        self.topics: dict[str, Topic] = {}
        self.graph: RouteGraph | None = None
        self.header_reader: HeaderReader = PlainHeaders()
        self.is_passing: Callable[[str], bool] = lambda name: False
        """Whether messages to the queue of this name make no topic (`exchanges/exchanges.py`)."""
        self.on_change: Callable[[], None] = lambda: None  # a topic came or went
        core.journal.handle("topic+", self._apply_created)
        core.journal.handle("topic-", self._apply_deleted)
        core.journal.handle("topic=", self._apply_set)
        core.journal.handle("trim", self._apply_trim)

    def _new_route(self, address: Address) -> TopicRoute:
        route = TopicRoute(address, self.router)
        if self.graph is not None:
            route.beyond = self.graph.beyond(route)
        return route

    # --- topics ---------------------------------------------------------------------------

    def infos(self) -> list[TopicInfo]:
        """See `TopicPort.infos`."""
        return [topic.info() for topic in self.shown()]

    def info(self, name: str) -> TopicInfo | None:
        """See `TopicPort.info`."""
        topic = self.find(name)
        return None if topic is None else topic.info()

    def topic(self, name: str) -> Topic:
        """The topic of this name; made if there is none. Raises Refused."""
        topic = self.topics.get(name)
        if topic is None:
            self.create(name, 1)
            topic = self.topics[name]
        return topic

    def shown(self) -> Iterator[Topic]:
        """All topics but the one that nobody is shown."""
        return (topic for topic in self.topics.values() if topic.name != QUEUES_TOPIC)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """The name in the log, and the number of queues, of each topic that there is now. It may be
        read in slices, between which topics come and go."""
        topics = list(self.shown())
        return ((topic.stored, len(topic.queues)) for topic in topics)

    @property
    def shown_count(self) -> int:
        """How many topics clients may know of."""
        return sum(1 for _ in self.shown())

    @property
    def stored_count(self) -> int:
        """Messages that were ever stored in the topics that there are (a metric)."""
        return sum(queue.flushed for topic in self.topics.values() for queue in topic.queues)

    @property
    def page_cache_count(self) -> int:
        """Topics whose acks do not wait for the disk (a metric)."""
        return sum(topic.settings.durability is APPENDED for topic in self.shown())

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if it is one that people may know."""
        return None if name == QUEUES_TOPIC else self.topics.get(name)

    def _queues_topic(self) -> Topic:
        """The topic of messages to queues that go by themselves. Raises Refused."""
        if QUEUES_TOPIC not in self.topics:
            self.create(QUEUES_TOPIC, QUEUES_TOPIC_QUEUES, system=True)
        return self.topics[QUEUES_TOPIC]

    def create(
        self,
        name: str,
        queue_count: int,
        settings: Mapping[str, str] | None = None,
        *,
        system: bool = False,
    ) -> Position:
        """Make a topic; `system` allows names that are the broker's own, and one topic more than
        users may have. Raises Refused: BAD_NAME, LIMIT, BAD_ARGUMENT (settings), DIFFERENT (it
        exists)."""
        core = self.core
        chosen = parse_settings(settings or {})
        core.check_writable()
        check_characters("a topic", name)
        stored = encode_name(name)
        if (is_own_topic(stored) and not system) or name in SERVER_TOPICS:
            raise Refused(Reason.FORBIDDEN, f"topic {name!r} is the broker's own")
        if name in self.topics:
            raise Refused(Reason.DIFFERENT, f"topic {name!r} exists")
        if len(self.topics) >= core.limits.auto_topics_max and not system:
            raise Refused(
                Reason.LIMIT,
                f"there are {core.limits.auto_topics_max} topics, which is the limit: delete some",
            )
        numbers = [core.take_number() for _ in range(queue_count)]
        # Differs from that of any topic of this name, also in a data directory made anew: readers
        # that keep offsets elsewhere (the Parquet sink) would mix the messages of the two.
        incarnation = core.clock_ms() << 16 | numbers[0] & 0xFFFF
        own = {key: value for key, value in chosen.items() if value is not None}
        op = {"op": "topic+", "name": name, "stored": stored, "q": numbers, "inc": incarnation}
        return core.journal.write({**op, "set": own} if own else op)

    def set(self, name: str, settings: Mapping[str, str]) -> Position:
        """Change settings of a topic. Raises Refused: NOT_FOUND, BAD_ARGUMENT."""
        if self.find(name) is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(name)!r}")
        return self.core.journal.write(
            {"op": "topic=", "name": name, "set": parse_settings(settings)}
        )

    def delete(self, name: str) -> Position:
        """Delete a topic with its own queues. Raises Refused: NOT_FOUND."""
        if self.find(name) is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(name)!r}")
        return self.core.journal.write({"op": "topic-", "name": name})

    def _apply_created(self, op: Op) -> Touched:
        self.load(op["name"], op)
        self.on_change()
        return [("topic", op["name"])]

    def _apply_set(self, op: Op) -> Touched:
        topic = self.topics.get(op["name"])
        if topic is None:
            return []
        changed = {**topic.own_values, **op["set"]}
        topic.own_values = {key: value for key, value in changed.items() if value is not None}
        before, topic.settings = topic.settings, self.defaults.with_values(topic.own_values)
        if before.commit_point is not topic.settings.commit_point:
            self.router.forget_topics((topic.name,))  # its templates say what acks wait for
        topic.settings_changed()
        return [("topic", topic.name)]

    def change_defaults(self, defaults: TopicSettings) -> None:
        """Other settings for all topics without own ones: for new topics at once, for those that
        there are in the next iterations."""
        if defaults != self.defaults:
            self.defaults = defaults
            self.core.sweeper.add(self._settle_all(defaults))

    def _settle_all(self, defaults: TopicSettings) -> Iterator[None]:
        for name in list(self.topics):
            topic = self.topics.get(name)
            if self.defaults is not defaults:
                return  # they were changed again
            if topic is not None:
                topic.settings = defaults.with_values(topic.own_values)
                topic.settings_changed()
            yield
        self.router.forget_all()  # templates say what acks wait for

    def trim(self, moved: Sequence[Sequence[Any]]) -> Position:
        """Let own queues begin later: [topic, queue id, first offset] of each. Raises Refused."""
        return self.core.journal.write({"op": "trim", "q": [list(item) for item in moved]})

    def _apply_trim(self, op: Op) -> Touched:
        touched = []
        for name, queue_id, first in op["q"]:
            topic = self.topics.get(name)
            if topic is not None and queue_id < len(topic.queues):
                offsets = list(topic.first_offsets) or [0] * len(topic.queues)
                offsets[queue_id] = first
                topic.first_offsets = offsets
                topic.queues[queue_id].index.trim_before(first)
                touched.append(("topic", name))
        return touched

    def reopen(self) -> None:
        """After a restart: own queues begin where retention left them, and offsets go on behind
        all that were ever given, also where the log and the index have nothing of them left."""
        for topic in self.topics.values():
            if topic.first_offsets:
                for queue, first in zip(topic.queues, topic.first_offsets, strict=True):
                    queue.index.begin_at(first)
            for queue in topic.queues:
                queue.flushed = queue.visible = queue.index.end_offset

    def _apply_deleted(self, op: Op) -> Touched:
        topic = self.topics.pop(op["name"], None)
        if topic is not None:
            for queue in topic.queues:
                self.core.store.drop_index(queue.number)
            self.router.forget_topics((topic.name,))
            self.on_change()
        return [("topic", op["name"])]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("topic", self.row, each(self.load)),)

    def load(self, name: str, value: Mapping[str, Any]) -> None:
        """Take a topic from its op or its snapshot."""
        core, stored = self.core, value["stored"]
        queues = [self._queue_store.durable_queue(number, own=True) for number in value["q"]]
        if is_hashed(stored):
            core.topic_names[stored] = name
        own_values = value.get("set", NO_VALUES)
        settings = self.defaults.with_values(own_values) if own_values else self.defaults
        topic = self.topics[name] = Topic(
            name, stored, queues, value["inc"], value.get("first", ()), own_values, settings
        )
        topic.exchange_deleted = value.get("noex", False)
        topic.exchange_ended_at = value.get("exend", 0)
        topic.settings_changed()

    def row(self, name: str) -> Mapping[str, Any] | None:
        """The topic as a JSON value for the snapshot."""
        topic = self.topics.get(name)
        if topic is None:
            return None
        numbers = [queue.number for queue in topic.queues]
        row: dict[str, Any] = {"stored": topic.stored, "q": numbers, "inc": topic.incarnation}
        if topic.exchange_deleted:
            row["noex"] = True
        if topic.exchange_ended_at:
            row["exend"] = topic.exchange_ended_at
        if any(topic.first_offsets):
            row["first"] = list(topic.first_offsets)
        return {**row, "set": dict(topic.own_values)} if topic.own_values else row

    # --- routes and templates -------------------------------------------------------------

    def route(self, topic: str, tag: str | None) -> TopicRoute:
        """See `TopicPort.route`."""
        route = self.router.route(self.address(topic, tag))
        self.topic(topic)
        return route

    def makes_no_topic(self, queue: str) -> bool:
        """Whether messages to the default exchange for this queue are stored in the system topic:
        the queue goes by itself, and there is no topic of its name."""
        return queue not in self.topics and self.is_passing(queue)

    def address(self, topic: str, tag: str | None) -> Address:
        """The levels of a message. Raises Refused: BAD_NAME."""
        address = address_of(topic, tag)
        if len(address) > self.core.limits.levels_max:
            raise Refused(
                Reason.BAD_NAME,
                f"a topic has at most {self.core.limits.levels_max} levels, and this one has "
                f"{len(address)}",
            )
        if tag is not None and ("\x01" in tag or "\x02" in tag):
            raise Refused(
                Reason.BAD_NAME, "a topic or routing key may not contain U+0001 or U+0002"
            )
        return address

    def detour(self, route: TopicRoute, skipped: frozenset[Queue]) -> Detour:
        """The route without some queues."""
        if isinstance(route, Detour):
            return Detour(route.base, self.router, route.skipped | skipped)
        return Detour(route, self.router, skipped)

    def own_route(self, topic: str, tag: str | None) -> OwnRoute:
        """The route of a message that nothing but the topic's own queue takes. Raises Refused."""
        return OwnRoute(self.route(topic, tag).address, self.router)

    def branch(self, route: TopicRoute, headers: Mapping[str, Tagged]) -> TopicRoute:
        """The part of a route that messages with these headers take."""
        assert self.graph is not None
        if isinstance(route, Detour):
            return self.detour(self.branch(route.base, headers), route.skipped)
        if isinstance(route, Copying):
            return Copying(self.branch(route.base, headers), self.router, route.copies)
        return self.graph.branch(route, headers)

    def template(
        self,
        route: Route,
        *,
        properties: Mapping[str, str],
        extra_kind: int = EXTRA_NONE,
        extra_name: str = "",
        extra_keyed: bool = True,
        durability: Durability = FLUSHED,
        retain: bool = False,
        sharding: str = "",
        queue_id: int | None = None,
    ) -> TopicTemplate:
        """See `TopicPort.template`."""
        assert isinstance(route, TopicRoute)
        tag = route.tag
        if properties.get(EXCHANGE_PROPERTY) == "" and self.makes_no_topic(route.topic):
            topic, tag = self._queues_topic(), route.topic
            sharding = route.topic
        else:
            topic = self.topic(route.topic)
        if retain:
            properties = {**properties, RETAIN_PROPERTY: "1"}
        try:
            prefix = constant_properties(tag, properties)
        except ValueError as error:
            raise Refused(Reason.BAD_ARGUMENT, str(error)) from error
        if len(prefix) > PROPERTIES_SIZE_MAX:
            raise Refused(Reason.TOO_LARGE, "the properties are larger than 32,767 bytes")
        if queue_id is None:
            queue_id = zlib.crc32(sharding.encode("utf-8", "surrogateescape")) % len(topic.queues)
        elif not 0 <= queue_id < len(topic.queues):
            count = len(topic.queues)
            raise Refused(
                Reason.BAD_ARGUMENT,
                f"topic {topic.name!r} has {count} queues, and no queue {queue_id}",
            )
        flag, system_flag, reconsume = header_of(properties)
        if retain:
            system_flag |= SYSTEM_FLAG_STATE
        if properties.get(QOS_PROPERTY) == "0":
            system_flag |= SYSTEM_FLAG_AT_MOST_ONCE
        record = RecordTemplate(
            topic=topic.stored.encode(),
            queue_id=queue_id,
            properties=prefix,
            tag_hash=0 if tag is None else java_hash(tag),
            flag=flag,
            system_flag=system_flag,
            extra_kind=extra_kind,
            extra_name=extra_name.encode(),
            extra_keyed=extra_keyed,
            reconsume=reconsume,
        )
        return TopicTemplate(
            route=route,
            topic=topic,
            queue=topic.queues[queue_id],
            record=record,
            meta=self.core.metas.meta(record.topic, prefix),
            durability=APPENDED if durability is APPENDED else topic.settings.commit_point,
            retain=retain,
        )

    def without(self, template: TopicTemplate, skipped: frozenset[Queue]) -> TopicTemplate:
        """The template for messages that do not go to some of its queues. For one use."""
        return self.rerouted(template, self.detour(template.route, skipped))

    def rerouted(self, template: TopicTemplate, route: TopicRoute) -> TopicTemplate:
        """The template for messages that take another way, in the same topic."""
        assert template.topic is not None
        made = TopicTemplate(
            route=route,
            topic=template.topic,
            queue=template.queue,
            record=template.record,
            meta=template.meta,
            durability=template.durability,
            retain=template.retain,
        )
        made.refresh(self.router)
        return made

    # --- the publish path -----------------------------------------------------------------

    def publish(
        self,
        template: TopicTemplate,
        batch: Batch,
        first: int,
        last: int,
        *,
        record: RecordTemplate | None = None,
        born_ms: int | None = None,
    ) -> Position:
        """See `port.Publish`.

        Args:
            record: replaces the template's for this call.
            born_ms: when the messages were made; now, unless they were moved here.
        """
        core = self.core
        if core.failure is not None or core.full:
            core.check_writable()
        if template.durability > FLUSHED:
            core.check_held()
        if template.retain and born_ms is None:  # what was accepted before is not refused later
            self.check_retained(template, batch, last)
        template.refresh(self.router)
        if template.special is not None:
            return template.special(self, template, batch, first, last, record, born_ms)
        return self.append(template, batch, first, last, record, born_ms)

    def check_retained(self, template: TopicTemplate, batch: Batch, last: int) -> None:
        """Whether the messages up to row `last` may be published, of which the last one is
        retained if they have RETAIN. Raises Refused: LIMIT."""
        if template.retain:
            body_bytes = batch.rows[(last - 1) * COLUMNS + BODY_SIZE]
            self.retained.check(template.route.address, body_bytes)

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """See `TopicPort.publish_placed`."""
        assert isinstance(template, TopicTemplate)
        index = template.queue.index
        offset = index.end_offset
        position = self.publish(template, batch, first, last, born_ms=born_ms)
        return Placed(position, offset, positions_of(index, offset, last - first))

    def append(
        self,
        template: TopicTemplate,
        batch: Batch,
        first: int,
        last: int,
        record: RecordTemplate | None,
        born_ms: int | None,
    ) -> Position:
        """`publish` with a template that is up to date, to all of its queues."""
        core = self.core
        now = core.clock_ms()
        try:
            spans = core.log.append_run(
                record or template.record,
                batch,
                first,
                last,
                targets=targets_of(template.targets),
                born_ms=now if born_ms is None else born_ms,
                store_ms=now,
            )
        except StoreError as error:
            raise core.refused(error) from error
        position = self.stored(template, spans, batch, last, now)
        core.appended()
        return position

    def queues_of(self, template: TopicTemplate) -> Sequence[Queue]:
        """The queues that a record of this template names, the topic's own first."""
        template.refresh(self.router)
        return template.named

    def stored(
        self, template: TopicTemplate, spans: list[Span], batch: Batch, last: int, now: int
    ) -> Position:
        """A run was appended with this template at the time `now`, and row `last - 1` of the batch
        stands at its end: its queues take it, and it becomes visible with its commit point."""
        template.queue.append(spans)
        if template.private:
            meta = template.meta
            stored_ms = now
            if template.record.system_flag & SYSTEM_FLAG_AT_MOST_ONCE:
                stored_ms |= ENTRY_AT_MOST_ONCE
            for span in spans:
                entries = widen(span.entries, stored_ms, meta.priority, meta.ttl_code)
                append_to_all(template.private, entries)
        position = Position(self.core.log.appended)
        self._wait(template, spans, position)
        if template.retain:
            self._retain(template, spans[-1], batch, last)
        return position

    def _wait(self, template: TopicTemplate, spans: list[Span], position: Position) -> None:
        """Make the run visible when its commit point passes it."""
        if self.commits.holding or template.durability > FLUSHED:
            self._wait_in_sync(template, spans, position)
            self._last = None  # a replica may have its first half: nothing joins it
        else:
            self.wait(template, spans, position)

    def _wait_in_sync(self, template: TopicTemplate, spans: list[Span], position: Position) -> None:
        """`_wait` where something waits for replicas: each queue's messages become visible in
        order, so a queue that holds a message of a stronger class holds this one, too, and no
        other queue does."""
        core = self.core
        points = core.commits.points
        parts: dict[Durability, list[Queue]] = {}
        for queue in template.queues:
            durability = template.durability
            if queue.held(points) and queue.held_by > durability:
                durability = queue.held_by
            elif durability is APPENDED and queue.blocked_until > points[FLUSHED]:
                durability = FLUSHED
            if durability is not APPENDED:
                queue.blocked_until = position
            parts.setdefault(durability, []).append(queue)
        for durability, queues in parts.items():
            run = Waiting(template, spans, durability, position)
            run.own = queues[0] is template.queue
            if len(parts) > 1:  # who is live comes with the topic's own queue
                run.queues = tuple(queues)
                run.live = run.live if run.own else ()
            if durability > FLUSHED:
                for queue in queues:
                    queue.held_until = position
                    queue.held_by = durability
                core.held_published = True
                core.held_bytes += size_of(spans)
                run.on_shown = self._held_is_shown
            core.commits.show_when_committed(run)

    def _held_is_shown(self, run: Waiting) -> None:
        self.core.held_bytes -= size_of(run.spans)

    def _retain(self, template: TopicTemplate, span: Span, batch: Batch, last: int) -> None:
        address = template.route.address
        if batch.rows[(last - 1) * COLUMNS + BODY_SIZE] == 0:
            self.retained.clear(address)
        else:
            position = int.from_bytes(span.entries[-20:-12], "big")
            size = int.from_bytes(span.entries[-12:-8], "big")
            self.retained.set(address, position, size)
        self.core.journal.dirty.add(("retained", "\x00".join(address)))

    # --- system topic -----------------------------------------------------------------------


def positions_of(index: Index, first: int, count: int) -> tuple[int, ...]:
    """The byte positions of records of a topic's own queue that were appended just now."""
    entries = index.read_hot(first, count)
    assert entries is not None
    return tuple(position for (position,) in _POSITION.iter_unpack(entries))


def size_of(spans: Sequence[Span]) -> int:
    """The bytes of these records."""
    return sum(span.end - span.start for span in spans)
