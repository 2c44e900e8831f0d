"""Sending dead letters on: what is in a place, and moving it.

Two kinds of places:

* A queue. Its messages are taken from its cursor, as a consumer takes them, and each is stored anew
  by a move (`broker/moves/moves.py`): the new record settles the old entry. What does not pass the
  filter goes back to its place.
* A topic. Messages do not leave topics: the new record says which message it was
  (`broker/moves/redrives.py`), and that one is passed over from then on.

In both cases the new record is in the log whole or not at all, so a crash at any moment loses no
message and sends none on twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from polymq.admin.awaiting import answer_of
from polymq.admin.dead_letter_values import Cause, Target, cause_of
from polymq.broker.engine import Engine
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.messages.records import parse_properties, properties_span
from polymq.broker.messages.runs import RunMeta
from polymq.broker.messages.time_to_live import TTL_PROPERTY, ttl_property
from polymq.broker.moves.moves import Row, rows_of_run, settling_batch
from polymq.broker.moves.set_aside import REAL_TOPIC, REFUSED
from polymq.broker.names import EXCHANGE_PROPERTY
from polymq.broker.port import BrokerPort, Position
from polymq.broker.queues.inspection import ready_stretches
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.topics.retained import RETAIN_PROPERTY
from polymq.broker.topics.routes import TopicRoute
from polymq.broker.topics.topic import Topic, TopicTemplate
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT
from polymq.steps import SLICE_SECONDS

READ_COUNT: Final = 256
"""Messages that are read together, and that consumers of a queue wait for meanwhile."""
READ_BYTES: Final = 4 * 1024 * 1024
SCAN_MAX: Final = 100_000
"""Messages that one request looks at."""
MARK_PROPERTY: Final = "REDRIVEN_FROM"
"""The place that a message was sent on from; RocketMQ's clients and Parquet show it."""
MOVED_PROPERTY: Final = "MOVED_FROM"
"""The queue that a message was moved from, if it was no dead letter."""
_GONE: Final = (RETAIN_PROPERTY, EXCHANGE_PROPERTY, TTL_PROPERTY, REAL_TOPIC, REFUSED)
"""Constant properties that said something of the message's former place."""

NOWHERE: Final = Position(0)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        offset: in its queue.
        cause: why it is one.
    """

    offset: int
    meta: RunMeta
    row: Row
    cause: Cause
    stored_ms: int


Wants = Callable[[Letter], bool]


@dataclass(slots=True)
class Outcome:
    """What became of the dead letters that were looked at.

    Attributes:
        moved: sent on.
        failed: by the reason for which they were not, although they pass the filter.
        looked_at: all that were looked at.
        complete: none is left that was not looked at.
        position: what the answer waits for.
    """

    moved: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    looked_at: int = 0
    complete: bool = True
    position: Position = NOWHERE

    def fail(self, reason: str) -> None:
        """One was not sent on."""
        self.failed[reason] = self.failed.get(reason, 0) + 1


def letters_of(engine: Engine, records: bytes, first: int, location: str) -> Iterator[Letter]:
    """The messages of records that follow each other, which is some 10 us each.

    Args:
        first: offset of the first.
        location: the topic that they are in; empty for a queue of AMQP.
    """
    offset = first
    for run in engine.core.metas.runs(records, 0, len(records)):
        at, memory = run.start, run.memory
        for row in rows_of_run(run):
            _, _, start, end = properties_span(memory, at)
            properties = parse_properties(bytes(memory[start:end]))
            stored = int.from_bytes(memory[at + RECORD_STORE_MS_AT : at + RECORD_STORE_MS_AT + 8])
            cause = cause_of(location, properties.get("TAGS"), properties)
            yield Letter(offset, run.meta, row, cause, stored)
            at += int.from_bytes(memory[at : at + 4])
            offset += 1


async def _slowly(letters: Iterable[Letter]) -> AsyncIterator[Letter]:
    """The letters, with the loop's other work in between: storing one takes some 100 us."""
    begin = perf_counter()
    for letter in letters:
        yield letter
        if perf_counter() - begin > SLICE_SECONDS:
            await asyncio.sleep(0)
            begin = perf_counter()


class Location:
    """Where dead letters are. Implemented by `QueueLocation` and `TopicLocation`.

    Attributes:
        id: `queue:` or `topic:` and a name.
    """

    id: str

    def count(self) -> int:
        """How many there are."""
        raise NotImplementedError

    def scan(self) -> AsyncIterator[list[Letter]]:
        """All of them, in parts; nothing changes."""
        raise NotImplementedError

    async def move(
        self, wants: Wants, send: Callable[[Letter], TopicTemplate], limit: int
    ) -> Outcome:
        """Send on those that pass, at most so many.

        Args:
            send: how a letter is stored anew. Raises Refused.
        """
        raise NotImplementedError


async def _read(engine: Engine, queue: Queue, first: int, count: int) -> tuple[bytes, int]:
    """Records and how many. Raises Refused: READ_ONLY."""

    def read(called: Callable[[tuple[bytes | None, int]], None]) -> None:
        engine.core.reading.read(
            queue.index, first, count, READ_BYTES, lambda records, many: called((records, many))
        )

    records, many = await answer_of(read)
    if records is None:
        raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
    return bytes(records), many


class QueueLocation(Location):
    """A queue with dead letters."""

    def __init__(self, engine: Engine, name: str) -> None:
        found = engine.named_queues.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        self.id = f"queue:{name}"
        self.name = name
        self._engine = engine
        self._found = found

    def count(self) -> int:
        """See `Location`."""
        return self._found.group.ready_count

    async def scan(self) -> AsyncIterator[list[Letter]]:
        """See `Location`."""
        for group in self._found.group.all_groups():
            for first, count in ready_stretches(group):
                at, end = first, first + count
                while at < end:
                    records, many = await _read(
                        self._engine, group.queue, at, min(READ_COUNT, end - at)
                    )
                    if not many:
                        break
                    yield list(letters_of(self._engine, records, at, ""))
                    at += many

    async def move(
        self, wants: Wants, send: Callable[[Letter], TopicTemplate], limit: int
    ) -> Outcome:
        """See `Location`. Consumers of the queue get what does not pass when this is over."""
        outcome = Outcome()
        for group in self._found.group.all_groups():
            held: list[tuple[int, int]] = []
            try:
                await self._move(group, wants, send, limit, outcome, held)
            finally:
                for first, count in held:
                    _give_back(group, first, count)
        if self._found.queue.durable:
            self._engine.queue_store.write_acks()
        outcome.complete = outcome.complete and outcome.looked_at < SCAN_MAX
        return outcome

    async def _move(
        self,
        group: Group,
        wants: Wants,
        send: Callable[[Letter], TopicTemplate],
        limit: int,
        outcome: Outcome,
        held: list[tuple[int, int]],
    ) -> None:
        cursor, queue = group.cursor, group.queue
        while outcome.moved < limit and outcome.looked_at < SCAN_MAX:
            if cursor.floor < queue.index.first_offset:
                cursor.skip_to(queue.index.first_offset)
            taken = cursor.take(min(READ_COUNT, SCAN_MAX - outcome.looked_at), queue.visible)
            if taken is None:
                return
            first, count, _ = taken
            held.append((first, count))
            records, many = await _read(self._engine, queue, first, count)
            if not many:
                outcome.complete = False
                return
            if many < count:
                held[-1] = (first, many)
                cursor.untake(first + many, count - many, taken[2])
            async for letter in _slowly(letters_of(self._engine, records, first, "")):
                if group.has_left:
                    raise Refused(Reason.NOT_FOUND, f"queue {self.name!r} was deleted meanwhile")
                if outcome.moved == limit:
                    outcome.complete = False
                    return
                outcome.looked_at += 1
                if wants(letter):
                    self._send(group, letter, send, outcome)
        if group.ready_count:
            outcome.complete = False

    def _send(
        self,
        group: Group,
        letter: Letter,
        send: Callable[[Letter], TopicTemplate],
        outcome: Outcome,
    ) -> None:
        try:
            template = send(letter)
            _check_room(self._engine, template, letter.row)
            outcome.position = self._engine.moves.append_rows(
                template, (letter.row,), group, (letter.offset,)
            )
        except Refused as refused:
            if refused.reason in PASSING:
                raise
            outcome.fail(refused.text)
            return
        outcome.moved += 1


def _check_room(engine: Engine, template: TopicTemplate, row: Row) -> None:
    """Raises Refused: IN_USE: a queue that it would go to refuses messages, because it is full. To
    store it anew would take it from its place and put it into no other."""
    template.refresh(engine.topics.router)
    for queue, gate in template.gates:
        if not gate.admit(settling_batch((row,), 0, (0,)), 0, 1):
            raise Refused(Reason.IN_USE, f"queue {queue.name!r} is full")


def _give_back(group: Group, first: int, count: int) -> None:
    """What was taken and not sent on, back to its place. It does not count as a delivery."""
    if group.has_left:
        return
    if group.rules is None or group.rules.delivery_counts is not None:
        group.cursor.requeue(first, count)
        group.pump_later()
    else:
        group.requeue(first, count)


class TopicLocation(Location):
    """A topic with dead letters."""

    def __init__(self, engine: Engine, name: str) -> None:
        found = engine.topics.find(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {name!r}")
        self.id = f"topic:{name}"
        self.name = name
        self._engine = engine
        self._topic: Topic = found

    def count(self) -> int:
        """See `Location`."""
        return sum(self._engine.redrives.left_count(queue) for queue in self._topic.queues)

    async def scan(self) -> AsyncIterator[list[Letter]]:
        """See `Location`."""
        for queue in self._topic.queues:
            async for letters in self._left(queue):
                yield letters

    async def _left(self, queue: Queue) -> AsyncIterator[list[Letter]]:
        redrives = self._engine.redrives
        at, end = redrives.first_left(queue), queue.flushed
        while at < end:
            at = max(at, queue.index.first_offset)
            records, many = await _read(self._engine, queue, at, min(READ_COUNT, end - at))
            if not many:
                return
            letters = letters_of(self._engine, records, at, self.name)
            yield [one for one in letters if not redrives.is_done(queue, one.offset)]
            at += many

    async def move(
        self, wants: Wants, send: Callable[[Letter], TopicTemplate], limit: int
    ) -> Outcome:
        """See `Location`."""
        outcome = Outcome()
        for queue in self._topic.queues:
            async for letters in self._left(queue):
                async for letter in _slowly(letters):
                    if outcome.moved == limit or outcome.looked_at == SCAN_MAX:
                        outcome.complete = False
                        return outcome
                    outcome.looked_at += 1
                    if wants(letter):
                        self._send(queue, letter, send, outcome)
        return outcome

    def _send(
        self,
        queue: Queue,
        letter: Letter,
        send: Callable[[Letter], TopicTemplate],
        outcome: Outcome,
    ) -> None:
        redrives = self._engine.redrives
        if redrives.is_done(queue, letter.offset):
            return
        try:
            template = send(letter)
            _check_room(self._engine, template, letter.row)
            outcome.position = redrives.append(
                template, letter.row, self._topic.stored, queue, letter.offset
            )
        except Refused as refused:
            if refused.reason in PASSING:
                raise
            outcome.fail(refused.text)
            return
        outcome.moved += 1


class Sender:
    """How dead letters are stored anew.

    Args:
        port: whose rights count.
        to: where all go; None: where each was published first.
        location: the id of where they are, which marks them.
        is_dead: they are dead letters, which do not expire again at once. Other messages that move
            are marked otherwise, and keep their time to live, which begins anew.
    """

    def __init__(
        self,
        engine: Engine,
        port: BrokerPort,
        to: Target | None,
        location: str,
        *,
        is_dead: bool = True,
    ) -> None:
        self._engine = engine
        self._port = port
        self._to = to
        self._location = location
        self._is_dead = is_dead

    def __call__(self, letter: Letter) -> TopicTemplate:
        """Raises Refused: why it cannot go there."""
        return self.template(letter.meta, self._target(letter))

    def check(self, letter: Letter) -> None:
        """Whether it could go there now; nothing changes. Raises Refused: why not."""
        self.check_target(self._target(letter))

    def check_target(self, target: Target) -> None:
        """Whether messages could go there now; nothing changes. Raises Refused: why not."""
        if target.exchange is not None:
            self._exchange_route(target.exchange, target)
            return
        self._port.principal.check_publish(target.topic, target.tag)
        self._engine.topics.address(target.topic, target.tag)

    def _target(self, letter: Letter) -> Target:
        target = self._to or letter.cause.origin
        if target is None:
            raise Refused(Reason.BAD_ARGUMENT, "where it came from is not known: name a target")
        return target

    def template(self, meta: RunMeta, target: Target) -> TopicTemplate:
        """How messages of a kind are stored at a target. Raises Refused."""
        engine = self._engine
        properties: dict[str, Any] = dict(meta.properties)
        for gone in _GONE:
            properties.pop(gone, None)
        mark = MARK_PROPERTY if self._is_dead else MOVED_PROPERTY
        properties[mark] = self._location.replace("\x01", "?").replace("\x02", "?")
        if not self._is_dead and TTL_PROPERTY in meta.properties:
            properties[TTL_PROPERTY] = meta.properties[TTL_PROPERTY]
        elif meta.priority:  # it does not expire again at once
            properties[TTL_PROPERTY] = ttl_property(None, meta.priority)
        if target.exchange is None:
            self._port.principal.check_publish(target.topic, target.tag)
            route = engine.topics.route(target.topic, target.tag)
            return engine.topics.template(route, properties=properties)
        found = self._exchange_route(target.exchange, target)
        if target.exchange != found.topic:
            properties[EXCHANGE_PROPERTY] = target.exchange
        return engine.topics.template(found, properties=properties)

    def _exchange_route(self, exchange: str, target: Target) -> TopicRoute:
        if self._port is not self._engine.port:
            self._port.exchanges.route(exchange, target.routing_key)  # asks for the right
        found = self._engine.exchanges.dead_letter_route(exchange, target.routing_key, ())
        if found is None:
            what = f"exchange {exchange!r}" if exchange else "such queue"
            raise Refused(Reason.NOT_FOUND, f"there is no {what}")
        if not found.routed:  # it would be in no queue any more
            raise Refused(Reason.NOT_FOUND, f"nobody takes what is sent to {target.text}")
        return found
