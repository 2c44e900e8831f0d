"""Which messages a batch reads. Pure: no Spark, no network.

Spark keeps the *positions* of a query as JSON in its checkpoint: for each queue the offset up to
which it was read. This module turns bounds of queues (what the broker has now) and positions into
new positions, and two positions into the ranges between them.

Rules:

* A range follows from two positions alone: never from the number of cores, the time, or an option
  that may change. A batch that is replayed after a crash reads exactly what it read before.
* Spark does not log where a query began: it asks for the initial position again when the first
  batch is replayed, and the broker may have moved on. So the end of the first batch carries
  its own start (`origin`), which counts instead.
* Each position knows the *incarnation* of its topic. A topic that comes back with another one was
  deleted and created again: it is read from its beginning. One that comes back with the same one
  was out of reach, and is read on. So the position of a queue that is gone is kept, and what it
  had is lost only if its broker is there (`brokers`) and has it no more.
* Offsets in a queue are dense. What retention took before it was read is data loss, and so is what
  a deleted queue had beyond our position when we last looked (`unread`). A queue that *ends*
  before our position lost what it had confirmed: always an error.
* Where the query goes on without what was lost, the next batch moves the position of a deleted
  queue over it, and reads no other generation of that topic. So `plan` reports every loss.
* A range is read by several tasks, in *pieces* of so many messages from where the batch begins in
  the queue (`split`). How many that are is logged with the end of the batch (`task_rows`), so a
  replay has the same pieces, whatever the options say by then. Batches that were logged without it
  are not cut.
* `AvailableNow` reads up to a target that is fixed once. What came later waits: messages, queues,
  and topics that were created again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from polymq.spark_sink import former
from polymq.spark_sink.errors import BadOption, DataLoss, Unavailable

LATEST: Final = -1
EARLIEST: Final = -2
_FORMAT: Final = 2
_FORMER_FORMAT: Final = 1
_LISTED_MAX: Final = 10
"""Entries of an error text; a thousand queues would make it unreadable."""
TASK_ROWS: Final = 262_144
"""Messages that a task reads at most, if the options say nothing: several tasks for one hot queue,
and files of some 30 MB for messages of 100 bytes."""
GONE_QUEUES_MAX: Final = 10_000
"""Positions kept of queues that are gone while their broker is there: deleted, unless the broker
was just coming or going. Beyond it, those of the oldest topics are forgotten."""

_log = logging.getLogger("polymq.sink")


class Queue(NamedTuple):
    """A queue of a topic on a broker group."""

    broker: str
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @classmethod
    def parse(cls, text: str) -> Queue:
        """The inverse of `str`; topics may have slashes, broker names may not."""
        broker, _, rest = text.partition("/")
        topic, _, queue_id = rest.rpartition("/")
        return cls(broker, topic, int(queue_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a queue holds now: offsets `first` to `end - 1`."""

    first: int
    end: int
    incarnation: int | None


Snapshot = Mapping[Queue, Bounds]
"""All queues of the wanted topics, as the broker has them now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """How far a query has read.

    Attributes:
        offsets: the next offset of each queue, also of those that are gone.
        incarnations: of the topics of these queues, by `broker/topic`.
        unread: where queues ended when they were last looked at, if that was further.
        origin: where the first batch began, in the end of the first batch only.
        initial: these are the start of a query, not the end of a batch.
        former: made by the first version of the sink (see the module `former`).
        task_rows: how many messages a task of the batch that ends here reads, at most; None: a
            queue is one task.
    """

    offsets: Mapping[Queue, int]
    incarnations: Mapping[str, int | None] = field(default_factory=dict)
    unread: Mapping[Queue, int] = field(default_factory=dict)
    origin: Mapping[Queue, int] | None = None
    initial: bool = False
    former: bool = False
    task_rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it, always in the current format. Equal positions give equal documents."""
        document: dict[str, Any] = {
            "version": _FORMAT,
            "offsets": _by_text(self.offsets),
            "incarnations": dict(sorted(self.incarnations.items())),
        }
        if self.unread:
            document["unread"] = _by_text(self.unread)
        if self.origin is not None:
            document["origin"] = _by_text(self.origin)
        if self.initial:
            document["initial"] = True
        if self.task_rows is not None:
            document["taskRows"] = self.task_rows
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Positions:
        """What `to_json` made, today's or that of the first version. Raises BadOption for what
        neither can have made."""
        version = document.get("version")
        if version not in (_FORMAT, _FORMER_FORMAT):
            raise BadOption(f"not positions of this source: {json.dumps(document)[:200]}")
        is_former = version == _FORMER_FORMAT
        incarnations = document["incarnations"]
        origin = document.get("origin")
        return cls(
            offsets=_by_queue(document["offsets"], is_former),
            incarnations=_renamed(incarnations) if is_former else incarnations,
            unread=_by_queue(document.get("unread", {}), is_former),
            origin=None if origin is None else _by_queue(origin, is_former),
            initial=document.get("initial", False),
            former=is_former,
            task_rows=document.get("taskRows"),
        )

    def incarnation_of(self, queue: Queue, default: int | None) -> int | None:
        """The incarnation that a queue's position belongs to; `default` if none is known."""
        return self.incarnations.get(_topic_key(queue), default)


def _by_text(offsets: Mapping[Queue, int]) -> dict[str, int]:
    return {str(queue): offsets[queue] for queue in sorted(offsets)}


def _by_queue(offsets: Mapping[str, int], is_former: bool) -> dict[Queue, int]:
    queues = {Queue.parse(name): offset for name, offset in offsets.items()}
    if not is_former:
        return queues
    return {
        queue._replace(topic=former.current_topic(queue.topic)): offset
        for queue, offset in queues.items()
    }


def _renamed(incarnations: Mapping[str, int | None]) -> dict[str, int | None]:
    renamed = {}
    for key, incarnation in incarnations.items():
        broker, _, topic = key.partition("/")
        renamed[f"{broker}/{former.current_topic(topic)}"] = incarnation
    return renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets `first` to `end - 1` of a queue, to be read by one task.

    Attributes:
        planned_first: where the range begins by the positions; `first` is later if retention took
            the beginning and the query goes on without it.
        former: it was planned by the first version of the sink.
    """

    queue: Queue
    first: int
    end: int
    planned_first: int
    incarnation: int | None
    former: bool = False


# --- where to begin ---------------------------------------------------------------------------


def starting_positions(
    option: str, snapshot: Snapshot, at_time: Mapping[Queue, int] | None = None
) -> Positions:
    """The initial position of a query, from its option `startingOffsets`.

    Args:
        at_time: offsets that count instead, for queues for which a time was given.
        option: `earliest`, `latest`, or JSON: topic to queue id to offset, where -1 stands for
            latest and -2 for earliest; queues that it does not name begin at the earliest. With
            several broker groups a level of broker names stands between topic and queue id.
    """
    offsets = _resolve(option, snapshot, default=EARLIEST, name="startingOffsets")
    offsets |= at_time or {}
    return Positions(offsets=offsets, incarnations=_incarnations(snapshot), initial=True)


def ending_positions(
    option: str, snapshot: Snapshot, at_time: Mapping[Queue, int] | None = None
) -> Positions:
    """Where a batch query ends, from its option `endingOffsets`; unnamed queues at the latest.

    Args:
        at_time: offsets that count instead, for queues for which a time was given.
    """
    offsets = _resolve(option, snapshot, default=LATEST, name="endingOffsets")
    offsets |= at_time or {}
    return Positions(offsets=offsets, incarnations=_incarnations(snapshot))


def _incarnations(snapshot: Snapshot) -> dict[str, int | None]:
    return {_topic_key(queue): bounds.incarnation for queue, bounds in snapshot.items()}


def _topic_key(queue: Queue) -> str:
    return f"{queue.broker}/{queue.topic}"


def _resolve(option: str, snapshot: Snapshot, *, default: int, name: str) -> dict[Queue, int]:
    text = option.strip()
    if text.lower() in ("earliest", "latest"):
        default = EARLIEST if text.lower() == "earliest" else LATEST
        named: Mapping[Queue, int] = {}
    else:
        named = _parse_offsets(text, snapshot, name)
    resolved = {}
    for queue, bounds in snapshot.items():
        offset = named.get(queue, default)
        if offset == EARLIEST:
            offset = bounds.first
        elif offset == LATEST:
            offset = bounds.end
        if not bounds.first <= offset <= bounds.end:
            raise BadOption(
                f"{name}: queue {queue} has offsets {bounds.first} to {bounds.end}, not {offset}"
            )
        resolved[queue] = offset
    return resolved


def times_of(text: str, snapshot: Snapshot, name: str) -> dict[Queue, int]:
    """Which queues have which time, in milliseconds since the epoch.

    Args:
        text: a number for all queues, or JSON as for `startingOffsets`, with times for offsets.
        name: of the option.
    """
    if text.strip().isdecimal():
        return dict.fromkeys(snapshot, int(text))
    times = _parse_offsets(text, snapshot, name)
    if any(time_ms < 0 for time_ms in times.values()):
        raise BadOption(f"{name}: times are milliseconds since 1970, and not negative")
    return times


def check_found(
    found: Mapping[Queue, int], times: Mapping[Queue, int], snapshot: Snapshot, name: str
) -> None:
    """Raise BadOption if a queue has no message of its time or later."""
    for queue, offset in sorted(found.items()):
        if offset >= snapshot[queue].end:
            raise BadOption(
                f"{name}: queue {queue} has no message that was stored at {times[queue]} or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end of such queues"
            )


def _parse_offsets(text: str, snapshot: Snapshot, name: str) -> dict[Queue, int]:
    try:
        document = json.loads(text)
        flat = list(_flatten(document))
    except (ValueError, TypeError, AttributeError) as error:
        expected = "earliest, latest" if name[-7:] == "Offsets" else "milliseconds since 1970"
        raise BadOption(f"{name}: write {expected} or JSON, not {text[:100]!r}") from error
    offsets = {}
    for topic, broker, queue_id, offset in flat:
        brokers = {queue.broker for queue in snapshot if queue.topic == topic}
        if not brokers:
            raise BadOption(f"{name}: topic {topic!r} does not exist or is not read")
        if broker is None and len(brokers) > 1:
            raise BadOption(f"{name}: topic {topic!r} is on several brokers: name them")
        for known in brokers if broker is None else {broker}:
            queue = Queue(known, topic, queue_id)
            if queue not in snapshot:
                raise BadOption(f"{name}: there is no queue {queue}")
            offsets[queue] = offset
    return offsets


def _flatten(document: Mapping[str, Any]) -> Iterable[tuple[str, str | None, int, int]]:
    for topic, by_topic in document.items():
        for key, value in by_topic.items():
            if isinstance(value, int):
                yield topic, None, int(key), value
            else:
                for queue_id, offset in value.items():
                    yield topic, key, int(queue_id), int(offset)


def count_between(start: Positions, end: Positions) -> int:
    """Messages of the batch between two positions."""
    return sum(stop - begin for begin, stop in moved(start, end).values())


# --- into how many tasks -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """How a batch is cut into tasks.

    Attributes:
        rows_max: messages that a task reads at most; None: a queue is one task.
        count_min: tasks that there are at least, if there are as many messages.
    """

    rows_max: int | None = TASK_ROWS
    count_min: int | None = None

    def rows(self, total: int) -> int | None:
        """How many messages a task of a batch with so many reads at most; None: any number."""
        if self.count_min is None:
            return self.rows_max
        # Rounded down: the queues' last pieces are smaller, so there may be some tasks more.
        most = max(1, total // self.count_min)
        return most if self.rows_max is None else min(most, self.rows_max)


WHOLE_QUEUES: Final = Tasks(rows_max=None)


# --- how far to go ----------------------------------------------------------------------------


def latest_positions(snapshot: Snapshot) -> Mapping[Queue, int]:
    """The end of every queue: what progress reports show."""
    return {queue: bounds.end for queue, bounds in snapshot.items()}


def next_positions(
    start: Positions,
    snapshot: Snapshot,
    *,
    brokers: Container[str],
    wants: Callable[[str, int], bool],
    rows_max: int | None,
    target: Snapshot | None,
    fail_on_data_loss: bool,
    tasks: Tasks = WHOLE_QUEUES,
) -> Positions:
    """The end of the next batch; `start` itself if there is nothing to read.

    Args:
        brokers: those that were there while the snapshot was taken.
        wants: whether the query reads a queue, by its topic and number. Positions in others are
            kept as they are, in case they are wanted again.
        rows_max: about how many messages; queues share it in proportion to what they have, and
            each that has any gets at least one, so that none starves.
        target: go no further than the ends of this, and leave other queues alone.
        tasks: how the batch is cut into tasks.

    Raises:
        DataLoss: see the rules above.
    """
    lost = _deleted_unread(start, snapshot, brokers, wants, target)
    if lost and fail_on_data_loss:
        losses = [_gone(queue, start.offsets[queue], end) for queue, end in lost.items()]
        raise DataLoss(lost_text(losses))
    # These have to be given up first; a new generation of their topic waits for the next batch.
    waiting = {_topic_key(queue) for queue in lost}
    readable = {
        queue: bounds
        for queue, bounds in snapshot.items()
        if _topic_key(queue) not in waiting
        and (target is None or _is_same(target.get(queue), bounds))
    }
    known, incarnations = _known(start, readable)
    positions = {**known, **lost}
    ends: dict[Queue, int] = {}
    begins: dict[Queue, int] = {}
    for queue, bounds in readable.items():
        if queue in known:
            _check_tail(queue, known[queue], bounds)
        ends[queue] = bounds.end if target is None else min(target[queue].end, bounds.end)
        begins[queue] = max(known.get(queue, 0), bounds.first)
    sizes = {queue: max(0, ends[queue] - begins[queue]) for queue in ends}
    shares = _shares(sizes, rows_max)
    offsets = positions | {
        queue: max(known.get(queue, 0), min(begins[queue], ends[queue]) + shares[queue])
        for queue in ends
    }
    seen = dict(start.unread) | {queue: bounds.end for queue, bounds in readable.items()}
    reached = Positions(
        offsets=offsets,
        incarnations=incarnations,
        unread={queue: end for queue, end in seen.items() if offsets.get(queue, end) < end},
        # Even if there is nothing yet: from here on, the checkpoint knows where the query began.
        origin=known if start.initial else None,
        task_rows=tasks.rows(sum(shares.values())),
    )
    reached = _without_oldest_gone(reached, snapshot, brokers, wants)
    unchanged = reached.offsets == start.offsets and reached.incarnations == start.incarnations
    return start if unchanged and not start.initial and not start.former else reached


def _deleted_unread(
    start: Positions,
    snapshot: Snapshot,
    brokers: Container[str],
    wants: Callable[[str, int], bool],
    target: Snapshot | None,
) -> dict[Queue, int]:
    """Where queues ended that were deleted before they were read to there, as far as we saw."""
    lost = {}
    for queue, offset in start.offsets.items():
        was = Bounds(first=0, end=offset, incarnation=start.incarnation_of(queue, None))
        now = snapshot.get(queue)
        if not wants(queue.topic, queue.queue_id) or _is_same(now, was):
            continue
        if now is None and queue.broker not in brokers:
            continue
        end = start.unread.get(queue, 0)
        if target is not None and _is_same(target.get(queue), was):
            end = max(end, target[queue].end)
        if end > offset:
            lost[queue] = end
    return lost


def _is_same(found: Bounds | None, other: Bounds) -> bool:
    """Whether a queue is there, and of the same generation."""
    return found is not None and found.incarnation == other.incarnation


def _known(start: Positions, readable: Snapshot) -> tuple[dict[Queue, int], dict[str, int | None]]:
    """Offsets and incarnations as `start` has them, but for topics that were created again: of
    those, no offset is known, whatever number of queues they had."""
    now = _incarnations(readable)
    before = start.incarnations
    again = {key for key, incarnation in now.items() if before.get(key, incarnation) != incarnation}
    known = {
        queue: offset for queue, offset in start.offsets.items() if _topic_key(queue) not in again
    }
    keys = {_topic_key(queue) for queue in known}
    return known, {key: before[key] for key in keys & before.keys()} | now


def _without_oldest_gone(
    reached: Positions,
    snapshot: Snapshot,
    brokers: Container[str],
    wants: Callable[[str, int], bool],
) -> Positions:
    """Forget positions beyond GONE_QUEUES_MAX, oldest topics first."""
    if len(reached.offsets) - len(snapshot) <= GONE_QUEUES_MAX:
        return reached
    gone = [
        queue
        for queue in sorted(reached.offsets)
        if queue not in snapshot and queue.broker in brokers and wants(queue.topic, queue.queue_id)
    ]
    gone.sort(key=lambda queue: reached.incarnation_of(queue, None) or 0)
    forgotten = set(gone[: max(0, len(gone) - GONE_QUEUES_MAX)])
    offsets = {queue: end for queue, end in reached.offsets.items() if queue not in forgotten}
    keys = {_topic_key(queue) for queue in offsets}
    return replace(
        reached,
        offsets=offsets,
        incarnations={key: value for key, value in reached.incarnations.items() if key in keys},
    )


def _shares(sizes: Mapping[Queue, int], rows_max: int | None) -> Mapping[Queue, int]:
    total = sum(sizes.values())
    if rows_max is None or total <= rows_max:
        return sizes
    # Rounded down, but never to nothing: the sum is at most rows_max and one per queue.
    return {
        queue: min(size, max(1, size * rows_max // total)) if size else 0
        for queue, size in sizes.items()
    }


# --- what lies between ------------------------------------------------------------------------


def _check_tail(queue: Queue, offset: int, bounds: Bounds) -> None:
    if bounds.end < offset:
        raise DataLoss(
            f"queue {queue} ends at {bounds.end}, but was read up to {offset}: the broker lost "
            "messages that it had confirmed"
        )


def moved(start: Positions, end: Positions) -> dict[Queue, tuple[int, int]]:
    """The queues that a batch reads, with the offsets where it begins and ends in each."""
    # Only where the start is one that Spark did not log: the same end may be planned again as the
    # end of an empty second batch.
    is_first = start.initial and end.origin is not None
    found = {}
    for queue in sorted(end.offsets):
        incarnation = end.incarnation_of(queue, None)
        if is_first:
            assert end.origin is not None
            begin = end.origin.get(queue, 0)
        elif start.incarnation_of(queue, incarnation) == incarnation:
            # A queue that the start does not know is read from its beginning, which is 0: if that
            # is gone already, it is a loss like any other.
            begin = start.offsets.get(queue, 0)
        else:
            begin = 0  # the topic was created again
        if begin < end.offsets[queue]:
            found[queue] = begin, end.offsets[queue]
    return found


def plan(
    start: Positions,
    end: Positions,
    snapshot: Snapshot,
    *,
    brokers: Container[str],
    fail_on_data_loss: bool,
) -> list[Range]:
    """The ranges of a batch: one per queue that has anything between the two positions.

    Args:
        snapshot: what the broker has now of the queues that `moved`; it only decides what is lost,
            never where a range ends.
        brokers: those that were there while the snapshot was taken.

    Raises:
        DataLoss: see the rules above.
        Unavailable: a queue's broker is not there.
    """
    ranges: list[Range] = []
    losses: list[str] = []
    for queue, (begin, stop) in moved(start, end).items():
        bounds = snapshot.get(queue)
        if bounds is None and queue.broker not in brokers:
            raise Unavailable(f"broker {queue.broker!r} is not there, which has queue {queue}")
        if bounds is None or end.incarnation_of(queue, bounds.incarnation) != bounds.incarnation:
            losses.append(_gone(queue, begin, stop))
            continue
        _check_tail(queue, stop, bounds)
        if bounds.first > begin:
            losses.append(f"{queue} begins at {bounds.first}, {begin} was next")
        first = min(max(begin, bounds.first), stop)
        if first < stop:
            ranges.append(
                Range(
                    queue=queue,
                    first=first,
                    end=stop,
                    planned_first=begin,
                    incarnation=bounds.incarnation,
                    former=end.former,
                )
            )
    if losses:
        lose(losses, fail_on_data_loss=fail_on_data_loss)
    return ranges


def _gone(queue: Queue, begin: int, stop: int) -> str:
    return f"{queue} is gone, {begin} to {stop} were not read"


def lose(losses: list[str], *, fail_on_data_loss: bool) -> None:
    """Go on without what is lost, and say so; or raise DataLoss."""
    if fail_on_data_loss:
        raise DataLoss(lost_text(losses))
    _log.warning("going on without messages that are gone: %s", _listed(losses))


def lost_text(losses: list[str]) -> str:
    """What is missing, and what to do about it."""
    return (
        f"messages are gone before they were read: {_listed(losses)}. Set failOnDataLoss to false "
        "(polymq sink --fail-on-data-loss no) to go on without them"
    )


def _listed(losses: list[str]) -> str:
    more = f" and {len(losses) - _LISTED_MAX} more" if len(losses) > _LISTED_MAX else ""
    return "; ".join(losses[:_LISTED_MAX]) + more


def split(ranges: Iterable[Range], rows_max: int | None) -> list[Range]:
    """Cut ranges into pieces of at most `rows_max`, counted from where they were planned to begin:
    what retention has taken since moves no piece."""
    if rows_max is None:
        return list(ranges)
    pieces = []
    for whole in ranges:
        for planned in range(whole.planned_first, whole.end, rows_max):
            first, end = max(planned, whole.first), min(planned + rows_max, whole.end)
            if first < end:
                pieces.append(replace(whole, first=first, end=end, planned_first=planned))
    return pieces
