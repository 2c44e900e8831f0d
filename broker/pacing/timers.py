"""What is to happen at a time: one heap over the loop's `call_later` and the wall clock.

One entry is for a queue or a purpose (the message at a queue's head expires, an unused queue goes),
never for a message: who has many times keeps them itself and asks for the earliest.

Rules:

* A callback runs at its time or later, never before; those that are due run in the order of their
  times, equal times in the order in which they were asked for.
* One call runs at most `timers_run_max` callbacks; then other work gets its turn.
* Times are of the wall clock, because what they are compared with (a record's store time) is too.
  The loop's own clock is another, so nothing sleeps longer than `timer_sleep_seconds_max`: when the
  wall clock is set forward, what became due by it runs within that time. When it is set back, what
  waits goes on waiting until its time by the new clock.
* A cancelled timer costs its place in the heap until its time comes, or until the cancelled ones
  are the greater half.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, Protocol

from polymq.broker.limits import Limits

COMPACT_COUNT_MIN: Final = 64
"""Cancelled timers that are not worth a pass over the heap."""


class Later(Protocol):
    """The loop, as far as timers need it."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back in `delay` seconds."""


class Timer:
    """One callback that waits for its time. Made by `Timers.at` only.

    Attributes:
        due_ms: when, in milliseconds since the epoch.
        active: neither run nor cancelled.
    """

    __slots__ = ("_args", "_callback", "_timers", "active", "due_ms")

    def __init__(
        self, timers: Timers, due_ms: int, callback: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        self._timers = timers
        self.due_ms = due_ms
        self.active = True
        self._callback = callback
        self._args = args

    def cancel(self) -> None:
        """It does not run any more; nothing if it has run."""
        if self.active:
            self.active = False
            self._callback = _nothing  # let go of what it would have used
            self._args = ()
            self._timers.cancelled()

    def run(self) -> None:
        """Its time has come."""
        self.active = False
        callback, args = self._callback, self._args
        self._callback, self._args = _nothing, ()  # whom it belongs to may know it
        callback(*args)


class Timers:
    """All timers of one engine."""

    def __init__(self, *, loop: Later, clock_ms: Callable[[], int], limits: Limits) -> None:
        self._loop = loop
        self._clock_ms = clock_ms
        self._limits = limits
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0  # of timers so far: keeps the order of equal times
        self._cancelled = 0  # how many in the heap are
        self._armed_ms: int | None = None  # the time of the wake-up that counts
        self._stopped = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._heap) - self._cancelled

    def at(self, due_ms: int, callback: Callable[..., None], *args: object) -> Timer:
        """Call back at that time, in a later loop iteration even if it has passed."""
        timer = Timer(self, due_ms, callback, args)
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, timer))
        self._arm()
        return timer

    def stop(self) -> None:
        """The server is about to end: nothing runs any more. What is due is due after the next
        start, too."""
        self._stopped = True

    def cancelled(self) -> None:
        """One in the heap was cancelled."""
        self._cancelled += 1
        if self._cancelled > max(COMPACT_COUNT_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].active]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        """See to it that the loop wakes us for the earliest timer."""
        if not self._heap or self._stopped:
            return
        due_ms = self._heap[0][0]
        if self._armed_ms is None or due_ms < self._armed_ms:
            self._armed_ms = due_ms
            delay = max(0, due_ms - self._clock_ms()) / 1000
            delay = min(delay, self._limits.timer_sleep_seconds_max)
            self._loop.call_later(delay, lambda: self._wake(due_ms))

    def _wake(self, armed_ms: int) -> None:
        if self._stopped or self._armed_ms != armed_ms:
            return  # an earlier wake-up took its place
        self._armed_ms = None
        try:
            self._run_due()
        finally:
            self._arm()

    def _run_due(self) -> None:
        now_ms = self._clock_ms()
        # A timer that asks for another one of the same moment gets its turn in the next call.
        last = self._count
        for _ in range(self._limits.timers_run_max):
            if not self._heap or self._heap[0][0] > now_ms or self._heap[0][1] > last:
                return
            timer = heapq.heappop(self._heap)[2]
            if timer.active:
                timer.run()
            else:
                self._cancelled -= 1


def _nothing() -> None:
    """What a cancelled timer calls."""
