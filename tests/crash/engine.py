"""The same game one floor higher: an engine on the simulated disk.

What has to survive here is what clients were told: messages, queues, sessions, transactions, users.
`EngineActor` is a running engine and what its clients do in common; what they do in particular, and
what has to be there afterwards, is the matter of the `parts`, one for each subject. A `World` is
the parts that a seed drew, and what they know.

Every fact waits for a position of the log, as every answer of the engine does: a crash takes those
beyond the end of what was found, and none of those that were flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.limits import Limits
from polymq.broker.port import APPENDED, FLUSHED, QueueConsumer, Template
from polymq.broker.retention.retention import InWorker, UntilFlushed
from polymq.broker.state.database import Folded, Row, StateDb
from polymq.broker.topics.settings import TopicSettings
from polymq.core_log.record import Record
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.disk import Disk
from tests.harness.broker import ManualLoop, SpyConsumer, batch_of
from tests.harness.stores import DIRECTORY, decode_all

if TYPE_CHECKING:
    from tests.crash.parts.part import Part

SETTINGS: Final = StoreSettings(
    segment_bytes=16 * 1024,
    chunk_bytes=2048,
    tail_bytes_max=4096,
    message_bytes_max=2000,
    index_file_entries=16,
    index_packed_bytes_max=300,
    index_slack_bytes=500,
    ballast_bytes_min=200_000,
    key_slots=8,
    key_file_entries=16,
)
LIMITS: Final = Limits(
    delay_lag_bytes_max=4000, delay_watch_ms=500, inflight_count_start=Limits().inflight_count_max
)
"""Delayed messages that are far behind are copied forward soon, and a session gets all at once."""
OWNER: Final = object()
LAZY_SECONDS: Final = 1.0
"""After that, and a flush, what was settled is stored."""
READS_MAX: Final = 50
"""So often a read is repeated before it has to work."""
EVERYTHING_CREDIT: Final = 100_000


class MemoryStateDb(StateDb):
    """`state.db` without a file: every version of it is kept."""

    def __init__(
        self, versions: Sequence[tuple[int, int, dict[tuple[str, str], str]]] = ()
    ) -> None:
        self.versions = list(versions)

    def load(self) -> Folded | None:
        if not self.versions:
            return None
        position, epoch, entities = self.versions[-1]
        rows: dict[str, list[tuple[str, str]]] = {}
        for (kind, key), text in sorted(entities.items()):
            rows.setdefault(kind, []).append((key, text))
        return Folded(position=position, epoch=epoch, rows=rows)

    def save(self, position: int, epoch: int, rows: Iterable[Row]) -> None:
        entities = dict(self.versions[-1][2]) if self.versions else {}
        for kind, key, text in rows:
            if text is None:
                entities.pop((kind, key), None)
            else:
                entities[kind, key] = text
        self.versions.append((position, epoch, entities))

    def discard(self) -> None:
        self.versions = []


class LaterReaders:
    """Reader threads that read at once, and tell it in the next loop iteration."""

    def __init__(self, loop: ManualLoop) -> None:
        self._loop = loop

    def submit(
        self, read: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        """Read, and call back later."""
        answer: tuple[Any, Exception | None]
        try:
            answer = (read(), None)
        except Exception as error:  # noqa: BLE001  (handed on, as threads do)
            answer = (None, error)
        self._loop.call_soon(lambda: done(*answer))


@dataclass(slots=True, kw_only=True)
class World:
    """What was done, and what of it is promised.

    Attributes:
        parts: what clients do, subject by subject.
        settings: of the store.
        retention_bytes: how much of each topic stays readable by offset; 0: all.
        retention_seconds: for how long; 0: for ever.
        trims_early: whether the disk may be short of room, so that messages go earlier.
        flushed: up to where everything is promised.
        written: up to where it is as long as the machine lives.
        now: the loop's clock when no engine runs.
        epochs: of the log, as the last engine that started found it.
    """

    parts: Sequence[Part] = ()
    settings: StoreSettings = SETTINGS
    retention_bytes: int = 0
    retention_seconds: int = 0
    trims_early: bool = False
    flushed: int = 0
    written: int = 0
    now: float = 0.0
    epochs: list[tuple[int, int]] = field(default_factory=list)


class EngineActor:
    """A running engine, and the world that it serves.

    Raises:
        StoreError: as `Store.open`.
    """

    def __init__(self, disk: Disk, database: StateDb, world: World) -> None:
        self.disk = disk
        self.database = database
        self.world = world
        self.loop = ManualLoop(world.now)
        self.store = Store.open(
            DIRECTORY,
            files=disk,
            clock_ms=self.loop.clock_ms,
            settings=world.settings,
            stepped=True,
        )
        names = iter(range(1 << 30))
        self.engine = Engine(
            store=self.store,
            clock_ms=self.loop.clock_ms,
            scheduler=self.loop,
            readers=LaterReaders(self.loop),
            new_name=lambda: f"name{next(names)}",
            limits=LIMITS,
            state_db=database,
            topic_defaults=TopicSettings(
                retention_bytes=world.retention_bytes, retention_seconds=world.retention_seconds
            ),
            random_bytes=bytes,
        )

    # --- what a loop does -----------------------------------------------------------------------

    def iterate(self, seconds: float = 0.0) -> None:
        """What is due, without the flush."""
        self.loop.run(seconds)
        self.note_promises()

    def flush(self, seconds: float = 0.0) -> None:
        """What is due, and the flushes that it asked for."""
        self.iterate(seconds)
        while self.engine.core.flush_pending:
            self.store.flusher.step()
            self.engine.core.flush_finished()
            self.iterate()
        fault = self.disk.fault
        if seconds >= LAZY_SECONDS and (fault is None or not fault.failed):
            for part in self.world.parts:
                part.lazily_stored()

    def note_promises(self) -> None:
        """What the engine tells clients by now."""
        points = self.engine.core.commits.points
        self.world.flushed = points[FLUSHED]
        self.world.written = max(points[APPENDED], points[FLUSHED])

    def save(self) -> None:
        """The folded state and the indexes, as `polymq.upkeep` saves them."""
        snapshot = self.engine.snapshot()
        self._flush_all()
        checkpoint = self.store.prepare_checkpoint()
        if snapshot is not None:
            snapshot()
        checkpoint()

    def tidy(self) -> None:
        """A saving, and a round of retention."""
        self.save()
        steps = self.engine.retention.round()
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration:
                return
            result = None
            if isinstance(step, InWorker):
                result = step.run()
            elif isinstance(step, UntilFlushed):
                self._flush_all()
            else:
                self.iterate()

    def _flush_all(self) -> None:
        self.engine.core.commits.urgent = self.store.log.appended
        self.engine.core.appended()
        self.flush()

    # --- what clients do ------------------------------------------------------------------------

    def template(
        self,
        topic: str,
        tag: str | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        retain: bool = False,
    ) -> Template:
        """How messages to a topic are stored."""
        return self.engine.port.topics.template(
            self.engine.port.topics.route(topic, tag),
            properties=properties or {"PMQ_PROTO": "mqtt", "PMQ_QOS": "1"},
            durability=FLUSHED,
            retain=retain,
        )

    def to_queue(self, name: str, **properties: str) -> Template:
        """How messages to a queue by its name are stored."""
        route = self.engine.port.exchanges.route("", name)
        assert route is not None
        return self.engine.port.topics.template(
            route, properties={"PMQ_PROTO": "amqp", **properties}
        )

    def publish(self, template: Template, bodies: Sequence[bytes]) -> int:
        """One run. Returns the position that its ack waits for."""
        return int(self.engine.port.publish(template, batch_of(*bodies), 0, len(bodies)))

    def declare(self, name: str, **arguments: Any) -> int:
        """A durable queue; `x_message_ttl=5` is the argument `x-message-ttl`."""
        _, position = self.engine.port.queues.declare(
            name,
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments={key.replace("_", "-"): value for key, value in arguments.items()},
            owner=OWNER,
        )
        return int(position)

    def bind(self, name: str, exchange: str, key: str) -> int:
        """Bind a queue."""
        return int(self.engine.port.exchanges.bind_queue(name, exchange, key, {}, owner=OWNER))

    def consume(self, name: str, credit: int, **settings: Any) -> tuple[SpyConsumer, QueueConsumer]:
        """A consumer that has got up to `credit` messages, and its hold."""
        consumer = SpyConsumer(credit)
        registration = self.engine.port.queues.consume(
            name, consumer, exclusive=False, owner=OWNER, **settings
        )
        registration.ready()
        self.flush()
        return consumer, registration

    def peek(self, name: str, **settings: Any) -> list[bytes]:
        """All that a queue has for a consumer, given back."""
        consumer, registration = self.consume(name, EVERYTHING_CREDIT, **settings)
        registration.cancel()
        for offset, _, _ in consumer.got:
            registration.requeue(offset, 1)
        return consumer.bodies

    def pull(self, topic: str) -> tuple[int, list[Record]]:
        """The first offset of a topic's only queue, and all that can be read by offset."""
        found = self.engine.topics.topics.get(topic)
        if found is None:
            return 0, []
        first = offset = found.queues[0].index.first_offset
        records: list[Record] = []
        more = True
        while more:
            raw, offset = self._pull_once(topic, offset)
            records += decode_all(raw)
            more = bool(raw)
        return first, records

    def wait_for(self, answers: Sequence[Any]) -> None:
        """Until there is one: what the disk was too short of something for is read again soon.

        Raises:
            Refused: there is none since the log has failed.
        """
        for _ in range(READS_MAX):
            if not answers:
                self.iterate(LAZY_SECONDS)
        if not answers and self.engine.core.has_failed():
            raise Refused(Reason.READ_ONLY, "no answer since the log failed")

    def _pull_once(self, topic: str, offset: int) -> tuple[bytes, int]:
        answers: list[tuple[bytes, int]] = []
        self.engine.port.queries.pull(
            topic,
            0,
            offset,
            count_max=1000,
            bytes_max=1 << 20,
            callback=lambda raw, following: answers.append((raw, following)),
        )
        self.iterate()
        self.wait_for(answers)
        (answer,) = answers
        return answer
