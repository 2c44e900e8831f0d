"""What a producer does: which queue comes next, what is tried again, and where. Pure.

    producer = Producer(group="g", routes=routes, presence=..., ...)
    sent = driver.run(producer.send(Message(topic="orders", body=b"...")))

Rules:

* Without a key the queues take turns, beginning with one by chance. A broker that failed is passed
  over for `avoid_seconds`, unless all are to be.
* With a key, the key's hash chooses the queue, as in RocketMQ's Java client. Such a message is not
  tried elsewhere: that would change the order.
* Tried again, on another broker where there is one, is what got no answer, and what a broker says
  that cannot serve now. An attempt without an answer may have been stored: the message can then be
  there twice, with the same unique key.
* Codes 10 to 12 mean that the message is stored, less safely than the broker was asked to.
* For a topic that is not there, the route of `TBW102` is used, and the first message makes it.
* Bodies from `compress_bytes` on travel compressed, if that makes them shorter; those of batches do
  not, as in RocketMQ's Java client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from polymq.remoting.bodies import TopicRoute
from polymq.remoting.broker_fields import SendAnswer, SendFields
from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.compression import ZLIB_FLAG, compress
from polymq.remoting.errors import CallFailed, LocalProtocolError, RequestFailed, Unreachable
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.headers import read_fields
from polymq.remoting.messages import (
    AUTO_TOPIC,
    DELAYS,
    PREPARED_PROPERTY,
    PRODUCER_GROUP,
    UNIQUE_KEY,
    WAIT,
    Message,
    check_message,
    encode_batch,
    encode_properties,
    hash_code,
    send_fields,
)
from polymq.remoting.presence import Presence
from polymq.remoting.routes import TOPICS_COUNT_MAX, Routes, master_of, queues_to_write
from polymq.remoting.steps import Call, Steps

RETRIED: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)
"""Codes for which RocketMQ's producers try another broker; any other is the user's to know."""
PREPARED: Final = 0x4
"""System flag: a half message of a transaction."""
STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How patient a producer is; RocketMQ's defaults."""

    send_seconds: float = 3.0
    attempts_max: int = 3
    avoid_seconds: float = 30.0
    new_topic_queues_max: int = 4
    """Of a topic that its first message makes."""
    compress_bytes: int | None = 4096
    """Bodies of so many bytes and more are compressed; None: none are."""
    compress_level: int = 5
    """zlib's, from 1 (fast) to 9 (small)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message is stored.

    Attributes:
        code: SUCCESS; or 10, 11, 12: stored, less safely than the broker was asked to.
        message_id: the unique key, which the message carries; of a batch, joined by commas.
        offset_message_id: by which brokers find it at once.
        queue_offset: of the first message of a batch.
    """

    code: int
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int


@dataclass(slots=True)
class Producer:
    """Sends for one group.

    Args:
        clock: seconds that do not go back.
        clock_ms: the wall clock.
        choose: a number below its argument, by chance.
        new_id: an id that nobody else makes, of 32 hexadecimal digits.
    """

    group: str
    client_id: str
    routes: Routes
    clock: Callable[[], float]
    clock_ms: Callable[[], int]
    choose: Callable[[int], int]
    new_id: Callable[[], str]
    settings: ProducerSettings = field(default_factory=ProducerSettings)
    presence: Presence = field(init=False)
    _turns: OrderedDict[str, int] = field(default_factory=OrderedDict)  # of each topic
    _avoided: dict[str, float] = field(default_factory=dict)  # broker -> until when

    def __post_init__(self) -> None:
        self.presence = Presence(
            client_id=self.client_id,
            routes=self.routes,
            # The brokers of a topic that its first message makes are known by the template's route.
            topics=lambda: (*self._turns, AUTO_TOPIC),
            producer_group=self.group,
        )

    # --- operations -----------------------------------------------------------------------

    def send(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> Steps[Sent]:
        """Send one message.

        Args:
            key: messages with one key keep their order: they come to one queue.
            queue: this one.

        Raises:
            LocalProtocolError: no broker would take it.
            RequestFailed: a broker refused it, or there is no such topic.
            Unreachable: the last attempt failed; the message may be stored all the same.
        """
        unique = self.new_id()
        fields, body = self._encoded(message, unique)
        return (yield from self._send(fields, body, unique, key, queue))

    def send_half(self, message: Message) -> Steps[Sent]:
        """Send a message that nobody sees until its transaction is committed (`transactions`).
        Raises as `send`, and LocalProtocolError for one with a delay."""
        if DELAYS & message.properties.keys():
            raise LocalProtocolError("a message of a transaction cannot be delayed")
        unique = self.new_id()
        prepared = f"{PREPARED_PROPERTY}\x01true\x02{PRODUCER_GROUP}\x01{self.group}\x02"
        fields, body = self._encoded(message, unique, prepared)
        half = msgspec.structs.replace(fields, sys_flag=fields.sys_flag | PREPARED)
        return (yield from self._send(half, body, unique, None, None))

    def send_batch(self, messages: Sequence[Message], *, key: str | None = None) -> Steps[Sent]:
        """Send messages of one topic at one go: they stand behind each other in one queue, or not
        at all. Raises as `send`."""
        if not messages or len({message.topic for message in messages}) != 1:
            raise LocalProtocolError("a batch has messages, and all of one topic")
        for message in messages:
            check_message(message)
        unique = [self.new_id() for _ in messages]
        body = encode_batch(messages, unique)
        properties = f"{WAIT}\x01true\x02{UNIQUE_KEY}\x01{','.join(unique)}\x02"
        fields = self._fields(messages[0].topic, 0, properties, batch=True)
        return (yield from self._send(fields, body, ",".join(unique), key, None))

    def send_oneway(self, message: Message, *, key: str | None = None) -> Steps[None]:
        """Send one message and do not wait: whether it is stored is not known.

        Raises LocalProtocolError, RequestFailed (no such topic), Unreachable (no name server, or
        no broker takes a connection).
        """
        fields, body = self._encoded(message, self.new_id())
        queues = yield from self._queues(message.topic)
        call = yield from self._call(fields, body, self._next(queues, key), oneway=True)
        try:
            yield call
        except CallFailed as error:
            raise Unreachable(str(error)) from error

    # --- attempts -------------------------------------------------------------------------

    def _send(
        self,
        fields: SendFields,
        body: bytes,
        unique: str,
        key: str | None,
        queue: MessageQueue | None,
    ) -> Steps[Sent]:
        failure: Exception | None = None
        fixed = key is not None or queue is not None
        for attempt in range(1 if fixed else self.settings.attempts_max):
            if attempt:
                yield from self.routes.refresh(fields.topic)
            queues = yield from self._queues(fields.topic)
            chosen = queue or self._next(queues, key)
            call = yield from self._call(fields, body, chosen, oneway=False)
            try:
                answer = yield call
            except CallFailed as error:
                failure = error
            else:
                assert answer is not None, "a driver answers a Call with a Command"
                if answer.code in STORED:
                    self._avoided.pop(chosen.broker_name, None)
                    return _sent(answer, chosen, unique)
                refusal = RequestFailed(answer.code, answer.remark or "", address=str(call.address))
                if answer.code not in RETRIED:
                    raise refusal
                failure = refusal
            self._avoided[chosen.broker_name] = self.clock() + self.settings.avoid_seconds
        if isinstance(failure, RequestFailed):
            raise failure
        raise Unreachable(f"no broker answers: {failure}") from failure

    def _call(
        self, fields: SendFields, body: bytes, queue: MessageQueue, *, oneway: bool
    ) -> Steps[Call]:
        route = yield from self.route(fields.topic)
        address = master_of(route, queue.broker_name)
        if address is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST, f"broker {queue.broker_name} has no master"
            )
        code = RequestCode.SEND_BATCH_MESSAGE if fields.batch else RequestCode.SEND_MESSAGE_V2
        placed = msgspec.structs.replace(
            fields, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return Call(
            address=address,
            code=code,
            fields=send_fields(placed),
            body=body,
            seconds=self.settings.send_seconds,
            oneway=oneway,
        )

    def route(self, topic: str) -> Steps[TopicRoute]:
        """Where a topic is; of one that is not there yet, where it will be. Raises as `send`."""
        return self.routes.known(topic) or (yield from self.routes.get(AUTO_TOPIC))

    def _queues(self, topic: str) -> Steps[list[MessageQueue]]:
        """The queues that may take a message now, in the order in which they take turns."""
        try:
            route = yield from self.routes.get(topic)
            queues = queues_to_write(topic, route)
        except (RequestFailed, Unreachable) as error:
            # What was made a moment ago may not be known yet when all name servers go away.
            is_new = isinstance(error, RequestFailed) and error.code == ResponseCode.TOPIC_NOT_EXIST
            if not is_new and topic not in self._turns:
                raise
            template = yield from self.routes.get(AUTO_TOPIC)
            queues = [
                queue
                for queue in queues_to_write(topic, template)
                if queue.queue_id < self.settings.new_topic_queues_max
            ]
        if not queues:
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"topic {topic} accepts no messages")
        return queues

    def _next(self, queues: Sequence[MessageQueue], key: str | None) -> MessageQueue:
        topic = queues[0].topic
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= TOPICS_COUNT_MAX:
                self._turns.popitem(last=False)
            turn = self._turns[topic] = self.choose(len(queues))
            self.presence.wake.give()  # another topic: its brokers learn of this producer
        if key is not None:
            return queues[abs(hash_code(key)) % len(queues)]
        now = self.clock()
        for ahead in range(len(queues)):
            queue = queues[(turn + ahead) % len(queues)]
            if self._avoided.get(queue.broker_name, now) <= now:
                self._turns[topic] = (turn + ahead + 1) % len(queues)
                return queue
        self._turns[topic] = (turn + 1) % len(queues)
        return queues[turn % len(queues)]

    def _encoded(
        self, message: Message, unique: str, more_properties: str = ""
    ) -> tuple[SendFields, bytes]:
        """The header and the body of one message. Raises LocalProtocolError."""
        check_message(message)
        properties = encode_properties(message, unique) + more_properties
        fields = self._fields(message.topic, message.flag, properties)
        settings, body = self.settings, message.body
        if settings.compress_bytes is None or len(body) < settings.compress_bytes:
            return fields, body
        packed = compress(body, settings.compress_level)
        if packed is None:
            return fields, body
        return msgspec.structs.replace(fields, sys_flag=fields.sys_flag | ZLIB_FLAG), packed

    def _fields(self, topic: str, flag: int, properties: str, batch: bool = False) -> SendFields:
        return SendFields(
            producer_group=self.group,
            topic=topic,
            default_topic=AUTO_TOPIC,
            default_topic_queue_nums=self.settings.new_topic_queues_max,
            queue_id=0,
            born_timestamp=self.clock_ms(),
            flag=flag,
            properties=properties,
            batch=batch,
        )


def _sent(answer: Command, queue: MessageQueue, unique: str) -> Sent:
    stored = read_fields(SendAnswer, answer.fields)
    return Sent(
        code=answer.code,
        message_id=unique,
        offset_message_id=stored.msg_id,
        queue=MessageQueue(
            topic=queue.topic, broker_name=queue.broker_name, queue_id=stored.queue_id
        ),
        queue_offset=stored.queue_offset,
    )
