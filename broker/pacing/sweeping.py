"""What is gone, and is taken out of memory some at a time.

A queue may have thousands of bindings, and end at once: its record is written, and from then on
nobody finds it. What it leaves in the engine's tables is of no meaning any more, and is swept out
of them in steps, with some iterations of the loop between them, so that other clients do not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

SWEPT_AT_ONCE: Final = 256
"""Entries of one step. Each takes some microseconds, 20 at most."""


class Sweeper:
    """The work that is left, in the order of its coming.

    Args:
        later: calls back in another iteration of the loop.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._work: deque[Iterator[None]] = deque()
        self._scheduled = False

    def add(self, work: Iterator[None]) -> None:
        """Do the work, which yields once for each entry: up to `SWEPT_AT_ONCE` of them now, if
        nothing else is left to do, the others later."""
        self._work.append(work)
        if len(self._work) == 1 and not self._scheduled:
            self._step()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._work

    def finish(self) -> None:
        """Do all that is left now."""
        while self._work:
            for _ in self._work[0]:
                pass
            self._work.popleft()

    def _step(self) -> None:
        self._scheduled = False
        left = SWEPT_AT_ONCE
        while self._work and left > 0:
            left -= 1
            try:
                next(self._work[0])
            except StopIteration:
                self._work.popleft()
            except BaseException:
                self._work.popleft()  # it is over, and the others go on
                self._go_on()
                raise
        self._go_on()

    def _go_on(self) -> None:
        if self._work:
            self._scheduled = True
            self._later(self._step)
