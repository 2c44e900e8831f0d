"""Names of files and directories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.spark_sink.former import current_topic, former_path
from polymq.spark_sink.layout import (
    NAME_BYTES_MAX,
    Span,
    file_name,
    final_path,
    parse_range,
    range_text,
    topic_directory,
)

SPAN = Span(topic="t", broker="b", queue_id=3, first=0, end=1000, incarnation=0x18F)
HOUR = 1_700_000_000 // 3600
TOPICS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=400)

spans = st.builds(
    Span,
    topic=st.just("t"),
    broker=st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
    queue_id=st.integers(0, 2**31 - 1),
    first=st.integers(0, 2**63 - 1),
    end=st.integers(0, 2**63 - 1),
    incarnation=st.none() | st.integers(1, 2**63 - 1),
)


def test_a_partition_is_named_by_the_store_hour_in_utc() -> None:
    path = "topic=t/date=2023-11-14/hour=22/q3-0-1000-g18f-b.parquet"
    assert final_path(SPAN, HOUR) == path
    assert final_path(SPAN, 0).startswith("topic=t/date=1970-01-01/hour=00/")


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("a/b", "topic=a%2Fb"),
        ("..", "topic=.."),
        ("50%", "topic=50%25"),
        ("wärme", "topic=w%C3%A4rme"),
        ("a b=c", "topic=a%20b%3Dc"),
        ("||", "topic=%7C%7C"),
        ("__HIVE_DEFAULT_PARTITION__", "topic=%5F_HIVE_DEFAULT_PARTITION__"),
        ("x" * 249, "topic=" + "x" * 249),
    ],
)
def test_topics_never_leave_their_directory(topic: str, name: str) -> None:
    assert topic_directory(topic) == name


@given(TOPICS)
def test_every_topic_has_a_directory_that_file_systems_take(topic: str) -> None:
    name = topic_directory(topic)
    assert "/" not in name
    assert len(name.encode()) <= NAME_BYTES_MAX
    if "@" not in name:
        assert unquote(name.removeprefix("topic=")) == topic


@given(TOPICS, TOPICS)
def test_no_two_topics_share_a_directory(one: str, other: str) -> None:
    assert (topic_directory(one) == topic_directory(other)) == (one == other)


def test_a_name_that_is_too_long_keeps_its_beginning_and_gets_a_hash() -> None:
    """Also where only the escapes are long; a letter is never cut in half."""
    name = topic_directory("é" * 50)
    beginning, _, digits = name.removeprefix("topic=").partition("@")
    assert unquote(beginning, errors="strict") == "é" * 16
    assert len(digits) == 32
    long = "x" * 300
    assert topic_directory(long) != topic_directory(long + "y")
    assert topic_directory(long) == topic_directory("x" * 300)
    # A topic that has the name of that directory has another one.
    assert topic_directory(unquote(name.removeprefix("topic="))) != name


def test_a_file_name_as_the_documentation_shows_it() -> None:
    assert file_name(SPAN) == "q3-0-1000-g18f-b.parquet"
    assert file_name(SPAN, 1) == "q3-0-1000.1-g18f-b.parquet"
    assert file_name(replace(SPAN, incarnation=None)) == "q3-0-1000-g0-b.parquet"
    assert file_name(replace(SPAN, broker="rack 1/b")) == "q3-0-1000-g18f-rack%201%2Fb.parquet"


@given(spans, spans, st.integers(0, 9), st.integers(0, 9))
def test_files_of_different_ranges_brokers_and_generations_never_meet(
    one: Span, other: Span, part: int, other_part: int
) -> None:
    for changed in (
        other,
        replace(one, broker=other.broker),
        replace(one, incarnation=other.incarnation),
        replace(one, broker=f"{one.broker}.1"),
    ):
        same = (one, part) == (changed, other_part)
        assert (file_name(one, part) == file_name(changed, other_part)) == same
    assert len(file_name(one, part).encode()) <= NAME_BYTES_MAX


@given(spans, st.booleans())
def test_the_range_column_says_all_that_names_a_file(span: Span, former: bool) -> None:
    text = range_text(
        first=span.first,
        end=span.end,
        broker=span.broker,
        incarnation=span.incarnation,
        former=former,
    )
    expected = replace(span, former=True, incarnation=None) if former else span
    assert parse_range(text, topic=span.topic, queue_id=span.queue_id) == expected


def test_a_range_of_the_first_version_is_known_by_its_form() -> None:
    span = parse_range("5-9@broker-a", topic="t", queue_id=0)
    assert (span.first, span.end, span.broker, span.former) == (5, 9, "broker-a", True)
    with pytest.raises(ValueError, match="not a range"):
        parse_range("5@broker-a", topic="t", queue_id=0)


def test_readers_see_short_names_whole_and_long_ones_shortened(tmp_path: Path) -> None:
    """In the column of the directories; the column in the files has the whole name."""
    names = ["a b", "||", "é" * 50, "x" * 300]
    for name in names:
        path = tmp_path / final_path(replace(SPAN, topic=name), HOUR)
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"topic_name": [name]}), path)
    rows = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    seen = {row["topic_name"]: row["topic"] for row in rows}
    assert {name: seen[name] for name in names[:2]} == {"a b": "a b", "||": "||"}
    assert seen["é" * 50].startswith("é" * 16 + "@")
    assert seen["x" * 300].startswith("x" * 100 + "@")


# --- the first version ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "directory"),
    [
        ("", "||", "topic=__HIVE_DEFAULT_PARTITION__"),
        ("||", "|||", "topic=%7C%7C"),
        ("|||", "||||", "topic=%7C%7C%7C"),
        ("|", "|", "topic=%7C"),
        ("a|", "a|", "topic=a%7C"),
        ("sensors", "sensors", "topic=sensors"),
    ],
)
def test_names_of_the_first_version(then: str, now: str, directory: str) -> None:
    assert current_topic(then) == now
    span = replace(SPAN, topic=now, former=True)
    date = "date=2023-11-14/hour=22"
    assert former_path(span, HOUR) == f"{directory}/{date}/q3-0-1000.parquet"
    assert former_path(span, HOUR, 2) == f"{directory}/{date}/q3-0-1000.2.parquet"


def test_the_first_version_could_not_write_long_names() -> None:
    assert former_path(replace(SPAN, topic="x" * 249), HOUR) is not None
    assert former_path(replace(SPAN, topic="x" * 250), HOUR) is None
