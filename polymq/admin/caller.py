"""Who asks, and what they may do: for consoles, which show only what can be done."""

from __future__ import annotations

from typing import get_args

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.port.principals import Managing


class Caller(Value):
    """Who sent the request.

    Attributes:
        name: the user's name, or a text in parentheses for the operator's token and for a server
            without users.
        rights: what the caller may do, of monitor, operate and admin.
    """

    name: str
    rights: list[str]


def caller_group() -> Group:
    """The operation."""
    return Group(
        name="caller",
        about="The login that a request came with.",
        operations=[
            Operation(
                method="GET",
                path="/caller",
                name="getCaller",
                summary="Show who asks, and with which rights",
                right="monitor",
                handler=_show,
                answer=Caller,
            )
        ],
    )


async def _show(call: Call[Given]) -> Caller:
    may = call.port.principal.may_manage
    return Caller(name=call.caller, rights=[one for one in get_args(Managing) if may(one)])
