"""The format `polymq`: topics as tables, for batch and streaming queries.

    spark.read.format("polymq").option("broker", "host:10911").option("topic", "sensors").load()

Options (names in any case):

    broker                host:port; several by commas
    topic                 names by commas, or a JSON list; without it all topics
    assign                instead of names: JSON, topic to numbers of queues
    topicPattern          instead of names: a regular expression that matches the whole name
    excludeTopic          names of topics to leave out, as for `topic`
    accessKey, secretKey  of the user that reads, where the server has users
    tls                   true: connect with TLS
    tlsCa                 the same; a PEM file with authorities, or what stands in one
    tlsCheckNames         false: the certificate need not be for the broker's name
    startingOffsets       earliest (default), latest, or JSON (see `offsets.starting_positions`)
    endingOffsets         batch only: latest (default) or JSON
    startingTimestamp, endingTimestamp
                          instead: milliseconds since 1970; a query begins and ends with the first
                          message of each queue that was stored then or later
    startingOffsetsByTimestamp, endingOffsetsByTimestamp
                          the same by queue, as JSON
    startingOffsetsByTimestampStrategy
                          what is done where there is no such message: error (default), or latest
    includeHeaders        false: without the column headers
    failOnDataLoss        true (default): what retention or the deletion of a topic took unread is
                          an error; false: left out
    maxOffsetsPerTrigger  streaming only: about how many messages a batch has
    minOffsetsPerTrigger  streaming only: a batch waits for so many messages, but no longer than
    maxTriggerDelay       since the last one (15m)
    maxRecordsPerTask     how many messages a task reads at most (262,144)
    minPartitions         how many tasks a batch has at least, if it has as many messages

Rules, from how Spark uses these classes:

* Spark makes the reader twice, in a long-lived process beside the driver and again for planning,
  and runs `read` on a pickled copy in executors. So the readers keep nothing but options; the one
  exceptions are the target of AvailableNow and the time of the last batch, which only the
  long-lived one is told and asked about.
* Everything that a task needs is in its `RangePartition`.
* Nothing of this package is pickled by value: executors import it, so it has to be installed
  there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping, Sequence
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from polymq.spark_sink.envelope import RANGE_COLUMN, arrow_schema, envelope_schema
from polymq.spark_sink.errors import BadOption
from polymq.spark_sink.offsets import (
    Positions,
    Range,
    Snapshot,
    count_between,
    latest_positions,
    moved,
    next_positions,
    plan,
    split,
)
from polymq.spark_sink.options import Options
from polymq.spark_sink.reading import Reading, connect, read_range
from polymq.spark_sink.selection import Selection


class RangePartition(InputPartition):
    """What one task reads, and how."""

    def __init__(self, wanted: Range, reading: Reading) -> None:
        super().__init__(None)
        self.wanted = wanted
        self.reading = reading


class PolymqDataSource(DataSource):
    """The format `polymq`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.parsed = Options(options)

    @classmethod
    def name(cls) -> str:
        return "polymq"

    def schema(self) -> StructType:
        parsed = self.parsed
        return envelope_schema(with_range=parsed.with_range, with_headers=parsed.with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PolymqReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return PolymqStreamReader(self.parsed, schema)


def _partitions(options: Options, ranges: Sequence[Range]) -> list[RangePartition]:
    reading = Reading(
        brokers=options.brokers,
        credentials=options.credentials,
        tls=options.tls,
        fail_on_data_loss=options.fail_on_data_loss,
        with_range=options.with_range,
    )
    return [RangePartition(wanted, reading) for wanted in ranges]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, RangePartition)
    if partition.reading.with_range != (RANGE_COLUMN in schema.fieldNames()):
        raise BadOption("the schema of this source cannot be chosen: leave schema() out")
    reading = partition.reading
    with connect(reading.brokers, reading) as client:
        yield from read_range(client, partition.wanted, reading, arrow_schema(schema))


class PolymqReader(DataSourceReader):
    """A batch query: everything between two offsets of each queue, as of now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.table_schema = schema

    def partitions(self) -> list[RangePartition]:
        seen, begin, end = self.options.begin_and_end()
        ranges = plan(
            begin,
            end,
            seen.queues,
            brokers=seen.brokers,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        total = sum(wanted.end - wanted.first for wanted in ranges)
        return _partitions(self.options, split(ranges, self.options.tasks.rows(total)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())  # what Spark makes of no partitions at all: one that nobody planned
        return _read(partition, self.table_schema)


class PolymqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.table_schema = schema
        self.target: Snapshot | None = None
        self.batch_at = -math.inf  # when the last batch was planned

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self.options.begin().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self.options.rows_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = self.options.look().queues

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        seen = self.options.look()
        before = Positions.from_json(start)
        reached = next_positions(
            before,
            seen.queues,
            brokers=seen.brokers,
            wants=self.options.selection.wants_queue,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            target=self.target,
            fail_on_data_loss=self.options.fail_on_data_loss,
            tasks=self.options.tasks,
        )
        if self._may_wait(before, reached):
            return start
        if reached is not before:
            self.batch_at = monotonic()
        return reached.to_json()

    def _may_wait(self, before: Positions, reached: Positions) -> bool:
        """Whether a batch from here to there waits for more messages."""
        pace = self.options.pace
        if pace.rows_min is None or self.target is not None:
            return False
        waited = monotonic() - self.batch_at
        return waited < pace.delay_seconds_max and count_between(before, reached) < pace.rows_min

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        latest = latest_positions(self.options.look().queues)
        return {str(queue): end for queue, end in sorted(latest.items())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        before, reached = Positions.from_json(start), Positions.from_json(end)
        # The topics of the logged positions, not those of the options: they may have changed.
        topics = frozenset(queue.topic for queue in moved(before, reached))
        seen = self.options.look(Selection(topics=topics))
        ranges = plan(
            before,
            reached,
            seen.queues,
            brokers=seen.brokers,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        return _partitions(self.options, split(ranges, reached.task_rows))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.table_schema)
