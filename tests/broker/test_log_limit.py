"""The log as a whole has a limit: whatever keeps a file beyond it gives way, or is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.broker.test_retention import (
    BODY,
    SEGMENT,
    broker_of_small_segments,
    consume,
    declare,
    fill,
    first_offset,
    pulled,
)
from tests.harness.broker import Broker

LIMIT = 6 * SEGMENT


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments, whose log may have six of them."""
    for made in broker_of_small_segments(tmp_path):
        limit(made, LIMIT)
        yield made


def limit(broker: Broker, size: int) -> None:
    disk = broker.engine.core.disk
    disk.settings = replace(disk.settings, log_bytes_max=size)


def size_of(broker: Broker) -> int:
    return broker.engine.retention.size_bytes


def ends(broker: Broker, topic: str) -> tuple[int, int]:
    info = broker.port.topics.info(topic)
    assert info is not None
    return info.min_offsets[0], info.max_offsets[0]


def test_a_small_topic_does_not_hold_the_log(broker: Broker) -> None:
    """It loses what stands where everybody loses: the oldest by place. What came later stays."""
    broker.publish(broker.template("small"), b"early")
    fill(broker, 8)
    broker.publish(broker.template("small"), b"late")
    fill(broker, 3)
    assert size_of(broker) > LIMIT
    broker.tidy()
    assert size_of(broker) <= LIMIT
    assert ends(broker, "small") == (1, 2)
    assert b"late" in pulled(broker, 1, "small")
    first, end = ends(broker, "t")
    assert 0 < first < end
    assert pulled(broker, first).count(BODY)
    assert broker.engine.retention.early_count == first + 1
    broker.restart()
    assert ends(broker, "small") == (1, 2)
    assert first_offset(broker) == first


def test_no_more_goes_than_the_limit_asks_for(broker: Broker) -> None:
    fill(broker, 4)
    broker.tidy()
    assert first_offset(broker) == 0
    fill(broker, 6)
    broker.tidy()
    assert LIMIT - SEGMENT <= size_of(broker) <= LIMIT


def test_without_a_limit_nothing_goes_early(broker: Broker) -> None:
    limit(broker, 0)
    fill(broker, 12)
    broker.tidy()
    assert first_offset(broker) == 0
    assert broker.engine.retention.excess_bytes == 0


def test_a_queue_loses_nothing_and_topics_lose_nothing_in_vain(broker: Broker) -> None:
    """An unsettled message in the second file: what stands behind it would free no file."""
    fill(broker, 1)
    declare(broker, "work")
    fill(broker, 1)
    count = ends(broker, "t")[1]
    fill(broker, 10)
    retention = broker.engine.retention
    broker.tidy()
    assert retention.holder is not None
    assert retention.holder[1:] == ("queue", "work")
    assert size_of(broker) > LIMIT
    assert retention.excess_bytes > 0
    assert first_offset(broker) <= count
    trimmed = retention.trimmed_count
    broker.tidy()
    assert retention.trimmed_count == trimmed  # it stays so until the queue lets go
    spy, registration = consume(broker, "work", credit=10_000)
    registration.settle(0, len(spy.got))
    broker.step(1)
    broker.tidy()
    assert size_of(broker) <= LIMIT


def test_a_topic_that_keeps_for_ever_loses_nothing(broker: Broker) -> None:
    broker.port.topics.create("audit", 1, {"retention_seconds": "0"})
    fill(broker, 2)
    count = ends(broker, "t")[1]
    broker.publish(broker.template("audit"), b"signed")
    fill(broker, 10)
    broker.tidy()
    retention = broker.engine.retention
    assert ends(broker, "audit") == (0, 1)
    assert first_offset(broker) <= count  # more would free nothing
    assert retention.holder is not None
    assert retention.holder[1:] == ("topic", "audit")
    assert size_of(broker) > LIMIT
    broker.port.topics.set("audit", {"retention_seconds": "1000000"})
    broker.tidy()
    assert size_of(broker) <= LIMIT
    assert ends(broker, "audit") == (1, 1)


def test_the_limit_does_not_drop_what_queues_hold(broker: Broker) -> None:
    """`disk_full_drops_oldest` is for a full disk."""
    disk = broker.engine.core.disk
    disk.settings = replace(disk.settings, drop_oldest=True)
    declare(broker, "work")
    fill(broker, 10)
    broker.tidy()
    assert broker.engine.retention.dropped_count == 0
    assert size_of(broker) > LIMIT
