"""A session whose filters overlap, over promotions of the slave under its client: every message
comes, and once, as its QoS says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.exactly_once import FILTERS, receive_once
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.replica_kills import Pair
from interop_tests.test_mqtt_sessions import numbers, publish_all

pytestmark = pytest.mark.slow

COUNT = 60


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A master and its slave. What is acknowledged is on both disks."""
    made = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        made.start()
        yield made


def test_quality_2_comes_once_over_promotions(pair: Pair) -> None:
    """The master dies while messages are in flight and released, and its slave takes its place;
    then it follows, and takes the place back. What is published to the last master comes once, too:
    it knows that the filters overlap."""
    client = RawClient.connected(pair.leader.mqtt_port, "c", clean=False)
    client.subscribe(*FILTERS)
    client.disconnect()
    publish_all(pair.leader.mqtt_port, "t/1", numbers(0, COUNT), qos=2)
    promotions = 0

    def interrupt() -> None:
        nonlocal promotions
        promotions += 1
        pair.kill("master")

    found = receive_once(lambda: pair.leader.mqtt_port, COUNT, interrupt)
    assert found == numbers(0, COUNT)
    assert promotions > 1
    client = RawClient.connected(pair.leader.mqtt_port, "c", clean=False, present=True)
    publish_all(pair.leader.mqtt_port, "t/1", numbers(COUNT, COUNT + 5), qos=2)
    assert [message.body for message in client.publishes(5)] == numbers(COUNT, COUNT + 5)
    client.expect_nothing_before_ping()
    client.disconnect()


def test_quality_1_comes_again_where_it_was_not_acknowledged(pair: Pair) -> None:
    """Once, whichever of the filters it came by before, with DUP; and what waited comes behind it
    as new."""
    port = pair.leader.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(*((name, 1) for name, _ in FILTERS))
    publish_all(port, "t/1", numbers(0, 5))
    sent = [message.body for message in client.publishes(5)]
    assert sent == numbers(0, 5)
    client.disconnect()  # with five in flight
    publish_all(port, "t/1", numbers(5, COUNT // 2))
    pair.kill("master")
    client = RawClient.connected(pair.leader.mqtt_port, "c", clean=False, present=True)
    found = list(client.acknowledge(COUNT // 2))
    assert [message.body for message in found] == numbers(0, COUNT // 2)
    assert [message.duplicate for message in found] == [True] * 5 + [False] * (COUNT // 2 - 5)
    client.expect_nothing_before_ping()
    client.disconnect()
