"""Queues whose more important messages come first (`x-max-priority`).

Theory. A priority queue is one plain queue for each priority that was used so far: its *levels*. A
level has its own number, index, cursor and group, so everything that holds for a queue holds within
a level (order, requeue to the old place, acks, expiry, restarts), a message costs its index entry
and nothing else, and finding the most important message is looking at a few groups. A cursor for
each priority over one common index would have to remember which offset has which priority.

A record names the level's queue. Which one that is, is known when its template is made, because the
priority is the same for all messages of a template. A level is made with its first message, by an
op that stands in the log before it; most queues have two or three.

To consumers the queue is one: an offset that they get has the priority above its lowest 48 bits,
and so finds its way back.

Rules:

* A consumer gets nothing from a level while a higher one has something ready, or waits for a reader
  thread. When a level has run dry, the next lower one is pumped.
* A message with a higher priority than the queue has, has the queue's; one without has 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from polymq.broker.messages.message import Delivery
from polymq.broker.messages.runs import TakesApart
from polymq.broker.port.queues import Consumer
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group, Queue, Registration
from polymq.broker.queues.store import QueueStore

OFFSET_BITS: Final = 48
"""An offset has at most so many (`core_log.kernels.layout.OFFSET_MAX`)."""
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class LevelGroup(Group):
    """The group of one level."""

    __slots__ = ("levels", "priority")

    levels: Levels
    priority: int

    def pump(self) -> None:
        """See `Group.pump`; then it is the turn of what is less important."""
        super().pump()
        if not self.ready_count and not self.waiting:
            self.levels.pump_below(self.priority)


class Levels:
    """The levels of one named queue; to exchanges and consumers what a `Group` is.

    Args:
        make: writes the op that makes the level of a priority. Raises Refused.
    """

    __slots__ = (
        "_joined",
        "_make",
        "_order",
        "_queue_store",
        "groups",
        "paused",
        "priority_max",
        "registrations",
    )

    def __init__(
        self, queue_store: QueueStore, priority_max: int, make: Callable[[int], None]
    ) -> None:
        self._queue_store = queue_store
        self._make = make
        self.priority_max = priority_max
        self.paused = False
        self.groups: dict[int, LevelGroup] = {}
        """By priority."""
        self._order: list[LevelGroup] = []  # the most important first
        self.registrations: list[Registration] = []
        self._joined: dict[
            Registration, list[Registration]
        ] = {}  # a consumer's places in the levels

    # --- levels -----------------------------------------------------------------------------

    def add_level(self, priority: int, queue: Queue) -> LevelGroup:
        """Have a level: its op was applied, or stands in the snapshot."""
        cursor = Cursor(queue.index.first_offset)
        group = self._queue_store.group(queue, cursor, number=queue.number, kind=LevelGroup)
        assert isinstance(group, LevelGroup)
        group.levels = self
        group.priority = priority
        group.paused = self.paused
        self.groups[priority] = group
        self._order = [self.groups[key] for key in sorted(self.groups, reverse=True)]
        return group

    def admit_consumers(self, group: LevelGroup) -> None:
        """Let those that consume from the queue consume from a new level, too."""
        for registration in self.registrations:
            self._join(registration, group)

    def queue_for(self, priority: int) -> Queue:
        """The queue that a message of this priority goes to. Raises Refused."""
        priority = min(priority, self.priority_max)
        if priority not in self.groups:
            self._make(priority)
        return self.groups[priority].queue

    def pump_below(self, priority: int) -> None:
        """A level has nothing to deliver: the next lower one may."""
        for group in self._order:
            if group.priority < priority:
                group.pump()
                return

    def is_behind(self, priority: int) -> bool:
        """Whether something more important waits."""
        for group in self._order:
            if group.priority <= priority:
                return False
            if group.waiting or group.ready_count:
                return True
        return False

    # --- as a group -------------------------------------------------------------------------

    def add(
        self,
        consumer: Consumer,
        priority: int = 0,
        *,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> Registration:
        """See `Group.add`."""
        registration = Registration(
            self, consumer, priority, reads_long=reads_long, takes_apart=takes_apart
        )
        self.registrations.append(registration)
        for group in self._order:
            self._join(registration, group)
        return registration

    def _join(self, registration: Registration, group: LevelGroup) -> None:
        consumer = _LevelConsumer(self, group.priority, registration.consumer)
        member = group.add(
            consumer,
            registration.priority,
            reads_long=registration.reads_long,
            takes_apart=registration.takes_apart,
        )
        self._joined.setdefault(registration, []).append(member)

    def remove(self, registration: Registration) -> None:
        """See `Group.remove`."""
        self.registrations.remove(registration)
        for member in self._joined.pop(registration, ()):
            member.cancel()

    def set_paused(self, paused: bool) -> None:
        """See `Group.set_paused`."""
        self.paused = paused
        for group in self._order:
            group.set_paused(paused)

    @property
    def ready_count(self) -> int:
        """See `Group.ready_count`."""
        return sum(group.ready_count for group in self._order)

    def group_of(self, offset: int) -> tuple[Group, int]:
        """See `Group.member`."""
        return self.groups[offset >> OFFSET_BITS], offset & _OFFSET_MASK

    def settle(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.settle`."""
        group, first = self.group_of(first_offset)
        group.settle(first, count)

    def requeue(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.requeue`."""
        group, first = self.group_of(first_offset)
        group.requeue(first, count)

    def reject(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.reject`."""
        group, first = self.group_of(first_offset)
        group.reject(first, count)

    def purge(self) -> int:
        """See `Group.purge`."""
        return sum(group.purge() for group in self._order)

    def pump(self) -> None:
        """See `Group.pump`."""
        self._order[0].pump()

    def give_one(self, registration: Registration) -> None:
        """See `Group.give_one`."""
        self._give_one(registration, iter(self._order))

    def _give_one(self, registration: Registration, groups: Iterator[LevelGroup]) -> None:
        """From the first of these levels that has something."""
        for group in groups:
            if group.ready_count or group.waiting:
                getter = _LevelGetter(self, group.priority, registration, groups)
                group.give_one(Registration(group, getter, reads_long=registration.reads_long))
                return
        registration.consumer.deliver(None)  # type: ignore[arg-type]

    def rows(self) -> list[list[int]]:
        """[priority, queue number] of the levels but the lowest, for the snapshot."""
        return [
            [priority, group.queue.number] for priority, group in self.groups.items() if priority
        ]

    def all_groups(self) -> Sequence[Group]:
        """The groups of all levels."""
        return self._order


def _tagged(delivery: Delivery, priority: int) -> Delivery:
    """The delivery with offsets that say their level."""
    return dataclasses.replace(
        delivery, first_offset=priority << OFFSET_BITS | delivery.first_offset
    )


class _LevelConsumer:
    """A consumer of the queue as the consumer of one level."""

    __slots__ = ("_consumer", "_levels", "_priority")

    def __init__(self, levels: Levels, priority: int, consumer: Consumer) -> None:
        self._levels = levels
        self._priority = priority
        self._consumer = consumer

    def credit(self) -> int:
        """See `port.Consumer`: nothing while something more important waits."""
        return 0 if self._levels.is_behind(self._priority) else self._consumer.credit()

    def deliver(self, delivery: Delivery) -> None:
        """See `port.Consumer`."""
        self._consumer.deliver(_tagged(delivery, self._priority))

    def cancelled(self) -> None:
        """The queue tells its consumers itself."""


class _LevelGetter:
    """Somebody who asks for one message, at one level."""

    __slots__ = ("_groups", "_levels", "_priority", "_registration")

    def __init__(
        self,
        levels: Levels,
        priority: int,
        registration: Registration,
        groups: Iterator[LevelGroup],
    ) -> None:
        self._levels = levels
        self._priority = priority
        self._registration = registration
        self._groups = groups

    def credit(self) -> int:
        """See `port.Consumer`."""
        return 1

    def deliver(self, delivery: Any) -> None:
        """See `port.Consumer`. None: all of the level has expired, so the next one is asked."""
        if delivery is None:
            self._levels._give_one(self._registration, self._groups)
        else:
            self._registration.consumer.deliver(_tagged(delivery, self._priority))

    def cancelled(self) -> None:
        """A get is over before its queue can go."""
