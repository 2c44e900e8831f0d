"""What RabbitMQ has and PolyMQ has otherwise, or not: lists of it are empty, and whoever wants to
make some is told what to use instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from polymq.management.callers import Rank
from polymq.management.errors import bad, missing
from polymq.management.lists import NOTHING, Items
from polymq.management.routing import Call, Route

POLICIES: Final = (
    "there are no policies here: give a queue its arguments when it is declared, such as "
    "x-message-ttl or x-dead-letter-exchange, and an exchange its alternate-exchange"
)
PARAMETERS: Final = (
    "there are no runtime parameters here, and so no shovels and federation: an MQTT bridge "
    "carries topics between brokers ([[mqtt.bridges]])"
)
GLOBAL_PARAMETERS: Final = "there are no global parameters here: settings are in polymq.toml"
VHOST_LIMITS: Final = (
    "the virtual host has no limits of its own: connections are limited by amqp.connections_max, "
    "and queues of a user by `polymq user quota`"
)
USER_LIMITS: Final = "limits of a user are its quotas: use `polymq user quota`"


@dataclass(frozen=True, slots=True)
class Absent:
    """One kind of objects that there are none of.

    Attributes:
        path: of their list.
        list_paths: of further lists.
        one: the path of one, below `path`.
        why: what somebody is told who wants to make one.
    """

    path: str
    list_paths: tuple[str, ...]
    one: str
    why: str


KINDS: Final = (
    Absent("/policies", ("/policies/{vhost}",), "/policies/{vhost}/{name}", POLICIES),
    Absent(
        "/operator-policies",
        ("/operator-policies/{vhost}",),
        "/operator-policies/{vhost}/{name}",
        POLICIES,
    ),
    Absent(
        "/parameters",
        ("/parameters/{component}", "/parameters/{component}/{vhost}"),
        "/parameters/{component}/{vhost}/{name}",
        PARAMETERS,
    ),
    Absent("/global-parameters", (), "/global-parameters/{name}", GLOBAL_PARAMETERS),
    Absent(
        "/vhost-limits", ("/vhost-limits/{vhost}",), "/vhost-limits/{vhost}/{name}", VHOST_LIMITS
    ),
    Absent("/user-limits", ("/user-limits/{user}",), "/user-limits/{user}/{name}", USER_LIMITS),
)


async def _none(_call: Call) -> Items:
    return NOTHING


async def _missing(_call: Call) -> None:
    raise missing()


def _refusing(why: str) -> Callable[[Call], Awaitable[Any]]:
    async def refuse(_call: Call) -> None:
        raise bad(why)

    return refuse


def absent_routes() -> list[Route]:
    """For the table."""
    rank, routes = Rank.MANAGEMENT, []
    for kind in KINDS:
        routes += [Route("GET", path, rank, _none) for path in (kind.path, *kind.list_paths)]
        routes += [
            Route("GET", kind.one, rank, _missing),
            Route("PUT", kind.one, rank, _refusing(kind.why)),
            Route("DELETE", kind.one, rank, _missing),
        ]
    routes.append(Route("PUT", "/feature-flags/{name}/enable", Rank.ADMINISTRATOR, _enable))
    return routes


async def _enable(_call: Call) -> None:
    """All that there are, are enabled."""
