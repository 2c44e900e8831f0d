"""How many connections all listeners of a process may have together.

Theory. Each connection is an open file, and a process has a limit of those. The store needs some
for its next file, or publishers wait. So listeners do not accept as many as there are descriptors,
but take each connection out of one budget, and descriptors beyond it are always left.

Each listener keeps a small part of the budget for itself: whoever fills one listener with idle
connections does not shut the others.
"""

from __future__ import annotations

import threading
from typing import Final

UNLIMITED: Final = 1 << 40
RESERVED_PART: Final = 32
"""Each listener has a thirty-second of the budget to itself: all twelve of them about a third."""
RESERVED_MIN: Final = 2
NEWCOMERS_PART: Final = 16
"""A sixteenth of the budget is for connections of a listener that have not proven themselves: those
of all twelve listeners leave a quarter of it to others."""
NEWCOMERS_MIN: Final = 16
NEWCOMERS_MAX: Final = 4096
"""More are of no use: a client that means it proves itself in a round trip or two."""


class Budget:
    """Connections that may be open at the same time. All methods may be called from any thread.

    Args:
        total: how many.
    """

    def __init__(self, total: int = UNLIMITED) -> None:
        self.total = total
        self.wanted = 0
        """What all listeners may have by their own limits."""
        self._lock = threading.Lock()
        self._common = total  # for whoever comes first
        self._common_used = 0

    def share(self, limit: int) -> Share:
        """A listener's part.

        Args:
            limit: its own greatest number of connections.
        """
        with self._lock:
            self.wanted += limit
            reserved = min(limit, max(RESERVED_MIN, self.total // RESERVED_PART))
            self._common -= reserved
        return Share(self, limit, reserved)

    @property
    def is_tight(self) -> bool:
        """Whether listeners cannot all reach their own limits."""
        return self.wanted > self.total

    def take(self, share: Share) -> bool:
        """See `Share.take`."""
        with self._lock:
            if share.count >= share.limit:
                return False
            if share.count >= share.reserved:
                if self._common_used >= self._common:
                    return False
                self._common_used += 1
            share.count += 1
            return True

    def resize(self, share: Share, limit: int) -> None:
        """See `Share.resize`."""
        with self._lock:
            self.wanted += limit - share.limit
            share.limit = limit

    def give(self, share: Share) -> None:
        """See `Share.give`."""
        with self._lock:
            if share.count > share.reserved:
                self._common_used -= 1
            share.count -= 1


class Share:
    """What one listener has of a budget. Made by `Budget.share` only.

    Attributes:
        limit: its greatest number of connections.
        reserved: how many of them nobody else can take.
        count: how many there are.
    """

    __slots__ = ("_budget", "count", "limit", "reserved")

    def __init__(self, budget: Budget, limit: int, reserved: int) -> None:
        self._budget = budget
        self.limit = limit
        self.reserved = reserved
        self.count = 0

    @property
    def newcomers_max(self) -> int:
        """How many of its connections may be newcomers (`roster.py`): half of them at most, unless
        it has very few."""
        part = min(self.limit // 2, self._budget.total // NEWCOMERS_PART)
        return max(NEWCOMERS_MIN, min(NEWCOMERS_MAX, part))

    def take(self) -> bool:
        """There is one connection more. False if there may not be: close it."""
        return self._budget.take(self)

    def resize(self, limit: int) -> None:
        """Another greatest number from now on. Connections that are there stay; what the share has
        to itself stays as it was."""
        self._budget.resize(self, limit)

    def give(self) -> None:
        """A connection that was taken is gone."""
        self._budget.give(self)
