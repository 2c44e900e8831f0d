"""The socket, as what stands above it sees it (`net` has the real ones)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Transport(Protocol):
    """The socket as the client's logic sees it."""

    @property
    def full(self) -> bool:
        """Whether deliveries have to wait until it takes bytes again."""

    @property
    def address(self) -> str:
        """The client's address without its port."""

    @property
    def connection_id(self) -> str:
        """See `net.clients.identity`."""

    def certificate_subject(self) -> str:
        """The subject of the client's certificate; empty: it has none."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """Write what was written so far, then close."""

    def abort_in(self, seconds: float | None) -> None:
        """Abort the socket then, if it is still there; None for never."""

    def spoke(self) -> None:
        """The client has begun to log in: see `net.SocketConnection.spoke`."""

    def proven(self) -> None:
        """The client has opened its connection: `abort_in` is off."""

    def heartbeat(self, seconds: int) -> None:
        """Send and expect heartbeats from now on; 0 for none."""

    def later(self, callback: Callable[[], None]) -> None:
        """Call back in the next loop iteration."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back then, unless the function that is returned was called before."""

    def stop_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
