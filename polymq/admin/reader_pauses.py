"""Pausing what a reader gets: a queue or a subscription, or a consumer group in one topic."""

from __future__ import annotations

from polymq.admin.commits import Committed
from polymq.admin.operations import Call, Given, Operation, Value
from polymq.admin.reader_survey import Survey
from polymq.admin.readers import ReaderPause, find_reader, pauses_of
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import Position, display_name
from polymq.readers import Source


class PauseBody(Given):
    """What of a reader is meant.

    Attributes:
        topic: of a consumer group; needed if it reads several.
    """

    topic: str | None = None


class Pauses(Value):
    """The pauses of a reader.

    Attributes:
        id: of the reader.
        pauses: what is paused of it; empty: nothing.
    """

    id: str
    pauses: list[ReaderPause]


class ReaderPauseHandlers:
    """Carries out pauses.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, survey: Survey, committed: Committed) -> None:
        self._engine = engine
        self._survey = survey
        self._committed = committed

    def operations(self) -> list[Operation]:
        """The operations."""
        named = {"id": "of the reader: its kind, a colon and its name"}
        return [
            Operation(
                method="POST",
                path="/consumers/{id}/pause",
                name="pauseReader",
                summary="Let a reader have nothing more until it is resumed",
                about="Also after a restart. A consumer group of RocketMQ is paused in one topic; "
                "its retry topic is another one. Consumers keep what they have.",
                right="operate",
                handler=self._pause,
                body=PauseBody,
                answer=Pauses,
                path_about=named,
            ),
            Operation(
                method="POST",
                path="/consumers/{id}/resume",
                name="resumeReader",
                summary="Let a reader have its messages again",
                right="operate",
                handler=self._resume,
                body=PauseBody,
                answer=Pauses,
                path_about=named,
            ),
        ]

    async def _pause(self, call: Call[Given]) -> Pauses:
        source = await find_reader(self._survey, call.path["id"])
        if isinstance(source, str):
            topic = self._survey.topic_of(source, call.body.topic)
            position = self._engine.groups.pause(source, topic, by=call.caller)
        else:
            topic = ""
            pausing, name = self._engine.named_queues.pausing, _queue_of(source, call.body)
            position = pausing.pause(name, by=call.caller)
        return await self._done("reader paused", call, source, topic, position)

    async def _resume(self, call: Call[Given]) -> Pauses:
        source = await find_reader(self._survey, call.path["id"])
        if isinstance(source, str):
            topic = self._survey.topic_of(source, call.body.topic)
            position = self._engine.groups.resume(source, topic)
        else:
            topic = ""
            position = self._engine.named_queues.pausing.resume(_queue_of(source, call.body))
        return await self._done("reader resumed", call, source, topic, position)

    async def _done(
        self, what: str, call: Call[Given], source: Source, topic: str, position: Position
    ) -> Pauses:
        shown, identity = display_name(topic) if topic else None, self._survey.identity(source)
        audit.note(what, reader=identity, topic=shown, by=call.caller)
        await self._committed(position)
        return Pauses(id=identity, pauses=pauses_of(self._engine, source))


def _queue_of(source: Source, body: PauseBody) -> str:
    """The name of its queue. Raises Refused."""
    if not isinstance(source, NamedQueue):
        raise Refused(Reason.LOCKED, "sessions and shares of MQTT cannot be paused")
    if body.topic is not None:
        raise Refused(Reason.BAD_ARGUMENT, "topic is for consumer groups: leave it out")
    return source.name
