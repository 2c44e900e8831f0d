"""Priority queues: the most important first, in order within a priority, through everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from polymq.broker.messages.dead_letter_history import history_of
from polymq.broker.port import Delivery, QueueConsumer
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


def fill(broker: Broker, *names: str) -> None:
    """Publish `b5` with priority 5, and so on."""
    for name in names:
        publish(broker, "q", name.encode(), priority=int(name[1:]))


def test_the_most_important_come_first(broker: Broker) -> None:
    """Measured against RabbitMQ with a maximum of 5: beyond it counts as 5, without as 0."""
    declare(broker, "q", x_max_priority=5)
    fill(broker, "a1", "b5", "c0", "d9", "e5", "f0")
    broker.step()
    assert ready(broker, "q") == 6
    assert look(broker, "q") == [b"b5", b"d9", b"e5", b"a1", b"c0", b"f0"]


def test_a_run_of_one_priority_stays_a_run(broker: Broker) -> None:
    """Ten thousand messages are one index entry each, and no object."""
    declare(broker, "q", x_max_priority=10)
    bodies = [b"%d" % number for number in range(1000)]
    publish(broker, "q", *bodies, priority=3)
    publish(broker, "q", b"now", priority=9)
    broker.step()
    consumer, _ = consume(broker, "q", credit=5000)
    assert consumer.bodies == [b"now", *bodies]


def test_what_is_given_back_keeps_its_place_within_its_priority(broker: Broker) -> None:
    """Requeued before newer ones of its own priority, behind higher ones."""
    declare(broker, "q", x_max_priority=5)
    fill(broker, "a5", "b5", "c1", "d1")
    broker.step()
    consumer, registration = consume(broker, "q", credit=3)
    assert consumer.bodies == [b"a5", b"b5", b"c1"]
    offsets = [offset for offset, _, _ in consumer.got]
    registration.requeue(offsets[2], 1)
    registration.requeue(offsets[0], 1)
    registration.settle(offsets[1], 1)
    fill(broker, "e5")
    broker.step()
    consumer.left = 9
    registration.ready()
    broker.step()
    assert [(body, flag) for _, body, flag in consumer.got[3:]] == [
        (b"a5", True),
        (b"e5", False),
        (b"c1", True),
        (b"d1", False),
    ]


def test_an_important_message_overtakes_what_waits_for_credit(broker: Broker) -> None:
    """One message at a time, the most important of that moment."""
    declare(broker, "q", x_max_priority=5)
    consumer, registration = consume(broker, "q", credit=1)
    fill(broker, "a1", "b1")
    broker.step()
    fill(broker, "c4")
    broker.step()
    assert consumer.bodies == [b"a1"]
    for _ in range(2):
        consumer.left = 1
        registration.ready()
        broker.step()
    assert consumer.bodies == [b"a1", b"c4", b"b1"]


def test_get_purge_delete_and_counts(broker: Broker) -> None:
    """All levels are one queue."""
    declare(broker, "q", x_max_priority=5)
    fill(broker, "a1", "b3", "c0")
    broker.step()
    got: list[tuple[bytes, int]] = []
    holders: list[tuple[QueueConsumer, Delivery]] = []

    def take(delivery: Delivery | None, holder: QueueConsumer, left: int) -> None:
        if delivery is not None:
            got.append((delivery.messages()[0].body, left))
            holders.append((holder, delivery))

    for _ in range(4):
        broker.port.queues.get("q", take, owner=OWNER)
        broker.step()
    assert got == [(b"b3", 2), (b"a1", 1), (b"c0", 0)]
    for holder, delivery in holders:
        holder.requeue(delivery.first_offset, 1)
    assert broker.port.queues.purge("q", owner=OWNER)[0] == 3
    fill(broker, "d1", "e2")
    broker.step()
    count, _ = broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    assert count == 2
    declare(broker, "q", x_max_priority=5)
    assert ready(broker, "q") == 0


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill", "snapshot and kill"])
def test_levels_survive(tmp_path: Path, way: str, with_state_db: bool) -> None:
    """Which levels there are, what is in them, what was settled, and what is flagged."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    declare(broker, "q", x_max_priority=200)
    fill(broker, "a7", "b150", "c0", "d150")
    broker.step()
    consumer, registration = consume(broker, "q", credit=2)
    registration.settle(consumer.got[0][0], 1)
    broker.step(1.0)
    if way == "stop":
        broker.stop()
    else:
        if way.startswith("snapshot"):
            broker.save()
        broker.kill()
    broker.open()
    fill(broker, "e150")
    broker.step()
    consumer, _ = consume(broker, "q")
    assert [(body, flag) for _, body, flag in consumer.got] == [
        (b"d150", True),
        (b"e150", False),
        (b"a7", False),
        (b"c0", False),
    ]
    broker.stop()


def test_levels_are_read_from_the_disk_in_order(tmp_path: Path) -> None:
    """While a reader thread gets the higher level, nothing of the lower one overtakes."""
    broker = Broker(tmp_path / "data", pump_count_max=10)
    declare(broker, "q", x_max_priority=5)
    sent = []
    for priority in (1, 5, 3):
        bodies = [b"%d.%d" % (priority, number) for number in range(30)]
        publish(broker, "q", *bodies, priority=priority)
        sent.append((priority, bodies))
    broker.step()
    broker.restart()
    consumer, _ = consume(broker, "q")
    for _ in range(20):
        broker.step()
    assert consumer.bodies == [body for _, bodies in sorted(sent, reverse=True) for body in bodies]
    broker.stop()


class LateReaders:
    """Reader threads that answer when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(
        self, read: Callable[[], bytes], done: Callable[[bytes | None, Exception | None], None]
    ) -> None:
        self.waiting.append(lambda: done(read(), None))

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer()


def test_nothing_overtakes_a_reader_thread(broker: Broker) -> None:
    """A live message of a lower priority waits until the disk has answered for the higher one."""
    declare(broker, "q", x_max_priority=5)
    fill(broker, "a5")
    broker.step()
    broker.restart()
    readers = LateReaders()
    broker.engine.core.reading.readers = readers
    consumer, _ = consume(broker, "q")
    fill(broker, "b1")
    broker.step()
    assert consumer.bodies == []
    while readers.waiting:
        readers.answer()
        broker.step()
    assert consumer.bodies == [b"a5", b"b1"]


def test_rules_hold_within_each_level(broker: Broker) -> None:
    """Times to live, dead letters, the delivery limit."""
    declare(broker, "dead")
    declare(
        broker,
        "q",
        x_max_priority=5,
        x_message_ttl=1000,
        x_delivery_limit=0,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    fill(broker, "a2", "b4", "c0")
    broker.step()
    consumer, registration = consume(broker, "q", credit=2)
    registration.reject(consumer.got[0][0], 1)
    registration.requeue(consumer.got[1][0], 1)
    broker.step(1.0)
    broker.step()
    dead, _ = consume(broker, "dead")
    causes = [
        (m.body, history_of(m.properties).deaths[0].cause, m.properties.get("PMQ_X", "")[8:])
        for m in dead.messages
    ]
    assert causes == [
        (b"b4", "rejected", "04"),
        (b"a2", "delivery_limit", "02"),
        (b"c0", "expired", ""),
    ]
    assert ready(broker, "q") == 0


def test_levels_are_bounded_by_the_maximum(broker: Broker) -> None:
    """A level is made when it is needed, and none beyond x-max-priority."""
    declare(broker, "q", x_max_priority=3)
    levels = broker.engine.exchanges.queues["q"].queue.levels
    assert levels is not None
    assert list(levels.groups) == [0]
    for priority in range(256):
        publish(broker, "q", b"x", priority=priority)
    broker.step()
    assert sorted(levels.groups) == [0, 1, 2, 3]


@pytest.mark.parametrize("durable", [True, False])
def test_any_course_gives_what_a_sorted_list_gives(broker: Broker, durable: bool) -> None:
    """Random publishes, credit, acks and requeues by two consumers against a plain model."""
    declare(broker, "q", durable=durable, x_max_priority=4)
    rng = random.Random(11)
    model: list[tuple[int, int]] = []  # (-priority, number) that are ready
    consumer = MessagesConsumer(0)
    registration = broker.port.queues.consume("q", consumer, exclusive=False, owner=OWNER)
    held: dict[int, tuple[int, int]] = {}
    for number in range(600):
        match rng.randrange(5):
            case 0 | 1:
                priority = rng.randrange(6)
                publish(broker, "q", b"%d" % number, priority=priority)
                model.append((-min(priority, 4), number))
            case 2:
                consumer.left = rng.randrange(1, 4)
                registration.ready()
            case 3 if held:
                offset = rng.choice(list(held))
                registration.requeue(offset, 1)
                model.append(held.pop(offset))
            case 4 if held:
                offset = rng.choice(list(held))
                registration.settle(offset, 1)
                del held[offset]
        broker.step()
        consumer.left = 0
        for offset, body, _ in consumer.got:
            model.sort()
            expected = model.pop(0)
            assert int(body) == expected[1]
            held[offset] = expected
        consumer.got.clear()
        assert ready(broker, "q") == len(model)
