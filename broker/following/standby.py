"""The engine of a slave: it follows another broker's log, and publishes nothing of its own.

What comes of that log is folded as a start folds it, piece by piece, so the state is the master's
at the same place. Readers by offset are served meanwhile; everything that would change something
is refused with the master's name.

Rules:

* Nothing is shown before the master has shown it: a message ends at the least of what is flushed
  here and what the master said is flushed (or in sync) there.
* What this broker has is not less than it says: a position is acked when it is flushed here.
* What the master has deleted goes here, too, but not before this broker has on its disk what the
  master had on its own when it said so (the state without those messages), and knows that it is in
  sync: only then it cannot be told to cut what the start of its log needs.
* No timers, deliveries or acks: whoever held a message holds it at the master. A promotion opens
  the store anew, as a restart does.
"""

from __future__ import annotations

from collections.abc import Callable

from polymq.broker.commits import CommitPoints
from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.durability import FLUSHED, IN_SYNC, Durability
from polymq.broker.errors import UnknownChange
from polymq.broker.queues.queue import Queue
from polymq.broker.topics.topics import Topics
from polymq.core_log.following import Following, Taken
from polymq.core_log.record import Record


class Standby:
    """What of an engine follows.

    Args:
        fold: applies a record that changes state.
        forget_settled: sessions of these numbers let go of what was acked at the master.
        flushed, in_sync: what the master last said of its points, as far as is remembered: more is
            not shown before it says so again.

    Attributes:
        on_flushed: told how far this broker has the log on its disk, each time that changes.
    """

    def __init__(
        self,
        core: Core,
        topics: Topics,
        *,
        fold: Callable[[Record], None],
        forget_settled: Callable[[list[int]], None],
        flushed: int,
        in_sync: int,
    ) -> None:
        self._core = core
        self._topics = topics
        self._apply = fold
        self._forget_settled = forget_settled
        self._log = Following(core.store)
        self._own = CommitPoints(core.log.flushed)
        self._said = {FLUSHED: flushed, IN_SYNC: in_sync}
        self.on_flushed: Callable[[int], None] = lambda _: None
        self._released = 0  # what is before it may go
        self._release: tuple[int, int] | None = None  # where to, and what has to be flushed first
        self._queues_of = self._queues()
        self._core.commits.move_back([self._core.log.appended, *self._bounds()])
        end = self._core.log.appended
        for queue in self._queues_of.values():
            low = first_behind(queue, self._core.commits.points[queue.read_point])
            if low < queue.index.end_offset:
                self._show_later(queue, low, end)

    @property
    def wanted(self) -> int:
        """The position of the byte that has to come next."""
        return self._log.wanted

    @property
    def flushed(self) -> int:
        """How far this broker has the log on its disk."""
        return self._own.points[FLUSHED]

    @property
    def said(self) -> tuple[int, int]:
        """The master's points, flushed and in-sync, as it last told them."""
        return self._said[FLUSHED], self._said[IN_SYNC]

    def take(self, data: bytes) -> None:
        """The next bytes of the master's log.

        Raises:
            CorruptRecord: they do not belong there.
            StorageFull, StorageFailed: the disk takes no more.
            UnknownChange: a newer version wrote them. They are in the log, and the state is not
                that of the log any more: it is not saved, and nothing more is taken.
        """
        if self._core.unknown is not None:
            raise self._core.unknown
        try:
            for taken in self._log.take(data):
                self._fold(taken)
        except UnknownChange as error:
            self._core.unknown = error
            raise
        self._core.commits.urgent = self._core.log.appended
        self._core.appended()

    def lost(self) -> None:
        """The master is gone; what came in part comes again."""
        self._log.forget()

    def committed(self, flushed: int, in_sync: int) -> None:
        """The master has so much on its disk, and on those of enough replicas."""
        self._said = {
            FLUSHED: max(flushed, self._said[FLUSHED]),
            IN_SYNC: max(in_sync, self._said[IN_SYNC]),
        }
        self._advance()

    def released(self, position: int, flushed: int) -> None:
        """The master's log begins at `position`, and it has everything before `flushed` on its
        disk."""
        if self._release is None and position > self._released:
            self._release = position, flushed

    @property
    def deletable(self) -> int:
        """What the log has before this position is wanted no more."""
        known = min(self.flushed, self._said[IN_SYNC])
        if self._release is not None and self._release[1] <= known:
            self._released, self._release = self._release[0], None
        return self._released

    def flush_finished(self, flushed: int) -> None:
        """This broker has so much on its disk."""
        if flushed > self._own.points[FLUSHED]:
            self._own.advance(FLUSHED, flushed)
            self._advance()
            self.on_flushed(flushed)

    def when_flushed(self, position: int, callback: Callable[[], None]) -> None:
        """Call back when this broker has the position on its disk."""
        self._own.when(position, FLUSHED, callback)

    def forget_settled(self) -> None:
        """Sessions that changed since the last saving let go of what was acked at the master."""
        dirty = self._core.journal.dirty
        numbers = [int(key) for kind, key in dirty if kind == "session"]
        self._forget_settled(numbers)

    def failed(self) -> None:
        """The disk failed: what waits is never let go."""
        self._own.fail()

    def _bounds(self) -> list[int]:
        flushed = self._own.points[FLUSHED]
        copied = min(flushed, self._said[IN_SYNC])
        return [min(flushed, self._said[FLUSHED]), copied, copied]

    def _advance(self) -> None:
        commits = self._core.commits
        for durability, bound in zip(list(Durability)[FLUSHED:], self._bounds(), strict=True):
            commits.advance(durability, bound)

    def _queues(self) -> dict[int, Queue]:
        topics = self._topics.topics.values()
        return {queue.number: queue for topic in topics for queue in topic.queues}

    def _fold(self, taken: Taken) -> None:
        """Take what a piece of the log says, and let what it brings be seen in its time."""
        for record in taken.marked(SYSTEM_FLAG_STATE):
            self._apply(record)
        queues = self._queues_of
        if any(number not in queues for number, _ in taken.queues):
            queues = self._queues_of = self._queues()
        for number, first in taken.queues:
            queue = queues.get(number)
            if queue is not None:
                self._show_later(queue, first, taken.end)

    def _show_later(self, queue: Queue, first: int, position: int) -> None:
        queue.flushed = min(queue.flushed, first)
        queue.visible = min(queue.visible, first)
        end = queue.index.end_offset
        self._core.commits.when(position, queue.read_point, _show, queue, end, urgent=False)


def _show(queue: Queue, end: int) -> None:
    queue.visible = max(queue.visible, end)
    queue.show_to(end)


def first_behind(queue: Queue, position: int) -> int:
    """The queue's first offset whose message ends behind `position`. Entries ascend in position."""
    low, high = queue.index.first_offset, queue.index.end_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.index.read_hot(middle, 1) or queue.index.read_cold(middle, 1)
        if int.from_bytes(entry[:8], "big") + int.from_bytes(entry[8:12], "big") > position:
            high = middle
        else:
            low = middle + 1
    return low
