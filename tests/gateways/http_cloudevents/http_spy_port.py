"""A broker in memory behind the port, for tests of the HTTP listener: it stores, delivers and
flushes when it is told to, and can be made to refuse or to fail."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    Address,
    Consumer,
    Delivery,
    Durability,
    Message,
    Position,
    Reason,
    RecordRun,
    Refused,
    RunMeta,
    StorageFailed,
    TakesApart,
    TopicInfo,
)
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_SIZE,
    EXTRA_START,
    EXTRA_VERBATIM,
    Batch,
)
from tests.harness import spy_port
from tests.harness.spy_port import operation

STORE_MS = 1_790_000_000_123
RECORD_BYTES = 100
"""What each stored message adds to the log's position."""


@dataclass
class SpyRoute:
    topic: str
    tag: str | None
    routed: bool = True
    by_headers: bool = False


@dataclass
class SpyTemplate:
    route: SpyRoute
    properties: Mapping[str, str]
    sharding: str
    durability: Durability = Durability.FLUSHED
    valid: bool = True
    rows_at_once: int = 4_096


class SpyDelivery(Delivery):
    """A delivery of messages that are values already."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message], constants: list[Mapping[str, str]]) -> None:
        runs = [
            RecordRun(RunMeta(message.topic, message.tag, constant, 0), b"", 0, 0, 1)
            for message, constant in zip(messages, constants, strict=True)
        ]
        super().__init__(runs, messages[0].consumer_offset, len(messages), messages[0].redelivered)
        self._messages = messages

    def messages(self) -> list[Message]:
        return self._messages


@dataclass
class SpyQueue:
    """A subscription's queue."""

    address: Address
    messages: list[tuple[Message, Mapping[str, str]]] = field(default_factory=list)
    next: int = 0
    requeued: list[int] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    consumer: Consumer | None = None
    paused: bool = False


class SpyRegistration:
    """A consumer's hold on a queue."""

    def __init__(self, port: SpyPort, queue: SpyQueue, consumer: Consumer) -> None:
        self.port = port
        self.queue = queue
        self.consumer = consumer

    @property
    def paused(self) -> bool:
        return self.queue.paused

    def settle(self, first_offset: int, count: int) -> None:
        for offset in range(first_offset, first_offset + count):
            assert offset in self.queue.delivered, f"{offset} is not out"
            self.queue.delivered.remove(offset)
            self.queue.settled.add(offset)

    def requeue(self, first_offset: int, count: int) -> None:
        for offset in range(first_offset, first_offset + count):
            assert offset in self.queue.delivered, f"{offset} is not out"
            self.queue.delivered.remove(offset)
            self.queue.requeued.append(offset)
        self.queue.requeued.sort()
        self.port.pump_soon(self.queue)

    def ready(self) -> None:
        self.port.pump_soon(self.queue)

    def cancel(self) -> None:
        if self.queue.consumer is self.consumer:
            self.queue.consumer = None


class SpyPort(spy_port.SpyPort):
    """See the head of the file.

    Args:
        auto_flush: whether what is published is committed in the next loop iteration.
        queue_count: queues of each topic.
    """

    def __init__(self, *, auto_flush: bool = True, queue_count: int = 1) -> None:
        self.auto_flush = auto_flush
        self.queue_count = queue_count
        self.stored: list[Message] = []
        self.constants: list[Mapping[str, str]] = []
        self.shardings: list[str] = []
        self.delayed: list[tuple[int, int, int]] = []
        """(messages, delay, delivery time) of each `publish_later`."""
        self.publish_calls: list[int] = []
        """Rows of each publish."""
        self.queue_by_name: dict[str, SpyQueue] = {}
        self.appended = 0
        self.flushed = 0
        self.refusals: list[Refused | None] = []
        """What the next publishes are refused with; None lets one pass."""
        self.passwords: dict[str, bytes] | None = None
        self._documents: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._waiting: deque[tuple[int, Callable[..., None], tuple[object, ...]]] = deque()
        self._on_failure: list[Callable[[StorageFailed], None]] = []

    # --- publishing

    @operation("topics.route")
    def route(self, topic: str, tag: str | None) -> SpyRoute:
        if topic.startswith("RMQ_SYS_"):
            raise Refused(Reason.FORBIDDEN, f"{topic} is closed to clients")
        return SpyRoute(topic, tag)

    @operation("topics.template")
    def template(
        self,
        route: SpyRoute,
        *,
        properties: Mapping[str, str],
        extra_kind: int = 0,
        extra_name: str = "",
        durability: Durability = Durability.FLUSHED,
        retain: bool = False,
        sharding: str = "",
    ) -> SpyTemplate:
        assert extra_kind == EXTRA_VERBATIM
        assert durability is Durability.FLUSHED
        assert not retain
        return SpyTemplate(route, dict(properties), sharding)

    def publish(self, template: SpyTemplate, batch: Batch, first: int, last: int) -> Position:
        assert template.valid
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal is not None:
                raise refusal
        self.publish_calls.append(last - first)
        for index in range(first, last):
            self._store(template, batch, index)
        self._moved()
        return Position(self.appended)

    @operation("delays.publish_later")
    def publish_later(
        self,
        template: SpyTemplate,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
    ) -> Position:
        self.delayed.append((last - first, delay_ms, deliver_ms))
        return self.publish(template, batch, first, last)

    def _store(self, template: SpyTemplate, batch: Batch, index: int) -> None:
        row = batch.rows[index * COLUMNS : (index + 1) * COLUMNS]
        memory = bytes(batch.buffer)
        extra = memory[row[EXTRA_START] : row[EXTRA_START] + row[EXTRA_SIZE]].decode(
            "utf-8", "surrogateescape"
        )
        properties = dict(template.properties)
        assert extra == "" or extra.endswith("\x02")
        for pair in extra.split("\x02")[:-1]:
            name, value = pair.split("\x01")
            assert name not in properties, f"{name} stands twice"
            properties[name] = value
        self.add(
            template.route.topic,
            template.route.tag,
            memory[row[BODY_START] : row[BODY_START] + row[BODY_SIZE]],
            properties,
            template.properties,
        )
        self.shardings.append(template.sharding)

    def add(
        self,
        topic: str,
        tag: str | None,
        body: bytes,
        properties: Mapping[str, str],
        constant: Mapping[str, str] | None = None,
    ) -> Message:
        """Store a message as any gateway may."""
        message = Message(
            topic=topic,
            tag=tag,
            body=body,
            properties=properties,
            born_ms=STORE_MS,
            store_ms=STORE_MS,
            position=self.appended,
            queue_id=0,
            queue_offset=len(self.stored),
            consumer_offset=0,
            redelivered=False,
        )
        self.stored.append(message)
        self.constants.append(constant or {})
        self.appended += RECORD_BYTES
        address = (topic,) if tag is None else (topic, *tag.split("."))
        for queue in self.queue_by_name.values():
            if matches(queue.address, address):
                queue.messages.append((message, constant or {}))
        return message

    @operation("transactions.publish_settling")
    def publish_settling(
        self,
        template: SpyTemplate,
        batch: Batch,
        row: int,
        consumer: SpyRegistration,
        offset: int,
        *,
        position: int = 0,
    ) -> Position:
        stored = self.publish(template, batch, row, row + 1)
        consumer.settle(offset, 1)
        return stored

    def _moved(self) -> None:
        if self.auto_flush:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Commit everything."""
        self.flushed = self.appended
        while self._waiting and self._waiting[0][0] <= self.flushed:
            _, callback, arguments = self._waiting.popleft()
            callback(*arguments)
        for queue in self.queue_by_name.values():
            self._pump(queue)

    def when_committed(
        self,
        position: Position,
        durability: Durability,
        callback: Callable[..., None],
        *args: object,
    ) -> None:
        assert durability is Durability.FLUSHED
        if position <= self.flushed:
            callback(*args)
        else:
            self._waiting.append((position, callback, args))

    def committed(self, position: Position, durability: Durability) -> bool:
        return position <= self.flushed

    @operation("storage.when_failed")
    def when_storage_fails(self, callback: Callable[[StorageFailed], None]) -> None:
        self._on_failure.append(callback)

    def fail(self) -> None:
        """The log directory fails."""
        self.refusals = [Refused(Reason.READ_ONLY, "the broker is read-only")] * 100
        for callback in self._on_failure:
            callback(StorageFailed("no space left on the moon"))

    # --- subscriptions

    @operation("queues.declare_subscription")
    def declare_subscription(self, name: str, address: Address) -> Position:
        queue = self.queue_by_name.setdefault(self.subscription_queue(name), SpyQueue(address))
        if queue.address != address:
            raise Refused(Reason.DIFFERENT, f"{name} exists with other words")
        return self._changed()

    @operation("queues.delete_subscription")
    def delete_subscription(self, name: str) -> Position:
        queue = self.queue_by_name.pop(self.subscription_queue(name), None)
        if queue is not None and queue.consumer is not None:
            queue.consumer.cancelled()
        return self._changed()

    @operation("queues.subscription_queue")
    def subscription_queue(self, name: str) -> str:
        return f"sub:{name}"

    @operation("queues.consume")
    def consume(
        self,
        queue: str,
        consumer: Consumer,
        *,
        exclusive: bool,
        owner: object,
        takes_apart: TakesApart,
    ) -> SpyRegistration:
        assert takes_apart(RunMeta("any", None, {}, 0)), "the engine bounds how many come at once"
        found = self.queue_by_name[queue]
        assert found.consumer is None, "one consumer at a time"
        found.consumer = consumer
        return SpyRegistration(self, found, consumer)

    def pump_soon(self, queue: SpyQueue) -> None:
        asyncio.get_running_loop().call_soon(self._pump, queue)

    def _pump(self, queue: SpyQueue) -> None:
        while (
            queue.consumer is not None
            and not queue.paused
            and (credit := queue.consumer.credit()) > 0
        ):
            offsets = queue.requeued[:credit]
            redelivered = bool(offsets)
            if not offsets:
                visible = sum(m.position < self.flushed for m, _ in queue.messages)
                offsets = list(range(queue.next, min(queue.next + credit, visible)))
                queue.next += len(offsets)
            else:
                # Offsets of one delivery are consecutive.
                offsets = [o for k, o in enumerate(offsets) if o == offsets[0] + k]
                del queue.requeued[: len(offsets)]
            if not offsets:
                return
            queue.delivered.update(offsets)
            messages = [
                replace_offset(queue.messages[offset][0], offset, redelivered) for offset in offsets
            ]
            constants = [queue.messages[offset][1] for offset in offsets]
            queue.consumer.deliver(SpyDelivery(messages, constants))

    # --- documents, topics, users

    @operation("documents.put")
    def put_document(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        if value is None:
            self._documents.pop((kind, key), None)
        else:
            self._documents[kind, key] = json.loads(json.dumps(value))
        return self._changed()

    @operation("documents.of_kind")
    def documents_of(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return {key: value for (one, key), value in self._documents.items() if one == kind}

    def _changed(self) -> Position:
        self.appended += RECORD_BYTES
        self._moved()
        return Position(self.appended)

    @operation("topics.info")
    def topic(self, name: str) -> TopicInfo | None:
        zeros = (0,) * self.queue_count
        return TopicInfo(name=name, min_offsets=zeros, max_offsets=zeros, incarnation=1)

    @operation("admission.authenticate")
    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
        origin: object = None,
    ) -> Callable[[], None]:
        if self.passwords is not None and self.passwords.get(user or "", b"?") != password:
            answer(Refused(Reason.NOT_AUTHENTICATED, "user or password is wrong"))
        else:
            answer(user or "anonymous")
        return lambda: None

    def overloaded(self, resume: Callable[[], None]) -> bool:
        return False


def matches(pattern: Address, address: Address) -> bool:
    """Whether words match a pattern."""
    if not pattern:
        return not address
    if pattern[0] == REST:
        return any(matches(pattern[1:], address[at:]) for at in range(len(address) + 1))
    if not address or pattern[0] not in (ONE_LEVEL, address[0]):
        return False
    return matches(pattern[1:], address[1:])


def replace_offset(message: Message, offset: int, redelivered: bool) -> Message:
    """The message as delivered from one queue."""
    return dataclasses.replace(message, consumer_offset=offset, redelivered=redelivered)
