"""What says whether a queue takes a message."""

from __future__ import annotations

from typing import Protocol

from polymq.broker.kernels.path import PlainTemplate
from polymq.core_log.kernels.batch import Batch


class Gate(Protocol):
    """What lets messages into a queue, or not. Implemented by `QueueRules`."""

    def admit(self, batch: Batch, first: int, last: int) -> int:
        """How many of the rows [first, last) the queue takes, from the first on."""

    def refused(self, template: PlainTemplate, batch: Batch, first: int, last: int) -> None:
        """Rows [first, last) were published without the queue."""
