"""How many connections a listener accepts in a second. Pure."""

from __future__ import annotations


class AcceptRate:
    """A bucket of places for new connections, which fills at a constant rate.

    Args:
        per_second: connections in a second; also how many may come at once, but at least one.
        now: seconds.
    """

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._left = self._most
        self._at = now

    def take(self, now: float) -> bool:
        """A connection arrived at `now`. Returns whether there is a place for it."""
        self._left = min(self._most, self._left + self._per_second * (now - self._at))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
