"""What the engine's parts share: the store, the commit points, the journal, numbers and groups.

The parts (topics, AMQP entities, sessions, retained) are separate classes that each own their
state and its ops. They get a `Core` and never reach for one another's insides.

Its pace stands in `kernels/path.py`: what was appended during a loop iteration is written at its
end, and a flush is asked for when somebody waits for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from polymq.broker.commits import CommitPoints
from polymq.broker.disk import SHORT, Disk
from polymq.broker.durability import FLUSHED, IN_SYNC, Durability
from polymq.broker.errors import Reason, Refused, StorageFailed, UnknownChange
from polymq.broker.kernels.path import CoreEnd, QueueEnd
from polymq.broker.limits import Limits
from polymq.broker.messages.compressed import PlainBody
from polymq.broker.messages.readers import PatientReaders, Readers, Reading
from polymq.broker.messages.records import Metas
from polymq.broker.notices import Notices
from polymq.broker.pacing.latencies import CommitTimes
from polymq.broker.pacing.scheduler import Scheduler
from polymq.broker.pacing.sweeping import Sweeper
from polymq.broker.pacing.timers import Timers
from polymq.broker.pacing.unhurried import unhurried
from polymq.broker.port.values import Position
from polymq.broker.replicas import Replicas
from polymq.broker.state.journal import Journal
from polymq.broker.state.kinds import StateKind, single
from polymq.core_log.errors import (
    CorruptRecord,
    Follows,
    StorageBusy,
    StorageFull,
    StorageShort,
    StoreError,
    TooLarge,
)
from polymq.core_log.store import Store

SYSTEM_FLAG_STATE: Final = 0x0001_0000
"""Bit of the record's system flag, beyond RocketMQ's: a data record that also changes state
(retained, QoS 2, settling). A restart folds these and the system topic, and skips the rest."""


class Follower(Protocol):
    """The slave's part of an engine (`following/standby.py`), as far as its core knows of it."""

    def flush_finished(self, flushed: int) -> None:
        """This broker has so much on its disk."""

    def when_flushed(self, position: int, callback: Callable[[], None]) -> None:
        """Call back when this broker has the position on its disk."""

    def failed(self) -> None:
        """The disk failed: what waits is never let go."""


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
        clock: Callable[[], float] = time.perf_counter,
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
            clock_ms=clock_ms,
        )
        self.commit_times = CommitTimes(clock, store.log.records)
        """How long messages wait for the disk."""
        self.next_number = 1
        """The next number for a queue, a group or a session. Never reused."""
        self.on_failure: list[Callable[[StorageFailed], None]] = []
        disk.watch(self._room_changed)
        if not follows:
            store.log.on_unwritten = self.appended
        self.follows = follows
        """Of a slave: where changes are to be made instead. Empty: this broker leads."""
        self.standby: Follower | None = None
        """The slave's part of the engine, while there is one."""
        self.unknown: UnknownChange | None = None
        """What came of the master's log that this version cannot fold. The state stays as it is,
        and is not saved: a start would take it for that of the whole log."""
        self.full = bool(follows)
        self.is_stopping = False
        """The server takes leave of its clients: see `begin_stop`."""
        self.read_errors_count = 0
        self.unflushed: set[QueueEnd] = self.commits.unflushed
        """Queues with messages that are visible before they are on the disk: for readers by offset
        they end where the last flush left them."""
        self.gatherers: list[Callable[[], None]] = []
        """See `write_gathered`."""

    # --- numbers --------------------------------------------------------------------------

    def take_number(self) -> int:
        """A number that no queue, group or session ever had. Say it in an op to keep it."""
        number = self.next_number
        self.next_number += 1
        return number

    def saw_number(self, number: int) -> None:
        """An op used the number."""
        if number >= self.next_number:
            self.next_number = number + 1

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
        self.commit_times.asked(written, self.log.records)
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
        self.commit_times.reached(flushed)
        self.commits.advance(FLUSHED, flushed)
        self.replicas.flushed(flushed)
        if self.on_written is not None:
            self.on_written()

    def _show_flushed(self, written: int, ends: Sequence[tuple[QueueEnd, int]]) -> None:
        """Messages that were visible already are on the disk now, up to these offsets."""
        for queue, end in ends:
            if queue.read_point is FLUSHED:
                queue.show_to(end)
            else:
                self.commits.when(written, queue.read_point, queue.show_to, end, urgent=False)

    def sample_deliveries(self) -> None:
        """Measure the next batch that a queue hands out, and the next one for live subscribers."""
        times = self.reading.delivery_times
        times.due = True
        self.commits.sample = times.note_run

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

    def write_gathered(self) -> None:
        """Write what gathers for a moment before it becomes a record: acks, committed offsets."""
        for write in self.gatherers:
            write()

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return single("number", lambda: self.next_number, self._load_number)

    def _load_number(self, value: int) -> None:
        self.next_number = value
