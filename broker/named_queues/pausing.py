"""Queues that an operator has paused: they take messages and hand out none.

A pause is state: the ops `pause+` and `pause-`, and a field of the queue's row. So it outlives a
restart and a failover. Consumers stay, and keep what they have. A paused queue does everything else
as before: its messages expire, and its bounds hold.

Rule: nobody asks here whether a queue is paused. Each of its groups knows it (`Group.paused`), and
looks where it is about to hand out a run.
"""

from __future__ import annotations

from collections.abc import Mapping

from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue, position_of
from polymq.broker.named_queues.features import Write
from polymq.broker.port.infos import Pause
from polymq.broker.port.values import Position
from polymq.broker.state.journal import Op, Touched


class QueuePausing:
    """The paused queues of one engine.

    Args:
        queues: all named queues, by name; whoever owns them changes it.
        write: see `Write`.

    Attributes:
        since_ms: by the name of each paused queue, since when it is.
    """

    def __init__(self, core: Core, *, queues: Mapping[str, NamedQueue], write: Write) -> None:
        self._core = core
        self._queues = queues
        self._write = write
        self.since_ms: dict[str, int] = {}
        core.journal.handle("pause+", self._apply_pause)
        core.journal.handle("pause-", self._apply_resume)

    def pause(self, name: str, *, by: str) -> Position:
        """Hand out nothing of this queue until it is resumed. A queue that is paused stays so, by
        whom it was. Raises Refused: NOT_FOUND, READ_ONLY, STORAGE_FULL.

        Args:
            by: who wants it, for other operators.
        """
        found = self._need(name)
        if found.pause is not None:
            return position_of(self._core, durable=found.queue.durable)
        op: Op = {"op": "pause+", "queue": name, "ms": self._core.clock_ms(), "by": by}
        return self._write(op, durable=found.queue.durable)

    def resume(self, name: str) -> Position:
        """Hand out what waits, and what comes. No error if it is not paused. Raises Refused:
        NOT_FOUND, READ_ONLY."""
        found = self._need(name)
        if found.pause is None:
            return position_of(self._core, durable=found.queue.durable)
        return self._write({"op": "pause-", "queue": name}, durable=found.queue.durable)

    def load(self, found: NamedQueue, row: tuple[int, str]) -> None:
        """A queue is paused, as its row says."""
        since_ms, by = row
        self._set(found, Pause(since_ms=since_ms, by=by))

    def forget(self, found: NamedQueue) -> None:
        """The queue is gone."""
        self.since_ms.pop(found.name, None)

    def _need(self, name: str) -> NamedQueue:
        found = self._queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        return found

    def _apply_pause(self, op: Op) -> Touched:
        found = self._queues.get(op["queue"])
        if found is None:
            return []
        self._set(found, Pause(since_ms=op["ms"], by=op["by"]))
        return [("queue", found.name)]

    def _apply_resume(self, op: Op) -> Touched:
        found = self._queues.get(op["queue"])
        if found is None:
            return []
        self._set(found, None)
        return [("queue", found.name)]

    def _set(self, found: NamedQueue, pause: Pause | None) -> None:
        found.pause = pause
        if pause is None:
            self.since_ms.pop(found.name, None)
        else:
            self.since_ms[found.name] = pause.since_ms
        found.group.set_paused(pause is not None)
