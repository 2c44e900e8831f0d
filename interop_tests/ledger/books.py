"""What a client process writes down, so that it can be held against the server later.

A book is a file of lines that only grows. Each line leaves in one system call: the book of a
process that is killed has everything up to that moment, and several threads may write one book.
Times are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class What(enum.Enum):
    """What a line says."""

    READY = "ready"
    """A consumer's queue or subscription is there and confirmed."""
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    SENT = "sent"
    """Handed to the client library; again after a reconnect that repeats it."""
    ACKED = "acked"
    """The server has promised to keep it."""
    UNKNOWN = "unknown"
    """The connection ended before an answer came."""
    REFUSED = "refused"
    """The server said no. `note` has its words."""
    GOT = "got"
    """A consumer received it; `note` is `again` where the server said that it may be a repeat."""
    CORRUPT = "corrupt"
    """A consumer received something that no publisher sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a book. `actor` is a publisher, or a consumer where there is no number."""

    what: What
    at: float
    actor: str
    number: int
    note: str


class Book:
    """A book to write into."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: What, actor: str, number: int = -1, note: str = "") -> None:
        """Add a line."""
        note = " ".join(note.split())
        line = f"{what.value} {time.monotonic():.6f} {actor} {number} {note}\n"
        os.write(self._handle, line.encode())


class Reader:
    """Reads a book that is being written. Each line comes once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self._rest = b""

    def new_lines(self) -> Iterator[Line]:
        """The lines since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        if newline:
            for line in whole.split(b"\n"):
                yield parse_line(line.decode())


def parse_line(text: str) -> Line:
    """A line of a book."""
    what, at, actor, number, note = text.split(" ", 4)
    return Line(what=What(what), at=float(at), actor=actor, number=int(number), note=note)


def read_book(path: Path) -> list[Line]:
    """All lines of a book."""
    return list(Reader(path).new_lines())
