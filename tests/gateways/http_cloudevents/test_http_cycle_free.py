"""Connections leave no cycles behind. What requests leave is tested with a whole server, see
`tests/polymq/test_no_cycles.py`."""

from __future__ import annotations

import asyncio
import gc
import logging

from aiohttp import web

from polymq.gateways.http_cloudevents.cycle_free import RequestHandler
from tests.gateways.http_cloudevents.http_harness import run


class Nowhere(asyncio.Transport):
    """A socket that takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Forget it."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to do."""


def handlers() -> int:
    """How many connections are in memory."""
    return sum(isinstance(found, RequestHandler) for found in gc.get_objects())


def test_errors_of_the_parser_that_nobody_answered_are_free_with_their_connection() -> None:
    """The first one closes the connection; the second waits behind it for ever."""

    async def scenario() -> None:
        async def handle(_request: web.BaseRequest) -> web.StreamResponse:
            raise AssertionError("there was no request")

        server = web.Server(handle)
        loop = asyncio.get_running_loop()
        silent = logging.getLogger(f"{__name__}.silent")
        silent.disabled = True  # lines that are kept by pytest keep frames
        gc.collect()
        gc.disable()
        try:
            before = handlers()
            for _ in range(5):
                connection = RequestHandler(server, loop=loop, logger=silent)
                connection.connection_made(Nowhere())
                await asyncio.sleep(0)  # it waits for a request
                connection.data_received(b"GARBAGE\r\n\r\n")
                connection.data_received(b"GARBAGE\r\n\r\n")
                for _ in range(10):  # the first one is answered
                    await asyncio.sleep(0)
                connection.connection_lost(None)
                del connection
            assert handlers() == before
        finally:
            gc.enable()

    run(scenario())


def test_a_connection_that_waits_for_the_rest_of_a_body_is_free_when_it_ends() -> None:
    """The request was answered without it, and the client leaves."""

    async def scenario() -> None:
        async def refuse(_request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=413)

        server = web.Server(refuse, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.disable()
        try:
            before = handlers()
            for _ in range(5):
                connection = RequestHandler(server, loop=loop, lingering_time=10)
                connection.connection_made(Nowhere())
                connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
                for _ in range(10):  # the answer is written
                    await asyncio.sleep(0)
                connection.connection_lost(None)
                del connection
                waiting = asyncio.all_tasks() - {asyncio.current_task()}
                assert waiting
                await asyncio.wait(waiting)
                del waiting
                await asyncio.sleep(0)
            assert handlers() == before
        finally:
            gc.enable()

    run(scenario())
