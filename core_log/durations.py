"""How long something took, as counts by size: what a histogram of a monitoring system shows.

One observation may stand for many messages. It costs the same as one that stands for a single one,
so batches are measured, never the messages in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

DISK_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Bounds for what waits for a disk: from a fast one to one that is stuck."""


class Durations:
    """Counts of durations. Written by one thread; others may read it at any time.

    Args:
        bounds: in seconds, ascending.

    Attributes:
        counts: how many were at most each bound and more than the one before it; the last one has
            those above all bounds.
        total: the sum of all, in seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DISK_SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float, weight: int = 1) -> None:
        """Count `weight` equal durations."""
        self.counts[bisect_left(self.bounds, seconds)] += weight
        self.total += seconds * weight
