"""What the engine logs: a bounded number of lines, with the text of clients made harmless.

Many messages or requests may meet the same obstacle, and clients cause most of them. So lines are
counted by what they are about, and those of one kind end after `LINES_PER_MINUTE` a minute. Metrics
count all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from polymq.broker.bounded_cache import BoundedCache

LINES_PER_MINUTE: Final = 20
"""About one thing: a flood shows, and does not fill the disk."""
KEYS_MAX: Final = 1_000
"""Things that are counted; of more than that, the first ones are forgotten."""
TEXT_MAX: Final = 200
"""Characters of one value: a topic's name fits, a flood does not."""

_log = logging.getLogger("polymq.broker")


class Throttle:
    """Counts lines by what they are about.

    Args:
        now: seconds, of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Since when, how many.
        self._counts: BoundedCache[str, tuple[float, int]] = BoundedCache(KEYS_MAX)

    def admit(self, key: str) -> dict[str, object] | None:
        """What the line about `key` says besides its own values; None if it is not written."""
        now = self._now()
        since, count = self._counts.get(key, (now, 0))
        if not 0 <= now - since < 60:
            since, count = now, 0
        self._counts.add(key, (since, count + 1))
        if count >= LINES_PER_MINUTE:
            return None
        return {"more": "not logged for a minute"} if count + 1 == LINES_PER_MINUTE else {}


class Notices(Throttle):
    """The warnings of one engine."""

    def warn(self, event: str, key: str, **values: object) -> None:
        """Something did not go as somebody wanted. `key` is what the line is about."""
        more = self.admit(key)
        if more is not None:
            _log.warning(event, extra=escaped(values | more))


def printable(text: str) -> str:
    """User text as one harmless line."""
    cut = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
    return cut.encode("unicode_escape", "surrogatepass").decode("ascii")


def escaped(values: dict[str, object]) -> dict[str, object]:
    """Values for a line, their text as `printable` gives it."""
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
