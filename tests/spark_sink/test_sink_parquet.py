"""One task's part of a batch: which files come out, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.spark_sink import parquet
from polymq.spark_sink.envelope import EnvelopeBuilder, arrow_schema, envelope_schema
from polymq.spark_sink.errors import SinkError
from polymq.spark_sink.output import WrittenFile
from polymq.spark_sink.parquet import TaskFiles
from tests.remoting.record_builder import build_record

HOUR_MS = 3_600_000
START = 1_700_000_000_000 // HOUR_MS * HOUR_MS  # 22:00 UTC
SCHEMA = arrow_schema(envelope_schema(with_range=True))


def rows(
    messages: Sequence[tuple[int, int]],
    *,
    first: int,
    end: int,
    cuts: Sequence[int] = (),
    topic: str = "t",
    queue_id: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of (offset, store time) as the source gives them, cut at some rows."""
    builder = EnvelopeBuilder(
        SCHEMA, topic=topic, range_text=f"{first}-{end}-18f@b", rows_max=10**6, bytes_max=10**9
    )
    for index, (offset, store_ms) in enumerate(messages):
        data = build_record(
            queue_id=queue_id, queue_offset=offset, store_ms=store_ms, body=b"%d" % offset
        )
        yield from builder.add(data, queue_id=queue_id, first=offset, end=offset + 1)
        if index in cuts:
            yield from builder.finish()
    yield from builder.finish()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "_tmp" / "run").mkdir(parents=True)
    return tmp_path


def write(lake: Path, batches: Iterator[pa.RecordBatch]) -> list[WrittenFile]:
    return TaskFiles(lake, token="run", batch=4).write(batches)


def temporaries(lake: Path) -> list[str]:
    return sorted(path.name for path in (lake / "_tmp" / "run").iterdir())


def offsets_in(lake: Path, file: WrittenFile) -> list[int]:
    found: list[int] = pq.read_table(lake / file.temporary).column("queue_offset").to_pylist()
    return found


def at_hour(*hours: int) -> list[tuple[int, int]]:
    """Offsets 0, 1, ... with store times in these hours."""
    return [(offset, START + hour * HOUR_MS + offset) for offset, hour in enumerate(hours)]


def test_a_range_becomes_a_file_per_hour(lake: Path) -> None:
    files = write(lake, rows(at_hour(0, 0, 1, 1, 1), first=0, end=5, topic="a/b", queue_id=3))
    assert [file.final for file in files] == [
        "topic=a%2Fb/date=2023-11-14/hour=22/q3-0-5-g18f-b.parquet",
        "topic=a%2Fb/date=2023-11-14/hour=23/q3-0-5-g18f-b.parquet",
    ]
    assert [offsets_in(lake, file) for file in files] == [[0, 1], [2, 3, 4]]
    assert all(file.complete for file in files)
    assert [file.row_count for file in files] == [2, 3]
    assert [file.byte_count for file in files] == [
        (lake / file.temporary).stat().st_size for file in files
    ]
    assert all(name.startswith("4-") for name in temporaries(lake))


def test_what_is_in_a_file(lake: Path) -> None:
    """The envelope, with another name for the whole name of the topic; times in UTC."""
    (file,) = write(lake, rows(at_hour(0), first=0, end=1))
    table = pq.read_table(lake / file.temporary)
    assert table.schema.names == ["topic_name", *SCHEMA.names[1:-1]]
    assert table.column("topic_name").to_pylist() == ["t"]
    assert table.schema.field("store_ts").type == pa.timestamp("us", tz="UTC")
    reported = {name: table.schema.metadata[name] for name in table.schema.metadata}
    assert reported == {
        b"polymq.topic": b"t",
        b"polymq.broker": b"b",
        b"polymq.incarnation": b"399",
    }
    assert table.column("body").to_pylist() == [b"0"]


@pytest.mark.parametrize("topic", ["é" * 50, "x" * 300, "||"])
def test_a_topic_of_any_name_is_written_with_its_whole_name(lake: Path, topic: str) -> None:
    (file,) = write(lake, rows(at_hour(0, 0), first=0, end=2, topic=topic))
    (lake / file.final).parent.mkdir(parents=True)
    (lake / file.temporary).rename(lake / file.final)
    table = ds.dataset(lake, partitioning="hive").to_table().to_pylist()
    assert {row["topic_name"] for row in table} == {topic}
    assert all(row["topic"] for row in table)


@settings(max_examples=40)
@given(
    hours=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    cuts=st.sets(st.integers(0, 29)),
)
def test_files_do_not_depend_on_how_the_rows_came(
    tmp_path_factory: pytest.TempPathFactory, hours: list[int], cuts: set[int]
) -> None:
    """Not on Arrow's batches, nor on store times that go back and forth between hours."""
    results = []
    for cut_positions in (set(), cuts):
        lake = tmp_path_factory.mktemp("lake")
        (lake / "_tmp" / "run").mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.fsync", lambda descriptor: None)
            patch.setattr(parquet, "OPEN_FILES_MAX", 2)
            batches = rows(at_hour(*hours), first=0, end=len(hours), cuts=sorted(cut_positions))
            files = write(lake, batches)
        results.append([(file.final, offsets_in(lake, file)) for file in files])
        assert len({file.final for file in files}) == len(files)
    assert results[0] == results[1]
    assert sorted(offset for _, offsets in results[0] for offset in offsets) == list(
        range(len(hours))
    )


def test_more_hours_than_files_may_be_open(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one longest unused is finished; if its hour comes again, a second part is begun."""
    monkeypatch.setattr(parquet, "OPEN_FILES_MAX", 2)
    files = write(lake, rows(at_hour(0, 1, 0, 2, 1), first=0, end=5))
    names = {file.final.split("/", 2)[2]: offsets_in(lake, file) for file in files}
    assert names == {
        "hour=22/q0-0-5-g18f-b.parquet": [0, 2],
        "hour=23/q0-0-5-g18f-b.parquet": [1],
        "hour=23/q0-0-5.1-g18f-b.parquet": [4],
        "hour=00/q0-0-5-g18f-b.parquet": [3],
    }


def test_row_groups_are_bounded(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    batches = rows(at_hour(*([0] * 35)), first=0, end=35, cuts=range(35))
    (file,) = write(lake, batches)
    metadata = pq.read_metadata(lake / file.temporary)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [
        10,
        10,
        10,
        5,
    ]
    assert offsets_in(lake, file) == list(range(35))


@pytest.mark.parametrize("offsets", [[5, 6, 7, 8], [4, 5, 6, 7], [4, 5, 7, 8], [6], [4]], ids=str)
def test_a_range_that_is_not_whole_says_so(lake: Path, offsets: list[int]) -> None:
    """Its beginning, its end or something between is missing."""
    messages = [(offset, START) for offset in offsets]
    for cuts in ((), range(9)):
        files = write(lake, rows(messages, first=4, end=9, cuts=cuts))
        assert [file.complete for file in files] == [False]
        assert (files[0].first, files[0].end) == (4, 9)


def test_no_rows_make_no_files(lake: Path) -> None:
    assert write(lake, iter([])) == []
    assert write(lake, rows([], first=0, end=0)) == []
    assert temporaries(lake) == []


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 0], [0, 1, 2, 3], [-1]], ids=str)
def test_rows_that_no_range_gives_are_refused(lake: Path, offsets: list[int]) -> None:
    """Somebody sorted, doubled or mixed them: a file made of them would lie about its range."""
    for cuts in ((), range(9)):
        with pytest.raises(SinkError, match="out of order"):
            write(lake, rows([(offset, START) for offset in offsets], first=0, end=3, cuts=cuts))
        assert temporaries(lake) == []


def test_rows_of_two_ranges_in_one_task_are_refused(lake: Path) -> None:
    one, other = (list(rows(at_hour(0), first=0, end=1, queue_id=n)) for n in (0, 1))
    joined = pa.Table.from_batches(one + other).combine_chunks().to_batches()
    for batches in (one + other, joined):
        with pytest.raises(SinkError, match="several ranges"):
            write(lake, iter(batches))
        assert temporaries(lake) == []


def test_a_task_that_fails_leaves_nothing(lake: Path) -> None:
    """The broker goes away between two batches; one file is finished, one open."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(at_hour(*range(10)), first=0, end=12)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        write(lake, failing())
    assert temporaries(lake) == []


def test_files_are_synced_before_they_are_reported(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr("os.fsync", note)
    files = write(lake, rows(at_hour(0, 1), first=0, end=2))
    assert synced == [file.byte_count for file in files]


def test_every_row_is_written_once(lake: Path) -> None:
    """Sums over many hours and batches, as another check of the slicing."""
    hours: list[Any] = [n // 7 for n in range(100)]
    files = write(lake, rows(at_hour(*hours), first=0, end=100, cuts=range(0, 100, 9)))
    tables = [pq.read_table(lake / file.temporary) for file in files]
    assert sum(file.row_count for file in files) == 100
    assert sum(pc.sum(table.column("queue_offset")).as_py() for table in tables) == 4950
