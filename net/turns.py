"""Turns: how long one connection is served before the others are.

A read may hold thousands of requests, and a request thousands of parts. Handled as a whole they
stop the loop, and with it all other clients. So each connection has a turn: it looks at the clock
between requests, and what is left when its turn is over waits until the others have had theirs.

Rules:

* A connection that waits for its turn is not read, and handles nothing, so its order stays. Its
  turn begins with what is left, not with new bytes.
* In one iteration of the loop those that wait get one turn's time together, in the order in which
  they came. Some iterations pass until the next. What is read is handled in them, so a client that
  asks for little waits for one turn, however many ask for much; and so does a request that takes
  several iterations, as every HTTP request does, instead of one turn in each of them.
* Whoever has a turn does at least one step of its work, so everything ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

TURN_SECONDS: Final = 0.005
"""One turn: a tenth of what a client may wait for others."""
TURN_SECONDS_MIN: Final = 0.0005
"""The turn of one among many: what taking the work up again costs is a tenth of that."""
PASSED_COUNT: Final = 8
"""Iterations of the loop that pass between two turns. With nothing to do they take a few hundredths
of a turn."""

WAITS: Final = object()
"""What a step yields after which the work has to wait for something other than its turn."""


class Turns:
    """The turns of the connections of one loop. Not for use from other threads.

    Args:
        later: calls back in the loop's next iteration.
        clock: seconds.
    """

    def __init__(
        self,
        later: Callable[[Callable[[], None]], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._later = later
        self._until = 0.0  # when the turn ends that is on
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._to_pass = 0  # iterations until the next that serves

    def begin(self) -> None:
        """A connection's turn begins."""
        share = TURN_SECONDS / (1 + len(self._waiting))
        self._until = self.clock() + max(share, TURN_SECONDS_MIN)

    def is_over(self) -> bool:
        """Whether the turn is over: what is left of the work has to wait (`wait`)."""
        return self.clock() >= self._until

    def go_on(self, work: Iterator[object]) -> bool:
        """Take steps of the work, at least one, until the turn is over, or the work has to wait
        (`WAITS`). Returns whether the work is done."""
        done = object()
        while (step := next(work, done)) is not done:
            if step is WAITS or self.clock() >= self._until:
                return False
        return True

    def wait(self, turn: Callable[[], None]) -> None:
        """Call `turn` when it is the connection's turn again; it calls `begin`."""
        self._waiting.append(turn)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._later(self._serve)

    def _serve(self) -> None:
        """One iteration's turns of those who wait."""
        if self._to_pass:
            self._to_pass -= 1
            self._later(self._serve)
            return
        self._scheduled = False
        until = self.clock() + TURN_SECONDS
        count = len(self._waiting)
        try:
            while count:
                count -= 1
                self._waiting.popleft()()
                if self.clock() >= until:
                    break
        finally:
            if self._waiting:
                self._to_pass = PASSED_COUNT
                self._schedule()


class Chore:
    """Work that nobody's request is: done in turns with the requests, as long as there is some.

    Args:
        steps: does what there is to do; it looks for more after each step.
    """

    def __init__(self, turns: Turns, steps: Callable[[], Iterator[None]]) -> None:
        self._turns = turns
        self._steps = steps
        self._work: Iterator[None] | None = None

    def wake(self) -> None:
        """There is something to do."""
        if self._work is None:
            self._work = self._steps()
            self._turns.wait(self._take_turn)

    def _take_turn(self) -> None:
        work, is_done = self._work, True
        assert work is not None
        self._turns.begin()
        try:
            is_done = self._turns.go_on(work)
        finally:
            if is_done:
                self._work = None
        if not is_done:
            self._turns.wait(self._take_turn)
