"""What replicas have on their disks, and the in-sync points that follow from it.

A record is in sync for `n` disks when it is flushed here and `n - 1` replicas have flushed it. Who
ships the log to replicas reports their positions; nobody here knows how it travels.

Rules:

* A replica counts while it is there. One that is gone may come back with another disk, or under
  another name: then one disk would be counted twice.
* The points never go back.
* Where somebody waits for a replica, a point moves when it is on this broker's disk how far it
  moves (`keep`). Else a broker that comes back as a slave would not know what it has promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymq.broker.commits import CommitPoints
from polymq.broker.durability import FLUSHED, IN_SYNC, Durability


class Replicas:
    """The flushed positions of all replicas that follow now.

    Args:
        commits: whose in-sync points are moved.

    Attributes:
        keep: puts a position on the disk and calls back; None: nobody has to know it later.
    """

    def __init__(self, commits: CommitPoints) -> None:
        self._commits = commits
        self.positions: dict[str, int] = {}
        """By the replica's id: how far it has the log on its disk."""
        self.keep: Callable[[int, Callable[[], None]], None] | None = None
        self._resigned = False
        self._keeping: dict[Durability, int] | None = None  # on its way to the disk
        self._next: dict[Durability, int] | None = None  # what has been reached meanwhile

    def acked(self, replica_id: str, position: int) -> None:
        """A replica has everything before `position` on its disk. Loop's thread.

        Positions beyond what is flushed here count as soon as it is.
        """
        if position > self.positions.get(replica_id, -1) and not self._resigned:
            self.positions[replica_id] = position
            self.flushed(self._commits.points[FLUSHED])

    def resign(self) -> None:
        """Another broker leads: nothing gets in sync here any more."""
        self._resigned = True
        self._next = None
        self.positions.clear()

    def lost(self, replica_id: str) -> None:
        """A replica is gone. What was in sync stays so."""
        self.positions.pop(replica_id, None)

    def flushed(self, position: int) -> None:
        """This broker has everything before `position` on its disk."""
        if not self.positions:
            return
        copies = sorted(self.positions.values(), reverse=True)
        reached = {
            disks: min(position, copies[disks - IN_SYNC])
            for disks in Durability
            if 0 <= disks - IN_SYNC < len(copies)
        }
        if self._keeping is not None:
            for disks, end in (self._next or {}).items():  # one that had more may be gone
                reached[disks] = max(reached.get(disks, 0), end)
            self._next = reached
        else:
            self._reach(reached)

    def _reach(self, reached: dict[Durability, int]) -> None:
        if not any(end > self._commits.points[disks] for disks, end in reached.items()):
            return
        if self.keep is None or not self._commits.holding:
            self._advance(reached)
        else:
            self._keeping = reached
            self.keep(reached[IN_SYNC], self._stored)

    def _stored(self) -> None:
        reached, self._keeping = self._keeping, None
        following, self._next = self._next, None
        if reached is not None and not self._resigned:
            self._advance(reached)
        if following is not None:
            self._reach(following)

    def _advance(self, reached: Mapping[Durability, int]) -> None:
        for disks, end in reached.items():
            self._commits.advance(disks, end)
