"""Messages as records of the log, found by a key, or by their position.

Answers are records as they stand in the log, one after the other, newest first. Who asks gets what
it may subscribe to.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from aiohttp import web

from polymq.admin.awaiting import answer_of
from polymq.admin.operations import Call, Given, Group, Operation
from polymq.broker.port import BrokerPort, Reason, Refused, parse_display_name

COUNT_DEFAULT: Final = 64
TIME_MAX: Final = (1 << 63) - 1
RECORDS: Final = "application/octet-stream"
MESSAGE_ID_DIGITS: Final = 32

Time = Annotated[int, msgspec.Meta(ge=0)]


class RecordsQuery(Given):
    """Which messages of a topic.

    Attributes:
        key: the id of a CloudEvent, the message-id of an AMQP message, or a key of a RocketMQ
            message.
        count: how many messages, at most; the broker finds at most 64.
        since_ms: only messages stored at this time or later, in milliseconds since the epoch.
        until_ms: only messages stored at this time or earlier.
    """

    key: str
    count: Annotated[int, msgspec.Meta(ge=0)] = COUNT_DEFAULT
    since_ms: Time = 0
    until_ms: Time = TIME_MAX


class RecordHandlers:
    """Carries out the operations on records."""

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="records",
            about="Messages as records of the commit log, in RocketMQ's format.",
            operations=[
                Operation(
                    method="GET",
                    path="/topics/{name}/records",
                    name="findRecords",
                    summary="Find messages of a topic by a key, newest first",
                    about="The caller has to have the right to subscribe to the topic, too.",
                    right="monitor",
                    handler=self._find,
                    query=RecordsQuery,
                    media_type=RECORDS,
                    on_topic=True,
                    path_about={"name": "the topic, as clients write it"},
                ),
                Operation(
                    method="GET",
                    path="/records/{position}",
                    name="getRecord",
                    summary="Get the message at a position of the log",
                    about="A message of a topic that the caller may not subscribe to is not found.",
                    right="monitor",
                    handler=self._show,
                    media_type=RECORDS,
                    path_about={
                        "position": "a position, or a RocketMQ message id of 32 hex digits"
                    },
                ),
            ],
        )

    async def _find(self, call: Call[RecordsQuery]) -> web.Response:
        query = call.query
        ask = partial(
            call.port.queries.by_key,
            parse_display_name(call.path["name"]),
            query.key,
            count_max=query.count,
            begin_ms=query.since_ms,
            end_ms=min(query.until_ms, TIME_MAX),
        )
        records: bytes | None = await answer_of(lambda called: ask(callback=called))
        if records is None:
            raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
        return web.Response(body=records, content_type=RECORDS)

    async def _show(self, call: Call[Given]) -> web.Response:
        record = await fetch_record(call.port, position_in(call.path["position"]))
        return web.Response(body=record, content_type=RECORDS)


async def fetch_record(port: BrokerPort, position: int) -> bytes:
    """The record at a position. Raises Refused: NOT_FOUND, READ_ONLY (the disk is slow)."""
    record: bytes | None = await answer_of(
        lambda called: port.queries.by_position(position, lambda _topic, found: called(found))
    )
    if not record:
        raise Refused(Reason.NOT_FOUND, f"there is no message at position {position}")
    return record


def position_in(text: str) -> int:
    """The position that a text names: digits, or RocketMQ's message id of 32 hex digits, whose last
    16 are the position. Raises Refused."""
    if len(text) == MESSAGE_ID_DIGITS:
        try:
            return int(text[16:], 16)
        except ValueError:
            pass  # it is refused like any other text
    elif text.isascii() and text.isdecimal() and len(text) < MESSAGE_ID_DIGITS:
        return int(text)
    raise Refused(
        Reason.BAD_ARGUMENT, f"{text!r} is neither a position nor a message id of 32 hex digits"
    )
