"""What the source asks the broker and makes of the answers, over sockets, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from remoting.client import ClientSettings, Pulled
from remoting.driver_blocking import BlockingClient
from remoting.signing import Credentials
from spark_sink import reading
from spark_sink.envelope import arrow_schema, envelope_schema
from spark_sink.errors import BadOption, DataLoss, Recreated, SinkError
from spark_sink.offsets import Bounds, Queue, Range
from spark_sink.reading import Reading, list_topics, parse_brokers, read_range, take_snapshot
from spark_sink.source import Options
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
    assert texts <= {f"{span.planned_first}-{span.end}@broker-a"}
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_a_snapshot_of_topics(server: TopicServer, client: BlockingClient) -> None:
    """Those that do not exist are left out; None means all that a table can name."""
    server.port.create("a/b", queues=2, incarnation=8)
    server.port.create("\udcff")
    server.port.append("a/b", b"1", b"2", queue_id=1)
    server.port.expire("a/b", 1, queue_id=1)
    a_b = {
        Queue("broker-a", "a/b", 0): Bounds(first=0, end=0, incarnation=8),
        Queue("broker-a", "a/b", 1): Bounds(first=1, end=2, incarnation=8),
    }
    assert take_snapshot(client, ["a/b", "missing"]) == a_b
    assert take_snapshot(client, None) == {**a_b, T0: Bounds(first=0, end=0, incarnation=7)}
    assert list_topics(client) == ["a/b", "t"]


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


def test_another_incarnation_while_a_range_is_read(
    server: TopicServer, client: BlockingClient
) -> None:
    server.port.create("t", incarnation=8)
    server.port.append("t", b"0", b"1", b"2")
    with pytest.raises(Recreated):
        read(client, wanted(0, 2))


def test_a_topic_that_is_deleted_while_it_is_read(
    server: TopicServer, client: BlockingClient
) -> None:
    del server.port.topic_by_name["t"]
    with pytest.raises(SinkError, match=r"queue broker-a/t/0: .*code 17"):
        read(client, wanted(0, 2))


class Liar:
    """A broker that answers what it likes."""

    def __init__(self, *answers: Pulled) -> None:
        self.answers = list(answers)

    def pull(self, *where: object, **limits: object) -> Pulled:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def pulled(code: int, records: bytes = b"") -> Pulled:
    return Pulled(
        code=code, records=records, next_offset=0, min_offset=0, max_offset=99, incarnation=7
    )


def test_answers_that_make_no_sense(server: TopicServer) -> None:
    """Another message than the one that was asked for, a damaged one, "again" without end."""
    server.port.append("t", b"0", b"1")
    zero, one = server.port.topic_by_name["t"].queues[0].records
    assert read(Liar(pulled(20), pulled(0, zero), pulled(0, one)), wanted(0, 2)) == [b"0", b"1"]
    for bad in (one, zero + zero, zero.replace(b"0", b"X"), zero[:-1]):
        with pytest.raises(SinkError, match="queue broker-a/t/0"):
            read(Liar(pulled(0, bad)), wanted(0, 2))
    with pytest.raises(SinkError, match="code 20"):
        read(Liar(pulled(20)), wanted(0, 2))


def test_a_broker_that_sends_more_than_it_was_asked_for(server: TopicServer) -> None:
    """RocketMQ's own brokers round up: what is beyond the range belongs to the next batch."""
    server.port.append("t", b"0", b"1", b"2")
    records = b"".join(server.port.topic_by_name["t"].queues[0].records)
    assert read(Liar(pulled(0, records)), wanted(0, 2)) == [b"0", b"1"]


def test_a_broker_that_is_away(client: BlockingClient, server: TopicServer) -> None:
    nobody = BlockingClient(["127.0.0.1:1"], settings=ClientSettings(attempts_max=1))
    with pytest.raises(SinkError, match="no answer from"):
        read(nobody, wanted(0, 2))


# --- options ----------------------------------------------------------------------------------


def test_options_as_users_write_them() -> None:
    options = Options(
        {
            "broker": " a:1, b:2 ",
            "topic": "sensors, orders",
            "failOnDataLoss": "False",
            "maxOffsetsPerTrigger": "500",
        }
    )
    assert options.brokers == ("a:1", "b:2")
    assert options.topics == ["orders", "sensors"]
    assert (options.fail_on_data_loss, options.rows_per_trigger) == (False, 500)
    assert Options({"broker": "a:1"}).topics is None
    assert Options({"broker": "a:1", "topic": '["a,b", " c"]'}).topics == [" c", "a,b"]
    assert options.credentials is None
    signed = Options({"broker": "a:1", "accessKey": "K", "secretKey": "s"})
    assert signed.credentials == Credentials(access_key="K", secret_key="s")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "broker"),
        ({"broker": " , "}, "broker"),
        ({"broker": "a:1", "topic": ""}, "topic"),
        ({"broker": "a:1", "topic": "a,,b"}, "topic"),
        ({"broker": "a:1", "topic": "[1]"}, "topic"),
        ({"broker": "a:1", "topic": "["}, "topic"),
        ({"broker": "a:1", "accessKey": "K"}, "accessKey and secretKey"),
        ({"broker": "a:1", "secretKey": "s"}, "accessKey and secretKey"),
        ({"broker": "a:1", "failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({"broker": "a:1", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"broker": "a:1", "maxRecordsPerTask": "many"}, "maxRecordsPerTask"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(BadOption, match=f"^{named}: "):
        Options(options)


def test_brokers() -> None:
    assert parse_brokers("a:1") == ("a:1",)
