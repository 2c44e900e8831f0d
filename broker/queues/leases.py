"""Queues that go when nobody has used them for a while (`x-expires`).

Used means: it has a consumer, it was declared (passively, too), or somebody asked it for a message.
Publishing to it does not count. A start of the broker does. As in RabbitMQ the messages that are
left go with the queue and are no dead letters.
"""

from __future__ import annotations

from collections.abc import Callable

from polymq.broker.errors import Refused
from polymq.broker.pacing.timers import Timer, Timers


class Lease:
    """The lease of one queue.

    Args:
        duration_ms: how long the queue may be unused, in milliseconds.
        in_use: whether it has a consumer now.
        end: deletes the queue; may raise Refused, then it is tried again.
    """

    __slots__ = ("_clock_ms", "_duration_ms", "_end", "_in_use", "_timer", "_timers", "_used_ms")

    def __init__(
        self,
        timers: Timers,
        clock_ms: Callable[[], int],
        *,
        duration_ms: int,
        in_use: Callable[[], bool],
        end: Callable[[], None],
    ) -> None:
        self._timers = timers
        self._clock_ms = clock_ms
        self._duration_ms = duration_ms
        self._in_use = in_use
        self._end = end
        self._used_ms = clock_ms()
        self._timer: Timer = timers.at(self._used_ms + duration_ms, self._due)

    def touch(self) -> None:
        """The queue was used."""
        self._used_ms = self._clock_ms()

    def close(self) -> None:
        """The queue is gone."""
        self._timer.cancel()
        self._in_use = lambda: False  # both know the queue, which knows its lease
        self._end = lambda: None

    def _due(self) -> None:
        if self._in_use():
            self.touch()
        due_ms = self._used_ms + self._duration_ms
        if due_ms <= self._clock_ms():
            try:
                self._end()
            except Refused:  # the log takes nothing now
                due_ms = self._clock_ms() + max(self._duration_ms, 1000)
            else:
                return
        self._timer = self._timers.at(due_ms, self._due)
