"""One topic into one file, without Spark: what `polymq export` does.

Rules:

* What is exported is fixed at the start: the messages that each queue has then, or a part of them
  by offset or by time. What is published later is not in the file.
* Several queues are read at once, each by a client of its own. The rows of a queue come in order;
  rows of different queues are mixed.
* A message that is gone before it was read is an error, as in the sink.
* A file appears under its name when it is whole and on the disk. Until then, and after an error, it
  is not there, and what was there before still is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from polymq.remoting.client import ClientSettings
from polymq.remoting.driver_blocking import BlockingClient
from polymq.spark_sink.ahead import gather
from polymq.spark_sink.durable import sync_directory
from polymq.spark_sink.envelope import table_schema
from polymq.spark_sink.errors import BadOption, SinkError
from polymq.spark_sink.offsets import Bounds, Queue, Range
from polymq.spark_sink.reading import Access, Reading, connect, look, offsets_at, read_range
from polymq.spark_sink.selection import Selection
from polymq.spark_sink.table_files import open_table

QUEUES_AT_ONCE: Final = 4
"""Queues that are read at the same time; one alone is nearly as fast as the broker answers."""
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of batches that are decoded and not written yet."""
PATIENCE: Final = ClientSettings(attempts_max=8, pull_seconds=10.0)
"""Someone waits for the command: a quarter of a minute without a broker is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which messages of a topic are wanted. All that are given have to hold.

    Attributes:
        queues: numbers; empty: all.
        first, end: offsets, the end not included; for one queue only.
        since_ms, until_ms: when they were stored, both included.
    """

    queues: Sequence[int] = ()
    first: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def plan_export(brokers: Sequence[str], access: Access, topic: str, part: Part) -> list[Range]:
    """The messages that a topic has now, of those that are wanted: for each queue that has some.

    Raises:
        BadOption: the topic does not have what is asked for by number.
        SinkError: there is no such topic, or no broker answers.
    """
    with connect(brokers, access, settings=PATIENCE) as client:
        seen = look(client, Selection(topics=frozenset((topic,)))).queues
        if not seen:
            raise SinkError(f"there is no topic {topic}")
        if missing := sorted(set(part.queues) - {queue.queue_id for queue in seen}):
            raise BadOption(f"topic {topic} has no queue {missing[0]}")
        chosen = [
            queue for queue in sorted(seen) if not part.queues or queue.queue_id in part.queues
        ]
        if (part.first, part.end) != (None, None) and len(chosen) > 1:
            raise BadOption(
                f"topic {topic} has {len(chosen)} queues, and each has its own offsets: name one"
            )
        ranges = [_range(client, queue, seen[queue], part) for queue in chosen]
    return [wanted for wanted in ranges if wanted.first < wanted.end]


def count_rows(ranges: Sequence[Range]) -> int:
    """Messages of all ranges together."""
    return sum(wanted.end - wanted.first for wanted in ranges)


def _range(client: BlockingClient, queue: Queue, held: Bounds, part: Part) -> Range:
    first = held.first if part.first is None else part.first
    end = held.end if part.end is None else part.end
    if not held.first <= first <= end <= held.end:
        raise BadOption(
            f"queue {queue.queue_id} of topic {queue.topic} has the offsets {held.first} to "
            f"{held.end}, the last one not included: {first} to {end} are not among them"
        )
    if part.since_ms is not None:
        first = max(first, _offset_at(client, queue, part.since_ms, held))
    if part.until_ms is not None:
        end = min(end, _offset_at(client, queue, part.until_ms + 1, held))
    return Range(
        queue=queue, first=first, end=end, planned_first=first, incarnation=held.incarnation
    )


def _offset_at(client: BlockingClient, queue: Queue, time_ms: int, held: Bounds) -> int:
    return offsets_at(client, {queue: time_ms}, {queue: held})[queue]


# --- reading and writing ------------------------------------------------------------------------


def read_ranges(
    ranges: Sequence[Range], brokers: Sequence[str], access: Access
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of all ranges. Close it at an early end. Raises SinkError."""
    reading = Reading(
        brokers=tuple(brokers),
        credentials=access.credentials,
        tls=access.tls,
        fail_on_data_loss=True,
        with_range=False,
    )
    return gather(
        [_read(wanted, reading) for wanted in ranges],
        at_once=min(QUEUES_AT_ONCE, len(ranges)),
        bytes_max=WAITING_BYTES_MAX,
        size=_size,
    )


def _read(wanted: Range, reading: Reading) -> Iterator[pa.RecordBatch]:
    with connect(reading.brokers, reading, settings=PATIENCE) as client:
        yield from read_range(client, wanted, reading, table_schema())


def _size(rows: pa.RecordBatch) -> int:
    size: int = rows.nbytes
    return size


def write_rows(
    batches: Generator[pa.RecordBatch, None, None],
    file: BinaryIO,
    form: str,
    *,
    advance: Callable[[int], None],
) -> None:
    """Write all rows in this format (`table_files.FORMATS`).

    Args:
        advance: called with the number of rows that were written since the last call.
    """
    table = open_table(form, file, table_schema())
    with closing(batches):
        for rows in batches:
            table.add(rows)
            advance(rows.num_rows)
    table.close()
    file.flush()


@contextmanager
def appearing(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """A file that is there under its name once it is whole and on the disk.

    Args:
        replace: whether there may be a file of that name, which then goes.

    Raises:
        FileExistsError: there is one, now or in the end; or something else has the name.
        OSError: it cannot be written.
    """
    _check_free(path, replace=replace)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with temporary.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            _check_free(path, replace=replace)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _check_free(path: Path, *, replace: bool) -> None:
    """A device or a directory is never replaced."""
    if path.exists() and not (replace and path.is_file()):
        raise FileExistsError(path)
