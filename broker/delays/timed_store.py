"""Messages that are kept in a system topic of their own, each with a time when it is looked at.

What delayed messages (`delay.py`) and half messages (`transactions/half_messages.py`) have in
common. A kept message is a record as `delayed.py` describes it, in the one queue of its system
topic. One group reads that queue, and settles what is done with; one wheel knows the times.

Rules:

* The queue is made with its first message, by an op; a broker that keeps nothing has none.
* The wheel is made anew at a start, from the entries of the queue that are not settled. An entry's
  tag hash is the message's time, with a check. An entry that recovery made again from the log has a
  real tag hash, and one may be damaged: the record of such a one is read.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.core import Core
from polymq.broker.delays.delayed import delayed_record, dues_of_tags, take_apart
from polymq.broker.delays.wheel import OFFSET_BITS, Taken, Wheel
from polymq.broker.messages.records import PREFIX_PROPERTY, TAGS, parse_properties
from polymq.broker.names import decode_name, is_hashed
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group
from polymq.broker.queues.store import QueueStore
from polymq.broker.state.journal import Op, Touched
from polymq.broker.topics.retained import RETAIN_PROPERTY
from polymq.broker.topics.topic import Topic, TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.errors import StoreError
from polymq.core_log.kernels.batch import Batch
from polymq.core_log.kernels.layout import ENTRY_SIZE
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.record import RecordTemplate

REBUILD_COUNT: Final = 65_536
"""Index entries of one read at a start."""
REFINE_COUNT_MAX: Final = 20_000
"""Messages that the wheel refines in one loop iteration: some 10 ms."""
OFFSETS_BACK_MAX: Final = 1 << OFFSET_BITS - 1
"""No message in the wheel is further behind the end of the queue."""
TEMPLATES_MAX: Final = 10_000
"""Kinds of kept messages whose templates are remembered."""

_ENTRY: Final = struct.Struct(">12sq")


class TimedStore:
    """One system topic's messages.

    Args:
        topic: the system topic.
        kind: of the op that makes its queue, and of its row in the snapshot.

    Attributes:
        group: what settles them; None before the first message.
        wheel: when they are looked at.
    """

    def __init__(
        self, core: Core, queue_store: QueueStore, topics: Topics, *, topic: bytes, kind: str
    ) -> None:
        self._core = core
        self._queue_store = queue_store
        self._topics = topics
        self._topic = topic
        self._kind = kind
        self.group: Group | None = None
        self.wheel = Wheel()
        self._templates: BoundedCache[bytes, TopicTemplate] = BoundedCache(TEMPLATES_MAX)
        core.journal.handle(f"{kind}+", self._apply_made)

    # --- keeping --------------------------------------------------------------------------

    def make(self) -> Group:
        """The group, made if there is none. Raises Refused: the log takes nothing."""
        if self.group is None:
            self._core.journal.write({"op": f"{self._kind}+", "n": self._core.take_number()})
        assert self.group is not None
        return self.group

    def record(
        self,
        template: TopicTemplate,
        due_ms: int,
        owner: str = "",
        *,
        by_exchange: bool = False,
    ) -> RecordTemplate:
        """How a message of this template is stored until it is looked at.

        Args:
            owner: the user who may decide about it; empty for everybody.
            by_exchange: whether an exchange of the topic's name delays it, so that it goes with
                that exchange.
        """
        topic, record = template.topic, template.record
        assert topic is not None
        ttl = f"{topic.incarnation:x}"
        if by_exchange:
            ttl += f"-{topic.exchange_ended_at:x}"
        where = f"{ttl}.{record.queue_id:x}.{topic.stored}"
        return dataclasses.replace(
            delayed_record(self._topic, due_ms, where.encode(), record.properties, owner),
            extra_kind=record.extra_kind,
            extra_name=record.extra_name,
        )

    def append(
        self, record: RecordTemplate, batch: Batch, first: int, last: int, due_ms: int
    ) -> list[Span]:
        """Keep rows [first, last). Raises Refused: as `BrokerPort.publish`."""
        core, queue = self._core, self.make().queue
        now = core.clock_ms()
        try:
            spans = core.log.append_run(
                record,
                batch,
                first,
                last,
                targets=[(queue.number, queue.index.end_offset)],
                born_ms=now,
                store_ms=now,
            )
        except StoreError as error:
            raise core.refused(error) from error
        self.stored(spans, due_ms)
        core.appended()
        return spans

    def stored(self, spans: Sequence[Span], due_ms: int) -> None:
        """Records were appended: note where they are, and their time."""
        assert self.group is not None
        queue = self.group.queue
        now = self._core.clock_ms()
        for span in spans:
            self.wheel.add_run(due_ms, span.entries, queue.index.end_offset, now)
            queue.append((span,))
        queue.visible = queue.flushed = queue.index.end_offset

    # --- looking --------------------------------------------------------------------------

    def take(self) -> Taken:
        """The next messages whose time has come; as many as one read of a queue may have."""
        assert self.group is not None
        limits = self._core.limits
        return self.wheel.take(
            self._core.clock_ms(),
            # Not the cursor's: a half message may have been settled before its time.
            floor=max(0, self.group.queue.index.end_offset - OFFSETS_BACK_MAX),
            count_max=limits.pump_count_max,
            bytes_max=limits.pump_bytes_max,
            refine_max=REFINE_COUNT_MAX,
        )

    def template(self, where: bytes, prefix: bytes, *, retain: bool = True) -> TopicTemplate | None:
        """How messages of a kind are stored in their own topic; None if that is gone, or the
        exchange that delayed them.

        Args:
            retain: False for messages with RETAIN that are not to be retained.
        """
        ttl, queue_id, stored = where.decode("ascii").split(".", 2)
        name = self._core.topic_names.get(stored) if is_hashed(stored) else decode_name(stored)
        topic = None if name is None else self._topics.topics.get(name)
        if name is None or topic is None or not _is_alive(topic, ttl):
            return None
        key = where + (b"\x00" if retain else b"\x01") + prefix
        template = self._templates.get(key)
        if template is not None and template.valid:
            return template
        self._templates.pop(key, None)
        properties = parse_properties(prefix)
        del properties[PREFIX_PROPERTY]
        if not retain:
            properties.pop(RETAIN_PROPERTY, None)
        route = self._topics.route(name, properties.pop(TAGS, None))
        template = self._topics.template(
            route, properties=properties, retain=RETAIN_PROPERTY in properties
        )
        number = int(queue_id, 16)
        template.queue = topic.queues[number]
        template.record = dataclasses.replace(template.record, queue_id=number)
        self._templates.add(key, template)
        return template

    # --- state ----------------------------------------------------------------------------

    def _apply_made(self, op: Op) -> Touched:
        self.load(op)
        return [(self._kind, "")]

    def load(self, value: Mapping[str, Any]) -> None:
        """Take the queue from its op or its snapshot."""
        number = value["n"]
        self._core.saw_number(number)
        queue = self._queue_store.durable_queue(number, own=True)
        self.group = self._queue_store.group(queue, Cursor(queue.index.first_offset), number=number)

    def row(self) -> dict[str, Any] | None:
        """The queue as a JSON value for the snapshot; what it still holds is its group's row."""
        return None if self.group is None else {"n": self.group.number}

    def reopen(self) -> None:
        """After a restart: fill the wheel from the queue's index. Raises StoreError."""
        if self.group is None:
            return
        now = self._core.clock_ms()
        index, cursor = self.group.queue.index, self.group.cursor
        offset = cursor.floor
        while offset < index.end_offset:
            entries = index.read_hot(offset, REBUILD_COUNT)
            if entries is None:
                entries = index.read_cold(offset, REBUILD_COUNT)
            assert entries
            settled = cursor.settled_flags(offset, len(entries) // ENTRY_SIZE)
            self.wheel.fill(entries, self._times(entries, settled), settled, offset, now)
            offset += len(entries) // ENTRY_SIZE

    def _times(self, entries: bytes, settled: bytes) -> list[int]:
        """The times of the messages with these entries; anything where one is settled."""
        found = dues_of_tags(tag for _, tag in _ENTRY.iter_unpack(entries))
        unknown = [
            at
            for at, (due_ms, done) in enumerate(zip(found, settled, strict=True))
            if due_ms is None and not done
        ]
        times = [due_ms or 0 for due_ms in found]
        for first in range(0, len(unknown), self._core.limits.pump_count_max):
            some = unknown[first : first + self._core.limits.pump_count_max]
            wanted = b"".join([entries[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE] for at in some])
            records = self._core.log.read_cold(wanted, ENTRY_SIZE)
            for at, delayed in zip(some, take_apart(records), strict=True):
                times[at] = delayed.due_ms
        return times


def _is_alive(topic: Topic, ttl: str) -> bool:
    """Whether a topic is the one that a message was meant for, and no exchange of its name has
    ended since, where one delayed the message."""
    incarnation, _, ended_at = ttl.partition("-")
    if topic.incarnation != int(incarnation, 16):
        return False
    return not ended_at or topic.exchange_ended_at == int(ended_at, 16)
