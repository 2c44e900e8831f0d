"""The connections of the admin listener: aiohttp's, counted."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from polymq.gateways.http_cloudevents.cycle_free import RequestHandler, forget_frames
from polymq.net.roster import Roster

ADMIN_CONNECTIONS_MAX: Final = 256
"""Operators, their tools and a few monitors: more are refused, unless some have not made a valid
request yet (`net/roster.py`)."""
FIRST_SECONDS_MAX: Final = 30.0
"""Until a connection has made a valid request: a silent one holds a descriptor."""


def problem(status: int, text: str) -> web.Response:
    """RFC 9457, as far as a person needs it."""
    body = json.dumps({"status": status, "detail": text})
    return web.Response(status=status, text=body, content_type="application/problem+json")


class AdminConnection(RequestHandler):
    """One connection. The roster admitted it before it was made.

    Attributes:
        address: the remote address, for bans; empty: they do not concern it.
    """

    __slots__ = ("_deadline", "_roster", "address")

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        roster: Roster[AdminConnection],
        address: str = "",
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp means Logger | None
            auto_decompress=False,  # aiohttp would decode any body to its end, in one step
        )
        self.address = address
        self._roster = roster
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count."""
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(FIRST_SECONDS_MAX, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count."""
        self._roster.gone(self)
        self._in_time()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is unsent."""
        if self.transport is not None:
            self.transport.abort()

    def proven(self) -> None:
        """The client made a request that it may make. Safe to call again."""
        self._roster.proven(self)
        self._in_time()

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that cannot be read; the log does not need to know."""
        if status != HTTPStatus.BAD_REQUEST:
            return super().handle_error(request, status, exc, message)
        forget_frames(exc)
        if isinstance(exc, LineTooLong):
            answer = problem(414, f"the path and query, or a header, exceed {exc.args[1]} bytes")
        else:
            answer = problem(400, "this is not an HTTP request")
        answer.force_close()
        return answer
