"""Delayed messages through the engine, over a real store, on a clock that the test moves."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.delays.delayed import LEVEL_SECONDS
from polymq.broker.delays.wheel import Wheel
from polymq.broker.port import (
    Delivery,
    Durability,
    Position,
    Publishing,
    QueueConsumer,
    Reason,
    Refused,
    Template,
)
from polymq.core_log.errors import StorageFull
from tests.harness.broker import START_MS, Broker, SpyConsumer, batch_of

OWNER = object()
HOUR = 3600.0


def declare(broker: Broker, name: str) -> None:
    broker.port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )


def consume(broker: Broker, name: str, credit: int = 100_000) -> tuple[SpyConsumer, QueueConsumer]:
    consumer = SpyConsumer(credit)
    registration = broker.port.queues.consume(name, consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    return consumer, registration


def template(broker: Broker, queue: str, **properties: str) -> Template:
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    return broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp", **properties})


def later(broker: Broker, queue: str, seconds: float, *bodies: bytes) -> int:
    """Publish to a queue with a delay; returns the position."""
    return broker.port.delays.publish_later(
        template(broker, queue),
        batch_of(*bodies),
        0,
        len(bodies),
        delay_ms=round(1000 * seconds),
    )


def test_a_delayed_message_is_acked_now_and_seen_when_it_is_due(broker: Broker) -> None:
    """The ack waits for the flush only; the message comes not a moment before its time."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    position = later(broker, "q", 10, b"late")
    acked: list[int] = []
    broker.port.when_committed(Position(position), Durability.FLUSHED, acked.append, 1)
    broker.step()
    assert acked == [1]
    broker.step(9.999)
    assert consumer.bodies == []
    broker.step(0.2)
    assert consumer.got == [(0, b"late", False)]
    assert broker.engine.delays.waiting_count == 0


def test_messages_come_in_the_order_of_their_times_then_of_publishing(broker: Broker) -> None:
    """Milliseconds to a day, published in any order; equal times keep the order of publishing."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    random_ = random.Random(1)
    sent: list[tuple[int, int]] = []
    for number in range(300):
        due = START_MS + random_.choice([1, 7, 1000, 60_000, 7_200_000]) * 17
        broker.port.delays.publish_later(
            template(broker, "q"), batch_of(b"%d" % number), 0, 1, deliver_ms=due
        )
        sent.append((due, number))
    for _ in range(5):
        broker.step(8 * HOUR)
    assert consumer.bodies == [b"%d" % number for _, number in sorted(sent)]


def test_a_released_message_is_as_it_was_published(broker: Broker) -> None:
    """Topic, tag, properties and the time it was born; the broker's own marks are gone."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "news", type="topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    declare(broker, "q")
    engine.port.exchanges.bind_queue("q", "news", "sport.#", {}, owner=OWNER)
    route = engine.port.exchanges.route("news", "sport.tennis")
    assert route is not None
    made = engine.port.topics.template(
        route, properties={"PMQ_PROTO": "http", "content-type": "text/plain"}
    )
    got: list[Any] = []

    class Reader(SpyConsumer):
        def deliver(self, delivery: Delivery) -> None:
            got.extend(delivery.messages())

    registration = engine.port.queues.consume("q", Reader(), exclusive=False, owner=OWNER)
    registration.ready()
    engine.port.delays.publish_later(made, batch_of(b"match point"), 0, 1, delay_ms=5000)
    broker.step(6)
    (message,) = got
    assert (message.topic, message.tag, message.body) == ("news", "sport.tennis", b"match point")
    assert (message.born_ms, message.store_ms) == (START_MS, START_MS + 5000)
    assert not {name for name in message.properties if name in ("PMQ_D", "PMQ_Q", "DELAY")}
    assert message.properties["content-type"] == "text/plain"
    topic = engine.port.topics.info("news")
    assert topic is not None
    assert topic.max_offsets == (1,)


def test_nobody_can_read_the_queue_of_delayed_messages(broker: Broker) -> None:
    """The system topic is in no list and cannot be made, published to or read."""
    declare(broker, "q")
    later(broker, "q", 10, b"secret")
    broker.step()
    assert [topic.name for topic in broker.port.topics.infos()] == ["q"]
    with pytest.raises(Refused):
        broker.port.topics.route("rmq_sys_wheel_timer", None)


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_delays_survive_a_restart(
    tmp_path: Path, way: str, saved: bool, with_state_db: bool
) -> None:
    """Some were released before, some became due while nothing ran, some are due later: each comes
    exactly once, those that are overdue at once and in the order of their times."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    declare(broker, "q")
    for seconds, body in ((30, b"c"), (5, b"a"), (20, b"b"), (500, b"d"), (90_000, b"e")):
        later(broker, "q", seconds, body)
    broker.step(10)
    if saved:
        broker.save()
    if way == "stop":
        broker.stop()
    else:
        broker.step(1)
        broker.kill()
    broker.open(down_seconds=100)
    assert broker.engine.delays.waiting_count == 4
    consumer, _ = consume(broker, "q")
    broker.step(0.1)
    assert consumer.bodies == [b"a", b"b", b"c"]
    broker.step(600)
    broker.step(90_000)
    assert consumer.bodies == [b"a", b"b", b"c", b"d", b"e"]
    assert broker.engine.delays.waiting_count == 0
    broker.stop()


def test_a_release_that_is_cut_off_counts_once(tmp_path: Path) -> None:
    """The log ends anywhere within the records of a release: after the restart each message is
    there exactly once, in order."""
    broker = Broker(tmp_path / "data")
    declare(broker, "q")
    bodies = [b"%d" % number for number in range(8)]
    for body in bodies:
        later(broker, "q", 5, body)
    broker.step()
    broker.save()
    start = broker.store.log.appended
    broker.step(5.1)
    end = broker.store.log.appended
    assert end > start
    broker.kill()
    file = Path("commitlog") / f"{0:020d}"
    whole = (broker.directory / file).read_bytes()
    for cut in range(start, end, 311):
        torn = tmp_path / f"torn-{cut}"
        shutil.copytree(broker.directory, torn)
        (torn / file).write_bytes(whole[:cut] + bytes(len(whole) - cut))
        (torn / "checkpoint").unlink()
        again = Broker(torn)
        again.step(10)
        consumer, _ = consume(again, "q")
        again.step(1)
        again.step(1)
        assert consumer.bodies == bodies, cut
        again.stop()


def test_a_deleted_topic_cancels_what_was_meant_for_it(broker: Broker) -> None:
    """Also when a topic of the same name is made before the time comes."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    later(broker, "q", 5, b"never")
    broker.step()
    broker.port.topics.delete("q")
    later(broker, "q", 5, b"new")
    broker.step(6)
    assert consumer.bodies == [b"new"]
    assert (broker.engine.delays.dropped_count, broker.engine.delays.released_count) == (1, 1)
    broker.restart()
    assert broker.engine.delays.waiting_count == 0


def test_many_at_once_leave_in_slices(tmp_path: Path) -> None:
    """A thousand messages of one millisecond: several loop iterations, each bounded, in order."""
    broker = Broker(tmp_path / "data", pump_count_max=100)
    declare(broker, "q")
    bodies = [b"%d" % number for number in range(1000)]
    later(broker, "q", 5, *bodies)
    broker.step(4.9)
    slices = []
    publish = broker.engine.topics.publish

    def spy(template: Any, batch: Any, first: int, last: int, **more: Any) -> Any:
        slices.append(last - first)
        return publish(template, batch, first, last, **more)

    broker.engine.topics.publish = spy  # type: ignore[method-assign]
    broker.step(1)
    assert slices == [100] * 10
    consumer, _ = consume(broker, "q")
    broker.step(1)
    assert consumer.bodies == bodies
    broker.stop()


@pytest.mark.parametrize("way", ["window", "log"])
def test_one_very_late_message_holds_nothing(tmp_path: Path, way: str) -> None:
    """A message for next month, and a stream of others that are due soon: the late one is copied
    forward, so that neither the cursor's window nor the log behind it grows; it comes in time,
    once, also after a kill."""
    make = partial(Broker, tmp_path / "data", delay_watch_ms=1000)
    broker = make(delay_window_max=50) if way == "window" else make(delay_lag_bytes_max=20_000)
    declare(broker, "q")
    consumer, registration = consume(broker, "q")
    later(broker, "q", 30 * 24 * HOUR, b"next month")
    for number in range(400):
        later(broker, "q", 0.5, b"%d" % number)
        broker.step(0.5)
    group = broker.engine.delays._timed.group
    assert group is not None
    assert group.queue.index.end_offset - group.cursor.floor < 100
    entry = group.queue.index.read_hot(group.cursor.floor, 1) or group.queue.index.read_cold(
        group.cursor.floor, 1
    )
    assert broker.store.log.appended - int.from_bytes(entry[:8], "big") < 60_000
    assert broker.engine.delays.waiting_count <= 2
    registration.settle(0, 400)
    broker.step(1)
    broker.kill()
    broker.open()
    consumer, _ = consume(broker, "q")
    broker.step(1)
    assert consumer.bodies == []
    broker.stop()
    broker.open(down_seconds=30 * 24 * HOUR - 1000)
    consumer, _ = consume(broker, "q")
    broker.step(700)
    assert consumer.bodies == []
    broker.step(400)
    assert consumer.bodies == [b"next month"]
    broker.stop()


def test_a_copy_that_is_cut_off_counts_once(tmp_path: Path) -> None:
    """The log ends within or right behind the copies of two late messages, before any record of
    acks: both come once, in order."""
    broker = Broker(tmp_path / "data", delay_window_max=5)
    declare(broker, "q")
    later(broker, "q", 5000, b"a")
    later(broker, "q", 5001, b"b")
    later(broker, "q", 5, *[b"%d" % number for number in range(30)])
    broker.step(10)
    broker.save()
    start = broker.store.log.appended
    broker.engine.delays._look_back()
    broker.loop.run()
    end = broker.store.log.appended
    assert end > start + 300
    broker.kill()
    file = Path("commitlog") / f"{0:020d}"
    whole = (broker.directory / file).read_bytes()
    for cut in (start + 1, (start + end) // 2, end - 1, end):
        torn = tmp_path / f"torn-{cut}"
        shutil.copytree(broker.directory, torn)
        (torn / file).write_bytes(whole[:cut] + bytes(len(whole) - cut))
        (torn / "checkpoint").unlink()
        again = Broker(torn)
        assert again.engine.delays.waiting_count == 2
        consumer, _ = consume(again, "q")
        again.step(5002)
        assert consumer.bodies[30:] == [b"a", b"b"], cut
        again.stop()


def test_a_full_disk_only_delays_more(broker: Broker) -> None:
    """The log refuses in the middle of a release: the rest comes when there is room, in order."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    for number in range(6):
        broker.loop.run(0.001)  # born in different milliseconds: runs of their own
        broker.port.delays.publish_later(
            template(broker, "q"), batch_of(b"%d" % number), 0, 1, deliver_ms=START_MS + 5000
        )
    broker.step(4)
    append_run = broker.store.log.append_run
    calls = 0

    def sometimes_full(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 4, 5):
            raise StorageFull("no space left")
        return append_run(*args, **more)

    broker.store.log.append_run = sometimes_full  # type: ignore[method-assign]
    broker.step(5)
    assert consumer.bodies == [b"%d" % number for number in range(6)]
    assert calls > 6


def test_a_record_that_cannot_be_read_holds_up_no_other(broker: Broker) -> None:
    """One of five is damaged on the disk: four come, the fifth is told."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    for number in range(5):
        later(broker, "q", 5, b"%d" % number)
    broker.step(4)
    log = broker.store.log
    read_cold = log.read_cold

    def damaged(entries: bytes, stride: int) -> bytes:
        records = read_cold(entries, stride)
        if b"\x003rmq" in records or records.find(b"3\x13rmq") >= 0:
            raise StorageFull("a bad sector")
        return records

    log.read_hot = lambda entries, stride: None  # type: ignore[method-assign]
    log.read_cold = damaged  # type: ignore[method-assign]
    broker.step(2)
    log.__dict__.pop("read_hot")
    log.__dict__.pop("read_cold")
    broker.step(1)
    assert consumer.bodies == [b"0", b"1", b"2", b"4"]
    assert broker.engine.core.read_errors_count >= 1


def test_what_the_watermark_took_is_not_missed(broker: Broker) -> None:
    """The oldest were given up with their segment: the others come, and nothing gone is read."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    for number in range(4):
        later(broker, "q", 5, b"%d" % number)
    broker.step(1)
    group = broker.engine.delays._timed.group
    assert group is not None
    broker.engine.core.journal.write({"op": "drop", "g": [[group.number, 2]]})
    broker.step(5)
    assert consumer.bodies == [b"2", b"3"]
    broker.engine.core.journal.write({"op": "drop", "g": [[group.number, 4]]})
    later(broker, "q", 5, b"4")
    broker.engine.core.journal.write({"op": "drop", "g": [[group.number, 5]]})
    later(broker, "q", 6, b"5")
    broker.step(7)
    assert consumer.bodies == [b"2", b"3", b"5"]


def test_limits_are_told(tmp_path: Path) -> None:
    """Too far ahead, and too many that wait: refused with a sentence, and nothing stored."""
    broker = Broker(tmp_path / "data", delayed_max=3)
    declare(broker, "q")
    later(broker, "q", 365 * 24 * HOUR, b"a", b"b", b"c")
    before = broker.store.log.appended
    with pytest.raises(Refused) as refused:
        later(broker, "q", 367 * 24 * HOUR, b"d")
    assert (refused.value.reason, "366 days" in refused.value.text) == (Reason.BAD_ARGUMENT, True)
    with pytest.raises(Refused) as refused:
        later(broker, "q", 1, b"d")
    assert refused.value.reason is Reason.LIMIT
    assert broker.store.log.appended == before
    broker.stop()


def test_retained_messages_have_a_limit_when_they_are_delayed_too(tmp_path: Path) -> None:
    """One that does not fit when it is due is published and not retained. Once there is no room, a
    delayed one is refused like any other."""
    broker = Broker(tmp_path / "data", retained_max=2)
    for name in ("1", "2", "3", "4"):
        made = broker.port.topics.template(
            broker.port.topics.route("r", name), properties={}, retain=True
        )
        broker.port.delays.publish_later(made, batch_of(name.encode()), 0, 1, delay_ms=1000)
    broker.step()
    broker.step(2)
    retained = broker.engine.retained
    assert (retained.count, retained.unretained_count) == (2, 2)
    assert broker.engine.delays.released_count == 4
    made = broker.port.topics.template(
        broker.port.topics.route("r", "5"), properties={}, retain=True
    )
    with pytest.raises(Refused) as refused:
        broker.port.delays.publish_later(made, batch_of(b"5"), 0, 1, delay_ms=1000)
    assert refused.value.reason is Reason.LIMIT
    broker.restart()
    assert broker.engine.retained.count == 2
    broker.stop()


def test_what_is_not_retained_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is tried, because the disk is full."""
    broker = Broker(tmp_path / "data", retained_max=1)
    for name in ("1", "2"):
        made = broker.port.topics.template(
            broker.port.topics.route("r", name), properties={}, retain=True
        )
        broker.port.delays.publish_later(made, batch_of(name.encode()), 0, 1, delay_ms=1000)
    append_run = broker.store.log.append_run
    calls = 0

    def sometimes_full(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (2, 3, 4):
            raise StorageFull("no space left")
        return append_run(*args, **more)

    monkeypatch.setattr(broker.store.log, "append_run", sometimes_full)
    broker.step(10)
    assert broker.engine.delays.released_count == 2
    assert calls > 4
    assert broker.engine.retained.unretained_count == 1
    broker.stop()


def test_a_time_that_has_passed_means_now(broker: Broker) -> None:
    """The message takes the usual way, without the wheel."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    broker.port.delays.publish_later(
        template(broker, "q"), batch_of(b"x"), 0, 1, deliver_ms=START_MS - 1
    )
    later(broker, "q", 0, b"y")
    broker.step()
    assert consumer.bodies == [b"x", b"y"]
    assert broker.engine.delays.row() is None


def test_a_transaction_delays_from_its_commit(broker: Broker) -> None:
    """Delayed and other messages in one batch: each at its time."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    parts = [
        Publishing(
            template=template(broker, "q"), batch=batch_of(body), first=0, last=1, delay_ms=ms
        )
        for body, ms in ((b"later", 2000), (b"now", 0), (b"last", 3000))
    ]
    broker.port.transactions.commit(parts, [])
    broker.step()
    assert consumer.bodies == [b"now"]
    broker.step(2.1)
    assert consumer.bodies == [b"now", b"later"]
    broker.step(1)
    assert consumer.bodies == [b"now", b"later", b"last"]


def test_the_snapshot_of_a_window_with_many_holes_is_small(tmp_path: Path) -> None:
    """Every second message was released: what the snapshot says of them does not grow with the
    number of holes, and a restart knows each."""
    broker = Broker(tmp_path / "data")
    declare(broker, "q")
    for number in range(3000):
        later(broker, "q", 5 if number % 2 else 5000, b"%d" % number)
    broker.step(6)
    group = broker.engine.delays._timed.group
    assert group is not None
    assert len(str(group.cursor.snapshot())) < 1000
    broker.restart()
    assert broker.engine.delays.waiting_count == 1500
    consumer, registration = consume(broker, "q")
    assert len(consumer.got) == 1500
    registration.settle(0, 1500)
    broker.step(5000)
    assert consumer.bodies[1500:] == [b"%d" % number for number in range(0, 3000, 2)]
    broker.stop()


def test_the_properties_of_rocketmq_are_understood(broker: Broker) -> None:
    """Levels, seconds, milliseconds, times; the level counts first, as in RocketMQ."""
    engine = broker.engine
    assert len(LEVEL_SECONDS) == 18
    for properties, expected in (
        ({}, None),
        ({"DELAY": "0"}, None),
        ({"DELAY": "1"}, START_MS + 1000),
        ({"DELAY": "14"}, START_MS + 600_000),
        ({"DELAY": "18"}, START_MS + 7_200_000),
        ({"DELAY": "99"}, START_MS + 7_200_000),
        ({"TIMER_DELAY_SEC": "3"}, START_MS + 3000),
        ({"TIMER_DELAY_MS": "250"}, START_MS + 250),
        ({"TIMER_DELIVER_MS": str(START_MS + 5)}, START_MS + 5),
        ({"DELAY": "2", "TIMER_DELIVER_MS": "77"}, START_MS + 5000),
    ):
        assert engine.port.delays.deliver_ms(properties) == expected, properties
    with pytest.raises(Refused):
        engine.port.delays.deliver_ms({"TIMER_DELAY_MS": "soon"})


@pytest.mark.parametrize("bit", [0, 3, 12, 33, 40, 41, 42, 62, 63])
def test_a_flipped_bit_in_an_entry_makes_no_message_early_or_lost(tmp_path: Path, bit: int) -> None:
    """Nothing but its own check covers a due time in an index's file: the record has it, too."""
    broker = Broker(tmp_path / "data")
    broker.stop()
    broker.store_settings = replace(broker.store_settings, index_packed_bytes_max=0)
    broker.directory = tmp_path / "files"
    broker.open()
    declare(broker, "q")
    for number in range(3):
        later(broker, "q", 50 + number, b"%d" % number)
    broker.step(1)
    group = broker.engine.delays._timed.group
    assert group is not None
    path = broker.directory / "consumequeue" / str(group.queue.number) / f"{0:020d}"
    broker.stop()
    data = bytearray(path.read_bytes())
    assert len(data) == 3 * 20
    data[20 + 19 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
    broker.open()
    consumer, _ = consume(broker, "q")
    broker.step(48.9)
    assert consumer.bodies == []
    for number in range(3):
        broker.step(1)
        assert consumer.bodies == [b"%d" % earlier for earlier in range(number + 1)]
    assert broker.engine.delays.waiting_count == 0
    broker.stop()


def test_a_message_that_the_wheel_has_too_early_goes_back_and_comes_once(broker: Broker) -> None:
    """The clock was set back, or memory lied: the record has the last word."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    for number in range(4):
        later(broker, "q", 5 + number // 2, b"%d" % number)
    broker.step(1)
    stored = broker.engine.delays._timed
    assert stored.group is not None
    entries = stored.group.queue.index.read_hot(0, 4)
    assert entries is not None
    stored.wheel = Wheel()
    now = broker.loop.clock_ms()
    for number in range(4):
        stored.wheel.add(now + 1, entries[20 * number : 20 * number + 20], number, now)
    broker.engine.delays._arm()
    broker.step(3)
    assert consumer.bodies == []
    assert broker.engine.delays.waiting_count == 4
    broker.step(1.1)
    assert consumer.bodies == [b"0", b"1"]
    broker.step(1)
    assert consumer.bodies == [b"0", b"1", b"2", b"3"]
    assert broker.engine.delays.waiting_count == 0
