"""Messages that have waited too long: they leave at the head of their queue, read or not.

Theory. A message's time to live is the lower of its own and its queue's; both count from the time
when the record was stored, which the index entry says. As in RabbitMQ a message expires at the head
of its queue: behind one that lives longer it waits, is counted as ready, and goes when it comes to
the head. What is at the head is looked at

* before each delivery, so that nothing is delivered after its time;
* when its time comes (one timer for each queue), so that it goes though nobody reads.

Rules:

* A message with a time to live of zero is offered once, to the consumers that wait in the moment
  when it becomes visible.
* Entries that are not in memory are fetched by a reader thread. Until they are there nothing of the
  queue is delivered, so nothing overtakes.
* One look drops at most `pump_count_max` messages; then other work gets its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polymq.broker.core import Core
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.pacing.timers import Timer
from polymq.broker.queues.heads import LOOK_COUNT, Head, stored_ms_of
from polymq.broker.queues.queue import Group
from polymq.core_log.kernels.batch import RECORD_BORN_MS_AT
from polymq.core_log.kernels.writing import expired

NOT_KNOWN: Final = -1
"""What is at the head has to be read from the disk first; the group is pumped when it is there."""
ZERO_TTL_CODE: Final = 1


def is_expired(run: RecordRun, now_ms: int) -> bool:
    """Whether a message, a run of one, has outlived its own time to live, which begins when it is
    published: where no queue lets it expire."""
    if not run.meta.ttl_code:
        return False
    at = run.start + RECORD_BORN_MS_AT
    born_ms = int.from_bytes(run.memory[at : at + 8], "big")
    return born_ms + run.meta.ttl_code - 1 <= now_ms


def ttl_code(ttl_ms: int | None) -> int:
    """A time to live as index entries have it."""
    return 0 if ttl_ms is None else ttl_ms + 1


class Expiry:
    """The expiring of one group's messages.

    Args:
        ttl_ms: the queue's own time to live.
        give_up: takes (group, first, count) that were taken from the cursor.
    """

    __slots__ = ("_code", "_core", "_give_up", "_group", "_head", "_timer")

    def __init__(
        self,
        core: Core,
        group: Group,
        *,
        ttl_ms: int | None,
        give_up: Callable[[Group, int, int], None],
    ) -> None:
        self._core = core
        self._group = group
        self._code = ttl_code(ttl_ms)
        self._give_up = give_up
        self._timer: Timer | None = None
        self._head = Head(core, group, self._look_and_pump)

    def is_late(self, first: int, code: int) -> bool:
        """Whether messages that become visible at `first` have expired before they could.

        Args:
            code: their own time to live, as in an entry.
        """
        if self._code and (code == 0 or self._code < code):
            code = self._code
        if code <= ZERO_TTL_CODE:
            return False
        entry = self._group.queue.index.read_hot(first, 1)
        if not entry:
            return True  # too old to be in memory
        return stored_ms_of(entry) + code - 1 <= self._core.clock_ms()

    def deliverable(self) -> int:
        """Drop what has expired at the head; how many messages behind it may be delivered in one
        stretch (0: there are none), or `NOT_KNOWN`."""
        budget = self._core.limits.pump_count_max
        group = self._group
        look_count = LOOK_COUNT
        while budget > 0:
            head = group.cursor.peek(min(budget, look_count), group.queue.visible)
            if head is None:
                return 0
            first, count = head
            entries = self._head.entries(first, count)
            if entries is None:
                return NOT_KNOWN
            gone, live, due_ms = expired(entries, self._core.clock_ms(), self._code)
            if not gone:
                if due_ms >= 0:
                    self._arm(due_ms)
                return live
            taken = group.cursor.take(gone, group.queue.visible)
            assert taken is not None
            self._give_up(group, taken[0], taken[1])
            budget -= taken[1]
            look_count = budget
        self._arm(self._core.clock_ms())
        return NOT_KNOWN

    def look(self) -> None:
        """Drop what has expired at the head, and wait for the time of what is there then."""
        if self._group.cursor.ready_count(self._group.queue.visible):
            self.deliverable()

    def look_later(self) -> None:
        """The same in a later loop iteration."""
        self._arm(self._core.clock_ms())

    def close(self) -> None:
        """The queue is gone."""
        self._head.close()
        self._give_up = lambda _group, _first, _count: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            if self._timer.due_ms <= due_ms:
                return  # it looks, and asks again
            self._timer.cancel()
        self._timer = self._core.timers.at(due_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._group.waiting:  # what a reader thread brings is on its way to a consumer
            self._arm(self._core.clock_ms() + 1000)
            return
        self._look_and_pump()

    def _look_and_pump(self) -> None:
        self.look()
        self._group.pump()
