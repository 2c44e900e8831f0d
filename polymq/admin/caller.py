"""Who asks, and what they may do: for consoles, which show only what can be done."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, get_args

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.port import Refused, parse_display_name
from polymq.broker.port.principals import Managing

ADMIN: Final = "admin"


class Caller(Value):
    """Who sent the request.

    Attributes:
        name: the user's name, or a text in parentheses for the operator's token and for a server
            without users.
        rights: what the caller may do, of monitor, operate and admin.
        topic_rights: the same with the topic that was asked about; null: none was.
    """

    name: str
    rights: list[str]
    topic_rights: list[str] | None


class CallerQuery(Given):
    """What is asked beside.

    Attributes:
        topic: who may not administer everything may perhaps administer this topic.
    """

    topic: str | None = None


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
                query=CallerQuery,
                answer=Caller,
            )
        ],
    )


async def _show(call: Call[CallerQuery]) -> Caller:
    principal, topic = call.port.principal, call.query.topic
    rights: list[str] = [one for one in get_args(Managing) if principal.may_manage(one)]
    of_topic: list[str] | None = None
    if topic is not None:
        of_topic = list(rights)
        if ADMIN not in rights:
            with suppress(Refused):
                principal.check_admin((parse_display_name(topic),))
                of_topic.append(ADMIN)
    return Caller(name=call.caller, rights=rights, topic_rights=of_topic)
