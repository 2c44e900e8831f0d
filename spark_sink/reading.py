"""What the data source asks the broker: bounds of queues, and the messages of a range.

Rules:

* A range is a pure function of (queue, first, end): every attempt of a task reads the same.
* Nothing is inferred: each answer is compared with what was asked. An offset that is not the next
  one, an end before the range's end are errors, each with its name.
* What retention or the deletion of a topic takes between planning and reading is handled like what
  they took before: an error, or counted and left out, as the user chose.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from polymq.remoting.client import ClientSettings, Pulled, QueueBounds, Route
from polymq.remoting.codes import ResponseCode
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import CallFailed, RemotingError, RequestFailed, Unreachable
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.spark_sink.ahead import read_ahead
from polymq.spark_sink.envelope import EnvelopeBuilder
from polymq.spark_sink.errors import BadOption, DataLoss, SinkError, Unavailable
from polymq.spark_sink.layout import range_text
from polymq.spark_sink.offsets import Bounds, Queue, Range, lose
from polymq.spark_sink.selection import Selection

PULL_COUNT: Final = 4096
PULL_BYTES: Final = 4 * 1024 * 1024
"""Of one answer: few round trips."""
AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Of answers that wait while others are decoded: no task holds much more than three answers."""
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Of one Arrow batch. Spark holds a few of them per task; larger ones make it no faster."""
PATIENCE: Final = ClientSettings(attempts_max=30, pull_seconds=10.0)
"""Two minutes of refused connections: a server that recovers a long log does not end a query."""
AUTO_TOPIC: Final = "TBW102"
"""The topic whose route lists the brokers that make topics by themselves, as RocketMQ has it."""
SNAPSHOT_ATTEMPTS_MAX: Final = 3
"""For a topic that is recreated while its queues are asked."""
RETRY_COUNT_MAX: Final = 100
"""Answers in a row that say "again at once" before a read gives up."""

_log = logging.getLogger("polymq.sink")


@contextmanager
def sink_errors(about: str = "") -> Iterator[None]:
    """Raise errors of the client as ours, so that it is known which may pass."""
    try:
        yield
    except (Unreachable, CallFailed) as error:
        raise Unavailable(f"{about}{error}") from error
    except RemotingError as error:
        raise SinkError(f"{about}{error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the cluster showed.

    Attributes:
        queues: the bounds of all queues of the wanted topics. A topic that does not exist is not
            there: it may come.
        brokers: those that were there before and after the queues were asked for. Name servers
            forget the topics of a broker that is away; of one that is there, a topic that is
            missing was deleted.
    """

    queues: Mapping[Queue, Bounds]
    brokers: Set[str]


def look(client: BlockingClient, selection: Selection) -> Seen:
    """Ask for the bounds of these topics. Raises SinkError."""
    snapshot: dict[Queue, Bounds] = {}
    with sink_errors():
        before = _list_brokers(client)
        names = list_topics(client) if selection.topics is None else sorted(selection.topics)
        for topic in filter(selection.wants, names):
            found = _topic_snapshot(client, topic)
            snapshot.update(
                (queue, bounds)
                for queue, bounds in found.items()
                if selection.wants_queue(topic, queue.queue_id)
            )
            _check_assigned(topic, found, selection)
            if not found and "|" in topic and selection.topics is None:
                _log.warning(
                    "topic %s is left out: name servers list it by the log's name, by which no "
                    "broker is asked. Give the address of its broker instead",
                    topic,
                )
        return Seen(queues=snapshot, brokers=before & _list_brokers(client))


def _check_assigned(topic: str, found: Mapping[Queue, Bounds], selection: Selection) -> None:
    missing = selection.assigned.get(topic, frozenset()) - {queue.queue_id for queue in found}
    if found and missing:
        raise BadOption(f"assign: topic {topic!r} has no queue {min(missing)}")


def offsets_at(
    client: BlockingClient, times: Mapping[Queue, int], snapshot: Mapping[Queue, Bounds]
) -> dict[Queue, int]:
    """For each queue the first offset of a message that was stored at its time (milliseconds since
    the epoch) or later, among those that it holds; its end, if there is none. Raises SinkError."""
    found = {}
    for queue, time_ms in times.items():
        with sink_errors(f"queue {queue}: "):
            offset = client.offset_at(queue.topic, queue.broker, queue.queue_id, time_ms)
        bounds = snapshot[queue]
        found[queue] = min(max(offset, bounds.first), bounds.end)
    return found


def _list_brokers(client: BlockingClient) -> Set[str]:
    """The brokers that make topics by themselves, as all of ours do: each has this one."""
    try:
        return {queues.broker for queues in client.route(AUTO_TOPIC).brokers}
    except RequestFailed as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return set()


def list_topics(client: BlockingClient) -> list[str]:
    """All topics whose names a table can show. Raises RemotingError."""
    names = client.topics()
    for name in names:
        if name.user is None:
            _log.warning("topic %s is left out: its name is not Unicode text", name.stored)
    return sorted(name.user for name in names if name.user is not None)


def _topic_snapshot(client: BlockingClient, topic: str) -> dict[Queue, Bounds]:
    for _ in range(SNAPSHOT_ATTEMPTS_MAX):
        try:
            route = client.route(topic)
            bounds = _queue_bounds(client, topic, route)
        except RequestFailed as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        if len({(queue.broker, held.incarnation) for queue, held in bounds.items()}) <= len(
            route.brokers
        ):
            return bounds
    raise Unavailable(f"topic {topic!r} is deleted and created again all the time")


def _queue_bounds(client: BlockingClient, topic: str, route: Route) -> dict[Queue, Bounds]:
    found = {}
    for queues in route.brokers:
        for queue_id in range(queues.queue_count):
            held: QueueBounds = client.bounds(topic, queues.broker, queue_id)
            found[Queue(queues.broker, topic, queue_id)] = Bounds(
                first=held.first, end=held.end, incarnation=held.incarnation
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a range is read.

    Attributes:
        credentials: who reads, where the server has users.
        tls: how to connect; None: without TLS.
        with_range: whether the rows carry the range column.
    """

    brokers: tuple[str, ...]
    fail_on_data_loss: bool
    with_range: bool
    credentials: Credentials | None = None
    tls: Tls | None = None


class Access(Protocol):
    """How brokers are reached: `Options`, or `Reading` in an executor."""

    @property
    def credentials(self) -> Credentials | None:
        """Who reads."""

    @property
    def tls(self) -> Tls | None:
        """How to connect; None: without TLS."""


def connect(
    brokers: Sequence[str], access: Access, *, settings: ClientSettings = PATIENCE
) -> BlockingClient:
    """A client of these brokers."""
    return BlockingClient(
        brokers,
        settings=settings,
        credentials=access.credentials,
        tls=None if access.tls is None else access.tls.context(),
    )


def read_range(
    client: BlockingClient, wanted: Range, reading: Reading, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of a range as Arrow batches, in order of offset.

    Raises:
        DataLoss: the range is not what it was when it was planned.
        Unavailable: the broker does not answer.
        SinkError: it refuses, or answered with damaged records.
    """
    span = range_text(
        first=wanted.planned_first,
        end=wanted.end,
        broker=wanted.queue.broker,
        incarnation=wanted.incarnation,
        former=wanted.former,
    )
    builder = EnvelopeBuilder(
        schema,
        topic=wanted.queue.topic,
        range_text=span if reading.with_range else None,
        rows_max=BATCH_ROWS,
        bytes_max=BATCH_BYTES,
    )
    queue_id = wanted.queue.queue_id
    pulls = read_ahead(_pulls(client, wanted, reading), bytes_max=AHEAD_BYTES, size=_size)
    with sink_errors(f"queue {wanted.queue}: "), closing(pulls):
        for pull in pulls:
            yield from builder.add(
                pull.records, queue_id=queue_id, first=pull.first, end=wanted.end
            )
            if builder.next_offset != min(pull.next_offset, wanted.end):
                raise SinkError(
                    f"queue {wanted.queue}: messages from {pull.first} to {builder.next_offset} "
                    f"came, but {pull.next_offset} is to be next"
                )
    yield from builder.finish()


class _Pull(NamedTuple):
    """Records as a broker sent them; the offset that the first has to have."""

    records: bytes
    first: int
    next_offset: int  # as the broker says


def _size(pull: _Pull) -> int:
    return len(pull.records)


def _pulls(client: BlockingClient, wanted: Range, reading: Reading) -> Iterator[_Pull]:
    offset = wanted.first
    retries = 0
    while offset < wanted.end:
        queue = wanted.queue
        pulled = _pull(client, wanted, offset)
        if pulled is None or pulled.incarnation != wanted.incarnation:
            loss = f"{queue} was deleted while it was read, {offset} to {wanted.end} were not read"
            lose([loss], fail_on_data_loss=reading.fail_on_data_loss)
            return
        if pulled.max_offset < wanted.end:
            raise DataLoss(
                f"queue {queue} ends at {pulled.max_offset}, but a batch was planned up to "
                f"{wanted.end}: the broker lost messages that it had confirmed"
            )
        if pulled.min_offset > offset:
            offset = _skip(queue, offset, min(pulled.min_offset, wanted.end), reading)
            continue
        if pulled.code != ResponseCode.SUCCESS or pulled.next_offset <= offset:
            retries += 1
            if retries > RETRY_COUNT_MAX:
                raise SinkError(f"queue {queue}: no messages at {offset}, code {pulled.code}")
            continue
        retries = 0
        yield _Pull(records=pulled.records, first=offset, next_offset=pulled.next_offset)
        offset = pulled.next_offset


def _pull(client: BlockingClient, wanted: Range, offset: int) -> Pulled | None:
    """Ask for the next messages; None: the topic is not there."""
    queue = wanted.queue
    try:
        return client.pull(
            queue.topic,
            queue.broker,
            queue.queue_id,
            offset,
            count_max=min(PULL_COUNT, wanted.end - offset),
            bytes_max=PULL_BYTES,
            stored=True,
        )
    except RequestFailed as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return None


def _skip(queue: Queue, offset: int, first: int, reading: Reading) -> int:
    """Go on at `first`, where retention has moved the beginning of the queue."""
    loss = f"{queue} begins at {first}, {offset} was next: {first - offset} messages"
    lose([loss], fail_on_data_loss=reading.fail_on_data_loss)
    return first


def parse_brokers(text: str) -> tuple[str, ...]:
    """The option `broker`: addresses by commas."""
    brokers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not brokers:
        raise BadOption("broker: write HOST:PORT of a broker's port for readers by offset")
    return brokers
