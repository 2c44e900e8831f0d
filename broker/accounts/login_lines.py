"""Logins that wait for their hash, in fair order: an address has its turn, then the next address.

A hash takes 50 ms, so whoever sends logins faster than they are hashed makes a line, and no one
may have to wait behind another's. Within an address users have their turns in the same way, since
many may share one.

Rules:

* Memory is bounded: `count_max` logins. When there are as many, the next one takes the place of the
  last of the address that has the most, or is refused if its own address would have as many.
* Pure: no clock, no threads.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from polymq.broker.errors import Refused

Answer = Callable[[str | Refused], None]
"""Told once: the principal, or why there is none."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One name and password, and all who wait for whether it is right.

    Attributes:
        digest: of name and password.
        stored: the hash that it is compared with.
        source: see `net.newcomers.network_of`.
        address: of the first who asked.
        answers: by login: one that is withdrawn is taken out.
    """

    digest: bytes
    user: str
    password: bytes = field(repr=False)
    stored: str = field(repr=False)
    source: str
    address: str
    answers: dict[object, Answer] = field(default_factory=dict, repr=False)


class _Source:
    """The logins of one address."""

    __slots__ = ("count", "users")

    def __init__(self) -> None:
        self.count = 0
        # The next one first. A plain dictionary takes long to find the first key where many were
        # deleted in front of it.
        self.users: OrderedDict[str, deque[Attempt]] = OrderedDict()


class Lines:
    """See the head of this file.

    Attributes:
        count_max: how many may wait. When it is lowered, those that wait stay.
    """

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._sources: OrderedDict[str, _Source] = OrderedDict()  # the next one first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, attempt: Attempt) -> Attempt | None:
        """Let it wait. Returns the one for which there is no room, if there is one."""
        refused = None
        if self._count >= self.count_max:
            longest = max(self._sources, key=lambda source: self._sources[source].count)
            own = self._sources.get(attempt.source)
            if (0 if own is None else own.count) + 1 >= self._sources[longest].count:
                return attempt
            refused = self._drop_last(longest)
        source = self._sources.setdefault(attempt.source, _Source())
        source.users.setdefault(attempt.user, deque()).append(attempt)
        source.count += 1
        self._count += 1
        return refused

    def take(self) -> Attempt | None:
        """The next one; None if none waits."""
        if not self._count:
            return None
        name, source = self._sources.popitem(last=False)
        user, waiting = source.users.popitem(last=False)
        attempt = waiting.popleft()
        if waiting:
            source.users[user] = waiting  # behind the others
        source.count -= 1
        if source.count:
            self._sources[name] = source
        self._count -= 1
        return attempt

    def remove(self, attempt: Attempt) -> bool:
        """Take out an attempt that nobody waits for any more. Returns whether it was there."""
        source = self._sources.get(attempt.source)
        waiting = None if source is None else source.users.get(attempt.user)
        if source is None or waiting is None or attempt not in waiting:
            return False
        waiting.remove(attempt)
        self._removed(source, attempt)
        return True

    def _drop_last(self, name: str) -> Attempt:
        """Take out the last login of the user that has the most of an address."""
        source = self._sources[name]
        # Of those that have as many, the one that has its turn last.
        user = max(reversed(source.users), key=lambda user: len(source.users[user]))
        attempt = source.users[user].pop()
        self._removed(source, attempt)
        return attempt

    def _removed(self, source: _Source, attempt: Attempt) -> None:
        """An attempt has left its place before its turn."""
        if not source.users[attempt.user]:
            del source.users[attempt.user]
        source.count -= 1
        if not source.count:
            del self._sources[attempt.source]
        self._count -= 1
