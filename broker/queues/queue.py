"""Queues, the groups that read them, and how messages reach consumers.

A queue is an index over the log: fixed-size entries, no bodies. A group reads it with one cursor
and hands messages to its consumers in turn. An AMQP queue has one group with any number of
consumers; an MQTT filter queue has a group per session; a webhook subscription has its own.

Two ways lead to a consumer:

* *Live.* The run that was just committed is still in memory; a group that stands at the tail, with
  credit, gets it as it is.
* *Catch-up.* The group reads its entries and the records behind them: from the log's tail in
  memory, or, where that is gone, in a reader thread. Meanwhile nothing overtakes: the group waits.

Rule: a consumer never gets more than its credit, and one call hands out at most `pump_count_max`
messages and `pump_bytes_max` bytes, and no more than is left of the iteration's share
(`pacing/share.py`); then other work gets its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from polymq.broker.durability import IN_SYNC, Durability
from polymq.broker.kernels.path import Committed, QueueEnd
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.message import Delivery
from polymq.broker.messages.readers import Reading
from polymq.broker.messages.runs import RunMeta, TakesApart
from polymq.broker.pacing.costs import CONSUMER_COST, MESSAGE_COST, RUN_COST
from polymq.broker.port.queues import Consumer
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.delivery_counts import DeliveryCounts
from polymq.broker.queues.gates import Gate
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.queue_index import Index, MemoryIndex

if TYPE_CHECKING:
    from polymq.broker.queues.lengths import Lengths
    from polymq.broker.queues.priorities import Levels


class Queue(QueueEnd):
    """An index and its readers.

    Attributes:
        number: the queue's number, never reused.
        reader: its group, or its `Groups` where there are several; None where nobody reads.
        visible: one past the last offset that consumers may see.
        flushed: one past the last offset that readers by offset may see.
        expiring: messages with a time to live of their own may be in it.
        name: of a named queue; else empty.
        levels: of a priority queue, whose lowest this is; None for all other queues.
        gate: lets messages in or not; None where the queue takes all.
        on_expiring: told before the first of them comes, so that it makes `expiring` true; None
            for a queue that does not look at them.
        read_point: what readers by offset stop at: FLUSHED, or more for a topic's own queue if the
            topic asks for replicas.
        held_until, held_by: log position of the last message that waits for replicas, and its
            class: a later message of a weaker class waits with it.
        blocked_until: log position of the last message that waits for a flush; a later message
            of a weaker class waits with it, so that nothing overtakes within the queue.
    """

    __slots__ = (
        "expiring",
        "gate",
        "held_by",
        "held_until",
        "levels",
        "name",
        "on_expiring",
    )

    reader: Group | Groups | None

    def __init__(self, number: int, index: Index) -> None:
        QueueEnd.__init__(self, number, index)
        self.expiring = False
        self.name = ""
        self.on_expiring: Callable[[Queue], None] | None = None
        self.gate: Gate | None = None
        self.levels: Levels | None = None
        self.held_until = 0
        self.held_by: Durability = IN_SYNC

    @property
    def durable(self) -> bool:
        """Whether it survives a restart."""
        return not isinstance(self.index, MemoryIndex)

    @property
    def groups(self) -> Sequence[Group]:
        """Its readers."""
        reader = self.reader
        if reader is None:
            return ()
        return reader if isinstance(reader, Groups) else (reader,)

    def held(self, points: Sequence[int]) -> bool:
        """Whether a message in it waits for replicas."""
        return self.held_until > points[self.held_by]

    def append(self, spans: Sequence[Span]) -> None:
        """Take the entries of records that were just appended. They are not visible yet."""
        for span in spans:
            self.index.append(span.entries)

    def trim(self) -> None:
        """Let go of entries that every group has settled (queues in memory)."""
        if isinstance(self.index, MemoryIndex) and self.groups:
            self.index.forget(min(group.cursor.floor for group in self.groups))


class Rules(Gate, Protocol):
    """What a group does beyond first in, first out. Implemented by `QueueRules`."""

    lengths: Lengths | None
    """The bounds; None where there are none."""

    def start(self) -> None:
        """The group's cursor is what it will be: a new queue, or the end of a start's fold."""

    def start_expiring(self, group: Group) -> None:
        """Messages of the group may expire from now on."""

    def close(self) -> None:
        """The queue is gone."""

    def rejected(self, group: Group, first: int, count: int) -> None:
        """A consumer does not want these messages, which it holds."""

    def requeued(self, group: Group, first: int, count: int) -> None:
        """A consumer gives these messages back."""

    def arrived(self, group: Group, run: Committed, first: int) -> None:
        """A run became visible at offset `first`: offer it, and see to the bounds."""

    def purged(self, group: Group) -> None:
        """Everything that was ready is settled."""

    single: bool
    """Whether one consumer is served alone."""
    delivery_counts: DeliveryCounts | None
    """Counts what was given back; None where that has no limit."""

    def delivery_count(self, first: int) -> int:
        """How often a message was given back before."""

    def deliverable(self, group: Group) -> int:
        """How many messages at the head may be delivered in one stretch; below zero: not known
        yet, the group is pumped when it is."""


SAMPLE_COUNT: Final = 8
"""Of many groups of one queue, those that are asked what a run costs them."""


class _Gone:
    """In a cancelled hold, instead of its consumer: the consumer knows the hold, and two that know
    each other stay in memory until a garbage collection."""

    def credit(self) -> int:
        return 0

    def deliver(self, delivery: Delivery) -> None:
        raise AssertionError("a delivery to a consumer that has left")

    def cancelled(self) -> None:
        """It knows."""


_GONE: Final = _Gone()


class Registration:
    """A consumer's place in a group: the `QueueConsumer` of the port."""

    __slots__ = ("active", "consumer", "group", "priority", "reads_long", "takes_apart")

    def __init__(
        self,
        group: Group | Levels,
        consumer: Consumer,
        priority: int = 0,
        *,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> None:
        self.group = group
        self.priority = priority
        self.reads_long = reads_long
        self.takes_apart = takes_apart
        self.consumer: Consumer = consumer
        self.active = True

    @property
    def paused(self) -> bool:
        """See `QueueConsumer.paused`."""
        return self.group.paused

    def settle(self, first_offset: int, count: int) -> None:
        """These are done with."""
        self.group.settle(first_offset, count)

    def requeue(self, first_offset: int, count: int) -> None:
        """Back to their places; others may get them at once."""
        self.group.requeue(first_offset, count)

    def reject(self, first_offset: int, count: int) -> None:
        """The consumer does not want them."""
        self.group.reject(first_offset, count)

    def ready(self) -> None:
        """Credit has grown."""
        self.group.pump()

    def cancel(self) -> None:
        """No more deliveries to this consumer."""
        if self.active:
            self.active = False
            self.group.remove(self)
            self.consumer = _GONE
            self.takes_apart = None

    def end(self) -> None:
        """The queue is gone; its group has no consumers any more."""
        consumer, self.consumer = self.consumer, _GONE
        self.takes_apart = None
        self.active = False
        consumer.cancelled()


class Group:
    """One cursor on one queue, and the consumers that share it.

    Args:
        number: the group's number in the state, or 0 if it does not survive a restart.
        moved: told when something was delivered or settled, to note it in the next record of acks.

    Attributes:
        rules: what the queue's arguments ask for; None for a plain group.
        ranked: not all consumers are served alike.
        has_left: the group is gone.
        paused: an operator's order: nothing is handed out.
        handing_over: a single active consumer has left and holds messages: the next one gets
            nothing before they are settled or given back, because they come first.
        reading_from: while it is `waiting`, the offset of the first message that is being read.
    """

    __slots__ = (
        "_pump_count",
        "_pumping",
        "_reading",
        "_scheduled",
        "_turn",
        "cursor",
        "handing_over",
        "has_left",
        "moved",
        "number",
        "paused",
        "queue",
        "ranked",
        "reading",
        "reading_from",
        "registrations",
        "rules",
    )

    def __init__(
        self,
        queue: Queue,
        cursor: Cursor,
        *,
        number: int,
        reading: Reading,
        moved: Callable[[Group], None],
    ) -> None:
        self.queue = queue
        self.cursor = cursor
        self.number = number
        self.reading = reading
        self.moved = moved
        self.rules: Rules | None = None
        self.ranked = False
        self.handing_over = False
        self.has_left = False
        self.paused = False
        self.registrations: Sequence[
            Registration
        ] = ()  # replaced, never changed in place: most have none
        self._turn = 0  # whose turn it is among `registrations`
        self._reading = False  # a reader thread is at work: nothing may overtake
        self.reading_from = 0
        self._pumping = False
        self._scheduled = False
        self._pump_count = reading.limits.pump_count_max  # less, where that was too much at once
        reader = queue.reader
        if reader is None:
            queue.reader = self
        elif isinstance(reader, Groups):
            reader.append(self)
        else:
            queue.reader = Groups((reader, self))

    # --- consumers ------------------------------------------------------------------------

    def add(
        self,
        consumer: Consumer,
        priority: int = 0,
        *,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> Registration:
        """A consumer joins; it gets nothing before its `ready()` or the next message.

        Args:
            priority: those with a higher one are served first, as long as they have credit.
            reads_long, takes_apart: see `QueuePort.consume`.
        """
        registration = Registration(
            self, consumer, priority, reads_long=reads_long, takes_apart=takes_apart
        )
        single = self.rules is not None and self.rules.single
        self.ranked = single or self.ranked or priority != 0
        if not priority and not self.ranked:
            self.registrations = [*self.registrations, registration]
            return registration
        registrations = list(self.registrations)
        at = len(registrations)
        first = 1 if single else 0  # who is served alone stays so
        while at > first and registrations[at - 1].priority < priority:
            at -= 1
        registrations.insert(at, registration)
        self.registrations = registrations
        return registration

    def remove(self, registration: Registration) -> None:
        """A consumer leaves."""
        if (
            self.rules is not None
            and self.rules.single
            and self.registrations[:1] == [registration]
        ):
            self.handing_over = self.cursor.outstanding_count > 0
        self.registrations = [other for other in self.registrations if other is not registration]
        if self.ranked:  # somebody else's turn has come
            self.pump_later()

    def leave(self) -> None:
        """The group itself goes."""
        self.has_left = True
        queue = self.queue
        if isinstance(queue.reader, Groups):
            queue.reader.remove(self)
        else:
            assert queue.reader is self
            queue.reader = None
        for registration in self.registrations:
            registration.active = False
        self.registrations = ()

    @property
    def ready_count(self) -> int:
        """Messages that wait for a consumer."""
        return self.cursor.ready_count(self.queue.visible)

    @property
    def waiting(self) -> bool:
        """Whether a reader thread is at work for it: what is live would overtake."""
        return self._reading

    def set_paused(self, paused: bool) -> None:
        """Hand out nothing, or what waits. What a reader thread is getting counts as not handed
        out."""
        self.paused = paused
        self.pump_later()

    # --- settling -------------------------------------------------------------------------

    def all_groups(self) -> Sequence[Group]:
        """This one (see `priorities.Levels`)."""
        return (self,)

    def group_of(self, offset: int) -> tuple[Group, int]:
        """The group and its offset that an offset of the queue means (see `priorities.Levels`)."""
        return self, offset

    def settle(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.settle`."""
        self.cursor.settle(first_offset, count)
        self.moved(self)
        if self.handing_over:
            self.pump_later()

    def requeue(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.requeue`."""
        if self.rules is not None:
            self.rules.requeued(self, first_offset, count)
        else:
            self.cursor.requeue(first_offset, count)
        self.pump_later()

    def reject(self, first_offset: int, count: int) -> None:
        """See `QueueConsumer.reject`."""
        if self.rules is None:
            self.reading.rejected_count += count
            self.reading.say_why(self, first_offset, count, "rejected")
            self.settle(first_offset, count)
        else:
            self.rules.rejected(self, first_offset, count)

    def purge(self) -> int:
        """Settle everything that waits."""
        count = self.cursor.settle_ready(self.queue.visible)
        if self.rules is not None:
            self.rules.purged(self)
        self.moved(self)
        return count

    # --- delivering -----------------------------------------------------------------------

    def arrival_cost(self) -> int:
        """What `arrived` costs, in the units of `broker.pacing.costs`."""
        return CONSUMER_COST if self.registrations else 1

    def arrived(self, run: Committed, first: int) -> None:
        """A run became visible at offset `first`."""
        if self.rules is not None:
            self.rules.arrived(self, run, first)
        else:
            self.offer(run, first)

    def offer(self, run: Committed, first: int) -> None:
        """Hand a run that is still in memory to the consumers, if it is their turn."""
        cursor = self.cursor
        if not self.registrations or self._reading or self.paused:
            return
        if (
            cursor.next != first
            or cursor.has_requeued()
            or self._pumping
            or run.meta.rewritten  # `_deliver` bounds how much at once
        ):
            self.pump()
            return
        done = 0
        while done < run.count:
            turn = self._next_registration(run.count - done)
            if turn is None:
                return
            registration, limit = turn
            if registration.takes_apart is not None and registration.takes_apart(run.meta):
                cost = run.count * MESSAGE_COST + run.end - run.start
                if run.parts is not None or cost > self.reading.share.left:
                    self.pump()  # `_deliver` bounds how much at once
                    return
                self.reading.share.spend(cost)
            taken = cursor.take(limit, first + run.count)
            assert taken is not None
            offset, count, redelivered = taken
            self.moved(self)
            if redelivered:
                self.reading.redelivered_count += count
            delivery = Delivery(run.slice(offset - first, count), offset, count, redelivered)
            if self.reading.delivery_times.due:
                self.reading.delivery_times.note_delivery(self, delivery)
            registration.consumer.deliver(delivery)
            done = cursor.next - first
            if cursor.has_requeued():  # given back during the call: old order first
                self.pump_later()
                return

    def pump(self) -> None:
        """Deliver what waits, as far as credit and this call's share go."""
        if self._pumping or self._reading or self.paused:
            return
        if self.rules is None and not self.cursor.ready_count(self.queue.visible):
            return
        if self.reading.share.left <= 0:
            self.pump_later()
            return
        self._pumping = True
        try:
            budget = self._pump_count
            while budget > 0:
                ready = self._deliverable()
                turn = self._next_registration(min(ready, budget)) if ready > 0 else None
                if turn is None:
                    return
                registration, limit = turn
                if not self._take_and_deliver(registration, limit) or self._scheduled:
                    return
                budget -= limit
            self.pump_later()
        finally:
            self._pumping = False

    def give_one(self, registration: Registration) -> None:
        """One message to a consumer outside of the turn (AMQP get), or None if there is none."""
        if self.paused:
            registration.consumer.deliver(None)  # type: ignore[arg-type]
            return
        ready = -1 if self._reading else self._deliverable()
        if ready < 0:  # what is being read comes first
            self.reading.schedule(lambda: self.give_one(registration))
        elif not ready:
            registration.consumer.deliver(None)  # type: ignore[arg-type]
        else:
            self._take_and_deliver(registration, 1)

    def _deliverable(self) -> int:
        """How many messages may be delivered; below zero: not known yet."""
        if self.rules is not None:
            return self.rules.deliverable(self)
        return self.cursor.ready_count(self.queue.visible)

    def pump_later(self) -> None:
        """Pump in a later loop iteration, when it is this group's turn."""
        if not self._scheduled and self.registrations:
            self._scheduled = True
            self.reading.share.wait(self._pump_scheduled)

    def run_cost(self) -> int:
        """What one run costs that it hands out, in the units of `broker.pacing.costs`."""
        return RUN_COST

    def _pump_scheduled(self) -> None:
        self._scheduled = False
        self.pump()

    def _next_registration(self, ready: int) -> tuple[Registration, int] | None:
        """Whose turn it is, and how many it gets: an equal share of what is ready."""
        if self.ranked:
            return self._next_by_rank(ready)
        registrations = self.registrations
        count = len(registrations)
        if count == 1:
            credit = registrations[0].consumer.credit()
            return (registrations[0], min(credit, ready)) if credit > 0 else None
        share = max(1, ready // count) if count else 0
        for step in range(count):
            at = (self._turn + step) % count
            credit = registrations[at].consumer.credit()
            if credit > 0:
                self._turn = at + 1
                return registrations[at], min(credit, share)
        return None

    def _next_by_rank(self, ready: int) -> tuple[Registration, int] | None:
        """The same where one consumer is served alone, or some before others: those with the
        highest priority that have credit, in turn."""
        registrations = self.registrations
        if self.rules is not None and self.rules.single:
            if self.handing_over:
                if self.cursor.outstanding_count:
                    return None
                self.handing_over = False
            registrations = registrations[:1]
        at = 0
        while at < len(registrations):
            equal = [
                registration
                for registration in registrations[at:]
                if registration.priority == registrations[at].priority
            ]
            for step in range(len(equal)):
                registration = equal[(self._turn + step) % len(equal)]
                credit = registration.consumer.credit()
                if credit > 0:
                    self._turn += step + 1
                    return registration, min(credit, max(1, ready // len(equal)))
            at += len(equal)
        return None

    def _take_and_deliver(self, registration: Registration, limit: int) -> bool:
        """Hand the next messages to the consumer. False if a reader thread has to get them first,
        or there are none."""
        queue = self.queue
        if self.cursor.floor < queue.index.first_offset:
            self.cursor.skip_to(queue.index.first_offset)
        taken = self.cursor.take(limit, queue.visible)
        if taken is None:
            return False
        first, count, _ = taken
        self._reading = True
        self.reading_from = first
        self.reading.read(
            queue.index,
            first,
            count,
            self.reading.limits.pump_bytes_max,
            lambda records, found: self._deliver(registration, taken, records, found),
            large_as_view=True,
        )
        return not self._reading

    def _deliver(
        self, registration: Registration, taken: tuple[int, int, bool], records: Any, found: int
    ) -> None:
        """The records are there. What was taken and not read goes back; so does what was read and
        is too much to hand out at once."""
        self._reading = False
        first, count, redelivered = taken
        if records is None:
            self.cursor.untake(first, count, redelivered)
            return
        if self.paused:  # since the reader thread began
            self.cursor.untake(first, count, redelivered)
            if registration.active and registration not in self.registrations:
                self.give_one(registration)  # somebody waits for one message
            return
        runs: Sequence[RecordRun] = ()
        times = 0 if self.rules is None else self.rules.delivery_count(first)
        if found and registration.active:
            runs, found = self._share_of(registration, records, found, counted=times > 0)
        if found < count:
            self.cursor.untake(first + found, count - found, redelivered)
            self.pump_later()
        if found:
            self.moved(self)
            if registration.active:
                if redelivered:
                    self.reading.redelivered_count += found
                delivery = Delivery(runs, first, found, redelivered, times)
                if self.reading.delivery_times.due:
                    self.reading.delivery_times.note_delivery(self, delivery)
                registration.consumer.deliver(delivery)
            else:
                self.cursor.requeue(first, found)
        if not self._pumping:
            self.pump()

    def _share_of(
        self, registration: Registration, records: Any, found: int, *, counted: bool
    ) -> tuple[Sequence[RecordRun], int]:
        """The runs of these records as the consumer gets them, as far as the share goes, and how
        many messages they have: at least one.

        Args:
            found: how many there are.
            counted: their deliveries are, which consumers write into each message.
        """
        reading = self.reading
        takes_apart = registration.takes_apart
        if counted and takes_apart is not None:
            takes_apart = _any_kind
        cut, cost = reading.metas.runs_within(
            records, reading.share.left, self.run_cost(), takes_apart
        )
        reading.share.spend(cost)
        runs, taken = reading.metas.plain(cut, reads_long=registration.reads_long)
        # What does not go out would be read again and again.
        suits = 2 * (taken if taken < found else self._pump_count)
        self._pump_count = min(suits, reading.limits.pump_count_max)
        return runs, taken


def _any_kind(_meta: RunMeta) -> bool:
    return True


class Groups(list[Group]):
    """The groups of a queue that has several. Nearly all have one, which costs no list."""

    __slots__ = ()

    def arrival_cost(self) -> int:
        """See `Group.arrival_cost`. Not all are asked."""
        return len(self) * max((group.arrival_cost() for group in self[:SAMPLE_COUNT]), default=0)

    def arrived(self, run: Committed, first: int) -> None:
        """A run became visible at offset `first`: to all of them."""
        for group in tuple(self):  # one of them may leave meanwhile
            group.arrived(run, first)
