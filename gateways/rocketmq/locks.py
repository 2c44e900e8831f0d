"""Who may consume a queue in order: locks with a lease. No clock inside.

A consumer of ordered messages asks for the lock of each queue that it thinks is its own, and again
every 20 seconds. So two members that disagree about whose a queue is do not both consume it. Locks
are not state: after a restart nobody has one, and the first who asks gets it, as in RocketMQ.

A lock belongs to a client of a user: another user's client of the same name is another client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from polymq.remoting.group_bodies import MessageQueue

Holder = tuple[str, str]
"""A user and a client id."""
LEASE_SECONDS: Final = 60.0
"""RocketMQ's `rebalanceLockMaxLiveTime`: three times what its clients take to ask again."""


class Locks:
    """The locks of all groups of one listener.

    Args:
        count_max: how many there may be.
    """

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        self._held: dict[tuple[str, MessageQueue], tuple[Holder, float]] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now: float,
        owner: str = "",
    ) -> list[MessageQueue]:
        """Take or keep the locks of these queues; returns those that the client has now.

        Args:
            owner: the user whose client it is.
        """
        got = []
        holder = owner, client_id
        for queue in queues:
            held_by, until = self._held.get((group, queue), (holder, 0.0))
            if held_by != holder and until > now:
                continue
            if (group, queue) not in self._held and len(self._held) >= self._count_max:
                self.expire(now)
                if len(self._held) >= self._count_max:
                    continue
            self._held[group, queue] = holder, now + LEASE_SECONDS
            got.append(queue)
        return got

    def unlock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], owner: str = ""
    ) -> None:
        """Give locks back; those of others stay."""
        for queue in queues:
            held = self._held.get((group, queue))
            if held is not None and held[0] == (owner, client_id):
                del self._held[group, queue]

    def keep(self, may_wait: Callable[[str, str, str], bool]) -> None:
        """Rights changed: free the locks that may not be held, by user, group and topic."""
        self._held = {
            (group, queue): held
            for (group, queue), held in self._held.items()
            if may_wait(held[0][0], group, queue.topic)
        }

    def expire(self, now: float) -> None:
        """Forget locks whose lease ended."""
        self._held = {key: held for key, held in self._held.items() if held[1] > now}
