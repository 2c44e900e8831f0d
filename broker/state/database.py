"""`state.db`: a cache of the folded state, so that a restart need not fold the whole log.

One table of entities (kind, key, JSON value), written in small transactions together with the log
position and epoch that they are folded up to. It is only a cache: without it, or with a position
that the log does not have, the state is folded from the log's beginning.

SQLite has no checksums over what it stores. So each row has one, and the row that says the position
has the sum of all of them and one over itself: a flipped bit, and a row that a damaged page no
longer shows, mean that there is no cache. The sum is carried on from save to save, never made anew
from what the file holds, so that damage is not signed by the next save.

Used from worker threads; a connection is opened per use, because SQLite connections belong to one
thread and saving happens every few seconds at most.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

SCHEMA_VERSION: Final = 3
"""Version 2 had longer rows of queues, which can be read as well."""
VERSIONS_READ: Final = (2, SCHEMA_VERSION)
BUSY_SECONDS: Final = 10.0
SUFFIXES: Final = ("", "-journal", "-wal", "-shm")
"""Behind the name: all files that SQLite makes."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entity (
    kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folded (
    one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL, epoch INTEGER NOT NULL,
    version INTEGER NOT NULL, total INTEGER NOT NULL, crc INTEGER NOT NULL
);
"""
_TOTAL_MASK: Final = (1 << 62) - 1
"""What an integer of SQLite surely holds."""

Row = tuple[str, str, str | None]
"""(kind, key, value as JSON text); None deletes the entity."""

DECODED_COUNT: Final = 500
"""Rows that are decoded together: one call for many is five times as fast, and all at once would
need the memory of all values twice."""


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def json_text(value: object) -> str | None:
    """The value of a row, as it is stored; None if the entity is gone."""
    return None if value is None else _encode(value)


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
            some.reverse()
            values = json.loads("[" + ",".join([text for _, text in some]) + "]")
            for (key, _), value in zip(some, values, strict=True):
                yield key, value


class StateDb:
    """The file. Every error of SQLite, or of a call for one of its files, means: there is no usable
    cache."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = False  # the file holds a state, to which saves add what has changed
        self._unwanted = False  # it was discarded, and may be there still

    def load(self) -> Folded | None:
        """The folded state, or None if there is none that can be read."""
        if self._unwanted:
            return None
        try:
            if not self._is_there():
                return None
            with closing(self._connect()) as connection:
                found = _read_folded(connection)
                if found is None:
                    return None
                position, epoch, total = found
                rows: dict[str, list[tuple[str, str]]] = {}
                for kind in _kinds(connection):
                    of_kind = connection.execute(
                        "SELECT key, value FROM entity WHERE kind=?", (kind,)
                    ).fetchall()
                    begin = crc32(f"{kind}\0".encode())
                    total -= sum(  # `_checksum`, without calls for each of many rows
                        crc32(f"{key}\0{text}".encode("utf-8", "surrogatepass"), begin)
                        for key, text in of_kind
                    )
                    rows[kind] = of_kind
        except (sqlite3.Error, OSError, UnicodeError):  # names of a damaged file may be no text
            return None
        if total & _TOTAL_MASK:
            return None
        self._begun = True
        return Folded(position=position, epoch=epoch, rows=rows)

    def save(self, position: int, epoch: int, rows: Iterable[Row]) -> None:
        """Write changed entities and the position in one transaction.

        Raises:
            sqlite3.Error, OSError: nothing was written; the file is behind, which is allowed. Also
                when it was damaged or removed since the last save: what has changed would not be
                all.
        """
        if self._unwanted:
            self._remove()
            self._unwanted = False
        try:
            self._save(position, epoch, rows)
        except UnicodeError as error:
            raise sqlite3.DatabaseError(f"{self._path} is damaged: {error}") from error
        self._begun = True

    def _save(self, position: int, epoch: int, rows: Iterable[Row]) -> None:
        with closing(self._connect()) as connection, connection:
            found = _read_folded(connection)
            if found is None and self._begun:
                raise sqlite3.DatabaseError(
                    f"{self._path} is damaged or was removed; it is made again at the next start"
                )
            total = 0 if found is None else found[2]
            for kind, key, text in rows:
                total += _write(connection, kind, key, text)
            total &= _TOTAL_MASK
            connection.execute(
                "INSERT OR REPLACE INTO folded VALUES (1,?,?,?,?,?)",
                (position, epoch, SCHEMA_VERSION, total, _checksum(position, epoch, total)),
            )

    def size_bytes(self) -> int:
        """The size of the file; 0 if there is none. Raises OSError."""
        return self._path.stat().st_size if self._is_there() else 0

    def discard(self) -> None:
        """Delete the file, at once or before the next save: what is saved from now on is a state of
        its own, and nothing of an older one may be among it."""
        self._begun = False
        self._unwanted = True
        try:
            self._remove()
        except OSError:
            return
        self._unwanted = False

    def _connect(self) -> sqlite3.Connection:
        connection = self._open()
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    # --- the file system ------------------------------------------------------------------------

    def _is_there(self) -> bool:
        """Whether there is such a file. Raises OSError."""
        return self._path.exists()

    def _open(self) -> sqlite3.Connection:
        """A connection to the file, which is made if it is not there. Raises OSError,
        sqlite3.Error."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(descriptor)
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS)

    def _remove(self) -> None:
        """Remove what there is of the file. Raises OSError: some of it may be there."""
        for suffix in SUFFIXES:
            Path(str(self._path) + suffix).unlink(missing_ok=True)


def _checksum(*values: object) -> int:
    """Over the values of a row, whatever a damaged file makes of their types."""
    text = "\0".join(map(str, values))
    return crc32(text.encode("utf-8", "surrogatepass"))


def _read_folded(connection: sqlite3.Connection) -> tuple[int, int, int] | None:
    """Position, epoch and sum of all checksums; None if there is no sound row. Raises
    sqlite3.Error."""
    found = connection.execute("SELECT position, epoch, version, total, crc FROM folded").fetchone()
    if found is None or found[2] not in VERSIONS_READ:
        return None
    position, epoch, _, total, crc = found
    if not all(isinstance(value, int) for value in found):
        return None
    return (position, epoch, total) if crc == _checksum(position, epoch, total) else None


def _kinds(connection: sqlite3.Connection) -> Iterator[str]:
    """The kinds that there are. A row whose kind is no text is in none of them: the sum of all
    checksums tells. Raises sqlite3.Error."""
    kind = ""
    while True:
        (following,) = connection.execute(
            "SELECT min(kind) FROM entity WHERE kind > ?", (kind,)
        ).fetchone()
        if not isinstance(following, str):
            return
        yield following
        kind = following


def _write(connection: sqlite3.Connection, kind: str, key: str, text: str | None) -> int:
    """Write or delete an entity. Returns what it adds to the sum. Raises sqlite3.Error."""
    name = (kind, key)
    old = connection.execute("SELECT crc FROM entity WHERE kind=? AND key=?", name).fetchone()
    change = 0 if old is None else -int(old[0])
    if text is None:
        connection.execute("DELETE FROM entity WHERE kind=? AND key=?", name)
        return change
    crc = _checksum(kind, key, text)
    connection.execute("INSERT OR REPLACE INTO entity VALUES (?,?,?,?)", (kind, key, text, crc))
    return change + crc
