"""What the source asks the broker and makes of the answers, over sockets, without Spark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polymq.remoting.client import ClientSettings, Pulled, TopicName
from polymq.remoting.driver_blocking import BlockingClient
from polymq.spark_sink import reading
from polymq.spark_sink.envelope import arrow_schema, envelope_schema
from polymq.spark_sink.errors import DataLoss, SinkError, Unavailable
from polymq.spark_sink.offsets import Bounds, Queue, Range
from polymq.spark_sink.reading import Reading, list_topics, look, read_range
from polymq.spark_sink.selection import Selection, parse_pattern
from tests.remoting.record_builder import build_properties, build_record
from tests.spark_sink.topic_server import TopicServer, topic_server

T0 = Queue("broker-a", "t", 0)


@pytest.fixture
def server() -> Iterator[TopicServer]:
    with topic_server() as started:
        started.port.create("t", incarnation=7)
        yield started


@pytest.fixture
def client(server: TopicServer) -> Iterator[BlockingClient]:
    settings = ClientSettings(attempts_max=2, pause_first_seconds=0)
    with BlockingClient([server.address], settings=settings) as made:
        yield made


def wanted(first: int, end: int, *, planned_first: int | None = None) -> Range:
    return Range(
        queue=T0,
        first=first,
        end=end,
        planned_first=first if planned_first is None else planned_first,
        incarnation=7,
    )


def read(client: Any, span: Range, *, fail: bool = True) -> list[bytes]:
    how = Reading(brokers=("unused:1",), fail_on_data_loss=fail, with_range=True)
    schema = arrow_schema(envelope_schema(with_range=True))
    batches = list(read_range(client, span, how, schema))
    texts = {text for batch in batches for text in batch.column("_range").to_pylist()}
    assert texts <= {f"{span.planned_first}-{span.end}-7@broker-a"}
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_a_snapshot_of_topics(server: TopicServer, client: BlockingClient) -> None:
    """Those that do not exist are left out; without names, all that a table can show."""
    server.port.create("a/b", queues=2, incarnation=8)
    server.port.create("\udcff")
    server.port.append("a/b", b"1", b"2", queue_id=1)
    server.port.expire("a/b", 1, queue_id=1)
    a_b = {
        Queue("broker-a", "a/b", 0): Bounds(first=0, end=0, incarnation=8),
        Queue("broker-a", "a/b", 1): Bounds(first=1, end=2, incarnation=8),
    }
    t = {T0: Bounds(first=0, end=0, incarnation=7)}
    named = look(client, Selection(topics=frozenset(("a/b", "missing"))))
    assert (named.queues, named.brokers) == (a_b, {"broker-a"})
    assert look(client, Selection()).queues == {**a_b, **t}
    assert look(client, Selection(pattern=parse_pattern("a.*"))).queues == a_b
    assert look(client, Selection(excluded=frozenset(("a/b",)))).queues == t
    assert list_topics(client) == ["a/b", "t"]


def test_a_topic_that_only_a_name_server_knows_is_left_out_with_a_word(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By its name in the log, its broker is not asked."""
    names = [TopicName(stored=name, user=name) for name in ("t", "w|c3|a4rme")]
    monkeypatch.setattr(client, "topics", lambda: names)
    assert set(look(client, Selection()).queues) == {T0}
    assert "topic w|c3|a4rme is left out" in caplog.text


def test_a_range_is_read_in_slices_and_cut_at_its_end(
    server: TopicServer, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PULL_COUNT", 4)
    monkeypatch.setattr(reading, "BATCH_ROWS", 3)
    server.port.append("t", *(b"%d" % n for n in range(20)))
    assert read(client, wanted(3, 14)) == [b"%d" % n for n in range(3, 14)]
    assert [asked[2:4] for asked in server.port.asked] == [(3, 4), (7, 4), (11, 3)]


def test_what_retention_takes_while_a_range_is_read(
    server: TopicServer, client: BlockingClient
) -> None:
    """It was there when the batch was planned."""
    server.port.append("t", *(b"%d" % n for n in range(10)))
    server.port.expire("t", 6)
    with pytest.raises(DataLoss, match="begins at 6, 2 was next"):
        read(client, wanted(2, 8))
    assert read(client, wanted(2, 8), fail=False) == [b"6", b"7"]
    assert read(client, wanted(2, 5), fail=False) == []


@pytest.mark.parametrize("fail", [True, False])
def test_an_end_that_the_broker_no_longer_has(
    server: TopicServer, client: BlockingClient, fail: bool
) -> None:
    server.port.append("t", b"0", b"1", b"2")
    with pytest.raises(DataLoss, match="ends at 3, but a batch was planned up to 5"):
        read(client, wanted(0, 5), fail=fail)


def recreate(server: TopicServer) -> None:
    server.port.create("t", incarnation=8)
    server.port.append("t", b"other 0", b"other 1", b"other 2")


def delete(server: TopicServer) -> None:
    del server.port.topic_by_name["t"]


@pytest.mark.parametrize("change", [recreate, delete])
def test_a_topic_that_is_deleted_while_it_is_read(
    server: TopicServer,
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[TopicServer], None],
) -> None:
    """What is left of the range is lost; nothing of a new topic gets into it."""
    monkeypatch.setattr(reading, "PULL_COUNT", 2)
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    monkeypatch.setattr(reading, "AHEAD_BYTES", 0)
    server.port.append("t", *(b"%d" % n for n in range(6)))
    schema = arrow_schema(envelope_schema(with_range=True))
    for fail in (False, True):
        how = Reading(brokers=("unused:1",), fail_on_data_loss=fail, with_range=True)
        batches = read_range(client, wanted(0, 6), how, schema)
        if not fail:
            assert next(batches).column("body").to_pylist() == [b"0", b"1"]
            change(server)
            assert [body for batch in batches for body in batch.column("body").to_pylist()] == []
        else:
            with pytest.raises(DataLoss, match="was deleted while it was read, 0 to 6 were not"):
                next(batches)


def test_records_come_as_they_are_in_the_log(server: TopicServer, client: BlockingClient) -> None:
    """Who asks for that gets nothing in RocketMQ's words; other readers do."""
    properties = build_properties(PMQ_AMQP=b64encode(b"\x00\x80\x03m-1").decode(), PMQ_Q="0")
    in_log = build_record(topic="t", properties=properties)
    server.port.topic_by_name["t"].queues[0].records.append(in_log)
    pulled = client.pull("t", T0.broker, 0, 0, count_max=1, bytes_max=1000, stored=True)
    assert pulled.records == in_log
    others = client.pull("t", T0.broker, 0, 0, count_max=1, bytes_max=1000, whole=True)
    assert b"KEYS\x01m-1\x02" in others.records


class Liar:
    """A broker that answers what it likes."""

    def __init__(self, *answers: Pulled) -> None:
        self.answers = list(answers)

    def pull(self, *where: object, **limits: object) -> Pulled:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def pulled(code: int, records: bytes = b"", next_offset: int = 0) -> Pulled:
    return Pulled(
        code=code,
        records=records,
        next_offset=next_offset,
        min_offset=0,
        max_offset=99,
        incarnation=7,
    )


def test_answers_that_make_no_sense(server: TopicServer) -> None:
    """Another message than the one that was asked for, a damaged one, "again" without end."""
    server.port.append("t", b"0", b"1")
    zero, one = server.port.topic_by_name["t"].queues[0].records
    answers = pulled(20), pulled(0, zero, 1), pulled(0, one, 2)
    assert read(Liar(*answers), wanted(0, 2)) == [b"0", b"1"]
    for bad in (one, zero + zero, zero.replace(b"0", b"X"), zero[:-1]):
        with pytest.raises(SinkError, match="queue broker-a/t/0"):
            read(Liar(pulled(0, bad, 2)), wanted(0, 2))
    with pytest.raises(SinkError, match="from 0 to 1 came, but 2 is to be next"):
        read(Liar(pulled(0, zero, 2)), wanted(0, 2))
    with pytest.raises(SinkError, match="code 20"):
        read(Liar(pulled(20)), wanted(0, 2))


def test_a_broker_that_sends_more_than_it_was_asked_for(server: TopicServer) -> None:
    """RocketMQ's own brokers round up: what is beyond the range belongs to the next batch."""
    server.port.append("t", b"0", b"1", b"2")
    records = b"".join(server.port.topic_by_name["t"].queues[0].records)
    assert read(Liar(pulled(0, records, 3)), wanted(0, 2)) == [b"0", b"1"]


def test_a_broker_that_is_away(client: BlockingClient, server: TopicServer) -> None:
    nobody = BlockingClient(["127.0.0.1:1"], settings=ClientSettings(attempts_max=1))
    with pytest.raises(Unavailable, match="queue broker-a/t/0: no answer from"):
        read(nobody, wanted(0, 2))
    with pytest.raises(Unavailable, match="no answer from"):
        look(nobody, Selection())
