"""Room on the disk: when publishers are refused, what goes on, and what makes room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq.broker.disk import Disk, DiskSettings, DiskState
from polymq.broker.errors import Reason, Refused, StorageFailed
from polymq.broker.port import REST
from polymq.core_log.settings import StoreSettings
from tests.broker.test_retention import BODY, SEGMENT, age, consume, declare, fill, first_offset
from tests.harness.broker import Broker, SpyLink, at_qos, batch_of

GIB = 1 << 30
MARKS = DiskSettings(reserve_bytes=1000, early_bytes=2000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments, and marks at 1000 and 2000 bytes."""
    made = Broker(tmp_path / "data")
    made.stop()
    made.store_settings = StoreSettings(segment_bytes=SEGMENT, chunk_bytes=1 << 14)
    made.disk_settings = MARKS
    made.directory = tmp_path / "small"
    made.open()
    made.engine.core.disk.measured(10_000, 100_000)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("segment_bytes", "size_bytes", "reserve", "early"),
    [
        (GIB, 20 * GIB, 3 * GIB, 6 * GIB),
        (GIB, 100 * GIB, 5 * GIB, 10 * GIB),
        (GIB, 4000 * GIB, 16 * GIB, 32 * GIB),
        (GIB, 4 * GIB, GIB, 2 * GIB),
        (1 << 20, 4 * GIB, 4 * GIB // 20, 2 * (4 * GIB // 20)),
    ],
    ids=["three segments", "5 %", "16 GiB", "a quarter of a small disk", "small segments"],
)
def test_the_reserve_follows_the_disk(
    segment_bytes: int, size_bytes: int, reserve: int, early: int
) -> None:
    disk = Disk(segment_bytes=segment_bytes, settings=DiskSettings())
    disk.measured(size_bytes, size_bytes)
    assert (disk.reserve_bytes, disk.early_bytes, disk.state) == (reserve, early, DiskState.OK)
    disk.measured(early - 1, size_bytes)
    assert (disk.state, disk.wanted_bytes) == (DiskState.LOW, 1)
    disk.measured(reserve - 1, size_bytes)
    assert disk.state is DiskState.FULL


def test_nothing_is_refused_before_anything_is_known() -> None:
    disk = Disk(segment_bytes=GIB, settings=DiskSettings())
    assert (disk.state, disk.wanted_bytes, disk.reason) == (DiskState.OK, 0, "")


def test_watchers_are_told_of_each_change_once() -> None:
    disk = Disk(segment_bytes=GIB, settings=MARKS)
    reported: list[str] = []
    disk.watch(reported.append)
    for free in (5000, 1500, 1000, 999, 500, 1000, 1099):
        disk.measured(free, 100_000)
    assert len(reported) == 1  # a little more than the reserve has to be free
    assert "nearly full" in reported[0]
    disk.met_full()
    disk.measured(1100, 100_000)
    assert len(reported) == 1
    disk.wrote()
    assert reported[1:] == [""]


def test_publishers_are_refused_below_the_reserve_and_taken_above_it(broker: Broker) -> None:
    template = broker.template("t")
    broker.publish(template, BODY)
    broker.engine.core.disk.measured(999, 100_000)
    with pytest.raises(Refused, match="nearly full") as refusal:
        broker.publish(template, BODY)
    assert refusal.value.reason is Reason.STORAGE_FULL
    broker.engine.core.disk.measured(1100, 100_000)
    broker.publish(template, BODY)


def test_what_grows_is_refused_and_what_frees_is_not(broker: Broker) -> None:
    """The reserve is for letting go: settling, purging, deleting, unsubscribing, settings."""
    engine = broker.engine
    declare(broker, "q")
    declare(broker, "gone")
    link = SpyLink()
    session = engine.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    session.subscribe(("t", REST), at_qos(1))
    session.resume()
    broker.publish(broker.template("t"), b"1", b"2", b"3")
    broker.step(1)
    engine.core.disk.measured(999, 100_000)
    for refused in (
        lambda: declare(broker, "new"),
        lambda: engine.port.topics.create("new", 1),
        lambda: engine.port.sessions.connect(
            "new", clean=False, expiry_seconds=None, link=SpyLink(), principal="u"
        ),
        lambda: session.subscribe(("u", REST), at_qos(1)),
        lambda: engine.port.documents.put("rule", "new", {}),
    ):
        with pytest.raises(Refused) as refusal:
            refused()
        assert refusal.value.reason is Reason.STORAGE_FULL
    spy, registration = consume(broker, "q", 2)
    assert spy.bodies == [b"1", b"2"]
    registration.settle(0, 2)
    session.acknowledged(1, len(link.bodies))
    session.unsubscribe(("t", REST))
    engine.port.queues.purge("gone", owner=None)
    engine.port.queues.delete("gone", if_unused=False, if_empty=False, owner=None)
    engine.port.topics.set("t", {"retention_seconds": "60"})
    broker.step(1)
    broker.kill()
    broker.open()
    spy, _ = consume(broker, "q")
    assert spy.bodies == [b"3"]
    assert "gone" not in broker.engine.exchanges.queues


def test_messages_go_on_to_consumers_and_sessions(broker: Broker) -> None:
    """What was taken before is delivered; a session's packet ids are stored in the reserve."""
    declare(broker, "q")
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    session.subscribe(("t", REST), at_qos(1))
    session.resume()
    broker.publish(broker.template("t"), b"1", b"2")
    broker.engine.core.disk.measured(999, 100_000)
    broker.step(1)
    assert link.bodies == [b"1", b"2"]
    spy, _ = consume(broker, "q")
    assert spy.bodies == [b"1", b"2"]


def test_a_session_waits_for_a_log_that_takes_its_packet_ids(broker: Broker) -> None:
    """While a write meets a full disk, packet ids would gather in memory: nothing is sent, and
    nothing is appended. What was not sent then comes later as new, without DUP [MQTT-3.3.1-1]."""
    link = SpyLink(credit=0)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    session.subscribe(("t", REST), at_qos(1))
    session.resume()
    broker.publish(broker.template("t"), b"1")
    broker.step(1)
    broker.engine.core.disk.met_full()
    end = broker.store.log.appended
    link.left = 10
    session.ready()
    broker.loop.run()
    assert (link.publishes, broker.store.log.appended) == ([], end)
    broker.engine.core.disk.wrote()
    broker.step(broker.limits.lazy_flush_seconds)
    assert link.publishes == [("t", b"1", 1, 1, False, False)]


def test_retention_is_early_where_it_has_a_limit(broker: Broker) -> None:
    """And only as far as needed; topics that are kept for ever keep everything."""
    fill(broker, 6)
    assert broker.tidy() == 0
    assert broker.tidy(wanted_bytes=2 * SEGMENT) == 2 * SEGMENT
    assert first_offset(broker) > 0
    broker.port.topics.create("kept", 1, {"retention_seconds": "0"})
    broker.publish(broker.template("kept"), BODY)
    fill(broker, 4)
    assert broker.tidy(wanted_bytes=1 << 30) > 0
    assert first_offset(broker, "kept") == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder[1:] == ("topic", "kept")


def test_held_messages_stay_unless_the_policy_drops_them(broker: Broker) -> None:
    declare(broker, "q")
    declare(broker, "memory", durable=False)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=SpyLink(), principal="u"
    )
    session.subscribe(("t", REST), at_qos(1))
    session.disconnect()
    fill(broker, 5)
    assert broker.tidy(wanted_bytes=2 * SEGMENT) == 0
    assert broker.engine.retention.dropped_count == 0
    count = broker.info("t").max_offsets[0]
    broker.stop()
    broker.disk_settings = DiskSettings(reserve_bytes=1000, early_bytes=2000, drop_oldest=True)
    broker.open()
    _, registration = consume(broker, "q", 3)
    assert broker.tidy(wanted_bytes=2 * SEGMENT) == 2 * SEGMENT
    dropped = {name: lost for _, name, lost in broker.engine.retention.drops}
    assert set(dropped) == {"q", "c"}
    assert dropped["q"] == dropped["c"] - 3  # three were with the consumer
    assert sum(dropped.values()) == broker.engine.retention.dropped_count
    registration.settle(0, 1)  # late news of what is gone does no harm
    registration.cancel()
    registration.requeue(1, 2)
    for again in (False, True):
        if again:
            broker.kill()
            broker.open()
            assert broker.engine.retention.dropped_count == 0
        spy, registration = consume(broker, "q", 100_000)
        assert len(spy.got) == count - dropped["c"]
        registration.cancel()
        registration.requeue(spy.got[0][0], len(spy.got))


def test_delayed_messages_hold_and_are_not_dropped(broker: Broker) -> None:
    """Nobody has had a chance to take them; they come at their time, after a restart, too."""
    broker.stop()
    broker.disk_settings = DiskSettings(reserve_bytes=1000, early_bytes=2000, drop_oldest=True)
    broker.open()
    declare(broker, "q")
    due_ms = broker.loop.clock_ms() + 3_600_000
    broker.port.delays.publish_later(
        broker.template("t"), batch_of(b"later"), 0, 1, deliver_ms=due_ms
    )
    broker.step(1)
    fill(broker, 5, "other")
    assert broker.tidy(wanted_bytes=2 * SEGMENT) == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder.kind == "system"
    broker.restart()
    broker.step(3_601)
    assert consume(broker, "q")[0].bodies == [b"later"]
    assert broker.tidy(wanted_bytes=2 * SEGMENT) > 0


def test_a_bound_in_bytes_counts_what_was_dropped(broker: Broker) -> None:
    """A queue that lost its oldest has room again."""
    broker.stop()
    broker.disk_settings = DiskSettings(reserve_bytes=1000, early_bytes=2000, drop_oldest=True)
    broker.open()
    bound = {"x-max-length-bytes": 4 * SEGMENT, "x-overflow": "reject-publish"}
    broker.port.queues.declare(
        "q", durable=True, exclusive=False, auto_delete=False, arguments=bound, owner=None
    )
    broker.port.exchanges.bind_queue("q", "amq.topic", "t.#", {}, owner=None)
    fill(broker, 5)
    rules = broker.group("q").rules
    assert rules is not None
    lengths = rules.lengths
    assert lengths is not None
    before = lengths.bytes
    assert broker.tidy(wanted_bytes=3 * SEGMENT) == 3 * SEGMENT
    broker.step()
    assert before - lengths.bytes > 2 * SEGMENT


def test_a_queue_in_memory_is_dropped_from_as_well(broker: Broker) -> None:
    broker.stop()
    broker.disk_settings = DiskSettings(reserve_bytes=1000, early_bytes=2000, drop_oldest=True)
    broker.open()
    declare(broker, "memory", durable=False)
    fill(broker, 5)
    assert broker.tidy(wanted_bytes=2 * SEGMENT) == 2 * SEGMENT
    ((kind, name, lost),) = broker.engine.retention.drops
    assert (kind, name) == ("queue", "memory")
    spy, _ = consume(broker, "memory", 100_000)
    assert spy.got[0][0] == lost
    assert len(spy.got) + lost == broker.info("t").max_offsets[0]


def test_old_age_needs_no_pressure(broker: Broker) -> None:
    """The marks change nothing about what is due anyway."""
    fill(broker, 3)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() >= 3 * SEGMENT


def test_a_log_that_fails_while_it_is_appended_to_stops_the_engine(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment could not be made: publishers are told, and whoever has to know; from then on
    everything is refused before it is tried."""
    reported: list[StorageFailed] = []
    broker.port.storage.when_failed(reported.append)
    template = broker.template("t")
    broker.publish(template, b"x")
    broker.step()

    def fail(*values: object, **options: object) -> None:
        raise StorageFailed("the next segment cannot be made")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store.log, "append_run", fail)
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                broker.port.delays.publish_later(template, batch_of(b"y"), 0, 1)
            assert refused.value.reason is Reason.READ_ONLY
    assert len(reported) == 1
    with pytest.raises(Refused):
        broker.publish(template, b"z")
