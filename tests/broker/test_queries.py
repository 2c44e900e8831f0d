"""Finding messages by key, by position and by time, over a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Durability
from polymq.broker.topics.settings import TopicSettings
from polymq.core_log.record import Record
from tests.harness.broker import Broker
from tests.harness.stores import decode_all


def put(broker: Broker, topic: str, body: bytes, *, keys: str = "") -> int:
    """Publish one message with keys; returns where it begins."""
    route = broker.port.topics.route(topic, "tag")
    properties = {"PMQ_PROTO": "ce", "KEYS": keys} if keys else {"PMQ_PROTO": "ce"}
    template = broker.port.topics.template(route, properties=properties)
    start = broker.store.log.appended
    broker.publish(template, body)
    return start


def find(
    broker: Broker,
    topic: str,
    key: str,
    *,
    count_max: int = 64,
    begin_ms: int = 0,
    end_ms: int = 1 << 60,
) -> list[bytes]:
    """The bodies that a query by key gives."""
    answers: list[bytes | None] = []
    broker.port.queries.by_key(
        topic,
        key,
        count_max=count_max,
        begin_ms=begin_ms,
        end_ms=end_ms,
        callback=answers.append,
    )
    (records,) = answers
    assert records is not None
    return [record.body for record in decode_all(records)]


def at(broker: Broker, position: int) -> tuple[str, Record | None]:
    """The topic and the message at a position."""
    answers: list[tuple[str, bytes]] = []
    broker.port.queries.by_position(position, lambda *answer: answers.append(answer))
    ((topic, raw),) = answers
    return topic, decode_all(raw)[0] if raw else None


@pytest.mark.parametrize("way", ["goes on", "restart", "kill"])
def test_messages_are_found_by_key(tmp_path: Path, way: str) -> None:
    """In their topic only, newest first, and after any end of the process."""
    broker = Broker(tmp_path / "data")
    put(broker, "orders", b"1", keys="o-1 c-9")
    put(broker, "orders", b"2", keys="o-2 c-9")
    put(broker, "returns", b"3", keys="o-1")
    put(broker, "orders", b"4")
    broker.step()
    if way == "restart":
        broker.restart()
    elif way == "kill":
        broker.kill()
        broker.open()
    assert find(broker, "orders", "o-1") == [b"1"]
    assert find(broker, "orders", "c-9") == [b"2", b"1"]
    assert find(broker, "orders", "c-9", count_max=1) == [b"2"]
    assert find(broker, "orders", "c-9", end_ms=5) == []
    assert find(broker, "returns", "o-1") == [b"3"]
    assert find(broker, "orders", "o-3") == []
    broker.store.close()


def test_a_query_is_bounded(tmp_path: Path) -> None:
    """A client that asks for a million messages gets as many as the broker gives."""
    broker = Broker(tmp_path / "data", query_count_max=5, query_bytes_max=1000)
    for number in range(9):
        put(broker, "t", b"%d" % number, keys="k")
    put(broker, "t", b"x" * 5000, keys="big")
    put(broker, "t", b"y" * 5000, keys="big")
    broker.step()
    assert len(find(broker, "t", "k", count_max=1_000_000)) <= 5
    assert find(broker, "t", "big") == [b"y" * 5000]
    broker.store.close()


@pytest.mark.parametrize(("topic", "key"), [("none", "k"), ("t", ""), ("t", "a b")])
def test_what_can_not_be_asked_is_refused(tmp_path: Path, topic: str, key: str) -> None:
    broker = Broker(tmp_path / "data")
    put(broker, "t", b"1")
    with pytest.raises(Refused) as refused:
        find(broker, topic, key)
    expected = Reason.NOT_FOUND if topic == "none" else Reason.BAD_ARGUMENT
    assert refused.value.reason is expected
    broker.store.close()


def test_messages_of_a_topic_that_was_deleted_are_not_found(tmp_path: Path) -> None:
    """Not in the topic that has its name afterwards, and not by position."""
    broker = Broker(tmp_path / "data")
    position = put(broker, "t", b"old", keys="k")
    broker.step()
    broker.port.topics.delete("t")
    assert at(broker, position) == ("", None)
    put(broker, "t", b"new", keys="k")
    broker.step()
    assert find(broker, "t", "k") == [b"new"]
    assert at(broker, position) == ("", None)
    broker.store.close()


def test_a_message_is_read_by_its_position(tmp_path: Path) -> None:
    """Only where one begins that is flushed: elsewhere nothing stands, nor do the broker's own
    records."""
    broker = Broker(tmp_path / "data")
    put(broker, "t", b"first")
    broker.step()
    position = put(broker, "t", b"second", keys="k")
    assert at(broker, position) == ("", None)
    broker.step()
    topic, record = at(broker, position)
    assert topic == "t"
    assert record is not None
    assert (record.body, record.properties["KEYS"]) == (b"second", "k")
    end = broker.store.log.flushed
    for at_byte in (-1, position + 1, position - 1, end, end - 1, 1 << 60):
        assert at(broker, at_byte) == ("", None)
    for own in broker.store.replay(0):
        if not own.targets:
            assert at(broker, own.position) == ("", None)
    broker.store.close()


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    """The first message at or after a time; the end where all are older. Also from the disk."""
    broker = Broker(tmp_path / "data")
    times = []
    for number in range(50):
        broker.step(0.5 if number % 3 else 0.0)
        times.append(broker.engine.core.clock_ms())
        put(broker, "t", b"%d" % number)
    broker.step()

    def offset(time_ms: int) -> int | None:
        answers: list[int | None] = []
        broker.port.queries.by_time("t", 0, time_ms, answers.append)
        (answer,) = answers
        return answer

    for _ in range(2):
        for time_ms in (0, times[0], times[7], times[7] + 1, times[-1], times[-1] + 1):
            expected = sum(1 for its in times if its < time_ms)
            assert offset(time_ms) == expected
        broker.save()
        broker.restart()
    with pytest.raises(Refused):
        broker.port.queries.by_time("t", 1, 0, lambda _: None)
    broker.store.close()


@pytest.mark.parametrize("durability", [Durability.FLUSHED, Durability.APPENDED])
def test_who_waits_at_the_end_of_a_queue_is_told_once_when_it_grows(
    tmp_path: Path, durability: Durability
) -> None:
    """Told means that a pull finds the message: that it is on the disk."""
    broker = Broker(tmp_path)
    broker.topic_defaults = TopicSettings(durability=durability)
    broker.restart()
    template = broker.template("orders", "a")
    broker.publish(template, b"0")
    broker.step(1.0)
    ends: list[int] = []

    def reported() -> None:
        info = broker.port.topics.info("orders")
        assert info is not None
        ends.append(info.max_offsets[0])

    broker.port.queries.when_grown("orders", 0, reported)
    broker.port.queries.when_grown("orders", 0, reported)
    broker.step(1.0)
    assert ends == []
    broker.publish(template, b"1")
    assert ends == []
    broker.step(1.0)
    assert ends == [2, 2]
    broker.publish(template, b"2")
    broker.step(1.0)
    assert ends == [2, 2]


def test_a_queue_that_is_not_there_cannot_be_waited_for(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.port.topics.create("orders", 1)
    for topic, queue_id in (("other", 0), ("orders", 1), ("orders", -1)):
        with pytest.raises(Refused):
            broker.port.queries.when_grown(topic, queue_id, lambda: None)
