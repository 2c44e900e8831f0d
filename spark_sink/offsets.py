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
* Each position knows the *incarnation* of every topic that it ever named. A topic that comes back
  with another one is an error, whatever the options say: its offsets mean other messages, and its
  files would overwrite those of the old one.
* Offsets in a queue are dense. What retention took before it was read is data loss, and so is a
  queue that vanished. A queue that *ends* before our position lost what it had confirmed: always
  an error.
* `AvailableNow` reads up to a target that is fixed once; what came later, queues included, waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_sink.errors import BadOption, DataLoss, Recreated

LATEST: Final = -1
EARLIEST: Final = -2
_FORMAT: Final = 1
_LISTED_MAX: Final = 10
"""Entries of an error text; a thousand queues would make it unreadable."""


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
        offsets: the next offset of each queue.
        incarnations: by `broker/topic`; kept when a topic is gone.
        origin: where the first batch began, in the end of the first batch only.
        initial: these are the start of a query, not the end of a batch.
    """

    offsets: Mapping[Queue, int]
    incarnations: Mapping[str, int | None] = field(default_factory=dict)
    origin: Mapping[Queue, int] | None = None
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it. Equal positions give equal documents."""
        document: dict[str, Any] = {
            "version": _FORMAT,
            "offsets": {str(queue): self.offsets[queue] for queue in sorted(self.offsets)},
            "incarnations": dict(sorted(self.incarnations.items())),
        }
        if self.origin is not None:
            document["origin"] = {str(queue): self.origin[queue] for queue in sorted(self.origin)}
        if self.initial:
            document["initial"] = True
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Positions:
        """What `to_json` made. Raises BadOption for what it cannot have made."""
        if document.get("version") != _FORMAT:
            raise BadOption(f"not positions of this source: {json.dumps(document)[:200]}")
        origin = document.get("origin")
        return cls(
            offsets={Queue.parse(name): offset for name, offset in document["offsets"].items()},
            incarnations=document["incarnations"],
            origin=None
            if origin is None
            else {Queue.parse(name): offset for name, offset in origin.items()},
            initial=document.get("initial", False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets `first` to `end - 1` of a queue, to be read by one task.

    Attributes:
        planned_first: where the range begins by the positions; `first` is later if retention took
            the beginning and the query goes on without it.
    """

    queue: Queue
    first: int
    end: int
    planned_first: int
    incarnation: int | None


# --- where to begin ---------------------------------------------------------------------------


def starting_positions(option: str, snapshot: Snapshot) -> Positions:
    """The initial position of a query, from its option `startingOffsets`.

    Args:
        option: `earliest`, `latest`, or JSON: topic to queue id to offset, where -1 stands for
            latest and -2 for earliest; queues that it does not name begin at the earliest. With
            several broker groups a level of broker names stands between topic and queue id.
    """
    offsets = _resolve(option, snapshot, default=EARLIEST, name="startingOffsets")
    return Positions(offsets=offsets, incarnations=_incarnations(snapshot, None), initial=True)


def ending_offsets(option: str, snapshot: Snapshot) -> Mapping[Queue, int]:
    """Where a batch query ends, from its option `endingOffsets`; unnamed queues at the latest."""
    return _resolve(option, snapshot, default=LATEST, name="endingOffsets")


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


def _parse_offsets(text: str, snapshot: Snapshot, name: str) -> dict[Queue, int]:
    try:
        document = json.loads(text)
        flat = list(_flatten(document))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOption(f"{name}: write earliest, latest or JSON, not {text[:100]!r}") from error
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


# --- how far to go ----------------------------------------------------------------------------


def latest_positions(snapshot: Snapshot) -> Mapping[Queue, int]:
    """The end of every queue: a target for AvailableNow, and what progress reports show."""
    return {queue: bounds.end for queue, bounds in snapshot.items()}


def next_positions(
    start: Positions,
    snapshot: Snapshot,
    *,
    topics: Sequence[str] | None,
    rows_max: int | None,
    target: Mapping[Queue, int] | None,
    fail_on_data_loss: bool,
) -> Positions:
    """The end of the next batch; `start` itself if there is nothing to read.

    Args:
        topics: what the query reads (None: all topics). Positions in others are kept as they are,
            in case they are wanted again.
        rows_max: about how many messages; queues share it in proportion to what they have, and
            each that has any gets at least one, so that none starves.
        target: go no further than this, and leave other queues alone.

    Raises:
        Recreated, DataLoss: see the rules above.
    """
    check_incarnations(start, snapshot)
    ends: dict[Queue, int] = {}
    begins: dict[Queue, int] = {}
    for queue, bounds in snapshot.items():
        known = start.offsets.get(queue)
        if known is not None:
            _check_tail(queue, known, bounds)
        elif target is not None and queue not in target:
            continue
        ends[queue] = bounds.end if target is None else min(target.get(queue, 0), bounds.end)
        begins[queue] = max(known or 0, bounds.first)
    sizes = {queue: max(0, ends[queue] - begins[queue]) for queue in ends}
    shares = _shares(sizes, rows_max)
    offsets = {
        queue: max(start.offsets.get(queue, 0), min(begins[queue], ends[queue]) + shares[queue])
        for queue in ends
    }
    left = [queue for queue in sorted(start.offsets) if queue not in snapshot]
    unwanted = [queue for queue in left if topics is not None and queue.topic not in topics]
    offsets.update({queue: start.offsets[queue] for queue in unwanted})
    gone = [queue for queue in left if queue not in unwanted]
    if gone and fail_on_data_loss:
        raise DataLoss(
            lost_text([f"{queue} is gone, read up to {start.offsets[queue]}" for queue in gone])
        )
    reached = Positions(
        offsets=offsets,
        incarnations=_incarnations({queue: snapshot[queue] for queue in ends}, start),
        # Even if there is nothing yet: from here on, the checkpoint knows where the query began.
        origin=start.offsets if start.initial else None,
    )
    unchanged = reached.offsets == start.offsets and reached.incarnations == start.incarnations
    return start if unchanged and not start.initial else reached


def _shares(sizes: Mapping[Queue, int], rows_max: int | None) -> Mapping[Queue, int]:
    total = sum(sizes.values())
    if rows_max is None or total <= rows_max:
        return sizes
    # Rounded down, but never to nothing: the sum is at most rows_max and one per queue.
    return {
        queue: min(size, max(1, size * rows_max // total)) if size else 0
        for queue, size in sizes.items()
    }


def _incarnations(snapshot: Snapshot, known: Positions | None) -> dict[str, int | None]:
    incarnations = dict(known.incarnations) if known is not None else {}
    for queue, bounds in snapshot.items():
        incarnations.setdefault(_topic_key(queue), bounds.incarnation)
    return incarnations


def _topic_key(queue: Queue) -> str:
    return f"{queue.broker}/{queue.topic}"


# --- what lies between ------------------------------------------------------------------------


def check_incarnations(known: Positions, snapshot: Snapshot) -> None:
    """Raises Recreated if a topic is not the one that the positions speak of."""
    for queue, bounds in snapshot.items():
        incarnation = known.incarnations.get(_topic_key(queue), bounds.incarnation)
        if incarnation != bounds.incarnation:
            raise Recreated(
                f"topic {queue.topic!r} was deleted and created again: what was read belongs to "
                f"its incarnation {incarnation}, now it is {bounds.incarnation}. Leave the topic "
                "out, or read it with a new checkpoint (and a new output directory)"
            )


def _check_tail(queue: Queue, offset: int, bounds: Bounds) -> None:
    if bounds.end < offset:
        raise DataLoss(
            f"queue {queue} ends at {bounds.end}, but was read up to {offset}: the broker lost "
            "messages that it had confirmed"
        )


def plan(
    start: Positions, end: Positions, snapshot: Snapshot, *, fail_on_data_loss: bool
) -> list[Range]:
    """The ranges of a batch: one per queue that has anything between the two positions.

    Args:
        snapshot: what the broker has now; it only decides what is lost, never where a range ends.

    Raises:
        Recreated, DataLoss: see the rules above.
    """
    check_incarnations(end, snapshot)
    # Only where the start is one that Spark did not log: the same end may be planned again as the
    # end of an empty second batch.
    begins = end.origin if start.initial and end.origin is not None else start.offsets
    ranges: list[Range] = []
    losses: list[str] = []
    for queue in sorted(end.offsets):
        bounds = snapshot.get(queue)
        # A queue that the start does not know is read from its beginning, which is 0: if that is
        # gone already, it is a loss like any other.
        begin, stop = begins.get(queue, 0), end.offsets[queue]
        if begin >= stop:
            continue
        if bounds is None:
            losses.append(f"{queue} is gone, {begin} to {stop} were not read")
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
                )
            )
    if losses and fail_on_data_loss:
        raise DataLoss(lost_text(losses))
    return ranges


def lost_text(losses: list[str]) -> str:
    """What is missing, for an error or a log line."""
    more = f" and {len(losses) - _LISTED_MAX} more" if len(losses) > _LISTED_MAX else ""
    return (
        f"messages are gone before they were read: {'; '.join(losses[:_LISTED_MAX])}{more}. "
        "Set failOnDataLoss to false to go on without them"
    )


def split(ranges: Iterable[Range], rows_max: int | None) -> list[Range]:
    """Cut ranges into pieces of at most `rows_max`, for batch queries of big queues."""
    if rows_max is None:
        return list(ranges)
    pieces = []
    for whole in ranges:
        for first in range(whole.first, whole.end, rows_max):
            pieces.append(
                Range(
                    queue=whole.queue,
                    first=first,
                    end=min(first + rows_max, whole.end),
                    planned_first=whole.planned_first if first == whole.first else first,
                    incarnation=whole.incarnation,
                )
            )
    return pieces
