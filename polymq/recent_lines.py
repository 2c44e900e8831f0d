"""The last lines of the log, in memory: for operators who do not see the server's stderr.

Rules:

* A line is kept after it was let through to stderr: the level and the limits of the log hold here,
  too.
* What is kept is bounded: a number of lines, and of each its values and their lengths. Lines of the
  audit log are kept apart from the others, so a flood of one kind leaves the other as it is.
* No stack of an error is kept, nor its text, which may quote what a client sent: only its name. A
  value that is called like a secret is hidden.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from polymq.broker.accounts import audit
from polymq.broker.notices import printable
from polymq.secret_names import HIDDEN, SECRET_NAMES

LINES_MAX: Final = 2_000
"""Of each kind: with their values, some hundred kilobytes to a few megabytes."""
VALUES_MAX: Final = 16
"""Of a line. The program's own lines have at most ten."""
NUMBERS_PER_MS: Final = 1_000
"""Numbers begin at the time of the start, so they go on to grow after a restart."""
_OF_ALL_RECORDS: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
)
_NO_VALUES: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info"})
"""Of a line of the program itself: what is kept in another place, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLine:
    """A line.

    Attributes:
        number: grows from line to line, of both kinds together.
        time_ms: when it was logged, in milliseconds since the epoch.
        level: debug, info, warning, error or critical.
        logger: who logged it.
        event: what happened.
        values: what more is known, by name.
    """

    number: int
    time_ms: int
    level: str
    logger: str
    event: str
    values: Mapping[str, str]

    @property
    def text(self) -> str:
        """All of it that can be searched."""
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.logger} {self.event} {values}"


class RecentLines:
    """The last lines. For use from any thread.

    Args:
        started_ms: the time of the start, in milliseconds since the epoch.
    """

    def __init__(self, started_ms: int) -> None:
        self._lock = threading.Lock()
        self._number = started_ms * NUMBERS_PER_MS
        self._audit: deque[RecentLine] = deque(maxlen=LINES_MAX)
        self._others: deque[RecentLine] = deque(maxlen=LINES_MAX)

    def keep(self, record: logging.LogRecord) -> None:
        """Keep a line that is written now."""
        event, values = _parts(record)
        stored = self._audit if record.name == audit.LOGGER else self._others
        with self._lock:
            self._number += 1
            stored.append(
                RecentLine(
                    number=self._number,
                    time_ms=int(record.created * 1000),
                    level=record.levelname.lower(),
                    logger=record.name,
                    event=printable(event),
                    values=values,
                )
            )

    def audit(self) -> list[RecentLine]:
        """Those of the audit log, newest first."""
        with self._lock:
            return list(reversed(self._audit))

    def others(self) -> list[RecentLine]:
        """All others, newest first."""
        with self._lock:
            return list(reversed(self._others))


def no_lines() -> RecentLines:
    """What a program has that keeps none."""
    return RecentLines(0)


def _parts(record: logging.LogRecord) -> tuple[str, dict[str, str]]:
    """What happened, and the values of the line."""
    found: Iterable[tuple[str, Any]]
    error: object = record.exc_info
    if isinstance(record.msg, dict):  # of the program itself, by way of structlog
        event, found = str(record.msg.get("event", "")), record.msg.items()
        error = record.msg.get("exc_info") or error
        skipped = _NO_VALUES
    else:
        event, found, skipped = record.getMessage(), vars(record).items(), _OF_ALL_RECORDS
    wanted = (one for one in found if one[0] not in skipped and not one[0].startswith("_"))
    values = {name: _value(name, value) for name, value in islice(wanted, VALUES_MAX)}
    if error:
        values["error"] = _name_of(error)
    return event, values


def _value(name: str, value: object) -> str:
    return HIDDEN if SECRET_NAMES.search(name) else printable(str(value))


def _name_of(error: object) -> str:
    """The name of an error, as `exc_info` has it: the error, a tuple with its type, or True."""
    if error is True:  # the one that is being handled
        error = sys.exc_info()
    if isinstance(error, tuple):
        error = error[0]
    return error.__name__ if isinstance(error, type) else type(error).__name__
