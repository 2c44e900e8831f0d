"""What queues hand out in one iteration of the loop: others have their turn in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from polymq.broker.pacing.costs import HANDED_AT_ONCE, MESSAGE_COST, RUN_COST, SESSION_COST
from polymq.broker.pacing.share import Share
from polymq.broker.port import REST, Delivery, RunMeta
from tests.broker.queue_bench import OWNER, consume, declare, publish
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, at_qos

COUNT = 1000
BODIES = [b"%d" % number for number in range(COUNT)]


class Iterations:
    """A broker, and what was counted in each callback of its loop."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory, inflight_count_start=COUNT)
        self.counts = [0]
        soon = self.broker.loop.call_soon

        def call_soon(callback: Callable[[], object]) -> None:
            def counted() -> None:
                self.counts.append(0)
                callback()

            soon(counted)

        self.broker.loop.call_soon = call_soon  # type: ignore[method-assign]


@pytest.fixture
def iterations(tmp_path: Path) -> Iterator[Iterations]:
    iterations = Iterations(tmp_path)
    yield iterations
    iterations.broker.stop()


@pytest.fixture
def broker(iterations: Iterations) -> Broker:
    return iterations.broker


class Counting(SpyConsumer):
    """Counts what it gets in each callback, messages or runs."""

    def __init__(self, iterations: Iterations, *, runs: bool = False) -> None:
        super().__init__(10 * COUNT)
        self.deliveries = 0
        self._iterations = iterations
        self._runs = runs

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries += 1
        self._iterations.counts[-1] += len(delivery.runs) if self._runs else delivery.count
        super().deliver(delivery)


def every_kind(_meta: RunMeta) -> bool:
    return True


def check(counts: list[int], most: int) -> None:
    """All came, in steps that are neither too large nor for nothing."""
    assert sum(counts) == COUNT
    assert max(counts) <= most
    assert len([count for count in counts if count]) <= 4 * COUNT // most


@pytest.mark.parametrize("live", [True, False])
def test_messages_that_are_taken_apart_come_in_shares(
    iterations: Iterations, broker: Broker, live: bool
) -> None:
    declare(broker, "work")
    consumer = Counting(iterations)
    registration = broker.port.queues.consume(
        "work", consumer, exclusive=False, owner=OWNER, takes_apart=every_kind
    )
    if live:
        registration.ready()
    publish(broker, "work", *BODIES)
    broker.step()
    registration.ready()
    broker.step()
    assert consumer.got == [(offset, body, False) for offset, body in enumerate(BODIES)]
    check(iterations.counts, HANDED_AT_ONCE // MESSAGE_COST)


def test_a_run_that_is_still_in_memory_comes_in_shares(
    iterations: Iterations, broker: Broker
) -> None:
    declare(broker, "work")
    consumer = Counting(iterations)
    broker.port.queues.consume(
        "work", consumer, exclusive=False, owner=OWNER, takes_apart=every_kind
    ).ready()
    some = BODIES[: 3 * HANDED_AT_ONCE // MESSAGE_COST // 2]
    publish(broker, "work", *some)
    broker.step()
    assert consumer.bodies == some
    assert max(iterations.counts) <= HANDED_AT_ONCE // MESSAGE_COST


def test_bytes_of_properties_count(iterations: Iterations, broker: Broker) -> None:
    declare(broker, "work")
    publish(broker, "work", *BODIES, headers="x" * 5000)
    broker.step()
    consumer = Counting(iterations)
    broker.port.queues.consume(
        "work", consumer, exclusive=False, owner=OWNER, takes_apart=every_kind
    ).ready()
    broker.step()
    assert consumer.bodies == BODIES
    assert max(iterations.counts) <= 1 + HANDED_AT_ONCE // 5000


def test_runs_of_one_message_come_in_shares(iterations: Iterations, broker: Broker) -> None:
    declare(broker, "work")
    for number, body in enumerate(BODIES):
        publish(broker, "work", body, kind=f"{number}")
    broker.step()
    consumer = Counting(iterations, runs=True)
    broker.port.queues.consume("work", consumer, exclusive=False, owner=OWNER).ready()
    broker.step()
    assert consumer.bodies == BODIES
    check(iterations.counts, 1 + HANDED_AT_ONCE // RUN_COST)


def test_no_pump_hands_out_more_than_its_limit(tmp_path: Path) -> None:
    """Nor after one that was cut short by the share, just below the limit."""
    most = 6 * HANDED_AT_ONCE // RUN_COST // 5
    broker = Broker(tmp_path, pump_count_max=most)
    declare(broker, "work")
    for number, body in enumerate(BODIES[:most]):
        publish(broker, "work", body, kind=f"{number}")
    publish(broker, "work", *BODIES)
    broker.step()
    counts: list[int] = []

    class Consumer(SpyConsumer):
        def deliver(self, delivery: Delivery) -> None:
            counts.append(delivery.count)
            super().deliver(delivery)

    consumer = Consumer(10 * COUNT)
    broker.port.queues.consume("work", consumer, exclusive=False, owner=OWNER).ready()
    broker.step()
    assert consumer.bodies == BODIES[:most] + BODIES
    assert most // 2 < counts[0] < most, "the first was cut short"
    assert max(counts) <= most
    broker.stop()


def test_a_plain_run_comes_at_once(iterations: Iterations, broker: Broker) -> None:
    declare(broker, "work")
    publish(broker, "work", *BODIES)
    broker.step()
    consumer = Counting(iterations)
    broker.port.queues.consume("work", consumer, exclusive=False, owner=OWNER).ready()
    assert consumer.deliveries == 1
    assert consumer.bodies == BODIES


def test_what_was_delivered_before_is_taken_apart_where_deliveries_are_counted(
    iterations: Iterations, broker: Broker
) -> None:
    """The count is written into each message."""
    declare(broker, "work", x_queue_type="quorum", x_delivery_limit=5)
    publish(broker, "work", *BODIES)
    broker.step()
    _, registration = consume(broker, "work", credit=COUNT)
    registration.requeue(0, COUNT)
    registration.cancel()
    consumer = Counting(iterations)
    broker.port.queues.consume(
        "work", consumer, exclusive=False, owner=OWNER, takes_apart=lambda meta: False
    ).ready()
    broker.step()
    assert consumer.bodies == BODIES
    assert max(iterations.counts) <= HANDED_AT_ONCE // MESSAGE_COST


def test_queues_share_and_none_waits_for_all_of_another(
    iterations: Iterations, broker: Broker
) -> None:
    consumers = []
    for name in ("one", "two", "three"):
        declare(broker, name)
        publish(broker, name, *BODIES)
    broker.step()
    ends = []

    class Ending(Counting):
        def deliver(self, delivery: Delivery) -> None:
            super().deliver(delivery)
            ends.append((delivery.first_offset + delivery.count, self))

    for name in ("one", "two", "three"):
        consumers.append(Ending(iterations))
        broker.port.queues.consume(
            name, consumers[-1], exclusive=False, owner=OWNER, takes_apart=every_kind
        ).ready()
    broker.step()
    assert [consumer.bodies for consumer in consumers] == [BODIES] * 3
    assert max(iterations.counts) <= HANDED_AT_ONCE // MESSAGE_COST
    # Whoever is done had its last share when all others had as many, or one less.
    last = [consumer for end, consumer in ends if end == COUNT]
    assert len(last) == 3
    assert {consumer for _, consumer in ends[-5:]} >= set(last[1:])


def test_many_queues_have_one_share(iterations: Iterations, broker: Broker) -> None:
    names = [f"work{number}" for number in range(COUNT // 5)]
    for name in names:
        declare(broker, name)
        publish(broker, name, *BODIES[:5])
    broker.step()
    consumers = [Counting(iterations) for _ in names]
    for name, consumer in zip(names, consumers, strict=True):
        broker.port.queues.consume(
            name, consumer, exclusive=False, owner=OWNER, takes_apart=every_kind
        ).ready()
    broker.step()
    assert [consumer.bodies for consumer in consumers] == [BODIES[:5]] * len(names)
    check(iterations.counts, HANDED_AT_ONCE // MESSAGE_COST)


def test_a_session_gets_topics_of_its_backlog_in_shares(
    iterations: Iterations, broker: Broker
) -> None:
    """Each has a record with its packet ids."""
    session, _ = connect(broker, "c")
    session.subscribe(("orders", REST), at_qos(1))
    broker.step()
    session.disconnect()
    for number, body in enumerate(BODIES):
        broker.publish(broker.template("orders", f"{number}"), body)
    broker.step()
    written = broker.engine.core.journal.write

    def write(op: dict[str, object]) -> int:
        iterations.counts[-1] += op["op"] == "assign"
        return written(op)

    broker.engine.core.journal.write = write  # type: ignore[assignment,method-assign]
    _, link = connect(broker, "c", credit=COUNT)
    assert link.bodies == BODIES
    check(iterations.counts, 1 + HANDED_AT_ONCE // SESSION_COST)


class Loop:
    """Calls back when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def test_a_share_that_is_not_used_up_asks_for_nothing() -> None:
    loop = Loop()
    share = Share(loop.call_soon)
    share.spend(HANDED_AT_ONCE - 1)
    assert not loop.soon
    share.spend(1)
    assert share.left == 0
    loop.turn()
    assert share.left == HANDED_AT_ONCE
    assert not loop.soon


@pytest.mark.parametrize(("part", "wanted"), [(2, ["ab", "ca", "ca", ""]), (8, ["abc", "ac", "a"])])
def test_who_waits_is_served_in_order_and_not_twice_in_one_turn(
    part: int, wanted: list[str]
) -> None:
    """Each spends such a part of the share in each turn."""
    loop = Loop()
    share = Share(loop.call_soon)
    served: list[str] = []

    def pump(name: str, count: int) -> None:
        served.append(name)
        share.spend(HANDED_AT_ONCE // part)
        if count > 1:
            share.wait(lambda: pump(name, count - 1))

    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        share.wait(partial(pump, name, count))
    turns = []
    while loop.soon:
        loop.turn()
        turns.append("".join(served))
        served.clear()
    assert turns == wanted


def test_an_error_of_one_does_not_stop_the_others() -> None:
    loop = Loop()
    share = Share(loop.call_soon)
    served = []

    def fail() -> None:
        raise ZeroDivisionError

    share.wait(fail)
    share.wait(lambda: served.append("b"))
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    loop.turn()
    assert served == ["b"]
