"""What is delivered and not yet acknowledged (`broker/kernels/unacked.py`), by the type of what
holds the messages."""

from __future__ import annotations

from typing import Generic, TypeVar

from broker.kernels import UnackedRuns

Holder = TypeVar("Holder")


class Unacked(UnackedRuns, Generic[Holder]):
    """Runs of (first tag, count, holder, first offset), in order of tags."""

    __slots__ = ()
