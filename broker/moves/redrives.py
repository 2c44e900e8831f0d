"""Dead letters of topics that an operator sends on.

Theory. A topic is read by offset, and nothing leaves it: who has sent a message on has to remember
that. The new record itself says which message it was (`PMQ_RD`, behind the message's own
properties), as a move says which entry it settles (`moves.py`). So after a crash a message was sent
on if, and only if, its new record is there. What is remembered of a queue is a cursor; it holds
nothing, and retention takes dead letters as any messages.

The property has, with dots between: in hex the number of the queue, which is never given to
another, the offset, and the first offset that the queue had then; and the stored name of the topic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.moves.moves import SENT_ON_PROPERTY, Row, replaced_property
from polymq.broker.port.values import Position
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Queue
from polymq.broker.state.journal import Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, Batch
from polymq.core_log.record import Record


class Redrives:
    """What was sent on, of all topics."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self._core = core
        self._topics = topics
        self._done: dict[int, tuple[str, Cursor]] = {}  # by queue number, with the stored topic

    def is_done(self, queue: Queue, offset: int) -> bool:
        """Whether a message was sent on."""
        found = self._done.get(queue.number)
        return found is not None and found[1].is_settled(offset)

    def first_left(self, queue: Queue) -> int:
        """The first offset of a queue that is there and was not sent on, or its end."""
        found = self._done.get(queue.number)
        first = queue.index.first_offset
        return first if found is None else max(first, found[1].floor)

    def left_count(self, queue: Queue) -> int:
        """How many messages of a queue are there and were not sent on."""
        first = self.first_left(queue)
        left = max(0, queue.flushed - first)
        found = self._done.get(queue.number)
        if found is None or found[1].next <= first:
            return left
        return left - found[1].settled_flags(first, found[1].next - first).count(1)

    def append(
        self, template: TopicTemplate, row: Row, topic: str, queue: Queue, offset: int
    ) -> Position:
        """Store a message anew, which stands at an offset of a topic's queue.

        Args:
            topic: the stored name of that topic.

        Raises:
            Refused: as `BrokerPort.publish`; nothing was stored.
        """
        record = dataclasses.replace(
            template.record,
            extra_kind=EXTRA_VERBATIM,
            extra_name=b"",
            system_flag=template.record.system_flag | SYSTEM_FLAG_STATE,
        )
        first = queue.index.first_offset
        mark = f"{queue.number:x}.{offset:x}.{first:x}.{topic}"
        extra = row.extra + f"{SENT_ON_PROPERTY}\x01{mark}\x02".encode()
        extra += replaced_property(row, len(template.record.properties))
        batch = Batch(1)
        batch.buffer = extra + row.body
        batch.add((0, 0), (len(extra), len(row.body)), (0, len(extra)))
        position = self._topics.publish(
            template, batch, 0, 1, record=record, born_ms=row.born_ms or None
        )
        self._note(topic, queue.number, offset, first)
        self._core.journal.dirty.add(("redriven", str(queue.number)))
        return position

    def _note(self, topic: str, number: int, offset: int, first: int) -> None:
        found = self._done.get(number)
        if found is None:
            found = self._done[number] = (topic, Cursor(first))
        cursor = found[1]
        cursor.settle(offset, 1)
        cursor.forget_settled()

    # --- the fold ---------------------------------------------------------------------------------

    def take_message(self, record: Record) -> Touched:
        """A message of the log that may be one that was sent on."""
        value = record.properties.get(SENT_ON_PROPERTY)
        if value is None:
            return ()
        number, offset, first, topic = value.split(".", 3)
        self._note(topic, int(number, 16), int(offset, 16), int(first, 16))
        return (("redriven", str(int(number, 16))),)

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("redriven", self.row, each(self.load)),)

    def row(self, key: str) -> Mapping[str, Any] | None:
        """What was sent on of a queue, as a JSON value; None: its topic is gone."""
        number = int(key)
        found = self._done.get(number)
        if found is None:
            return None
        topic, cursor = found
        known = self._topics.topics.get(self._core.metas.user_name(topic.encode()))
        queues = [] if known is None else known.queues
        queue = next((one for one in queues if one.number == number), None)
        if queue is None:
            del self._done[number]
            return None
        cursor.skip_to(queue.index.first_offset)
        return {"topic": topic, **cursor.snapshot()}

    def load(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a row of the snapshot."""
        cursor = Cursor.restore(value["floor"], value["next"], value["settled"])
        self._done[int(key)] = (value["topic"], cursor)
