"""A broker dies in the middle of a record. Both logs become the same again, byte for byte, and so
does the state that is folded from them."""

from __future__ import annotations

import pytest

from polymq.core_log.cutting import cut_log
from polymq.core_log.files import RealFiles
from polymq.replication.extent import extent_of
from polymq.replication.follower import Cut, Follower, Following
from polymq.replication.source import Identity, Source
from tests.harness.broker import Broker
from tests.replication.conftest import FOLLOWS
from tests.replication.logs import stream
from tests.replication.test_standby import copy, do_everything, follow, pulled, rows

IDENTITY = Identity(cluster="c", group="g", secret=b"sixteen bytes or more")
BODY = b"a body whose bytes are told apart 0123456789" * 8
PARTS = pytest.mark.parametrize("part", ["its first byte", "a half", "all but a byte"])


def join(master: Broker, slave: Broker) -> int:
    """The slave follows as its process does: if it has to, it cuts its log and opens it anew.

    Returns:
        How many bytes were cut.
    """
    cut_bytes = 0
    while True:
        source = Source(
            identity=IDENTITY,
            nonce="aa",
            extent=lambda: extent_of(master.store),
            admit=lambda *_: "",
            segment_bytes=master.store.segment_bytes,
        )
        follower = Follower(
            identity=IDENTITY,
            name="slave",
            nonce="bb",
            extent=extent_of(slave.store),
            segment_bytes=slave.store.segment_bytes,
        )
        events = []
        for _ in range(3):
            source.receive(follower.outgoing())
            events += follower.receive(source.outgoing())
        (event,) = events
        if isinstance(event, Following):
            follow(master, slave)
            return cut_bytes
        assert isinstance(event, Cut)
        cut_bytes += slave.store.log.appended - event.position
        slave.stop()
        cut_log(RealFiles(), str(slave.directory), event.position)
        slave.open()


def publish_unflushed(broker: Broker) -> tuple[int, int]:
    """Publish one message and write it, without a sync: where its record begins and ends."""
    start = broker.store.log.appended
    broker.publish(broker.template("t", "a"), BODY)
    broker.store.log.write()
    return start, broker.store.log.written


def size_of(part: str, start: int, end: int) -> int:
    """How much of the record is on the disk."""
    return {"its first byte": 1, "a half": (end - start) // 2, "all but a byte": end - start - 1}[
        part
    ]


def die_within(broker: Broker, start: int, end: int, part: str) -> None:
    """Die when so much of the record was written."""
    broker.kill()
    (name,) = [
        path
        for path in (broker.directory / "commitlog").iterdir()
        if path.name.isdigit() and int(path.name) <= start < int(path.name) + (1 << 20)
    ]
    stored = size_of(part, start, end)
    with name.open("r+b") as file:
        file.seek(start + stored - int(name.name))
        file.write(bytes(end - start - stored))


def assert_equal(master: Broker, slave: Broker) -> None:
    """The same bytes, the same state, and the same for readers."""
    assert slave.store.log.appended == master.store.log.appended
    assert stream(slave.store, 0) == stream(master.store, 0)
    assert rows(slave) == rows(master)
    assert pulled(slave, "t") == pulled(master, "t")


def note_departures(broker: Broker) -> None:
    """Let the log say which clients have been away since the start, which gathers for a second."""
    for gather in broker.engine.core.gatherers:
        gather()


@PARTS
def test_a_slave_that_died_within_a_record(master: Broker, slave: Broker, part: str) -> None:
    """What it has of the record goes when it starts; it follows from there."""
    do_everything(master)
    follow(master, slave)
    start, end = publish_unflushed(master)
    standby = slave.engine.standby
    assert standby is not None
    hot = master.store.log.tail_range(start)
    assert hot is not None
    standby.take(hot[1])
    slave.store.log.write()
    assert slave.store.log.written == end
    die_within(slave, start, end, part)
    slave.open()
    assert slave.store.log.appended == start
    master.step()
    assert join(master, slave) == 0
    assert_equal(master, slave)


@PARTS
def test_a_master_that_died_within_a_record_that_its_slave_has(
    master: Broker, slave: Broker, part: str
) -> None:
    """The slave has what no log has any more: it goes, and nobody was promised it."""
    do_everything(master)
    follow(master, slave)
    start, end = publish_unflushed(master)
    copy(master, slave)
    assert slave.store.log.flushed == end
    die_within(master, start, end, part)
    master.open()
    master.publish(master.template("t", "a"), b"another")
    note_departures(master)
    master.step()
    assert join(master, slave) == end - start
    assert_equal(master, slave)


@PARTS
def test_a_slave_is_promoted_with_a_record_that_its_master_died_within(
    master: Broker, slave: Broker, part: str
) -> None:
    """The slave's copy is whole, and becomes everybody's."""
    do_everything(master)
    follow(master, slave)
    start, end = publish_unflushed(master)
    copy(master, slave)
    die_within(master, start, end, part)
    slave.stop()
    slave.follows, master.follows = "", FOLLOWS
    slave.open()
    master.open()
    slave.publish(slave.template("t", "b"), b"another")
    note_departures(slave)
    slave.step()
    assert slave.store.find_record(start) is not None
    assert join(slave, master) == 0
    assert_equal(slave, master)


@PARTS
def test_a_master_that_died_when_its_slave_had_a_part(
    master: Broker, slave: Broker, part: str
) -> None:
    """What came in part was never in the slave's log."""
    do_everything(master)
    follow(master, slave)
    start, end = publish_unflushed(master)
    hot = master.store.log.tail_range(start)
    standby = slave.engine.standby
    assert standby is not None
    assert hot is not None
    standby.take(hot[1][: size_of(part, start, end)])
    slave.step()
    assert slave.store.log.appended == start
    die_within(master, start, end, part)
    standby.lost()
    master.open()
    note_departures(master)
    master.step()
    assert join(master, slave) == 0
    assert_equal(master, slave)


def test_epochs_that_were_cut_stay_forgotten(master: Broker, slave: Broker) -> None:
    """A slave is promoted by mistake, goes back to its master, and begins no epoch of its own
    there. After a checkpoint its list of epochs is not scanned again: it has to be right."""
    do_everything(master)
    follow(master, slave)
    slave.stop()
    slave.follows = ""
    slave.open()
    slave.publish(slave.template("t", "a"), b"never in sync")
    slave.stop()
    slave.follows = FOLLOWS
    slave.open()
    for _ in range(3):
        master.publish(master.template("t", "a"), BODY)
        master.step()
    assert join(master, slave) > 0
    assert_equal(master, slave)
    slave.restart()
    slave.restart()
    assert slave.store.epochs == master.store.epochs
    assert join(master, slave) == 0
