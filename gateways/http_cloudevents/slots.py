"""Which webhook request is sent next, where more are wanted than may be under way at once.

A request takes a slot before it connects and gives it back when its answer has been read.

Rules:

* At most `count_max` requests are under way, so that webhooks cannot use up the descriptors.
* What is known of a subscription is its standing: proven, new or doubtful. Only its own requests
  decide it, so a subscription that hangs spoils no other.
* A request counts as slow as soon as it has been under way for `slow_seconds`, whatever its
  standing. It need not end first: a sink that hangs would hold its slot until its timeout.
* Doubtful subscriptions share a quarter of all slots. New and doubtful ones together share half,
  and slow requests count among them. The rest is for those that are known to answer, and new
  subscriptions are not kept out by those that fail.
* Requests that are not slow yet have three quarters. If all sinks hang at once, the last quarter
  is free for others when the first three have turned out to be slow.
* One name and port has at most `per_host_max` requests of proven subscriptions. While one of these
  is slow, it gets more only as far as doubtful subscriptions do.
* One name, with all its ports, has at most `per_host_max` requests of new subscriptions, and as
  many of doubtful ones: opening many ports gets nobody a larger share.
* Waiting requests of one host are served in their order, and hosts take turns.

All of it is done on the loop, in constant time for each request. There is one timer, and only while
a request waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import IntEnum


class Reputation(IntEnum):
    """What is known of a subscription.

    PROVEN: its last request was answered, in time. NEW: no request of it has ended. DOUBTFUL: its
    last request failed or was slow.
    """

    PROVEN = 0
    NEW = 1
    DOUBTFUL = 2


@dataclass(slots=True, eq=False)
class _Host:
    """The requests of one standing to one host. It is forgotten when it has none.

    Attributes:
        reputation: of their subscriptions.
        key: by which it is found: name and port for proven subscriptions, the name for others.
        under_way: requests that have a slot.
        slow: of them, those that count as slow.
        waiting: requests that have none yet, in order.
        in_turn: whether the host stands in the list of turns.
    """

    reputation: Reputation
    key: str
    under_way: int = 0
    slow: int = 0
    waiting: deque[asyncio.Future[_Request]] = field(default_factory=deque)
    in_turn: bool = False


@dataclass(slots=True, eq=False)
class _Request:
    """A request that is under way.

    Attributes:
        began: when it got its slot, by the loop's clock.
    """

    host: _Host
    began: float


class Slots:
    """The slots of all webhook requests.

    Args:
        count_max: requests under way at once.
        per_host_max: of them, those to one host.
        slow_seconds: how long a request is under way before it counts as slow.
        now: the loop's clock.
        call_at: calls back at a time of this clock.
    """

    def __init__(
        self,
        *,
        count_max: int,
        per_host_max: int,
        slow_seconds: float,
        now: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        assert 1 <= per_host_max <= count_max
        self._count_max = count_max
        self._per_host_max = per_host_max
        self._slow_seconds = slow_seconds
        self._now = now
        self._call_at = call_at
        self._quick_max = count_max - count_max // 4
        self._unproven_max = max(1, count_max // 2)
        self._doubtful_max = max(1, count_max // 4)
        self._hosts: tuple[dict[str, _Host], ...] = tuple({} for _ in Reputation)
        # Hosts with a waiting request, in turn. One that has its share under way loses its turn,
        # and has another when one of its requests ends.
        self._turns: tuple[deque[_Host], ...] = tuple(deque() for _ in Reputation)
        self._next = 0  # the standing that is asked first
        self._quick: OrderedDict[_Request, None] = OrderedDict()  # not slow yet, oldest first
        self._quick_new = 0  # of them, those of new subscriptions
        self._doubtful = 0  # requests that are slow, or of doubtful subscriptions
        self._timer: asyncio.TimerHandle | None = None
        self.under_way = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def slot(self, name: str, port: int, reputation: Reputation) -> AsyncIterator[None]:
        """Wait for a slot and hold it.

        Args:
            name: the host of the sink, in one spelling.
            reputation: of the subscription.
        """
        host = self._host(name, port, reputation)
        granted: asyncio.Future[_Request] = asyncio.get_running_loop().create_future()
        host.waiting.append(granted)
        self.waiting += 1
        self._take_turn(host)
        self._grant()
        try:
            request = await granted
        except asyncio.CancelledError:
            if granted.cancelled():  # it leaves the queue when its turn comes
                self.waiting -= 1
            else:  # granted in the same iteration
                self._give_back(granted.result())
            raise
        try:
            yield
        finally:
            self._give_back(request)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _host(self, name: str, port: int, reputation: Reputation) -> _Host:
        key = f"{name}:{port}" if reputation is Reputation.PROVEN else name
        return self._hosts[reputation].setdefault(key, _Host(reputation, key))

    def _take_turn(self, host: _Host) -> None:
        """Put a host into the list of turns if it waits."""
        if host.waiting and not host.in_turn:
            host.in_turn = True
            self._turns[host.reputation].append(host)

    def _grant(self) -> None:
        """Give free slots to those whose turn it is."""
        self._notice_slow()
        while self.under_way < self._count_max and len(self._quick) < self._quick_max:
            order = (*range(self._next, len(Reputation)), *range(self._next))
            if not any(self._grant_one(Reputation(reputation)) for reputation in order):
                break
        if self.waiting and self._quick and self._timer is None:
            due = next(iter(self._quick)).began + self._slow_seconds
            self._timer = self._call_at(due, self._timer_ended)

    def _timer_ended(self) -> None:
        self._timer = None
        self._grant()

    def _notice_slow(self) -> None:
        """Count requests as slow that have been under way for long enough."""
        began_max = self._now() - self._slow_seconds
        while self._quick:
            request = next(iter(self._quick))
            if request.began > began_max:
                return
            del self._quick[request]
            request.host.slow += 1
            self._quick_new -= request.host.reputation is Reputation.NEW
            self._doubtful += request.host.reputation is not Reputation.DOUBTFUL

    def _has_room(self, reputation: Reputation) -> bool:
        """Whether the share of a standing has a free slot."""
        if reputation is Reputation.PROVEN:
            return True
        if reputation is Reputation.DOUBTFUL and self._doubtful >= self._doubtful_max:
            return False
        return self._quick_new + self._doubtful < self._unproven_max

    def _grant_one(self, reputation: Reputation) -> bool:
        """Give a slot to the next host with a waiting request of this standing, if there is one."""
        turns = self._turns[reputation]
        if not self._has_room(reputation):
            return False
        while turns:
            host = turns.popleft()
            host.in_turn = False
            queue = host.waiting
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and self._may_have_more(host):
                granted = queue.popleft()
                self.waiting -= 1
                request = _Request(host, self._now())
                self._begin(request)
                self._next = (reputation + 1) % len(Reputation)
                self._take_turn(host)
                granted.set_result(request)
                return True
            self._forget(host)
        return False

    def _may_have_more(self, host: _Host) -> bool:
        """Whether a host has not its share yet. Where it has, one of its requests is under way."""
        if host.under_way >= self._per_host_max:
            return False
        suspect = host.reputation is Reputation.PROVEN and host.slow > 0
        return not suspect or self._has_room(Reputation.DOUBTFUL)

    def _begin(self, request: _Request) -> None:
        self.under_way += 1
        request.host.under_way += 1
        self._quick[request] = None
        self._quick_new += request.host.reputation is Reputation.NEW
        self._doubtful += request.host.reputation is Reputation.DOUBTFUL

    def _give_back(self, request: _Request) -> None:
        host = request.host
        self.under_way -= 1
        host.under_way -= 1
        if request in self._quick:
            del self._quick[request]
            self._quick_new -= host.reputation is Reputation.NEW
            self._doubtful -= host.reputation is Reputation.DOUBTFUL
        else:
            host.slow -= 1
            self._doubtful -= 1
        self._take_turn(host)
        self._forget(host)
        self._grant()

    def _forget(self, host: _Host) -> None:
        """Forget a host without requests, unless the list of turns still names it."""
        if not host.under_way and not host.waiting and not host.in_turn:
            del self._hosts[host.reputation][host.key]
