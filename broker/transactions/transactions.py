"""Messages and settlements that belong together: one atomic batch of the log.

`commit` appends any number of publishes, to any routes, and the settlements of deliveries as
consecutive records of one atomic batch (`core_log.atomic`): after a crash all of it is there or
nothing is. The settlements of queues that survive a restart are one record of acks in that batch;
those of queues in memory have no place in the log and are applied with it.

Rules:

* Nothing of a batch is visible before its last record has passed the commit point.
* Offsets are taken when the batch is appended. A refusal takes none and settles nothing.
* This costs some 20 us a message, because each is a record with a place of its own in the batch;
  `Topics.publish` is for all that does not have to be atomic. Whoever gathers a batch bounds it: it
  has at most 65,535 records and lies in one segment.
* Each queue that a message goes to costs 1.5 us more, so these have a limit (`batch_targets_max`).
  A single message is atomic by itself, and goes to as many queues as by `Topics.publish`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polymq.broker.core import Core
from polymq.broker.delays.delay import Delays
from polymq.broker.errors import Reason, Refused
from polymq.broker.moves.moves import Moves
from polymq.broker.port.publishing import Publishing, Template
from polymq.broker.port.queues import QueueConsumer, Settlement
from polymq.broker.port.values import Position
from polymq.broker.queues.priorities import Levels
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.queues.store import QueueStore
from polymq.broker.topics.header_routing import by_branch
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.atomic import part_of
from polymq.core_log.errors import StoreError
from polymq.core_log.kernels.batch import BODY_START, EXTRA_START, Batch
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.record import RecordParts


class Transactions:
    """Atomic batches of publishes and settlements."""

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        delays: Delays,
        moves: Moves,
    ) -> None:
        self._core = core
        self._queue_store = queue_store
        self._topics = topics
        self._delays = delays
        self._moves = moves

    def commit(
        self, publishes: Sequence[Publishing], settlements: Sequence[Settlement]
    ) -> Position:
        """See `TransactionPort.commit`."""
        core = self._core
        core.check_writable()
        now = core.clock_ms()
        parts: list[RecordParts] = []
        taken: dict[int, int] = {}  # by queue number: the offset that the next record takes there
        publishes = list(self._by_branch(publishes))
        self._check_targets(publishes)
        for publishing in publishes:
            parts += self._records(publishing, taken, now)
        settled = self._by_group(settlements)
        pending = self._queue_store.take_acks(settled)
        if settled:
            acks = [
                [number, next_offset, [*noted, *stretches]]
                for (number, next_offset, noted), stretches in zip(
                    pending, settled.values(), strict=True
                )
            ]
            parts.append(core.journal.record({"op": "acks", "g": acks}, now))
        try:
            spans = core.log.append_atomic(parts, store_ms=now) if parts else []
        except StoreError as error:
            self._queue_store.keep_acks(settled, pending)
            raise core.refused(error) from error
        self._stored(publishes, spans, now)
        for consumer, first_offset, count in settlements:
            consumer.settle(first_offset, count)
        self._queue_store.take_acks(settled)  # the batch says them
        core.journal.dirty.update(("group", str(group.number)) for group in settled)
        core.appended()
        return Position(core.log.appended)

    def publish_settling(
        self,
        template: Template,
        batch: Batch,
        row: int,
        consumer: QueueConsumer,
        offset: int,
        *,
        position: int = 0,
    ) -> Position:
        """See `TransactionPort.publish_settling`."""
        assert isinstance(template, TopicTemplate)
        group, first = group_of(consumer, offset)
        return self._moves.publish(template, batch, row, group, first, position)

    def _by_branch(self, publishes: Sequence[Publishing]) -> Iterator[Publishing]:
        """The runs, cut where their messages' headers send them different ways."""
        for one in publishes:
            template = one.template
            assert isinstance(template, TopicTemplate)
            if one.delay_ms > 0 or template.branches is None:
                yield one
                continue
            rows = by_branch(self._topics, template, one.batch, one.first, one.last)
            for first, last, used in rows:
                yield Publishing(template=used, batch=one.batch, first=first, last=last)

    def _check_targets(self, publishes: Sequence[Publishing]) -> None:
        """Raises Refused: LIMIT: several messages go to too many queues to be stored at once."""
        messages = targets = 0
        for one in publishes:
            assert isinstance(one.template, TopicTemplate)
            count = one.last - one.first
            queues = 1 if one.delay_ms > 0 else len(self._topics.queues_of(one.template))
            messages += count
            targets += count * queues
        most = self._core.limits.batch_targets_max
        if messages > 1 and targets > most:
            raise Refused(
                Reason.LIMIT,
                f"the {messages} messages of the transaction need {targets} entries in queues, "
                f"and the limit is {most}: commit more often",
            )

    def _records(
        self, publishing: Publishing, taken: dict[int, int], now: int
    ) -> list[RecordParts]:
        """The records of one run, with the offsets that they take behind those before them."""
        template, batch = publishing.template, publishing.batch
        assert isinstance(template, TopicTemplate)
        if publishing.delay_ms > 0:
            due_ms = now + publishing.delay_ms
            queues: Sequence[Queue] = (
                self._delays.prepare(due_ms, publishing.last - publishing.first).queue,
            )
            record = self._delays.record(template, due_ms, by_exchange=True)
        else:
            queues = self._topics.queues_of(template)
            record = template.record
        records = []
        for row in range(publishing.first, publishing.last):
            targets = []
            for queue in queues:
                offset = taken.get(queue.number, queue.index.end_offset)
                taken[queue.number] = offset + 1
                targets.append((queue.number, offset))
            records.append(
                RecordParts(
                    template=record,
                    body=part_of(batch, row, BODY_START),
                    extra=part_of(batch, row, EXTRA_START),
                    targets=targets,
                    born_ms=now,
                )
            )
        return records

    def _by_group(self, settlements: Sequence[Settlement]) -> dict[Group, list[list[int]]]:
        """(first, count) stretches that are settled, by group; only what the log has to say."""
        by_group: dict[Group, list[list[int]]] = {}
        for consumer, first_offset, count in settlements:
            group, offset = group_of(consumer, first_offset)
            if self._queue_store.groups.get(group.number) is group:
                by_group.setdefault(group, []).append([offset, count])
        return by_group

    def _stored(self, publishes: Sequence[Publishing], spans: Sequence[Span], now: int) -> None:
        """The records are in the log: their queues take them."""
        at = 0
        for publishing in publishes:
            template = publishing.template
            assert isinstance(template, TopicTemplate)
            end = at + publishing.last - publishing.first
            run = join(spans[at:end])
            if publishing.delay_ms > 0:
                self._delays.stored(run, now + publishing.delay_ms)
            else:
                self._topics.stored(template, run, publishing.batch, publishing.last, now)
            at = end


def group_of(consumer: QueueConsumer, offset: int) -> tuple[Group, int]:
    """The group that an offset of the consumer's queue belongs to, and the offset there."""
    group: Group | Levels = consumer.group  # type: ignore[attr-defined]
    return group.group_of(offset)


def join(spans: Sequence[Span]) -> list[Span]:
    """The same records in as few spans as they allow: what stands without a gap becomes one, so
    that it is delivered as one run."""
    joined: list[Span] = []
    run: list[Span] = []
    for span in spans:
        if run and (run[-1].memory is not span.memory or run[-1].end != span.start):
            joined.append(_as_one(run))
            run = []
        run.append(span)
    if run:
        joined.append(_as_one(run))
    return joined


def _as_one(run: Sequence[Span]) -> Span:
    entries = b"".join([span.entries for span in run])
    return Span(run[0].memory, run[0].start, run[-1].end, run[0].position, entries)
