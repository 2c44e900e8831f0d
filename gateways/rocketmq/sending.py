"""From send requests to the log: which topic, queue and template, and what the answer waits for.

Rules:

* A send is answered when its message is as safe as its topic asks for. What the engine refuses is
  answered with the code that makes a client do the right thing: try another broker, or tell its
  user (`mapping.CODES`).
* All messages of a batch stand behind each other in one queue. Those of one tag are stored
  together or not at all; of a batch with several tags, a full disk may take the first ones only,
  and the producer, who is told that it failed, sends them again.
* A message with a delay is stored now and published when it is due; its offset is not known before.
* A half message is stored and seen by nobody until its producer ends the transaction.
* What is sent to a group's retry topic was consumed in vain. If that happened too often, it goes
  to the group's dead-letter topic instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from polymq.broker.port import (
    BoundedCache,
    BrokerPort,
    Durability,
    Placed,
    Position,
    Template,
    header_property,
)
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, Batch
from polymq.gateways.rocketmq.mapping import DEAD_LETTER_PREFIX, RETRY_PREFIX, user_name
from polymq.gateways.rocketmq.messages import Sent

TEMPLATES_MAX: Final = 16_384
"""Kinds of messages (topic, tag, queue, flags) kept: those in use at one time."""
RECONSUME_MAX: Final = 16
"""How often a message is consumed again before it is a dead letter, as in RocketMQ."""
QUEUES_MAX: Final = 16
"""Queues of a topic that is made by sending to it: twice what RocketMQ gives."""
PROTOCOL: Final = {"PMQ_PROTO": "rocketmq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One send request, decoded.

    Attributes:
        topic: the stored name.
        queue_id: negative: any.
        queue_count: of the topic, if it has to be made.
        system_flag: what of it is stored.
        reconsume, reconsume_max: how often the message was consumed again, and may be.
    """

    topic: str
    messages: Sequence[Sent]
    born_ms: int
    queue_id: int = -1
    queue_count: int = 1
    system_flag: int = 0
    reconsume: int = 0
    reconsume_max: int = RECONSUME_MAX
    prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What was stored, and what the answer waits for.

    Attributes:
        offset: of the first message in its queue; 0 for what is delayed.
        positions: the byte positions that the message ids name.
    """

    position: Position
    durability: Durability
    queue_id: int
    offset: int
    positions: tuple[int, ...]


_Kind = tuple[str, str | None, int, int, int, int]
"""Topic, tag, queue id, and what else the messages of one template have in common."""


class Sender:
    """Stores what the clients of one principal send."""

    def __init__(self, port: BrokerPort) -> None:
        self._port = port
        self._templates: BoundedCache[_Kind, Template] = BoundedCache(TEMPLATES_MAX)
        self._turn = 0

    def store(self, order: Order) -> Stored:
        """Store the messages of a request. Raises Refused."""
        if order.topic.startswith(RETRY_PREFIX) and order.reconsume >= order.reconsume_max:
            group = order.topic.removeprefix(RETRY_PREFIX)
            order = replace(order, topic=DEAD_LETTER_PREFIX + group, queue_id=0)
        name, queue_count = self._need_topic(order)
        queue_id = order.queue_id
        if queue_id < 0:
            self._turn += 1
            queue_id = self._turn % queue_count
        parts = [
            self._store_run(name, queue_id, order, list(run))
            for _, run in groupby(order.messages, lambda sent: (sent.tag, sent.flag))
        ]
        return Stored(
            position=parts[-1].position,
            durability=max(part.durability for part in parts),
            queue_id=queue_id,
            offset=parts[0].offset,
            positions=tuple(position for part in parts for position in part.positions),
        )

    def _need_topic(self, order: Order) -> tuple[str, int]:
        """The user's name of the topic, made if there is none, and how many queues it has."""
        name = user_name(order.topic)
        info = self._port.topics.info(name)
        if info is None:
            self._port.topics.create(name, min(max(order.queue_count, 1), QUEUES_MAX))
            info = self._port.topics.info(name)
            assert info is not None
        return name, len(info.max_offsets)

    def _store_run(
        self, name: str, queue_id: int, order: Order, messages: Sequence[Sent]
    ) -> Stored:
        """Store messages of one tag and flag."""
        first = messages[0]
        template = self._template(name, queue_id, order, first)
        batch = batch_of(messages)
        # Batches have neither a transaction nor a delay: `requests.check_batch`, `messages_of`.
        due_ms = None if len(messages) > 1 else self._port.delays.deliver_ms(first.properties)
        if order.prepared:
            prepared = self._port.half_messages.prepare(template, batch, 0)
            placed = Placed(
                Position(prepared.position), prepared.offset, (prepared.record_position,)
            )
        elif due_ms is not None:
            placed = self._port.delays.publish_placed(template, batch, 0, 1, deliver_ms=due_ms)
        else:
            placed = self._port.topics.publish_placed(
                template, batch, 0, len(messages), born_ms=order.born_ms
            )
        # What is kept for later has a place of its own in the state, whatever its topic wants.
        later = order.prepared or due_ms is not None
        least = self._port.state_durability if later else template.durability
        return Stored(
            position=placed.position,
            durability=max(template.durability, least),
            queue_id=queue_id,
            offset=placed.offset,
            positions=placed.positions,
        )

    def _template(self, name: str, queue_id: int, order: Order, sent: Sent) -> Template:
        key = name, sent.tag, queue_id, sent.flag, order.system_flag, order.reconsume
        template = self._templates.pop(key, None)
        if template is None or not template.valid:
            header = header_property(
                flag=sent.flag, system_flag=order.system_flag, reconsume=order.reconsume
            )
            template = self._port.topics.template(
                self._port.topics.route(name, sent.tag),
                properties={**PROTOCOL, **header},
                extra_kind=EXTRA_VERBATIM,
                queue_id=queue_id,
            )
        self._templates.add(key, template)
        return template


def batch_of(messages: Sequence[Sent]) -> Batch:
    """The messages as rows of a batch."""
    batch = Batch(len(messages))
    batch.buffer = b"".join([part for sent in messages for part in (sent.extra, sent.body)])
    at = 0
    for sent in messages:
        body_at = at + len(sent.extra)
        batch.add((0, 0), (body_at, len(sent.body)), (at, len(sent.extra)))
        at = body_at + len(sent.body)
    return batch
