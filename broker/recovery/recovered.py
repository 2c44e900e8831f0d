"""After a start: what replicas may not have yet is held back again.

A message of a topic with `min_in_sync` that was on this disk only when the broker stopped was
neither acked nor seen. It stays so until replicas have it: shown at once, it could be lost with
this disk, and its offset given to another message.

The broker knows up to where replicas had the log (`Core`'s `in_sync`). Behind that place the log is
read once, for messages of such topics; each queue that holds one ends before it, for its consumers
and for readers by offset, until the in-sync point passes what was there at the start.
"""

from __future__ import annotations

from polymq.broker.core import Core
from polymq.broker.durability import FLUSHED, IN_SYNC, Durability
from polymq.broker.queues.queue import Queue
from polymq.broker.queues.store import QueueStore
from polymq.broker.topics.topics import Topics
from polymq.core_log.record import SYSTEM_TOPIC


def wait_for_replicas_again(core: Core, queue_store: QueueStore, topics: Topics) -> None:
    """Let queues end before messages that replicas may not have. Raises CorruptRecord."""
    points = core.commits.points
    low = min(points[IN_SYNC:])
    classes = {
        topic.stored.encode(): topic.settings.read_point
        for topic in topics.topics.values()
        if topic.settings.read_point > FLUSHED
    }
    if low >= core.log.appended or not classes:
        return
    held: dict[int, tuple[int, Durability]] = {}
    durability = FLUSHED
    for record in core.store.replay(low):
        if record.topic != SYSTEM_TOPIC:  # else it may name more queues of the one before it
            durability = classes.get(record.topic, FLUSHED)
        if durability > FLUSHED and record.position >= points[durability]:
            for number, offset in record.targets:
                first, strongest = held.get(number, (offset, durability))
                held[number] = first, max(strongest, durability)
    queues = {queue.number: queue for topic in topics.topics.values() for queue in topic.queues}
    queues |= {group.queue.number: group.queue for group in queue_store.groups.values()}
    for number, (first, durability) in held.items():
        if number in queues:
            _wait_again(core, queues[number], first, durability)


def _wait_again(core: Core, queue: Queue, first: int, durability: Durability) -> None:
    """Let the queue end before offset `first` until all that it has now is in sync."""
    end = queue.index.end_offset
    delivered = max((group.cursor.next for group in queue.groups), default=first)
    queue.flushed = min(max(first, queue.index.first_offset), end)
    queue.visible = min(max(queue.flushed, delivered), end)  # what was delivered was in sync
    queue.held_by = durability
    queue.held_until = queue.blocked_until = core.log.appended
    core.commits.when(core.log.appended, durability, _show, queue, end, urgent=False)


def _show(queue: Queue, end: int) -> None:
    queue.visible = max(queue.visible, end)
    queue.show_to(end)
    for group in queue.groups:
        group.pump_later()
