"""The data source inside a real Spark: one session for all tests of this file.

What Spark only calls is tested without it elsewhere; here stands what only Spark can show: that
it takes our batches, plans our ranges, and hands our errors on.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from polymq.spark_sink import register
from polymq.spark_sink.java import java_home
from tests.durability.running import Running, running
from tests.gateways.rocketmq.rocketmq_spy_port import SpyTopic
from tests.spark_sink.topic_server import TopicServer, topic_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS_MAX = 5
"""Of one query."""

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    root = str(Path(__file__).resolve().parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home()))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
            .getOrCreate()
        )
        register(session)
        yield session
        session.stop()
        _end_java()


def _end_java() -> None:
    """Spark keeps its Java machine until Python ends: half a gigabyte, beside all other tests."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java's sign that its Python is gone
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def server() -> Iterator[TopicServer]:
    with topic_server() as started:
        started.port.create("t", queues=2, incarnation=7)
        started.port.append("t", *(b"0-%d" % n for n in range(10)), queue_id=0)
        started.port.append("t", *(b"1-%d" % n for n in range(4)), queue_id=1)
        yield started


def read(spark: SparkSession, server: TopicServer, **options: Any) -> Any:
    return spark.read.format("polymq").options(broker=server.address, **options).load()


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_a_batch_query(spark: SparkSession, server: TopicServer) -> None:
    """All columns, from pieces of queues, with the times as they are whatever the session says."""
    server.port.expire("t", 3, queue_id=0)
    frame = read(spark, server, topic="t", maxRecordsPerTask=2)
    assert frame.rdd.getNumPartitions() == 6
    assert bodies(frame) == sorted([f"0-{n}" for n in range(3, 10)] + [f"1-{n}" for n in range(4)])
    row = frame.where("queue_id = 1 and queue_offset = 2").selectExpr(
        "topic",
        "tag",
        "headers",
        "body",
        "unix_millis(born_ts) born",
        "unix_millis(store_ts) store",
    )
    assert [tuple(found) for found in row.collect()] == [
        ("t", None, {}, b"1-2", 1_700_000_000_000, 1_700_000_000_001)
    ]
    some = json.dumps({"t": {"0": 8, "1": -1}})
    assert bodies(read(spark, server, topic="t", startingOffsets=some)) == ["0-8", "0-9"]
    first = json.dumps({"t": {"0": 4, "1": 0}})
    assert bodies(read(spark, server, topic="t", endingOffsets=first)) == ["0-3"]


def test_a_hot_queue_is_read_by_several_tasks(
    spark: SparkSession, server: TopicServer, tmp_path: Path
) -> None:
    """In a batch query and in a stream: fourteen messages in two queues, four or more tasks."""
    assert read(spark, server, topic="t").rdd.getNumPartitions() == 2
    assert read(spark, server, topic="t", minPartitions=4).rdd.getNumPartitions() == 6

    class Tasks(Batches):
        counts: ClassVar[list[int]] = []

        def __call__(self, frame: Any, number: int) -> None:
            self.counts.append(frame.rdd.getNumPartitions())
            super().__call__(frame, number)

    seen = Tasks()
    stream(spark, server, tmp_path / "c", seen, maxRecordsPerTask=3)
    assert seen.counts == [6]
    assert seen.all == sorted([f"0-{n}" for n in range(10)] + [f"1-{n}" for n in range(4)])


def test_queues_and_columns_that_are_wanted(spark: SparkSession, server: TopicServer) -> None:
    frame = read(spark, server, assign='{"t": [1]}', includeHeaders="false")
    assert "headers" not in frame.columns
    assert bodies(frame) == [f"1-{n}" for n in range(4)]


def publish(started: Running, *events: str) -> None:
    """As an application does, event by event."""
    for body in events:
        connection = http.client.HTTPConnection("127.0.0.1", started.ports.http, timeout=30)
        headers = {"ce-specversion": "1.0", "ce-id": body, "ce-source": "s", "ce-type": "e"}
        connection.request("POST", "/topics/t", body.encode(), headers)
        assert connection.getresponse().status == 204
        connection.close()


def test_a_batch_query_by_time(spark: SparkSession, tmp_path: Path) -> None:
    """Of a started server, by the times that it has stored its messages at."""
    from pyspark.errors import PySparkException

    with running(tmp_path / "data") as started:
        publish(started, "a", "b")
        last = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= last:
            pass  # the clock of the messages has to move on
        publish(started, "c", "d")
        address = f"127.0.0.1:{started.ports.rocketmq}"

        def bodies_of(**options: str) -> list[str]:
            given = {"broker": address, "topic": "t", **options}
            return bodies(spark.read.format("polymq").options(**given).load())

        later = str(last + 1)
        assert bodies_of(startingTimestamp=later) == ["c", "d"]
        assert bodies_of(endingTimestamp=later) == ["a", "b"]
        by_queue = json.dumps({"t": {"0": last + 1}})
        assert bodies_of(startingOffsetsByTimestamp=by_queue) == ["c", "d"]
        assert bodies_of(endingOffsetsByTimestamp=by_queue) == ["a", "b"]
        never = "99999999999999"
        assert bodies_of(endingTimestamp=never) == ["a", "b", "c", "d"]
        with pytest.raises(PySparkException, match=r"startingTimestamp: queue .* has no message"):
            bodies_of(startingTimestamp=never)
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        assert bodies_of(startingTimestamp=never, **strategy) == []


class Batches:
    """Collects what each micro-batch of a stream held."""

    def __init__(self) -> None:
        self.by_number: dict[int, list[str]] = {}

    def __call__(self, frame: Any, number: int) -> None:
        self.by_number[number] = bodies(frame)

    @property
    def all(self) -> list[str]:
        return sorted(body for batch in self.by_number.values() for body in batch)


def stream(
    spark: SparkSession, server: TopicServer, checkpoint: Path, seen: Batches, **options: Any
) -> StreamingQuery:
    """Read what is there now, to the end."""
    frame = spark.readStream.format("polymq").options(broker=server.address, **options).load()
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
    return to_its_end(writer.trigger(availableNow=True))


def to_its_end(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and wait for its end. Spark gives its Python workers 10 s to begin, which is
    not always enough on a machine that is busy with other tests; then it is started again."""
    from pyspark.errors import StreamingQueryException

    for attempt in itertools.count(1):
        query: StreamingQuery = writer.start()
        try:
            query.awaitTermination(60)
        except StreamingQueryException as error:
            if attempt == STARTS_MAX or "worker failed to connect back" not in str(error):
                raise
        else:
            break
    return query


def test_a_stream_in_limited_batches_over_two_runs(
    spark: SparkSession, server: TopicServer, tmp_path: Path
) -> None:
    """AvailableNow keeps the limit; the second run goes on where the first ended, new topics
    included."""
    seen = Batches()
    query = stream(spark, server, tmp_path / "c", seen, maxOffsetsPerTrigger=6)
    before = sorted([f"0-{n}" for n in range(10)] + [f"1-{n}" for n in range(4)])
    assert seen.all == before
    sizes = [len(batch) for batch in seen.by_number.values()]
    assert max(sizes) <= 8
    assert len(sizes) >= 2
    latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])  # type: ignore[index]
    assert latest == {"broker-a/t/0": 10, "broker-a/t/1": 4}
    server.port.append("t", b"0-10", queue_id=0)
    server.port.create("later")
    server.port.append("later", b"new")
    more = Batches()
    stream(spark, server, tmp_path / "c", more)
    assert more.all == ["0-10", "new"]


def test_a_batch_waits_for_enough_messages(
    spark: SparkSession, server: TopicServer, tmp_path: Path
) -> None:
    """The first does not; one more message is no batch, and six are."""
    seen = Batches()
    looked = server.port.topic_by_name = Looked(server.port.topic_by_name)
    frame = (
        spark.readStream.format("polymq")
        .options(broker=server.address, minOffsetsPerTrigger=6, maxTriggerDelay="1h")
        .load()
    )
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        until(lambda: len(seen.all) == 14, query)
        server.port.append("t", b"more-0", queue_id=0)
        seen_at = looked.count
        until(lambda: looked.count > seen_at + 20, query)
        assert len(seen.all) == 14
        server.port.append("t", *(b"more-%d" % n for n in range(1, 6)), queue_id=0)
        until(lambda: len(seen.all) == 20, query)
        assert len(seen.by_number) == 2
    finally:
        query.stop()


class Looked(dict[str, SpyTopic]):
    """Topics that count how often somebody looks for one."""

    count = 0

    def get(self, *arguments: Any) -> Any:
        self.count += 1
        return super().get(*arguments)


def until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for something that comes of a query that runs."""
    deadline = time.monotonic() + 60
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "it does not come"
        query.awaitTermination(1)


def test_topics_that_are_deleted_and_created_again_are_followed(
    spark: SparkSession, server: TopicServer, tmp_path: Path
) -> None:
    """Wholly read, they go without a word. Deleted unread, they are a loss, which the query may go
    on without."""
    from pyspark.errors import StreamingQueryException

    server.port.create("u", incarnation=9)
    server.port.append("u", b"u-0")
    stream(spark, server, tmp_path / "c", Batches())
    server.port.create("t", incarnation=8)
    server.port.append("t", b"again-0", b"again-1")
    del server.port.topic_by_name["u"]
    seen = Batches()
    stream(spark, server, tmp_path / "c", seen, topicPattern="t|u")
    assert seen.all == ["again-0", "again-1"]

    class Deletes(Batches):
        """After the first of several batches."""

        def __call__(self, frame: Any, number: int) -> None:
            super().__call__(frame, number)
            server.port.topic_by_name.pop("t", None)

    server.port.append("t", b"again-2", b"again-3")
    with pytest.raises(StreamingQueryException, match="t/0 is gone, 3 to 4 were not read"):
        stream(spark, server, tmp_path / "c", Deletes(), topic="t", maxOffsetsPerTrigger=1)
    stream(spark, server, tmp_path / "c", Batches(), failOnDataLoss="false")
    stream(spark, server, tmp_path / "c", Batches())


@pytest.mark.parametrize(
    "options",
    [{"topic": "empty"}, {"topic": "missing"}, {"startingOffsets": "latest"}],
    ids=["empty", "missing", "latest"],
)
def test_a_batch_query_with_nothing_to_read_is_an_empty_table(
    spark: SparkSession, server: TopicServer, options: dict[str, str]
) -> None:
    server.port.create("empty")
    frame = read(spark, server, **options)
    assert frame.count() == 0
    assert bodies(frame) == []


def test_options_from_sql_and_those_that_there_are_not(
    spark: SparkSession, server: TopicServer
) -> None:
    """Spark writes names in lower case and adds some of its own."""
    from pyspark.errors import AnalysisException

    assert read(spark, server, TOPICPATTERN="t", path="/anything").count() == 14
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING polymq "
        f"OPTIONS (broker '{server.address}', excludeTopic 't')"
    )
    assert spark.sql("SELECT * FROM v").count() == 0
    with pytest.raises(AnalysisException, match="there is no such option; did you mean topic"):
        read(spark, server, subscribePattern="t.*")


def test_the_sink_s_format_is_not_for_other_queries(
    spark: SparkSession, server: TopicServer, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    frame = spark.readStream.format("polymq").options(broker=server.address).load()
    writer = frame.writeStream.format("polymq-parquet").option("path", str(tmp_path / "lake"))
    with pytest.raises(PySparkException, match="run_sink"):
        to_its_end(writer.option("checkpointLocation", str(tmp_path / "c")))
