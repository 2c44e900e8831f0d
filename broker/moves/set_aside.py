"""Messages that the broker has to move and that fit nowhere: kept where an operator finds them.

A delayed message may be too large for its topic when it is due, because a hundred queues were bound
in the meantime (a record names its queues), and so may a dead letter with its history. Nobody waits
for an answer then, and the next attempt would end like the first. Such a message goes to the topic
`ASIDE_TOPIC`, as a move: it is stored there in the same record that settles the old entry.

Rules:

* The message keeps its body, tag and properties. `REAL_TOPIC` names the topic that it was meant
  for (RocketMQ's name, as it stands in records), and `REFUSED` the reason.
* It always fits. What does not fit with these two, or for all queues that are bound to
  `ASIDE_TOPIC`, is stored without them, for the topic's own queue and live subscribers; at last in
  the form in which it was stored before, with its settlement behind it.
* It is an ordinary topic: it has settings, and is read and deleted like any other. Only the broker
  publishes to it, once there are users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from polymq.broker.core import Core
from polymq.broker.errors import PASSING, Refused
from polymq.broker.messages.records import TAGS
from polymq.broker.messages.time_to_live import TTL_PROPERTY
from polymq.broker.moves.moves import Moves, Row, rows_of_run
from polymq.broker.names import encode_name
from polymq.broker.queues.queue import Group
from polymq.broker.topics.retained import RETAIN_PROPERTY
from polymq.broker.topics.routes import TopicRoute
from polymq.broker.topics.topics import Topics

ASIDE_TOPIC: Final = "%DLQ%polymq_set_aside"
REAL_TOPIC: Final = "REAL_TOPIC"
REFUSED: Final = "REFUSED"


class SetAside:
    """See the head of this file.

    Attributes:
        count: messages that were set aside since the start.
    """

    def __init__(self, core: Core, topics: Topics, moves: Moves) -> None:
        self._core = core
        self._topics = topics
        self._moves = moves
        self.count = 0

    @property
    def set_aside_count(self) -> int:
        """Messages in the topic: what an operator has not looked after yet."""
        topic = self._topics.topics.get(ASIDE_TOPIC)
        if topic is None:
            return 0
        return sum(queue.flushed - queue.index.first_offset for queue in topic.queues)

    def move(
        self,
        group: Group,
        offset: int,
        error: Refused,
        done: Callable[[Refused | None], None],
    ) -> None:
        """The group's message at `offset` goes aside. `done` is called with a refusal that passes:
        then it is where it was. A record that cannot be read stays, too, until a restart."""

        def put(records: bytes | None, _: int) -> None:
            refused = None
            if records:
                (run,) = self._core.metas.runs(records, 0, len(records))
                (row,) = rows_of_run(run)
                properties = dict(run.meta.properties)
                if run.meta.tag is not None:
                    properties[TAGS] = run.meta.tag
                try:
                    self.put(encode_name(run.meta.topic), properties, row, group, offset, error)
                except Refused as passing:
                    refused = passing
            done(refused)

        reading = self._core.reading
        reading.read(group.queue.index, offset, 1, reading.limits.pump_bytes_max, put)

    def put(
        self,
        topic: str,
        properties: Mapping[str, str],
        row: Row,
        group: Group,
        offset: int,
        error: Refused,
    ) -> None:
        """A message goes aside, in place of the group's entry at `offset`.

        Args:
            topic: the stored name of the topic that it was meant for.
            properties: the constant ones, `TAGS` among them if it has a tag.
            error: why it could not go there.

        Raises:
            Refused: a reason of `PASSING`; nothing was stored.
        """
        properties = {
            name: value
            for name, value in properties.items()
            if name not in (TTL_PROPERTY, RETAIN_PROPERTY, TAGS)
        }
        tag = properties.get(TAGS)
        if ASIDE_TOPIC not in self._topics.topics:
            self._topics.create(ASIDE_TOPIC, 1, system=True)
        everybody = self._topics.route(ASIDE_TOPIC, tag)
        nobody = self._topics.own_route(ASIDE_TOPIC, tag)
        forms: list[tuple[TopicRoute, dict[str, str], bool]] = [
            (everybody, {**properties, REAL_TOPIC: topic, REFUSED: error.text}, False),
            (nobody, {**properties, REAL_TOPIC: topic}, False),
            (nobody, properties, True),
        ]
        for route, form, apart in forms:
            try:
                template = self._topics.template(route, properties=form)
                self._moves.append_rows(template, (row,), group, (offset,), apart=apart)
            except Refused as refused:
                if refused.reason in PASSING:
                    raise
                continue
            self.count += 1
            break
        else:  # not known to happen: it was stored in this form before. A restart tries again.
            self._core.notices.warn("a message fits nowhere", "aside", topic=topic)
            return
        self._core.notices.warn(
            "a message was set aside", "aside", topic=topic, reason=error.text, to=ASIDE_TOPIC
        )
