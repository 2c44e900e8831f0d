"""How long a queue may be, in messages and in bytes, and what gives way (`x-overflow`).

What counts is ready: what is delivered and not acknowledged does not (as in RabbitMQ). Bytes are
those of the records as they are stored: body, properties, and about 150 of the record's own.

* `drop-head`: when messages became visible and were offered to the consumers that wait, the oldest
  go until the rest fits; also when a consumer gives messages back.
* `reject-publish`: a full queue takes no more. The message goes to its other queues, and the
  publisher is told. `reject-publish-dlx` makes it a dead letter, too.

The levels of a priority queue have their bounds in common: each counts its own, and the least
important give way first, the oldest of them before the others. (RabbitMQ drops at the head there,
too, which is the most important message; its documentation warns of it.)

Rules:

* Messages are counted by the cursor, and bytes by `ReadyBytes`; nothing is kept for a message.
  While the count of bytes is not known, nobody is dropped or rejected for it.
* A call costs no more than what it drops, and drops at most `pump_count_max`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polymq.broker.core import Core
from polymq.broker.queues.heads import LOOK_COUNT, Head, sizes_of
from polymq.broker.queues.queue import Group
from polymq.broker.queues.ready_bytes import ReadyBytes, count_of
from polymq.broker.queues.settings import DROP_HEAD, QueueSettings
from polymq.core_log.kernels.batch import BODY_SIZE, COLUMNS, EXTRA_SIZE, Batch

RECORD_OVERHEAD_BYTES = 150
"""Of a message that is not a record yet, for its place in a queue that is bounded in bytes."""


class Lengths:
    """The bounds of one queue, as one of its groups counts for them: most queues have one.

    Args:
        give_up: takes (group, first, count) that were taken from the cursor.
        all_groups: of the queue, the most important first.
    """

    __slots__ = (
        "_all_groups",
        "_core",
        "_give_up",
        "_group",
        "_head",
        "_ready",
        "_settings",
    )

    def __init__(
        self,
        core: Core,
        group: Group,
        settings: QueueSettings,
        give_up: Callable[[Group, int, int], None],
        all_groups: Callable[[], Sequence[Group]],
    ) -> None:
        self._all_groups = all_groups
        self._core = core
        self._group = group
        self._settings = settings
        self._give_up = give_up
        self._head = Head(core, group, self.enforce)
        self._ready: ReadyBytes | None = None  # of a queue with a bound on bytes

    @property
    def bytes(self) -> int:
        """Of what is ready in this group; 0 where there is no bound on them."""
        return 0 if self._ready is None else self._ready.bytes

    def close(self) -> None:
        """The queue is gone."""
        self._head.close()
        self._group.cursor.watch = None
        self._give_up = lambda _group, _first, _count: None

    def start(self) -> None:
        """Count what is in the queue. Reads the index: at a start, or of a new queue."""
        if self._settings.bytes_max is None:
            return
        group = self._group
        read = self._core.reading.entries
        self._ready = ReadyBytes(read, group.queue, group.cursor, self.enforce)
        group.cursor.watch = self._ready
        self._ready.count_now()

    def arrived(self, first: int, count: int) -> None:
        """Messages became visible."""
        if self._ready is not None:
            self._ready.came(first, count)

    def purged(self) -> None:
        """Nothing is ready any more."""
        if self._ready is not None:
            self._ready.purged()

    def admit(self, batch: Batch, first: int, last: int) -> int:
        """How many of the rows [first, last) fit, from the first on. What was appended and is not
        visible yet counts."""
        settings, parts = self._settings, self._parts()
        fits = last - first
        if settings.length_max is not None:
            waiting = sum(part._appended_count() for part in parts)
            fits = min(fits, max(0, settings.length_max - waiting))
        if settings.bytes_max is None or not all(part._is_known() for part in parts):
            return fits
        used = sum(part._appended_bytes() for part in parts)
        for row in range(first, first + fits):
            at = row * COLUMNS
            used += batch.rows[at + BODY_SIZE] + batch.rows[at + EXTRA_SIZE]
            used += RECORD_OVERHEAD_BYTES
            if used > settings.bytes_max:
                return row - first
        return fits

    def enforce(self) -> None:
        """Drop the oldest until the rest fits."""
        if self._settings.overflow != DROP_HEAD:
            return
        parts = self._parts()
        budget = self._core.limits.pump_count_max
        while budget > 0:
            part, count = self._excess(parts, budget)
            if not count:
                return
            group = part._group
            taken = group.cursor.take(count, group.queue.visible)
            assert taken is not None
            self._give_up(group, taken[0], taken[1])
            budget -= taken[1]
        self._core.reading.schedule(self.enforce)

    def _parts(self) -> Sequence[Lengths]:
        """Those that count for the same bounds, the least important first."""
        groups = self._all_groups()
        if len(groups) == 1:
            return (self,)
        found = [group.rules.lengths for group in reversed(groups) if group.rules is not None]
        return [part for part in found if part is not None]

    def _is_known(self) -> bool:
        """Whether `bytes` is known now."""
        return self._ready is None or self._ready.is_known

    def _ready_count(self) -> int:
        return self._group.cursor.ready_count(self._group.queue.visible)

    def _appended_count(self) -> int:
        """Messages that are ready or will be."""
        return self._group.cursor.ready_count(self._group.queue.index.end_offset)

    def _appended_bytes(self) -> int:
        """Their bytes."""
        queue = self._group.queue
        unseen = queue.index.read_hot(queue.visible, queue.index.end_offset - queue.visible)
        return self.bytes + sum(sizes_of(unseen or b""))

    def _excess(self, parts: Sequence[Lengths], most: int) -> tuple[Lengths, int]:
        """How many messages at the head of which part have to go, as far as is known: of its first
        stretch."""
        settings = self._settings
        ready = sum(part._ready_count() for part in parts)
        victim = next((part for part in parts if part._ready_count()), self)
        if settings.length_max is not None and ready > settings.length_max:
            return victim, min(ready - settings.length_max, victim._ready_count(), most)
        if settings.bytes_max is None or not all(part._is_known() for part in parts):
            return victim, 0
        excess = sum(part.bytes for part in parts) - settings.bytes_max
        return victim, victim._count_of(excess, most) if excess > 0 else 0

    def _count_of(self, excess: int, most: int) -> int:
        """How many messages at the head have so many bytes; 0 if that is not known now."""
        group = self._group
        head = group.cursor.peek(min(most, LOOK_COUNT), group.queue.visible)
        if head is None:
            return 0
        entries = self._head.entries(*head)
        if entries is None:
            return 0
        return count_of(sizes_of(entries), excess)
