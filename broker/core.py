"""What the engine's parts share: the store, the commit points, the journal, numbers and groups.

The parts (topics, AMQP entities, sessions, retained) are separate classes that each own their
state and its ops. They get a `Core` and never reach for one another's insides.

Its pace stands in `kernels/path.py`: what was appended during a loop iteration is written at its
end, and a flush is asked for when somebody waits for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from polymq.broker.commits import CommitPoints
from polymq.broker.disk import SHORT, Disk
from polymq.broker.errors import Reason, Refused, StorageFailed
from polymq.broker.journal import Journal, Op, Touched
from polymq.broker.kernels.path import CoreEnd
from polymq.broker.limits import Limits
from polymq.broker.notices import Notices
from polymq.broker.plain import PlainBody
from polymq.broker.port import FLUSHED, IN_SYNC, Durability, Position
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.reading import PatientReaders, Readers, Reading
from polymq.broker.records import Metas
from polymq.broker.replicas import Replicas
from polymq.broker.state_kinds import StateKind, single
from polymq.broker.sweeping import Sweeper
from polymq.broker.timers import Timers
from polymq.broker.unhurried import unhurried
from polymq.core_log.errors import (
    CorruptRecord,
    Follows,
    StorageBusy,
    StorageFull,
    StorageShort,
    StoreError,
    TooLarge,
)
from polymq.core_log.kernels.layout import ENTRY_SIZE, PRIVATE_ENTRY_SIZE
from polymq.core_log.queue_index import Index, MemoryIndex
from polymq.core_log.store import Store

if TYPE_CHECKING:
    from polymq.broker.standby import Standby

SYSTEM_FLAG_STATE: Final = 0x0001_0000
"""Bit of the record's system flag, beyond RocketMQ's: a data record that also changes state
(retained, QoS 2, settling). A restart folds these and the system topic, and skips the rest."""


Acks = tuple[int, int, list[list[int]]]
"""Of one group: its number, its `next`, (first, count) stretches that were settled."""


class Scheduler(Protocol):
    """The loop, as far as the engine needs it."""

    def call_soon(self, callback: Callable[[], None]) -> Any:
        """Call back in the next loop iteration."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back in `delay` seconds."""


class Core(CoreEnd):
    """Shared by all parts of one engine."""

    commits: CommitPoints

    def __init__(
        self,
        *,
        store: Store,
        clock_ms: Callable[[], int],
        scheduler: Scheduler,
        readers: Readers,
        limits: Limits,
        disk: Disk,
        min_in_sync: int = 1,
        in_sync: int | None = None,
        follows: str = "",
        plain_body: PlainBody | None = None,
    ) -> None:
        super().__init__(
            clock_ms=clock_ms,
            log=store.log,
            commits=CommitPoints(store.log.appended, in_sync, later=scheduler.call_soon),
            scheduler=scheduler,
            disk=disk,
            lazy_flush_seconds=limits.lazy_flush_seconds,
            lazy_flush_bytes=limits.lazy_flush_bytes,
        )
        self.store = store
        self.limits = limits
        self.timers = Timers(loop=scheduler, clock_ms=clock_ms, limits=limits)
        self.unhurried = unhurried(scheduler.call_soon)
        self.sweeper = Sweeper(self.unhurried)
        """Takes out of memory what is gone."""
        self.notices = Notices(lambda: clock_ms() / 1000)
        """Where the parts log what did not go as somebody wanted."""
        self.replicas = Replicas(self.commits)
        """What replicas have on their disks, for topics with `min_in_sync`."""
        self.state_durability = Durability(min_in_sync)
        """What an answer to a change of state waits for."""
        self.held_bytes = 0
        """Bytes of messages that wait for replicas."""
        self.held_published = False
        """Some were published since a publisher was last asked to wait (`overloaded`)."""
        self.journal = Journal(
            log=store.log, clock_ms=clock_ms, appended=self.appended, refused=self.refused
        )
        self.topic_names: dict[str, str] = {}
        """Full names of topics whose stored name is a hash."""
        self.metas = Metas(self.topic_names, plain_body=plain_body)
        self.patient_readers = PatientReaders(readers, scheduler.call_later)
        self.reading = Reading(
            store=store,
            metas=self.metas,
            readers=self.patient_readers,
            limits=limits,
            schedule=self._call_soon,
            failed=self.read_failed,
        )
        self.groups: dict[int, Group] = {}
        """Groups that survive a restart, by number."""
        self.volatile_groups: set[Group] = set()
        """All others: they hold the log, too, as long as they live."""
        self.next_number = 1
        """The next number for a queue, a group or a session. Never reused."""
        self.on_failure: list[Callable[[StorageFailed], None]] = []
        disk.watch(self._room_changed)
        if not follows:
            store.log.on_unwritten = self.appended
        self.follows = follows
        """Of a slave: where changes are to be made instead. Empty: this broker leads."""
        self.standby: Standby | None = None
        """The slave's part of the engine, while there is one."""
        self.full = bool(follows)
        self.is_stopping = False
        """The server takes leave of its clients: see `begin_stop`."""
        self.read_errors_count = 0
        self.unflushed: set[Queue] = self.commits.unflushed
        """Queues with messages that are visible before they are on the disk: for readers by offset
        they end where the last flush left them."""
        self.gatherers: list[Callable[[], None]] = []
        """See `write_gathered`."""
        self._acks_scheduled = False
        # In the order of their first move, so that equal runs write equal logs.
        self._moved: dict[Group, None] = {}
        self._recounted: dict[Group, None] = {}
        self._note_moved = self._group_moved  # one method object for all groups
        self.journal.handle("acks", self._apply_acks)

    # --- numbers and queues ---------------------------------------------------------------

    def take_number(self) -> int:
        """A number that no queue, group or session ever had. Say it in an op to keep it."""
        number = self.next_number
        self.next_number += 1
        return number

    def saw_number(self, number: int) -> None:
        """An op used the number."""
        if number >= self.next_number:
            self.next_number = number + 1

    def durable_queue(self, number: int, *, own: bool) -> Queue:
        """A queue whose index is on disk, by a number that an op or a row says.

        Args:
            own: it is a topic's own queue (RocketMQ's entries).
        """
        self.saw_number(number)
        return Queue(number, self.store.index(number, ENTRY_SIZE if own else PRIVATE_ENTRY_SIZE))

    def volatile_queue(self, count_max: int, entry_size: int = ENTRY_SIZE) -> Queue:
        """A queue in memory, which loses its oldest entries beyond its limit."""
        index: Index = MemoryIndex(entry_size, count_max)
        return Queue(0, index)

    def group(
        self, queue: Queue, cursor: Cursor, *, number: int = 0, kind: type[Group] = Group
    ) -> Group:
        """A group on the queue; with a number it survives restarts."""
        moved = self._note_moved if number else _trim_memory
        group = kind(queue, cursor, number=number, reading=self.reading, moved=moved)
        if number:
            self.groups[number] = group
        else:
            self.volatile_groups.add(group)
        return group

    def drop_group(self, group: Group) -> None:
        """The group is gone."""
        group.leave()
        self.groups.pop(group.number, None)
        self.volatile_groups.discard(group)
        self._moved.pop(group, None)
        self._recounted.pop(group, None)

    # --- pace -----------------------------------------------------------------------------

    @property
    def flush_pending(self) -> bool:
        """Whether a flush was asked for that has not been reported."""
        return self.failure is None and self._flush_requested > self.log.flushed

    def _flush(self) -> None:
        """Ask for a flush of all that is written; then readers by offset see it."""
        written = self._flush_requested = self.log.written
        if self.unflushed:
            ends = [(queue, queue.visible) for queue in self.unflushed]
            self.unflushed.clear()
            self.commits.when(written, FLUSHED, self._show_flushed, written, ends, urgent=False)
        self.store.flusher.request()

    def flush_finished(self) -> None:
        """The flusher reported: call when its descriptor is readable."""
        try:
            flushed = self.store.flusher.collect()
        except StorageFailed as error:
            self.fail(error)
            return
        if self.standby is not None:
            self.standby.flush_finished(flushed)
            return
        self.commits.advance(FLUSHED, flushed)
        self.replicas.flushed(flushed)
        if self.on_written is not None:
            self.on_written()

    def _show_flushed(self, written: int, ends: Sequence[tuple[Queue, int]]) -> None:
        """Messages that were visible already are on the disk now, up to these offsets."""
        for queue, end in ends:
            if queue.read_point is FLUSHED:
                queue.show_to(end)
            else:
                self.commits.when(written, queue.read_point, queue.show_to, end, urgent=False)

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """See `BrokerPort.overloaded`."""
        behind = self.log.appended - self.commits.points[FLUSHED]
        held, self.held_published = self.held_published, False
        if held and self.held_bytes > self.limits.held_bytes_pause:
            # What this publisher sent waits for replicas; others are not kept waiting.
            self.when_committed(Position(self.log.appended), IN_SYNC, resume)
            return True
        if behind < self.limits.unflushed_bytes_pause or self.failure is not None:
            return False
        self.when_committed(Position(self.log.appended), FLUSHED, resume)
        return True

    def when_flushed(self, position: Position, callback: Callable[[], None]) -> None:
        """Call back when this broker itself has the position on its disk, whatever others have."""
        if self.standby is not None:
            self.standby.when_flushed(position, callback)
        else:
            self.when_committed(position, FLUSHED, callback)

    def log_end(self) -> Position:
        """See `StoragePort.log_end`."""
        return Position(self.log.appended)

    def begin_stop(self) -> None:
        """The server is about to take leave of its clients. What they give back from now on goes
        to its place, flagged redelivered, and does not count against a delivery limit."""
        self.is_stopping = True

    def when_blocked(self, callback: Callable[[str], None]) -> None:
        """See `StoragePort.when_blocked`."""
        self.disk.watch(callback)

    def when_failed(self, callback: Callable[[StorageFailed], None]) -> None:
        """See `StoragePort.when_failed`."""
        self.on_failure.append(callback)

    def fail(self, error: StorageFailed) -> None:
        """The log directory failed: read-only from now on, and nothing that waits is let go."""
        if self.failure is not None:
            return
        self.failure = error
        self.commits.fail()
        if self.standby is not None:
            self.standby.failed()
        for callback in self.on_failure:
            callback(error)

    def has_failed(self) -> bool:
        """Whether the log directory failed."""
        return self.failure is not None

    def _room_changed(self, reason: str) -> None:
        self.full = bool(reason or self.follows)

    def check_writable(self, *, frees: bool = False) -> None:
        """Raises Refused when nothing can be stored.

        Args:
            frees: what is to be stored lets go of something: it may use the disk's reserve.
        """
        if self.failure is not None:
            raise Refused(
                Reason.READ_ONLY,
                f"the broker is read-only since its log failed ({self.failure}): "
                "repair the disk and restart it",
            )
        self.check_leads()
        if self.disk.log_full if frees else self.full:
            raise Refused(Reason.STORAGE_FULL, self.disk.reason)

    def resign(self, why: str) -> None:
        """Another broker leads: take nothing more, and count no replica."""
        self.follows = why
        self.full = True
        self.replicas.resign()

    def check_leads(self) -> None:
        """Raises Refused where this broker follows another."""
        if self.follows:
            raise Refused(Reason.READ_ONLY, self.follows)

    def check_held(self) -> None:
        """Raises Refused when too much waits for replicas."""
        if self.held_bytes > self.limits.held_bytes_max:
            raise Refused(
                Reason.LIMIT,
                f"{self.held_bytes} bytes wait for a replica, and the limit is "
                f"{self.limits.held_bytes_max}: start the replica, or lower min_in_sync",
            )

    @property
    def writable(self) -> bool:
        """Whether the log takes what subscribers need (packet ids), as far as is known."""
        return self.failure is None and not self.disk.log_full and not self.follows

    def refused(self, error: StoreError) -> Refused:
        """What the caller is told when an append fails. Nothing was stored."""
        if isinstance(error, TooLarge):
            return Refused(Reason.TOO_LARGE, str(error))
        if isinstance(error, Follows):
            return Refused(Reason.READ_ONLY, str(error))
        if isinstance(error, StorageBusy):
            return Refused(Reason.LIMIT, f"the disk does not keep up ({error}): send slower")
        if isinstance(error, StorageShort):
            return Refused(Reason.STORAGE_FULL, f"{SHORT} ({error}): try again")
        if isinstance(error, StorageFull):
            return Refused(Reason.STORAGE_FULL, f"the disk is full ({error}): free some space")
        if isinstance(error, StorageFailed):
            self.fail(error)
        return Refused(Reason.READ_ONLY, f"the broker is read-only, its log failed: {error}")

    def end(self) -> Position:
        """What an answer waits for that depends on all that was appended. After a failure: on
        all that ever will be on the disk."""
        if self.failure is not None:
            return Position(self.commits.points[FLUSHED])
        return Position(self.log.appended)

    def read_failed(self, error: Exception) -> None:
        """A record could not be read. Counted and told; the queue stands still. One that retention
        took while it was about to be read is no failure."""
        if isinstance(error, CorruptRecord) and error.position < self.log.start:
            return
        self.read_errors_count += 1
        self.last_read_error = error

    last_read_error: Exception | None = None

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self.scheduler.call_soon(callback)

    # --- acks gather ----------------------------------------------------------------------

    def _group_moved(self, group: Group) -> None:
        self._moved[group] = None
        if not self._acks_scheduled:
            self._acks_scheduled = True
            self.scheduler.call_later(self.limits.ack_delay_seconds, self.write_acks)

    def passed_over(self, group: Group) -> None:
        """A group let go of messages that nobody waits for. It is noted with the next acks, or when
        the state is saved: lost by a crash, it happens once more."""
        self._moved[group] = None

    def recounted(self, group: Group) -> None:
        """Messages of a group with a delivery limit were given back: note it with the acks."""
        if group.number:
            self._recounted[group] = None
            self._group_moved(group)

    def write_gathered(self) -> None:
        """Write what gathers for a moment before it becomes a record: acks, committed offsets."""
        self.write_acks()
        for write in self.gatherers:
            write()

    def write_acks(self) -> None:
        """One record for all that was delivered and settled since the last. Nobody waits for it;
        what the log does not take now gathers on."""
        self._acks_scheduled = False
        moved, self._moved = self._moved, {}
        if not moved or self.failure is not None:
            return
        groups = [group for group in moved if group.number in self.groups]
        if not groups:
            return
        acks = self.take_acks(groups)
        op: Op = {"op": "acks", "g": acks}
        counts = self._take_counts()
        if counts:
            op["c"] = counts
        try:
            self.journal.write(op)
        except Refused:
            self.keep_acks(groups, acks)
            for number, stretches in counts:
                group = self.groups[number]
                if group.rules is not None and group.rules.redeliveries is not None:
                    group.rules.redeliveries.keep_changes(stretches)
                    self._recounted[group] = None

    def _take_counts(self) -> list[tuple[int, list[list[int]]]]:
        """What the next record of acks has to say of deliveries that were given back."""
        counts = [
            (group.number, group.rules.redeliveries.take_changes())
            for group in self._recounted
            if group.rules is not None and group.rules.redeliveries is not None
        ]
        self._recounted.clear()
        return counts

    def take_acks(self, groups: Iterable[Group]) -> list[Acks]:
        """What the next record of acks has to say of these groups. Whoever takes it writes it."""
        acks: list[Acks] = []
        for group in groups:
            self._moved.pop(group, None)
            acks.append((group.number, group.cursor.next, group.cursor.take_settled()))
        return acks

    def keep_acks(self, groups: Iterable[Group], acks: Iterable[Acks]) -> None:
        """The log did not take them: they gather on, to be written a little later."""
        for group, (_, _, settled) in zip(groups, acks, strict=True):
            group.cursor.give_back_settled(settled)
            self._moved[group] = None
        if self._moved and not self._acks_scheduled:
            self._acks_scheduled = True
            self.scheduler.call_later(self.limits.lazy_flush_seconds, self.write_acks)

    def _apply_acks(self, op: Op) -> Touched:
        touched: list[tuple[str, str]] = []
        for number, next_offset, settled in op["g"]:
            group = self.groups.get(number)
            if group is None:
                continue
            touched.append(("group", str(number)))
            if group.cursor.next < next_offset:
                group.cursor.delivered_to(next_offset)
            for first, count in settled:
                group.cursor.settle(first, count)
            group.cursor.forget_settled()
        for number, stretches in op.get("c", ()):
            self.load_counts(number, stretches)
        return touched

    def forget_settled(self) -> None:
        """What a start has folded is in the log: no record of acks says it again."""
        for group in self.groups.values():
            group.cursor.forget_settled()

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state_kinds.py`."""
        return single("number", lambda: self.next_number, self._load_number)

    def _load_number(self, value: int) -> None:
        self.next_number = value

    def group_row(self, group: Group) -> dict[str, object]:
        """The group as a JSON value for the snapshot."""
        row: dict[str, object] = {"q": group.queue.number, **group.cursor.snapshot()}
        if group.rules is not None and group.rules.redeliveries is not None:
            row["times"] = list(group.rules.redeliveries.stretches(group.cursor.floor))
        return row

    def load_counts(self, number: int, stretches: Iterable[list[int]]) -> None:
        """How often messages of a group were given back, as the log or the snapshot has it."""
        group = self.groups.get(number)
        if group is not None and group.rules is not None and group.rules.redeliveries is not None:
            for first, count, times in stretches:
                group.rules.redeliveries.load(first, count, times, group.cursor.floor)


def _trim_memory(group: Group) -> None:
    group.cursor.forget_settled()  # nobody writes a record of these acks
    group.queue.trim()
