"""Which received events are locked, by whom, until when. Pure: time and randomness come in.

Theory. `:receive` hands out events under lock tokens. A token names the offset in the
subscription's queue and a secret, so that nobody settles an event that another consumer has got
since. A lock ends by acknowledge or reject (the event is done), by release or by time (it goes
back to its place and is delivered again). How often an event was delivered is counted here while
the subscription lives in memory, and kept over a stop in order (`delivery_counts.py`); after a
crash an event that came before counts as once before.

Rules: a lock is in `_locks` from `lock` until it is taken or expires; `_counts` keeps the count of
an event that went back; both are bounded by the caller, who hands out no more than
`locked_events_max`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Content = TypeVar("Content")


@dataclass(slots=True)
class Lock(Generic[Content]):
    """One event under lock.

    Attributes:
        offset: in the subscription's queue.
        count: which delivery this is, from 1.
        content: what was handed out.
        secret: the part of the token that cannot be guessed.
        until: when it ends.
    """

    offset: int
    count: int
    content: Content
    secret: str
    until: float

    @property
    def token(self) -> str:
        """What the consumer gives back."""
        return f"{self.offset:x}.{self.secret}"


class LockTable(Generic[Content]):
    """The locks of one subscription.

    Args:
        secret: gives a new secret of letters and digits.
        counts: how often events were delivered before, by offset; it is changed here.
    """

    def __init__(self, secret: Callable[[], str], counts: dict[int, int] | None = None) -> None:
        self._secret = secret
        self._locks: dict[int, Lock[Content]] = {}
        self._counts = {} if counts is None else counts
        self._deadlines: list[tuple[float, int]] = []  # heap; entries of ended locks stay in it

    def __len__(self) -> int:
        return len(self._locks)

    def lock(
        self, offset: int, content: Content, *, until: float, redelivered: bool
    ) -> Lock[Content]:
        """Lock an event that the queue has just delivered."""
        assert offset not in self._locks, "the queue delivers an offset once until it is requeued"
        count = self._counts.pop(offset, 1 if redelivered else 0) + 1
        lock = Lock(offset, count, content, self._secret(), until)
        self._locks[offset] = lock
        heapq.heappush(self._deadlines, (until, offset))
        return lock

    def find(self, token: str, now: float) -> Lock[Content] | None:
        """The lock of a token, if it still holds."""
        try:
            lock = self._locks.get(int(token.partition(".")[0], 16))
        except ValueError:
            return None
        if lock is None or lock.token != token or lock.until <= now:
            return None
        return lock

    def settle(self, lock: Lock[Content]) -> None:
        """The event is done with."""
        del self._locks[lock.offset]

    def release(self, lock: Lock[Content]) -> None:
        """The event goes back to its place."""
        del self._locks[lock.offset]
        self._counts[lock.offset] = lock.count

    def extend(self, lock: Lock[Content], *, until: float, secret: bool = False) -> None:
        """The lock ends at `until` instead.

        Args:
            secret: give it a new secret, so that the old token no longer holds (delayed release).
        """
        lock.until = until
        if secret:
            lock.secret = self._secret()
        heapq.heappush(self._deadlines, (until, lock.offset))

    def expire(self, now: float) -> list[Lock[Content]]:
        """Release the locks that have ended by time, in the order of their offsets."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            until, offset = heapq.heappop(self._deadlines)
            lock = self._locks.get(offset)
            if lock is not None and lock.until == until:
                self.release(lock)
                ended.append(lock)
        return sorted(ended, key=lambda lock: lock.offset)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next, at the earliest."""
        while self._deadlines:
            until, offset = self._deadlines[0]
            lock = self._locks.get(offset)
            if lock is not None and lock.until == until:
                return until
            heapq.heappop(self._deadlines)
        return None

    @property
    def counts(self) -> Mapping[int, int]:
        """How often the events were delivered that went back and have not come again, by offset."""
        return self._counts

    def release_all(self) -> list[Lock[Content]]:
        """The server stops: release everything, in the order of the offsets."""
        locks = sorted(self._locks.values(), key=lambda lock: lock.offset)
        for lock in locks:
            self.release(lock)
        return locks


def ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as (first, count) of consecutive ones, ascending: what the port takes."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][0] + found[-1][1] == offset:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((offset, 1))
    return found
