"""`state.db` as it is, on real files, and what a crash may leave of them.

`CrashingStateDb` is the program's `StateDb`, with SQLite and a directory of a real file system. It
takes note of SQLite's files at every stage of a saving. What a crash leaves is made of these:

    writing      before the commit: the file as it was, the log (`-wal`) without a commit
    committed    the file as it was, and any sectors of the log: nothing of it was synced yet
    closed       the log is synced and was copied into the file: any pages of that, and the log

A process that is killed leaves all three files as they are at that moment.

What this trusts: that SQLite syncs the log before it copies it, and the file before it removes the
log, as `synchronous=NORMAL` promises. That SQLite recovers from a torn log is not trusted: it does
so here. What this leaves out: the moment in which a new file is switched to WAL, and errors of the
disk. Instead of these a saving may fail as a whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from broker.state_db import Row, StateDb
from tests.crash.losses import PAGE, Parts

NAME: Final = "state.db"
SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
KINDS_LIKELY: Final = (0.0, 0.3, 0.7, 1.0)

Image = dict[str, bytes]
"""The bytes of SQLite's files, by what they have behind their name."""


def read_image(directory: Path) -> Image:
    """What is there."""
    paths = {suffix: directory / f"{NAME}{suffix}" for suffix in SUFFIXES}
    return {suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()}


def write_image(directory: Path, image: Image) -> None:
    """Let this be there, and nothing else."""
    for suffix in SUFFIXES:
        path = directory / f"{NAME}{suffix}"
        if suffix in image:
            path.write_bytes(image[suffix])
        else:
            path.unlink(missing_ok=True)


class CrashingStateDb(StateDb):
    """`state.db` in a directory, which a crash may leave in parts.

    Args:
        failing: how likely it is that a saving fails.

    Attributes:
        on_change: called at every stage of a saving.
        yields: called between two rows, and at every stage: other threads may have turns.
        directory: where it stands.
    """

    def __init__(self, directory: Path, random: Random, failing: float) -> None:
        super().__init__(directory / NAME)
        self.directory = directory
        self.on_change: Callable[[], None] | None = None
        self.yields: Callable[[], None] | None = None
        self._random = random
        self._failing = failing
        self._stage = ""
        self._before: Image = {}
        self._log = b""

    def save(self, position: int, epoch: int, rows: Iterable[Row]) -> None:
        self._before = read_image(self.directory)
        self._stage = "writing"
        try:
            super().save(position, epoch, self._one_by_one(rows))
        finally:
            self._stage = ""

    def _one_by_one(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._next_stage("writing")
            yield row
        if self._random.random() < self._failing:
            raise sqlite3.OperationalError("disk I/O error")

    def _connect(self) -> Any:
        return Watched(super()._connect(), self)

    def committed(self) -> None:
        """The transaction is in SQLite's log."""
        if self._stage == "writing":
            self._log = read_image(self.directory).get("-wal", b"")
            self._next_stage("committed")

    def closed(self) -> None:
        """The log was copied into the file, and is gone."""
        if self._stage == "committed":
            self._next_stage("closed")

    def _next_stage(self, stage: str) -> None:
        self._stage = stage
        if self.on_change is not None:
            self.on_change()
        if self.yields is not None:
            self.yields()

    def left_by_kill(self) -> Image:
        """What is found when only the process died."""
        return read_image(self.directory)

    def left_by_power_cut(self, random: Random) -> Image:
        """What is found when the machine is up again."""
        there = read_image(self.directory)
        there.pop("-shm", None)
        if self._stage in ("writing", "committed"):
            log = self._log if self._stage == "committed" else b""
            kept = Parts(random, random.choice(KINDS_LIKELY))
            left = bytearray()
            kept.write(left, 0, log)
            return {**there, "-wal": bytes(left)}
        if self._stage == "closed":
            kept = Parts(random, random.choice(KINDS_LIKELY), unit=PAGE)
            file = bytearray(self._before.get("", b""))
            kept.write(file, 0, there.get("", b""))
            return {"": bytes(file), "-wal": self._log}
        return there


class Watched:
    """A connection that says when it has committed, and when it is closed."""

    def __init__(self, connection: sqlite3.Connection, database: CrashingStateDb) -> None:
        self._connection = connection
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)
        if error[0] is None:
            self._database.committed()

    def close(self) -> None:
        self._connection.close()
        self._database.closed()
