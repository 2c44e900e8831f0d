"""Names of files and directories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.errors import SinkError
from spark_sink.layout import (
    file_name,
    parse_file_name,
    partition_directory,
    topic_directory,
    topic_of,
)


def test_a_partition_is_named_by_the_store_hour_in_utc() -> None:
    hour = 1_700_000_000 // 3600
    assert partition_directory("sensors", hour) == "topic=sensors/date=2023-11-14/hour=22"
    assert partition_directory("t", 0) == "topic=t/date=1970-01-01/hour=00"


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("a/b", "topic=a%2Fb"),
        ("..", "topic=.."),
        ("50%", "topic=50%25"),
        ("wärme", "topic=w%C3%A4rme"),
        ("a b=c", "topic=a%20b%3Dc"),
        ("", "topic=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_topics_never_leave_their_directory(topic: str, name: str) -> None:
    assert topic_directory(topic) == name
    assert topic_of(name) == topic


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_every_topic_has_a_directory_of_its_own(topic: str) -> None:
    name = topic_directory(topic)
    assert "/" not in name
    assert topic_of(name) == topic


def test_a_name_that_no_file_system_takes_is_refused_before_anything_is_read() -> None:
    with pytest.raises(SinkError, match="cannot be written"):
        topic_directory("x" * 250)


@given(*[st.integers(0, 2**62)] * 3, st.integers(0, 9))
def test_a_file_name_says_queue_and_range(queue: int, first: int, end: int, part: int) -> None:
    assert parse_file_name(file_name(queue, first, end, part)) == (queue, first, end, part)


def test_names_as_the_documentation_shows_them() -> None:
    assert file_name(3, 0, 1000) == "q3-0-1000.parquet"
    assert file_name(3, 0, 1000, 1) == "q3-0-1000.1.parquet"
    for other in ("part-0000.parquet", "q1-2.parquet", "q0-0-1.parquet.crc", ".q0-0-1.parquet"):
        assert parse_file_name(other) is None
