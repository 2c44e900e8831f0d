"""Messages that are delivered later: which wait, and cancelling one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Final

import msgspec

from polymq.admin.awaiting import answer_of, in_reader
from polymq.admin.commits import Committed
from polymq.admin.message_values import BodyQuery, shown_body
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import PAGE_DEFAULT, PAGE_MAX
from polymq.broker.accounts import audit
from polymq.broker.delays.delayed import Delayed, take_apart
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.records import TAGS, parse_properties
from polymq.broker.port import REST, BrokerPort, display_name, parse_display_name
from polymq.broker.queues.queue import Group as QueueGroup

READ_COUNT: Final = 512
READ_BYTES: Final = 1024 * 1024
READS_MAX: Final = 32
"""Of one page: with a topic that few of them are for, it ends early, and may be empty."""


class DelayedMessage(Value):
    """A message that is delivered later.

    Attributes:
        id: names it until it is delivered.
        topic: where it goes, as clients write it.
        tag: null: it has none.
        due_ms: when it is delivered, in milliseconds since the epoch.
        body: as text, if what is shown of it is UTF-8. Body and body_base64 are null for callers
            who may not subscribe to the topic.
        body_base64: the same in base64, if it is not.
        body_bytes: the size of the whole body.
    """

    id: int
    topic: str
    tag: str | None
    due_ms: int
    body: str | None
    body_base64: str | None
    body_bytes: int


class DelayedPage(Value):
    """Messages that are delivered later, in the order in which they were published.

    Attributes:
        items: the messages. A page may have fewer than were asked for, and not be the last one.
        next: what `after` has to be for the following page; null: there is no more.
        total: how many wait, of all topics. One that was cancelled counts until it would have been
            due.
    """

    items: list[DelayedMessage]
    next: str | None
    total: int


class DelayedQuery(BodyQuery):
    """Which delayed messages.

    Attributes:
        topic: only those for this topic.
        limit: how many, at most 500.
        after: `next` of the page before.
    """

    topic: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None


class DelayedHandlers:
    """Carries out the operations on delayed messages.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._committed = committed

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="delayed",
            about="Messages that are delivered later.",
            operations=[
                Operation(
                    method="GET",
                    path="/delayed",
                    name="listDelayed",
                    summary="List messages that are delivered later",
                    right="monitor",
                    handler=self._list,
                    query=DelayedQuery,
                    answer=DelayedPage,
                ),
                Operation(
                    method="DELETE",
                    path="/delayed/{id}",
                    name="cancelDelayed",
                    summary="Cancel a message that is delivered later",
                    right="operate",
                    handler=self._cancel,
                    path_about={"id": "of the message, from the list"},
                ),
            ],
        )

    async def _list(self, call: Call[DelayedQuery]) -> DelayedPage:
        query, group = call.query, self._engine.delays.group
        total = self._engine.delays.waiting_count
        items: list[DelayedMessage] = []
        if group is None:
            return DelayedPage(items=items, next=None, total=total)
        wanted = None if query.topic is None else parse_display_name(query.topic)
        at = max(_number(query.after or "0"), group.cursor.floor)
        for _ in range(READS_MAX):
            count = min(READ_COUNT, group.queue.index.end_offset - at)
            if count <= 0:
                return DelayedPage(items=items, next=None, total=total)
            records, many = await self._read(group, at, count)
            if not many:
                return DelayedPage(items=items, next=None, total=total)
            found = await in_reader(self._engine, partial(_taken_apart, records))
            for number, delayed in enumerate(found):
                if group.cursor.is_settled(at + number):
                    continue
                topic = self._topic_of(delayed)
                if wanted is not None and topic != wanted:
                    continue
                items.append(self._value(at + number, topic, delayed, call))
                if len(items) == query.limit:
                    return DelayedPage(items=items, next=str(at + number + 1), total=total)
            at += many
        return DelayedPage(items=items, next=str(at), total=total)

    async def _read(self, group: QueueGroup, first: int, count: int) -> tuple[bytes, int]:
        def read(called: Callable[[tuple[bytes | None, int]], None]) -> None:
            self._engine.core.reading.read(
                group.queue.index,
                first,
                count,
                READ_BYTES,
                lambda records, many: called((records, many)),
            )

        records, many = await answer_of(read)
        if records is None:
            raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
        return bytes(records), many

    def _topic_of(self, delayed: Delayed) -> str:
        return self._engine.core.metas.user_name(delayed.where.split(b".", 2)[2])

    def _value(
        self, offset: int, topic: str, delayed: Delayed, call: Call[DelayedQuery]
    ) -> DelayedMessage:
        body: str | None = None
        encoded: str | None = None
        if _may_read(call.port, topic):
            body, encoded, _ = shown_body(delayed.row.body, call.query.body_bytes)
        return DelayedMessage(
            id=offset,
            topic=display_name(topic),
            tag=parse_properties(delayed.prefix).get(TAGS),
            due_ms=delayed.due_ms,
            body=body,
            body_base64=encoded,
            body_bytes=len(delayed.row.body),
        )

    async def _cancel(self, call: Call[Given]) -> None:
        offset = _number(call.path["id"])
        position = self._engine.delays.cancel(offset)
        audit.note("delayed message cancelled", id=offset, by=call.caller)
        await self._committed(position)


def _taken_apart(records: bytes) -> list[Delayed]:
    return list(take_apart(records))


def _may_read(port: BrokerPort, topic: str) -> bool:
    try:
        port.principal.check_read((topic, REST))
    except Refused:
        return False
    return True


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refused(Reason.BAD_ARGUMENT, f"{text!r} is no id of a delayed message")
    return int(text)
