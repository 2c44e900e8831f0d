"""The listener of RabbitMQ's management API: requests in, JSON out.

A request is matched with a route (`routing.py`), its caller is looked up (`callers.py`), and what
the handler returns is written. Lists are written as they are made (`lists.py`).

Rules against web pages that an operator's browser happens to show. A browser may send requests to
this listener that the page has chosen, with what the operator once typed as a password:

* What changes something is refused if it has the header `Origin` of another host.
* While nobody has to log in, the `Host` header must name this machine (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from aiohttp import web

from polymq.admin.connections import ADMIN_CONNECTIONS_MAX, AdminConnection
from polymq.admin.responses import RETRY_AFTER
from polymq.admin.web_listener import WebListener
from polymq.admin.written_answers import JSON, written
from polymq.broker.errors import Refused, StorageFailed
from polymq.gateways.http_cloudevents.cycle_free import EVERYTHING, forget_frames
from polymq.host_header import is_of_host, names_this_machine
from polymq.management.bodies import Body
from polymq.management.callers import Callers
from polymq.management.errors import (
    LOGIN_FAILED,
    NOT_AUTHORIZED,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    Problem,
    problem_of,
)
from polymq.management.json_values import encode
from polymq.management.lists import (
    Items,
    Sections,
    wanted_of,
    write_list,
    write_sections,
)
from polymq.management.routing import Call, Created, Route, Table
from polymq.net.budget import Share
from polymq.net.tls_source import TlsSource

CONNECTIONS_MAX: Final = ADMIN_CONNECTIONS_MAX
HEADERS: Final = {"Cache-Control": "no-cache", "Vary": "accept, accept-encoding, origin"}


class ManagementServer:
    """Serves RabbitMQ's tools.

    Args:
        routes: what they may ask for.
        callers: knows who asks.
        accepts: whether an address is not banned.
        share: how many connections there may be.
    """

    def __init__(
        self,
        *,
        routes: Iterable[Route],
        callers: Callers,
        accepts: Callable[[str], bool],
        share: Share,
    ) -> None:
        self._listener = WebListener("management", share)
        self.roster = self._listener.roster
        self._table = Table(routes)
        self._callers = callers
        self._accepts = accepts

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen; returns the bound port. Raises Failure.

        Args:
            sockets: those to listen on, which are bound; empty: it binds its own.
        """
        app = web.Application()
        app.router.add_route("*", EVERYTHING, self._answer)
        accepts = None if self._callers.is_local else self._accepts
        return await self._listener.open(app, host, port, tls, sockets, accepts=accepts)

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        await self._listener.stop()

    # --- one request ----------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answered(request)
        except Problem as problem:
            return _refusal(problem)
        except Refused as error:
            forget_frames(error)
            return _refusal(problem_of(error))
        except StorageFailed as error:
            return _refusal(Problem(UNAVAILABLE, str(error)))

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        self._guard(request)
        caller = await self._callers.caller(
            request.headers.get("Authorization", ""), request.remote or ""
        )
        assert isinstance(request.protocol, AdminConnection)
        request.protocol.proven()
        route, names = self._table.find(request.method, request.rel_url.raw_path)
        caller.need(route.rank)
        content = await _content(request, route.bytes_max)
        call = Call(
            names=names,
            query=dict(request.query),
            body=Body(content, request.content_type),
            caller=caller,
            headers=request.headers,
        )
        found = await route.handler(call)
        if found is None:
            return web.Response(status=204, headers=HEADERS)
        if isinstance(found, Created):
            return _created(found)
        if isinstance(found, Items):
            return await written(request, write_list(found, wanted_of(request.query)), HEADERS)
        if isinstance(found, Sections):
            return await written(request, write_sections(found), HEADERS)
        if isinstance(found, Generator):
            return await written(request, found, HEADERS)
        return web.Response(body=encode(found), content_type=JSON, headers=HEADERS)

    def _guard(self, request: web.Request) -> None:
        """Keep out what a browser sends for a page of somebody else. Raises Problem."""
        host = request.headers.get("Host", "")
        if self._callers.is_open and not names_this_machine(host):
            raise Problem(403, "this listener is for this machine only: use the host 127.0.0.1")
        origin = request.headers.get("Origin")
        if origin is None or request.method in ("GET", "HEAD"):
            return
        if not is_of_host(origin, host):
            raise Problem(403, f"requests of pages of {origin[:100]} may not change anything here")


async def _content(request: web.Request, bytes_max: int) -> bytes:
    """The body. Raises Problem: it is too large."""
    if not request.body_exists:
        return b""
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > bytes_max:
            raise Problem(TOO_LARGE, f"the body of this request has at most {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


def _created(found: Created) -> web.Response:
    headers = dict(HEADERS)
    if found.location:
        headers["Location"] = found.location
    return web.Response(status=201, headers=headers)


def _refusal(problem: Problem) -> web.Response:
    forget_frames(problem)
    headers = dict(HEADERS)
    if problem.status == NOT_AUTHORIZED and problem.reason == LOGIN_FAILED:
        headers["WWW-Authenticate"] = 'Basic realm="RabbitMQ Management"'
    if problem.status == TOO_MANY:
        headers |= RETRY_AFTER
    response = web.Response(
        status=problem.status, body=encode(problem.value()), content_type=JSON, headers=headers
    )
    if problem.status == TOO_LARGE:
        response.force_close()
    return response
