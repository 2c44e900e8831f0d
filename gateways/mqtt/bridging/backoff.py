"""How long a bridge waits before it connects again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_SECONDS: Final = 1.0
STEADY_SECONDS: Final = 10.0
"""A connection that lasted so long was a good one: the next wait is the first again. One that is
closed at once does not count."""


class Backoff:
    """Waits that double up to a bound, each cut by chance to between half of it and all of it, so
    that many bridges do not come back at the same moment.

    Args:
        seconds_max: the longest wait.
        random: a number from 0 up to 1.
    """

    def __init__(self, seconds_max: float, random: Callable[[], float]) -> None:
        self._seconds_max = seconds_max
        self._random = random
        self._seconds = 0.0

    def next_seconds(self, lasted_seconds: float) -> float:
        """The wait after a connection that lasted so long; 0: there was none."""
        if lasted_seconds >= STEADY_SECONDS or not self._seconds:
            self._seconds = FIRST_SECONDS
        else:
            self._seconds *= 2
        self._seconds = min(self._seconds, self._seconds_max)
        return self._seconds * (0.5 + 0.5 * self._random())
