"""Which connections a listener has, and who is let in. Pure.

Rules:

* A connection is a newcomer until its protocol calls `proven` (`newcomers.py`). Newcomers have room
  for `newcomers_max`. When that is full, one of them gives way to each arrival.
* When the listener has all the connections that it may have, an arrival takes the place of a
  newcomer. Connections that have proven themselves are never closed for others.
* A full listener closes a newcomer only if some network has at least two more of them than the
  arriving one, or `CROWD_MIN`. Otherwise the arrival is refused. Without this rule the clients that
  try again and again at a full server would push out each other, and no one would finish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from polymq.net.budget import Share
from polymq.net.newcomers import Newcomers, network_of

log = logging.getLogger(__name__)

CROWD_MIN: Final = 64
"""So many newcomers of one network are a crowd: at a thousand arrivals a second each of them still
has 64 ms, which is a round trip or two."""
REPORT_SECONDS: Final = 60.0
"""How often the log reports arrivals that were refused, and newcomers that were closed, at most."""

C = TypeVar("C", bound=Hashable)


class Roster(Generic[C]):
    """The connections of one listener.

    Args:
        share: how many connections there may be.
        close: closes a connection at once, because it gives way to another.
        now: seconds that do not go back.
        newcomers_max: how many of them may be newcomers; by default what the share says.
        emptied: called when the last connection is gone.
        where: the listener, for log lines.

    Attributes:
        connections: all that were let in and are not gone.
        accepted_count: arrivals that were let in.
        refused_count: arrivals that were closed at once because the listener was full.
        crowded_out_count: newcomers that were closed to make room for other arrivals.
    """

    def __init__(
        self,
        share: Share,
        *,
        close: Callable[[C], None],
        now: Callable[[], float],
        newcomers_max: int | None = None,
        emptied: Callable[[], None] = lambda: None,
        where: str = "",
    ) -> None:
        self.where = where
        self.connections: set[C] = set()
        self.accepted_count = 0
        self.refused_count = 0
        self.crowded_out_count = 0
        self._share = share
        self._close = close
        self._now = now
        self._newcomers_of_share = newcomers_max is None
        self._newcomers_max = share.newcomers_max if newcomers_max is None else newcomers_max
        self._emptied = emptied
        self._newcomers: Newcomers[C] = Newcomers()
        self._reported_at: dict[str, float] = {}

    @property
    def newcomers_count(self) -> int:
        """Connections that have not proven themselves."""
        return len(self._newcomers)

    @property
    def proven_count(self) -> int:
        """Connections that have proven themselves."""
        return len(self.connections) - len(self._newcomers)

    def resize(self, connections_max: int) -> None:
        """Let in so many from now on. None that is there is closed for that."""
        self._share.resize(connections_max)
        if self._newcomers_of_share:
            self._newcomers_max = self._share.newcomers_max

    def is_proven(self, connection: C) -> bool:
        """Whether a connection has proven itself, and is not gone."""
        return connection in self.connections and connection not in self._newcomers

    def admit(self, make: Callable[[], C], address: str) -> C | None:
        """A connection was accepted.

        Args:
            make: makes the connection, if it is let in.
            address: the remote address without its port.

        Returns:
            The connection, which is a newcomer now; None if there may be no more.
        """
        network = network_of(address)
        newcomers = self._newcomers
        if len(newcomers) >= self._newcomers_max:
            self._crowd_out(network)
        if not self._share.take():
            crowded = newcomers.most >= min(newcomers.count_of(network) + 2, CROWD_MIN)
            if crowded:
                self._crowd_out(network)
            if not crowded or not self._share.take():
                self._refused(network)
                return None
        connection = make()
        self.accepted_count += 1
        self.connections.add(connection)
        newcomers.add(connection, network)
        return connection

    def spoke(self, connection: C) -> None:
        """The first words of a connection were valid."""
        self._newcomers.spoke(connection)

    def moved(self, connection: C, address: str) -> None:
        """The client of a connection has another remote address than the socket: a proxy said so.
        It competes with the newcomers of its own network from now on."""
        self._newcomers.move(connection, network_of(address))

    def proven(self, connection: C) -> None:
        """A connection has logged in or made a valid request. It gives way to no one any more.
        Safe to call again."""
        self._newcomers.remove(connection)

    def gone(self, connection: C) -> None:
        """A connection is closed, or never came about. Safe to call again."""
        if connection in self.connections:
            self._remove(connection)
        if not self.connections:
            self._emptied()

    def _remove(self, connection: C) -> None:
        self._newcomers.remove(connection)
        self.connections.remove(connection)
        self._share.give()

    def _crowd_out(self, network: str) -> None:
        """Close a newcomer in favour of an arrival from a network. Its place is free at once."""
        found = self._newcomers.first_to_go(network)
        if found is None:
            return
        connection, crowded = found
        if self._may_report("crowded out"):
            log.warning(
                "%s: closing connections that have not logged in or sent a valid request, to make "
                "room for new ones. %d of %d such connections are from %s",
                self.where,
                self._newcomers.count_of(crowded),
                len(self._newcomers),
                crowded,
            )
        self.crowded_out_count += 1
        self._remove(connection)
        self._close(connection)

    def _refused(self, network: str) -> None:
        why = "as many as connections_max or the open files of this process allow"
        self.refuse(network, f"there are {len(self.connections)}, {why}")

    def refuse(self, address: str, why: str) -> None:
        """Count an arrival that is closed at once, and report it now and then."""
        self.refused_count += 1
        if self._may_report("refused"):
            log.warning(
                "%s: refusing connections, the last one from %s: %s", self.where, address, why
            )

    def _may_report(self, what: str) -> bool:
        now = self._now()
        if now - self._reported_at.get(what, now - REPORT_SECONDS) < REPORT_SECONDS:
            return False
        self._reported_at[what] = now
        return True
