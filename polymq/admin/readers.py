"""Readers of all protocols in one list: how far each is, and who takes its messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, Final, Literal

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import STEP_ENTRIES, Listing, Page, PageQuery, page_of
from polymq.admin.reader_survey import State, Survey
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import display_name
from polymq.broker.port.infos import Pause
from polymq.readers import Kind, Source, kind_of
from polymq.steps import in_steps

QUEUES_MAX: Final = 1_000
"""Queues of one reader that are shown."""
CONSUMERS_MAX: Final = 1_000
"""Consumers of one reader that are shown."""
DATED_MAX: Final = 16
"""Queues of each reader of a list whose oldest message is dated."""


class ReaderPause(Value):
    """A reader gets nothing, because an operator has paused it.

    Attributes:
        topic: of a consumer group, which is paused in this topic; empty for the others.
        since_ms: since when, in milliseconds since the epoch.
        by: who has paused it.
    """

    topic: str
    since_ms: int
    by: str


class Reader(Value):
    """A reader of messages, and how far it is.

    Attributes:
        id: its kind, a colon and its name.
        kind: `queue` (AMQP), `subscription` (HTTP, pulled or delivered to a webhook), `session`
            (persistent session of MQTT), `share` (shared subscription of MQTT) or `group`
            (consumer group of RocketMQ).
        name: of the queue, subscription, client, filter or group.
        user: whose it is; empty for nobody's, and for shares and groups, which many may use.
        consumers: clients that take its messages now.
        waiting: messages that it has not got.
        unacknowledged: messages that it has got and not acknowledged. Groups of RocketMQ have none:
            what they have not committed waits.
        oldest_ms: when the oldest of those that wait was stored, in milliseconds since the epoch;
            null: none waits, or that is not known.
        lag_seconds: how long ago that was.
        pauses: what an operator has paused of it; empty: nothing.
    """

    id: str
    kind: Kind
    name: str
    user: str
    consumers: int
    waiting: int
    unacknowledged: int
    oldest_ms: int | None
    lag_seconds: float | None
    pauses: list[ReaderPause]


class ReaderQueue(Value):
    """How far a reader is in one queue.

    Attributes:
        topic: of a consumer group; empty for the others.
        queue: its number in the topic; in a priority queue, 0 is the most important priority that
            is in use.
        position: offset of the next message that the reader gets.
        end: one past the newest message.
        waiting: messages that the reader has not got.
        unacknowledged: messages that it has got and not acknowledged.
        oldest_ms: when the oldest of those that wait was stored; null: none waits, or that is not
            known.
    """

    topic: str
    queue: int
    position: int
    end: int
    waiting: int
    unacknowledged: int
    oldest_ms: int | None


class Consumer(Value):
    """Who takes messages of a reader.

    Attributes:
        name: consumer tag of AMQP, client identifier of MQTT and RocketMQ.
        connection: the id of its connection; empty if it is not known.
        user: who it is; empty for nobody.
        prefetch: messages that it may have without acknowledging them; 0: any number; null: its
            protocol has no such bound.
        unacknowledged: messages that it has; null: that is not known.
        reads: topics and the tags that it takes, of a member of a group.
    """

    name: str
    connection: str
    user: str
    prefetch: int | None
    unacknowledged: int | None
    reads: list[str]


class ReaderDetails(Reader):
    """A reader with its queues and consumers.

    Attributes:
        queues: at most 1,000. Topics that a group has never committed an offset in are missing.
        consumer_list: at most 1,000. The consumers of HTTP have no names, and are missing.
    """

    queues: list[ReaderQueue]
    consumer_list: list[Consumer]


class ReadersQuery(PageQuery):
    """Which readers.

    Attributes:
        prefix: only readers whose names begin with this text.
        sort: by id, or by the messages that wait, the most first.
        kind: only readers of this kind.
        user: only those of this user.
    """

    sort: Literal["id", "waiting"] = "id"
    kind: Kind | Literal["all"] = "all"
    user: str | None = None


class ReaderHandlers:
    """Carries out the operations that look at readers.

    Args:
        clock_ms: the time of day.
    """

    def __init__(self, engine: Engine, survey: Survey, *, clock_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._reading = engine.core.reading
        self._survey = survey
        self._clock_ms = clock_ms

    def group(self, more: list[Operation]) -> Group:
        """The operations, and those of another module."""
        return Group(
            name="consumers",
            about="Readers of messages of all protocols, and how far they are: queues with their "
            "consumers, subscriptions, sessions and consumer groups.",
            operations=[
                Operation(
                    method="GET",
                    path="/consumers",
                    name="listReaders",
                    summary="List readers with what waits for them, and since when",
                    right="monitor",
                    handler=self._list,
                    query=ReadersQuery,
                    answer=Page[Reader],
                ),
                Operation(
                    method="GET",
                    path="/consumers/{id}",
                    name="getReader",
                    summary="Show a reader, its position in each queue, and its consumers",
                    right="monitor",
                    handler=self._show,
                    answer=ReaderDetails,
                    path_about={"id": "of the reader: its kind, a colon and its name"},
                ),
                *more,
            ],
        )

    async def _list(self, call: Call[ReadersQuery]) -> Page[Reader]:
        return await in_steps(self._page(call.query), self._reading)

    def _page(self, query: ReadersQuery) -> Generator[Any, Any, Page[Reader]]:
        survey = self._survey
        listing: Listing[Source, Reader] = Listing(
            entries=survey.walk(query.kind, step=STEP_ENTRIES),
            names_of=survey.identities,
            row=lambda _, source: self._row(source),
            numbers=survey.waiting if query.sort == "waiting" else None,
            wants=self._wants(query) if query.prefix or query.user is not None else None,
        )
        plain = PageQuery(limit=query.limit, after=query.after)  # `prefix` is not that of the id
        return (yield from page_of(listing, plain))

    def _wants(self, query: ReadersQuery) -> Callable[[Source], bool]:
        survey, prefix, user = self._survey, query.prefix, query.user
        return lambda source: (
            survey.name(source).startswith(prefix)
            and (user is None or survey.user_of(source) == user)
        )

    def _row(self, source: Source) -> Generator[Any, Any, Reader]:
        state = yield from self._survey.look(source, queues_max=DATED_MAX)
        return Reader(**self._fields(source, state))

    def _fields(self, source: Source, state: State) -> dict[str, Any]:
        survey, oldest = self._survey, state.oldest_ms
        lag = None if oldest is None else max(0, self._clock_ms() - oldest) / 1000
        return {
            "id": survey.identity(source),
            "kind": kind_of(source),
            "name": survey.name(source),
            "user": survey.user_of(source),
            "consumers": survey.consumer_count(source),
            "waiting": state.waiting,
            "unacknowledged": state.unacknowledged,
            "oldest_ms": oldest,
            "lag_seconds": lag,
            "pauses": pauses_of(self._engine, source),
        }

    async def _show(self, call: Call[Given]) -> ReaderDetails:
        source = await find_reader(self._survey, call.path["id"])
        state = await in_steps(self._survey.look(source, queues_max=QUEUES_MAX), self._reading)
        consumers = islice(self._survey.consumers(source), CONSUMERS_MAX)
        return ReaderDetails(
            **self._fields(source, state),
            queues=[
                ReaderQueue(
                    topic=display_name(one.topic) if one.topic else "",
                    queue=one.number,
                    position=one.position,
                    end=one.end,
                    waiting=one.waiting,
                    unacknowledged=one.unacknowledged,
                    oldest_ms=one.oldest_ms,
                )
                for one in state.queues
            ],
            consumer_list=[
                Consumer(
                    name=one.name,
                    connection=one.connection,
                    user=one.user,
                    prefetch=one.prefetch,
                    unacknowledged=one.unacknowledged,
                    reads=list(one.reads),
                )
                for one in consumers
            ],
        )


def pauses_of(engine: Engine, source: Source) -> list[ReaderPause]:
    """What is paused of a reader."""
    found: Iterable[tuple[str, Pause]] = ()
    if isinstance(source, str):
        found = engine.groups.pauses.of_group(source)
    elif isinstance(source, NamedQueue) and source.pause is not None:
        found = [("", source.pause)]
    return [
        ReaderPause(
            topic=display_name(topic) if topic else "", since_ms=pause.since_ms, by=pause.by
        )
        for topic, pause in found
    ]


async def find_reader(survey: Survey, identity: str) -> Source:
    """A reader by its id. Raises Refused: NOT_FOUND."""
    found = await in_steps(survey.find(identity))
    if found is None:
        raise Refused(
            Reason.NOT_FOUND,
            f"there is no reader {identity!r}: an id is a kind (queue, subscription, session, "
            "share or group), a colon and a name",
        )
    return found
