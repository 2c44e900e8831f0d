"""An engine over a real store, with a loop that only moves when the test says so."""

from __future__ import annotations

import select
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from polymq.broker.disk import DiskSettings
from polymq.broker.engine import Engine
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.limits import Limits
from polymq.broker.messages.compressed import PlainBody
from polymq.broker.open_port import OpenPort
from polymq.broker.port import (
    Delivery,
    Durability,
    Position,
    RecordRun,
    SubscriptionOptions,
    TakesApart,
    Template,
    TopicInfo,
)
from polymq.broker.queues.queue import Group
from polymq.broker.retention.retention import InWorker, Step, UntilFlushed
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.state.database import StateDb
from polymq.broker.topics.settings import TopicSettings
from polymq.core_log.files import Files, RealFiles
from polymq.core_log.kernels.batch import RECORD_BODY_AT, RECORD_BODY_SIZE_AT, Batch
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""The wall clock when a `Broker` is made."""


class ManualLoop:
    """`call_soon` and `call_later` on a clock that stands still until `run` is called.

    `now` is the loop's clock in seconds; `clock_ms` the wall clock, which moves with it, and which
    a test sets forward or back by `jump_ms`.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.jump_ms = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0  # keeps the order of equal times

    def clock_ms(self) -> int:
        return START_MS + round(self.now * 1000) + self.jump_ms

    @property
    def timer_count(self) -> int:
        """How many callbacks wait for their time."""
        return len(self._later)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self._count += 1
        self._later.append((self.now + delay, self._count, callback))

    def step(self) -> bool:
        """Run one callback. Returns whether there was one."""
        if self._soon:
            self._soon.popleft()()
            return True
        return False

    def run(self, seconds: float = 0.0) -> None:
        """Run everything that is due within the next `seconds`."""
        end = self.now + seconds
        while True:
            while self._soon:
                self._soon.popleft()()
            due = [timer for timer in self._later if timer[0] <= end]
            if not due:
                break
            first = min(due)
            self._later.remove(first)
            self.now = first[0]
            self._soon.append(first[2])
        self.now = end


class InlineReaders:
    """Reader threads that read at once, in the caller's thread."""

    def submit(
        self, read: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        try:
            result = read()
        except Exception as error:  # noqa: BLE001  (handed on, as threads do)
            done(None, error)
        else:
            done(result, None)


class Broker:
    """An engine that can be stopped, killed and started again on one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        with_state_db: bool = True,
        follows: str = "",
        plain_body: PlainBody | None = None,
        **limits: Any,
    ) -> None:
        self.directory = directory
        self.plain_body = plain_body
        self.with_state_db = with_state_db
        self.limits = Limits(**limits)
        self.topic_defaults: TopicSettings | None = None
        self.disk_settings: DiskSettings | None = None
        self.store_settings = StoreSettings(segment_bytes=1 << 20, chunk_bytes=1 << 16)
        self.files: Files = RealFiles()
        self.session_settings: SessionSettings | None = None
        self.min_in_sync = 1
        self.in_sync: int | None = None
        self.follows = follows
        self.shown = 0
        self.loop = ManualLoop()
        self.open()

    def open(self, down_seconds: float = 0.0) -> None:
        """Start on the directory; the clock goes on, and stood still no longer than that."""
        self.loop = ManualLoop(self.loop.now + down_seconds)
        self.store = Store.open(
            str(self.directory),
            files=self.files,
            clock_ms=self.loop.clock_ms,
            # No thread that renames files, which `kill` copies.
            settings=replace(self.store_settings, segments_zeroed=False),
            follows=self.follows,
        )
        state_db = StateDb(self.directory / "state.db") if self.with_state_db else None
        names = iter(range(1 << 30))
        self.engine = Engine(
            store=self.store,
            clock_ms=self.loop.clock_ms,
            scheduler=self.loop,
            readers=InlineReaders(),
            new_name=lambda: f"name{next(names)}",
            limits=self.limits,
            state_db=state_db,
            topic_defaults=self.topic_defaults,
            disk_settings=self.disk_settings,
            session_settings=self.session_settings,
            min_in_sync=self.min_in_sync,
            in_sync=self.in_sync,
            follows=self.follows,
            plain_body=self.plain_body,
            shown=self.shown,
        )

    @property
    def port(self) -> OpenPort:
        """Everything is allowed here."""
        return self.engine.port

    def step(self, seconds: float = 0.0) -> None:
        """One loop iteration, its flush included."""
        self.loop.run(seconds)
        while self.engine.core.flush_pending:
            self.flush()
            self.loop.run()

    def flush(self) -> None:
        """Wait for the flush that was asked for, and let go what waits for it. What that appends
        in turn is not written yet."""
        ready, _, _ = select.select([self.store.flusher.fileno()], [], [], 10)
        assert ready, "the flusher does not answer"
        self.engine.core.flush_finished()

    def save(self) -> None:
        """Save the folded state and the indexes, as the running server does now and then."""
        snapshot = self.engine.snapshot()
        checkpoint = self.store.prepare_checkpoint()
        self.engine.core.commits.urgent = self.store.log.appended  # do not wait for the lazy flush
        self.engine.core.appended()
        self.step()
        if snapshot is not None:
            snapshot()
        checkpoint()

    def tidy(self, wanted_bytes: int = 0) -> int:
        """Save, then one round of retention; returns how many bytes of the log went."""
        self.save()
        before = self.engine.retention.deleted_bytes
        steps = self.engine.retention.round(wanted_bytes)
        result = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration:
                return self.engine.retention.deleted_bytes - before
            result = self.do(step)

    def do(self, step: Step) -> Any:
        """What a round of retention asks for; returns what it wants back."""
        if isinstance(step, InWorker):
            return step.run()
        if isinstance(step, UntilFlushed):
            self.engine.core.commits.urgent = step.position
            self.engine.core.appended()
            self.step()
            assert self.store.log.flushed >= step.position
        else:
            self.loop.run()
        return None

    def stop(self) -> None:
        """A clean stop."""
        self.save()
        self.store.close()

    def restart(self) -> None:
        """A clean stop and a start."""
        self.stop()
        self.open()

    def kill(self) -> None:
        """As kill -9 leaves it: a copy of what was written, with nothing tidied up."""
        left = self.directory.with_name(self.directory.name + "-killed")
        shutil.copytree(self.directory, left)
        self.store.close()
        self.directory = left

    def info(self, topic: str) -> TopicInfo:
        """What the port says of a topic that is there."""
        found = self.port.topics.info(topic)
        assert found is not None, topic
        return found

    def group(self, queue: str) -> Group:
        """What a queue of AMQP without priorities knows of its messages."""
        return group_of(self.engine.exchanges.queues[queue])

    def publish(self, template: Template, *bodies: bytes) -> Position:
        """Publish bodies as one run; returns the position."""
        return self.engine.port.publish(template, batch_of(*bodies), 0, len(bodies))

    def template(
        self,
        topic: str,
        tag: str | None = None,
        *,
        qos: int = 1,
        durability: Durability = Durability.FLUSHED,
        retain: bool = False,
    ) -> Template:
        route = self.engine.port.topics.route(topic, tag)
        return self.engine.port.topics.template(
            route,
            properties={"PMQ_PROTO": "mqtt", "PMQ_QOS": str(qos)},
            durability=durability,
            retain=retain,
        )


def at_qos(qos: int, **options: Any) -> SubscriptionOptions:
    """A subscription with this QoS, and plain unless something else is said."""
    return SubscriptionOptions(qos=qos, **options)


def group_of(queue: NamedQueue) -> Group:
    """What a queue without priorities knows of its messages."""
    assert isinstance(queue.group, Group)
    return queue.group


def batch_of(*bodies: bytes) -> Batch:
    """A batch whose rows have these bodies."""
    batch = Batch()
    batch.buffer = b"t" + b"".join(bodies)
    at = 1
    for number, body in enumerate(bodies):
        batch.add((0, 1), (at, len(body)), identifier=number + 1)
        at += len(body)
    return batch


def bodies_of(run: RecordRun) -> list[bytes]:
    """The bodies of a run."""
    bodies = []
    at = run.start
    memory = bytes(run.memory)
    while at < run.end:
        size = int.from_bytes(memory[at + RECORD_BODY_SIZE_AT : at + RECORD_BODY_AT], "big")
        bodies.append(memory[at + RECORD_BODY_AT : at + RECORD_BODY_AT + size])
        at += int.from_bytes(memory[at : at + 4], "big")
    assert len(bodies) == run.count
    return bodies


class SpyConsumer:
    """A queue consumer that keeps what it gets."""

    def __init__(self, credit: int = 1000) -> None:
        self.left = credit
        self.got: list[tuple[int, bytes, bool]] = []
        self.gone = False

    def credit(self) -> int:
        return self.left

    def deliver(self, delivery: Delivery) -> None:
        bodies = [body for run in delivery.runs for body in bodies_of(run)]
        assert len(bodies) == delivery.count <= self.left
        self.left -= delivery.count
        self.got += [
            (delivery.first_offset + k, body, delivery.redelivered) for k, body in enumerate(bodies)
        ]

    def cancelled(self) -> None:
        self.gone = True

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.got]


class SpyLink:
    """An MQTT client's connection that keeps what it is sent."""

    def __init__(self, credit: int = 1000) -> None:
        self.left = credit
        self.takes_apart: TakesApart | None = None
        self.publishes: list[tuple[str, bytes, int, int, bool, bool]] = []
        self.identifiers: list[tuple[int, ...]] = []
        """Subscription Identifiers of the publishes."""
        self.pubrels: list[int] = []
        self.over = False
        self.expelled_for = ""

    def credit(self) -> int:
        return self.left

    def expelled(self, why: str) -> None:
        self.expelled_for = why

    def send_publishes(
        self,
        run: RecordRun,
        *,
        qos: int,
        first_packet_id: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        address = [run.meta.topic, *(run.meta.tag.split(".") if run.meta.tag is not None else [])]
        for k, body in enumerate(bodies_of(run)):
            packet = (first_packet_id + k - 1) % 65535 + 1 if qos else 0
            self.publishes.append(("/".join(address), body, qos, packet, duplicate, retain))
            self.identifiers.append(identifiers)

    def send_pubrels(self, first_packet_id: int, count: int) -> None:
        self.pubrels += [(first_packet_id + k - 1) % 65535 + 1 for k in range(count)]

    def taken_over(self) -> None:
        self.over = True

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, *_ in self.publishes]
