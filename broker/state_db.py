"""`state.db`: a cache of the folded state, so that a restart need not fold the whole log.

One table of entities (kind, key, JSON value), written in small transactions together with the log
position and epoch that they are folded up to. It is only a cache: without it, or with a position
that the log does not have, the state is folded from the log's beginning.

Used from worker threads; a connection is opened per use, because SQLite connections belong to one
thread and saving happens every few seconds at most.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 10.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entity (
    kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folded (
    one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL, epoch INTEGER NOT NULL,
    version INTEGER NOT NULL
);
"""

Row = tuple[str, str, str | None]
"""(kind, key, JSON value); None deletes the entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What the file holds: the state up to a position of an epoch."""

    position: int
    epoch: int
    rows: Sequence[tuple[str, str, str]]


class StateDb:
    """The file. Every error of SQLite means: there is no usable cache."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Folded | None:
        """The folded state, or None if there is none that can be read."""
        if not self._path.exists():
            return None
        try:
            with closing(self._connect()) as connection:
                found = connection.execute("SELECT position, epoch, version FROM folded").fetchone()
                if found is None or found[2] != SCHEMA_VERSION:
                    return None
                rows = connection.execute("SELECT kind, key, value FROM entity").fetchall()
        except sqlite3.Error:
            return None
        return Folded(position=found[0], epoch=found[1], rows=rows)

    def save(self, position: int, epoch: int, rows: Sequence[Row]) -> None:
        """Write changed entities and the position in one transaction.

        Raises:
            sqlite3.Error: nothing was written; the file is behind, which is allowed.
        """
        with closing(self._connect()) as connection, connection:
            for kind, key, value in rows:
                if value is None:
                    connection.execute("DELETE FROM entity WHERE kind=? AND key=?", (kind, key))
                else:
                    connection.execute(
                        "INSERT INTO entity VALUES (?,?,?) "
                        "ON CONFLICT (kind, key) DO UPDATE SET value=excluded.value",
                        (kind, key, value),
                    )
            connection.execute(
                "INSERT INTO folded VALUES (1,?,?,?) ON CONFLICT (one) DO UPDATE SET "
                "position=excluded.position, epoch=excluded.epoch, version=excluded.version",
                (position, epoch, SCHEMA_VERSION),
            )

    def discard(self) -> None:
        """Delete the file: the next start folds the log from its beginning."""
        for suffix in ("", "-wal", "-shm"):
            Path(str(self._path) + suffix).unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(descriptor)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        return connection
