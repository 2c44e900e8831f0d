"""How long messages wait for the disk and for their delivery: by batches, weighted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq.broker.pacing.latencies import PENDING_MAX, CommitTimes
from polymq.core_log.durations import Durations
from tests.broker.queue_bench import consume, declare, publish
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, at_qos


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def counted(durations: Durations) -> dict[float, int]:
    """How many by upper bound; those that have any."""
    bounds = [*durations.bounds, float("inf")]
    return {bound: n for bound, n in zip(bounds, durations.counts, strict=True) if n}


class Clock:
    """Seconds, as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# --- for the disk ---------------------------------------------------------------------------------


def test_a_flush_counts_for_all_that_was_appended_before_it() -> None:
    clock = Clock()
    times = CommitTimes(clock, records=100)
    times.asked(1000, 103)
    clock.now = 0.004
    times.asked(2000, 110)
    times.reached(999)
    assert counted(times.durations) == {}
    clock.now = 0.008
    times.reached(1000)
    assert counted(times.durations) == {0.01: 3}
    clock.now = 0.3
    times.reached(5000)
    assert counted(times.durations) == {0.01: 3, 0.5: 7}


def test_what_waits_for_a_disk_that_is_stuck_is_bounded() -> None:
    """And none of it is forgotten."""
    clock = Clock()
    times = CommitTimes(clock)
    for number in range(1, PENDING_MAX + 500):
        times.asked(number, number)
    times.reached(PENDING_MAX + 499)
    assert counted(times.durations) == {0.0005: PENDING_MAX + 499}


def test_published_messages_are_counted_when_they_are_on_the_disk(broker: Broker) -> None:
    template = broker.template("a")
    broker.publish(template, b"0")
    broker.step()
    times = broker.engine.core.commit_times.durations
    before = sum(times.counts)
    broker.publish(template, b"1", b"2", b"3")
    broker.loop.run()
    assert sum(times.counts) == before, "a flush was asked for and has not ended"
    broker.step()
    assert sum(times.counts) == before + 3


# --- for their delivery ---------------------------------------------------------------------------


def test_a_batch_is_measured_only_after_somebody_asked(broker: Broker) -> None:
    """And once: the next one has to be asked for again."""
    times = broker.engine.core.reading.delivery_times.durations
    declare(broker, "q")
    publish(broker, "q", b"1", b"2", b"3")
    broker.step(7.0)
    consumer, _ = consume(broker, "q")
    assert (len(consumer.bodies), counted(times)) == (3, {})
    declare(broker, "later")
    publish(broker, "later", b"1", b"2", b"3")
    broker.step(7.0)
    broker.engine.core.sample_deliveries()
    consume(broker, "later")
    assert counted(times) == {30.0: 3}
    publish(broker, "q", b"4")
    broker.step()
    assert counted(times) == {30.0: 3}


def test_what_consumers_get_at_once_is_measured(broker: Broker) -> None:
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    broker.engine.core.sample_deliveries()
    publish(broker, "q", b"1", b"2")
    broker.step()
    assert consumer.bodies == [b"1", b"2"]
    assert counted(broker.engine.core.reading.delivery_times.durations) == {0.001: 2}


def test_what_live_subscribers_get_is_measured(broker: Broker) -> None:
    """Once for the run, however many subscribe."""
    for client in ("one", "two"):
        session, _ = connect(broker, client, clean=True)
        session.subscribe(("a",), at_qos(0))
    broker.step()
    times = broker.engine.core.reading.delivery_times.durations
    broker.publish(broker.template("a"), b"1")
    broker.step()
    assert counted(times) == {}
    broker.engine.core.sample_deliveries()
    broker.publish(broker.template("a"), b"1", b"2")
    broker.step()
    broker.publish(broker.template("a"), b"3")
    broker.step()
    assert counted(times) == {0.001: 2}


def test_what_is_pulled_is_measured(broker: Broker) -> None:
    """By offset, as clients of RocketMQ do."""
    broker.publish(broker.template("a"), b"1", b"2")
    broker.step(40.0)
    broker.engine.core.sample_deliveries()
    got: list[int] = []
    broker.port.queries.pull(
        "a", 0, 0, count_max=10, bytes_max=1 << 20, callback=lambda _, end: got.append(end)
    )
    broker.step()
    assert got == [2]
    assert counted(broker.engine.core.reading.delivery_times.durations) == {60.0: 2}
