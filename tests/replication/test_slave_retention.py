"""A slave's log shrinks with its master's, never further and never earlier than it may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polymq.replication.common import LogExtent, common_end
from polymq.replication.extent import extent_of
from tests.broker.test_retention import SEGMENT, age, consume, declare, fill, pulled
from tests.harness.broker import Broker
from tests.replication.conftest import FOLLOWS
from tests.replication.logs import stream
from tests.replication.test_standby import copy, follow, rows
from tests.replication.test_torn_records import join


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """A master and a slave with small segments."""
    brokers = []
    for name, follows in (("a", ""), ("b", FOLLOWS)):
        made = Broker(tmp_path / name)
        made.stop()
        made.store_settings = replace(made.store_settings, segment_bytes=SEGMENT)
        made.directory, made.follows = tmp_path / f"small-{name}", follows
        made.open()
        brokers.append(made)
    yield brokers[0], brokers[1]
    for made in brokers:
        made.stop()


def tell(master: Broker, slave: Broker) -> None:
    """What a heartbeat says of the master's log: what is on both disks is in sync."""
    standby = slave.engine.standby
    assert standby is not None
    flushed = master.engine.core.commits.points[1]
    standby.committed(flushed, min(flushed, standby.flushed))
    standby.released(master.store.log.start, flushed)


def tidy(slave: Broker) -> int:
    """Save, then delete what may go; how many bytes that were."""
    standby, retention = slave.engine.standby, slave.engine.retention
    assert standby is not None
    slave.save()
    before = retention.deleted_bytes
    steps, result = retention.round_behind(standby.deletable), None
    while True:
        try:
            result = slave.do(steps.send(result))
        except StopIteration:
            return retention.deleted_bytes - before


def shrunk(pair: tuple[Broker, Broker]) -> tuple[Broker, Broker]:
    """Both with a queue whose first messages are settled, and the master's log shorter."""
    master, slave = pair
    declare(master, "q")
    fill(master, 3)
    follow(master, slave)
    _, registration = consume(master, "q")
    registration.settle(0, registration_count(master) - 1)
    age(master)
    fill(master, 3)
    assert master.tidy() >= 2 * SEGMENT
    return master, slave


def registration_count(broker: Broker) -> int:
    return broker.group("q").queue.index.end_offset


def assert_same_from(master: Broker, slave: Broker) -> None:
    """The same log from where the master's begins, and the same state."""
    assert slave.store.log.appended == master.store.log.appended
    assert stream(slave.store, slave.store.log.start) == stream(master.store, slave.store.log.start)
    assert rows(slave) == rows(master)


def test_a_slave_deletes_what_its_master_has_deleted(pair: tuple[Broker, Broker]) -> None:
    """The same files, the same first offsets; also after a start of the slave without
    `state.db`, and as a master."""
    master, slave = shrunk(pair)
    follow(master, slave)
    tell(master, slave)
    assert tidy(slave) == master.store.log.start > 0
    assert slave.store.log.start == master.store.log.start
    assert slave.store.segments() == master.store.segments()
    assert_same_from(master, slave)
    slave.kill()
    (slave.directory / "state.db").unlink(missing_ok=True)
    slave.open()
    assert_same_from(master, slave)
    first = master.info("t").min_offsets[0]
    expected = pulled(master, first)
    slave.stop()
    slave.follows = ""
    slave.open()
    assert pulled(slave, first) == expected
    again, _ = consume(slave, "q")
    assert again.got


def test_a_slave_waits_for_what_its_master_had_when_it_deleted(
    pair: tuple[Broker, Broker],
) -> None:
    """The acks that let a segment go stand behind it. A slave that has not got that far keeps the
    segment: if it is promoted now, the messages come again."""
    master, slave = shrunk(pair)
    standby = slave.engine.standby
    assert standby is not None
    tell(master, slave)
    assert standby.deletable == 0
    assert tidy(slave) == 0
    copy(master, slave, until=master.store.log.written - 1)
    assert tidy(slave) >= 0
    follow(master, slave)
    tell(master, slave)
    tidy(slave)
    assert slave.store.log.start == master.store.log.start


def test_a_slave_waits_until_it_knows_that_this_is_in_sync(pair: tuple[Broker, Broker]) -> None:
    """Until then another master may tell it to cut what the start of its log needs: the acks, and
    the snapshot of the state."""
    master, slave = shrunk(pair)
    follow(master, slave)
    standby = slave.engine.standby
    assert standby is not None
    flushed = master.engine.core.commits.points[1]
    standby.committed(flushed, flushed - 1)
    standby.released(master.store.log.start, flushed)
    assert tidy(slave) == 0
    standby.committed(flushed, flushed)
    tidy(slave)
    assert slave.store.log.start == master.store.log.start


def test_a_slave_needs_a_snapshot_of_the_state(pair: tuple[Broker, Broker]) -> None:
    """Told more than the log's own snapshot covers, it deletes up to that only."""
    master, slave = shrunk(pair)
    fill(master, 2)
    follow(master, slave)
    standby = slave.engine.standby
    assert standby is not None
    standby.released(master.store.log.written, 0)
    tidy(slave)
    snapshot = slave.engine.retention.snapshot
    assert snapshot is not None
    assert slave.store.segments()[-1][0] > snapshot.position
    assert slave.store.log.start <= snapshot.position
    slave.kill()
    (slave.directory / "state.db").unlink(missing_ok=True)
    slave.open()
    assert rows(slave).keys() == rows(master).keys()


@pytest.mark.parametrize("lost", [(), ("epochFileCheckpoint", "checkpoint")])
def test_a_slave_follows_again_when_the_record_of_its_epoch_is_gone(
    pair: tuple[Broker, Broker], lost: tuple[str, ...]
) -> None:
    """The master's log has lost the record that began its epoch, the slave's has not; then both
    have: they are the same log, and known to be, also without their lists of epochs."""
    master, slave = shrunk(pair)
    follow(master, slave)
    assert master.store.log.start > slave.store.log.start == 0
    assert len(master.store.epochs) == 1
    assert join(master, slave) == 0
    assert common_end(extent_of(slave.store), extent_of(master.store)) is not None
    for broker in (master, slave):
        broker.stop()
        for name in lost:
            (broker.directory / name).unlink()
        broker.open()
        assert join(master, slave) == 0
    tell(master, slave)
    tidy(slave)
    slave.restart()
    assert join(master, slave) == 0
    assert_same_from(master, slave)


def test_an_epoch_of_another_log_is_another_when_its_record_is_gone(
    pair: tuple[Broker, Broker],
) -> None:
    """One number at one place is not enough, whatever each log still has."""
    master, _ = shrunk(pair)
    mine = extent_of(master.store)
    (number, start, mark), *_ = mine.epochs
    assert mark
    other = LogExtent(start=0, end=mine.end, epochs=[(number, start, mark ^ 1)])
    assert common_end(mine, other) is None
