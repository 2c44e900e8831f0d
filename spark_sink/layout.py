"""Where the files of the sink are, and what they are called. Pure.

    <output>/topic=<topic>/date=<YYYY-MM-DD>/hour=<HH>/<file>
    <output>/_tmp/<run>/<batch>-<random>.part      being written
    <output>/_manifest/<batch>.json                what a batch consists of

    <file> = q<queue>-<first>-<end>[.<part>]-g<generation>-<broker>.parquet

* Date and hour are those of the store time, in UTC: a message lands where it arrived, however old
  its own time is.
* `first` and `end` are the offsets of the range that the task read, `end` excluded. A range that
  touches two hours has a file of the same name in both.
* The generation is the topic's incarnation in hex, or 0 where the server is not PolyMQ. A topic
  that was deleted and created again counts its offsets from 0 again, and so does a topic of the
  same name on another broker. With generation and broker in the name, their files never meet.
* What is not finished does not end in `.parquet` and is below a name that begins with `_`: globs
  for `*.parquet` miss it, and so do readers of directories (Arrow, Spark, Hive).
* Topics and brokers are escaped as in URLs; readers of such directories undo that for topics.
* A topic whose escaped name is longer than a file system takes gets the beginning of that name,
  `@`, and a hash of the whole one. The escaping never leaves an `@`, so no other topic has such a
  directory. The files themselves have the whole name, as files of all topics do.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

TEMPORARY: Final = "_tmp"
MANIFEST: Final = "_manifest"
TEMPORARY_SUFFIX: Final = ".part"
SUFFIX: Final = ".parquet"
HOUR_US: Final = 3_600_000_000
"""An hour in the microseconds of Arrow's timestamps."""

NAME_BYTES_MAX: Final = 255
"""Of one file or directory name, on every file system in use."""
PREFIX_BYTES_MAX: Final = 100
"""What is left of a name that is too long, so that people recognize it."""
_HASH_DIGITS: Final = 32
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What readers of Hive's directories take for NULL, where it is the whole value."""
_BROKER_BYTES_MAX: Final = NAME_BYTES_MAX - len(
    f"q{2**31}-{2**63}-{2**63}.{2**31}-g{2**63:x}-{SUFFIX}"
)

_RANGE: Final = re.compile(r"(\d+)-(\d+)(?:-([0-9a-f]+))?@(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The range of a task, and whose it is.

    Attributes:
        incarnation: of the topic; None where the server is not PolyMQ.
        former: a range that was planned by the first version of the sink (see `former`).
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    end: int
    incarnation: int | None
    former: bool = False


def range_text(
    *, first: int, end: int, broker: str, incarnation: int | None, former: bool = False
) -> str:
    """A range as the range column has it: `<first>-<end>-<generation>@<broker>`. Without a
    generation, it was planned by the first version of the sink."""
    generation = "" if former else f"-{incarnation or 0:x}"
    return f"{first}-{end}{generation}@{broker}"


def parse_range(text: str, *, topic: str, queue_id: int) -> Span:
    """The inverse of `range_text`. Raises ValueError."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a range: {text!r}")
    first, end, generation, broker = match.groups()
    return Span(
        topic=topic,
        broker=broker,
        queue_id=queue_id,
        first=int(first),
        end=int(end),
        incarnation=int(generation or "0", 16) or None,
        former=generation is None,
    )


def topic_directory(topic: str) -> str:
    """The directory of a topic."""
    escaped = quote(topic, safe="")
    if topic == _HIVE_NULL:
        escaped = topic.replace("_", "%5F", 1)
    if len("topic=") + len(escaped) > NAME_BYTES_MAX:
        escaped = _shortened(topic)
    return f"topic={escaped}"


def hour_directory(hour: int) -> str:
    """The directory of one hour within that of a topic; `hour` counts from 1970 in UTC."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}"


def file_name(span: Span, part: int = 0) -> str:
    """The name of a range's file. `part` counts further files of the same range and hour, which
    there are only if a queue's store times went back and forth."""
    broker = quote(span.broker, safe="")
    if len(broker) > _BROKER_BYTES_MAX:
        broker = _shortened(span.broker)
    return (
        f"q{span.queue_id}-{span.first}-{span.end}{f'.{part}' if part else ''}"
        f"-g{span.incarnation or 0:x}-{broker}{SUFFIX}"
    )


def final_path(span: Span, hour: int, part: int = 0) -> str:
    """Where a range's file of one hour belongs, from the output directory."""
    return f"{topic_directory(span.topic)}/{hour_directory(hour)}/{file_name(span, part)}"


def _shortened(name: str) -> str:
    """The beginning of the escaped name, without half a character, and a hash of the name."""
    escaped_levels, size = [], 0
    for character in name:
        escaped = quote(character, safe="")
        size += len(escaped)
        if size > PREFIX_BYTES_MAX:
            break
        escaped_levels.append(escaped)
    return f"{''.join(escaped_levels)}@{hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"
