"""One connection to a sink: what aiohttp's client leaves open about the size of an answer's head.

aiohttp bounds each head, but not how many come before the final one. A sink may send any number of
interim answers (1xx, RFC 9110 15.2), and all that arrive at once are parsed in one step. Here the
bytes of all heads of an answer are bounded together, and they are parsed a piece at a time. What
a sink sends behind its answer, unasked, ends the connection as well.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

PIECE_BYTES: Final = 16 * 1024
"""Parsed in one step before the bound is looked at: at most a thousand interim answers, 3 ms."""


class SinkConnection(ResponseHandler):
    """A connection of the webhooks' client.

    Args:
        head_bytes_max: of all heads of one answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, head_bytes_max: int) -> None:
        super().__init__(loop)
        self._head_bytes_max = head_bytes_max
        self._head_bytes = 0  # of the answer that is awaited
        self._awaited = False  # between a request and the final head of its answer

    def set_response_params(self, **params: Any) -> None:
        """A request begins, and its answer is awaited."""
        self._head_bytes = 0
        self._awaited = True
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse a piece at a time, until the sink has sent too much."""
        super().data_received(data[:PIECE_BYTES])
        self._count(min(len(data), PIECE_BYTES))
        for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
            if not self.is_connected():
                return
            piece = data[start : start + PIECE_BYTES]
            super().data_received(piece)
            self._count(len(piece))

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """A head has been parsed."""
        if not self._awaited:  # The answer to the last request, if any, is complete.
            self._drop()
            return
        status = data[0].code
        self._awaited = 100 <= status <= 199 and status != 101
        super().feed_data(data, size)

    def _count(self, size: int) -> None:
        if self._awaited:
            self._head_bytes += size
            if self._head_bytes > self._head_bytes_max:
                self._refuse(
                    f"it sent {self._head_bytes} bytes without the headers of a final answer, and "
                    f"the limit is {self._head_bytes_max}"
                )

    def _refuse(self, text: str) -> None:
        """Drop the connection; who waits for the answer is told why."""
        self._awaited = False
        self._buffer.clear()
        self.set_exception(aiohttp.ClientPayloadError(text))
        self._drop()

    def _drop(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class SinkConnector(aiohttp.TCPConnector):
    """Makes `SinkConnection`s. It must be made while the loop runs.

    Args:
        head_bytes_max: of all heads of one answer.
        options: see aiohttp.
    """

    def __init__(self, *, head_bytes_max: int, **options: Any) -> None:
        super().__init__(**options)
        # aiohttp has no other place where a connector says which connections it makes.
        make = partial(SinkConnection, self._loop, head_bytes_max=head_bytes_max)
        self._factory = make  # type: ignore[assignment]  # it is one kind of ResponseHandler
