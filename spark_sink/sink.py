"""The format `polymq-parquet`: what Spark calls to write a batch of the sink's own query.

Spark's writer interface for Arrow batches is used, not `foreachBatch`: Spark then calls `write`
once per task, on the very rows that the source read for that task, and `commit` on the driver with
what all tasks reported, before it logs the batch. That is where the protocol of `output` hangs.

It only takes what the source gives with `withRange`: other rows have no range, and without a range
a file has no name that a replay would give it again.

Options: `path`, `checkpoint`, `run` (the token of `output.Run`), `compression`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from polymq.spark_sink import faults
from polymq.spark_sink.envelope import RANGE_COLUMN
from polymq.spark_sink.errors import BadOption
from polymq.spark_sink.output import Run, WrittenFile, abort, commit
from polymq.spark_sink.parquet import TaskFiles

_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport(WriterCommitMessage):
    """What a task has written."""

    files: tuple[WrittenFile, ...]


class PolymqParquetSink(DataSource):
    """The format `polymq-parquet`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "polymq-parquet"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return ParquetStreamWriter(dict(self.options), schema)


class ParquetStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query. Pickled: driver and tasks have copies of their own."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        missing = {"path", "checkpoint", "run"} - set(options)
        if missing or RANGE_COLUMN not in schema.fieldNames():
            raise BadOption(
                "polymq-parquet is written by `spark_sink.job.run_sink` only; other queries can "
                "write the rows of the format polymq with Spark's own sinks"
            )
        self.run = Run(
            output=Path(options["path"]),
            checkpoint=Path(options["checkpoint"]),
            token=options["run"],
        )
        self.compression = options.get("compression", "zstd")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        batch = _current_batch()
        files = TaskFiles(
            self.run.output, token=self.run.token, batch=batch, compression=self.compression
        ).write(iterator)
        faults.from_environment()("after-write", batch)
        return TaskReport(files=tuple(files))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self.run, batchId, _files(messages), reach=faults.from_environment())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort(self.run, batchId, _files(messages))


def _files(messages: list[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [
        file for message in messages if isinstance(message, TaskReport) for file in message.files
    ]


def _current_batch() -> int | None:
    """The batch that this task belongs to, which Spark tells its tasks but not its writers."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    return int(text) if text and text.isdecimal() else None
