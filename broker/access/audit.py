"""The audit log: who was let in or not, what was refused, who changed what.

One line an event, under the logger `polymq.audit`, as keyword values. Rules: no secret is ever
handed to this file, and what users chose (names, topics) is escaped and cut, so that nobody writes
lines of his own into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LINES_PER_MINUTE: Final = 20
"""Of failed logins from one address: a flood of them shows, and does not fill the disk."""
ADDRESSES_MAX: Final = 1_000
"""Addresses that are counted; of more than that, the first ones are forgotten."""
LOGGER: Final = "polymq.audit"
TEXT_MAX: Final = 200
"""Characters of one value: a topic's name fits, a flood does not."""

_log = logging.getLogger(LOGGER)


def note(event: str, **values: object) -> None:
    """Something that was done."""
    _log.info(event, extra=_escaped(values))


def warn(event: str, **values: object) -> None:
    """Something that was refused."""
    _log.warning(event, extra=_escaped(values))


class Throttle:
    """Lines that strangers can cause, at a bounded rate for each address.

    Args:
        now: seconds, of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: dict[str, tuple[float, int]] = {}  # by address: since when, how many

    def warn(self, event: str, address: str, **values: object) -> None:
        """As `warn`, unless the address has had its lines of this minute."""
        now = self._now()
        since, count = self._counts.get(address, (now, 0))
        if not 0 <= now - since < 60:
            since, count = now, 0
        if address not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[address] = since, count + 1
        if count < LINES_PER_MINUTE:
            more = count + 1 == LINES_PER_MINUTE
            values |= {"more": "not logged for a minute"} if more else {}
            warn(event, address=address, **values)


def printable(text: str) -> str:
    """User text as one harmless line."""
    cut = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
    return cut.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escaped(values: dict[str, object]) -> dict[str, object]:
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
