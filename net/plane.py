"""The socket plane, as the rest of `net` sees it.

It is compiled (`kernels/plane.pyx`, where its theory stands) and needs epoll. Where it is
absent, and for TLS, connections are on transports of the event loop: slower, otherwise equal.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from polymq.net.kernels.streams import Stream


def _compiled_plane() -> Any:
    try:
        return importlib.import_module("polymq.net.kernels.plane").Plane
    except ModuleNotFoundError:
        return None


CompiledPlane: Final = _compiled_plane()
"""The class whose objects are planes, or None where there is none."""


class Acceptor(Protocol):
    """A listening socket in the plane."""

    def close(self) -> None:
        """Accept no more. The socket stays its owner's."""

    def resume(self) -> None:
        """Accept again, after the system was out of room."""


class Plane(Protocol):
    """The epoll set of one loop, and its connections. Not for use from other threads."""

    def accept(
        self, fd: int, factory: Callable[[str], Stream], exhausted: Callable[[OSError], None]
    ) -> Acceptor:
        """Accept connections of a listening socket that does not block.

        Args:
            factory: makes the stream of a new connection, whose remote address it is given.
            exhausted: called when the system has no room for one; then `resume` goes on.
        """

    def adopt(self, fd: int, stream: Stream) -> None:
        """Take over a connected socket that does not block, and is the plane's from now on."""

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back within an iteration while the descriptor is readable."""

    def remove_reader(self, fd: int) -> None:
        """Undo `add_reader`."""

    def close(self) -> None:
        """Stop; connections that are still there are aborted."""
