"""What is sent and answered: requests of several commands, each with an answer of its own.

A command is checked as a body of the admin API is: a struct says which fields it has (`fields.py`),
and a wrong one is answered with a sentence that names it. It is carried out by operations of the
admin API, with their checks, their lines in the audit log and their waiting for the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from polymq.admin.api import explain
from polymq.admin.operations import NO_REQUEST, Call, Given, Group, Operation
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort

COMMANDS_MAX: Final = 50
"""Of one request."""
LISTED_MAX: Final = 500
"""Names in one answer, with or without what they stand for."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Of one request. What finds no room is answered with an error."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Attributes:
        user: for the audit log.
        port: what that user may do.
    """

    user: str
    port: BrokerPort


class Operations:
    """The operations of the admin API, called by the program for who has the right `admin`."""

    def __init__(self, *groups: Group) -> None:
        self._operations: dict[str, Operation] = {
            one.name: one for group in groups for one in group.operations
        }

    async def ask(
        self, name: str, caller: Caller, path: Mapping[str, str], given: Given | None = None
    ) -> Any:
        """What an operation answers. Raises Refused, as the API does.

        Args:
            given: its body, or its parameters if it has no body.
        """
        operation = self._operations[name]
        has_body = operation.body is not None
        call = Call(
            path=path,
            query=operation.query() if has_body or given is None else given,
            body=given if has_body else None,
            caller=caller.user,
            port=caller.port,
            request=NO_REQUEST,
        )
        return await operation.handler(call)


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        given: the type of its fields, beside its name and `correlationData`.
        handler: returns what is in `data` of the answer; None: nothing.
    """

    given: type[msgspec.Struct]
    handler: Callable[[Any, Caller], Awaitable[Values | None]]


def decoded(kind: type[msgspec.Struct], values: Mapping[str, Any]) -> Any:
    """The fields of a command. Raises Refused: BAD_ARGUMENT."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise Refused(Reason.BAD_ARGUMENT, explain(error, kind, "field", values)) from None
