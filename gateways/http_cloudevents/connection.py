"""One HTTP connection: what aiohttp leaves open about time, number and noise.

Responsible for four things that aiohttp's server does not bound or does too loudly:

* The time from the first byte of a request to the end of its headers, and from connecting to the
  first byte. The middleware says when a request begins and ends; bytes that arrive between
  requests belong to the next head.
* The number of connections: beyond the limit a connection is told 503 and closed. A client proves
  itself by a request that the engine lets in (`net/roster.py`).
* Bytes that are no HTTP, and heads that are too long: one line at debug level and a problem
  document, no traceback.
* Compressed bodies: they stay as they came until a handler reads them (`bodies.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from polymq.gateways.http_cloudevents.attributes import printable
from polymq.gateways.http_cloudevents.cycle_free import RequestHandler, forget_frames
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.net.clients import ClientInfo, state_of
from polymq.net.kernels.streams import clock_ms
from polymq.net.message_counts import MessageCounts
from polymq.net.roster import Roster

FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_TOO_MANY_HEADERS: Final = "Too many headers received"
"""How aiohttp's parser says it; the error has no type of its own."""


@dataclass(slots=True)
class Census:
    """What all connections of a server count together.

    Attributes:
        malformed: requests that were no HTTP, or whose head was too long.
        slow: connections closed because a head took too long.
        responses: answers by status.
        events: those that were published, and those that were received from subscriptions.
        bytes_received: all that came.
        bytes_sent: of the bodies of answers.
    """

    malformed: int = 0
    slow: int = 0
    responses: dict[int, int] = field(default_factory=dict)
    events: MessageCounts = field(default_factory=MessageCounts)
    bytes_received: int = 0
    bytes_sent: int = 0

    def answered(self, status: int) -> None:
        """Count an answer."""
        self.responses[status] = self.responses.get(status, 0) + 1


class Connection(RequestHandler):
    """A connection of the gateway.

    Args:
        manager: aiohttp's server.
        limits: bounds.
        census: shared by all connections of the server.
        roster: likewise; it has let this connection in.
        number: of the connections of all listeners, which one this is.

    Attributes:
        user: who sent the last request; empty for nobody.
        began_ms: when it was accepted, in milliseconds since the epoch.
    """

    __slots__ = (
        "_census",
        "_head_timer",
        "_in_request",
        "_limits",
        "_roster",
        "began_ms",
        "number",
        "peer",
        "user",
    )

    protocol = "http"
    client_name = ""

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        census: Census,
        roster: Roster[Connection],
        number: int = 0,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.idle_seconds_max,
            max_line_size=limits.request_target_bytes_max,
            max_field_size=limits.header_bytes_max,
            max_headers=limits.headers_count_max,
            access_log=None,  # type: ignore[arg-type]  # aiohttp means Logger | None
            lingering_time=limits.linger_seconds_max,
            auto_decompress=False,  # `bodies.py` does, in slices, what a handler wants
        )
        self._limits = limits
        self._census = census
        self._roster = roster
        self.number = number
        self.began_ms = clock_ms()
        self.peer = self.user = ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_request = False  # between the call of the handler and its answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a head."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count."""
        self._roster.gone(self)
        self._head_arrived()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is unsent."""
        if self.transport is not None:
            self.transport.abort()

    def proven(self) -> None:
        """The client made a request that the engine lets in. Safe to call again."""
        self._roster.proven(self)

    # --- what operators see (`net.clients`) -------------------------------------------------

    @property
    def address(self) -> str:
        """Remote address without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def has_socket(self) -> bool:
        """Whether the socket is connected."""
        return self.transport is not None

    def describe(self) -> ClientInfo:
        """See `net.clients`."""
        transport = self.transport
        return ClientInfo(
            listener=self._roster.where,
            tls=transport is not None and transport.get_extra_info("ssl_object") is not None,
            state=state_of(
                None,
                proven=self._roster.is_proven(self),
                closing=transport is None or transport.is_closing(),
            ),
        )

    def end(self, why: str) -> None:
        """Answer the request that is handled, and close. HTTP has no way to say why."""
        if self._in_request:
            self.close()
        else:
            self.force_close()

    # --- the requests -----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes between requests begin a head."""
        self._census.bytes_received += len(data)
        if not self._in_request and self._head_timer is None:
            self._expect_head()
        super().data_received(data)

    def request_began(self) -> None:
        """The head is complete and its handler runs."""
        self._in_request = True
        self._head_arrived()
        self._roster.spoke(self)

    def request_ended(self) -> None:
        """The handler has answered, or its client has gone."""
        self._in_request = False

    def answered(self, status: int, size: int) -> None:
        """Count the answer to the request, with so many bytes of body."""
        self._census.answered(status)
        self._census.bytes_sent += size

    def _expect_head(self) -> None:
        self._head_timer = self._loop.call_later(self._limits.head_seconds_max, self._too_slow)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self._in_request:
            self._census.slow += 1
            self.force_close()

    def _unreadable(self, exc: BaseException | None, message: str) -> tuple[int, str]:
        """Status and detail for a head that aiohttp's parser refused."""
        limits = self._limits
        if isinstance(exc, LineTooLong):
            if exc.args[1] == limits.request_target_bytes_max:
                return 414, f"the path and query exceed {limits.request_target_bytes_max} bytes"
            return 431, (
                f"a header exceeds {limits.header_bytes_max} bytes; send the event in structured "
                "mode, where attributes travel in the body"
            )
        if message == _TOO_MANY_HEADERS:
            return 431, (
                f"the request has more than {limits.headers_count_max} headers; send the event in "
                "structured mode, where attributes travel in the body"
            )
        return 400, f"this is not an HTTP request: {printable(message)}"

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is no HTTP (400), whose head is too long (414, 431), or that met a
        bug of ours (500)."""
        self._head_arrived()
        if status == HTTPStatus.BAD_REQUEST:
            self._census.malformed += 1
            self.logger.debug("not HTTP, from %s: %s", request.remote, exc)
            status, detail = self._unreadable(exc, message or "it cannot be read")
            forget_frames(exc)
        else:
            self.logger.error("error while handling a request", exc_info=exc)
            detail = "an internal error occurred; see the log of the broker"
        self._census.answered(status)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun; the connection is closed")
        response = web.Response(
            body=msgspec.json.encode(_document(status, detail)),
            status=status,
            content_type="application/problem+json",
            headers={"Server": "PolyMQ"},
        )
        response.force_close()
        return response


def _document(status: int, detail: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
