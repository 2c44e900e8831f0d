"""Messages: those that a topic retains, by offset, time, key and tag; what waits in a queue; and
publishing one.

Rules:

* What a message contains is for who may subscribe to its topic, or consume from the queue: the
  caller's port checks it.
* The disk is read, and messages are decoded, in reader threads.
* Looking at a queue takes nothing from it, and changes nothing.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from polymq.admin.awaiting import answer_of, in_reader
from polymq.admin.commits import Committed
from polymq.admin.message_values import ANSWER_BYTES_MAX, BodyQuery, Message, messages_of
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import PAGE_DEFAULT, PAGE_MAX
from polymq.admin.records import fetch_record, position_in
from polymq.broker.accounts import audit
from polymq.broker.admission.permitted_amqp import PermittedQueues
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import BrokerPort, display_name, parse_display_name
from polymq.broker.queues.inspection import ready_stretches
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, PROPERTY_CRC, Batch

PULL_BYTES: Final = 1024 * 1024
PULLS_MAX: Final = 32
"""Reads of one page: with a tag that few messages have, the page ends early, and may be empty."""
TIME_MAX: Final = (1 << 63) - 1
RESERVED: Final = ("PMQ_", PROPERTY_CRC.decode(), "TAGS")
"""Names of properties that nobody may set begin so."""
ORIGIN: Final = {"PMQ_PROTO": "rocketmq"}
"""How properties with names are stored, which all protocols read (docs/properties.md)."""

Number = Annotated[int, msgspec.Meta(ge=0)]


class MessagesQuery(BodyQuery):
    """Which messages of a topic.

    Attributes:
        queue: number of the queue of the topic.
        offset: begin there; by default at the first message that is there.
        last: begin so many messages before the end.
        since_ms: only messages stored at this time or later, in milliseconds since the epoch.
        until_ms: only messages stored at this time or earlier.
        tag: only messages with this tag.
        key: only messages with this key, of all queues, the newest first; at most 64.
        limit: how many, at most 500.
        after: `next` of the page before.
    """

    queue: Number = 0
    offset: Number | None = None
    last: Number | None = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    tag: str | None = None
    key: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None


class MessagePage(Value):
    """Messages of a topic, in the order of their offsets.

    Attributes:
        items: the messages. A page may have fewer than were asked for, and none, and not be the
            last one.
        next: what `after` has to be for the following page; null: there is no more now.
    """

    items: list[Message]
    next: str | None


class PeekQuery(BodyQuery):
    """Which messages of a queue.

    Attributes:
        limit: how many, at most 500.
        after: `next` of the page before.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None


class WaitingMessage(Value):
    """A message that waits in a queue.

    Attributes:
        queue_offset: its offset in the queue.
        redelivered: whether a consumer has had it and gave it back.
        message: the message.
    """

    queue_offset: int
    redelivered: bool
    message: Message


class WaitingPage(Value):
    """What waits in a queue, in the order in which consumers get it.

    Attributes:
        items: the messages.
        next: what `after` has to be for the following page; null: no more waits.
    """

    items: list[WaitingMessage]
    next: str | None


class NewMessage(Given):
    """A message to be published.

    Attributes:
        tag: in the form with dots: the other levels of an MQTT topic, the routing key of AMQP.
        body: as text.
        body_base64: the same in base64, for what is no text.
        key: by which it can be found; without spaces.
        content_type: media type of the body.
        properties: further ones, by name. Names that begin with PMQ_ are the broker's.
    """

    tag: str | None = None
    body: str | None = None
    body_base64: str | None = None
    key: str | None = None
    content_type: str | None = None
    properties: dict[str, str] = msgspec.field(default_factory=dict)


class Published(Value):
    """Where a message was stored.

    Attributes:
        topic: as clients write it.
        tag: null: it has none.
        offset: in the queue of the topic.
        position: in the log.
    """

    topic: str
    tag: str | None
    offset: int
    position: int


class MessageHandlers:
    """Carries out the operations on messages.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._committed = committed

    def group(self, *more: Operation) -> Group:
        """The operations, and those of another module."""
        topic = {"name": "the topic, as clients write it"}
        return Group(
            name="messages",
            about="Messages in topics and queues. Their contents are for callers who may also "
            "subscribe to the topic, or consume from the queue.",
            operations=[
                Operation(
                    method="GET",
                    path="/topics/{name}/messages",
                    name="listMessages",
                    summary="List messages of a topic, by offset, time, key or tag",
                    right="monitor",
                    handler=self._list,
                    query=MessagesQuery,
                    answer=MessagePage,
                    path_about=topic,
                ),
                Operation(
                    method="POST",
                    path="/topics/{name}/messages",
                    name="publishMessage",
                    summary="Publish a message",
                    about="The caller has to have the right to publish there. The request has at "
                    "most 64 KiB: larger messages go over a protocol.",
                    right="operate",
                    handler=self._publish,
                    body=NewMessage,
                    answer=Published,
                    path_about=topic,
                ),
                Operation(
                    method="GET",
                    path="/messages/{position}",
                    name="getMessage",
                    summary="Show the message at a position of the log",
                    right="monitor",
                    handler=self._show,
                    query=BodyQuery,
                    answer=Message,
                    path_about={
                        "position": "a position, or RocketMQ's message id of 32 hex digits"
                    },
                ),
                Operation(
                    method="GET",
                    path="/queues/{name}/messages",
                    name="peekQueue",
                    summary="Show what waits in a queue, and leave it there",
                    right="monitor",
                    handler=self._peek,
                    query=PeekQuery,
                    answer=WaitingPage,
                    path_about={"name": "the queue"},
                ),
                *more,
            ],
        )

    async def _decoded(self, records: bytes, body_bytes: int) -> list[Message]:
        if not records:
            return []
        user_name = self._engine.core.metas.user_name
        return await in_reader(
            self._engine, lambda: list(messages_of(records, user_name, body_bytes))
        )

    # --- topics ---------------------------------------------------------------------------------

    async def _list(self, call: Call[MessagesQuery]) -> MessagePage:
        query, queries = call.query, call.port.queries
        topic = parse_display_name(call.path["name"])
        if query.key is not None:
            found: bytes | None = await answer_of(
                lambda called: queries.by_key(
                    topic,
                    query.key or "",
                    count_max=query.limit,
                    begin_ms=query.since_ms or 0,
                    end_ms=TIME_MAX if query.until_ms is None else query.until_ms,
                    callback=called,
                )
            )
            if found is None:
                raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
            return MessagePage(items=await self._decoded(found, query.body_bytes), next=None)
        offset = await self._first(topic, call)
        return await self._page(topic, offset, call)

    async def _first(self, topic: str, call: Call[MessagesQuery]) -> int:
        """Where a page begins. Raises Refused."""
        query = call.query
        info = call.port.topics.info(topic)
        if info is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(topic)!r}")
        if query.queue >= len(info.max_offsets):
            raise Refused(
                Reason.NOT_FOUND, f"there is no queue {query.queue} of {display_name(topic)!r}"
            )
        first, end = info.min_offsets[query.queue], info.max_offsets[query.queue]
        if query.after is not None:
            if not (query.after.isascii() and query.after.isdecimal()):
                text = "after has to be the text `next` of a page of this list"
                raise Refused(Reason.BAD_ARGUMENT, text)
            return max(first, int(query.after))
        begins = [first]
        if query.offset is not None:
            begins.append(query.offset)
        if query.last is not None:
            begins.append(end - query.last)
        if query.since_ms is not None:
            time_ms = query.since_ms
            found: int | None = await answer_of(
                lambda called: call.port.queries.by_time(topic, query.queue, time_ms, called)
            )
            if found is None:
                raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
            begins.append(found)
        return max(begins)

    async def _page(self, topic: str, offset: int, call: Call[MessagesQuery]) -> MessagePage:
        query = call.query
        items: list[Message] = []
        shown_bytes = 0
        for _ in range(PULLS_MAX):
            at = offset
            records, offset = await answer_of(partial(self._pull, topic, at, call, len(items)))
            for message in await self._decoded(records, query.body_bytes):
                if query.until_ms is not None and message.store_ms > query.until_ms:
                    return MessagePage(items=items, next=None)
                items.append(message)
                shown_bytes += min(message.body_bytes, query.body_bytes)
                if len(items) == query.limit or shown_bytes > ANSWER_BYTES_MAX:
                    return MessagePage(items=items, next=str(message.offset + 1))
            if offset == at:
                return MessagePage(items=items, next=None)
        return MessagePage(items=items, next=str(offset))

    def _pull(
        self,
        topic: str,
        offset: int,
        call: Call[MessagesQuery],
        count: int,
        called: Callable[[tuple[bytes, int]], None],
    ) -> None:
        query = call.query
        call.port.queries.pull(
            topic,
            query.queue,
            offset,
            count_max=query.limit - count,
            bytes_max=PULL_BYTES,
            callback=lambda records, following: called((records, following)),
            tags=None if query.tag is None else frozenset([query.tag]),
        )

    async def _show(self, call: Call[BodyQuery]) -> Message:
        record = await fetch_record(call.port, position_in(call.path["position"]))
        (message,) = await self._decoded(record, call.query.body_bytes)
        return message

    # --- queues ---------------------------------------------------------------------------------

    async def _peek(self, call: Call[PeekQuery]) -> WaitingPage:
        name = call.path["name"]
        found = self._engine.named_queues.queues.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {name!r}")
        check_queue(call.port, name)
        level, least = _start_of(call.query.after)
        items: list[WaitingMessage] = []
        following = (level, least)
        shown_bytes = 0
        for at, first, count, redelivered in _stretches(found, level, least):
            while count and len(items) < call.query.limit and shown_bytes <= ANSWER_BYTES_MAX:
                index = found.group.all_groups()[at].queue.index
                wanted = min(count, call.query.limit - len(items))
                records, many = await answer_of(partial(self._read, index, first, wanted))
                if not many:  # it was consumed meanwhile, or cannot be read
                    break
                for number, message in enumerate(
                    await self._decoded(records or b"", call.query.body_bytes)
                ):
                    shown_bytes += min(message.body_bytes, call.query.body_bytes)
                    items.append(
                        WaitingMessage(
                            queue_offset=first + number, redelivered=redelivered, message=message
                        )
                    )
                first, count = first + many, count - many
                following = (at, first)
        left = any(True for _ in _stretches(found, *following))
        return WaitingPage(
            items=items, next=f"{following[0]}:{following[1]}" if left and items else None
        )

    def _read(
        self,
        index: Any,
        first: int,
        count: int,
        called: Callable[[tuple[bytes | None, int]], None],
    ) -> None:
        self._engine.core.reading.read(
            index, first, count, PULL_BYTES, lambda records, many: called((records, many))
        )

    # --- publishing -----------------------------------------------------------------------------

    async def _publish(self, call: Call[Given]) -> Published:
        wanted: NewMessage = call.body
        topic = parse_display_name(call.path["name"])
        body, extra = _body(wanted), _extra(wanted)
        route = call.port.topics.route(topic, wanted.tag)
        template = call.port.topics.template(
            route, properties=ORIGIN, extra_kind=EXTRA_VERBATIM, sharding=wanted.key or ""
        )
        batch = Batch(1)
        batch.buffer = bytearray(extra + body)
        batch.add((0, 0), (len(extra), len(body)), (0, len(extra)))
        placed = call.port.topics.publish_placed(
            template, batch, 0, 1, born_ms=self._engine.core.clock_ms()
        )
        audit.note("message published", topic=display_name(topic), tag=wanted.tag, by=call.caller)
        await self._committed(placed.position)
        return Published(
            topic=display_name(topic),
            tag=wanted.tag,
            offset=placed.offset,
            position=placed.positions[0],
        )


def check_queue(port: BrokerPort, name: str) -> None:
    """Whether a caller may see what is in a queue. Raises Refused: FORBIDDEN."""
    queues = port.queues
    if isinstance(queues, PermittedQueues) and not queues.may_consume(name):
        raise Refused(
            Reason.FORBIDDEN,
            f"what waits in queue {name!r} is for users who may subscribe to all that it collects",
        )


def _stretches(found: NamedQueue, level: int, least: int) -> Iterator[tuple[int, int, int, bool]]:
    """What waits from a place on: number of the priority, first offset, count, and whether it was
    given back."""
    for at, group in enumerate(found.group.all_groups()):
        if at < level:
            continue
        following = group.cursor.next
        for first, count in ready_stretches(group):
            end = first + count
            begin = max(first, least) if at == level else first
            if begin < end:
                yield at, begin, end - begin, first < following


def _start_of(after: str | None) -> tuple[int, int]:
    if after is None:
        return 0, 0
    level, _, offset = after.partition(":")
    if not (after.isascii() and level.isdecimal() and offset.isdecimal()):
        text = "after has to be the text `next` of a page of this list"
        raise Refused(Reason.BAD_ARGUMENT, text)
    return int(level), int(offset)


def _body(wanted: NewMessage) -> bytes:
    """Raises Refused: BAD_ARGUMENT."""
    if wanted.body_base64 is None:
        return (wanted.body or "").encode("utf-8", "surrogatepass")
    if wanted.body is not None:
        raise Refused(Reason.BAD_ARGUMENT, "give body or body_base64, not both")
    try:
        return b64decode(wanted.body_base64, validate=True)
    except binascii.Error:
        raise Refused(Reason.BAD_ARGUMENT, "body_base64 is not base64") from None


def _extra(wanted: NewMessage) -> bytes:
    """The properties, as a record has them. Raises Refused: BAD_ARGUMENT."""
    properties = dict(wanted.properties)
    if wanted.key is not None:
        properties["KEYS"] = wanted.key
    if wanted.content_type is not None:
        properties["content-type"] = wanted.content_type
    parts: Sequence[str] = [f"{name}\x01{value}\x02" for name, value in properties.items()]
    for name, value in properties.items():
        if not name or name.startswith(RESERVED):
            raise Refused(Reason.BAD_ARGUMENT, f"a property must not be called {name!r}")
        if any(mark in name + value for mark in "\x01\x02"):
            raise Refused(
                Reason.BAD_ARGUMENT, f"property {name!r} has a character U+0001 or U+0002"
            )
    return "".join(parts).encode("utf-8", "surrogatepass")
