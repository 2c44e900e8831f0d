"""Moving a reader to another place: a consumer group of RocketMQ to any offset or time, a queue
with its own cursor only forward, because what was acknowledged is gone."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Annotated, Any, Literal

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.gateways import Gateways
from polymq.admin.operations import Call, Given, Operation, Value
from polymq.admin.operations import Group as OperationGroup
from polymq.admin.reader_pauses import ReaderPauseHandlers
from polymq.admin.reader_survey import Survey
from polymq.admin.readers import ReaderHandlers, find_reader
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue, position_of
from polymq.broker.port import Address, Position, display_name
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.queues.skipping import count_below, offset_at, skip_below
from polymq.readers import groups_of
from polymq.steps import in_steps


class ResetBody(Given):
    """Where a reader goes on.

    Attributes:
        to: `offset` and `time` need the field of that name; `oldest` is the first message that is
            there, `newest` the end: all that waits is skipped.
        offset: of one queue.
        time_ms: the first message that was stored at or after this time, in milliseconds since the
            epoch.
        topic: of a consumer group; needed if it reads several.
        queue: number of a queue of the topic; null: all.
        dry_run: only say what would happen.
    """

    to: Literal["offset", "time", "oldest", "newest"]
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    time_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    topic: str | None = None
    queue: Annotated[int, msgspec.Meta(ge=0)] | None = None
    dry_run: bool = False


class QueueMove(Value):
    """What becomes of a reader in one queue.

    Attributes:
        topic: of a consumer group; empty for a queue.
        queue: its number in the topic.
        before: offset of the message that would have been next; null: the group has none.
        after: of the message that is next.
        skipped: messages that it does not get.
        again: messages that it gets again.
    """

    topic: str
    queue: int
    before: int | None
    after: int
    skipped: int
    again: int


class Reset(Value):
    """What becomes of a reader.

    Attributes:
        queues: each queue in which it moves.
        skipped: messages that it does not get, in all of them.
        again: messages that it gets again, in all of them.
        dry_run: nothing has happened.
    """

    queues: list[QueueMove]
    skipped: int
    again: int
    dry_run: bool


class ResetHandlers:
    """Carries out resets.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(
        self, engine: Engine, survey: Survey, committed: Committed, gateways: Gateways
    ) -> None:
        self._engine = engine
        self._survey = survey
        self._committed = committed
        self._gateways = gateways

    def operation(self) -> Operation:
        """The operation."""
        return Operation(
            method="POST",
            path="/consumers/{id}/reset",
            name="resetReader",
            summary="Let a reader go on at another place",
            about="A consumer group of RocketMQ goes back or forward; its members that run are "
            "told. An AMQP queue and a subscription only go forward, because what was acknowledged "
            "is gone: what waits before the place is removed, as by a purge, and messages that "
            "consumers have stay with them.",
            right="operate",
            handler=self._reset,
            body=ResetBody,
            answer=Reset,
            path_about={"id": "of the reader: its kind, a colon and its name"},
        )

    async def _reset(self, call: Call[Given]) -> Reset:
        wanted: ResetBody = call.body
        for name, value in (("offset", wanted.offset), ("time", wanted.time_ms)):
            if (wanted.to == name) == (value is None):
                field = "offset" if name == "offset" else "time_ms"
                raise Refused(Reason.BAD_ARGUMENT, f"{field} is for to={name}, and needed there")
        source = await find_reader(self._survey, call.path["id"])
        if isinstance(source, str):
            steps = self._move_group(source, wanted)
        elif isinstance(source, NamedQueue):
            steps = self._skip(source, wanted)
        else:
            raise Refused(
                Reason.LOCKED, "sessions and shares of MQTT cannot be moved: delete the session"
            )
        moves, position = await in_steps(steps, self._engine.core.reading)
        result = Reset(
            queues=moves,
            skipped=sum(one.skipped for one in moves),
            again=sum(one.again for one in moves),
            dry_run=wanted.dry_run,
        )
        if not wanted.dry_run:
            audit.note(
                "reader moved",
                reader=self._survey.identity(source),
                to=wanted.to,
                topic=wanted.topic,
                skipped=result.skipped,
                again=result.again,
                by=call.caller,
            )
            await self._committed(position)
        return result

    # --- consumer groups ------------------------------------------------------------------------

    def _move_group(
        self, name: str, wanted: ResetBody
    ) -> Generator[Any, Any, tuple[list[QueueMove], Position]]:
        topic = self._survey.topic_of(name, wanted.topic)
        moves = []
        for number, queue in self._queues_of(topic, wanted):
            first, end = queue.index.first_offset, queue.flushed
            after = yield from _target(queue, wanted, first, end)
            if wanted.offset is not None and not first <= wanted.offset <= end:
                raise Refused(
                    Reason.BAD_ARGUMENT, f"queue {number} has the offsets {first} to {end}"
                )
            before = self._engine.groups.offset(name, topic, number)
            at = first if before is None else min(max(before, first), end)
            moves.append(
                QueueMove(
                    topic=display_name(topic),
                    queue=number,
                    before=before,
                    after=after,
                    skipped=max(0, after - at),
                    again=max(0, at - after),
                )
            )
        groups = self._engine.groups
        if not wanted.dry_run:
            self._engine.core.check_writable()
            for move in moves:
                groups.commit(name, topic, move.queue, move.after)
                self._gateways.group_moved(name, topic, move.queue, move.after)
            groups.write()
        return moves, position_of(self._engine.core, durable=True)

    def _queues_of(self, topic: str, wanted: ResetBody) -> list[tuple[int, Queue]]:
        found = self._engine.topics.find(topic)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(topic)!r}")
        queues = list(enumerate(found.queues))
        if wanted.queue is None:
            if wanted.offset is not None and len(queues) > 1:
                raise Refused(Reason.BAD_ARGUMENT, "name the queue that the offset is of")
            return queues
        if wanted.queue >= len(queues):
            raise Refused(
                Reason.NOT_FOUND,
                f"topic {display_name(topic)!r} has {len(queues)} queues, and no queue "
                f"{wanted.queue}",
            )
        return queues[wanted.queue : wanted.queue + 1]

    # --- queues with a cursor of their own -------------------------------------------------------

    def _skip(
        self, found: NamedQueue, wanted: ResetBody
    ) -> Generator[Any, Any, tuple[list[QueueMove], Position]]:
        groups = groups_of(found)
        if wanted.offset is not None and len(groups) > 1:
            text = "a priority queue has no single order of offsets: name a time"
            raise Refused(Reason.BAD_ARGUMENT, text)
        durable = any(group.queue.durable for group in groups)
        if durable and not wanted.dry_run:
            self._engine.core.check_writable(frees=True)
        moves = []
        for number, group in enumerate(groups):
            moves.append((yield from self._skip_one(number, group, wanted)))
        if durable and not wanted.dry_run:
            self._engine.queue_store.write_acks()
        return moves, position_of(self._engine.core, durable=durable)

    def _skip_one(
        self, number: int, group: Group, wanted: ResetBody
    ) -> Generator[Any, Any, QueueMove]:
        queue, cursor = group.queue, group.cursor
        head = cursor.peek(1, queue.visible)
        before = cursor.next if head is None else max(head[0], queue.index.first_offset)
        after = yield from _target(queue, wanted, before, queue.visible)
        if after < before:
            raise Refused(
                Reason.BAD_ARGUMENT,
                f"the queue is at offset {before} already, and what was acknowledged is gone: it "
                "only goes forward",
            )
        skipped = count_below(group, after)
        if not wanted.dry_run:
            skipped = yield from skip_below(group, after)
        return QueueMove(
            topic="", queue=number, before=before, after=after, skipped=skipped, again=0
        )


def _target(queue: Queue, wanted: ResetBody, first: int, end: int) -> Generator[Any, Any, int]:
    """The offset in [first, end] that a reader goes on at. Raises Refused: READ_ONLY."""
    if wanted.to == "oldest":
        return first
    if wanted.to == "newest":
        return end
    if wanted.offset is not None:
        return min(wanted.offset, end)
    assert wanted.time_ms is not None
    found = yield from offset_at(queue.index, first, end, wanted.time_ms)
    if found is None:
        raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
    return found


def reader_group(
    engine: Engine,
    committed: Committed,
    gateways: Gateways,
    filter_name: Callable[[Address], str],
) -> OperationGroup:
    """All operations on readers.

    Args:
        filter_name: the topic filter that an address stands for.
    """
    survey = Survey(engine, filter_name=filter_name, members=gateways.group_members)
    more = [
        ResetHandlers(engine, survey, committed, gateways).operation(),
        *ReaderPauseHandlers(engine, survey, committed).operations(),
    ]
    return ReaderHandlers(engine, survey, clock_ms=engine.core.clock_ms).group(more)
