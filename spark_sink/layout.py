"""Where the files of the sink stand, and what they are called. Pure.

    <output>/topic=<topic>/date=<YYYY-MM-DD>/hour=<HH>/q<queue>-<from>-<to>.parquet
    <output>/_tmp/<run>/<batch>-<random>.part      being written
    <output>/_manifest/<batch>.json                what a batch consists of

* Date and hour are those of the store time, in UTC: a message lands where it arrived, however old
  its own time is.
* `from` and `to` are the offsets of the range that the task read, first included, last excluded.
  A range that touches two hours has a file of the same name in both.
* What is not finished does not end in `.parquet` and stands below a name that begins with `_`:
  globs for `*.parquet` miss it, and so do readers of directories (Arrow, Spark, Hive).
* Values of `topic=` are escaped as in URLs; readers of such directories undo that.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from spark_sink.errors import SinkError

TEMPORARY: Final = "_tmp"
MANIFEST: Final = "_manifest"
TEMPORARY_SUFFIX: Final = ".part"
SUFFIX: Final = ".parquet"
HOUR_US: Final = 3_600_000_000
"""An hour in the microseconds of Arrow's timestamps."""

EMPTY_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What stands for an empty value in such directories, since Hive."""
NAME_BYTES_MAX: Final = 255
"""Of one directory name, on every file system in use."""

_NAME: Final = re.compile(r"q(\d+)-(\d+)-(\d+)(?:\.(\d+))?\.parquet")


def topic_directory(topic: str) -> str:
    """The directory of a topic.

    Raises:
        SinkError: the escaped name is longer than a file system takes.
    """
    name = "topic=" + (quote(topic, safe="") or EMPTY_VALUE)
    if len(name) > NAME_BYTES_MAX:
        raise SinkError(
            f"topic {topic[:50]!r}... cannot be written: its name makes a directory name of "
            f"{len(name)} characters, and {NAME_BYTES_MAX} are possible"
        )
    return name


def partition_directory(topic: str, hour: int) -> str:
    """The directory of one hour of a topic; `hour` counts from 1970 in UTC."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{topic_directory(topic)}/date={moment:%Y-%m-%d}/hour={moment:%H}"


def file_name(queue_id: int, first: int, end: int, part: int = 0) -> str:
    """The name of a range's file. `part` counts further files of the same range and hour, which
    there are only if a queue's store times went back and forth."""
    return f"q{queue_id}-{first}-{end}{f'.{part}' if part else ''}{SUFFIX}"


def parse_file_name(name: str) -> tuple[int, int, int, int] | None:
    """Queue id, first, end and part of a file name; None if it is not one of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    queue_id, first, end, part = match.groups(default="0")
    return int(queue_id), int(first), int(end), int(part)


def topic_of(directory: str) -> str:
    """The inverse of `topic_directory`."""
    value = directory.removeprefix("topic=")
    return "" if value == EMPTY_VALUE else unquote(value)
