"""Commit points: what waits for the log, and in which order it is let go.

Two positions move forward: *appended* (written to the page cache, at the end of each loop
iteration) and *flushed* (covered by fdatasync). Whatever depends on a position waits here in the
order of positions: answers to clients, and runs of messages that are to become visible.

Rule: nothing leaves out of order within its class, and after a storage failure nothing leaves at
all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.port import FLUSHED, Durability

Waiting = deque[tuple[int, Callable[..., None], tuple[object, ...]]]


class CommitPoints:
    """The two points, and what waits for each."""

    def __init__(self, position: int) -> None:
        self.points = [position, position]
        """By `Durability`: how far the log is committed in that class."""
        self.urgent = position
        """The highest position that a client waits for in the flushed class."""
        self.failed = False
        self._waiting: tuple[Waiting, Waiting] = (deque(), deque())

    @property
    def waiting_count(self) -> int:
        """How many answers and runs wait (a metric)."""
        return len(self._waiting[0]) + len(self._waiting[1])

    def committed(self, position: int, durability: Durability) -> bool:
        """Whether nothing has to be waited for."""
        return position <= self.points[durability]

    def when(
        self,
        position: int,
        durability: Durability,
        callback: Callable[..., None],
        *args: object,
        urgent: bool = True,
    ) -> None:
        """Call back when the point of the class reaches the position; at once if it has.

        Args:
            urgent: False for what may wait for the next flush that somebody else asks for.
        """
        if self.failed and position > self.points[durability]:
            return
        waiting = self._waiting[durability]
        if position <= self.points[durability] and not (waiting and waiting[0][0] <= position):
            callback(*args)
            return
        if waiting and position < waiting[-1][0]:
            position = waiting[-1][0]  # keep the order; waiting longer is always right
        waiting.append((position, callback, args))
        if urgent and durability is FLUSHED and position > self.urgent:
            self.urgent = position

    def when_new(
        self, position: int, durability: Durability, callback: Callable[..., None], *args: object
    ) -> None:
        """`when` for what was appended just now, so that nobody waits for a later position."""
        self._waiting[durability].append((position, callback, args))
        if durability is FLUSHED:
            self.urgent = position

    def advance(self, durability: Durability, position: int) -> None:
        """The point of the class has reached the position: let go what waited for it."""
        if self.failed or position <= self.points[durability]:
            return
        self.points[durability] = position
        waiting = self._waiting[durability]
        while waiting and waiting[0][0] <= position:
            _, callback, args = waiting.popleft()
            callback(*args)

    def fail(self) -> None:
        """The log directory failed: what waits is never let go."""
        self.failed = True
        for waiting in self._waiting:
            waiting.clear()
