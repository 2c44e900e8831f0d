"""The output directory and its exactly-once protocol. Knows neither Spark nor Parquet.

What a reader may rely on, at every moment and whatever was killed: below the output directory,
each file that ends in `.parquet` is whole, and no message is in two of them. After a batch is
committed, each of its messages is in one of them.

How a batch gets there:

1. Spark logs the range that the batch reads (checkpoint `offsets/<batch>`).
2. Tasks write temporary files, sync them, and report what their final names will be. A final name
   follows from broker, topic, generation, hour, queue and range alone (`layout`).
3. The driver calls `commit`: it makes Spark's log of the range durable, renames the files,
   syncs the directories, writes the manifest.
4. Spark logs that the batch is done (`commits/<batch>`).

A crash anywhere before 4 makes Spark run the batch again with the logged range: the same messages,
the same names, so a rename replaces a file by its equal. That is why 3 begins with the sync: Spark
itself does not sync its log, and a range that a power failure made it forget could come back with
another end, whose files would overlap those that are there.

Four things could still break the promise, and are prevented here:

* *An incomplete range.* Where retention took the beginning of a range (and the user chose to go on
  without it), the replay has fewer messages than the first run had. Such a file never replaces
  one that is there.
* *Two sinks.* `open_run` takes a lock that ends with the process. The Java machine and its
  workers can outlive a killed driver for a moment, so each run has a token, and a commit
  counts only while its token is the current one: check, renames and manifest are under one lock.
* *The wrong directory.* Output and checkpoint name each other. With another checkpoint the same
  messages would come in other ranges, under other names.
* *Other names after an upgrade.* A batch that the first version of the sink planned is finished
  under the names that it may have given already (`former`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from polymq.spark_sink.durable import (
    locked,
    make_directory,
    read_json,
    sync_directory,
    sync_file,
    write_json,
)
from polymq.spark_sink.errors import OutputRefused, SinkError, Stale
from polymq.spark_sink.faults import Reach, reach_nothing
from polymq.spark_sink.layout import MANIFEST, SUFFIX, TEMPORARY, TEMPORARY_SUFFIX

MANIFESTS_MAX: Final = 1000
"""Older ones are deleted: nothing reads them, and a file every ten seconds adds up."""

_RUN: Final = "run.json"
_RUN_LOCK: Final = "run.lock"
_COMMIT_LOCK: Final = "commit.lock"
_CHECKPOINT_ID: Final = "polymq-sink.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A temporary file, and what it is to become. Travels from task to driver.

    Attributes:
        temporary, final: relative to the output directory.
        former: what `final` was in the first version of the sink, if that planned the batch.
        first, end: the range of offsets that its task read.
        row_count: messages in this file (of this hour).
        complete: whether the task saw every offset of the range.
    """

    temporary: str
    final: str
    broker: str
    topic: str
    queue_id: int
    first: int
    end: int
    row_count: int
    byte_count: int
    complete: bool
    former: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One life of a sink on a directory."""

    output: Path
    checkpoint: Path
    token: str


# --- a run ------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_run(output: Path, checkpoint: Path) -> Iterator[Run]:
    """Take the directory over: check whose it is, fence older runs off, clean up after them.

    Raises:
        OutputRefused: it is in use, belongs to another checkpoint, or holds strange files.
    """
    output, checkpoint = output.absolute(), checkpoint.absolute()
    manifest = output / MANIFEST
    if not manifest.is_dir():
        _check_unused(output, checkpoint)
    make_directory(manifest)
    make_directory(checkpoint)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(manifest / _RUN_LOCK, wait=False))
        except BlockingIOError as error:
            raise OutputRefused(f"another sink writes to {output}: stop it first") from error
        run = Run(output=output, checkpoint=checkpoint, token=uuid.uuid4().hex)
        _begin(run)
        yield run


def renewed(run: Run) -> Run:
    """The run once more, with another token: what an attempt that failed left behind is fenced off
    and deleted. Only while `open_run` holds the directory."""
    again = replace(run, token=uuid.uuid4().hex)
    _begin(again)
    return again


def _check_unused(output: Path, checkpoint: Path) -> None:
    if output.is_dir() and any(output.iterdir()):
        raise OutputRefused(
            f"{output} holds files that no sink wrote: choose an empty or a new directory"
        )
    if (checkpoint / "offsets").is_dir():
        raise OutputRefused(
            f"checkpoint {checkpoint} has read messages whose files are not in {output}: use the "
            "directory that it wrote to, or a new checkpoint with a new directory"
        )


def _begin(run: Run) -> None:
    manifest = run.output / MANIFEST
    owner = read_json(manifest / _RUN)
    identity = read_json(run.checkpoint / _CHECKPOINT_ID)
    if identity is None:
        if owner is not None or (run.checkpoint / "offsets").is_dir():
            raise OutputRefused(
                f"{run.output} and checkpoint {run.checkpoint} do not belong together: use the "
                "pair that was used before, or a new checkpoint with a new directory"
            )
        identity = {"id": uuid.uuid4().hex}
        write_json(run.checkpoint / _CHECKPOINT_ID, identity)
    if owner is None and (run.checkpoint / "offsets").is_dir():
        raise OutputRefused(f"checkpoint {run.checkpoint} wrote to another directory before")
    if owner is not None and owner["checkpoint"] != identity["id"]:
        raise OutputRefused(
            f"{run.output} belongs to another checkpoint than {run.checkpoint}: with this one "
            "messages would be written twice"
        )
    with locked(manifest / _COMMIT_LOCK, wait=True):
        write_json(manifest / _RUN, {"run": run.token, "checkpoint": identity["id"]})
    # Older runs can rename nothing any more: what they left unfinished can go.
    shutil.rmtree(run.output / TEMPORARY, ignore_errors=True)
    make_directory(temporary_directory(run.output, run.token))
    _mend_checkpoint(run.checkpoint)


def _mend_checkpoint(checkpoint: Path) -> None:
    """Take away what a power failure left empty of Spark's own logs, which Spark does not sync
    and refuses to read. An empty `offsets` file was never synced by `commit`, so no file of its
    batch exists; an empty `commits` file costs a replay. Neither loses or doubles a message."""
    for directory in (checkpoint / "offsets", checkpoint / "commits"):
        numbers = [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]
        last = directory / str(max(numbers, default=0))
        if last.is_file() and last.stat().st_size == 0:
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def temporary_directory(output: Path, token: str) -> Path:
    """Where the tasks of a run write."""
    return output / TEMPORARY / token


def temporary_path(output: Path, token: str, batch: int | None) -> Path:
    """A new name for a temporary file. Never the same twice: a task that Spark gave up may still
    be writing while its second attempt runs."""
    name = f"{'x' if batch is None else batch}-{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
    return temporary_directory(output, token) / name


# --- a batch ----------------------------------------------------------------------------------


def commit(
    run: Run, batch: int, files: Sequence[WrittenFile], *, reach: Reach = reach_nothing
) -> None:
    """Give the files of a batch their final names, or replace them by their equals.

    Raises:
        Stale: another run has taken over.
        SinkError: two tasks claim the same name, or the batch was committed with other ranges.
    """
    reach("before-rename", batch)
    manifest = run.output / MANIFEST
    with locked(manifest / _COMMIT_LOCK, wait=True):
        _check_current(run)
        files = _with_former_names(run.output, files)
        _check_names(files)
        _check_replay(manifest / f"{batch}.json", batch, files)
        _sync_checkpoint(run.checkpoint, batch)
        written = _rename_all(run.output, batch, files, reach)
        reach("after-rename", batch)
        write_json(manifest / f"{batch}.json", _manifest(batch, run, files, written))
        reach("after-manifest", batch)
        _tidy(run, batch)


def abort(run: Run, batch: int, files: Sequence[WrittenFile]) -> None:
    """Delete the temporary files of a batch that failed; it will be run again."""
    for file in files:
        (run.output / file.temporary).unlink(missing_ok=True)


def _check_current(run: Run) -> None:
    current = read_json(run.output / MANIFEST / _RUN)
    if current is None or current["run"] != run.token:
        raise Stale(f"another sink has taken {run.output} over; this one stops")


def _check_names(files: Sequence[WrittenFile]) -> None:
    by_name: dict[str, WrittenFile] = {}
    for file in files:
        other = by_name.setdefault(file.final, file)
        if other is not file:
            raise SinkError(f"two tasks claim {file.final}: the second would replace the first")


def _with_former_names(output: Path, files: Sequence[WrittenFile]) -> Sequence[WrittenFile]:
    """The files of a batch that the first version of the sink planned, with the names that it may
    have given them already. Where it cannot have, they keep their own: it refused a topic on two
    brokers, or with a long name, before it renamed anything."""
    former = {file.former for file in files}
    if None in former or len(former) < len(files):
        return files
    if any((output / file.final).exists() for file in files):
        return files  # this version has begun to name them, when there were more of them
    return [replace(file, final=str(file.former)) for file in files]


def _check_replay(path: Path, batch: int, files: Sequence[WrittenFile]) -> None:
    """A batch that was committed before has to come back with the same ranges."""
    document = read_json(path)
    if document is None:
        return
    known = {(row["broker"], row["topic"], row["queue_id"]): row for row in document["files"]}
    for file in files:
        row = known.get((file.broker, file.topic, file.queue_id))
        if row is not None and (row["first"], row["end"]) != (file.first, file.end):
            raise SinkError(
                f"batch {batch} was written with offsets {row['first']} to {row['end']} of topic "
                f"{file.topic!r}, queue {file.queue_id}, and now comes with {file.first} to "
                f"{file.end}: the checkpoint is older than the files"
            )


def _sync_checkpoint(checkpoint: Path, batch: int) -> None:
    log = checkpoint / "offsets" / str(batch)
    sync_file(log)
    checksum = log.with_name(f".{batch}.crc")  # Hadoop's; a wrong one makes the log unreadable
    if checksum.exists():
        sync_file(checksum)
    sync_directory(log.parent)
    sync_directory(checkpoint)


def _rename_all(
    output: Path, batch: int, files: Sequence[WrittenFile], reach: Reach
) -> list[WrittenFile]:
    """The files that got their final names."""
    written = []
    for file in files:
        source, final = output / file.temporary, output / file.final
        if not file.complete and final.exists():
            source.unlink()
            continue
        make_directory(final.parent)
        source.replace(final)
        written.append(file)
        if len(written) == 1:
            reach("after-rename-1", batch)
    for directory in sorted({(output / file.final).parent for file in written}):
        sync_directory(directory)
    return written


def _manifest(
    batch: int, run: Run, files: Sequence[WrittenFile], written: Sequence[WrittenFile]
) -> Mapping[str, Any]:
    renamed = {file.final for file in written}
    rows = []
    for file in files:
        row = asdict(file)
        del row["temporary"], row["former"]
        row["path"] = row.pop("final")
        row["kept_older"] = file.final not in renamed
        rows.append(row)
    return {
        "batch": batch,
        "run": run.token,
        "committed_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "row_count": sum(file.row_count for file in files),
        "files": rows,
    }


def _tidy(run: Run, batch: int) -> None:
    """What no longer serves: temporary files of attempts that Spark gave up, old manifests."""
    for path in temporary_directory(run.output, run.token).glob(f"*{TEMPORARY_SUFFIX}"):
        number, _, _ = path.name.partition("-")
        if number.isdecimal() and int(number) <= batch:
            path.unlink(missing_ok=True)
    (run.output / MANIFEST / f"{batch - MANIFESTS_MAX}.json").unlink(missing_ok=True)


# --- looking ----------------------------------------------------------------------------------


def manifests(output: Path) -> Iterator[Mapping[str, Any]]:
    """The manifests that are kept, oldest batch first."""
    numbers = sorted(
        int(path.stem) for path in (output / MANIFEST).glob("*.json") if path.stem.isdecimal()
    )
    for number in numbers:
        document = read_json(output / MANIFEST / f"{number}.json")
        if document is not None:
            yield document


def data_files(output: Path) -> list[Path]:
    """Every file that a reader would find."""
    found = []
    for directory, names, files in os.walk(output):
        names[:] = [name for name in names if not name.startswith(("_", "."))]
        found += [Path(directory, name) for name in files if name.endswith(SUFFIX)]
    return sorted(found)
