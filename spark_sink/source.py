"""The format `polymq`: topics as tables, for batch and streaming queries.

    spark.read.format("polymq").option("broker", "host:10911").option("topic", "sensors").load()

Options (names in any case):

    broker                host:port; several by commas
    topic                 names by commas, or a JSON list; without it all topics
    accessKey, secretKey  of the user that reads, where the server has users
    startingOffsets       earliest (default), latest, or JSON (see `offsets.starting_positions`)
    endingOffsets         batch only: latest (default) or JSON
    failOnDataLoss        true (default): what retention took unread is an error; false: left out
    maxOffsetsPerTrigger  streaming only: about how many messages a batch has
    maxRecordsPerTask     batch only: cut queues in pieces of this many messages

Rules, from how Spark uses these classes:

* Spark makes the reader twice, in a long-lived process beside the driver and again for planning,
  and runs `read` on a pickled copy in executors. So the readers keep nothing but options; the one
  exception is the target of AvailableNow, which only the long-lived one is told and asked about.
* Everything that a task needs is in its `RangePartition`.
* Nothing of this package is pickled by value: executors import it, so it has to be installed
  there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
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

from remoting.driver_blocking import BlockingClient
from remoting.errors import LocalProtocolError
from remoting.signing import Credentials, credentials_from
from spark_sink.envelope import RANGE_COLUMN, arrow_schema, envelope_schema
from spark_sink.errors import BadOption
from spark_sink.offsets import (
    Positions,
    Queue,
    Range,
    Snapshot,
    ending_offsets,
    latest_positions,
    next_positions,
    plan,
    split,
    starting_positions,
)
from spark_sink.reading import PATIENCE, Reading, parse_brokers, read_range, take_snapshot


class Options:
    """The options of a query, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "broker" not in options:
            raise BadOption("broker: say which broker to read from, HOST:PORT")
        self.brokers = parse_brokers(options["broker"])
        self.credentials = _parse_keys(options)
        self.topics = _parse_topics(options["topic"]) if "topic" in options else None
        self.starting = options.get("startingOffsets", "earliest")
        self.ending = options.get("endingOffsets", "latest")
        self.fail_on_data_loss = _parse_bool(options, "failOnDataLoss", default=True)
        self.rows_per_trigger = _parse_count(options, "maxOffsetsPerTrigger")
        self.rows_per_task = _parse_count(options, "maxRecordsPerTask")
        self.with_range = _parse_bool(options, "withRange", default=False)

    def client(self) -> BlockingClient:
        """A client of these brokers."""
        return BlockingClient(self.brokers, settings=PATIENCE, credentials=self.credentials)

    def snapshot(self) -> Snapshot:
        """What the broker has now of the topics that the query reads."""
        return self.snapshot_of(self.topics)

    def snapshot_of(self, topics: Sequence[str] | None) -> Snapshot:
        """What the broker has now of these topics (None: of all)."""
        with self.client() as client:
            return take_snapshot(client, topics)


def _parse_keys(options: Mapping[str, str]) -> Credentials | None:
    try:
        return credentials_from(options.get("accessKey"), options.get("secretKey"))
    except LocalProtocolError as error:
        raise BadOption(f"accessKey and secretKey: {error}") from error


def _parse_topics(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise BadOption(f"topic: {text[:100]!r} is no JSON list") from error
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"topic: write names by commas or a JSON list, not {text[:100]!r}")
    return sorted(set(names))


def _parse_bool(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name}: true or false, not {text!r}")
    return text == "true"


def _parse_count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise BadOption(f"{name}: a positive number, not {text!r}")
    return int(text)


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
        return envelope_schema(with_range=self.parsed.with_range)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PolymqReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return PolymqStreamReader(self.parsed, schema)


def _partitions(options: Options, ranges: Sequence[Range]) -> list[RangePartition]:
    reading = Reading(
        brokers=options.brokers,
        credentials=options.credentials,
        fail_on_data_loss=options.fail_on_data_loss,
        with_range=options.with_range,
    )
    return [RangePartition(wanted, reading) for wanted in ranges]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, RangePartition)
    if partition.reading.with_range != (RANGE_COLUMN in schema.fieldNames()):
        raise BadOption("the schema of this source cannot be chosen: leave schema() out")
    reading = partition.reading
    with BlockingClient(
        reading.brokers, settings=PATIENCE, credentials=reading.credentials
    ) as client:
        yield from read_range(client, partition.wanted, reading, arrow_schema(schema))


class PolymqReader(DataSourceReader):
    """A batch query: everything between two offsets of each queue, as of now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.table_schema = schema

    def partitions(self) -> list[RangePartition]:
        snapshot = self.options.snapshot()
        start = starting_positions(self.options.starting, snapshot)
        end = Positions(offsets=ending_offsets(self.options.ending, snapshot))
        ranges = plan(start, end, snapshot, fail_on_data_loss=self.options.fail_on_data_loss)
        return _partitions(self.options, split(ranges, self.options.rows_per_task))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.table_schema)


class PolymqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.table_schema = schema
        self.target: Mapping[Queue, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return starting_positions(self.options.starting, self.options.snapshot()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self.options.rows_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = latest_positions(self.options.snapshot())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        reached = next_positions(
            Positions.from_json(start),
            self.options.snapshot(),
            topics=self.options.topics,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            target=self.target,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        return reached.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        latest = latest_positions(self.options.snapshot())
        return {str(queue): end for queue, end in sorted(latest.items())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        reached = Positions.from_json(end)
        # The topics of the logged positions, not those of the options: they may have changed.
        topics = sorted({queue.topic for queue in reached.offsets})
        ranges = plan(
            Positions.from_json(start),
            reached,
            self.options.snapshot_of(topics),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        return _partitions(self.options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self.table_schema)
