"""What a route reaches beyond the patterns of the trie. `exchanges/graph.py` finds it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polymq.broker.queues.queue import Queue
    from polymq.broker.topics.routes import TopicRoute

Outcome = tuple[tuple["Queue", ...], tuple["Queue", ...]]
"""The queues and the fallback of a `Beyond`."""


class Beyond:
    """More queues of one route.

    Attributes:
        queues: they get its messages, too.
        fallback: they get them if nothing else does.
        by_headers: this is what messages without headers reach. Others may go elsewhere, on a
            branch of the route.
        branches: those in use, by what they reach.
    """

    __slots__ = ("branches", "by_headers", "fallback", "queues")

    def __init__(
        self, queues: tuple[Queue, ...], fallback: tuple[Queue, ...], *, by_headers: bool
    ) -> None:
        self.queues = queues
        self.fallback = fallback
        self.by_headers = by_headers
        self.branches: dict[Outcome, TopicRoute] = {}

    def more(self, reached: Collection[object]) -> list[Queue]:
        """The queues that a route gets besides the targets that it has."""
        chosen = self.queues if reached or self.queues else self.fallback
        return [queue for queue in chosen if queue not in reached]

    def base_changed(self) -> None:
        """The route has got or lost a target: its branches look again when they are used."""
        for branch in self.branches.values():
            branch.forget_counts()
