"""What is delivered and not yet acknowledged (`kernels/unacked.py`), by the type of what holds the
messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from polymq.broker.messages.kernels.unacked import UnackedRuns

Holder = TypeVar("Holder")


if TYPE_CHECKING:

    class Unacked(UnackedRuns, Generic[Holder]):
        """Runs of (first tag, holder, first offset, count), in order of tags."""

else:
    Unacked = UnackedRuns
    """The class itself: methods of one that inherits from it would be looked up at each call."""
