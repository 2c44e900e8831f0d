"""The loop, as far as the engine needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Scheduler(Protocol):
    """Calls back later, in the thread of the loop."""

    def call_soon(self, callback: Callable[[], None]) -> Any:
        """Call back in the next loop iteration."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back in `delay` seconds."""
