"""How often a message was given back, and what happens when it was too often."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.dead_letter_history import history_of
from polymq.broker.port import Delivery, Position, QueueConsumer
from polymq.broker.queues.delivery_counts import DeliveryCounts
from polymq.broker.state.journal import Op
from tests.broker.queue_bench import (
    OWNER,
    MessagesConsumer,
    consume,
    declare,
    look,
    publish,
    ready,
)
from tests.harness.broker import Broker


class CountingConsumer(MessagesConsumer):
    """Keeps with each body how often it came before."""

    def __init__(self, credit: int = 1000) -> None:
        super().__init__(credit)
        self.counts: list[tuple[bytes, int]] = []

    def deliver(self, delivery: Delivery) -> None:
        self.counts += [(m.body, delivery.delivery_count) for m in delivery.messages()]
        super().deliver(delivery)


def limited(broker: Broker, limit: int) -> None:
    declare(broker, "dead")
    declare(
        broker,
        "q",
        x_delivery_limit=limit,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )


def attach(broker: Broker, credit: int = 1000) -> tuple[CountingConsumer, QueueConsumer]:
    consumer = CountingConsumer(credit)
    registration = broker.port.queues.consume("q", consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    return consumer, registration


def test_a_message_that_comes_back_too_often_is_given_up(broker: Broker) -> None:
    """A limit of two: three deliveries, then a dead letter with its reason. Others stay."""
    limited(broker, 2)
    publish(broker, "q", b"poison", b"good")
    broker.step()
    consumer, registration = attach(broker, credit=1)
    for _ in range(3):
        registration.requeue(0, 1)
        consumer.left = 1
        broker.step()
    assert consumer.counts == [(b"poison", 0), (b"poison", 1), (b"poison", 2), (b"good", 0)]
    dead, _ = consume(broker, "dead")
    assert dead.bodies == [b"poison"]
    assert history_of(dead.messages[0].properties).deaths[0].cause == "delivery_limit"


def test_a_stretch_is_split_where_the_counts_differ(broker: Broker) -> None:
    """Each delivery says one count, also when all came back together."""
    limited(broker, 5)
    publish(broker, "q", b"a", b"b", b"c", b"d")
    broker.step()
    consumer, registration = attach(broker)
    registration.requeue(1, 2)
    broker.step()
    registration.requeue(0, 4)
    broker.step()
    assert consumer.counts[4:6] == [(b"b", 1), (b"c", 1)]
    assert consumer.counts[6:] == [(b"a", 1), (b"b", 2), (b"c", 2), (b"d", 1)]


def test_without_a_limit_nothing_is_counted(broker: Broker) -> None:
    """A message may come back for ever, and says nothing of it."""
    declare(broker, "q")
    publish(broker, "q", b"a")
    broker.step()
    consumer, registration = attach(broker)
    for _ in range(300):
        registration.requeue(0, 1)
        broker.step()
    assert len(consumer.counts) == 301
    assert {count for _, count in consumer.counts} == {0}


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill", "snapshot and kill"])
def test_counts_flags_and_order_survive(tmp_path: Path, way: str, with_state_db: bool) -> None:
    """In the lazy record of acks and in the snapshot; a restart by itself is no delivery."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    limited(broker, 2)
    publish(broker, "q", b"a", b"b", b"c", b"d")
    broker.step()
    consumer, registration = attach(broker, credit=3)
    registration.requeue(1, 2)
    consumer.left = 2
    broker.step()
    registration.requeue(2, 1)
    broker.step(1.0)
    if way == "stop":
        broker.stop()
    else:
        if way.startswith("snapshot"):
            broker.save()
        broker.kill()
    broker.open()
    consumer, registration = attach(broker)
    assert consumer.counts == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 0)]
    assert [flag for _, _, flag in consumer.got] == [True, True, True, False]
    registration.requeue(2, 1)
    broker.step()
    assert look(broker, "dead") == [b"c"]
    broker.stop()


def test_settled_messages_keep_no_count(broker: Broker) -> None:
    """The window of counts follows the oldest message that is not settled."""
    limited(broker, 9)
    _, registration = attach(broker, credit=5000)
    for offset in range(1000):
        publish(broker, "q", b"x")
        broker.step()
        registration.requeue(offset, 1)
        broker.step()
        registration.settle(offset, 1)
    rules = broker.group("q").rules
    assert rules is not None
    assert rules.delivery_counts is not None
    assert len(rules.delivery_counts._times) <= 1
    assert ready(broker, "q") == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 8), st.booleans()), min_size=1, max_size=20
    )
)
def test_counts_are_those_of_a_table(steps: list[tuple[int, int, bool]]) -> None:
    """Against the obvious implementation; what is told as a change makes an equal one."""
    counts = DeliveryCounts()
    copy = DeliveryCounts()
    table: dict[int, int] = {}
    floor = 0
    for first, count, settle in steps:
        first += floor
        if settle:
            floor += 1
        first = max(first, floor)
        counts.add(first, count, floor)
        for offset in range(first, first + count):
            table[offset] = table.get(offset, 0) + 1
        for start, size, times in counts.take_changes():
            copy.load(start, size, times, floor)
        assert list(copy.stretches(floor)) == list(counts.stretches(floor))
        for offset in range(floor, floor + 60):
            wanted = table.get(offset, 0)
            assert counts.alike(offset, 1) == (1, wanted)
            assert copy.alike(offset, 1)[1] == wanted
            length, times = counts.alike(offset, 60)
            assert {table.get(at, 0) for at in range(offset, offset + length)} == {times}


def test_a_count_is_said_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the record of acks that follows; later ones say nothing of a queue that is quiet."""
    limited(broker, 5)
    publish(broker, "q", b"a", b"b")
    broker.step()
    journal = broker.engine.core.journal
    write, ops = journal.write, []

    def keep(op: Op) -> Position:
        ops.append(op)
        return write(op)

    monkeypatch.setattr(journal, "write", keep)
    _, registration = attach(broker, credit=1)
    registration.requeue(0, 1)
    broker.step(1.0)
    attach(broker)
    broker.step(1.0)
    assert ["c" in op for op in ops] == [True, False]


def test_counts_that_the_log_did_not_take_are_written_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when a message is given back; when there is room again, the count is noted,
    and a restart knows it. Queues without a limit are noted in the same record."""
    limited(broker, 5)
    declare(broker, "plain")
    publish(broker, "q", b"a")
    publish(broker, "plain", b"b")
    broker.step()
    journal = broker.engine.core.journal

    def full(op: Op) -> Position:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "write", full)
        for name in ("q", "plain"):
            consumer, registration = consume(broker, name)
            registration.cancel()
            registration.requeue(consumer.got[0][0], 1)
        broker.step(1.0)
    consumer, registration = consume(broker, "plain")
    registration.settle(consumer.got[0][0], 1)
    broker.step(1.0)
    broker.kill()
    broker.open()
    again, _ = attach(broker)
    assert again.counts == [(b"a", 1)]


def test_what_a_stop_gives_back_does_not_count(broker: Broker) -> None:
    """It keeps its count and its place, is flagged, and is not given up at its limit."""
    limited(broker, 1)
    publish(broker, "q", b"a", b"b")
    broker.step()
    for times in (0, 1, 1):
        consumer, registration = attach(broker)
        assert consumer.counts == [(b"a", times), (b"b", times)]
        if times:
            broker.engine.core.begin_stop()
        registration.cancel()
        registration.requeue(0, 2)
        if times:
            broker.restart()
    assert look(broker, "dead") == []
    again, _ = attach(broker)
    assert again.counts == [(b"a", 1), (b"b", 1)]
