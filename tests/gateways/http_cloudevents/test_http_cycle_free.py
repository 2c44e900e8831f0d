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
