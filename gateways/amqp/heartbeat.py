"""When to send a heartbeat, and when a silent peer is dead (AMQP 4.2.7). No clock inside.

Whoever has the clock calls `tick` about twice per interval. Anything that is sent or received
counts as a heartbeat. RabbitMQ gives up after two to three silent intervals, without
connection.close: nobody would read it.
"""

from __future__ import annotations

import enum
from typing import Final

TICKS_PER_INTERVAL: Final = 2
SILENT_INTERVALS_MAX: Final = 2
"""Counted from the tick that heard the peer last, so up to two and a half intervals."""


class Beat(enum.Enum):
    """What to do at a tick."""

    NOTHING = enum.auto()
    SEND = enum.auto()
    DEAD = enum.auto()


class Heartbeat:
    """The two directions of one connection.

    Args:
        interval_seconds: as negotiated.
        now: when it begins.

    Attributes:
        tick_seconds: from tick to tick.
        spoke: something was written since the last tick.
        heard: something was read since the last tick, or we did not want to read.
    """

    __slots__ = ("_heard_at", "_interval_seconds", "heard", "spoke", "tick_seconds")

    def __init__(self, interval_seconds: int, now: float) -> None:
        self._interval_seconds = interval_seconds
        self._heard_at = now
        self.tick_seconds = interval_seconds / TICKS_PER_INTERVAL
        self.spoke = False
        self.heard = False

    def tick(self, now: float) -> Beat:
        """About half an interval is over."""
        if self.heard:
            self._heard_at = now
        spoke = self.spoke
        self.heard = self.spoke = False
        if now - self._heard_at >= SILENT_INTERVALS_MAX * self._interval_seconds:
            return Beat.DEAD
        return Beat.NOTHING if spoke else Beat.SEND
