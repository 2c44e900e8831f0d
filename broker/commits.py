"""Commit points: what waits for the log, and in which order it is let go.

Positions move forward: *appended* (written to the page cache, at the end of each loop iteration),
*flushed* (covered by fdatasync), and *in-sync*, for two and for three disks (flushed here and on so
many replicas, see `replicas.py`). Whatever depends on a position waits here in the order of
positions: answers to clients, and runs of messages that are to become visible.

Rule: nothing leaves out of order within its class, and after a storage failure nothing leaves at
all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polymq.broker.durability import Durability
from polymq.broker.kernels.path import CommitPoints as CommitEnd


class CommitPoints(CommitEnd):
    """The points of one log. See `broker/kernels/path.py` for the arguments."""

    @property
    def waiting_count(self) -> int:
        """How many answers and runs wait (a metric)."""
        return sum(map(len, self._waiting))

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
        self.wait_for(position, durability, callback, args, urgent)

    def move_back(self, points: Sequence[int]) -> None:
        """Have the points where a slave had shown the log before it was restarted, by
        `Durability`. They move on from there as the master says."""
        self.points[:] = points
        self.reached[:] = points

    def fail(self) -> None:
        """The log directory failed: what waits is never let go."""
        self.failed = True
        for waiting in self._waiting:
            waiting.clear()
