"""Saving the folded state to `state.db` without holding up the loop.

Theory. What is saved has to be the state at one position of the log. Ten thousand sessions may have
changed since the last time, so their rows are made in slices, and the loop does other things in
between. Whatever changes meanwhile is marked as dirty again, like always; the last slice makes the
rows of those few once more, and takes the position in the same call. So every row is either of that
moment, or of an entity that has not changed since the row was made. What is gone and not yet swept
out of memory (`pacing/sweeping.py`) is waited for: only then are all entities marked that it
changes.

A row waits as text, not as an object. A hundred thousand objects that live for some seconds make
Python's garbage collector look at every object of the process, on the loop: 0.2 s each time where
there are as many queues. It does not look at text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from polymq.broker.core import Core
from polymq.broker.state.database import Row, StateDb, json_text
from polymq.broker.state.journal import Entity

ROUNDS_MAX: Final = 8
"""How often a slice too large for one call is put off. Changes come slower than rows are made, so
it gets smaller; if not, the last slice is a long one."""


class StateSaving:
    """What has changed since the last saving: `gather` on the loop until it is done, then call it
    in a worker thread, once the log is flushed up to `position`.

    Args:
        row: an entity as a JSON value; None if it is gone.

    Attributes:
        position: the log position of the state; meaningful once all is gathered.
        entities: what is saved: dirty again, if saving fails.
    """

    def __init__(self, core: Core, state_db: StateDb, row: Callable[[str, str], object]) -> None:
        self._core = core
        self._state_db = state_db
        self._row = row
        self._rows: dict[Entity, str | None] = {}
        self._left: list[Entity] = []
        self._rounds_left = ROUNDS_MAX
        self._next_number = 0
        self.position = -1
        self._take_dirty()

    @property
    def entities(self) -> Iterable[Entity]:
        """See above."""
        return {*self._rows, *self._left}

    def gather(self, count_max: int) -> bool:
        """Make the rows of up to `count_max` entities. Returns whether that was all; then it is
        the state at this moment."""
        for _ in range(min(count_max, len(self._left))):
            entity = self._left.pop()
            self._rows[entity] = json_text(self._row(*entity))
        if self._left or not self._core.sweeper.is_done:
            return False
        self._take_dirty()
        if len(self._left) > count_max and self._rounds_left > 0:
            self._rounds_left -= 1
            return False
        for entity in self._left:
            self._rows[entity] = json_text(self._row(*entity))
        self._left = []
        self._next_number = self._core.next_number
        self.position = self._core.log.appended
        return True

    def _take_dirty(self) -> None:
        """Go on with what has changed in the meantime, acks that were not written included."""
        self._core.write_gathered()
        journal = self._core.journal
        dirty, journal.dirty = journal.dirty, set()
        self._left = list(dirty)

    def __call__(self) -> None:
        """Write it: that is most of the work.

        Raises:
            sqlite3.Error, OSError: nothing was written.
        """
        assert self.position >= 0
        self._state_db.save(self.position, self._core.store.epoch, self._all_rows())

    def _all_rows(self) -> Iterator[Row]:
        """Made one by one, for the same reason that they are text."""
        for (kind, key), text in self._rows.items():
            yield kind, key, text
        yield "number", "next", json_text(self._next_number)
