"""The operations of the admin API, as data: path, role, parameters and answer of each.

A module for each kind of object lists its operations and carries them out. What is the same for
all is derived from the lists: the routes (`api.py`), who may ask, what is checked before a handler
runs, and the OpenAPI document (`openapi.py`).

Rules:

* Parameters, bodies and answers are structs of msgspec. Their docstrings describe them, field by
  field (`Attributes:`), so nothing is documented apart from the code.
* An operation that changes nothing is a GET, and needs the right `monitor`, unless its answer has
  secrets; one that changes something needs `operate` or `admin`, and is a line of the audit log.
* What a message contains is for who may also subscribe to its topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from aiohttp import web

from polymq.broker.port import BrokerPort
from polymq.broker.port.principals import Managing

API_PATH: Final = "/api/v1"

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Value(msgspec.Struct):
    """What is sent to clients."""


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """What clients send: a query, or the JSON object of a body."""


class NoQuery(Given):
    """An operation without parameters."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a handler returns if it made what it was asked for: the answer has the status 201."""

    answer: Value


Query = TypeVar("Query", bound=Given)
NO_REQUEST: Final[Any] = None
"""In the place of the request, where the program itself calls an operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Query]):
    """One request, checked.

    Attributes:
        path: the parts of the path that name something.
        query: the parameters.
        body: the value of the type that the operation names; None if it has none.
        caller: who asks, for the audit log.
        port: what the caller may do as a client, for what is in messages.
        request: for answers that are streams; NO_REQUEST for operations that have none.
    """

    path: Mapping[str, str]
    query: Query
    body: Any
    caller: str
    port: BrokerPort
    request: web.Request


Handler = Callable[[Call[Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that clients can ask for.

    Attributes:
        path: behind API_PATH; `{name}` is a part that names something, and may have any character
            (percent-encoded).
        name: unique; OpenAPI's `operationId`, from which generators of clients make methods.
        summary: one sentence without a full stop.
        about: more than the summary, if there is more to say.
        right: what the caller has to have, at least.
        handler: returns a value of the type `answer`, or a response that is sent as it is.
        query: type of the parameters.
        body: type of the body; None: a body is not read.
        reads_body: the handler reads the body from the request, because it may be long.
        answer: type of the answer; None: there is none, and the status is 204.
        status: of a good answer.
        may_make: it makes something, unless that is there: the handler returns Made if so.
        on_topic: the part `name` of the path is a topic, and the right to administer that topic is
            enough.
        media_type: of an answer that is not JSON.
        path_about: what the parts of the path name.
    """

    method: Method
    path: str
    name: str
    summary: str
    about: str = ""
    right: Managing
    handler: Handler
    query: type[Given] = NoQuery
    body: type[msgspec.Struct] | None = None
    reads_body: bool = False
    answer: Any = None
    status: int = 200
    may_make: bool = False
    on_topic: bool = False
    media_type: str = "application/json"
    path_about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The operations on one kind of object.

    Attributes:
        name: of the objects, in the plural.
        about: what they are, in a sentence or two.
    """

    name: str
    about: str
    operations: Sequence[Operation]
