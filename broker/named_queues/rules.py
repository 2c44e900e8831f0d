"""What a named queue does with its messages beyond handing them out in order.

A plain queue has no rules and pays nothing for those of others. A queue whose arguments ask for
more, or that got messages with a time to live, has one `QueueRules`, which its group asks at the
few places where they matter: a run becomes visible, something is to be delivered, a consumer gives
messages back or rejects them. How each rule works is in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polymq.broker.kernels.path import Committed, PlainTemplate
from polymq.broker.messages.dead_letter_history import Cause
from polymq.broker.moves.dead_letters import DeadLettering, DeadLetters
from polymq.broker.queues.delivery_counts import DeliveryCounts
from polymq.broker.queues.expiry import Expiry
from polymq.broker.queues.lengths import Lengths
from polymq.broker.queues.queue import Group
from polymq.broker.queues.settings import REJECT_PUBLISH_DLX, QueueSettings
from polymq.core_log.kernels.batch import Batch


class QueueRules:
    """The rules of one named queue: `queues.Rules`, and `gates.Gate` where it refuses messages.

    Args:
        all_groups: of the queue, the most important first; only this one, if not given.

    Attributes:
        expiry: None while no message of the queue has a time to live.
    """

    __slots__ = (
        "_shared",
        "dead_lettering",
        "delivery_counts",
        "expiry",
        "lengths",
        "settings",
        "single",
    )

    def __init__(
        self,
        shared: DeadLetters,
        name: str,
        settings: QueueSettings,
        group: Group,
        all_groups: Callable[[], Sequence[Group]] | None = None,
    ) -> None:
        self._shared = shared
        self.settings = settings
        self.single = settings.single_active
        self.dead_lettering = DeadLettering(shared, name, settings)
        self.expiry: Expiry | None = None
        self.lengths: Lengths | None = None
        self.delivery_counts = DeliveryCounts() if settings.delivery_limit is not None else None
        if settings.bounded:
            self.lengths = Lengths(
                shared.core, group, settings, self._too_long, all_groups or group.all_groups
            )

    def start(self) -> None:
        """The group's cursor is what it will be: a new queue, or the end of a start's fold."""
        if self.lengths is not None:
            self.lengths.start()
            self.lengths.enforce()

    def start_expiring(self, group: Group) -> None:
        """Messages of the group may expire from now on."""
        if self.expiry is None:
            self.expiry = Expiry(
                self._shared.core, group, ttl_ms=self.settings.ttl_ms, give_up=self._expired
            )
            self.expiry.look_later()

    def close(self) -> None:
        """The queue is gone."""
        if self.expiry is not None:
            self.expiry.close()
        if self.lengths is not None:
            self.lengths.close()

    # --- gates.Gate -------------------------------------------------------------------------

    def admit(self, batch: Batch, first: int, last: int) -> int:
        """See `gates.Gate`."""
        assert self.lengths is not None
        return self.lengths.admit(batch, first, last)

    def refused(self, template: PlainTemplate, batch: Batch, first: int, last: int) -> None:
        """See `gates.Gate`."""
        self._shared.counts.refused += last - first
        if self.settings.overflow == REJECT_PUBLISH_DLX:
            self.dead_lettering.refuse(template, batch, first, last)

    # --- queues.Rules -----------------------------------------------------------------------

    def rejected(self, group: Group, first: int, count: int) -> None:
        """See `queues.Rules`."""
        self.dead_lettering.give_up(group, first, count, Cause.REJECTED)

    def requeued(self, group: Group, first: int, count: int) -> None:
        """See `queues.Rules`."""
        if self.delivery_counts is None or self._shared.core.is_stopping:
            group.cursor.requeue(first, count)
        else:
            self._count(self.delivery_counts, group, first, count)
        if self.expiry is not None:
            self.expiry.look_later()
        if self.lengths is not None:
            self.lengths.enforce()

    def arrived(self, group: Group, run: Committed, first: int) -> None:
        """See `queues.Rules`."""
        if self.lengths is not None:
            self.lengths.arrived(first, run.count)
        if self.expiry is not None and self.expiry.is_late(first, run.meta.ttl_code):
            group.pump()
        else:
            group.offer(run, first)
        if self.expiry is not None:
            self.expiry.look()
        if self.lengths is not None:
            self.lengths.enforce()

    def purged(self, group: Group) -> None:
        """See `queues.Rules`."""
        if self.lengths is not None:
            self.lengths.purged()

    def deliverable(self, group: Group) -> int:
        """See `queues.Rules`."""
        ready = group.cursor.ready_count(group.queue.visible)
        if self.expiry is not None:
            ready = self.expiry.deliverable()
        if self.delivery_counts is not None and ready > 0:
            head = group.cursor.peek(ready, group.queue.visible)
            assert head is not None
            ready = min(ready, self.delivery_counts.alike(*head)[0])
        return ready

    def delivery_count(self, first: int) -> int:
        """See `queues.Rules`."""
        return 0 if self.delivery_counts is None else self.delivery_counts.alike(first, 1)[1]

    def _count(self, counts: DeliveryCounts, group: Group, first: int, count: int) -> None:
        """Give messages back, or give them up where that is once too often."""
        limit = self.settings.delivery_limit
        assert limit is not None
        if first < group.cursor.floor:  # dropped meanwhile
            count -= group.cursor.floor - first
            first = group.cursor.floor
        while count > 0:
            length, times = counts.alike(first, count)
            if times >= limit:
                self.dead_lettering.give_up(group, first, length, Cause.DELIVERY_LIMIT)
            else:
                counts.add(first, length, group.cursor.floor)
                group.cursor.requeue(first, length)
                self._shared.queue_store.recounted(group)
            first += length
            count -= length

    def _too_long(self, group: Group, first: int, count: int) -> None:
        self.dead_lettering.give_up(group, first, count, Cause.MAXLEN)

    def _expired(self, group: Group, first: int, count: int) -> None:
        self.dead_lettering.give_up(group, first, count, Cause.EXPIRED)
