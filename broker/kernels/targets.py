"""Who gets a run that became visible, as far as the publish path knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from polymq.broker.kernels.path import Committed


class LiveTarget(Protocol):
    """A live subscription (`broker.sessions.sessions`)."""

    def offer(self, run: Committed) -> None:
        """A run that it matches became visible."""


class Reader(Protocol):
    """Who reads a queue: one group, or several of them (`broker.queues.queue`)."""

    def arrived(self, run: Committed, first: int) -> None:
        """A run became visible at offset `first` of the queue."""

    def arrival_cost(self) -> int:
        """What `arrived` costs, in the units of `broker.pacing.costs`."""


class OneReader(Reader, Protocol):
    """One of the groups that read a queue."""

    has_left: bool
    """Whether it is gone."""
