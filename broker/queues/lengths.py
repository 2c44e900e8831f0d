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

* Messages are counted by the cursor. Bytes are counted here, with one look into the index for each
  stretch that becomes ready or is taken; nothing is kept for a message. Where entries have to come
  from the disk the count is not known until they are there, and nobody is dropped or rejected for
  it meanwhile.
* A call costs no more than what it drops, and drops at most `pump_count_max`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polymq.broker.core import Core
from polymq.broker.queues.heads import LOOK_COUNT, Head, sizes_of
from polymq.broker.queues.queue import Group
from polymq.broker.queues.settings import DROP_HEAD, QueueSettings
from polymq.core_log.kernels.batch import BODY_SIZE, COLUMNS, EXTRA_SIZE, Batch

RECORD_OVERHEAD_BYTES = 150
"""Of a message that is not a record yet, for its place in a queue that is bounded in bytes."""
COUNT_ENTRIES = 65_536
"""Entries of one read while a start counts what is in a queue: 2 MiB."""


class Lengths:
    """The bounds of one queue, as one of its groups counts for them: most queues have one.

    Args:
        give_up: takes (group, first, count) that were taken from the cursor.
        all_groups: of the queue, the most important first.

    Attributes:
        bytes: of what is ready in this group; 0 where there is no bound on them.
    """

    __slots__ = (
        "_all_groups",
        "_core",
        "_give_up",
        "_group",
        "_head",
        "_settings",
        "_unknown",
        "bytes",
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
        self._unknown = 0  # stretches whose bytes are being read
        self.bytes = 0

    def close(self) -> None:
        """The queue is gone."""
        self._head.close()
        self._give_up = lambda _group, _first, _count: None

    def start(self) -> None:
        """Count what is in the queue. Reads the index: at a start, or of a new queue."""
        cursor = self._group.cursor
        if self._settings.bytes_max is None:
            return
        cursor.watch = self._changed
        self.bytes = sum(self._bytes_now(first, count) for first, count in cursor.requeued())
        self.bytes += self._bytes_now(cursor.next, self._group.queue.visible - cursor.next)

    def arrived(self, first: int, count: int) -> None:
        """Messages became visible."""
        if self._settings.bytes_max is not None:
            self._changed(first, count, 1)

    def purged(self) -> None:
        """Nothing is ready any more."""
        self.bytes = 0

    def admit(self, batch: Batch, first: int, last: int) -> int:
        """How many of the rows [first, last) fit, from the first on. What was appended and is not
        visible yet counts."""
        settings, parts = self._settings, self._parts()
        fits = last - first
        if settings.length_max is not None:
            waiting = sum(part._appended_count() for part in parts)
            fits = min(fits, max(0, settings.length_max - waiting))
        if settings.bytes_max is None or any(part._unknown for part in parts):
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
        if settings.bytes_max is None or any(part._unknown for part in parts):
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
        count = 0
        for size in sizes_of(entries):
            count += 1
            excess -= size
            if excess <= 0:
                break
        return count

    # --- counting bytes ---------------------------------------------------------------------

    def _changed(self, first: int, count: int, sign: int) -> None:
        """Messages became ready (1) or were taken (-1): `Cursor.watch`."""
        entries = self._group.queue.index.read_hot(first, count)
        if entries is not None:
            self.bytes += sign * sum(sizes_of(entries))
            return
        self._unknown += 1
        self._read(first, count, sign)

    def _read(self, first: int, count: int, sign: int) -> None:
        def took(first: int, entries: bytes | None) -> None:
            index = self._group.queue.index
            found = len(entries or b"") // index.entry_size
            self.bytes += sign * sum(sizes_of(entries or b""))
            if 0 < found < count:
                self._changed(first + found, count - found, sign)
            self._unknown -= 1
            self.enforce()

        self._core.reading.entries(self._group.queue.index, first, count, took)

    def _bytes_now(self, first: int, count: int) -> int:
        """The bytes of a stretch, read from wherever it is."""
        index = self._group.queue.index
        total = 0
        while count > 0:
            most = min(count, COUNT_ENTRIES)
            entries = index.read_hot(first, most)
            if entries is None:
                entries = index.read_cold(first, most)
            found = len(entries) // index.entry_size
            if not found:
                break
            total += sum(sizes_of(entries))
            first += found
            count -= found
        return total
