"""The share of each loop iteration in which queues hand out messages.

A run that a kernel encodes costs its consumer next to nothing, however many messages it has. A run
of one message does not, nor does a message that the consumer decodes by itself: thousands of them
are a tenth of a second. So whatever hands out such messages pays for them here, and when the share
is used up, all groups wait for the next iteration.

Rules:

* Groups that wait are served in the order in which they came. One that has more to hand out waits
  behind the others again.
* Whoever is served hands out at least one message, so everything ends.
* A new share begins only after the old one was used up: what costs little never asks for a further
  turn of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from polymq.broker.pacing.costs import HANDED_AT_ONCE


class Share:
    """The share of one broker.

    Args:
        later: calls back in the loop's next iteration.

    Attributes:
        left: units (`broker.pacing.costs`) that may still be spent; 0 or less: wait.
    """

    __slots__ = ("_later", "_scheduled", "_waiting", "left")

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self.left = HANDED_AT_ONCE

    def spend(self, units: int) -> None:
        """Something was handed out that cost so much."""
        self.left -= units
        if self.left <= 0:
            self._schedule()

    def wait(self, pump: Callable[[], None]) -> None:
        """Call `pump` in a later iteration, when all that waited before it had its turn."""
        self._waiting.append(pump)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._later(self._serve)

    def _serve(self) -> None:
        """A new share, for those who wait now."""
        self._scheduled = False
        self.left = HANDED_AT_ONCE
        count = len(self._waiting)
        try:
            while count and self.left > 0:
                count -= 1
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._schedule()
