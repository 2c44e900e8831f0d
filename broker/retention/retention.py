"""Retention: what nobody wants any more leaves the log.

Theory. Messages go in two steps. A topic's settings move the first offset of its own queues (the
op `trim`): that is all that readers by offset see of retention. A segment of the log goes when
nothing of it is wanted: not by a topic's retained range, not by an unsettled message of a queue or
a session, not by a retained MQTT message, not by a checkpoint. The lowest place that somebody holds
is found without reading messages: a queue's entries ascend, so one entry per queue says it, and
a place that was found once stays a lower bound for ever.

The log as a whole may have a limit (`DiskSettings.log_bytes_max`). Above it the topics whose
retention has a limit lose what stands before some place in the log, the same place for all of them:
else a topic with a few small messages would hold every file behind them. Only as much is taken as
lets files go: what a queue, a session or a topic without a limit holds, stays, and so does all that
stands behind it.

State that was folded from a segment stands further on before the segment goes: see
`state/snapshot.py`. A retained message that alone holds a segment is copied forward, as long as
what is copied is at most a quarter of the segment; held messages of queues are never copied.

A round is a generator: it yields what has to be done elsewhere (`InWorker`, `UntilFlushed`) or
`None` to let the loop go on, and whoever drives it sends back the results. It may be given up at
any yield, also by an exception: what it has done so far is sound, and the next round goes on.

Rules:

* Rounds do not overlap with one another or with the saving of `state.db` and of indexes.
* Nothing is deleted behind the newest complete snapshot's position, nor behind the checkpoint, nor
  from where on somebody copies the log (`reservations.py`).
* What settled a message is on the disk before the message goes. Else indexes that are made again
  from the log would let a queue go on at an offset that somebody has seen.
* A queue whose entry cannot be read holds everything (position -1): nothing is deleted on a
  guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.errors import Refused
from polymq.broker.messages.constant_part import PREFIX_HEAD_SIZE
from polymq.broker.moves.moves import message_properties
from polymq.broker.port.values import Address
from polymq.broker.queues.queue import Group
from polymq.broker.queues.store import QueueStore
from polymq.broker.retention.entry_reads import first_offsets, positions_of, trims_of
from polymq.broker.retention.holders import is_ours
from polymq.broker.retention.reservations import Reservations
from polymq.broker.retention.topic_trims import TopicTrims, Trim
from polymq.broker.sessions.flights import RetainedFlights, tags_of
from polymq.broker.state.database import StateDb
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, single
from polymq.broker.state.snapshot import HEAD_BYTES_MAX, PIECE_BYTES_MAX, TEMPLATE, encode_snapshot
from polymq.broker.topics.retained import ORIGIN_PROPERTY, Retained, origin_of, position_of
from polymq.broker.topics.topics import Topics
from polymq.core_log.errors import StoreError
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.queue_index import MemoryIndex, QueueIndex
from polymq.core_log.record import Record, RecordTemplate
from polymq.core_log.retention import first_after_position

SLICE_COUNT: Final = 128
"""Topics or groups looked at before other work gets its turn: about two milliseconds."""
QUIET_SLICE_COUNT: Final = 2048
"""Topics of which nearly all need only a glance: about as long."""
LOOK_AGAIN_MS: Final = 30_000
"""How long retained messages, or a state that was just written, may keep the log from shrinking
before all holders are looked at again."""
RETAINED_SLICE_COUNT: Final = 4096
COPIED_PART_MAX: Final = 4
"""Retained messages are copied out of a segment if they are at most this part of it (a quarter)."""
DROPS_MAX: Final = 1000
"""Queues whose drops wait to be logged; the count is right in any case."""
COPY_COUNT: Final = 64
"""Retained messages read and appended per turn."""


class InWorker(NamedTuple):
    """Run this in a worker's thread and send back what it returns."""

    run: Callable[[], Any]


class UntilFlushed(NamedTuple):
    """Go on when the log is flushed up to here."""

    position: int


Step = InWorker | UntilFlushed | None
Round = Generator[Step, Any, None]


class Holder(NamedTuple):
    """Who needs the log from a position on."""

    position: int
    kind: str
    """`topic`, `queue`, `session`, `group`, `retained`, `system`, `backup`."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSnapshot:
    """The newest complete snapshot in the log: the state as of `position`; it ends at `end` and
    takes `size` bytes."""

    position: int
    end: int
    size: int


class _Found(NamedTuple):
    """A hold whose owner has no name yet: a group, or a topic's name."""

    position: int
    owner: Group | str


class _Claim(NamedTuple):
    """A queue whose entry at `offset` says what is held."""

    queue_index: QueueIndex
    offset: int
    owner: Group | str


class Retention:
    """Decides what leaves the log, and lets it go.

    Args:
        state_db: where snapshots are read from; without it nothing is ever deleted.
        name_of: what to call a group in words: (kind, name).

    Attributes:
        early_count: of the trimmed, those that went because the log was too large.
        holder: who holds the oldest segment that could go otherwise, as of the last round.
        reservations: of the log, by those who are copying it.
        deleted_bytes, copied_count, trimmed_count, dropped_count: since the start. Trimmed are
            messages that readers by offset lost; dropped those that a queue or session lost.
        drops: what was dropped and nobody has logged yet: kind, name, how many.
        errors_count: entries and records that could not be read.
    """

    def __init__(
        self,
        *,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        retained: Retained,
        flights: RetainedFlights,
        state_db: StateDb | None,
        name_of: Callable[[Group], tuple[str, str]],
    ) -> None:
        self._core = core
        self._queue_store = queue_store
        self._topics = topics
        self._retained = retained
        self._flights = flights
        self._state_db = state_db
        self._name_of = name_of
        self._trims = TopicTrims(core.store)
        self._positions: dict[int, tuple[int, int]] = {}  # queue number -> (offset, its position)
        self._witness: tuple[_Claim, int] | None = None  # who held the log's beginning, and where
        self._look_again_ms = 0  # what stands in the way of deleting does not change soon
        self.snapshot: LastSnapshot | None = None
        self.holder: Holder | None = None
        self.reservations = Reservations(
            scheduler=core.scheduler, disk=core.disk, epoch=core.store.epoch
        )
        self.deleted_bytes = 0
        self.copied_count = 0
        self.trimmed_count = 0
        self.early_count = 0
        self.dropped_count = 0
        self.drops: deque[tuple[str, str, int]] = deque(maxlen=DROPS_MAX)
        core.journal.handle("drop", self._apply_drop)
        core.journal.handle("snapshot", self._apply_snapshot)

    @property
    def errors_count(self) -> int:
        """Queues that retention could not look into."""
        return self._trims.errors_count

    def forget_drops(self) -> None:
        """A start has folded the drops of earlier processes: they were told then."""
        self.drops.clear()
        self.dropped_count = 0

    # --- one round --------------------------------------------------------------------------

    def round(self, wanted_bytes: int = 0) -> Round:
        """Trim what is due, and delete what nobody holds.

        Args:
            wanted_bytes: room that the disk lacks. Then topics whose retention has a limit lose
                their oldest messages earlier than due, as far as that frees so much.
        """
        core = self._core
        if core.failure is not None:
            return
        yield from self._trim_due(0)
        ends = self._deletable_ends()
        if not ends:
            self.holder, self._witness = self._reserved_for(), None
            return
        excess = self.excess_bytes
        early = 0
        if not wanted_bytes and self._is_held_still(ends[0]):
            if not excess or self._is_firm(self._witness):
                return
        if wanted_bytes:
            early = self._end_behind(ends, wanted_bytes)
            yield from self._trim_due(early)
        firm: tuple[Holder, tuple[_Claim, int] | None] | None = None
        if excess > wanted_bytes:
            firm = yield from self._trim_above(ends, self._end_behind(ends, excess))
        self.holder = yield from self._lowest_holder(ends[-1])
        if wanted_bytes and core.disk.settings.drop_oldest and self.holder is not None:
            if self.holder.position < early:
                yield from self._drop_held(early)
                self.holder = yield from self._lowest_holder(ends[-1])
        if firm is not None and self.holder is not None:
            if not any(self.holder.position < end <= firm[0].position for end in ends):
                self.holder, self._witness = firm  # who does not give way says why the file stays
        limit = ends[-1] if self.holder is None else self.holder.position
        ends = [end for end in ends if end <= limit]
        if ends:
            freed = yield from self._copy_retained(ends)
            if freed is not None and (yield from self._see_to_snapshot(freed)):
                yield from self._delete_before(freed)
            else:
                self._look_again_ms = core.clock_ms() + LOOK_AGAIN_MS

    @property
    def size_bytes(self) -> int:
        """What the log's files take, with the room that is not used yet."""
        store = self._core.store
        return store.segments()[-1][1] - self._core.log.start

    @property
    def excess_bytes(self) -> int:
        """By how much the log is larger than it should be; 0 if it is not."""
        most = self._core.disk.settings.log_bytes_max
        return max(self.size_bytes - most, 0) if most and not self._core.follows else 0

    def _end_behind(self, ends: Sequence[int], wanted_bytes: int) -> int:
        """Where the log has to begin for so much less of it, if segments end there."""
        start = self._core.log.start
        return next((end for end in ends if end - start >= wanted_bytes), ends[-1])

    def _trim_above(
        self, ends: Sequence[int], wanted: int
    ) -> Generator[Step, Any, tuple[Holder, tuple[_Claim, int] | None] | None]:
        """The log is too large: topics with a limit lose what stands before `wanted`, as far as
        segments can go then.

        Returns:
            Who does not give way below `wanted`, and its witness.
        """
        firm = yield from self._lowest_holder(wanted, firm=True)
        witness = self._witness
        before = wanted
        if firm is not None:
            before = max((end for end in ends if end <= firm.position), default=0)
        if before:
            trimmed = self.trimmed_count
            yield from self._trim_due(before)
            self.early_count += self.trimmed_count - trimmed
        return None if firm is None else (firm, witness)

    def _is_firm(self, held: tuple[_Claim, int] | None) -> bool:
        """Whether this hold does not give way because the log is too large."""
        return held is not None and not self._gives_way(held[0].owner)

    def _gives_way(self, owner: Group | str) -> bool:
        """Whether it is a topic whose retention has a limit."""
        topic = self._topics.topics.get(owner) if isinstance(owner, str) else None
        return topic is not None and bool(
            topic.settings.retention_seconds or topic.settings.retention_bytes
        )

    def round_behind(self, position: int) -> Round:
        """At a slave: delete what its master has deleted, which is everything before `position`.

        The segments go that are checkpointed here, when the newest complete snapshot of the state
        that this log has does not need them.
        """
        last = self.snapshot
        if self._core.failure is None and last is not None:
            limit = min(position, last.position)
            ends = [end for end in self._deletable_ends() if end <= limit]
            if ends:
                yield from self._delete_before(ends[-1])

    def _is_held_still(self, end: int) -> bool:
        """Whether the first segment, which ends at `end`, is held by who held it in the last round:
        then nobody else has to be looked at."""
        if self._core.clock_ms() < self._look_again_ms:
            return True
        if self._witness is None or self._witness[1] >= end:
            return False
        claim, _ = self._witness
        index, owner = claim.queue_index, claim.owner
        if isinstance(owner, str):
            topic = self._topics.topics.get(owner)
            there = topic is not None and any(queue.index is index for queue in topic.queues)
            return there and index.first_offset == claim.offset
        if self._queue_store.groups.get(owner.number) is not owner:
            return False
        return max(owner.cursor.floor, index.first_offset) == claim.offset

    def _deletable_ends(self) -> list[int]:
        """Where the segments end that are checkpointed, oldest first; the last one never goes."""
        store = self._core.store
        limit = self.reservations.bound(store.checkpointed)
        return [end for _, end in store.segments()[:-1] if end <= limit]

    def _reserved_for(self) -> Holder | None:
        """Who copies the log, if that holds the oldest segment."""
        reserved, (_, end) = self.reservations.lowest, self._core.store.segments()[0]
        if reserved is None or not reserved.position < end <= self._core.store.checkpointed:
            return None
        return Holder(reserved.position, "backup", reserved.name)

    # --- first offsets ----------------------------------------------------------------------

    def _trim_due(self, before: int) -> Round:
        """Move the first offsets of topics' own queues. `before`: also what stands before this
        position, of topics whose retention has a limit."""
        names = list(self._topics.topics)
        now_ms = self._core.clock_ms()
        at = 0
        while at < len(names):
            trims: list[Trim] = []
            looks_end = self._trims.looked_count + SLICE_COUNT
            glances_end = at + QUIET_SLICE_COUNT
            while at < min(len(names), glances_end) and self._trims.looked_count < looks_end:
                topic = self._topics.topics.get(names[at])
                at += 1
                trim = None if topic is None else self._trims.due(topic, now_ms, before)
                if trim is not None:
                    trims.append(trim)
            if trims:
                found = yield InWorker(partial(trims_of, trims))
                self._apply_trims(trims, found)
            yield None

    def _apply_trims(
        self, trims: Sequence[Trim], found: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        moved = []
        for trim, firsts in zip(trims, found, strict=True):
            for queue_id, first in firsts:
                moved.append([trim.name, queue_id, first])
                self.trimmed_count += first - trim.indexes[queue_id].first_offset
        if moved:
            try:
                self._topics.trim(moved)
            except Refused:
                return  # the log takes nothing now: the next round finds it again

    # --- who holds what ---------------------------------------------------------------------

    def _lowest_holder(
        self, limit: int, *, firm: bool = False
    ) -> Generator[Step, Any, Holder | None]:
        """Who holds the lowest place below `limit`; None if nobody holds any.

        Args:
            firm: topics whose retention has a limit do not count.
        """
        lowest: _Found | None = None
        self._witness = None
        names = list(self._topics.topics)
        for at in range(0, len(names), SLICE_COUNT):
            claims = [
                _Claim(queue.index, queue.index.first_offset, name)
                for name in names[at : at + SLICE_COUNT]
                if (topic := self._topics.topics.get(name)) is not None
                and not (firm and self._gives_way(name))
                for queue in topic.queues
                if isinstance(queue.index, QueueIndex)
            ]
            lowest = yield from self._look(claims, limit, lowest)
        groups = [*self._queue_store.groups.values(), *self._queue_store.volatile_groups]
        for at in range(0, len(groups), SLICE_COUNT):
            claims = []
            for group in groups[at : at + SLICE_COUNT]:
                index = group.queue.index
                if isinstance(index, QueueIndex):
                    floor = max(group.cursor.floor, index.first_offset)
                    claims.append(_Claim(index, floor, group))
                elif isinstance(index, MemoryIndex):
                    lowest = self._look_into_memory(group, index, limit, lowest)
            lowest = yield from self._look(claims, limit, lowest)
        in_flight = yield from self._lowest_in_flight(limit if lowest is None else lowest.position)
        if in_flight is not None or lowest is None:
            return in_flight
        owner = lowest.owner
        named = ("topic", owner) if isinstance(owner, str) else self._name_of(owner)
        return Holder(lowest.position, *named)

    def _look(
        self, claims: Iterable[_Claim], limit: int, lowest: _Found | None
    ) -> Generator[Step, Any, _Found | None]:
        """The lower of `lowest` and what these queues hold below `limit`."""
        asked = [claim for claim in claims if self._may_be_below(claim, limit)]
        if not asked:
            yield None
            return lowest
        positions = yield InWorker(partial(positions_of, [claim[:2] for claim in asked]))
        for claim, position in zip(asked, positions, strict=True):
            if position >= 0:
                self._positions[claim.queue_index.number] = (claim.offset, position)
            if position < limit and (lowest is None or position < lowest.position):
                lowest = _Found(position, claim.owner)
                self._witness = (claim, position)
        return lowest

    def _may_be_below(self, claim: _Claim, limit: int) -> bool:
        """Whether it takes a look to know that the queue holds nothing below `limit`."""
        index = claim.queue_index
        if claim.offset >= index.stored_offset:  # behind the checkpoint, or empty
            self._positions.pop(index.number, None)
            return False
        known = self._positions.get(index.number)
        return known is None or known[1] < limit

    def _drop_held(self, before: int) -> Round:
        """Queues and sessions lose what they have not settled and what stands before `before`.
        Delayed and half messages stay: nobody has had a chance to take them."""
        groups = [*self._queue_store.groups.values(), *self._queue_store.volatile_groups]
        for at in range(0, len(groups), SLICE_COUNT):
            some = [
                group
                for group in groups[at : at + SLICE_COUNT]
                if group.cursor.floor < group.queue.index.end_offset and not is_ours(group)
            ]
            stored = [g.queue.index for g in some if isinstance(g.queue.index, QueueIndex)]
            found = iter((yield InWorker(partial(first_offsets, stored, before))))
            offsets = [  # what is in memory belongs to the loop
                next(found)
                if isinstance(group.queue.index, QueueIndex)
                else first_after_position(group.queue.index, before)
                for group in some
            ]
            dropped = [
                (group, offset)
                for group, offset in zip(some, offsets, strict=True)
                if offset > group.cursor.floor
            ]
            op = {"op": "drop", "g": [[g.number, o] for g, o in dropped if g.number]}
            try:
                if op["g"]:
                    self._core.journal.write(op)
            except Refused:
                return
            for group, offset in dropped:
                if not group.number:
                    self._drop(group, offset)
        try:
            self._drop_in_flight(before)
        except Refused:
            return

    def _drop(self, group: Group, offset: int) -> None:
        count = group.cursor.skip_to(offset)
        group.queue.trim()
        if count:
            self.dropped_count += count
            self.drops.append((*self._name_of(group), count))

    def _apply_drop(self, op: Op) -> Touched:
        touched = []
        for number, offset in op["g"]:
            group = self._queue_store.groups.get(number)
            if group is not None:
                self._drop(group, offset)
                touched.append(("group", str(number)))
        in_flight = op.get("r", ())
        self.dropped_count += len(in_flight)
        return [*touched, *self._flights.end(in_flight)]

    def _look_into_memory(
        self, group: Group, index: MemoryIndex, limit: int, lowest: _Found | None
    ) -> _Found | None:
        floor = max(group.cursor.floor, index.first_offset)
        entry = index.read_hot(floor, 1)
        if not entry:
            return lowest
        position = int.from_bytes(entry[:8], "big")
        if position >= limit or (lowest is not None and lowest.position <= position):
            return lowest
        self._witness = None
        return _Found(position, group)

    # --- retained messages ------------------------------------------------------------------

    def _lowest_in_flight(self, limit: int) -> Generator[Step, Any, Holder | None]:
        """The session to which the lowest retained message below `limit` is in flight, if any."""
        lowest: Holder | None = None
        for count, (position, flight) in enumerate(self._flights.positions()):
            if position < limit:
                limit = position
                lowest = Holder(position, "session", flight.session.client_id)
                self._witness = None
            if count % RETAINED_SLICE_COUNT == 0:
                yield None
        return lowest

    def _drop_in_flight(self, before: int) -> None:
        """Sessions lose retained messages in flight that stand before `before`."""
        dropped = [flight for position, flight in self._flights.positions() if position < before]
        if dropped:
            self._core.journal.write({"op": "drop", "g": [], "r": tags_of(dropped)})

    def _copy_retained(self, ends: Sequence[int]) -> Generator[Step, Any, int | None]:
        """Copy retained messages out of the segments that end at `ends`, where it is worth it.

        Returns:
            Where the last segment ends of which nothing is wanted now; None if there is none.
        """
        found: list[tuple[int, int, Address]] = []
        for count, item in enumerate(self._retained.entries()):
            if item is not None and position_of(item[1]) < ends[-1]:
                address, entry = item
                found.append((position_of(entry), int.from_bytes(entry[8:12], "big"), address))
            if count % RETAINED_SLICE_COUNT == 0:
                yield None
        found.sort()
        start = self._core.log.start
        freed: int | None = None
        copied: list[tuple[int, int, Address]] = []
        for end in ends:
            here = [item for item in found if start <= item[0] < end]
            if sum(size for _, size, _ in here) * COPIED_PART_MAX > end - start:
                self.holder = Holder(here[0][0], "retained", "/".join(here[0][2]))
                break
            copied += here
            freed = start = end
        for at in range(0, len(copied), COPY_COUNT):
            yield from self._wait_for_the_disk()
            some = copied[at : at + COPY_COUNT]
            records = yield InWorker(partial(self._records_at, [item[0] for item in some]))
            for (position, _, address), record in zip(some, records, strict=True):
                if not self._copy_one(address, position, record):
                    return None
        if copied:
            yield UntilFlushed(self._core.log.appended)
        return freed

    def _records_at(self, positions: Sequence[int]) -> list[Record]:
        return [self._core.store.record_at(position) for position in positions]

    def _copy_one(self, address: Address, position: int, record: Record) -> bool:
        """Append a retained message anew, unless another one took its place meanwhile. It is in no
        queue: only new subscribers get it. It says where it was published, so that it stays as old
        as it is after a restart. False if the log does not take it."""
        entry = self._retained.get(address)
        if entry is None or position_of(entry) != position:
            return True
        raw = record.raw_properties
        constant = int(raw[6 : PREFIX_HEAD_SIZE - 1], 16)
        # There is room: the first record named its queues, and took more for that.
        origin = f"{ORIGIN_PROPERTY}\x01{origin_of(entry):x}\x02".encode()
        template = RecordTemplate(
            topic=record.topic,
            queue_id=record.queue_id,
            properties=raw[:constant] + message_properties(raw[constant:]) + origin,
            flag=record.flag,
            system_flag=SYSTEM_FLAG_STATE,
        )
        span = self._append(template, record.body, record.born_ms)
        if span is None:
            return False
        self._retained.set(address, span.position, span.end - span.start, origin_of(entry))
        self._core.journal.dirty.add(("retained", "\x00".join(address)))
        self.copied_count += 1
        return True

    def _wait_for_the_disk(self) -> Round:
        """Let publishers have the log, too."""
        log = self._core.log
        if log.unflushed_bytes > self._core.limits.unflushed_bytes_pause // 4:
            yield UntilFlushed(log.appended)

    def _append(self, template: RecordTemplate, body: bytes, born_ms: int) -> Span | None:
        """Append one record in the broker's own name; None if the log does not take it."""
        core = self._core
        now_ms = core.clock_ms()
        try:
            span = core.log.append_record(
                template, body, born_ms=born_ms or now_ms, store_ms=now_ms
            )
        except StoreError:
            return None  # the next round tries again
        core.appended()
        return span

    # --- the state --------------------------------------------------------------------------

    def _see_to_snapshot(self, position: int) -> Generator[Step, Any, bool]:
        """Whether the log has all state without what is before `position`; write it if not."""
        core, last = self._core, self.snapshot
        if last is not None:
            if last.position >= position:
                return True
            # A state larger than what the log holds besides must not be written for ever.
            grown = core.log.appended - last.end
            if min(grown, position - core.log.start) < last.size:
                return False
        state_db = self._state_db
        if state_db is None:
            return False
        folded = yield InWorker(state_db.load)
        if folded is None or folded.position < position or folded.epoch != core.store.epoch:
            return False  # it is saved soon
        piece_bytes = max(min(PIECE_BYTES_MAX, core.log.body_bytes_max - HEAD_BYTES_MAX), 1)
        bodies = yield InWorker(partial(encode_snapshot, folded, piece_bytes))
        size = 0
        first = core.log.appended  # or behind a blank record: a walk passes over that
        for body in bodies:
            span = self._append(TEMPLATE, body, 0)
            if span is None:
                return False
            size += span.end - span.start
            yield None
            yield from self._wait_for_the_disk()
        try:
            core.store.restate_epochs()
            core.journal.write({"op": "snapshot", "p": folded.position, "e": core.log.appended,
                                "size": size})  # fmt: skip
        except (StoreError, Refused):
            return False
        yield UntilFlushed(core.log.appended)
        yield InWorker(partial(core.store.set_bookmark, first))
        return True

    def _apply_snapshot(self, op: Op) -> Touched:
        self.load({"p": op["p"], "e": op["e"], "size": op["size"]})
        return [("snapshot", "last")]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return single("snapshot", self.row, self.load)

    def load(self, value: Mapping[str, int]) -> None:
        """Take the last snapshot's place from its op or its row."""
        self.snapshot = LastSnapshot(position=value["p"], end=value["e"], size=value["size"])

    def row(self) -> Mapping[str, int] | None:
        """The same as a JSON value for `state.db`."""
        last = self.snapshot
        return None if last is None else {"p": last.position, "e": last.end, "size": last.size}

    # --- deleting ---------------------------------------------------------------------------

    def _delete_before(self, position: int) -> Round:
        """Delete the segments that end at or before `position`; nobody holds anything there."""
        core = self._core
        groups = list(self._queue_store.groups.values())
        for at in range(0, len(groups), SLICE_COUNT):
            for group in groups[at : at + SLICE_COUNT]:
                queue = group.queue
                if isinstance(queue.index, QueueIndex) and queue.groups:
                    queue.index.trim_before(min(other.cursor.floor for other in queue.groups))
            yield None
        if not core.follows:
            # The log has to tell by itself how far each queue had come whose messages all go: where
            # its cursors are, and where a topic's own queue begins.
            core.write_gathered()
            yield UntilFlushed(core.log.appended)
        preparation = core.store.begin_checkpoint()
        while not preparation.gather(SLICE_COUNT):
            yield None
        yield InWorker(preparation)
        deleted = core.store.retire(self.reservations.bound(position))  # one may be new
        yield InWorker(core.store.discard)
        self.deleted_bytes += deleted
