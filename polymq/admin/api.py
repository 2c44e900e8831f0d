"""The admin API over HTTP: routes for the operations, and the checks before their handlers.

A request is decoded into the types that its operation names, so a handler never sees a wrong
parameter; a wrong one is answered with 400 and a sentence that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from polymq.admin.access import CALLER, PORT
from polymq.admin.openapi import document
from polymq.admin.operations import API_PATH, Call, Given, Group, Made, Operation
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.principals import Managing
from polymq.gateways.http_cloudevents.cycle_free import any_names

JSON: Final = "application/json"
_ENCODER: Final = msgspec.json.Encoder()
_AT: Final = re.compile(r"^(?P<text>.*) - at `(?:key in )?\$?\.?(?P<name>[^`]*)`$")
_FIELD: Final = re.compile(r"unknown field `(?P<name>[^`]*)`")


class Endpoint:
    """What a route calls: one operation.

    Attributes:
        right, on_topic: what the caller has to have; `access.py` looks at it.
    """

    def __init__(self, operation: Operation) -> None:
        self.right: Managing = operation.right
        self.on_topic = operation.on_topic
        self._operation = operation

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. Raises Refused."""
        operation = self._operation
        call = Call(
            path=request.match_info,
            query=read_query(operation.query, request.query.items()),
            body=await _body(operation, request),
            caller=request[CALLER],
            port=request[PORT],
            request=request,
        )
        answer = await operation.handler(call)
        if isinstance(answer, web.StreamResponse):
            return answer
        if operation.answer is None:
            return web.Response(status=204)
        status = operation.status
        if isinstance(answer, Made):
            status, answer = 201, answer.answer
        return web.Response(status=status, body=_encoded(answer), content_type=JSON)


async def _body(operation: Operation, request: web.Request) -> Any:
    if operation.body is None or operation.reads_body:
        return None
    return read_body(operation.body, await request.read())


def _encoded(answer: Any) -> bytes:
    try:
        return _ENCODER.encode(answer)
    except UnicodeEncodeError:  # a name that is not valid Unicode: JSON can escape it
        return json.dumps(msgspec.to_builtins(answer)).encode()


def api_routes(groups: Iterable[Group], version: str) -> list[web.RouteDef]:
    """The routes of all operations, and of the document that describes them."""
    groups = list(groups)
    routes = [
        web.route(
            operation.method, API_PATH + any_names(operation.path), _handler(Endpoint(operation))
        )
        for group in groups
        for operation in group.operations
    ]
    described: list[bytes] = []  # made when it is first asked for

    async def describe(_request: web.Request) -> web.Response:
        if not described:
            described.append(_ENCODER.encode(document(groups, version)))
        return web.Response(body=described[0], content_type=JSON)

    routes.append(web.get(f"{API_PATH}/openapi.json", describe))
    return routes


def _handler(endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """aiohttp takes functions only."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await endpoint(request)

    handle.right = endpoint.right  # type: ignore[attr-defined]
    handle.on_topic = endpoint.on_topic  # type: ignore[attr-defined]
    return handle


def read_query(kind: type[Given], items: Iterable[tuple[str, str]]) -> Any:
    """The parameters of a request. Raises Refused: BAD_ARGUMENT."""
    values: dict[str, str] = {}
    for name, value in items:
        if name in values:
            raise Refused(Reason.BAD_ARGUMENT, f"{name} is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(Reason.BAD_ARGUMENT, explain(error, kind, "parameter", values)) from None


def read_body(kind: type[msgspec.Struct], content: bytes) -> Any:
    """The body of a request; an empty one is an empty object. Raises Refused: BAD_ARGUMENT."""
    content = content or b"{}"
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        try:
            values = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            values = {}
        given = values if isinstance(values, dict) else {}
        raise Refused(Reason.BAD_ARGUMENT, explain(error, kind, "field", given)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(Reason.BAD_ARGUMENT, "the body has to be a JSON object") from None


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of its fields. To find them leaves cycles in memory, so that is done once."""
    hints = get_type_hints(kind)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def explain(
    error: msgspec.ValidationError, kind: type[msgspec.Struct], what: str, values: Mapping[str, Any]
) -> str:
    """What is wrong with a request, and what would be right."""
    text = str(error)
    unknown = _FIELD.search(text)
    known = ", ".join(_hints(kind))
    if unknown is not None and " - at " not in text:
        least = f"use {known}" if known else "there are none"
        return f"there is no {what} {unknown['name']}: {least}"
    found = _AT.match(text)
    if found is None:
        return f"{text}: send an object with {known}" if known else text
    name = found["name"]
    hint = _hints(kind).get(name)
    if get_origin(hint) is Literal:
        choices = ", ".join(map(str, get_args(hint)))
        return f"{name} is one of {choices}, not {values.get(name)!r}"
    return f"{name}: {found['text'][:1].lower()}{found['text'][1:]}"
