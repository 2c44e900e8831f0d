"""Topics into files: how a file appears, which offsets a time is, what formats make of rows."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from polymq.spark_sink.envelope import EnvelopeBuilder, table_schema
from polymq.spark_sink.errors import SinkError
from polymq.spark_sink.exporting import (
    Part,
    appearing,
    count_rows,
    plan_export,
    read_ranges,
    write_rows,
)
from polymq.spark_sink.table_files import FORMATS, open_table
from tests.remoting.record_builder import build_properties, build_record
from tests.spark_sink.topic_server import TopicServer, topic_server

NOBODY = SimpleNamespace(credentials=None, tls=None)


@pytest.fixture
def server() -> Iterator[TopicServer]:
    with topic_server() as started:
        started.port.create("t", queues=2, incarnation=7)
        yield started


def test_the_messages_of_a_time(server: TopicServer) -> None:
    """Several have the same time; both ends are included, at each message and between two."""
    times = [5, 7, 7, 7, 9, 12, 12]
    server.port.topic_by_name["t"].queues[0].records.extend(
        build_record(topic="t", queue_offset=n, store_ms=at) for n, at in enumerate(times)
    )
    for since in range(4, 14):
        for until in range(since, 14):
            part = Part(queues=(0,), since_ms=since, until_ms=until)
            ranges = plan_export([server.address], NOBODY, "t", part)
            chosen = [n for one in ranges for n in range(one.first, one.end)]
            assert chosen == [n for n, at in enumerate(times) if since <= at <= until]


def test_all_queues_are_read(server: TopicServer) -> None:
    """What is published after the plan is not read."""
    server.port.append("t", b"a", b"b")
    server.port.append("t", b"c", queue_id=1)
    ranges = plan_export([server.address], NOBODY, "t", Part())
    server.port.append("t", b"late")
    rows = pa.Table.from_batches(read_ranges(ranges, [server.address], NOBODY))
    assert count_rows(ranges) == 3
    assert sorted(rows.column("body").to_pylist()) == [b"a", b"b", b"c"]


def test_what_is_gone_is_an_error(server: TopicServer) -> None:
    server.port.append("t", b"a", b"b")
    ranges = plan_export([server.address], NOBODY, "t", Part())
    server.port.expire("t", 1)
    with pytest.raises(SinkError, match="begins at 1, 0 was next"):
        list(read_ranges(ranges, [server.address], NOBODY))


# --- files --------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with appearing(path, replace=False) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), appearing(path, replace=True) as file:
        file.write(b"%d" % (1 // 0))
    with pytest.raises(FileExistsError), appearing(path, replace=False):
        pass
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FileExistsError), appearing(path, replace=False):
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs"


# --- formats ------------------------------------------------------------------------------------


def batch_of(*bodies: bytes, **properties: str) -> pa.RecordBatch:
    builder = EnvelopeBuilder(
        table_schema(), topic="t", range_text=None, rows_max=100, bytes_max=10**6
    )
    for offset, body in enumerate(bodies):
        record = build_record(
            queue_offset=offset, body=body, properties=build_properties(**properties)
        )
        assert list(builder.add(record, queue_id=0, first=offset, end=offset + 1)) == []
    (batch,) = builder.finish()
    return batch


def written(form: str, *batches: pa.RecordBatch) -> bytes:
    file = io.BytesIO()
    write_rows((batch for batch in batches), file, form, advance=lambda _: None)
    return file.getvalue()


def test_headers_of_some_batches_and_slices() -> None:
    """Those of a slice are its own, and a batch without any has empty ones."""
    plain, rich = batch_of(b"1", b"2"), batch_of(b"3", b"4", colour="red")
    for form in ("csv", "jsonl"):
        lines = written(form, plain, rich.slice(1, 1)).decode().splitlines()
        assert ["red" in line for line in lines[-3:]] == [False, False, True]


def test_bodies_that_are_no_text_stand_beside_those_that_are() -> None:
    rows = [json.loads(line) for line in written("jsonl", batch_of(b"a", b"\xff")).splitlines()]
    assert [(row["body"], row.get("body_base64")) for row in rows] == [("a", None), (None, "/w==")]


@pytest.mark.parametrize("form", FORMATS)
def test_a_pipe_needs_no_position(form: str) -> None:
    """What cannot seek or tell is written to all the same, and stays open."""

    class Pipe(io.RawIOBase):
        size = 0

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            written_now = len(memoryview(data))  # type: ignore[arg-type]
            self.size += written_now
            return written_now

    pipe = Pipe()
    table = open_table(form, pipe, table_schema())  # type: ignore[arg-type]
    table.add(batch_of(b"1"))
    table.close()
    assert pipe.size
    assert not pipe.closed
