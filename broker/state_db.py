"""`state.db`: a cache of the folded state, so that a restart need not fold the whole log.

One table of entities (kind, key, JSON value), written in small transactions together with the log
position and epoch that they are folded up to. It is only a cache: without it, or with a position
that the log does not have, the state is folded from the log's beginning.

Used from worker threads; a connection is opened per use, because SQLite connections belong to one
thread and saving happens every few seconds at most.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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

Row = tuple[str, str, object]
"""(kind, key, a value for JSON); None deletes the entity."""

DECODED_COUNT: Final = 500
"""Rows that are decoded together: one call for many is five times as fast, and all at once would
need the memory of all values twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What the file holds: the state up to a position of an epoch."""

    position: int
    epoch: int
    rows: dict[str, list[tuple[str, str]]]
    """(key, JSON text) of all entities, by kind."""

    def take(self, kind: str) -> Iterator[tuple[str, Any]]:
        """The entities of a kind, decoded: key and value. They can be taken once."""
        left = self.rows.pop(kind, [])
        left.reverse()
        while left:
            some = left[-DECODED_COUNT:]
            del left[-DECODED_COUNT:]
            values = json.loads("[" + ",".join(text for _, text in some) + "]")
            for at in range(len(some) - 1, -1, -1):
                yield some[at][0], values[at]


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
                rows: dict[str, list[tuple[str, str]]] = {}
                for kind, key, value in connection.execute("SELECT kind, key, value FROM entity"):
                    rows.setdefault(kind, []).append((key, value))
        except sqlite3.Error:
            return None
        return Folded(position=found[0], epoch=found[1], rows=rows)

    def save(self, position: int, epoch: int, rows: Sequence[Row]) -> None:
        """Write changed entities and the position in one transaction.

        Raises:
            sqlite3.Error: nothing was written; the file is behind, which is allowed.
        """
        with closing(self._connect()) as connection, connection:
            connection.executemany(
                "DELETE FROM entity WHERE kind=? AND key=?",
                ((kind, key) for kind, key, value in rows if value is None),
            )
            connection.executemany(
                "INSERT INTO entity VALUES (?,?,?) "
                "ON CONFLICT (kind, key) DO UPDATE SET value=excluded.value",
                (
                    (kind, key, json.dumps(value, separators=(",", ":")))
                    for kind, key, value in rows
                    if value is not None
                ),
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
