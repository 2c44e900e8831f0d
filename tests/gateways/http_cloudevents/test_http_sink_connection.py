"""What a sink may send before its answer and behind it."""

from __future__ import annotations

import asyncio
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.sink_connection import PIECE_BYTES, SinkConnection
from tests.gateways.http_cloudevents.http_harness import (
    Answer,
    http,
    publish_batch,
    receiver,
    run,
    subscribe_webhook,
    until,
)

pytestmark = pytest.mark.usefixtures("no_mistakes")

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 204 No Content\r\n\r\n"
LIMIT = HttpLimits().webhook_head_bytes_max


def raw(answer: bytes) -> Answer:
    """Answers with these bytes."""

    async def send(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(answer)
        request.transport.close()
        return web.Response()

    return send


@pytest.mark.parametrize(
    "answer",
    [
        INTERIM * 20 + FINAL,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + FINAL,
        INTERIM * (LIMIT // len(INTERIM) - 10) + FINAL,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
        FINAL + INTERIM * 10_000,
        FINAL * 2,
    ],
)
def test_an_answer_within_the_bounds_is_taken(answer: bytes) -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver(raw(answer)) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled == {0})
            assert sink.ids == ["a"]

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        INTERIM * 10_000 + FINAL,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: %s\r\n" % (i, b"x" * 8000) for i in range(100)),
    ],
)
def test_an_answer_whose_head_does_not_end_is_a_failed_delivery(answer: bytes) -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver(raw(answer), 204) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a", "b")
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "a", "b"]

    run(scenario())


class Counting(SinkConnection):
    """Notes how many answers it held at most."""

    most = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        super().feed_data(data, size)
        self.most = max(self.most, len(self))


@pytest.mark.parametrize(
    ("sent", "stored"),
    [(INTERIM * 200_000, 0), (FINAL + INTERIM * 200_000, 1)],
    ids=["flood", "tail"],
)
def test_a_flood_of_answers_is_not_kept(sent: bytes, stored: int) -> None:
    """The connection is dropped; only the answer that was awaited is kept, and says why not."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writers.append(writer)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            make = partial(Counting, loop, head_bytes_max=LIMIT)
            _, connection = await loop.create_connection(make, *server.sockets[0].getsockname())
            connection.set_response_params()  # a request begins
            await until(lambda: not connection.is_connected())
            assert len(connection) == stored
            assert 0 < connection.most <= (LIMIT + PIECE_BYTES) // len(INTERIM) + 1
            if not stored:
                with pytest.raises(aiohttp.ClientPayloadError, match="without the headers"):
                    await connection.read()
            for writer in writers:
                writer.close()

    run(scenario())
