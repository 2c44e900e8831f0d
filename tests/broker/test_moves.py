"""A moved message is whole, and counts exactly once, also after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.moves.moves import Target
from polymq.broker.port import Delivery, Message, RunMeta
from polymq.broker.topics.topic import TopicTemplate
from polymq.core_log.errors import StorageFull
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from tests.harness.broker import Broker, SpyConsumer, batch_of, group_of

OWNER = object()


class MessagesConsumer(SpyConsumer):
    """Keeps messages as values."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.run_counts: list[int] = []

    def deliver(self, delivery: Delivery) -> None:
        self.messages += delivery.messages()
        self.run_counts.append(len(delivery.runs))
        super().deliver(delivery)


def declare(broker: Broker, name: str, *, durable: bool = True) -> NamedQueue:
    broker.port.queues.declare(
        name, durable=durable, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )
    return broker.engine.exchanges.queues[name]


def publish(broker: Broker, name: str, *bodies: bytes, **properties: str) -> None:
    route = broker.port.exchanges.route("", name)
    assert route is not None
    broker.publish(broker.port.topics.template(route, properties=properties), *bodies)


def to_queue(broker: Broker, name: str) -> Callable[[RunMeta], TopicTemplate]:
    """A target: the queue of this name, properties kept."""

    def target(meta: RunMeta) -> TopicTemplate:
        route = broker.port.exchanges.route("", name)
        assert route is not None
        template = broker.port.topics.template(route, properties=meta.properties)
        assert isinstance(template, TopicTemplate)
        return template

    return target


def move(
    broker: Broker,
    source: NamedQueue,
    count: int,
    target: Target,
) -> list[tuple[int, Exception | None]]:
    """Take the first messages of a queue and move them; returns what `done` was told."""
    ends: list[tuple[int, Exception | None]] = []
    taken = group_of(source).cursor.take(count, source.queue.visible)
    assert taken is not None
    broker.engine.moves.move(
        group_of(source),
        taken[0],
        taken[1],
        target,
        lambda moved, error: ends.append((moved, error)),
    )
    return ends


def read(broker: Broker, name: str) -> list[Message]:
    consumer = MessagesConsumer()
    registration = broker.port.queues.consume(name, consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    registration.cancel()
    for message in consumer.messages:
        registration.requeue(message.consumer_offset, 1)
    return consumer.messages


def bodies(broker: Broker, name: str) -> list[bytes]:
    return [message.body for message in read(broker, name)]


def test_moved_messages_keep_what_they_are(broker: Broker) -> None:
    """Body, constant and extra properties and the time of birth stay; the old entries are gone."""
    source = declare(broker, "a")
    declare(broker, "b")
    route = broker.port.exchanges.route("", "a")
    assert route is not None
    template = broker.port.topics.template(
        route,
        properties={"PMQ_PROTO": "amqp", "colour": "red"},
        extra_kind=EXTRA_BASE64,
        extra_name="PMQ_AMQP",
    )
    batch = Batch()
    batch.buffer = b"onetwoXY"
    batch.add((0, 0), (0, 3), (6, 1))
    batch.add((0, 0), (3, 3), (7, 1))
    broker.port.publish(template, batch, 0, 2)
    broker.step(1.0)
    before = read(broker, "a")
    broker.step(5.0)
    assert move(broker, source, 2, to_queue(broker, "b")) == [(2, None)]
    broker.step(1.0)
    after = read(broker, "b")
    assert [m.body for m in after] == [b"one", b"two"]
    assert [m.properties["PMQ_AMQP"] for m in after] == ["WA==", "WQ=="]
    assert [m.properties["colour"] for m in after] == ["red", "red"]
    assert [m.born_ms for m in after] == [m.born_ms for m in before]
    assert after[0].store_ms >= before[0].store_ms + 5000
    assert bodies(broker, "a") == []


def test_what_belongs_to_the_old_record_stays_behind(broker: Broker) -> None:
    """Queues, checksum, settlement: however often a message moves, a record has its own only."""
    queues = [declare(broker, name) for name in ("a", "b", "c")]
    publish(broker, "a", b"x")
    broker.step()
    for source, target in zip(queues, "bc", strict=False):
        move(broker, source, 1, to_queue(broker, target))
        broker.step()
    pulled: list[bytes] = []
    broker.port.queries.pull(
        "c", 0, 0, count_max=1, bytes_max=1 << 20, callback=lambda raw, _: pulled.append(raw)
    )
    for name in (b"PMQ_Q", b"__CRC32#", b"PMQ_S", b"PMQ_P"):
        assert pulled[0].count(name + b"\x01") == 1


def test_runs_of_several_kinds_move_in_order(broker: Broker) -> None:
    """What differs in kind or in time of birth is several appends, in the queue's order."""
    source = declare(broker, "a")
    declare(broker, "b")
    for number in range(6):
        publish(broker, "a", b"%d" % number, b"%d'" % number, kind=str(number // 2))
        broker.step(0.3)
    assert move(broker, source, 12, to_queue(broker, "b")) == [(12, None)]
    broker.step()
    expected = [b"%d%s" % (number, tail) for number in range(6) for tail in (b"", b"'")]
    assert bodies(broker, "b") == expected


def test_nowhere_is_settled(broker: Broker) -> None:
    """A target may say that a message goes nowhere."""
    source = declare(broker, "a")
    publish(broker, "a", b"x", b"y")
    broker.step()
    assert move(broker, source, 1, lambda meta: None) == [(1, None)]
    assert bodies(broker, "a") == [b"y"]


@pytest.mark.parametrize("with_state_db", [True, False])
def test_a_crash_keeps_exactly_one(tmp_path: Path, with_state_db: bool) -> None:
    """Before the new record is written the old message counts; afterwards the new one only, also
    after a further restart from a snapshot that folded the move."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    source = declare(broker, "a")
    declare(broker, "b")
    publish(broker, "a", b"1", b"2", b"3")
    broker.step(1.0)
    broker.save()
    move(broker, source, 2, to_queue(broker, "b"))  # appended, not written
    broker.kill()
    broker.open()
    assert (bodies(broker, "a"), bodies(broker, "b")) == ([b"1", b"2", b"3"], [])
    broker.step(1.0)
    broker.save()
    source = broker.engine.exchanges.queues["a"]
    move(broker, source, 2, to_queue(broker, "b"))
    broker.loop.run()  # written; the lazy record of acks is not
    broker.kill()
    broker.open()
    broker.save()  # of what was folded, before anything else touches the queues
    broker.kill()
    broker.open()
    assert (bodies(broker, "a"), bodies(broker, "b")) == ([b"3"], [b"1", b"2"])
    broker.stop()


def test_messages_are_moved_from_the_disk(tmp_path: Path) -> None:
    """After a restart nothing is in memory; more than a turn's worth moves in several turns."""
    broker = Broker(tmp_path / "data", pump_count_max=7)
    declare(broker, "a")
    declare(broker, "b")
    sent = [b"%d" % number for number in range(50)]
    publish(broker, "a", *sent)
    broker.step()
    broker.restart()
    ends = move(broker, broker.engine.exchanges.queues["a"], 50, to_queue(broker, "b"))
    assert ends == []
    broker.step()
    assert ends == [(50, None)]
    assert bodies(broker, "b") == sent
    broker.stop()


def test_what_is_refused_stays_taken(broker: Broker) -> None:
    """A target that takes nothing more: those before it are moved, the rest is nobody's loss."""
    source = declare(broker, "a")
    declare(broker, "b")
    publish(broker, "a", b"1", kind="x")
    publish(broker, "a", b"2", kind="y")
    broker.step()
    good = to_queue(broker, "b")

    def target(meta: RunMeta) -> TopicTemplate:
        if meta.properties["kind"] == "y":
            raise Refused(Reason.LIMIT, "no more")
        return good(meta)

    ends = move(broker, source, 2, target)
    assert [moved for moved, _ in ends] == [1]
    assert isinstance(ends[0][1], Refused)
    assert group_of(source).cursor.outstanding_count == 1
    source.group.requeue(1, 1)
    broker.step()
    assert (bodies(broker, "a"), bodies(broker, "b")) == ([b"2"], [b"1"])


def test_what_the_log_refuses_stays_taken(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full in the middle of a run: what was appended is moved, the rest is not."""
    source = declare(broker, "a")
    declare(broker, "b")
    for body in (b"1", b"2", b"3"):
        publish(broker, "a", body)
        broker.step(0.01)  # rows of another millisecond are appended by another call
    broker.port.topics.route(
        "b", None
    )  # or the topic's own record would be the first to be appended
    log = broker.engine.core.log
    append = log.append_run
    calls: list[object] = []

    def append_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise StorageFull("no room")
        return append(*arguments, **options)

    with monkeypatch.context() as full:
        full.setattr(log, "append_run", append_once)
        ends = move(broker, source, 3, to_queue(broker, "b"))
    assert [moved for moved, _ in ends] == [1]
    assert isinstance(ends[0][1], Refused)
    assert group_of(source).cursor.outstanding_count == 2
    source.group.requeue(1, 2)
    broker.step()
    assert (bodies(broker, "a"), bodies(broker, "b")) == ([b"2", b"3"], [b"1"])


def test_queues_in_memory_move_too(broker: Broker) -> None:
    """Their entries go with the process, so the new record names no settlement."""
    source = declare(broker, "a", durable=False)
    declare(broker, "b")
    publish(broker, "a", b"1")
    broker.step()
    assert move(broker, source, 1, to_queue(broker, "b")) == [(1, None)]
    broker.step()
    (message,) = read(broker, "b")
    assert message.body == b"1"
    assert "PMQ_S" not in message.properties
    assert bodies(broker, "a") == []


def test_a_replacement_from_a_gateway_makes_no_kind_of_its_own(broker: Broker) -> None:
    """`publish_settling`: the settlement stands behind the constant part, so that a million dead
    letters are one kind of message."""
    declare(broker, "a")
    publish(broker, "a", b"1", b"2")
    broker.step()
    consumer = MessagesConsumer()
    registration = broker.port.queues.consume("a", consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    template = broker.port.topics.template(
        broker.port.topics.route("dead", None), properties={"why": "x"}
    )
    declare(broker, "dead")
    for offset in (0, 1):
        broker.port.transactions.publish_settling(
            template, batch_of(b"dead"), 0, registration, offset
        )
    broker.step()
    registration.cancel()
    dead = MessagesConsumer()
    broker.port.queues.consume("dead", dead, exclusive=False, owner=OWNER).ready()
    broker.step()
    assert [m.properties["PMQ_S"].partition(".")[2] for m in dead.messages] == ["0", "1"]
    assert dead.run_counts == [1]
    assert broker.port.queues.info("a", owner=OWNER).ready_count == 0
    broker.step(1.0)
    broker.restart()
    assert bodies(broker, "a") == []
