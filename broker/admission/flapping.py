"""Clients that connect and vanish too often, and are kept out for a while. Pure.

Theory. A client in a loop of connecting and failing costs a login, a session and a will each time,
and two clients with one identifier push each other out for ever. What counts is how often the
connections of an identifier end. The table has a fixed number of places: an identifier that was not
seen for longest gives way, so an attacker with very many identifiers makes the table forget, and is
left to the limits by address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymq.broker.bounded_cache import BoundedCache

WATCHED_MAX: Final = 10_000
"""Client identifiers that are watched, some 300 bytes each."""


@dataclass(slots=True)
class _Watched:
    """How often connections of one client identifier ended, since when, and until when it is kept
    out (0: it is not)."""

    begin: float
    count: int = 0
    out_until: float = 0.0


class Flapping:
    """Watches client identifiers.

    Args:
        count: so many ends within the window are too many; 0: nothing is watched.
        window_seconds: the time in which ends are counted.
        ban_seconds: how long a client is kept out.
    """

    def __init__(
        self,
        *,
        count: int,
        window_seconds: float,
        ban_seconds: float,
        watched_max: int = WATCHED_MAX,
    ) -> None:
        self._count = count
        self._window = window_seconds
        self._ban = ban_seconds
        self._watched: BoundedCache[str, _Watched] = BoundedCache(watched_max)

    def change(self, *, count: int, window_seconds: float, ban_seconds: float) -> None:
        """Watch by these from now on. Who is kept out stays out, unless nothing is watched."""
        self._count = count
        self._window = window_seconds
        self._ban = ban_seconds

    def ended(self, client_id: str, now: float) -> bool:
        """A connection of this client ended at `now`, in seconds. Returns whether the client is
        kept out from now on."""
        if not self._count:
            return False
        watched = self._watched.pop(client_id, None)
        if watched is None or not 0 <= now - watched.begin < self._window:
            watched = _Watched(begin=now, out_until=0.0 if watched is None else watched.out_until)
        self._watched.add(client_id, watched)
        watched.count += 1
        if watched.count < self._count:
            return False
        watched.out_until = now + self._ban
        watched.begin, watched.count = now, 0
        return True

    def is_out(self, client_id: str, now: float) -> bool:
        """Whether the client is kept out at `now`."""
        watched = self._watched.get(client_id)
        if watched is None or not self._count:
            return False
        return now < watched.out_until <= now + self._ban

    def __len__(self) -> int:
        """How many client identifiers are watched."""
        return len(self._watched)
