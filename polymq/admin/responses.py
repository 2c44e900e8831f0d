"""What the operators' listeners answer to requests that are refused, or that they do not know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import web

from polymq.admin.connections import problem
from polymq.broker.port import Reason, Refused, StorageFailed

STATUS: Final = {
    Reason.NOT_FOUND: 404,
    Reason.DIFFERENT: 409,
    Reason.LOCKED: 409,
    Reason.IN_USE: 409,
    Reason.NOT_EMPTY: 409,
    Reason.FORBIDDEN: 403,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.BAD_NAME: 400,
    Reason.BAD_ARGUMENT: 400,
    Reason.TOO_LARGE: 413,
    Reason.LIMIT: 409,
    Reason.BANNED: 403,
    Reason.RATE: 429,
    Reason.UNDECIDED: 503,
    Reason.READ_ONLY: 503,
    Reason.STORAGE_FULL: 507,
}

TOO_MANY: Final = 429
RETRY_AFTER: Final = {"Retry-After": "1"}
"""With TOO_MANY: a login that is slowed is checked again after about a second."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def translate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the broker's errors."""
    try:
        return await handler(request)
    except Refused as error:
        response = problem(STATUS[error.reason], error.text)
        if response.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="polymq admin"'
        if response.status == TOO_MANY:
            response.headers.update(RETRY_AFTER)
        return response
    except StorageFailed as error:
        return problem(503, str(error))
    except ConnectionResetError:
        return problem(400, "the connection was lost")  # nobody reads it
    except web.HTTPRequestEntityTooLarge as error:
        return problem(413, error.text or "the body is too large")


def refuse_unknown(request: web.Request, allowed: Collection[str]) -> web.Response:
    """The answer of a router that has no route for a request (`cycle_free.py`)."""
    if not allowed:
        return problem(404, f"there is nothing at {request.path}")
    response = problem(405, f"{request.method} is not allowed here")
    response.headers["Allow"] = ",".join(sorted(allowed))
    return response
