"""Which webhook request is sent next, where more are wanted than may be under way at once.

A request takes a slot before it connects and gives it back when its answer has been read.

Rules:

* At most `count_max` requests are under way, so that webhooks cannot use up the descriptors.
* One host has at most `per_host_max` of them. A host that answers slowly delays its own
  subscriptions only.
* Requests of doubtful subscriptions share half of all slots. A subscription is doubtful while its
  last request failed or was slow. However many sinks hang, the other half stays for those that
  answer.
* Waiting requests of one host are served in their order, and hosts take turns.

All of it is done on the loop, in constant time for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Host:
    """The requests of one host. It is forgotten when it has none.

    Attributes:
        under_way: requests that have a slot.
        waiting: requests that have none yet, in order, for sound and for doubtful subscriptions.
        in_turn: whether the host stands in the list of turns, for each of the two.
    """

    under_way: int = 0
    waiting: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]] = field(
        default_factory=lambda: (deque(), deque())
    )
    in_turn: list[bool] = field(default_factory=lambda: [False, False])


class Slots:
    """The slots of all webhook requests.

    Args:
        count_max: requests under way at once.
        per_host_max: of them, those to one host.
    """

    def __init__(self, *, count_max: int, per_host_max: int) -> None:
        assert 1 <= per_host_max <= count_max
        self._count_max = count_max
        self._per_host_max = per_host_max
        self._doubtful_max = max(1, count_max // 2)
        self._hosts: dict[str, _Host] = {}
        # Hosts with a waiting request, in turn. One that has its share under way loses its turn,
        # and has another when one of its requests ends.
        self._turns: tuple[deque[str], deque[str]] = (deque(), deque())
        self._next = 0  # of the two, the one that is asked first
        self._doubtful = 0
        self.under_way = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def slot(self, host: str, *, doubtful: bool) -> AsyncIterator[None]:
        """Wait for a slot and hold it.

        Args:
            host: host and port of the sink.
            doubtful: whether the subscription's last request failed or was slow.
        """
        kind = int(doubtful)
        known = self._hosts.setdefault(host, _Host())
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known.waiting[kind].append(granted)
        self.waiting += 1
        self._take_turn(host, known)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():  # it leaves the queue when its turn comes
                self.waiting -= 1
            else:  # granted in the same iteration
                self._give_back(host, kind)
            raise
        try:
            yield
        finally:
            self._give_back(host, kind)

    def _take_turn(self, host: str, known: _Host) -> None:
        """Put a host into the lists of turns where it waits."""
        for kind in (0, 1):
            if known.waiting[kind] and not known.in_turn[kind]:
                known.in_turn[kind] = True
                self._turns[kind].append(host)

    def _grant(self) -> None:
        """Give free slots to those whose turn it is."""
        while self.under_way < self._count_max:
            if not self._grant_one(self._next) and not self._grant_one(1 - self._next):
                return

    def _grant_one(self, kind: int) -> bool:
        """Give a slot to the next host with a waiting request of this kind, if there is one."""
        turns = self._turns[kind]
        if kind and self._doubtful >= self._doubtful_max:
            return False
        while turns:
            host = turns.popleft()
            known = self._hosts[host]
            known.in_turn[kind] = False
            queue = known.waiting[kind]
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and known.under_way < self._per_host_max:
                granted = queue.popleft()
                self.waiting -= 1
                self.under_way += 1
                self._doubtful += kind
                known.under_way += 1
                self._next = 1 - kind
                if known.under_way < self._per_host_max:
                    self._take_turn(host, known)
                granted.set_result(None)
                return True
            self._forget(host, known)
        return False

    def _give_back(self, host: str, kind: int) -> None:
        known = self._hosts[host]
        known.under_way -= 1
        self.under_way -= 1
        self._doubtful -= kind
        self._take_turn(host, known)
        self._forget(host, known)
        self._grant()

    def _forget(self, host: str, known: _Host) -> None:
        """Forget a host without requests, unless a list of turns still names it."""
        if not known.under_way and not any(known.waiting) and not any(known.in_turn):
            del self._hosts[host]
