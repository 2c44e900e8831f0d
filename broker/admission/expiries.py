"""Connections that have to end at a time, because what they logged in with does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polymq.broker.pacing.scheduler import Scheduler

LOOK_SECONDS: Final = 1.0
"""How often it is looked whose time has come; 50,000 connections take 2 ms."""


class Expiries:
    """Ends connections at their time.

    Args:
        now: seconds since the epoch: the wall clock, by which the times are said.
    """

    def __init__(self, scheduler: Scheduler, now: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._now = now
        self._ends: dict[int, tuple[float, Callable[[], None]]] = {}
        self._looks = False

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, serial: int, at: float, end: Callable[[], None]) -> None:
        """Call `end` once it is `at`."""
        self._ends[serial] = at, end
        if not self._looks:
            self._looks = True
            self._scheduler.call_later(LOOK_SECONDS, self._look)

    def remove(self, serial: int) -> None:
        """It is gone before. Safe for those that were never here."""
        self._ends.pop(serial, None)

    def _look(self) -> None:
        now = self._now()
        due = [serial for serial, (at, _) in self._ends.items() if at <= now]
        for serial in due:
            _, end = self._ends.pop(serial, (0.0, _nothing))  # one end may be that of others
            end()
        self._looks = bool(self._ends)
        if self._looks:
            self._scheduler.call_later(LOOK_SECONDS, self._look)


def _nothing() -> None:
    """It went when another one was ended."""
