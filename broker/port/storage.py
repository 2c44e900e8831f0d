"""The log, as far as gateways know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polymq.broker.errors import StorageFailed
from polymq.broker.port.values import Position


class StoragePort(Protocol):
    """Where the log ends, and what becomes of the disk."""

    def log_end(self) -> Position:
        """The end of the log: what was done so far is visible when this position is committed."""

    def when_blocked(self, callback: Callable[[str], None]) -> None:
        """Call back whenever publishers begin to be refused because the disk is (nearly) full, with
        the reason, and with an empty text when they are taken again."""

    def when_failed(self, callback: Callable[[StorageFailed], None]) -> None:
        """Call back once if the log directory fails. The broker is read-only from then on."""
