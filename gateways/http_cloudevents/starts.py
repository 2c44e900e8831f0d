"""Starts: of what begins at the same time, a few begin in each iteration of the loop.

One message may be for ten thousand webhooks, and each of them begins a request, which takes a part
of a millisecond. All at once they would stop the loop, and with it all other clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Starts:
    """The starts of one kind. Not for use from other threads.

    Args:
        later: calls back in the loop's next iteration.
        count_max: starts in an iteration.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object], *, count_max: int) -> None:
        self._later = later
        self._count_max = count_max
        self._left = count_max  # in this iteration
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def begin(self, start: Callable[[], None]) -> None:
        """Call `start` now, or in a later iteration, behind those who came before."""
        if self._left and not self._waiting:
            self._left -= 1
            start()
        else:
            self._waiting.append(start)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._later(self._next_iteration)

    def _next_iteration(self) -> None:
        self._scheduled = False
        self._left = self._count_max
        if self._waiting:
            self._schedule()
        while self._left and self._waiting:
            self._left -= 1
            self._waiting.popleft()()
