"""What nobody wants leaves the log, what somebody wants stays, and all state outlives it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import ONE_LEVEL, REST, QueueConsumer, Session
from polymq.broker.retention.retention import InWorker
from polymq.core_log.errors import StorageFailed, StoreCorrupt
from polymq.core_log.settings import StoreSettings
from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos, batch_of

SEGMENT = 64 * 1024
BODY = b"x" * 2000
DAY = 86_400.0


def broker_of_small_segments(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments, until it is taken again."""
    made = Broker(tmp_path / "data")
    made.stop()
    made.store_settings = StoreSettings(
        segment_bytes=SEGMENT, chunk_bytes=1 << 14, tail_bytes_max=1 << 15
    )
    made.directory = tmp_path / "small"
    made.open()
    yield made
    made.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments."""
    yield from broker_of_small_segments(tmp_path)


def acknowledge_all(broker: Broker, session: Session, link: SpyLink) -> int:
    """The client acknowledges what it has got, until nothing more comes; returns how many."""
    done = 0
    while new := link.publishes[done:]:
        for _, _, qos, packet, _, _ in new:
            if qos == 1:
                session.acknowledged(packet, 1)
            else:
                session.received(packet, 1)
                broker.step()
                session.completed(packet, 1)
        done += len(new)
        broker.step(1)
    return done


def fill(broker: Broker, segments: int = 4, topic: str = "t") -> None:
    """Publish until that many more segments are full."""
    template = broker.template(topic)
    end = broker.store.log.appended + segments * SEGMENT
    while broker.store.log.appended < end:
        broker.publish(template, *[BODY] * 8)
        broker.step(1)


def age(broker: Broker, seconds: float = 4 * DAY) -> None:
    broker.step(seconds)


def first_offset(broker: Broker, topic: str = "t") -> int:
    info = broker.port.topics.info(topic)
    assert info is not None
    return info.min_offsets[0]


def consume(broker: Broker, queue: str, credit: int = 1000) -> tuple[SpyConsumer, QueueConsumer]:
    spy = SpyConsumer(credit)
    registration = broker.port.queues.consume(queue, spy, exclusive=False, owner=None)
    registration.ready()
    broker.step()
    return spy, registration


def declare(broker: Broker, name: str, *, durable: bool = True) -> None:
    broker.port.queues.declare(
        name, durable=durable, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    broker.port.exchanges.bind_queue(name, "amq.topic", "t.#", {}, owner=None)


def pulled(broker: Broker, offset: int, topic: str = "t") -> bytes:
    found: list[bytes] = []
    broker.port.queries.pull(
        topic, 0, offset, count_max=100, bytes_max=1 << 20, callback=lambda r, _: found.append(r)
    )
    broker.step()
    return found[0]


# --- first offsets ------------------------------------------------------------------------


def test_messages_beyond_their_time_cannot_be_read_by_offset(broker: Broker) -> None:
    fill(broker, 1)
    age(broker)
    count = broker.info("t").max_offsets[0]
    fill(broker, 1)
    broker.tidy()
    assert first_offset(broker) == count
    with pytest.raises(Refused, match=f"offsets begin at {count}") as refusal:
        pulled(broker, count - 1)
    assert refusal.value.reason is Reason.BAD_ARGUMENT
    assert pulled(broker, count).count(BODY)
    broker.restart()
    assert first_offset(broker) == count


def test_zero_keeps_messages_for_ever(broker: Broker) -> None:
    broker.port.topics.create("t", 1, {"retention_seconds": "0"})
    fill(broker)
    age(broker, 4000 * DAY)
    assert broker.tidy() == 0
    assert first_offset(broker) == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder[1:] == ("topic", "t")


def test_a_topic_larger_than_its_size_loses_the_oldest(broker: Broker) -> None:
    broker.port.topics.create("t", 1, {"retention_seconds": "0", "retention_bytes": "30000"})
    for _ in range(3):
        fill(broker, 1)
        broker.tidy()
        first, end = first_offset(broker), broker.info("t").max_offsets[0]
        stored = len(pulled(broker, first))
        assert end - first > 10
        assert 30_000 - 2 * len(BODY) < stored <= 30_000
    broker.restart()
    fill(broker, 1)
    broker.tidy()
    assert 30_000 - 2 * len(BODY) < len(pulled(broker, first_offset(broker))) <= 30_000


def test_a_size_counts_over_all_queues_of_a_topic(broker: Broker) -> None:
    """The oldest go first, whichever queue they are in."""
    broker.port.topics.create("t", 2, {"retention_bytes": "30000"})
    route = broker.port.topics.route("t", None)
    for sharding in ("a", "b", "c", "d"):
        template = broker.port.topics.template(route, properties={}, sharding=sharding)
        broker.publish(template, *[BODY] * 10)
        broker.step()
    broker.tidy()
    info = broker.port.topics.info("t")
    assert info is not None
    left = sum(info.max_offsets) - sum(info.min_offsets)
    assert 12 <= left <= 15
    broker.port.topics.set("t", {"retention_bytes": "default"})
    broker.tidy()
    assert broker.info("t").min_offsets == info.min_offsets
    broker.port.topics.set("t", {"retention_bytes": "10000"})
    broker.tidy()
    info = broker.port.topics.info("t")
    assert info is not None
    assert 3 <= sum(info.max_offsets) - sum(info.min_offsets) <= 5


def test_a_changed_setting_holds_for_what_is_there(broker: Broker) -> None:
    fill(broker, 1)
    age(broker, 100)
    broker.tidy()
    assert first_offset(broker) == 0
    broker.port.topics.set("t", {"retention_seconds": "50"})
    broker.tidy()
    assert first_offset(broker) > 0


def test_offsets_go_on_after_everything_is_gone(broker: Broker) -> None:
    """Over restarts, with and without the caches: an offset is never given twice."""
    fill(broker)
    end = broker.info("t").max_offsets[0]
    age(broker)
    fill(broker, 2, "other")
    assert broker.tidy() >= 3 * SEGMENT
    last = broker.store.log.appended
    fill(broker, 4, "other")
    age(broker)
    fill(broker, 2, "other")
    broker.tidy()
    assert broker.store.log.start > last  # no record says any more how far the queue had come
    for lost in ((), ("state.db",), ("state.db", "checkpoint")):
        broker.stop()
        for name in lost:
            (broker.directory / name).unlink()
        broker.open()
        info = broker.port.topics.info("t")
        assert info is not None
        assert (info.min_offsets[0], info.max_offsets[0]) == (end, end)
    broker.publish(broker.template("t"), BODY)
    broker.step()
    assert broker.info("t").max_offsets == (end + 1,)
    assert pulled(broker, end).count(BODY) == 1


# --- who holds segments -------------------------------------------------------------------


def test_segments_that_nobody_wants_go(broker: Broker) -> None:
    fill(broker)
    age(broker)
    fill(broker, 2)
    broker.tidy()
    assert broker.store.log.start >= 4 * SEGMENT
    assert broker.engine.retention.deleted_bytes >= 4 * SEGMENT
    assert len(list((broker.directory / "commitlog").iterdir())) <= 5


def test_an_unsettled_message_of_a_durable_queue_holds_its_segment(broker: Broker) -> None:
    declare(broker, "q")
    fill(broker)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() == 0
    held = broker.engine.retention.holder
    assert held is not None
    assert held[1:] == ("queue", "q")
    spy, registration = consume(broker, "q", 10_000)
    registration.settle(0, len(spy.got) - 1)
    broker.step(1)
    assert broker.tidy() > 0
    start = broker.store.log.start
    registration.cancel()
    registration.requeue(len(spy.got) - 1, 1)
    again, _ = consume(broker, "q", 10_000)
    assert [body for _, body, _ in again.got] == [BODY]
    broker.restart()
    again, _ = consume(broker, "q", 10_000)
    assert again.bodies == [BODY]
    assert broker.store.log.start == start


def test_a_message_that_was_given_back_holds_although_later_ones_are_settled(
    broker: Broker,
) -> None:
    declare(broker, "q")
    fill(broker)
    spy, registration = consume(broker, "q", 10_000)
    registration.settle(1, len(spy.got) - 1)
    age(broker)
    fill(broker, 2, "other")
    assert broker.tidy() == 0
    registration.settle(0, 1)
    assert broker.tidy() >= 3 * SEGMENT


def test_a_queue_in_memory_holds_as_long_as_it_lives(broker: Broker) -> None:
    declare(broker, "q", durable=False)
    fill(broker)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder.name == "q"
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=None)
    assert broker.tidy() >= 4 * SEGMENT


def test_a_session_that_is_away_holds_what_it_has_not_seen(broker: Broker) -> None:
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=SpyLink(), principal="u"
    )
    session.subscribe(("t", REST), at_qos(1))
    broker.step()
    session.disconnect()
    fill(broker)
    age(broker)
    fill(broker, 2, "other")
    assert broker.tidy() == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder[1:] == ("session", "c")
    broker.restart()
    link = SpyLink(100_000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    session.resume()
    broker.step(1)
    assert acknowledge_all(broker, session, link) > 100
    assert broker.tidy() >= 3 * SEGMENT


def test_nothing_goes_that_no_snapshot_covers(broker: Broker) -> None:
    """Without `state.db` there is nothing to copy the state from."""
    broker.stop()
    broker.with_state_db = False
    broker.open()
    fill(broker)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() == 0
    assert first_offset(broker) > 0


def test_an_index_that_cannot_be_read_holds_everything(broker: Broker) -> None:
    """Nothing is deleted on a guess."""
    declare(broker, "q")
    fill(broker)
    age(broker)
    fill(broker, 2)
    index = broker.engine.exchanges.queues["q"].queue.index

    def fail(*_: object) -> bytes:
        raise StorageFailed("damaged")

    class Unreadable(type(index)):  # type: ignore[misc]
        __slots__ = ()
        read_cold = fail

    index.__class__ = Unreadable
    assert broker.tidy() == 0
    assert broker.engine.retention.holder == (-1, "queue", "q")


def test_a_reader_that_comes_too_late_is_no_read_error(broker: Broker) -> None:
    """It had its index entries when the segment went."""
    fill(broker)
    index = broker.engine.topics.topics["t"].queues[0].index
    entry = index.read_hot(0, 1) or index.read_cold(0, 1)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() > 0
    found: list[bytes | None] = []
    broker.engine.core.reading.read_entries(entry, lambda records, _: found.append(records))
    assert found == [None]
    assert broker.engine.core.read_errors_count == 0


# --- retained messages --------------------------------------------------------------------


def retained_of(broker: Broker, client: str) -> list[tuple[str, bytes]]:
    link = SpyLink(10_000)
    session = broker.port.sessions.connect(
        client, clean=True, expiry_seconds=0, link=link, principal="u"
    )
    session.resume()
    since = session.subscribe(("home", REST), at_qos(1))
    broker.step()
    session.replay_retained(("home", REST), since)
    broker.step(1)
    session.disconnect()
    assert all(retain for *_, retain in link.publishes)
    return sorted((topic, body) for topic, body, *_ in link.publishes)


@pytest.mark.parametrize("lost", [(), ("state.db",)], ids=["", "without state.db"])
def test_a_retained_message_is_copied_forward(broker: Broker, lost: tuple[str, ...]) -> None:
    for room in ("a", "b", "c"):
        broker.publish(broker.template("home", room, retain=True), room.encode())
    broker.step()
    before = retained_of(broker, "r0")
    assert len(before) == 3
    fill(broker)
    age(broker)
    fill(broker, 2)
    broker.publish(broker.template("home", "c", retain=True), b"newer")
    broker.publish(broker.template("home", "b", retain=True), b"")
    broker.step()
    assert broker.tidy() >= 4 * SEGMENT
    assert broker.engine.retention.copied_count == 1
    expected = [("home/a", b"a"), ("home/c", b"newer")]
    assert retained_of(broker, "r1") == expected
    assert broker.info("home").max_offsets == (5,)
    broker.stop()
    for name in lost:
        (broker.directory / name).unlink()
    broker.open()
    assert retained_of(broker, "r2") == expected


def test_a_copy_never_replaces_a_newer_message(broker: Broker) -> None:
    """It was published while the old one was being read."""
    broker.publish(broker.template("home", "a", retain=True), b"old")
    broker.step()
    fill(broker)
    age(broker)
    fill(broker, 2)
    broker.save()
    steps = broker.engine.retention.round()
    result: Any = None
    published = False
    for _ in range(10_000):
        try:
            step = steps.send(result)
        except StopIteration:
            break
        result = step.run() if isinstance(step, InWorker) else None
        if isinstance(result, list) and result and getattr(result[0], "body", None) == b"old":
            broker.publish(broker.template("home", "a", retain=True), b"new")
            published = True
        broker.step(0.5)
    assert published
    assert retained_of(broker, "r") == [("home/a", b"new")]
    broker.restart()
    assert retained_of(broker, "r2") == [("home/a", b"new")]


def test_many_retained_messages_hold_their_segment(broker: Broker) -> None:
    """More than a quarter of a segment is not worth writing again."""
    for number in range(20):
        broker.publish(broker.template("home", f"r{number}", retain=True), BODY)
    fill(broker)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() == 0
    assert broker.engine.retention.holder is not None
    assert broker.engine.retention.holder.kind == "retained"
    assert broker.engine.retention.copied_count == 0


# --- state --------------------------------------------------------------------------------


def make_everything(broker: Broker) -> None:
    """One of each kind of state."""
    engine = broker.engine
    engine.port.topics.create("kept", 3, {"retention_seconds": "7"})
    engine.port.exchanges.declare(
        "x", type="direct", durable=True, auto_delete=False, internal=False, arguments={"a": "b"}
    )
    for name in ("q1", "q2"):
        engine.port.queues.declare(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )
    engine.port.exchanges.bind_queue("q1", "x", "key", {}, owner=None)
    engine.port.exchanges.bind_queue("q1", "kept", "a.*.#", {}, owner=None)
    engine.port.queues.declare_subscription("webhook", ("kept", ONE_LEVEL))
    engine.port.documents.put("rule", "ü", {"n": 1, "text": "line\nbreak \udcff"})
    session = engine.port.sessions.connect(
        "device", clean=False, expiry_seconds=None, link=SpyLink(), principal="u"
    )
    session.subscribe(("kept", REST), at_qos(2))
    session.subscribe(("other", ONE_LEVEL), at_qos(0))
    template = broker.template("kept", "a.b")
    broker.publish(template, b"1", b"2", b"3")
    broker.publish(broker.template("home", "a", retain=True), b"warm")
    engine.port.sessions.publish_once(
        broker.template("kept", "x", qos=2), batch_of(b"once"), 0, 1, session, (77,)
    )
    broker.step(1)
    session.disconnect()
    spy, registration = consume(broker, "q1")
    assert len(spy.got) == 3
    registration.settle(0, 1)
    registration.settle(2, 1)
    registration.cancel()
    registration.requeue(1, 1)
    broker.step(1)


def state_of(broker: Broker) -> dict[tuple[str, str], object]:
    """All rows of the state, as `state.db` would have them."""
    engine = broker.engine
    keys = [("topic", name) for name in engine.topics.topics]
    keys += [("exchange", name) for name in engine.exchanges.exchanges]
    keys += [("queue", name) for name in engine.exchanges.queues]
    keys += [("filter", str(found.queue.number)) for found in engine.sessions.filters.values()]
    keys += [("group", str(number)) for number in engine.queue_store.groups]
    keys += [("session", str(number)) for number in engine.sessions.by_number]
    keys += [("document", "rule\x00ü")]
    rows: dict[tuple[str, str], object] = {key: engine.fold.row(*key) for key in keys}
    rows["number", "next"] = str(engine.core.next_number)
    rows["retained", "home"] = str(retained_of(broker, "state reader"))
    return rows


@pytest.mark.parametrize(
    "lost",
    [(), ("state.db",), ("state.db", "checkpoint"), ("checkpoint",)],
    ids=["nothing", "state.db", "state.db and indexes", "indexes"],
)
def test_all_state_outlives_its_segments(broker: Broker, lost: tuple[str, ...]) -> None:
    """Topics, queues, bindings, sessions, retained messages, offsets, documents: the log alone has
    them, although the records that made them are gone."""
    make_everything(broker)
    broker.port.queues.delete("q2", if_unused=False, if_empty=False, owner=None)
    fill(broker)
    age(broker)
    # What still holds the first segment: the queues' and the session's messages.
    _, registration = consume(broker, "q1")
    registration.settle(1, 1)
    registration.cancel()
    webhook = broker.port.queues.subscription_queue("webhook")
    broker.port.queues.purge(webhook, owner=None)
    link = SpyLink(10_000)
    session = broker.port.sessions.connect(
        "device", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    session.resume()
    broker.step(1)
    acknowledge_all(broker, session, link)
    session.disconnect()
    fill(broker, 2)
    assert broker.tidy() >= 4 * SEGMENT
    declare(broker, "later")
    broker.step(1)
    before = state_of(broker)
    assert "'in': [77]" in str(before)
    broker.stop()
    for name in lost:
        (broker.directory / name).unlink()
    broker.open()
    assert state_of(broker) == before
    broker.restart()
    assert state_of(broker) == before


def test_a_second_deletion_needs_no_second_snapshot(broker: Broker) -> None:
    """One snapshot covers all that stood before it."""
    fill(broker, 6)
    age(broker)
    fill(broker, 2)
    declare(broker, "late")
    broker.port.topics.set("t", {"retention_bytes": str(6 * SEGMENT)})
    broker.port.topics.set("t", {"retention_seconds": "0"})
    broker.tidy()
    first = broker.engine.retention.snapshot
    assert first is not None
    start = broker.store.log.start
    broker.port.topics.set("t", {"retention_bytes": str(4 * SEGMENT)})
    assert broker.tidy() > 0
    assert broker.store.log.start > start
    assert broker.engine.retention.snapshot == first


def test_an_idle_broker_does_not_write_snapshots_for_ever(broker: Broker) -> None:
    """A state that is larger than a segment: each snapshot would make room for the next one."""
    for number in range(300):
        declare(broker, f"queue{number}")
    fill(broker, 1)
    age(broker)
    for number in range(300):
        broker.port.queues.purge(f"queue{number}", owner=None)
    for _ in range(4):
        broker.tidy()
        age(broker)
    end = broker.store.log.appended
    for _ in range(4):
        broker.tidy()
        age(broker)
    assert broker.store.log.appended - end < SEGMENT // 4


def test_a_half_written_snapshot_does_not_count(broker: Broker) -> None:
    """The broker dies in the middle of it; the next one finds the one before it."""
    for number in range(3):
        broker.port.documents.put("rule", f"first{number}", {"text": "x" * 30_000})
    fill(broker)
    age(broker)
    fill(broker, 2)
    assert broker.tidy() > 0
    for number in range(3):
        broker.port.documents.put("rule", f"second{number}", {"text": "y" * 30_000})
    age(broker)
    fill(broker, 6)
    broker.save()
    steps = broker.engine.retention.round()
    result: Any = None
    while not (isinstance(result, list) and result and isinstance(result[0], bytes)):
        step = steps.send(result)
        result = step.run() if isinstance(step, InWorker) else None
    assert len(result) > 3
    steps.send(result)  # appends the first piece
    steps.close()
    broker.step(1)
    before = broker.port.documents.of_kind("rule")
    broker.kill()
    (broker.directory / "state.db").unlink()
    broker.open()
    assert broker.store.log.start > 0
    assert broker.port.documents.of_kind("rule") == before
    assert len(before) == 6


@pytest.mark.slow
def test_a_kill_at_any_step_of_a_round_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    """Not with `state.db` and not without it: a segment goes only when what it held is elsewhere,
    on the disk."""
    declare(broker, "q")
    declare(broker, "empty")
    broker.port.documents.put("rule", "a", {"n": 1})
    broker.publish(broker.template("home", "a", retain=True), b"warm")
    fill(broker)
    age(broker)
    broker.port.queues.purge("q", owner=None)
    broker.port.queues.purge("empty", owner=None)
    fill(broker, 2)
    broker.port.queues.purge("empty", owner=None)
    count = len(consume(broker, "q", 100_000)[0].got)
    end = broker.info("t").max_offsets[0]
    broker.step(1)
    broker.save()
    images: list[tuple[Path, bool]] = []
    steps = broker.engine.retention.round()
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            break
        result = None
        if step is None:
            continue
        image = tmp_path / f"image{len(images)}"
        shutil.copytree(broker.directory, image)
        images.append((image, len(images) % 2 == 0))
        result = broker.do(step)
    assert broker.store.log.start >= 4 * SEGMENT
    assert len(images) > 5
    for image, without_cache in images:
        again = Broker(tmp_path / "unused")
        again.stop()
        again.store_settings, again.directory = broker.store_settings, image
        if without_cache:
            for name in ("state.db", "state.db-wal", "state.db-shm", "checkpoint"):
                (image / name).unlink(missing_ok=True)
        again.open()
        assert again.engine.port.documents.of_kind("rule") == {"a": {"n": 1}}
        assert retained_of(again, "r") == [("home/a", b"warm")]
        assert len(consume(again, "q", 100_000)[0].got) == count
        assert consume(again, "empty")[0].got == []
        assert again.info("t").max_offsets == (end,)
        again.stop()


def test_a_log_without_its_state_is_refused(broker: Broker) -> None:
    """Better no server than one that has forgotten who it serves."""
    fill(broker)
    age(broker)
    fill(broker, 2)
    broker.tidy()
    fill(broker, 2)
    broker.stop()
    (broker.directory / "state.db").unlink()
    segments = sorted((broker.directory / "commitlog").glob("0*"))
    for segment in segments[:-1]:
        segment.unlink()
    try:
        with pytest.raises(StoreCorrupt, match="no snapshot of the state"):
            broker.open()
    finally:
        broker.store.close()
        broker.directory = broker.directory.with_name("fresh")
        broker.open()
