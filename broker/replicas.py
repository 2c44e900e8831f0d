"""What replicas have on their disks, and the in-sync points that follow from it.

A record is in sync for `n` disks when it is flushed here and `n - 1` replicas have flushed it. Who
ships the log to replicas reports their positions; nobody here knows how it travels.

Rules:

* A replica counts while it is there. One that is gone may come back with another disk, or under
  another name: then one disk would be counted twice.
* The points never go back.
"""

from __future__ import annotations

from broker.commits import CommitPoints
from broker.port import FLUSHED, Durability


class Replicas:
    """The flushed positions of all replicas that follow now.

    Args:
        commits: whose in-sync points are moved.
    """

    def __init__(self, commits: CommitPoints) -> None:
        self._commits = commits
        self.positions: dict[str, int] = {}
        """By the replica's id: how far it has the log on its disk."""
        self._resigned = False

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
        self.positions.clear()

    def lost(self, replica_id: str) -> None:
        """A replica is gone. What was in sync stays so."""
        self.positions.pop(replica_id, None)

    def flushed(self, position: int) -> None:
        """This broker has everything before `position` on its disk."""
        if not self.positions:
            return
        copies = sorted(self.positions.values(), reverse=True)
        for disks in Durability:
            others = disks - FLUSHED
            if 0 < others <= len(copies):
                self._commits.advance(disks, min(position, copies[others - 1]))
