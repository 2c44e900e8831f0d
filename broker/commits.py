"""Commit points: what waits for the log, and in which order it is let go.

Positions move forward: *appended* (written to the page cache, at the end of each loop iteration),
*flushed* (covered by fdatasync), and *in-sync*, for two and for three disks (flushed here and on so
many replicas, see `replicas.py`). Whatever depends on a position waits here in the order of
positions: answers to clients, and runs of messages that are to become visible.

Rule: nothing leaves out of order within its class, and after a storage failure nothing leaves at
all.
"""

from __future__ import annotations

from broker.kernels import CommitPoints

__all__ = ["CommitPoints"]
