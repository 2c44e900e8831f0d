"""Which offset a topic's own queues should begin at, by its settings.

A `Trim` is one topic on one occasion: made on the loop, if something may be due, and run in a
worker, because it reads entries and record heads. What was learnt is kept, so that most topics cost
a comparison per round: when the oldest message of a queue was stored, and how many bytes a topic's
messages take (each entry is read twice in its life for that: when it comes and when it goes; only
for topics with `retention_bytes`).

Rule: a `Trim` runs alone; only then may it touch what was learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.broker.topics.settings import TopicSettings
from polymq.broker.topics.topic import Topic
from polymq.core_log.errors import CorruptRecord, StorageFailed
from polymq.core_log.queue_index import QueueIndex
from polymq.core_log.retention import first_after_position, first_after_time, position_at, sizes
from polymq.core_log.store import Store

SLACK_PART: Final = 20
"""A message may stay a twentieth of its time longer, so that a busy queue is not searched in each
round ..."""
SLACK_MS_MAX: Final = 60_000
"""... and never longer than a minute."""
NEVER_MS: Final = 1 << 62
STEP_COUNT: Final = 64
"""Messages that go at a time while the queue with the oldest ones is looked for."""


@dataclass(slots=True)
class Counted:
    """The bytes of a queue's messages [first, end)."""

    first: int
    end: int
    size: int


@dataclass(slots=True)
class Learnt:
    """What is known of a topic's queues, by their numbers."""

    oldest_ms: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(first offset, when its message was stored)."""
    counted: dict[int, Counted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quiet:
    """Until when a topic need not be looked at, as long as its settings are these, and, if its size
    counts, its queues end at these offsets."""

    settings: TopicSettings
    due_ms: int
    seen: tuple[int, ...]

    def applies(self, topic: Topic, now_ms: int) -> bool:
        """Whether nothing can be due."""
        if self.settings is not topic.settings or now_ms >= self.due_ms:
            return False
        if not self.seen:
            return True
        return self.seen == tuple(
            queue.index.stored_offset
            for queue in topic.queues
            if isinstance(queue.index, QueueIndex)
        )


class TopicTrims:
    """Makes `Trim`s for the topics of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.errors_count = 0
        self.looked_count = 0
        """Topics that a glance was not enough for."""
        self._learnt: dict[str, Learnt] = {}
        self._quiet: dict[str, Quiet] = {}

    def due(
        self,
        topic: Topic,
        now_ms: int,
        before: int,
    ) -> Trim | None:
        """The trim of a topic if something may be due.

        Args:
            before: messages before this log position go earlier than due; 0 for none.
        """
        settings = topic.settings
        quiet = self._quiet.get(topic.name)
        if quiet is not None and not before and quiet.applies(topic, now_ms):
            return None
        self.looked_count += 1
        keep_ms = settings.retention_seconds * 1000
        if not keep_ms and not settings.retention_bytes:
            self._learnt.pop(topic.name, None)
            self._quiet[topic.name] = Quiet(settings, NEVER_MS, ())
            return None
        own = [queue.index for queue in topic.queues if isinstance(queue.index, QueueIndex)]
        learnt = self._learnt.setdefault(topic.name, Learnt())
        due_ms = NEVER_MS
        if keep_ms:
            slack_ms = min(keep_ms // SLACK_PART, SLACK_MS_MAX)
            due_ms = min(_oldest_ms(index, learnt, now_ms) for index in own) + keep_ms + slack_ms
        seen = tuple(index.stored_offset for index in own) if settings.retention_bytes else ()
        counted = quiet is not None and quiet.settings is settings and quiet.seen == seen
        if before or due_ms <= now_ms or (seen and not counted):
            self._quiet[topic.name] = Quiet(settings, min(due_ms, now_ms), seen)
            cutoff_ms = now_ms - keep_ms if keep_ms else 0
            return Trim(self, topic.name, own, learnt, cutoff_ms, settings.retention_bytes, before)
        self._quiet[topic.name] = Quiet(settings, due_ms, seen)
        return None


def _oldest_ms(index: QueueIndex, learnt: Learnt, now_ms: int) -> int:
    """When the oldest message was stored: 0 if that has to be looked up; what is not stored yet
    counts as of now."""
    if index.first_offset >= index.stored_offset:
        return now_ms
    offset, oldest_ms = learnt.oldest_ms.get(index.number, (-1, 0))
    return oldest_ms if offset == index.first_offset else 0


@dataclass(slots=True)
class Trim:
    """One topic's queues on one occasion. See `TopicTrims.due`."""

    owner: TopicTrims
    name: str
    indexes: Sequence[QueueIndex]
    learnt: Learnt
    cutoff_ms: int
    bytes_max: int
    before: int

    def find(self) -> list[tuple[int, int]]:
        """(queue id, first offset) of each queue that should begin later. A worker's thread. What
        cannot be read is counted and stays."""
        firsts = [index.first_offset for index in self.indexes]
        for queue_id, index in enumerate(self.indexes):
            try:
                firsts[queue_id] = self._by_time_and_position(index)
            except (CorruptRecord, StorageFailed):
                self.owner.errors_count += 1
        if self.bytes_max:
            try:
                self._by_size(firsts)
            except (CorruptRecord, StorageFailed):
                self.owner.errors_count += 1
        return [
            (queue_id, first)
            for queue_id, first in enumerate(firsts)
            if first > self.indexes[queue_id].first_offset
        ]

    def _by_time_and_position(self, index: QueueIndex) -> int:
        store, first = self.owner.store, index.first_offset
        if self.cutoff_ms and first < index.stored_offset:
            first = first_after_time(store, index, self.cutoff_ms)
            if first < index.stored_offset:
                stored_ms = store.store_ms_at(position_at(index, first))
                self.learnt.oldest_ms[index.number] = (first, stored_ms)
        if self.before:
            first = max(first, first_after_position(index, self.before))
        return first

    def _by_size(self, firsts: list[int]) -> None:
        """Let the oldest go, whichever queue they are in, until the rest is small enough."""
        counts = [self._count(*pair) for pair in zip(self.indexes, firsts, strict=True)]
        excess = sum(counted.size for counted in counts) - self.bytes_max
        heads = [
            position_at(index, counted.first) if counted.first < counted.end else None
            for index, counted in zip(self.indexes, counts, strict=True)
        ]
        while excess > 0 and any(head is not None for head in heads):
            queue_id = min((head, at) for at, head in enumerate(heads) if head is not None)[1]
            index, counted = self.indexes[queue_id], counts[queue_id]
            end = min(counted.first + STEP_COUNT, counted.end)
            for size in sizes(index, counted.first, end):
                if excess <= 0:
                    break
                counted.first += 1
                counted.size -= size
                excess -= size
            left = counted.first < counted.end
            heads[queue_id] = position_at(index, counted.first) if left else None
        for queue_id, counted in enumerate(counts):
            firsts[queue_id] = max(firsts[queue_id], counted.first)

    def _count(self, index: QueueIndex, first: int) -> Counted:
        """The bytes of the queue's stored messages from `first` on."""
        counted = self.learnt.counted.setdefault(index.number, Counted(first, first, 0))
        if counted.first > first:  # what was to go could not be noted: count anew
            counted.first = counted.end = first
            counted.size = 0
        while counted.first < min(first, counted.end):
            gone = sizes(index, counted.first, min(first, counted.end))
            if not gone:  # they went while the topic had no such limit: count anew
                counted.first = counted.end = first
                counted.size = 0
                break
            counted.first += len(gone)
            counted.size -= sum(gone)
        counted.first = max(counted.first, first)
        counted.end = max(counted.end, first)
        while counted.end < index.stored_offset:
            come = sizes(index, counted.end, index.stored_offset)
            counted.end += len(come)
            counted.size += sum(come)
        return counted
