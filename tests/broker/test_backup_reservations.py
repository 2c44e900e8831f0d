"""What is being copied is not deleted, and nobody who is silent holds the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, Session
from polymq.broker.retention.reservations import RESERVATIONS_MAX, Reservations
from polymq.broker.retention.retention import Holder, InWorker
from polymq.core_log.backups.files import BackupFiles
from polymq.core_log.backups.manifest import Manifest
from polymq.core_log.backups.restoring import restore
from polymq.core_log.backups.taking import Source, take_backup
from polymq.core_log.files import RealFiles
from tests.broker.test_retention import (
    SEGMENT,
    acknowledge_all,
    age,
    broker_of_small_segments,
    consume,
    declare,
    fill,
    first_offset,
)
from tests.harness.broker import Broker, SpyLink, at_qos, batch_of


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments."""
    yield from broker_of_small_segments(tmp_path)


def reservations_of(broker: Broker) -> Reservations:
    return broker.engine.retention.reservations


def old_log(broker: Broker, segments: int = 4) -> None:
    """A log that retention would delete but for its end."""
    fill(broker, segments)
    age(broker)
    fill(broker, 1)


def test_what_is_reserved_stays_and_names_who_holds_it(broker: Broker) -> None:
    old_log(broker)
    reserved = reservations_of(broker).begin(0, broker.store.log.flushed, 100)
    assert broker.tidy() == 0
    assert broker.store.log.start == 0
    assert broker.engine.retention.holder == Holder(0, "backup", reserved.name)
    reservations_of(broker).end(reserved.name)
    assert broker.tidy() >= 4 * SEGMENT
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder.kind == "topic"


def test_who_held_the_log_before_a_backup_holds_it_after_it(broker: Broker) -> None:
    """An operator who looks for the holder is not shown a backup that has ended."""
    declare(broker, "work")
    old_log(broker)
    broker.tidy()
    held = broker.engine.retention.holder
    assert held is not None
    assert held[1:] == ("queue", "work")
    reserved = reservations_of(broker).begin(0, broker.store.log.flushed, 100)
    broker.tidy()
    assert broker.engine.retention.holder == Holder(0, "backup", reserved.name)
    reservations_of(broker).end(reserved.name)
    broker.tidy()
    assert broker.engine.retention.holder == held


def test_what_was_copied_may_go(broker: Broker) -> None:
    old_log(broker)
    reserved = reservations_of(broker).begin(0, broker.store.log.flushed, 100)
    reservations_of(broker).renew(reserved.name, 2 * SEGMENT)
    broker.tidy()
    assert broker.store.log.start == 2 * SEGMENT
    reservations_of(broker).renew(reserved.name, SEGMENT)
    assert reserved.position == 2 * SEGMENT  # what has gone does not come back


def test_the_lowest_of_several_counts(broker: Broker) -> None:
    old_log(broker)
    reservations_of(broker).begin(2 * SEGMENT, broker.store.log.flushed, 100)
    second = reservations_of(broker).begin(SEGMENT, broker.store.log.flushed, 100)
    broker.tidy()
    assert broker.store.log.start == SEGMENT
    reservations_of(broker).end(second.name)
    broker.tidy()
    assert broker.store.log.start == 2 * SEGMENT


def test_one_that_begins_while_a_round_goes_on_counts(broker: Broker) -> None:
    """The round has looked at the holders before; what it has not deleted yet stays."""
    old_log(broker)
    broker.save()
    steps = broker.engine.retention.round()
    result = None
    asked = 0
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            break
        result = broker.do(step)
        asked += isinstance(step, InWorker)
        if not len(reservations_of(broker)) and broker.engine.retention.snapshot is not None:
            reservations_of(broker).begin(broker.store.log.start, broker.store.log.flushed, 100)
    assert asked
    assert len(reservations_of(broker)) == 1
    assert broker.store.log.start == 0
    assert broker.store.find_record(0) is not None


def test_a_silent_one_ends(broker: Broker) -> None:
    old_log(broker)
    reservations = reservations_of(broker)
    reserved = reservations.begin(0, broker.store.log.flushed, 100)
    broker.step(99)
    reservations.renew(reserved.name, 0)
    broker.step(99)
    assert len(reservations) == 1
    broker.step(102)
    assert (len(reservations), reservations.expired_count) == (0, 1)
    with pytest.raises(Refused) as refused:
        reservations.renew(reserved.name, 0)
    assert refused.value.reason is Reason.NOT_FOUND
    with pytest.raises(Refused) as refused:
        reservations.end(reserved.name)
    assert refused.value.reason is Reason.NOT_FOUND
    assert broker.tidy() > 0


def test_one_that_ended_is_not_counted_as_silent(broker: Broker) -> None:
    reservations = reservations_of(broker)
    reservations.end(reservations.begin(0, broker.store.log.flushed, 10).name)
    broker.step(100)
    assert reservations.expired_count == 0


def test_there_is_a_limit_of_them(broker: Broker) -> None:
    for _ in range(RESERVATIONS_MAX):
        reservations_of(broker).begin(0, broker.store.log.flushed, 100)
    with pytest.raises(Refused) as refused:
        reservations_of(broker).begin(0, broker.store.log.flushed, 100)
    assert refused.value.reason is Reason.LIMIT


def test_a_full_disk_ends_them(broker: Broker) -> None:
    """Publishers are more important than a backup."""
    reservations, disk = reservations_of(broker), broker.engine.core.disk
    reservations.begin(0, broker.store.log.flushed, 100)
    disk.measured(90 << 20, 100 << 20)
    assert len(reservations) == 1
    disk.measured(0, 100 << 20)
    assert (len(reservations), reservations.dropped_count) == (0, 1)
    with pytest.raises(Refused) as refused:
        reservations.begin(0, broker.store.log.flushed, 100)
    assert refused.value.reason is Reason.STORAGE_FULL
    disk.measured(90 << 20, 100 << 20)


# --- what a restored broker knows -----------------------------------------------------------------


def state_of(broker: Broker) -> dict[tuple[str, str], object]:
    """All rows of the state, without what every opening and every clock changes."""
    broker.save()
    assert broker.engine._state_db is not None
    folded = broker.engine._state_db.load()
    assert folded is not None
    return {
        (kind, key): value
        for kind in list(folded.rows)
        for key, value in folded.take(kind)
        if kind not in ("alive", "snapshot")
    }


def backup_of(broker: Broker, target: Path) -> Manifest:
    store = broker.store
    source = Source(
        store="1",
        log=str(broker.directory / "commitlog"),
        position=store.log.flushed,
        segments=store.segments(),
        epochs=[(epoch, start, store.epoch_mark(epoch, start)) for epoch, start in store.epochs],
    )
    return take_backup(
        BackupFiles(),
        str(target),
        source,
        clock_ms=broker.loop.clock_ms,
        needs=lambda _: None,
        pace=lambda _: None,
    )


def restore_as(broker: Broker, target: Path, manifest: Manifest, data: Path) -> None:
    """Stop the broker, and start one on what is restored."""
    restore(
        str(target),
        manifest,
        str(data),
        "store",
        files=RealFiles(),
        settings=broker.store_settings,
        clock_ms=broker.loop.clock_ms,
        pace=lambda _: None,
    )
    broker.stop()
    broker.directory = data / "store"
    broker.open()


def connect(broker: Broker) -> tuple[Session, SpyLink]:
    link = SpyLink()
    session = broker.port.sessions.connect(
        "device", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    return session, link


def fill_state(broker: Broker) -> None:
    """Queues with settled and waiting messages, sessions, retained and delayed messages, users,
    exchanges, settings of topics."""
    declare(broker, "work")
    fill(broker, 1)
    registration = consume(broker, "work", credit=5)[1]
    registration.settle(0, 3)
    registration.requeue(3, 2)
    registration.cancel()
    session, link = connect(broker)
    session.resume()
    session.subscribe(("t", REST), at_qos(1))
    broker.step(1)
    fill(broker, 1)
    acknowledge_all(broker, session, link)
    broker.publish(broker.template("r", "a", retain=True), b"retained")
    broker.engine.users.add("alice", "hash")
    broker.port.exchanges.declare(
        "all", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    broker.port.exchanges.bind_queue("work", "all", "", {}, owner=None)
    broker.port.topics.create("audit", 2, {"retention_seconds": "0"})
    later = broker.template("audit")
    broker.port.delays.publish_later(later, batch_of(b"later"), 0, 1, delay_ms=3_600_000)
    broker.step(1)
    session.disconnect()
    broker.step(1)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_restored_broker_equals_its_source(broker: Broker, tmp_path: Path, deleted: bool) -> None:
    """Also where the log does not begin at its beginning any more, and the state is a snapshot."""
    if deleted:
        old_log(broker)
        assert broker.tidy() > 0
    fill_state(broker)
    if deleted:
        age(broker, 1.0)
    broker.engine.core.write_gathered()
    broker.save()
    broker.step(1)
    expected = state_of(broker)
    offsets = first_offset(broker), broker.info("t").max_offsets
    waiting = broker.group("work").ready_count
    manifest = backup_of(broker, tmp_path / "backup")
    assert (manifest.start > 0) is deleted
    fill(broker, 1)
    broker.port.queues.delete("work", if_unused=False, if_empty=False, owner=None)
    broker.step(1)
    restore_as(broker, tmp_path / "backup", manifest, tmp_path / "other")
    assert state_of(broker) == expected
    assert (first_offset(broker), broker.info("t").max_offsets) == offsets
    assert broker.group("work").ready_count == waiting > 0
    spy, _ = consume(broker, "work")
    assert spy.got[0][0] == 3
    assert connect(broker)[0].present
    assert broker.info("audit").max_offsets == (0, 0)
    broker.step(3700)
    assert sum(broker.info("audit").max_offsets) == 1  # what was delayed
