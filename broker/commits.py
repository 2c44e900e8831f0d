"""Commit points: what waits for the log, and in which order it is let go.

Positions move forward: *appended* (written to the page cache, at the end of each loop iteration),
*flushed* (covered by fdatasync), and *in-sync*, for two and for three disks (flushed here and on so
many replicas, see `replicas.py`). Whatever depends on a position waits here in the order of
positions: answers to clients, and runs of messages that are to become visible.

Rule: nothing leaves out of order within its class, and after a storage failure nothing leaves at
all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.port import APPENDED, FLUSHED, Durability

Waiting = deque[tuple[int, Callable[..., None], tuple[object, ...]]]


class CommitPoints:
    """The points, and what waits for each.

    Args:
        position: how far the log was on the disk at the start.
        in_sync: how far replicas are known to have had it then.
    """

    def __init__(self, position: int, in_sync: int | None = None) -> None:
        copied = position if in_sync is None else in_sync
        self.points = [position, position, copied, copied]
        """By `Durability`: how far the log is committed in that class."""
        self.urgent = position
        """The highest position that somebody waits for in a class that needs a flush."""
        self.holding = False
        """Whether anything waits for replicas: then messages of one queue may have to wait for
        predecessors of a stronger class."""
        self.failed = False
        self._waiting: tuple[Waiting, ...] = tuple(deque() for _ in Durability)

    @property
    def waiting_count(self) -> int:
        """How many answers and runs wait (a metric)."""
        return sum(map(len, self._waiting))

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
        if durability > FLUSHED:
            self.holding = True
        if urgent and durability is not APPENDED and position > self.urgent:
            self.urgent = position

    def when_new(
        self, position: int, durability: Durability, callback: Callable[..., None], *args: object
    ) -> None:
        """`when` for what was appended just now, so that nobody waits for a later position."""
        self._waiting[durability].append((position, callback, args))
        if durability is not APPENDED:
            self.urgent = position
            if durability is not FLUSHED:
                self.holding = True

    def advance(self, durability: Durability, position: int) -> None:
        """The point of the class has reached the position: let go what waited for it."""
        if self.failed or position <= self.points[durability]:
            return
        self.points[durability] = position
        waiting = self._waiting[durability]
        while waiting and waiting[0][0] <= position:
            _, callback, args = waiting.popleft()
            callback(*args)
        if durability > FLUSHED:
            self.holding = any(self._waiting[FLUSHED + 1 :])

    def fail(self) -> None:
        """The log directory failed: what waits is never let go."""
        self.failed = True
        for waiting in self._waiting:
            waiting.clear()
