"""How far behind a copy is, in seconds. Pure: the clock is an argument.

Theory. A copy that has everything is level. One that is always a little behind, under load, never
is; but what it has now was all that there was a moment ago. So the log's end is marked with the
time, and when the copy reaches the mark it was level at that time; then the next mark is set.
"""

from __future__ import annotations


class Lag:
    """Of one copy.

    Args:
        now: when it began to follow, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._level = now  # the copy is known to have had all that there was at this time
        self._mark = 0, now  # the log's end at a time

    def heard(self, now: float, end: int, flushed: int) -> None:
        """The copy has everything before `flushed` on its disk, and the log ends at `end`."""
        if flushed >= end:
            self._level, self._mark = now, (end, now)
        elif flushed >= self._mark[0]:
            self._level, self._mark = self._mark[1], (end, now)

    def seconds(self, now: float) -> float:
        """How long ago the copy last had all that there was."""
        return max(now - self._level, 0.0)
