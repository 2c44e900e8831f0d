"""Messages that come later: kept in a queue of the broker's own until they are due.

Theory. A delayed message is a record of a system topic (`delayed.py`), which is in no queue but
that topic's own. So it is durable and acknowledged like any other message, and nobody sees it. When
it is due it is moved (`moves/moves.py`): appended to its topic as a new record that settles the old
entry, so that a crash keeps exactly one of the two.

When which message is due is known by a timing wheel in memory (`wheel.py`), 20 bytes a message,
which is made anew at a start (`timed_store.py`).

Rules:

* A message is never early, whatever the wheel says: its record has its time. It is late by at most
  `delay_tick_ms` and the time that releasing those before it takes. What became due while the
  server was down is released at the start, in the order of the due times. Equal times keep the
  order of publishing.
* What a topic does not take now, because its replicas are behind, is held (`held.py`) and offered
  again; other topics do not wait for it. What the broker as a whole does not take now (a full disk)
  waits in the order of its times.
* What its topic can never take is set aside (`moves/set_aside.py`): it stops nobody behind it.
* One loop iteration releases what one read of a queue may have (`pump_count_max`, in bytes
  `pump_bytes_max`); then others get their turn.
* A topic that was deleted, or made anew under the same name, gets nothing of what was meant for the
  old one: that is dropped, and counted. So is what an exchange delayed that has ended since, though
  its topic goes on.
* A few very late messages hold neither the cursor's window nor the log: when much more has been
  released behind the oldest one than still waits, it is copied forward, which is a move of the
  delayed record itself. What is copied keeps its place among those due in the same millisecond,
  except over a restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.delays.delayed import (
    DELAY_TOPIC,
    Delayed,
    delayed_record,
    deliver_ms,
    take_apart,
)
from polymq.broker.delays.held import Held
from polymq.broker.delays.timed_store import TimedStore
from polymq.broker.delays.wheel import Taken
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.messages.records import PREFIX_PROPERTY, parse_properties
from polymq.broker.moves.moves import Moves, Row, settling_batch
from polymq.broker.moves.set_aside import SetAside
from polymq.broker.pacing.timers import Timer
from polymq.broker.port.publishing import Placed, Template
from polymq.broker.port.values import Position
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group
from polymq.broker.queues.store import QueueStore
from polymq.broker.state.kinds import StateKind, single
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics, positions_of
from polymq.core_log.errors import StoreError, TooLarge
from polymq.core_log.kernels.batch import (
    EXTRA_VERBATIM,
    Batch,
)
from polymq.core_log.kernels.layout import ENTRY_SIZE
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.record import RecordTemplate


class Delays:
    """All delayed messages of one engine.

    Attributes:
        dropped_count: messages whose topic or exchange was gone when they were due.
        released_count: messages that were released.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        moves: Moves,
        aside: SetAside,
    ) -> None:
        self._core = core
        self._queue_store = queue_store
        self._topics = topics
        self._moves = moves
        self._aside = aside
        self._held = Held()
        self._offer_ms = 0  # when what is held is offered again
        self._timed = TimedStore(core, queue_store, topics, topic=DELAY_TOPIC, kind="delay")
        self._timer: Timer | None = None  # the next look at the wheel
        self._watch: Timer | None = None  # the next look at the oldest message
        self._at_work = False  # messages are being read or wait for the log: others wait
        self.dropped_count = 0
        self.released_count = 0

    @property
    def waiting_count(self) -> int:
        """Messages that are not due yet (a metric)."""
        return self._timed.wheel.count

    @property
    def held_count(self) -> int:
        """Messages that are due, and whose topic takes none at the moment (a metric)."""
        return self._held.count

    @property
    def group(self) -> Group | None:
        """What settles the messages that wait (for operators); None before the first one."""
        return self._timed.group

    def cancel(self, offset: int) -> Position:
        """The message at an offset of the delayed ones is not released. The wheel has it until it
        would have been due, and passes over it then.

        Raises:
            Refused: NOT_FOUND, LOCKED (some are being released, maybe this one).
        """
        group = self._timed.group
        if group is None or not group.cursor.floor <= offset < group.queue.index.end_offset:
            raise Refused(Reason.NOT_FOUND, f"no delayed message waits at offset {offset}")
        if group.cursor.is_settled(offset):
            raise Refused(Reason.NOT_FOUND, f"no delayed message waits at offset {offset}")
        if self._at_work:
            raise Refused(Reason.LOCKED, "messages are being released just now: try again")
        self._core.check_writable(frees=True)
        group.settle(offset, 1)
        self._queue_store.write_acks()
        return Position(self._core.log.appended)

    # --- publishing -----------------------------------------------------------------------

    def publish_later(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """See `DelayPort.publish_later`."""
        assert isinstance(template, TopicTemplate)
        due_ms = deliver_ms or self._core.clock_ms() + delay_ms
        return self.publish(template, batch, first, last, due_ms, by_exchange=by_exchange)

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, deliver_ms: int
    ) -> Placed:
        """See `DelayPort.publish_placed`."""
        assert isinstance(template, TopicTemplate)
        before = self._waiting_end()
        position = self.publish(template, batch, first, last, deliver_ms)
        if self._timed.group is not None and self._waiting_end() > before:
            index = self._timed.group.queue.index
            return Placed(position, 0, positions_of(index, before, last - first))
        index = template.queue.index
        offset = index.end_offset - (last - first)
        return Placed(position, offset, positions_of(index, offset, last - first))

    def _waiting_end(self) -> int:
        """One past the offset of the last message that waits."""
        return 0 if self._timed.group is None else self._timed.group.queue.index.end_offset

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """See `DelayPort.deliver_ms`."""
        return deliver_ms(properties, self._core.clock_ms())

    def publish(
        self,
        template: TopicTemplate,
        batch: Batch,
        first: int,
        last: int,
        due_ms: int,
        *,
        properties: bytes = b"",
        system_flag: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """Keep rows [first, last) until `due_ms`; publish them if that has passed.

        Args:
            by_exchange: as in `record`.
            properties: more of the record's properties, encoded: what belongs to the record and
                not to the message.
            system_flag: of the record.

        Raises:
            Refused: as `DelayPort.publish_later`.
        """
        is_due = due_ms <= self._core.clock_ms()
        if not is_due:
            self._core.check_writable()
            self._topics.check_retained(template, batch, last)
            self.prepare(due_ms, last - first)
        record = template.record
        if not is_due:
            record = self.record(template, due_ms, by_exchange=by_exchange)
        if properties or system_flag:
            record = dataclasses.replace(
                record, properties=record.properties + properties, system_flag=system_flag
            )
        if is_due:
            return self._topics.publish(template, batch, first, last, record=record)
        self._timed.append(record, batch, first, last, due_ms)
        self._arm()
        return Position(self._core.log.appended)

    def prepare(self, due_ms: int, count: int) -> Group:
        """The group that delayed messages wait in, if so many more may wait until then.

        Raises:
            Refused: BAD_ARGUMENT (too far away), LIMIT, or the log takes nothing.
        """
        core = self._core
        if due_ms > core.clock_ms() + core.limits.delay_ms_max:
            days = core.limits.delay_ms_max // 86_400_000
            raise Refused(
                Reason.BAD_ARGUMENT, f"a message can be delayed by at most {days} days: send later"
            )
        if self._timed.wheel.count + self._held.count + count > core.limits.delayed_max:
            raise Refused(
                Reason.LIMIT,
                f"{core.limits.delayed_max} delayed messages wait, which is the limit: try later",
            )
        return self._timed.make()

    def record(self, template: TopicTemplate, due_ms: int, *, by_exchange: bool) -> RecordTemplate:
        """How a message of this template is stored until it is due.

        Args:
            by_exchange: whether an exchange of the topic's name delays it, so that it goes with
                that exchange.
        """
        return self._timed.record(template, due_ms, by_exchange=by_exchange)

    def stored(self, spans: Sequence[Span], due_ms: int) -> None:
        """Delayed records were appended: note when they are due."""
        self._timed.stored(spans, due_ms)
        self._arm()

    # --- releasing ------------------------------------------------------------------------

    def _arm(self) -> None:
        """See to it that somebody looks when there is something to do."""
        at = self._timed.wheel.next_ms()
        if self._held.count:
            at = self._offer_ms if at is None else min(at, self._offer_ms)
        if at is None or self._at_work:
            return
        tick = self._core.limits.delay_tick_ms
        at = -(-at // tick) * tick  # rounded up: few looks, and never an early one
        if self._timer is not None and self._timer.active:
            if self._timer.due_ms <= at:
                return
            self._timer.cancel()
        self._timer = self._core.timers.at(at, self._look)
        if self._watch is None:
            self._watch_later()

    def _look(self) -> None:
        """Release the next messages that are due."""
        group = self._timed.group
        if not self._at_work and group is not None:
            self._at_work = True
            self._read(group, self._next(group))

    def _next(self, group: Group) -> list[_Piece]:
        """What is to be done now: what is held has its turn first."""
        limits = self._core.limits
        if self._held.count and self._offer_ms <= self._core.clock_ms():
            found = self._held.take(
                count_max=limits.pump_count_max, bytes_max=limits.pump_bytes_max
            )
            assert found is not None
            where, taken = found
            return [_Piece(_left(group.cursor, taken), where)]
        # A full disk may have cost some of them (`retention/retention.py`).
        taken = _left(group.cursor, self._timed.take())
        return [_Piece(taken)] if taken.offsets else []

    def _read(self, group: Group, work: list[_Piece]) -> None:
        """Release what is in `work`, piece by piece."""
        if work:
            entries = work[0].taken.entries
            self._core.reading.read_entries(entries, partial(self._write, group, work))
        else:
            self._at_work = False
            self._arm()

    def _write(self, group: Group, work: list[_Piece], records: bytes | None, found: int) -> None:
        piece = work.pop(0)
        taken = piece.taken
        if records is None:
            # One of them is damaged. It stays unsettled, and is tried again after a restart.
            if len(taken.offsets) > 1:
                work[:0] = [
                    _Piece(_part(taken, at, at + 1), piece.held) for at in range(len(taken.offsets))
                ]
        else:
            all_delayed = list(take_apart(records))
            now = self._core.clock_ms()
            if any(delayed.due_ms > now for delayed in all_delayed):
                all_delayed, taken = self._put_back(all_delayed, taken, now)
            left = self._release(group, all_delayed, taken, piece.held, work)
            if left is not None:
                work.insert(0, _Piece(left, piece.held))
                self._later(partial(self._read, group, work))
                return
        if piece.held is not None and not work:
            self._held.done(piece.held)
        if work:
            self._core.reading.schedule(partial(self._read, group, work))
        else:
            self._read(group, work)

    def _release(
        self,
        group: Group,
        all_delayed: Sequence[Delayed],
        taken: Taken,
        held: bytes | None,
        work: list[_Piece],
    ) -> Taken | None:
        """Append the messages to their topics, run by run.

        Args:
            held: the topic that all of them were held for, if they were.
            work: what comes behind them; emptied where it is held with them.

        Returns:
            What is left, if the broker takes nothing at all now.
        """
        for first, last in _runs_of(all_delayed):
            where = all_delayed[first].where
            if where in self._held and where != held:
                self._held.add(where, _part(taken, first, last))
                continue
            rows = [delayed.row for delayed in all_delayed[first:last]]
            kind = where, all_delayed[first].prefix
            try:
                self._release_run(group, kind, rows, taken.offsets[first:last])
            except Refused as error:
                left = _left(group.cursor, _part(taken, first, len(taken.offsets)))
                if error.reason is not Reason.LIMIT:
                    return left
                if held is None:
                    if not self._held.count:
                        self._offer_later()
                    self._held.add(where, _left(group.cursor, _part(taken, first, last)))
                else:
                    self._offer_later()
                    for piece in reversed(work):
                        self._held.put_back(where, piece.taken)
                    self._held.put_back(where, left)
                    work.clear()
                    return None
        return None

    def _offer_later(self) -> None:
        seconds = self._core.limits.lazy_flush_seconds
        self._offer_ms = self._core.clock_ms() + int(seconds * 1000)

    def _put_back(
        self, all_delayed: Sequence[Delayed], taken: Taken, now: int
    ) -> tuple[list[Delayed], Taken]:
        """The clock was set back, or the wheel had a wrong time: what the record says is not due
        goes back. Returns what is due."""
        due: list[Delayed] = []
        entries, offsets = bytearray(), []
        for at, delayed in enumerate(all_delayed):
            entry = taken.entries[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
            if delayed.due_ms > now:
                self._timed.wheel.add(delayed.due_ms, entry, taken.offsets[at], now)
            else:
                due.append(delayed)
                entries += entry
                offsets.append(taken.offsets[at])
        return due, Taken(bytes(entries), offsets)

    def _release_run(
        self,
        group: Group,
        kind: tuple[bytes, bytes],
        rows: Sequence[Row],
        offsets: Sequence[int],
    ) -> None:
        """Append messages of one kind. Raises Refused: a reason that passes; those that were
        appended are settled."""
        try:
            template = self._timed.template(*kind)
            is_omitted = False
            if template is not None and template.retain and not self._has_room(template, rows):
                is_omitted = True
                template = self._timed.template(*kind, retain=False)
            if template is not None:
                self._moves.append_rows(template, rows, group, offsets)
        except Refused as error:
            self.released_count += error.stored
            if error.reason in PASSING:
                raise
            rows, offsets = rows[error.stored :], offsets[error.stored :]
            if len(rows) > 1:  # some of them may fit
                half = len(rows) // 2
                self._release_run(group, kind, rows[:half], offsets[:half])
                self._release_run(group, kind, rows[half:], offsets[half:])
            else:
                self._set_aside(group, kind, rows[0], offsets[0], error)
            return
        if template is None:
            self.dropped_count += len(rows)
            for offset in offsets:
                group.settle(offset, 1)
        else:
            self.released_count += len(rows)
            self._topics.retained.unretained_count += is_omitted

    def _has_room(self, template: TopicTemplate, rows: Sequence[Row]) -> bool:
        """Whether the last of these messages may be the retained one of its topic."""
        return self._topics.retained.has_room(template.route.address, len(rows[-1].body))

    def _set_aside(
        self, group: Group, kind: tuple[bytes, bytes], row: Row, offset: int, error: Refused
    ) -> None:
        where, prefix = kind
        properties = parse_properties(prefix)
        del properties[PREFIX_PROPERTY]
        topic = where.decode("ascii").split(".", 2)[2]
        self._aside.put(topic, properties, row, group, offset, error)

    def _later(self, retry: partial[None]) -> None:
        """The log takes nothing now: try again in a moment, unless it never will."""
        if not self._core.has_failed():
            seconds = self._core.limits.lazy_flush_seconds
            self._core.timers.at(self._core.clock_ms() + int(seconds * 1000), retry)

    # --- copying forward --------------------------------------------------------------------

    def _watch_later(self) -> None:
        limits = self._core.limits
        self._watch = self._core.timers.at(
            self._core.clock_ms() + limits.delay_watch_ms, self._look_back
        )

    def _look_back(self) -> None:
        """Whether the oldest message is too far behind: then it and those after it go forward."""
        self._watch = None
        group = self._timed.group
        if group is None or not self._timed.wheel.count or self._core.has_failed():
            return
        if self._at_work:
            self._watch_later()
            return
        index, floor = group.queue.index, group.cursor.floor
        count = self._core.limits.delay_copied_max
        self._at_work = True
        entries = index.read_hot(floor, count)
        if entries is not None:
            self._copy(group, entries)
            return

        def finished(entries: bytes | None, error: Exception | None) -> None:
            if entries is None:
                self._core.read_failed(error or RuntimeError("a reader gave no answer"))
            self._copy(group, entries or b"")

        self._core.reading.readers.submit(lambda: index.read_cold(floor, count), finished)

    def _copy(self, group: Group, entries: bytes) -> None:
        floor = group.cursor.floor
        offsets = [
            floor + at
            for at in range(len(entries) // ENTRY_SIZE)
            if not group.cursor.is_settled(floor + at)
        ]
        if not offsets or not self._is_behind(group, entries):
            self._copied(more=False)
            return
        taken = Taken(
            b"".join(
                [
                    entries[(at - floor) * ENTRY_SIZE : (at - floor + 1) * ENTRY_SIZE]
                    for at in offsets
                ]
            ),
            offsets,
        )
        self._core.reading.read_entries(
            taken.entries, lambda records, _: self._write_copies(group, taken, records)
        )

    def _is_behind(self, group: Group, entries: bytes) -> bool:
        """Whether what lies behind the oldest message is much more than what waits.

        Copying everything that waits then writes at most a quarter of what was written since the
        last time, so it costs little, however often.
        """
        limits, wheel = self._core.limits, self._timed.wheel
        window = group.queue.index.end_offset - group.cursor.floor
        if window > max(limits.delay_window_max, 4 * wheel.count):
            return True
        position = int.from_bytes(entries[:8], "big")
        lag = self._core.log.appended - position
        return lag > max(limits.delay_lag_bytes_max, 4 * wheel.bytes)

    def _write_copies(self, group: Group, taken: Taken, records: bytes | None) -> None:
        if records is None:
            self._copied(more=False)
            return
        try:
            for at, delayed in enumerate(take_apart(records)):
                entry = taken.entries[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
                self._write_copy(group, delayed, taken.offsets[at], entry)
        except Refused:
            self._copied(more=False)
        else:
            self._copied(more=True)

    def _write_copy(self, group: Group, delayed: Delayed, offset: int, entry: bytes) -> None:
        """Append one delayed message anew, in place of the entry at `offset`."""
        core, queue = self._core, group.queue
        template = dataclasses.replace(
            delayed_record(DELAY_TOPIC, delayed.due_ms, delayed.where, delayed.prefix),
            extra_kind=EXTRA_VERBATIM,
            system_flag=SYSTEM_FLAG_STATE,
        )
        now = core.clock_ms()
        new_offset = queue.index.end_offset
        append = partial(
            core.log.append_run,
            template,
            targets=[(queue.number, new_offset)],
            born_ms=delayed.row.born_ms,
            store_ms=now,
        )
        apart = False
        try:
            try:
                batch = settling_batch(
                    (delayed.row,),
                    group.number,
                    (offset,),
                    constant_bytes=len(template.properties),
                )
                (span,) = append(batch, 0, 1)
            except TooLarge:  # its settlement is a record of its own then
                apart = True
                (span,) = append(settling_batch((delayed.row,), 0, (offset,)), 0, 1)
        except StoreError as error:
            raise core.refused(error) from error
        queue.append((span,))
        queue.visible = queue.flushed = queue.index.end_offset
        if not self._timed.wheel.replace(delayed.due_ms, entry, offset, span.entries, new_offset):
            self._timed.wheel.add(delayed.due_ms, span.entries, new_offset, now)
        group.settle(offset, 1)
        if apart:
            self._queue_store.write_acks()
        core.appended()

    def _copied(self, *, more: bool) -> None:
        self._at_work = False
        self._arm()
        if more:
            self._core.reading.schedule(self._look_back)
        else:
            self._watch_later()

    # --- state ----------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return single("delay", self.row, self.load)

    def load(self, value: Mapping[str, Any]) -> None:
        """Take the queue from its snapshot."""
        self._timed.load(value)

    def row(self) -> Mapping[str, Any] | None:
        """The queue as a JSON value for the snapshot."""
        return self._timed.row()

    def reopen(self) -> None:
        """After a restart: find out what waits. Raises StoreError."""
        self._timed.reopen()
        self._arm()


class _Piece(NamedTuple):
    """Messages of one read.

    Attributes:
        held: the topic that they were held for, if they were.
    """

    taken: Taken
    held: bytes | None = None


def _runs_of(all_delayed: Sequence[Delayed]) -> Iterator[tuple[int, int]]:
    """[first, last) of those that are of one kind and were born in the same millisecond."""
    first = 0
    for at in range(1, len(all_delayed) + 1):
        if at == len(all_delayed) or _kind(all_delayed[at]) != _kind(all_delayed[first]):
            yield first, at
            first = at


def _kind(delayed: Delayed) -> tuple[bytes, bytes, int]:
    return delayed.where, delayed.prefix, delayed.row.born_ms


def _part(taken: Taken, first: int, last: int) -> Taken:
    """Messages [first, last) of it."""
    entries = taken.entries[first * ENTRY_SIZE : last * ENTRY_SIZE]
    return Taken(entries, taken.offsets[first:last])


def _left(cursor: Cursor, taken: Taken) -> Taken:
    """What of it is not settled."""
    left = [at for at, offset in enumerate(taken.offsets) if not cursor.is_settled(offset)]
    entries = [taken.entries[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE] for at in left]
    return Taken(b"".join(entries), [taken.offsets[at] for at in left])
