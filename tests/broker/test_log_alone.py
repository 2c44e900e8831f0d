"""After a deletion the log alone has all that a start needs: how far each queue had come, and the
state, which a bookmark leads to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from polymq.core_log.bookmark import write_bookmark
from polymq.core_log.record import Record
from polymq.core_log.store import Store
from tests.broker.test_retention import (
    SEGMENT,
    age,
    broker_of_small_segments,
    consume,
    declare,
    fill,
    make_everything,
    state_of,
)
from tests.harness.broker import Broker, SpyLink


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments."""
    yield from broker_of_small_segments(tmp_path)


# --- offsets ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["checkpoint", "checkpoint and state.db"])
def test_a_queue_whose_messages_are_all_gone_goes_on_at_its_end(broker: Broker, lost: str) -> None:
    """Also if the log alone is left, and the process died before the last acks were written: an
    offset that a consumer may have seen is never given again."""
    declare(broker, "q")
    fill(broker)
    spy, registration = consume(broker, "q", 10_000)
    count = len(spy.got)
    registration.settle(0, count // 2)
    fill(broker, 1, "other")  # the last messages of `t` are not alone in their segment
    age(broker)
    fill(broker, 3, "other")
    assert broker.tidy() >= SEGMENT  # writes a snapshot of the state
    registration.settle(count // 2, count - count // 2)
    before = broker.engine.retention.deleted_bytes
    steps = broker.engine.retention.round()
    result = None
    with suppress(StopIteration):
        while True:
            result = broker.do(steps.send(result))
    assert broker.engine.retention.deleted_bytes >= before + SEGMENT
    broker.kill()
    (broker.directory / "checkpoint").unlink()
    if "state" in lost:
        for path in broker.directory.glob("state.db*"):
            path.unlink()
    broker.open()
    assert broker.store.recovery.rebuilt_all
    fresh, _ = consume(broker, "q")
    broker.publish(broker.template("t"), b"next")
    broker.step(1)
    assert [(offset, body) for offset, body, _ in fresh.got] == [(count, b"next")]
    info = broker.port.topics.info("t")
    assert info is not None
    assert info.max_offsets == (count + 1,)


# --- where the snapshot stands ------------------------------------------------------------


@pytest.mark.parametrize("bookmark", ["sound", "missing", "damaged", "of no record", "too old"])
def test_a_bookmark_leads_to_the_snapshot_and_is_only_a_hint(
    broker: Broker, bookmark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start without `state.db` reads the log from the newest snapshot on, and all of it only
    where the bookmark is of no use; the state is the same."""
    make_everything(broker)
    fill(broker)
    _, registration = consume(broker, "q1")
    registration.settle(1, 1)
    broker.step(1)
    age(broker)
    for queue in ("q1", "q2", broker.port.queues.subscription_queue("webhook")):
        broker.port.queues.purge(queue, owner=None)
    broker.port.sessions.connect(
        "device", clean=True, expiry_seconds=0, link=SpyLink(), principal="u"
    )
    fill(broker, 3)
    assert broker.tidy() > 0
    found = broker.store.bookmark()
    assert found is not None
    assert found > broker.store.log.start + SEGMENT
    before = state_of(broker)
    broker.stop()
    (broker.directory / "state.db").unlink()
    path = broker.directory / "bookmark"
    if bookmark == "missing":
        path.unlink()
    elif bookmark == "damaged":
        data = bytearray(path.read_bytes())
        data[15] ^= 4
        path.write_bytes(bytes(data))
    elif bookmark == "of no record":
        write_bookmark(broker.files, str(broker.directory), found + 8)
    elif bookmark == "too old":
        write_bookmark(broker.files, str(broker.directory), 8)
    replayed: list[int] = []
    replay = Store.replay

    def watched(store: Store, position: int, flags: int | None = None) -> Iterator[Record]:
        replayed.append(position)
        return replay(store, position, flags)

    monkeypatch.setattr(Store, "replay", watched)
    broker.open()
    assert state_of(broker) == before
    assert (0 in replayed) == (bookmark != "sound")


def test_damage_before_the_snapshot_does_not_keep_a_start_without_state_db(broker: Broker) -> None:
    """What nobody has to read is not read."""
    fill(broker)
    age(broker)
    fill(broker, 3)
    assert broker.tidy() > 0
    declare(broker, "q")
    broker.step(1)
    found = broker.store.bookmark()
    start = broker.store.log.start
    assert found is not None
    assert found > start + 4096
    broker.stop()
    (broker.directory / "state.db").unlink()
    segment = broker.directory / "commitlog" / f"{start:020d}"
    data = bytearray(segment.read_bytes())
    data[2500] ^= 1
    segment.write_bytes(bytes(data))
    broker.open()
    assert consume(broker, "q")[0].got == []
