"""The same game one floor higher: an engine on the simulated disk.

What has to survive here is state: queues and bindings that were declared, subscriptions of a
session, what was settled, retained messages. `EngineActor` serves a little world of one topic, some
AMQP queues, a persistent MQTT session and retained messages; `check_engine` opens a state of its
disk twice, once with a `state.db` that may be old or missing and once without, and demands:

    (a) promised messages are there, in order, and go to every queue and session that was answered
        before they were published, unless they were settled there
    (b) nothing else is delivered, and nothing twice
    (c) what was answered is there: queues, bindings, subscriptions, retained messages
    (d) the state is the same with and without state.db
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from broker.engine import Engine
from broker.port import REST, Durability
from broker.state_db import Folded, Row, StateDb
from core_log.settings import StoreSettings
from core_log.store import Store
from tests.crash.checks import demand
from tests.crash.disk import Disk
from tests.crash.losses import POWER_CUTS
from tests.harness.broker import InlineReaders, ManualLoop, SpyConsumer, SpyLink, batch_of
from tests.harness.stores import DIRECTORY, decode_all

SETTINGS: Final = StoreSettings(
    segment_bytes=16 * 1024,
    chunk_bytes=2048,
    tail_bytes_max=4096,
    message_bytes_max=2000,
    index_file_entries=16,
    index_packed_bytes_max=300,
    index_slack_bytes=500,
)
TOPIC: Final = "a"
RETAINED: Final = "r"
TAGS: Final = ("x", "y")
CLIENT: Final = "client"
OWNER: Final = object()
LAZY_SECONDS: Final = 1.0
"""After that, and a flush, what was settled is stored."""
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

    def save(self, position: int, epoch: int, rows: Sequence[Row]) -> None:
        entities = dict(self.versions[-1][2]) if self.versions else {}
        for kind, key, value in rows:
            if value is None:
                entities.pop((kind, key), None)
            else:
                entities[kind, key] = json.dumps(value)
        self.versions.append((position, epoch, entities))

    def discard(self) -> None:
        self.versions = []


@dataclass(slots=True)
class Message:
    """A message that was published: its acknowledgement waits for the position."""

    body: bytes
    position: int


@dataclass(slots=True)
class Reader:
    """A queue or a session.

    Attributes:
        position: what its answer waits for.
        first: the first message of the topic that goes there.
        settled: bodies that may not come again, or may.
        fresh: those of them that were settled by the engine that runs.
        gone: those of them whose settlement is surely stored: they do not come again.
    """

    position: int
    first: int
    settled: set[bytes] = field(default_factory=set)
    fresh: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)

    def settle(self, body: bytes) -> None:
        """A consumer is done with it."""
        self.settled.add(body)
        self.fresh.add(body)


@dataclass(slots=True)
class World:
    """What was done, and what waits for which position.

    Attributes:
        messages: of the topic, in order.
        queues: by name.
        session: once it has subscribed.
        retained: by tag, oldest first.
        flushed: up to where everything is promised.
    """

    messages: list[Message] = field(default_factory=list)
    queues: dict[str, Reader] = field(default_factory=dict)
    session: Reader | None = None
    retained: dict[str, list[Message]] = field(default_factory=dict)
    flushed: int = 0

    def readers(self) -> list[Reader]:
        """The queues and the session."""
        return [*self.queues.values(), *([] if self.session is None else [self.session])]


class EngineActor:
    """A running engine, and the world that it serves."""

    def __init__(
        self,
        disk: Disk,
        database: StateDb,
        world: World,
        settings: StoreSettings = SETTINGS,
    ) -> None:
        self.disk = disk
        self.database = database
        self.world = world
        self.loop = ManualLoop()
        self.store = Store.open(
            DIRECTORY, files=disk, clock_ms=self.loop.clock_ms, settings=settings, stepped=True
        )
        self.engine = Engine(
            store=self.store,
            clock_ms=self.loop.clock_ms,
            scheduler=self.loop,
            readers=InlineReaders(),
            new_name=lambda: "name",
            state_db=database,
            random_bytes=bytes,
        )

    # --- what a loop does -----------------------------------------------------------------------

    def iterate(self, seconds: float = 0.0) -> None:
        """What is due, without the flush."""
        self.loop.run(seconds)

    def flush(self, seconds: float = 0.0) -> None:
        """What is due, and the flushes that it asked for."""
        self.loop.run(seconds)
        while self.engine.core.flush_pending:
            self.store.flusher.step()
            self.engine.flush_finished()
            self.world.flushed = self.store.log.flushed
            self.loop.run()
        if seconds >= LAZY_SECONDS:
            for reader in self.world.readers():
                reader.gone |= reader.fresh

    def save(self) -> None:
        """The folded state and the indexes, as `polymq.upkeep` saves them."""
        snapshot = self.engine.snapshot()
        self.engine.core.commits.urgent = self.store.log.appended
        self.engine.core.appended()
        self.flush()
        checkpoint = self.store.prepare_checkpoint()
        if snapshot is not None:
            snapshot()
        checkpoint()

    # --- what clients do ------------------------------------------------------------------------

    def publish(self, bodies: Sequence[bytes], tag: str) -> None:
        """To the topic."""
        template = self._template(TOPIC, tag, retain=False)
        position = self.engine.publish(template, batch_of(*bodies), 0, len(bodies))
        self.world.messages += [Message(body, int(position)) for body in bodies]

    def publish_retained(self, body: bytes, tag: str) -> None:
        """A retained message."""
        template = self._template(RETAINED, tag, retain=True)
        position = self.engine.publish(template, batch_of(body), 0, 1)
        self.world.retained.setdefault(tag, []).append(Message(body, int(position)))

    def _template(self, topic: str, tag: str, *, retain: bool) -> Any:
        return self.engine.template(
            self.engine.route(topic, tag),
            properties={"PMQ_PROTO": "mqtt", "PMQ_QOS": "1"},
            durability=Durability.FLUSHED,
            retain=retain,
        )

    def declare(self, name: str) -> None:
        """A durable queue that gets all of the topic from now on."""
        self.engine.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
        )
        position = self.engine.bind_queue(name, "amq.topic", f"{TOPIC}.#", {}, owner=OWNER)
        self.world.queues[name] = Reader(int(position), len(self.world.messages))

    def consume(self, name: str, credit: int, settled_count: int) -> list[bytes]:
        """Take up to `credit` messages, settle the first ones, leave. Returns all that came."""
        consumer = SpyConsumer(credit)
        hold = self.engine.consume(name, consumer, exclusive=False, owner=OWNER)
        hold.ready()
        self.flush()
        for offset, body, _ in consumer.got[:settled_count]:
            hold.settle(offset, 1)
            self.world.queues[name].settle(body)
        hold.cancel()
        for offset, _, _ in consumer.got[settled_count:]:
            hold.requeue(offset, 1)
        return consumer.bodies

    def subscribe(self) -> None:
        """The session subscribes to the topic."""
        session = self._connect(SpyLink(0))
        position = session.subscribe((TOPIC, REST), 1)
        self.world.session = Reader(int(position), len(self.world.messages))
        session.disconnect()

    def receive(self, credit: int, settled_count: int) -> list[bytes]:
        """The session connects, gets up to `credit` messages, acknowledges the first ones, and its
        connection is lost. Returns all that came."""
        link = SpyLink(credit)
        session = self._connect(link)
        self.flush()
        assert self.world.session is not None
        for _, body, _, packet_id, _, _ in link.publishes[:settled_count]:
            session.acknowledged(packet_id, 1)
            self.world.session.settle(body)
        session.disconnect()
        return link.bodies

    def retained_now(self) -> dict[str, bytes]:
        """The retained messages, as a new subscriber gets them."""
        link = SpyLink(EVERYTHING_CREDIT)
        session = self.engine.connect_session("other", clean=True, link=link, principal="u")
        session.resume()
        session.subscribe((RETAINED, REST), 1)
        self.flush()
        session.replay_retained((RETAINED, REST), 1)
        self.flush()
        session.disconnect()
        return {name.partition("/")[2]: body for name, body, *_ in link.publishes}

    def _connect(self, link: SpyLink) -> Any:
        session = self.engine.connect_session(CLIENT, clean=False, link=link, principal="u")
        self.flush()
        session.resume()
        return session

    def topic_bodies(self) -> list[bytes]:
        """All of the topic, read by offset."""
        if self.engine.topic(TOPIC) is None:
            return []
        found: list[tuple[bytes, int]] = []
        while not found or found[-1][0]:
            self.engine.pull(
                TOPIC,
                0,
                found[-1][1] if found else 0,
                count_max=1000,
                bytes_max=1 << 20,
                callback=lambda records, following: found.append((records, following)),
            )
        return [record.body for records, _ in found for record in decode_all(records)]


STEPS: Final = {
    "publish": 8,
    "retained": 2,
    "declare": 1,
    "subscribe": 1,
    "consume": 3,
    "receive": 3,
    "iterate": 3,
    "flush": 4,
    "wait": 2,
    "save": 2,
    "kill": 1,
    "crash": 1,
}


class EngineWorkload:
    """Steps drawn from a seed, carried out on a disk."""

    def __init__(self, random: Random, disk: Disk) -> None:
        self._random = random
        self.disk = disk
        self.database = MemoryStateDb()
        self.world = World()
        self.actor: EngineActor
        self._sent_count = 0

    def run(self, steps_count: int) -> None:
        """Carry out so many steps."""
        self.actor = EngineActor(self.disk, self.database, self.world)
        for kind in self._random.choices(list(STEPS), list(STEPS.values()), k=steps_count):
            self._do(kind)

    def _do(self, kind: str) -> None:
        actor, random, world = self.actor, self._random, self.world
        if kind == "publish":
            actor.publish(self._bodies(random.randint(1, 5)), random.choice(TAGS))
        elif kind == "retained":
            actor.publish_retained(self._bodies(1)[0], random.choice(TAGS))
        elif kind == "declare":
            actor.declare(f"q{len(world.queues)}")
        elif kind == "subscribe":
            if world.session is None:
                actor.subscribe()
        elif kind == "consume":
            if world.queues:
                name = random.choice(sorted(world.queues))
                actor.consume(name, random.randint(1, 9), random.randint(0, 9))
        elif kind == "receive":
            if world.session is not None:
                actor.receive(random.randint(1, 9), random.randint(0, 9))
        elif kind in ("kill", "crash"):
            self._end_life(kind)
        elif kind == "wait":
            actor.flush(random.choice((0.05, LAZY_SECONDS)))
        elif kind == "iterate":
            actor.iterate()
        elif kind == "flush":
            actor.flush()
        else:
            actor.save()

    def _bodies(self, count: int) -> list[bytes]:
        first = self._sent_count
        self._sent_count += count
        return [b"%d" % number for number in range(first, first + count)]

    def _end_life(self, kind: str) -> None:
        """The process or the machine dies; the next one goes on with what it finds."""
        if kind == "kill":
            found = self.disk.kill()
        else:
            name = self._random.choice(list(POWER_CUTS))
            found = self.disk.crash(POWER_CUTS[name](self.disk, self._random))
        found.on_change = self.disk.on_change
        self.disk = found
        self.actor = EngineActor(found, self.database, self.world)
        forget_lost(self.world, self.actor)


def forget_lost(world: World, actor: EngineActor) -> None:
    """Only what is there is there; all of it is promised from now on."""
    end = actor.store.log.flushed
    kept = actor.store.recovery.end
    world.flushed = end
    del world.messages[len(actor.topic_bodies()) :]
    for tag, values in list(world.retained.items()):
        world.retained[tag] = [message for message in values if message.position <= kept]
    world.queues = {
        name: reader for name, reader in world.queues.items() if reader.position <= kept
    }
    if world.session is not None and world.session.position > kept:
        world.session = None
    for reader in world.readers():
        reader.fresh.clear()


def check_engine(disk: Disk, database: MemoryStateDb, world: World) -> None:
    """(a) to (d) on one state, which is used up.

    Raises:
        Violation, and whatever an engine that can not start raises.
    """
    flushed = world.flushed  # before the engine that is checked goes on
    without = EngineActor(disk.kill(), MemoryStateDb(), world)
    actor = EngineActor(disk, database, world)
    _check_same_state(actor, without)
    bodies = [message.body for message in world.messages]
    promised = sum(message.position <= flushed for message in world.messages)
    kept = actor.topic_bodies()
    demand(kept == bodies[: len(kept)], "(b) the topic is no beginning of what was published")
    demand(len(kept) >= promised, f"(a) {len(kept)} of {promised} promised messages are there")
    for name, reader in world.queues.items():
        if reader.position > flushed:
            continue
        came = actor.consume(name, EVERYTHING_CREDIT, 0)
        _check_reader(f"queue {name}", came, kept[reader.first :], reader)
    session = world.session
    if session is not None and session.position <= flushed:
        came = actor.receive(EVERYTHING_CREDIT, 0)
        _check_reader("the session", came, kept[session.first :], session)
    found = actor.retained_now()
    for tag, values in world.retained.items():
        sure = [place for place, value in enumerate(values) if value.position <= flushed]
        allowed = [value.body for value in values[sure[-1] if sure else 0 :]]
        demand(not sure or found.get(tag) in allowed, f"(c) {found.get(tag)!r} is retained")


def _check_reader(where: str, came: list[bytes], published: list[bytes], reader: Reader) -> None:
    demand(len(set(came)) == len(came), f"(b) {where} got a message twice")
    places = {body: place for place, body in enumerate(published)}
    demand(places.keys() >= set(came), f"(b) {where} got what it should not")
    order = [places[body] for body in came]
    demand(order == sorted(order), f"(b) {where} got messages out of order")
    lost = set(published) - set(came) - reader.settled
    again = reader.gone & set(came)
    demand(not again, f"(b) {where} got {sorted(again)[:3]} again, which were settled")
    demand(not lost, f"(a) {where} did not get {sorted(lost)[:3]}, of {len(published)}")


def _check_same_state(actor: EngineActor, without: EngineActor) -> None:
    """(d): the rows of state.db that the two would write are the same."""
    keys = set(actor.engine.core.journal.dirty) | set(without.engine.core.journal.dirty)
    if isinstance(actor.database, MemoryStateDb) and actor.database.versions:
        keys |= set(actor.database.versions[-1][2])
    for kind, key in sorted(keys):
        if kind == "number":
            continue
        found, wanted = actor.engine.fold.row(kind, key), without.engine.fold.row(kind, key)
        same = json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)
        demand(same, f"(d) {kind} {key!r}: {found}, and from the log alone {wanted}")
    demand(
        actor.engine.core.next_number == without.engine.core.next_number,
        "(d) a number would be given out again",
    )
