"""One task's part of a batch: Arrow batches in, temporary Parquet files out.

Rules:

* A task's rows are one range of one queue, in order. What comes out depends on the rows alone:
  which files, what they are called, and what is in them. How Spark cut the rows in batches, or
  how many cores there are, does not matter.
* A file holds one hour. Store times of a queue hardly ever go back; if they do, the hour's file is
  still open, or a further part of it is begun.
* Whatever fails, no `WrittenFile` is reported, and without one no file gets a name that a reader
  sees. Files of a failed task are deleted at once, those of a killed one with the next commit.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polymq.spark_sink.envelope import RANGE_COLUMN, TOPIC_COLUMN
from polymq.spark_sink.errors import SinkError
from polymq.spark_sink.former import former_path
from polymq.spark_sink.layout import HOUR_US, Span, final_path, parse_range
from polymq.spark_sink.output import WrittenFile, temporary_path

OPEN_FILES_MAX: Final = 8
"""Hours that are written at the same time; the one that is longest unused is finished first."""
ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""What a row group holds at most (of bodies, before compression): readers take one at a time."""
WHOLE_NAME_COLUMN: Final = "topic_name"
"""What the column `topic` is called in files. Directories have a column `topic`, which Arrow and
pandas refuse beside another one of that name, and which has not all of a name that is too long."""
_DICTIONARY_COLUMNS: Final = ("tag", "content_type", "protocol", "headers.key_value.key")
"""Where values repeat, beside the topic. Trying it on ids and bodies only costs time."""


class RowGroups:
    """Writes batches as Parquet, in row groups that do not depend on how rows came in batches.

    Args:
        file: what it is written to, from its beginning.
        topic_column: what the column with the topic's name is called.
    """

    def __init__(
        self, file: Any, schema: pa.Schema, *, topic_column: str, compression: str
    ) -> None:
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression=compression,
            use_dictionary=[topic_column, *_DICTIONARY_COLUMNS],
        )
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []  # rows of the next row group
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self.row_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write these rows, now or with those that follow."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self.row_count += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._write_waiting()
        self._writer.close()

    def discard(self) -> None:
        """Close it without what is left."""
        self._writer.close()


@dataclass(slots=True)
class _OpenFile:
    """A Parquet file that is being written."""

    temporary: Path
    final: str
    former: str | None
    raw: BufferedWriter
    rows: RowGroups
    byte_count: int = 0  # of the finished file

    def close(self) -> None:
        """Finish and sync it."""
        self.rows.close()
        self.raw.flush()
        os.fsync(self.raw.fileno())
        self.byte_count = self.raw.tell()
        self.raw.close()

    def discard(self) -> None:
        """Delete it, finished or not. The writer is closed only so that it does not complain."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self.rows.discard()
        self.raw.close()
        self.temporary.unlink(missing_ok=True)


class TaskFiles:
    """The files of one task.

    Args:
        output: the output directory.
        token, batch: of the run and the batch, for temporary names.
    """

    def __init__(
        self, output: Path, *, token: str, batch: int | None, compression: str = "zstd"
    ) -> None:
        self._output = output
        self._token = token
        self._batch = batch
        self._compression = compression
        self._span: Span | None = None
        self._next = 0  # offset that the next row should have
        self._complete = True
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()  # by hour, least used first
        self._parts: dict[int, int] = {}  # files begun per hour
        self._files: list[_OpenFile] = []  # all of them, in order of their first row

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write all rows; returns the finished files. On any error deletes what it made."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._add(batch)
            return self._finish()
        except BaseException:
            for file in self._files:
                file.discard()
            raise

    def _add(self, batch: pa.RecordBatch) -> None:
        self._check_span(batch)
        self._check_offsets(batch.column("queue_offset"))
        micros = batch.column("store_ts").cast(pa.int64())
        hours = pc.run_end_encode(pc.divide(micros, HOUR_US))
        rows = batch.drop_columns([RANGE_COLUMN])
        rows = rows.rename_columns({TOPIC_COLUMN: WHOLE_NAME_COLUMN})
        start = 0
        for end, hour in zip(hours.run_ends.to_pylist(), hours.values.to_pylist(), strict=True):
            self._file(hour, rows.schema).rows.add(rows.slice(start, end - start))
            start = end

    def _check_span(self, batch: pa.RecordBatch) -> None:
        names = (RANGE_COLUMN, TOPIC_COLUMN, "queue_id")
        values = [pc.unique(batch.column(name)).to_pylist() for name in names]
        if any(len(value) != 1 for value in values):
            raise SinkError("rows of several ranges came in one task: do not repartition them")
        (text,), (topic,), (queue_id,) = values
        span = parse_range(text, topic=topic, queue_id=queue_id)
        if self._span is None:
            self._span, self._next = span, span.first
        elif self._span != span:
            raise SinkError("rows of several ranges came in one task: do not repartition them")

    def _check_offsets(self, offsets: pa.Array) -> None:
        """In order, without repetition, within the range; a hole makes it incomplete."""
        assert self._span is not None
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        # The difference of the first row to nothing is null, and a single row has no other.
        steps = pc.min_max(pc.fill_null(pc.pairwise_diff(offsets), 1)).as_py()
        if first < self._next or last >= self._span.end or steps["min"] < 1:
            raise SinkError(f"rows of {self._span} came out of order, at {first} to {last}")
        if first != self._next or steps["max"] > 1:
            self._complete = False
        self._next = last + 1

    def _file(self, hour: int, schema: pa.Schema) -> _OpenFile:
        file = self._open.get(hour)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            file = self._open[hour] = self._begin(hour, schema)
            self._files.append(file)
        self._open.move_to_end(hour)
        return file

    def _begin(self, hour: int, schema: pa.Schema) -> _OpenFile:
        assert self._span is not None
        span = self._span
        part = self._parts.get(hour, 0)
        self._parts[hour] = part + 1
        temporary = temporary_path(self._output, self._token, self._batch)
        metadata = {
            "polymq.topic": span.topic,
            "polymq.broker": span.broker,
            "polymq.incarnation": str(span.incarnation or ""),
        }
        raw = temporary.open("xb")
        rows = RowGroups(
            raw,
            schema.with_metadata(metadata),
            topic_column=WHOLE_NAME_COLUMN,
            compression=self._compression,
        )
        return _OpenFile(
            temporary=temporary,
            final=final_path(span, hour, part),
            former=former_path(span, hour, part) if span.former else None,
            raw=raw,
            rows=rows,
        )

    def _finish(self) -> list[WrittenFile]:
        span = self._span
        if span is None:
            return []
        for file in self._open.values():
            file.close()
        complete = self._complete and self._next == span.end
        return [
            WrittenFile(
                temporary=str(file.temporary.relative_to(self._output)),
                final=file.final,
                former=file.former,
                broker=span.broker,
                topic=span.topic,
                queue_id=span.queue_id,
                first=span.first,
                end=span.end,
                row_count=file.rows.row_count,
                byte_count=file.byte_count,
                complete=complete,
            )
            for file in self._files
        ]
