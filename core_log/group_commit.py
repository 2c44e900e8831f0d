"""How long a flush waits for those who will surely join it.

Theory. A flush lets go the acks of many clients, and most of them send their next messages at once.
If the next flush begins with the first of these, the clients fall into two groups that take turns:
each waits for the other's flush, and the disk works twice. So the flush that follows a large one is
put off until about as many runs were appended as that one covered, or until a moment has passed.

Rules:

* Nothing here decides what is flushed, only when; a flush that is put off begins by itself after
  `WAIT_SECONDS_MAX` at the latest.
* Few runs (`RUNS_MIN`) are never waited for: one client, or a few of them, get their acks as soon
  as the disk allows.
* Who waited in vain several times in a row (`TRIES_MAX`) does not wait for some flushes: clients
  that send at their own pace do not come back because of an ack.
"""

from __future__ import annotations

import sys
from typing import Final

RUNS_MIN: Final = 8
"""Runs of the last flush below which the next is not put off: what a group of them would save is
less than what they wait."""
WAIT_SECONDS_MAX: Final = 0.001
"""Fifty clients that share a processor with the server are back within about this time."""
TRIES_MAX: Final = 3
"""More than one, because a machine that does something else for a moment is not a client's pace."""
REST_FLUSHES: Final = 64
"""How many flushes are not put off then: waiting in vain stays the exception."""
UNKNOWN: Final = sys.maxsize
"""Nobody has counted yet what was appended before the last flush ended."""


class GroupCommit:
    """The state of it. `flushed`, `complete_in_time` and `given_up` belong to the flusher's thread,
    the others to the loop's; an int or a bool is written by one of them at a time.

    Attributes:
        open: the flusher waits for a group: it needs no signal before the group is complete, and
            none at all if it never is.
    """

    def __init__(self) -> None:
        self.open = False
        self._tries = 0  # waits in vain, in a row
        self._expected = 0  # runs of the last flush
        self._due = UNKNOWN  # complete when so many runs were appended
        self._resting = 0  # flushes that are not put off

    # --- the flusher's thread -------------------------------------------------------------------

    def flushed(self, runs: int) -> None:
        """A flush of so many runs has ended, and is about to be reported."""
        if self._resting:
            self._resting -= 1
        elif runs >= RUNS_MIN:
            self._expected = runs
            self._due = UNKNOWN
            self.open = True

    def complete_in_time(self) -> None:
        """The wait ended with a signal."""
        self.open = False
        self._tries = 0

    def given_up(self) -> None:
        """The wait ended without one."""
        self.open = False
        self._tries += 1
        if self._tries == TRIES_MAX:
            self._tries = 0
            self._resting = REST_FLUSHES

    # --- the loop's thread ----------------------------------------------------------------------

    def reported(self, runs: int) -> None:
        """The acks of the last flush are let go now.

        Args:
            runs: how many were appended until now, since the start.
        """
        if self.open and self._due == UNKNOWN:
            self._due = runs + self._expected - self._expected // 8  # some always come late

    def waits(self, runs: int) -> bool:
        """Whether a flush that is asked for now is put off.

        Args:
            runs: as above.
        """
        return self.open and runs < self._due
