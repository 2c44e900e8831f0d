"""HTTP answers: JSON, problems (RFC 9457), and the one place where errors become answers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from polymq.broker.port import BrokerError, Refused, StorageFailed
from polymq.gateways.http_cloudevents.connection import Connection
from polymq.gateways.http_cloudevents.cycle_free import forget_frames
from polymq.gateways.http_cloudevents.errors import (
    STATUS_OF_REASON,
    BadBatch,
    BadEvent,
    Problem,
)

PROBLEM_TYPE: Final = "application/problem+json"
SERVER: Final = "PolyMQ"
"""Instead of the versions of Python and aiohttp, which only attackers want to know."""
_RETRIED_LATER: Final = frozenset({429, 503, 507})
_RETRY_AFTER: Final = {"Retry-After": "1"}

logger = logging.getLogger(__name__)


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer with a JSON body."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def problem_response(problem: Problem) -> web.Response:
    """The answer to a request that has a problem."""
    document: dict[str, object] = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
    }
    document.update(problem.members)
    headers = dict(problem.headers)
    if problem.status in _RETRIED_LATER:
        headers = _RETRY_AFTER | headers
    return web.Response(
        body=msgspec.json.encode(document),
        status=problem.status,
        content_type=PROBLEM_TYPE,
        headers=headers,
    )


def problem_of(error: BadEvent | BadBatch | BrokerError) -> Problem:
    """The problem that an error of the codec or of the engine is."""
    if isinstance(error, BadEvent):
        return Problem(
            400, "Invalid CloudEvent", str(error), members={"attribute": error.attribute}
        )
    if isinstance(error, BadBatch):
        faults = [
            {
                "index": fault.index,
                "id": fault.id,
                "attribute": fault.attribute,
                "reason": fault.text,
            }
            for fault in error.faults
        ]
        return Problem(
            400,
            "Invalid CloudEvents in the batch",
            f"{error}; nothing of the batch was stored",
            members={"errors": faults, "more": error.more},
        )
    if isinstance(error, Refused):
        status = STATUS_OF_REASON[error.reason]
        headers = {"WWW-Authenticate": 'Basic realm="polymq"'} if status == 401 else {}
        return Problem(status, error.reason.value.capitalize(), error.text, headers=headers)
    assert isinstance(error, StorageFailed)
    return storage_problem()


def storage_problem() -> Problem:
    """The log directory failed: nothing can be stored until the broker is started again."""
    return Problem(
        503,
        "Storage failed",
        "the broker cannot write to its disk and is read-only; whether this request was stored is "
        "unknown",
    )


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into problem documents; tell the connection where its request begins and ends."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.request_began()
    response: web.StreamResponse
    try:
        response = await handler(request)
    except Problem as problem:
        response = problem_response(problem)
        forget_frames(problem)
    except (BadEvent, BadBatch, BrokerError) as error:
        response = problem_response(problem_of(error))
        forget_frames(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = problem_response(
            Problem(error.status, HTTPStatus(error.status).phrase, error.reason)
        )
        forget_frames(error)
    finally:
        connection.request_ended()
    connection.answered(response.status, response.content_length or 0)
    response.headers.setdefault("Server", SERVER)
    if response.status == 413:
        response.force_close()  # The rest of the body is not wanted.
    return response


def refuse_unknown(request: web.Request, allowed: Collection[str]) -> web.Response:
    """The answer of a router that has no route for a request (`cycle_free.py`)."""
    if allowed:
        return problem_response(
            Problem(
                405,
                HTTPStatus.METHOD_NOT_ALLOWED.phrase,
                f"{request.method} is not allowed here",
                headers={"Allow": ",".join(sorted(allowed))},
            )
        )
    detail = f"there is nothing at {request.path}; see /topics/{{topic}} and /subscriptions"
    return problem_response(Problem(404, HTTPStatus.NOT_FOUND.phrase, detail))
