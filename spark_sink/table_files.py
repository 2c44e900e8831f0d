"""Batches of rows as one file or one stream: Parquet, Arrow, CSV, JSON lines.

Parquet and Arrow have the columns as they are (`envelope`). CSV and JSON lines are text:

* times are written as `2026-03-01 12:00:00.000000Z`;
* a body that is UTF-8 stands in `body`; any other in `body_base64`, and `body` is empty or null;
* headers are a JSON object, in CSV as a text.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from polymq.spark_sink.envelope import TOPIC_COLUMN
from polymq.spark_sink.parquet import RowGroups

SUFFIXES: Final = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""Which format a file has by the end of its name."""
BASE64_COLUMN: Final = "body_base64"
_TIMES: Final = ("born_ts", "store_ts")


class TableFile(Protocol):
    """A file that is being written."""

    def add(self, rows: pa.RecordBatch, /) -> None:
        """Write these rows."""

    def close(self) -> None:
        """Write the end of the format. The file stays open."""


def open_table(form: str, file: BinaryIO, schema: pa.Schema) -> TableFile:
    """Begin a file in one of `FORMATS`."""
    return _OPENERS[form](_Counted(file), schema)


class _Counted:
    """A file that knows how far it is, as pipes do not, and is not closed with its format."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._file.write(data)
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Its owner closes it."""

    @staticmethod
    def readable() -> bool:
        return False

    @staticmethod
    def writable() -> bool:
        return True

    @staticmethod
    def seekable() -> bool:
        return False


class _ArrowStream:
    """Arrow's IPC format."""

    def __init__(self, writer: pa.ipc.RecordBatchWriter) -> None:
        self._writer = writer

    def add(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    def __init__(self, file: _Counted, schema: pa.Schema) -> None:
        headers = schema.get_field_index("headers")
        schema = schema.set(headers, pa.field("headers", pa.string()))
        self._schema = _with_texts(schema)
        self._writer = pa.csv.CSVWriter(pa.PythonFile(file, mode="w"), self._schema)

    def add(self, rows: pa.RecordBatch) -> None:
        columns = _text_columns(rows)
        headers = rows.column("headers")
        if headers.offsets[0] != headers.offsets[-1]:
            texts = [_json(dict(pairs)) for pairs in headers.to_pylist()]
            columns["headers"] = pa.array(texts, pa.string())
        else:
            columns["headers"] = pa.repeat(pa.scalar("{}"), rows.num_rows)
        arrays = [columns[name] for name in self._schema.names]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, file: _Counted, schema: pa.Schema) -> None:
        self._file = file
        self._names = [name for name in _with_texts(schema).names if name != BASE64_COLUMN]

    def add(self, rows: pa.RecordBatch) -> None:
        columns = _text_columns(rows)
        columns["headers"] = pa.array([None] * rows.num_rows)
        values = [columns[name].to_pylist() for name in self._names]
        values[self._names.index("headers")] = [
            dict(pairs) for pairs in rows.column("headers").to_pylist()
        ]
        lines = []
        packed = columns[BASE64_COLUMN].to_pylist()
        for row, base64 in zip(zip(*values, strict=True), packed, strict=True):
            message = dict(zip(self._names, row, strict=True))
            if base64 is not None:
                message[BASE64_COLUMN] = base64
            lines.append(_json(message))
        lines.append("")
        self._file.write("\n".join(lines).encode())

    def close(self) -> None:
        self._file.flush()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_texts(schema: pa.Schema) -> pa.Schema:
    """The columns of text formats."""
    for name in (*_TIMES, "body"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
    return schema.append(pa.field(BASE64_COLUMN, pa.string()))


def _text_columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for name in _TIMES:
        columns[name] = pc.cast(columns[name], pa.string())
    columns["body"], columns[BASE64_COLUMN] = _body_columns(columns["body"])
    return columns


def _body_columns(bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Bodies as text, and those that are none in base64."""
    try:
        return bodies.cast(pa.string()), pa.nulls(len(bodies), pa.string())
    except pa.ArrowInvalid:  # at least one of them is no UTF-8
        pairs = [_body_texts(body) for body in bodies.to_pylist()]
        texts, packed = zip(*pairs, strict=True)
        return pa.array(texts, pa.string()), pa.array(packed, pa.string())


def _body_texts(body: bytes) -> tuple[str | None, str | None]:
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, b64encode(body).decode()


def _open_parquet(file: _Counted, schema: pa.Schema) -> TableFile:
    output = pa.PythonFile(file, mode="w")
    return RowGroups(output, schema, topic_column=TOPIC_COLUMN, compression="zstd")


def _open_arrow(file: _Counted, schema: pa.Schema) -> TableFile:
    return _ArrowStream(pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema))


def _open_arrow_stream(file: _Counted, schema: pa.Schema) -> TableFile:
    return _ArrowStream(pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema))


_OPENERS: Final[Mapping[str, Callable[[_Counted, pa.Schema], TableFile]]] = {
    "parquet": _open_parquet,
    "arrow": _open_arrow,
    "arrow-stream": _open_arrow_stream,
    "csv": _Csv,
    "jsonl": _JsonLines,
}
FORMATS: Final = tuple(_OPENERS)
