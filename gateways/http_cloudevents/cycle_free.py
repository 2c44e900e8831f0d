"""What a server of aiohttp does, without the cycles that it leaves.

Theory. Reference counts free nearly everything at once. A cycle needs the garbage collector, which
looks only at what is new (`polymq/pauses.py`): one that dies after it was set aside stays there. A
client may ask for what is refused as often as it likes, so no refusal may leave a cycle:

* An error that is answered has the frames that it came through, and one of those has the error, or
  a future with it (`forget_frames`).
* For an unknown path or method aiohttp makes an exception and a route, which know each other
  (`unknown`).
* Its parser's errors wait in the connection, which they have in their frames, and the task of a
  connection that ends while it waits for the rest of a body knows itself (`RequestHandler`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from typing import Final

from aiohttp import web

Refuse = Callable[[web.Request, Collection[str]], web.Response]
"""Makes the answer to a request, by the methods that its path has: none for an unknown path."""

EVERYTHING: Final = "/{path:.*}"
_PART: Final = re.compile(r"\{(\w+)\}")


def any_names(path: str) -> str:
    """The path of a route whose parts `{name}` take names with any character. Those of aiohttp take
    none with a brace."""
    return _PART.sub(r"{\1:[^/]+}", path)


def forget_frames(error: BaseException | None) -> None:
    """Let an error that was answered be free at once."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def unknown(refuse: Refuse) -> web.RouteDef:
    """The route for everything that no other route takes: the last one of an application."""

    async def answer(request: web.Request) -> web.Response:
        own = request.match_info.route.resource
        allowed: set[str] = set()
        for resource in request.app.router.resources():
            if resource is not own:
                allowed |= (await resource.resolve(request))[1]
        return refuse(request, allowed)

    return web.route("*", EVERYTHING, answer)


class RequestHandler(web.RequestHandler):
    """A connection."""

    __slots__ = ()

    async def start(self) -> None:
        """See `web.RequestHandler`. While it waits for a body that nobody wants, it has its own
        task among its variables, and the task has the error that ends it."""
        try:
            await super().start()
        except asyncio.CancelledError as error:
            forget_frames(error)
            raise

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.BaseProtocol`."""
        super().connection_lost(exc)
        for message, _ in self._messages:
            forget_frames(getattr(message, "exc", None))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that cannot be read, or that met a bug of ours."""
        try:
            return super().handle_error(request, status, exc, message)
        finally:
            forget_frames(exc)
