# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""What the publish path (`path.py`) has to know of a route and of the router, which inherit these.

One source in two forms: plain Python, and a C extension, for which
`routes.pxd` says of what types all this is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polymq.broker.kernels.path import QueueEnd
    from polymq.broker.kernels.targets import LiveTarget


class RouteEnd:
    """What of a route the publish path needs; `CachedRoute` and `TopicRoute` say what it is."""

    __slots__ = ("evicted", "live", "queues", "version")

    def __init__(self) -> None:
        self.version = -1
        self.evicted = False
        self.live: tuple[LiveTarget, ...] = ()
        self.queues: tuple[QueueEnd, ...] = ()


class RouterEnd:
    """What of the router the publish path needs."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0
        """How many wildcard changes there were: a route that has seen them all is up to date."""
