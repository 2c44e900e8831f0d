"""The pulls of one connection: whose turn it is to read, and which are held.

Rules:

* A connection reads for at most `pulls_reading_max` pulls at once, and for none while its
  transport is past the high-water mark. The other pulls wait in order; everything else is
  answered at once.
* The engine answers at once where the records are in memory, and the transport learns of the
  answers only at the end of the loop's iteration: so a connection also stops after
  `TURN_BYTES_MAX` of answers, and goes on in the next iteration.
* A pull with a filter that matches nothing of what is there goes on waiting where the filter stood,
  until the end of its own time: a message for others does not wake its client.
* A pull of a group that an operator has paused is held, or finds nothing.
* Between the question to the engine and its answer a topic may be deleted, or a client vanish.
  The topic is looked up again when the records are there, and its incarnation compared.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, Protocol

from polymq.broker.port import BrokerPort, Refused, TopicInfo
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.foreign_messages import as_rocketmq
from polymq.gateways.rocketmq.limits import Limits
from polymq.gateways.rocketmq.long_polls import LongPoll
from polymq.gateways.rocketmq.mapping import Answer
from polymq.gateways.rocketmq.shared import Shared
from polymq.net.connection import Context
from polymq.remoting.codes import PULL_SUBSCRIPTION, ResponseCode
from polymq.remoting.headers import READER_GROUP, PullFields

TURN_BYTES_MAX: Final = 1024 * 1024
"""Of answers to one connection in one iteration of the loop: as much as its transport takes before
it calls a halt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Records from an offset on are wanted.

    Attributes:
        port: the engine, as who asked may use it.
    """

    serial: int
    fields: PullFields
    port: BrokerPort
    until: float | None = None
    """When it has to be answered at last; None before it was held."""


class Client(Protocol):
    """The connection, as its pulls see it."""

    context: Context
    paused: bool
    closing: bool

    def answer(self, serial: int, answer: Answer) -> None:
        """Send an answer."""

    def regulate(self) -> None:
        """Read on while there is nothing to wait for."""


class _Gone:
    """In place of a client whose connection has ended, so that the two do not keep each other."""

    context: Context  # nothing is asked of it: `closing` is looked at first
    paused = True
    closing = True

    def answer(self, serial: int, answer: Answer) -> None:
        """Nobody reads it."""

    def regulate(self) -> None:
        """Nothing comes any more."""


_GONE: Final = _Gone()


class Pulls:
    """The pulls of one connection.

    Attributes:
        draining: nothing is held any more.
    """

    def __init__(self, client: Client, shared: Shared) -> None:
        self._client: Client = client
        self._shared = shared
        self._limits: Limits = shared.limits
        self.draining = False
        self._turn: deque[Pull] = deque()  # pulls that wait for their turn to read
        self._held: dict[int, Pull] = {}  # by serial; the listener's holds name them
        self._reading_count = 0
        self._turn_bytes = 0  # answered in this iteration of the loop
        self._starting = False  # inside read_next, which an engine that answers at once re-enters

    def take(self, serial: int, fields: PullFields, port: BrokerPort) -> None:
        """A pull came; `read_next` looks at it when it is its turn."""
        self._turn.append(Pull(serial=serial, fields=fields, port=port))

    def forget(self) -> None:
        """The connection is gone."""
        self._client = _GONE
        self._turn.clear()
        self._held.clear()
        self._shared.long_polls.drop(self)

    def release_all(self) -> None:
        """Answer what is held."""
        for long_poll in self._shared.long_polls.drop(self):
            self.release(long_poll.serial)

    def _answer(self, serial: int, answer: Answer) -> None:
        self._turn_bytes += len(answer.body)
        self._client.answer(serial, answer)

    def read_next(self) -> None:
        """Let as many pulls read as may at once."""
        self._client.regulate()
        if self._starting:
            return
        self._starting = True
        try:
            while self._may_read() and self._turn_bytes < TURN_BYTES_MAX:
                self._pull(self._turn.popleft())
        finally:
            self._starting = False
        if self._may_read():
            # Runs behind the write of what is gathered, so `paused` tells the truth again.
            self._client.context.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        self.read_next()

    def _may_read(self) -> bool:
        free = self._reading_count < self._limits.pulls_reading_max
        return bool(self._turn) and free and not self._client.paused and not self._client.closing

    def _pull(self, pull: Pull) -> None:
        fields = pull.fields
        try:
            info = mapping.find_topic(pull.port, fields.topic, fields.user_topic)
        except Refused as error:
            self._answer(pull.serial, mapping.refused(error))
            return
        if info is None:
            self._answer(pull.serial, mapping.no_such_topic(fields.topic))
            return
        if not 0 <= fields.queue_id < len(info.max_offsets):
            self._answer(pull.serial, mapping.no_such_queue(info, fields.queue_id))
            return
        refusal = self._group_refusal(fields.group)
        if refusal is not None:
            self._answer(pull.serial, refusal)
            return
        if self._is_paused(fields, info):
            if not self._wait(pull, info):
                code = ResponseCode.PULL_NOT_FOUND
                self._answer(pull.serial, mapping.pull_answer(info, fields, code))
            return
        reset = self._shared.resets.take(fields.group, info.name, fields.queue_id)
        if reset is not None:
            moved = ResponseCode.PULL_OFFSET_MOVED
            self._answer(pull.serial, mapping.pull_answer(info, fields, moved, next_offset=reset))
            return
        code = mapping.pull_code(info, fields.queue_id, fields.queue_offset)
        if code == ResponseCode.SUCCESS:
            self._read(pull, info)
        elif code != ResponseCode.PULL_NOT_FOUND or not self._wait(pull, info):
            self._answer(pull.serial, mapping.pull_answer(info, fields, code))

    def _is_paused(self, fields: PullFields, info: TopicInfo) -> bool:
        return self._shared.port.groups.is_paused(fields.group, info.name)

    def _group_refusal(self, name: str) -> Answer | None:
        """What a group is answered that an administrator has stopped (`updateSubGroup -s`)."""
        group = self._shared.port.groups.info(name) if name else None
        if group is None or not group.settings:
            return None
        if not group.settings.get("consumeEnable", True):
            return mapping.failed(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
            )
        known = self._shared.members.consumers.get(name)
        if known is not None and known.broadcasting:
            if not group.settings.get("consumeBroadcastEnable", True):
                text = f"the consumer group[{name}] cannot consume by broadcast way"
                return mapping.failed(ResponseCode.NO_PERMISSION, text)
        return None

    def _count_max(self, fields: PullFields) -> int:
        """Records of one answer: at least one, as RocketMQ's brokers give to who names none."""
        of_group = fields.group not in ("", READER_GROUP)
        limits = self._limits
        most = limits.group_pull_count_max if of_group else limits.pull_count_max
        return min(max(fields.count_max, 1), most)

    def _read(self, pull: Pull, info: TopicInfo) -> None:
        fields, limits = pull.fields, self._limits
        asked = fields.bytes_max if fields.bytes_max is not None else limits.pull_bytes_default
        try:
            tags = self._tags(fields, info.name)
        except Refused as error:
            self._answer(pull.serial, mapping.refused(error))
            return
        self._reading_count += 1
        try:
            pull.port.queries.pull(
                info.name,
                fields.queue_id,
                fields.queue_offset,
                count_max=self._count_max(fields),
                bytes_max=min(max(asked, 1), limits.pull_bytes_max),
                tags=tags,
                callback=lambda records, next_offset: self._have_read(
                    pull, info, records, next_offset
                ),
            )
        except Refused as error:
            self._reading_count -= 1
            self._answer(pull.serial, mapping.refused(error))

    def _have_read(self, pull: Pull, before: TopicInfo, records: bytes, next_offset: int) -> None:
        self._reading_count -= 1
        if self._client.closing:
            return
        info = self._shared.port.topics.info(before.name)
        if info is None or info.incarnation != before.incarnation:
            self._answer(pull.serial, mapping.no_such_topic(pull.fields.topic))
        elif self._is_paused(pull.fields, info):  # since it began to read
            self._turn.append(pull)
        elif not records:
            self._passed_over(pull, info, next_offset)
        else:
            self._shared.counts.sent += next_offset - pull.fields.queue_offset
            answer = mapping.pull_answer(
                info,
                pull.fields,
                ResponseCode.SUCCESS,
                records=_translated(records, pull.fields),
                next_offset=next_offset,
            )
            self._answer(pull.serial, answer)
        self.read_next()

    def _tags(self, fields: PullFields, topic: str) -> frozenset[str] | None:
        """What is asked for: by the pull, else by what its group said to subscribe to. Raises
        Refused."""
        if fields.system_flag & PULL_SUBSCRIPTION or fields.subscription is not None:
            return mapping.tags_of(fields.expression_type, fields.subscription)
        group = self._shared.members.consumers.get(fields.group)
        known = None if group is None else group.subscriptions.get(fields.topic)
        if known is None:
            return None
        return mapping.tags_of(known.expression_type, known.sub_string)

    def _passed_over(self, pull: Pull, info: TopicInfo, next_offset: int) -> None:
        """Nothing up to `next_offset` is for this client."""
        if next_offset > pull.fields.queue_offset:
            pull = replace(pull, fields=pull.fields.at(next_offset))
        code = mapping.pull_code(info, pull.fields.queue_id, pull.fields.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and self._wait(pull, info):
            return
        if code == ResponseCode.SUCCESS:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        self._answer(pull.serial, mapping.pull_answer(info, pull.fields, code))

    def _wait(self, pull: Pull, info: TopicInfo) -> bool:
        if self.draining or not mapping.may_wait(pull.fields):
            return False
        if len(self._held) >= self._limits.long_polls_per_client_max:
            return False
        now, until = self._client.context.now(), pull.until
        if until is None:
            seconds = min(pull.fields.suspend_ms / 1000, self._limits.long_poll_seconds_max)
            until = now + seconds
        elif until <= now:
            return False
        held = self._shared.long_poll(
            LongPoll(
                owner=self,
                serial=pull.serial,
                topic=info.name,
                queue_id=pull.fields.queue_id,
                group=pull.fields.group,
                offset=pull.fields.queue_offset,
                until=until,
            )
        )
        if held:
            self._held[pull.serial] = replace(pull, until=until)
        return held

    def release(self, serial: int) -> None:
        """Answer a held pull: with what came meanwhile, or that nothing did."""
        pull = self._held.pop(serial)
        fields = pull.fields
        try:
            info = mapping.find_topic(pull.port, fields.topic, fields.user_topic)
        except Refused as error:
            self._answer(serial, mapping.refused(error))
            return
        if info is not None and fields.queue_id < len(info.max_offsets):
            code = mapping.pull_code(info, fields.queue_id, fields.queue_offset)
            if code == ResponseCode.PULL_NOT_FOUND:
                self._answer(serial, mapping.pull_answer(info, fields, code))
                return
        self._turn.append(pull)
        self.read_next()


def _translated(records: bytes, fields: PullFields) -> bytes:
    """The records in the form that was asked for."""
    return records if fields.stored else as_rocketmq(records, whole=bool(fields.whole))
