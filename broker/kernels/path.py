# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The way of a run of messages through the engine: published, waiting for its commit point, shown.

What is here happens for every run, and a run is one message where clients send one at a time. So it
is few steps, and one source in two forms: plain Python, and a C extension, for which
`path.pxd` says of what types all this is. What does not happen to every run stands in
`topics/topics.py` and the other parts, in classes that inherit from these.

Rules:

* Nothing leaves out of order within its class of commit, and nothing after a storage failure.
* What was appended in an iteration of the loop is written at its end, in one piece, before anything
  of it is let go.
* `Publisher.publish_run` takes the runs of which nothing has to be known but that they are stored:
  for the topic's own queue and live subscribers. `Topics.publish` takes all runs.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from polymq.broker.disk import SHORT
from polymq.broker.durability import APPENDED, FLUSHED, Durability
from polymq.broker.kernels.codes import JOINED_COUNT_MAX
from polymq.broker.kernels.steps import release_part
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.pacing.costs import (
    ANSWER_COST,
    LIVE_BYTES_SHIFT,
    LIVE_COST,
    QUEUE_COST,
    QUEUES_MANY,
    SHOWN_AT_ONCE,
)
from polymq.core_log.errors import StorageFailed, StorageFull, StorageShort
from polymq.core_log.kernels.layout import ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from polymq.broker.disk import Disk
    from polymq.broker.kernels import routes
    from polymq.broker.kernels.targets import LiveTarget, OneReader, Reader
    from polymq.broker.messages.runs import RunMeta
    from polymq.broker.pacing.scheduler import Scheduler
    from polymq.broker.port.values import Position
    from polymq.core_log.commit_log import CommitLog
    from polymq.core_log.kernels import log_end
    from polymq.core_log.kernels.batch import Batch
    from polymq.core_log.queue_index import Index
    from polymq.core_log.record import RecordTemplate

_U64: Final = struct.Struct(">Q")


class Committed(RecordRun):
    """A run of messages that was appended in one call, still in memory.

    It is the run of its records, where they stand in one stretch (`parts` is None), which nearly
    all do; else `parts` has a run for each stretch. `count` counts all of them.
    """

    __slots__ = ("parts", "spans")

    def __init__(self, meta: RunMeta, spans: list[log_end.Span]) -> None:
        self.fill(meta, spans)

    def fill(self, meta: RunMeta, spans: list[log_end.Span]) -> None:
        """Be the run of these spans."""
        span = spans[0]
        self.meta = meta
        self.memory = span.memory
        self.start = span.start
        self.end = span.end
        self.count = span.count
        self.encoded = {}
        self.spans = spans
        self.parts: list[RecordRun] | None = None
        if len(spans) > 1:
            self.parts = []
            self.count = 0
            for part in spans:
                self.count += part.count
                self.parts.append(RecordRun(meta, part.memory, part.start, part.end, part.count))

    @property
    def runs(self) -> list[RecordRun]:
        """All of it."""
        return [self] if self.parts is None else self.parts

    def join(self, span: log_end.Span) -> bool:
        """Take records that stand right behind its own, before anybody has seen it.

        Returns:
            Whether they do.
        """
        last: RecordRun = self
        if self.parts is not None:
            last = self.parts[len(self.parts) - 1]
        if last.memory is not span.memory or last.end != span.start:
            return False
        last.end = span.end
        self.count += span.count
        if last is not self:
            last.count += span.count
        self.spans.append(span)
        return True

    def slice(self, first: int, count: int) -> list[RecordRun]:
        """Messages [first, first + count) of the run, as they are stored."""
        if first == 0 and count == self.count:
            return self.runs
        runs: list[RecordRun] = []
        for span in self.spans:
            low, high = max(first, 0), min(first + count, span.count)
            if low < high:
                start = span.start + _bytes_before(span, low)
                end = span.start + _bytes_before(span, high) if high < span.count else span.end
                runs.append(RecordRun(self.meta, span.memory, start, end, high - low))
            first -= span.count
        return runs


def _bytes_before(span: log_end.Span, index: int) -> int:
    """Bytes from the span's first record to its record `index`."""
    position: int = _U64.unpack_from(span.entries, index * ENTRY_SIZE)[0]
    return position - span.position


class QueueEnd:
    """What of a queue the publish path needs; `Queue` says what the attributes mean."""

    __slots__ = (
        "blocked_until",
        "flushed",
        "index",
        "number",
        "on_grown",
        "read_point",
        "reader",
        "visible",
    )

    def __init__(self, number: int, index: Index) -> None:
        self.number = number
        self.index = index
        self.reader: Reader | None = None
        self.visible = index.end_offset
        self.flushed = index.end_offset
        self.blocked_until = 0
        self.read_point: Durability = FLUSHED
        self.on_grown: Callable[[], None] | None = None

    @property
    def groups(self) -> Sequence[OneReader]:
        """Those that read it: for the subclass to say."""
        raise NotImplementedError

    def show_to(self, end: int) -> None:
        """Readers by offset may see the queue up to this offset, if they could not yet."""
        if end > self.flushed:
            self.flushed = end
            if self.on_grown is not None:
                self.on_grown()

    def commit(self, run: Committed) -> None:
        """The next `run.count` messages became visible."""
        first = self.visible
        self.visible = first + run.count
        if self.reader is not None:
            self.reader.arrived(run, first)


class Waiting(Committed):
    """A run that waits for its commit point, and who gets it then.

    Equal messages right behind a run, of other reads, join it: they are sent as one with it.
    """

    __slots__ = (
        "durability",
        "first",
        "groups",
        "inside",
        "live",
        "on_shown",
        "own",
        "position",
        "queues",
        "shown",
        "template",
    )

    def __init__(
        self,
        template: PlainTemplate,
        spans: list[log_end.Span],
        durability: Durability,
        position: int,
    ) -> None:
        self.fill(template.meta, spans)
        self.wait_for(template, durability, position)

    def wait_for(self, template: PlainTemplate, durability: Durability, position: int) -> None:
        """Note whose messages these are, and what they wait for."""
        route = template.route
        self.template = template
        self.live: tuple[LiveTarget, ...] = route.live
        self.queues: tuple[QueueEnd, ...] = template.queues
        self.durability = durability
        self.position = position
        self.own = True  # readers by offset get it with its first queue, which is the topic's own
        self.on_shown: Callable[[Waiting], None] | None = None  # told when everybody has it
        self.shown = 0  # queues, then live subscribers, that have it already
        self.groups: tuple[OneReader, ...] | None = None  # of the next queue, while some have it
        self.inside = self.first = 0  # how many of these; its first offset there

    def takes(self, template: PlainTemplate, spans: list[log_end.Span], written: int) -> bool:
        """Take the spans of its own template, if nobody can tell the difference: what was written
        may be flushed before what comes now."""
        return (
            self.template is template
            and self.position > written
            and self.live is template.route.live
            and self.queues is template.queues
            and self.count < JOINED_COUNT_MAX
            and len(spans) == 1
            and self.join(spans[0])
        )

    def release(self, unflushed: set[QueueEnd]) -> None:
        """It passed its commit point: everybody may see it, readers by offset as far as theirs
        goes. `unflushed` gets the topic's own queue where the disk may not have the run."""
        if self.own:
            self.release_to_readers(unflushed)
        for queue in self.queues:
            QueueEnd.commit(queue, self)
        for target in self.live:
            target.offer(self)
        if self.on_shown is not None:
            self.on_shown(self)

    def release_to_readers(self, unflushed: set[QueueEnd]) -> None:
        """The part of `release` for those who read by offset."""
        own = self.queues[0]
        if self.durability is APPENDED:
            unflushed.add(own)
        elif self.durability >= own.read_point:
            own.show_to(own.visible + self.count)

    def release_to_queues(self, room: int) -> int:
        """The part of `release` for queues, in order, of which only as many get it as there is room
        for, and none behind one whose many groups there is no room for. Returns what is left."""
        while room > 0 and self.shown < len(self.queues):
            queue = self.queues[self.shown]
            reader: Any = queue.reader
            cost = 0 if reader is None else reader.arrival_cost()
            if cost > room and isinstance(reader, list):
                break
            self.shown += 1
            QueueEnd.commit(queue, self)
            room -= QUEUE_COST + cost
        return room

    def cost(self) -> int:
        """What it costs to show it to everybody, in the units of `SHOWN_AT_ONCE`."""
        if len(self.queues) > QUEUES_MANY:
            return SHOWN_AT_ONCE + 1
        cost = len(self.live) * (LIVE_COST + (self.end - self.start >> LIVE_BYTES_SHIFT))
        for queue in self.queues:
            cost += QUEUE_COST
            if queue.reader is not None:
                cost += queue.reader.arrival_cost()
        return cost


class CommitPoints:
    """The points, and what waits for each (`broker.commits`).

    Args:
        position: how far the log was on the disk at the start.
        in_sync: how far replicas are known to have had it then.
        later: calls back in the loop's next iteration; None: points move in one step.
    """

    def __init__(
        self,
        position: int,
        in_sync: int | None = None,
        *,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        copied = position if in_sync is None else in_sync
        self.points = [position, position, copied, copied]
        """By `Durability`: how far the log is committed in that class, and everybody was told."""
        self.reached = list(self.points)
        """How far the points may move: they follow in steps, where much is let go at once."""
        self.urgent = position
        """The highest position that somebody waits for in a class that needs a flush."""
        self.holding = False
        """Whether anything waits for replicas: then messages of one queue may have to wait for
        predecessors of a stronger class."""
        self.failed = False
        self.unflushed: set[QueueEnd] = set()  # see `broker.core.Core.unflushed`
        self.sample: Callable[[Waiting], object] | None = None
        """Told of the next run that live subscribers get, once: then it is None again."""
        self._waiting: list[deque[tuple[int, Any, Any]]] = [deque() for _ in Durability]
        self._later = later
        self._going_on = False  # the next step is scheduled

    def committed(self, position: int, durability: Durability) -> bool:
        """Whether nothing has to be waited for."""
        return position <= self.points[durability]

    def wait_for(
        self,
        position: int,
        durability: Durability,
        callback: Callable[..., None],
        args: tuple[object, ...],
        urgent: bool,
    ) -> None:
        """`when`, with the arguments as a tuple."""
        if self.failed and position > self.points[durability]:
            return
        waiting = self._waiting[durability]
        if position <= self.points[durability] and not (waiting and waiting[0][0] <= position):
            callback(*args)
            return
        if waiting and position < waiting[-1][0]:
            position = waiting[-1][0]  # keep the order; waiting longer is always right
        waiting.append((position, callback, args))
        if durability > FLUSHED:
            self.holding = True
        if urgent and durability is not APPENDED and position > self.urgent:
            self.urgent = position

    def show_when_committed(self, run: Waiting) -> None:
        """Release the run, which was appended just now: nobody waits for a later position."""
        self._waiting[run.durability].append((run.position, run, None))
        if run.durability is not APPENDED:
            self.urgent = run.position
            self.holding = self.holding or run.durability is not FLUSHED

    def advance(self, durability: Durability, position: int) -> None:
        """The point of the class has reached the position: let go what waited for it."""
        if self.failed or position <= self.reached[durability]:
            return
        self.reached[durability] = position
        self._let_go(durability, position)

    def _let_go(self, durability: Durability, position: int) -> None:
        """Move the point as far as one step goes, and not past what a weaker one lets go of now."""
        waiting = self._waiting[durability]
        if self._later is not None:
            for weaker in range(durability):
                behind = self._waiting[weaker]
                if behind and behind[0][0] <= min(position, self.reached[weaker]):
                    position = behind[0][0] - 1
                    self._go_on_later()
            if position <= self.points[durability]:
                return
            count = self._fitting(waiting, position)
            if count >= 0:
                self._let_some_go(durability, count)
                return
        self.points[durability] = position
        while waiting:
            entry = waiting[0]
            end = entry[0]
            if end > position:
                break
            waiting.popleft()
            if entry[2] is None:
                run: Waiting = entry[1]
                run.release(self.unflushed)
                if self.sample is not None and run.live:
                    self.sample(run)
                    self.sample = None
            elif entry[2]:
                entry[1](*entry[2])
            else:
                entry[1]()
        if durability > FLUSHED:
            self.holding = any(self._waiting[FLUSHED + 1 :])

    def _fitting(self, waiting: deque[tuple[int, Any, Any]], position: int) -> int:
        """How many of those that wait for the position go in one step; -1: all of them."""
        room = SHOWN_AT_ONCE
        for count, entry in enumerate(waiting):
            end = entry[0]
            if end > position:
                return -1
            if entry[2] is None:
                run: Waiting = entry[1]
                room -= run.cost()
                # Where some have it already, the rest goes in steps, whatever it costs now.
                if room < 0 or run.shown or run.groups is not None:
                    return count
            else:
                room -= ANSWER_COST
                if room < 0 and count:
                    return count
        return -1

    def _let_some_go(self, durability: Durability, count: int) -> None:
        """Let the first `count` go, or a part of the first. Nothing overtakes what is left."""
        waiting = self._waiting[durability]
        self.points[durability] = max(self.points[durability], waiting[count][0] - 1)
        if count == 0:
            run: Waiting = waiting[0][1]
            if release_part(run, self.unflushed) and waiting:
                waiting.popleft()
        while count > 0 and waiting:
            count -= 1
            entry = waiting.popleft()
            if entry[2] is None:
                run = entry[1]
                run.release(self.unflushed)
            else:
                entry[1](*entry[2])
        self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._going_on and self._later is not None:
            self._going_on = True
            self._later(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        for durability in Durability:
            position = self.reached[durability]
            if position > self.points[durability] and not self.failed:
                self._let_go(durability, position)


class CoreEnd:
    """What the publish path needs of the engine's core, and what that does in each iteration of the
    loop: what was appended is written at the end of it, then what waited for that is let go, and a
    flush is asked for where somebody waits for one.

    Args:
        clock_ms: the time of day.
        commits: the commit points of the log.
        scheduler: the loop (`call_soon`, `call_later`).
        lazy_flush_seconds: how long what nobody waits for stays without a flush.
        lazy_flush_bytes: how much of that there may be.
    """

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int],
        log: CommitLog,
        commits: CommitPoints,
        scheduler: Scheduler,
        disk: Disk,
        lazy_flush_seconds: float,
        lazy_flush_bytes: int,
    ) -> None:
        self.clock_ms = clock_ms
        self.log = log
        self.commits = commits
        self.scheduler = scheduler
        self.disk = disk
        self.failure: StorageFailed | None = None
        self.full = False
        """The disk is full, or nearly: publishers are refused."""
        self.end_scheduled = False
        """The end of this loop iteration will write, let go and ask for a flush."""
        self.iteration_ms = 0
        """When the first run was appended of those that this end will write."""
        self.on_written: Callable[[], None] | None = None
        """Told at the end of an iteration that wrote, and when a point has moved: who ships the log
        to replicas."""
        self._lazy_flush_seconds = lazy_flush_seconds
        self._lazy_flush_bytes = lazy_flush_bytes
        self._flush_requested: int = log.flushed
        self._lazy_scheduled = False

    def appended(self) -> None:
        """Something was appended: write it at the end of this loop iteration."""
        if not self.end_scheduled:
            self.end_scheduled = True
            self.scheduler.call_soon(self.end_iteration)

    def end_iteration(self) -> None:
        """Write what was appended, let go what waits for that, ask for a flush if one is needed."""
        self.end_scheduled = False
        if self.failure is not None:
            return
        log = self.log
        try:
            log.write()
        except StorageShort as error:
            self.disk.met_full(f"{SHORT} ({error}): it is tried again")
            self.scheduler.call_later(self._lazy_flush_seconds, self.end_iteration)
            return
        except StorageFull:
            self.disk.met_full()
            self.scheduler.call_later(self._lazy_flush_seconds, self.end_iteration)
            return
        except StorageFailed as error:
            self.fail(error)
            return
        if self.disk.log_full:
            self.disk.wrote()
        written = log.written
        self.commits.advance(APPENDED, written)
        if self.on_written is not None:
            self.on_written()
        if self._flush_requested >= written:
            return
        urgent = self.commits.urgent
        if (
            urgent > self._flush_requested
            or written - self._flush_requested > self._lazy_flush_bytes
        ):
            self._flush()
        elif not self._lazy_scheduled:
            self._lazy_scheduled = True
            self.scheduler.call_later(self._lazy_flush_seconds, self._flush_lazily)

    def _flush_lazily(self) -> None:
        self._lazy_scheduled = False
        if self.failure is None and self.log.written > self._flush_requested:
            self._flush()

    def when_committed(
        self, position: int, durability: Durability, callback: Callable[..., None], *args: object
    ) -> None:
        """See `BrokerPort.when_committed`."""
        commits = self.commits
        commits.wait_for(position, durability, callback, args, True)
        if not self.end_scheduled and position > commits.points[durability]:
            self.appended()  # what was written some time ago may not have been asked a flush for

    def committed(self, position: int, durability: Durability) -> bool:
        """See `BrokerPort.committed`."""
        return self.commits.committed(position, durability)

    # --- for the subclass to implement --------------------------------------------------------

    def _flush(self) -> None:
        """Ask for a flush of all that is written; then readers by offset see it."""
        raise NotImplementedError

    def fail(self, error: StorageFailed) -> None:
        """The log directory failed."""
        raise NotImplementedError


class PlainTemplate:
    """What of a template the publish path needs.

    Attributes:
        derived_from: the queues of the route as of which the rest is up to date.
        queues: all queues that take its messages, the topic's own first.
        plain: only the topic's queue and live subscribers get its messages; no replica has to.
    """

    __slots__ = (
        "derived_from",
        "durability",
        "meta",
        "plain",
        "queue",
        "queues",
        "record",
        "route",
    )

    def __init__(
        self,
        route: routes.RouteEnd,
        queue: QueueEnd,
        record: RecordTemplate,
        meta: RunMeta,
        durability: Durability,
    ) -> None:
        self.route = route
        self.queue = queue
        self.record = record
        self.meta = meta
        self.durability = durability
        self.derived_from: tuple[QueueEnd, ...] | None = None
        self.queues: tuple[QueueEnd, ...] = ()
        self.plain = False

    @property
    def valid(self) -> bool:
        """See `port.Template`."""
        return not self.route.evicted


class Publisher:
    """The publish path; `Topics` has the rest of it.

    Args:
        core: `Core`, for what it says of itself.
        router: `Router`, for its version.
    """

    def __init__(self, core: Any, router: routes.RouterEnd) -> None:
        self.core = core
        self.router = router
        self.log: CommitLog = core.log
        self.commits: CommitPoints = core.commits
        self._last: Waiting | None = None  # the run that was appended last

    def publish(self, template: Any, batch: Batch, first: int, last: int) -> Position:
        """Any run. See `BrokerPort.publish`."""
        raise NotImplementedError

    def publish_run(self, template: PlainTemplate, batch: Batch, first: int, last: int) -> Any:
        """`publish`, with fewer steps where that is all there is to it. Returns the position."""
        core = self.core
        route = template.route
        if (
            template.plain
            and template.derived_from is route.queues
            and route.version == self.router.version
            and not self.commits.holding
            and not core.full
            and core.failure is None
        ):
            queue = template.queue
            index = queue.index
            if not core.end_scheduled:
                core.iteration_ms = core.clock_ms()
            now = core.iteration_ms
            log = self.log
            span = log.append_plain(
                template.record, batch, first, last, None, queue.number, index.end_offset, now, now
            )
            if span is not None:
                index.append(span.entries)
                position = log.appended
                self.wait(template, [span], position)
                if not core.end_scheduled:
                    CoreEnd.appended(core)
                return position
        return self.publish(template, batch, first, last)

    def wait(self, template: PlainTemplate, spans: list[log_end.Span], position: int) -> None:
        """Make the run, which just was appended and ends at the position, visible when it is
        committed. Nothing waits for replicas."""
        last = self._last
        if last is not None and last.takes(template, spans, self.log.written):
            if last.durability is not APPENDED:
                for queue in last.queues:
                    queue.blocked_until = position
            return
        durability = template.durability
        if durability is APPENDED:
            flushed = self.commits.points[1]
            for queue in template.queues:
                if queue.blocked_until > flushed:
                    durability = FLUSHED
        run = Waiting.__new__(Waiting)
        run.fill(template.meta, spans)
        run.wait_for(template, durability, position)
        self._last = run
        if durability is FLUSHED:
            for queue in run.queues:
                queue.blocked_until = position
        self.commits.show_when_committed(run)
