"""How long messages wait: for the disk, and for their delivery.

Both are measured for batches. What is measured is an observation for as many messages as the batch
has (`core_log/durations.py`), so it costs nothing for a message.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from polymq.core_log.durations import Durations
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT

PENDING_MAX: Final = 1_024
"""Flushes that were asked for and have not ended. Beyond that, which takes a disk that is stuck,
those asked for last count as one."""
DELIVERY_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0, 600.0, 3600.0,
    86400.0,
)  # fmt: skip
"""Bounds of the time until delivery: a queue without consumers is read hours later."""
_STORED_MS: Final = struct.Struct(">q")


class Records(Protocol):
    """A run of records in memory (`messages/kernels/record_run.py`)."""

    memory: Any
    start: int
    count: int


class CommitTimes:
    """From the end of the loop iteration that appended messages until they are on the disk.

    Args:
        clock: seconds.
        records: how many records were appended before.
    """

    def __init__(self, clock: Callable[[], float], records: int = 0) -> None:
        self.durations = Durations()
        self._clock = clock
        self._records = records
        self._pending: deque[tuple[int, float, int]] = deque()  # position, asked at, how many

    def asked(self, position: int, records: int) -> None:
        """A flush up to the position was asked for.

        Args:
            records: how many were appended until now.
        """
        count = records - self._records
        self._records = records
        if len(self._pending) < PENDING_MAX:
            self._pending.append((position, self._clock(), count))
        else:
            _, at, before = self._pending[-1]
            self._pending[-1] = (position, at, before + count)

    def reached(self, position: int) -> None:
        """All before the position is on the disk."""
        pending = self._pending
        if not pending or pending[0][0] > position:
            return
        now = self._clock()
        while pending and pending[0][0] <= position:
            _, at, count = pending.popleft()
            self.durations.observe(now - at, count)


class Watch(Protocol):
    """Somebody who looks at every batch that is handed out, for a while."""

    def delivered(self, group: Any, delivery: Any) -> None:
        """A queue's group hands a delivery to a consumer."""

    def pulled(self, records: Any, count: int) -> None:
        """A reader by offset gets these records, which stand at the beginning of memory."""


class DeliveryTimes:
    """From the time at which messages were stored until they are handed to a consumer, by samples.

    Whoever hands out a batch looks at `due`, and calls `note` if it is set. That measures this
    batch, and `due` is false until somebody sets it again, so a batch costs one look in general.
    While batches are watched, `due` stays set.

    Args:
        clock_ms: the time of day, in milliseconds.
    """

    __slots__ = ("_clock_ms", "_watches", "due", "durations")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.due = False
        self._watches: list[Watch] = []
        self.durations = Durations(DELIVERY_SECONDS)
        self._clock_ms = clock_ms

    def note(self, records: Any, start: int, count: int) -> None:
        """A batch is handed out.

        Args:
            records: memory with the batch, whose first record, the oldest, is at `start`.
            count: how many messages it has.
        """
        self.due = bool(self._watches)
        stored_ms = _STORED_MS.unpack_from(records, start + RECORD_STORE_MS_AT)[0]
        self.durations.observe(max(0, self._clock_ms() - stored_ms) / 1000, count)

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Look at every batch from now on. Call what is returned to end that."""
        self._watches.append(watch)
        self.due = True
        return lambda: self._watches.remove(watch)

    def note_delivery(self, group: Any, delivery: Any) -> None:
        """A queue's group hands a delivery to a consumer."""
        first = delivery.runs[0]
        self.note(first.memory, first.start, delivery.count)
        for watch in self._watches:
            watch.delivered(group, delivery)

    def note_pull(self, records: Any, count: int) -> None:
        """A reader by offset gets these records."""
        self.note(records, 0, count)
        for watch in self._watches:
            watch.pulled(records, count)

    def note_run(self, run: Records) -> None:
        """The same of a run that live subscribers get."""
        self.note(run.memory, run.start, run.count)
