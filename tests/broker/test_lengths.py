"""A queue's bounds in messages and bytes: what goes, what is refused, and what is counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.messages.dead_letter_history import history_of
from tests.broker.queue_bench import (
    OWNER,
    MessagesConsumer,
    bind,
    consume,
    declare,
    exchange,
    look,
    publish,
    ready,
)
from tests.harness.broker import Broker, batch_of


def test_the_oldest_give_way(broker: Broker) -> None:
    """drop-head: what is newest stays, run by run."""
    declare(broker, "q", x_max_length=3)
    publish(broker, "q", b"1", b"2")
    broker.step()
    assert ready(broker, "q") == 2
    publish(broker, "q", b"3", b"4", b"5")
    broker.step()
    assert ready(broker, "q") == 3
    publish(broker, "q", *[b"%d" % n for n in range(6, 20)])
    broker.step()
    assert look(broker, "q") == [b"17", b"18", b"19"]


def test_a_bound_of_zero_is_for_waiting_consumers_only(broker: Broker) -> None:
    """What nobody takes at once is gone."""
    declare(broker, "q", x_max_length=0)
    publish(broker, "q", b"lost")
    broker.step()
    consumer, _ = consume(broker, "q")
    publish(broker, "q", b"taken")
    broker.step()
    assert consumer.bodies == [b"taken"]


def test_unacknowledged_messages_do_not_count_until_they_come_back(broker: Broker) -> None:
    """RabbitMQ's order: what is given back into a full queue is its head, and goes first."""
    declare(broker, "q", x_max_length=2)
    consumer, registration = consume(broker, "q", credit=2)
    publish(broker, "q", b"a", b"b")
    broker.step()
    publish(broker, "q", b"c", b"d")
    broker.step()
    assert ready(broker, "q") == 2
    registration.requeue(0, 2)
    broker.step()
    registration.cancel()
    assert look(broker, "q") == [b"c", b"d"]
    assert consumer.bodies == [b"a", b"b"]


def test_dropped_messages_are_dead_letters(broker: Broker) -> None:
    """Reason maxlen, in order."""
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    declare(broker, "q", x_max_length=1, x_dead_letter_exchange="dlx")
    publish(broker, "q", b"1", b"2", b"3")
    broker.step()
    broker.step()
    consumer, _ = consume(broker, "dead")
    assert consumer.bodies == [b"1", b"2"]
    assert history_of(consumer.messages[0].properties).deaths[0].cause == "maxlen"


def stored_size(broker: Broker, size: int) -> int:
    """Bytes of a stored message with a body of this size (the queue's name has one letter)."""
    declare(broker, "m", x_max_length_bytes=1 << 30)
    publish(broker, "m", b"x" * size)
    broker.step()
    rules = broker.group("m").rules
    assert rules is not None
    assert rules.lengths is not None
    return rules.lengths.bytes


def test_bytes_are_bounded_too(broker: Broker) -> None:
    """As stored; a message that is larger than the bound goes at once."""
    size = stored_size(broker, 100)
    declare(broker, "q", x_max_length_bytes=3 * size)
    publish(broker, "q", *[b"%d" % n + b"x" * 99 for n in range(5)])
    broker.step()
    assert [body[:1] for body in look(broker, "q")] == [b"2", b"3", b"4"]
    publish(broker, "q", b"x" * 5000)
    broker.step()
    assert ready(broker, "q") == 0


@pytest.mark.parametrize("durable", [True, False])
def test_bytes_are_counted_through_everything_that_happens(broker: Broker, durable: bool) -> None:
    """Deliveries, acks, requeues, rejects, purges: the count is what a new count would give."""
    declare(broker, "q", durable=durable, x_max_length_bytes=1 << 30, x_max_length=40)
    rules = broker.group("q").rules
    assert rules is not None
    lengths = rules.lengths
    assert lengths is not None
    rng = random.Random(5)
    consumer = MessagesConsumer(0)
    registration = broker.port.queues.consume("q", consumer, exclusive=False, owner=OWNER)
    held: list[int] = []
    for _ in range(400):
        match rng.randrange(6):
            case 0 | 1:
                bodies = [b"x" * rng.randrange(300) for _ in range(rng.randrange(1, 6))]
                publish(broker, "q", *bodies)
            case 2:
                consumer.left = rng.randrange(4)
                registration.ready()
            case 3 if held:
                registration.requeue(held.pop(rng.randrange(len(held))), 1)
            case 4 if held:
                registration.settle(held.pop(rng.randrange(len(held))), 1)
            case 5 if rng.randrange(10) == 0:
                broker.port.queues.purge("q", owner=OWNER)
        broker.step()
        consumer.left = 0
        held += [offset for offset, _, _ in consumer.got]
        consumer.got.clear()
        counted = lengths.bytes
        lengths.start()
        assert counted == lengths.bytes


def test_bytes_of_a_backlog_on_the_disk(tmp_path: Path) -> None:
    """After a restart the entries are on the disk: they are counted at the start, and the oldest
    go by what the disk says."""
    broker = Broker(tmp_path / "data", pump_count_max=50)
    size = stored_size(broker, 100)
    declare(broker, "q", x_max_length_bytes=500 * size)
    for number in range(5):
        publish(broker, "q", *[b"%03d" % (number * 100 + k) + b"x" * 97 for k in range(100)])
    broker.step()
    broker.save()
    broker.restart()
    rules = broker.group("q").rules
    assert rules is not None
    lengths = rules.lengths
    assert lengths is not None
    assert lengths.bytes == 500 * size
    publish(broker, "q", *[b"%03d" % (500 + k) + b"x" * 97 for k in range(120)])
    for _ in range(10):
        broker.step()
    assert ready(broker, "q") == 500
    assert lengths.bytes == 500 * size
    consumer, _ = consume(broker, "q", credit=10_000)
    for _ in range(20):
        broker.step()
    assert consumer.bodies[0][:3] == b"120"
    assert len(consumer.bodies) == 500
    assert lengths.bytes == 0
    broker.stop()


# --- refusing ------------------------------------------------------------------------------------


def offer(broker: Broker, queue: str, *bodies: bytes, source: str = "") -> int:
    """Publish; how many the publisher is told were not taken."""
    route = broker.port.exchanges.route(source, queue)
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.publish(template, batch_of(*bodies), 0, len(bodies))
    return template.overflowed


def test_a_full_queue_refuses_what_does_not_fit(broker: Broker) -> None:
    """reject-publish: the rest of the run; also what is not flushed yet counts."""
    declare(broker, "q", x_max_length=3, x_overflow="reject-publish")
    assert offer(broker, "q", b"1", b"2") == 0
    assert offer(broker, "q", b"3", b"4", b"5") == 2
    assert offer(broker, "q", b"6") == 1
    broker.step()
    assert ready(broker, "q") == 3
    consumer, registration = consume(broker, "q", credit=1)
    registration.settle(0, 1)
    assert offer(broker, "q", b"7", b"8") == 1
    broker.step()
    consumer.left = 9
    registration.ready()
    broker.step()
    assert consumer.bodies == [b"1", b"2", b"3", b"7"]
    assert offer(broker, "q", b"9") == 0


def test_other_queues_take_what_one_refuses(broker: Broker) -> None:
    """Each has its own bound; the topic has all messages."""
    exchange(broker, "all")
    for name, bound in (("small", 1), ("middle", 3), ("large", 100)):
        declare(broker, name, x_max_length=bound, x_overflow="reject-publish")
        bind(broker, name, "all")
    declare(broker, "open")
    bind(broker, "open", "all")
    assert offer(broker, "", *[b"%d" % n for n in range(5)], source="all") == 4
    broker.step()
    assert [ready(broker, name) for name in ("small", "middle", "large", "open")] == [1, 3, 5, 5]
    assert look(broker, "middle") == [b"0", b"1", b"2"]
    topic = broker.port.topics.info("all")
    assert topic is not None
    assert topic.max_offsets == (5,)
    broker.restart()
    assert [ready(broker, name) for name in ("small", "middle", "large", "open")] == [1, 0, 5, 5]


def test_refused_messages_can_be_dead_letters(broker: Broker) -> None:
    """reject-publish-dlx: the publisher is told, and the message is kept."""
    declare(broker, "dead")
    declare(
        broker,
        "q",
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    assert offer(broker, "q", b"1", b"2") == 1
    broker.step()
    consumer, _ = consume(broker, "dead")
    assert consumer.bodies == [b"2"]
    (death,) = history_of(consumer.messages[0].properties).deaths
    assert (death.cause, death.queue) == ("maxlen", "q")


def test_bytes_are_refused_too(broker: Broker) -> None:
    """About as many as fit; never one more than the bound, as it is stored."""
    size = stored_size(broker, 1000)
    declare(broker, "q", x_max_length_bytes=3 * size, x_overflow="reject-publish")
    assert offer(broker, "q", *[b"x" * 1000] * 5) == 2
    broker.step()
    assert offer(broker, "q", b"x" * 1000) == 1
    assert ready(broker, "q") == 3


def test_a_full_queue_lets_in_again_when_its_settings_go(broker: Broker) -> None:
    """A queue that was deleted and declared without a bound: the template is not valid any more,
    and the next one is without gates."""
    declare(broker, "q", x_max_length=1, x_overflow="reject-publish")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.publish(template, batch_of(b"1", b"2"), 0, 2)
    assert template.overflowed == 1
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    declare(broker, "q")
    assert not template.valid
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.publish(template, batch_of(b"3", b"4"), 0, 2)
    assert template.overflowed == 0
    broker.step()
    assert look(broker, "q") == [b"3", b"4"]


# --- with priorities ------------------------------------------------------------------------------


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_least_important_give_way_first(broker: Broker, seed: int, in_bytes: bool) -> None:
    """drop-head over all levels: any course leaves what a sorted list leaves; dead letters come in
    the order of their going."""
    chance = random.Random(seed)
    bound: dict[str, Any] = {"x_max_length": 6}
    if in_bytes:
        declare(broker, "s", x_max_priority=4)
        publish(broker, "s", b"000", priority=1)
        broker.step()
        levels = broker.engine.exchanges.queues["s"].queue.levels
        assert levels is not None
        entry = levels.groups[1].queue.index.read_hot(0, 1)
        assert entry is not None
        bound = {"x_max_length_bytes": 7 * int.from_bytes(entry[8:12], "big") - 1}
    declare(broker, "dead")
    declare(
        broker,
        "q",
        x_max_priority=4,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
        **bound,
    )
    stored: list[tuple[int, int]] = []  # (priority, number), as they stand
    gone: list[int] = []
    for number in range(60):
        # Zero has no property and makes a smaller record, so bytes are compared without it.
        priority = chance.randint(1 if in_bytes else 0, 4)
        publish(broker, "q", b"%03d" % number, priority=priority)
        broker.step()
        stored.append((priority, number))
        if len(stored) > 6:
            stored.sort()
            gone.append(stored.pop(0)[1])
        assert ready(broker, "q") == len(stored)
    order = sorted(stored, key=lambda one: (-one[0], one[1]))
    assert look(broker, "q") == [b"%03d" % number for _, number in order]
    assert look(broker, "dead") == [b"%03d" % number for number in gone]


def test_what_comes_back_counts_again_with_its_priority(broker: Broker) -> None:
    declare(broker, "q", x_max_priority=4, x_max_length=3)
    publish(broker, "q", b"low1", b"low2", priority=1)
    publish(broker, "q", b"high", priority=4)
    broker.step()
    consumer, registration = consume(broker, "q")
    registration.cancel()
    publish(broker, "q", b"mid1", b"mid2", priority=2)
    broker.step()
    for offset, _, _ in consumer.got:
        registration.requeue(offset, 1)
    broker.step()
    assert look(broker, "q") == [b"high", b"mid1", b"mid2"]


def test_a_full_queue_with_priorities_refuses_whatever_the_priority(tmp_path: Path) -> None:
    """reject-publish counts all levels, also after a restart."""
    broker = Broker(tmp_path / "data")
    declare(broker, "q", x_max_priority=4, x_max_length=3, x_overflow="reject-publish")
    publish(broker, "q", b"1", b"2", priority=1)
    publish(broker, "q", b"3", priority=4)
    assert offer(broker, "q", b"4") == 1
    broker.step()
    broker.restart()
    assert offer(broker, "q", b"5") == 1
    assert look(broker, "q") == [b"3", b"1", b"2"]
    assert offer(broker, "q", b"6") == 0
    broker.stop()
