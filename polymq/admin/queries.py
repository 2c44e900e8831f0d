"""What the operator's listener says of single messages: found by key, or by position in the log.

Answers are records as they stand in the log, one after the other, newest first.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from polymq.admin.access import named_topic
from polymq.broker.port import BrokerPort, Reason, Refused

COUNT_DEFAULT: Final = 64
TIME_MAX: Final = (1 << 63) - 1
ANSWER_SECONDS_MAX: Final = 30.0
"""A search that takes longer than that reads a log that was never searched before: it goes on, and
the next one is quick."""
RECORDS: Final = "application/octet-stream"
MESSAGE_ID_DIGITS: Final = 32


class QueryHandlers:
    """Handlers of the admin server."""

    def __init__(self, port: BrokerPort) -> None:
        self._port = port

    def routes(self) -> list[web.RouteDef]:
        """Where they stand."""
        return [
            web.get("/topics/{name}/messages", self._find),
            web.get("/messages/{place}", self._show),
        ]

    async def _find(self, request: web.Request) -> web.Response:
        query = request.query
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._port.queries.by_key(
            named_topic(request),
            query.get("key", ""),
            count_max=_number(query.get("count", str(COUNT_DEFAULT))),
            begin_ms=_number(query.get("since_ms", "0")),
            end_ms=_number(query.get("until_ms", str(TIME_MAX))),
            callback=lambda records: _set(answer, records),
        )
        records = await _wait(answer)
        if records is None:
            raise Refused(Reason.READ_ONLY, "the disk could not be read: see the log")
        return web.Response(body=records, content_type=RECORDS)

    async def _show(self, request: web.Request) -> web.Response:
        record = await fetch_record(self._port, position_of(request.match_info["place"]))
        return web.Response(body=record, content_type=RECORDS)


async def fetch_record(port: BrokerPort, position: int) -> bytes:
    """The record at a position. Raises Refused: NOT_FOUND, READ_ONLY (the disk is slow)."""
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    port.queries.by_position(position, lambda _topic, record: _set(answer, record))
    record = await _wait(answer)
    if not record:
        raise Refused(Reason.NOT_FOUND, f"there is no message at position {position}")
    return record


def position_of(text: str) -> int:
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


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise Refused(Reason.BAD_ARGUMENT, f"{text!r} is not a number from 0 on")
    return int(text)


def _set(answer: asyncio.Future[bytes | None], value: bytes | None) -> None:
    if not answer.done():
        answer.set_result(value)


async def _wait(answer: asyncio.Future[bytes | None]) -> bytes | None:
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)
    except TimeoutError as error:
        raise Refused(
            Reason.READ_ONLY, "the search is not finished yet: try again later"
        ) from error
