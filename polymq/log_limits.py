"""How often a line of the log may repeat.

Clients cause most lines: whoever connects and sends nonsense is turned away, and the log says so.
Lines are of one kind if they differ only in their values. Of each kind, `LINES_PER_MINUTE` are
written a minute; the last of them says that it is the last. So a flood shows, whatever it is made
of, and does not fill the disk. Some lines are counted for each user, so that the flood of one user
does not hide what is said of the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LINES_PER_MINUTE: Final = 60
"""Of one kind: enough to see who it is, 10 MB a day at most."""
KINDS_MAX: Final = 1_000
"""That are told apart within a minute. The program has some three hundred; of a library that
composes its texts, those that come later count as one."""
LAST: Final = "not logged for a minute"


class LineLimit(logging.Filter):
    """Lets the first lines of each kind pass in each minute. For use from any thread.

    Args:
        exempt: names of loggers that bound their lines themselves.
        by_user: (logger, text) of lines whose value `user` makes a kind of its own, also of loggers
            that are exempt.
        now: seconds, of a clock that does not go back.

    Attributes:
        suppressed_count: lines that were not written.
    """

    def __init__(
        self,
        *,
        exempt: frozenset[str],
        by_user: frozenset[tuple[str, str]] = frozenset(),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._exempt = exempt
        self._by_user = by_user
        self._now = now
        self._lock = threading.Lock()
        self._since = now()
        self._counts: dict[tuple[str, str, str], int] = {}
        self.suppressed_count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        text, user = _text(record), ""
        if (record.name, text) in self._by_user:
            user = str(getattr(record, "user", ""))
        elif record.name in self._exempt:
            return True
        with self._lock:
            count = self._count((record.name, text, user))
            if count > LINES_PER_MINUTE:
                self.suppressed_count += 1
                return False
        if count == LINES_PER_MINUTE:
            _add(record, more=LAST)
        return True

    def _count(self, kind: tuple[str, str, str]) -> int:
        """How many lines of this kind there are in this minute, with this one."""
        now = self._now()
        if now - self._since >= 60:
            self._since = now
            self._counts.clear()
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = ("", "", "")
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        return count


def _text(record: logging.LogRecord) -> str:
    """What the line says, without its values. The program's own lines come as dictionaries."""
    message = record.msg
    return str(message["event"] if isinstance(message, dict) else message)


def _add(record: logging.LogRecord, **values: str) -> None:
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, **values}
    else:
        record.__dict__.update(values)
