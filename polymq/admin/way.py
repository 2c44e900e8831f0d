"""The way of one message: where it came from, where it is, and what happened to it.

Theory. What is now, the engine's parts say (`way_destinations.py`). What was, the log says behind
the message (`way_past.py`): it is read on from there in pieces, by reader threads, as far as the
request allows. The answer says how far that was, so that the next request goes on. Where a message
took the place of another one, its record says of which: both ways name each other by positions.

Rule: contents of messages are not shown, so the right to monitor is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter
from typing import Final

from polymq.admin.awaiting import in_reader
from polymq.admin.message_values import message_value
from polymq.admin.operations import Call, Operation
from polymq.admin.records import position_in
from polymq.admin.way_destinations import Destinations, Found, topic_of
from polymq.admin.way_past import Past, Sought, replacement
from polymq.admin.way_values import Death, Event, Origin, Way, WayQuery
from polymq.broker.core import SYSTEM_FLAG_STATE
from polymq.broker.delays.delayed import DELAY_PROPERTY
from polymq.broker.durability import Durability
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.amqp_content import AMQP_PROPERTY, read_amqp_content
from polymq.broker.messages.dead_letter_history import history_of
from polymq.broker.messages.time_to_live import ttl_of
from polymq.broker.moves.moves import (
    OWNER_PROPERTY,
    REPLACED_PROPERTY,
    SENT_ON_PROPERTY,
    settled_by,
)
from polymq.broker.names import QUEUES_TOPIC, display_name, exchange_and_key
from polymq.broker.port import Address
from polymq.broker.topics.retained import ORIGIN_PROPERTY, RETAIN_PROPERTY, origin_of, position_of
from polymq.core_log.errors import CorruptRecord
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.batch import BLANK_SIZE, DISPATCH_TARGETS_MAX
from polymq.core_log.kernels.layout import PROPERTY_OF, RECORD_SIZE_MIN
from polymq.core_log.record import SYSTEM_TOPIC, Record, decode_record
from polymq.core_log.store import Store
from polymq.remoting.records import iterate_records
from polymq.steps import in_steps

PIECE_BYTES: Final = 1024 * 1024
"""Of the log that a reader thread looks at before others have their turn."""
LOOK_SECONDS: Final = 5.0
"""How long an answer looks in the log."""

Target = tuple[int, int]


class WayHandlers:
    """Carries out the operation.

    Args:
        filter_name: the topic filter that an address stands for.
    """

    def __init__(self, engine: Engine, filter_name: Callable[[Address], str]) -> None:
        self._engine = engine
        self._store = engine.core.store
        self._filter_name = filter_name

    def operation(self) -> Operation:
        """The operation, for the group of messages."""
        return Operation(
            method="GET",
            path="/messages/{position}/way",
            name="getWay",
            summary="Show where a message came from, where it is, and what happened to it",
            about="Contents are not shown. What happened is read from the log behind the message, "
            "some of it for each request.",
            right="monitor",
            handler=self._show,
            query=WayQuery,
            answer=Way,
            path_about={"position": "a position, or RocketMQ's message id of 32 hex digits"},
        )

    async def _show(self, call: Call[WayQuery]) -> Way:
        position = position_in(call.path["position"])
        end = self._engine.core.commits.points[Durability.FLUSHED]
        record, targets = await self._find(position, end)
        found = await self._destinations(record, targets)
        sought = self._sought(record, targets, found)
        begin = record.position + record.size
        since = call.query.from_position
        if since is not None and not begin <= since <= end:
            raise Refused(
                Reason.BAD_ARGUMENT,
                f"from_position has to be from {begin}, behind the message, to {end}, the end of "
                "the log",
            )
        past = Past(sought, from_start=since is None or since == begin)
        looked_from = begin if since is None else since
        looked_until = await self._look(past, looked_from, end, call.query.log_bytes)
        _settle_doubts(found, past, complete=past.from_start and looked_until >= end)
        return self._way(
            record,
            found=found,
            origin=await self._origin(record, end),
            events=past.events,
            looked=(looked_from, looked_until, end),
        )

    # --- the message ----------------------------------------------------------------------------

    async def _find(self, position: int, end: int) -> tuple[Record, list[Target]]:
        """The record of a message, and all its queues. Raises Refused: NOT_FOUND."""
        start = self._engine.core.log.start
        if position < start:
            raise Refused(
                Reason.NOT_FOUND, f"the log begins at position {start}: {position} was deleted"
            )
        found = await self._read(position, end)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no message at position {position}")
        return found

    async def _read(self, position: int, end: int) -> tuple[Record, list[Target]] | None:
        """See `_read_message`. Raises Refused: READ_ONLY, the disk cannot read it."""
        read = partial(_read_message, self._store, position, end)
        try:
            return await in_reader(self._engine, read)
        except CorruptRecord as error:
            raise Refused(Reason.READ_ONLY, f"the log cannot be read: {error}") from error

    async def _destinations(self, record: Record, targets: list[Target]) -> Found:
        ttl_code, _ = ttl_of(record.properties)
        destinations = Destinations(
            self._engine,
            self._filter_name,
            targets=targets,
            position=record.position,
            store_ms=record.store_ms,
            expires_ms=record.store_ms + ttl_code - 1 if ttl_code else None,
        )
        name = self._engine.core.metas.user_name(record.topic)
        topic = topic_of(self._engine, [number for number, _ in targets[:1]], name)
        await in_steps(destinations.look(topic))
        return destinations.found

    def _sought(self, record: Record, targets: list[Target], found: Found) -> Sought:
        engine = self._engine
        name = engine.core.metas.user_name(record.topic)
        topic = engine.topics.topics.get(name)
        half = engine.half_messages.group
        return Sought(
            position=record.position,
            properties=record.properties,
            topic=name,
            queue_id=record.queue_id,
            offset=record.queue_offset,
            own=targets[0][0] if targets else 0,
            incarnation=None if topic is None else topic.incarnation,
            stored=record.topic,
            address=self._retained_address(record),
            groups=found.groups,
            prepared=0 if half is None else half.number,
            user_name=engine.core.metas.user_name,
        )

    def _retained_address(self, record: Record) -> Address | None:
        """The topic whose retained message it was published as."""
        if RETAIN_PROPERTY not in record.properties or not record.body:
            return None
        name, tag = self._engine.core.metas.user_name(record.topic), record.properties.get("TAGS")
        return (name,) if tag is None else (name, *tag.split("."))

    # --- the past -------------------------------------------------------------------------------

    async def _look(self, past: Past, position: int, end: int, log_bytes: int) -> int:
        """Read the log on from a position, as far as one answer may. Returns where that was."""
        begin = perf_counter()
        stop = min(end, position + log_bytes)
        while position < stop and not past.is_full:
            if perf_counter() - begin > LOOK_SECONDS:
                break
            piece_end = min(end, position + PIECE_BYTES)
            try:
                position = await in_reader(
                    self._engine, partial(_look_at_piece, self._store, past, position, piece_end)
                )
            except CorruptRecord as error:
                raise Refused(
                    Reason.READ_ONLY, f"the log cannot be read at position {position}: {error}"
                ) from error
        return min(position, end)

    async def _origin(self, record: Record, end: int) -> Origin | None:
        """The message that this one took the place of."""
        properties = record.properties
        replaced = settled_by(dict(properties))
        destination: str | None = None
        if replaced is not None:
            destination = await in_steps(
                _destination_of(self._engine, self._filter_name, replaced[0])
            )
        elif SENT_ON_PROPERTY in properties:
            stored = properties[SENT_ON_PROPERTY].split(".", 3)[3]
            destination = (
                f"topic:{display_name(self._engine.core.metas.user_name(stored.encode()))}"
            )
        elif ORIGIN_PROPERTY in properties:
            return Origin(
                what="copied",
                reason="retained",
                position=int(properties[ORIGIN_PROPERTY], 16),
                destination=None,
            )
        else:
            return None
        at = properties.get(REPLACED_PROPERTY)
        position = None if at is None else int(at, 16)
        before: Record | None = None
        if position is not None and position >= self._engine.core.log.start:
            original = await self._read(position, end)
            before = None if original is None else original[0]
        if SENT_ON_PROPERTY in properties:
            return Origin(what="redriven", reason="", position=position, destination=destination)
        what, reason = replacement(
            None if before is None else before.properties, properties, destination or ""
        )
        return Origin(what=what, reason=reason, position=position, destination=destination)

    # --- the answer -----------------------------------------------------------------------------

    def _way(
        self,
        record: Record,
        *,
        found: Found,
        origin: Origin | None,
        events: list[Event],
        looked: tuple[int, int, int],
    ) -> Way:
        properties, metas = record.properties, self._engine.core.metas
        (stored,) = iterate_records(record.raw, verify=False)
        message = message_value(stored, metas.user_name, 0)
        topic, tag = metas.user_name(record.topic), properties.get("TAGS")
        due_ms: int | None = None
        if DELAY_PROPERTY in properties:
            due, where = properties[DELAY_PROPERTY].split(".", 1)
            due_ms = int(due, 16)
            topic = metas.user_name(where.split(".", 2)[2].encode())
        if topic == QUEUES_TOPIC:
            topic, tag = tag or "", None
        exchange, routing_key = exchange_and_key(topic, tag, properties)
        return Way(
            position=record.position,
            size=record.size,
            topic=display_name(topic),
            tag=tag,
            exchange=exchange,
            routing_key=routing_key,
            key=message.key,
            protocol=message.protocol,
            sender=message.sender,
            user=_user_of(record),
            born_ms=record.born_ms,
            store_ms=record.store_ms,
            body_bytes=message.body_bytes,
            due_ms=due_ms,
            retained=self._is_retained(record),
            origin=origin,
            deaths=_deaths_of(record),
            destinations=found.destinations,
            destinations_total=found.total,
            events=events,
            looked_from=looked[0],
            looked_until=looked[1],
            complete=looked[1] >= looked[2],
        )

    def _is_retained(self, record: Record) -> bool | None:
        address = self._retained_address(record)
        if address is None:
            return None
        entry = self._engine.retained.get(address)
        return entry is not None and record.position in (position_of(entry), origin_of(entry))


def _read_message(store: Store, position: int, end: int) -> tuple[Record, list[Target]] | None:
    """The message at a position before the end of the log, and all its queues: many of them go on
    in records behind it. For a reader thread."""
    if position > end - RECORD_SIZE_MIN:
        return None
    record = store.find_record(position)
    if record is None or record.topic == SYSTEM_TOPIC:
        return None
    targets = list(record.targets)
    if len(targets) == DISPATCH_TARGETS_MAX and record.atomic is not None:
        mark, at = f"{position:016x}", position + record.size
        while at < end and (other := store.find_record(at)) is not None:
            if not other.properties.get(PROPERTY_OF.decode(), "").startswith(mark):
                break
            targets += other.targets
            at += other.size
    return record, targets


def _look_at_piece(store: Store, past: Past, position: int, stop: int) -> int:
    """Let the log be looked at up to a position; where it goes on. For a reader thread."""
    while position < stop:
        start, memory = store.range_of_history(position, stop - position)
        following: int = store.position_behind(start, memory)
        end = len(memory) - (BLANK_SIZE if following != start + len(memory) else 0)
        for at in walking.find_marked(memory, 0, end, SYSTEM_TOPIC, SYSTEM_FLAG_STATE):
            record = decode_record(memory, at, verify=False)
            past.take(record)
            if past.is_full:
                return int(record.position + record.size)
        position = following
    return position


def _destination_of(
    engine: Engine, filter_name: Callable[[Address], str], number: int
) -> Generator[None, None, str | None]:
    """The id of the destination that a group is, in steps; None: it is gone."""
    group = engine.queue_store.groups.get(number)
    if group is None:
        return None
    destinations = Destinations(
        engine,
        filter_name,
        targets=[(group.queue.number, 0)],
        position=0,
        store_ms=0,
        expires_ms=None,
    )
    yield from destinations.look(None)
    found = destinations.found.groups.get(number)
    return None if found is None else found[0]


def _settle_doubts(found: Found, past: Past, *, complete: bool) -> None:
    """What a cursor is past may have been before its reader began: only the log tells."""
    said = {event.destination for event in past.events}
    for destination in found.destinations:
        if destination.kind in ("session", "share") and destination.state == "settled":
            if destination.id in past.later:
                destination.state = "not routed"
            elif destination.id not in said and not complete:
                destination.state = "unknown"


def _user_of(record: Record) -> str | None:
    """Who published it: who prepared a half message, or the user whom AMQP's `user_id` names, which
    the broker compares with the login."""
    owner = record.properties.get(OWNER_PROPERTY)
    packed = record.properties.get(AMQP_PROPERTY)
    if owner is None and packed is not None:
        return read_amqp_content(packed).others.get("user_id")
    return owner


def _deaths_of(record: Record) -> list[Death]:
    return [
        Death(
            queue=death.queue,
            reason=death.cause,
            count=death.count,
            time_ms=death.time_s * 1000,
            exchange=death.exchange,
            routing_key=death.routing_key,
        )
        for death in history_of(record.properties).deaths
    ]
