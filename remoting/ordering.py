"""Reading in order: the locks of a consumer's queues. Pure.

Two members of a group may disagree for a moment about whose a queue is. Where order counts, only
the one reads it that has its lock at the broker (41). Rules:

* The broker's lock lasts 60 seconds. It is renewed every 20, and believed in for
  `TRUSTED_SECONDS` after the request that renewed it was made: one renewal may be lost, and the
  broker's lock always outlasts the belief.
* Locks are no state of a broker. After its restart nobody has one; the first who asks gets it.
* A message is handed to its handler while the lock is believed in, not otherwise. A handler that
  takes longer than `TRUSTED_SECONDS` while no renewal gets through may have company.
* A queue that is given away is committed first and unlocked then (42), so that the next member
  reads on at the right place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Never

from polymq.remoting.errors import BadFields, CallFailed, RequestFailed, Unreachable
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.group_calls import GroupCalls
from polymq.remoting.steps import Pause, Steps

TRUSTED_SECONDS: Final = 50.0
"""Ten less than a broker's lock lasts; RocketMQ's clients believe in theirs for 30."""
_FAILURES: Final = (CallFailed, RequestFailed, BadFields, Unreachable)


@dataclass(slots=True)
class QueueLocks:
    """The locks of one consumer.

    Args:
        clock: seconds that do not go back.
        report: gets what went wrong, in words.
    """

    calls: GroupCalls
    clock: Callable[[], float]
    report: Callable[[str], None]
    _until: dict[MessageQueue, float] = field(default_factory=dict)  # believed in

    def has(self, queue: MessageQueue) -> bool:
        """Whether the lock is ours now."""
        return self._until.get(queue, float("-inf")) > self.clock()

    def take(self, queue: MessageQueue) -> Steps[bool]:
        """Ask for the lock of a queue."""
        yield from self._ask([queue])
        return self.has(queue)

    def give_back(self, queue: MessageQueue) -> Steps[None]:
        """Another member may have it now."""
        if self._until.pop(queue, None) is not None:
            yield from self._unlock([queue])

    def give_all_back(self) -> Steps[None]:
        """At the end."""
        queues = list(self._until)
        self._until.clear()
        for part in _by_broker(queues):
            yield from self._unlock(part)

    def keep(self, seconds: float) -> Steps[Never]:
        """Renew all locks again and again."""
        while True:
            yield Pause(seconds=seconds)
            for part in _by_broker(list(self._until)):
                yield from self._ask(part)

    def _ask(self, queues: list[MessageQueue]) -> Steps[None]:
        asked = self.clock()
        try:
            got = yield from self.calls.lock(queues)
        except _FAILURES as error:
            names = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in queues)
            self.report(f"locks of {names} on {queues[0].broker_name}: {error}")
            return  # what is believed in stays so, for its time
        for queue in queues:
            if queue in got:
                self._until[queue] = asked + TRUSTED_SECONDS
            else:
                self._until.pop(queue, None)

    def _unlock(self, queues: list[MessageQueue]) -> Steps[None]:
        try:
            yield from self.calls.unlock(queues)
        except _FAILURES:
            return  # it ends by itself


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    ordered = sorted(queues, key=lambda queue: (queue.broker_name, queue))
    return [list(part) for _, part in groupby(ordered, key=lambda queue: queue.broker_name)]
