"""What becomes of RabbitMQ's definitions here: what is taken, and what cannot be. Pure: it looks at
one definition after the other, and not at the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from polymq.broker.accounts import passwords
from polymq.broker.accounts.passwords import BadPassword
from polymq.broker.accounts.permissions import ANONYMOUS
from polymq.broker.accounts.user import USER_NAME
from polymq.broker.errors import Refused
from polymq.broker.exchanges.entities import DELAYED_ARGUMENT, DELAYED_TYPE, TYPES
from polymq.broker.queues.settings import settings_of
from polymq.gateways.amqp import mapping
from polymq.management.absent import PARAMETERS, POLICIES
from polymq.management.bodies import flag_of, table_of, text_of
from polymq.management.errors import Problem
from polymq.management.permissions import NO_TOPIC_PERMISSIONS, wanted_rules
from polymq.management.routing import VHOST
from polymq.management.tags import BadTag, read_tags, roles_of
from polymq.management.users import SHA256

GUEST: Final = "guest"
RESERVED: Final = "amq."
_OF_USERS: Final = ("permissions", "topic_permissions")
_FIELDS: Final = ("configure", "write", "read")
_HARMLESS: Final = ("ha-", "queue-master-locator", "queue-mode", "queue-version", "queue-leader")
"""Beginnings of policies' keys that ask for what is always so here, or has no meaning."""


@dataclass(frozen=True, slots=True)
class Step:
    """A definition that is taken.

    Attributes:
        section: of the file.
        name: what it defines, for people.
        value: the definition.
    """

    section: str
    name: str
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remark:
    """A definition that is not taken.

    Attributes:
        text: why, and what to do.
        is_loss: something that was there will be missing.
    """

    section: str
    name: str
    text: str
    is_loss: bool = True

    def __str__(self) -> str:
        return f"{self.section}: {self.name}: {self.text}"


Planned = Step | Remark | None


def planned(section: str, value: Any) -> Planned:
    """What becomes of a definition; None: there is nothing to do, and nothing to say."""
    if not isinstance(value, dict):
        return Remark(section, "?", "a definition has to be an object")
    try:
        if section != "bindings":
            text_of(value, "user" if section in _OF_USERS else "name")
    except Problem as problem:
        return Remark(section, "?", problem.reason)
    name = _name_of(section, value)
    vhost = value.get("vhost", VHOST)
    if section != "users" and section != "vhosts" and vhost != VHOST:
        return Remark(section, name, f"it is in virtual host {vhost!r}: there is only '/' here")
    try:
        return _PLANS[section](name, value)
    except (Problem, Refused) as error:
        text = error.reason if isinstance(error, Problem) else error.text
        return Remark(section, name, text)


def _name_of(section: str, value: Mapping[str, Any]) -> str:
    if section == "bindings":
        key = value.get("routing_key", "")
        return f"{value.get('source')} to {value.get('destination')} by {key!r}"
    found: str = value["user" if section in _OF_USERS else "name"]
    return found


def without_lost_ends(plans: Iterable[Planned]) -> Iterator[Planned]:
    """Plans in which a binding is not taken if its queue or exchange is not. They are in the order
    of the sections."""
    lost: set[tuple[str, Any]] = set()
    for plan in plans:
        if isinstance(plan, Remark) and plan.is_loss:
            lost.add((plan.section, plan.name))
        elif isinstance(plan, Step) and plan.section == "bindings":
            kind = text_of(plan.value, "destination_type", "queue")
            ends = (("exchanges", plan.value["source"]), (f"{kind}s", plan.value["destination"]))
            gone = next((end for end in ends if end in lost), None)
            if gone is not None:
                text = f"{gone[0].removesuffix('s')} {gone[1]!r} cannot be taken"
                yield Remark("bindings", plan.name, text)
                continue
        yield plan


def _user(name: str, value: Mapping[str, Any]) -> Planned:
    if name == GUEST:
        text = "RabbitMQ lets it in from its own machine only, and here it could come from others"
        return Remark("users", name, f"{text}: make a user with `polymq user add`")
    if USER_NAME.fullmatch(name) is None or name == ANONYMOUS:
        return Remark("users", name, "no user here can have this name: choose another")
    try:
        roles_of(read_tags(value.get("tags", "")))
        if value.get("password_hash"):
            algorithm = text_of(value, "hashing_algorithm", SHA256)
            passwords.from_rabbit(algorithm, text_of(value, "password_hash"))
    except (BadTag, BadPassword) as error:
        return Remark("users", name, str(error))
    return Step("users", name, {"tags": "", **value})


def _vhost(name: str, _value: Mapping[str, Any]) -> Planned:
    if name == VHOST:
        return None
    return Remark("vhosts", name, "there is one virtual host here, '/'")


def _permission(name: str, value: Mapping[str, Any]) -> Planned:
    if name == GUEST:
        return None
    wanted_rules(name, {field: text_of(value, field) for field in _FIELDS})
    return Step("permissions", name, value)


def _topic_permission(name: str, _value: Mapping[str, Any]) -> Planned:
    return Remark("topic_permissions", name, NO_TOPIC_PERMISSIONS)


def _parameter(name: str, _value: Mapping[str, Any]) -> Planned:
    return Remark("parameters", name, PARAMETERS)


def _global_parameter(_name: str, _value: Mapping[str, Any]) -> Planned:
    return None  # what every file has: the name and the id of the cluster


def _policy(name: str, value: Mapping[str, Any]) -> Planned:
    keys = [key for key in table_of(value, "definition") if not key.startswith(_HARMLESS)]
    if not keys:
        return Remark("policies", name, "it has no meaning here", is_loss=False)
    return Remark("policies", name, f"{', '.join(keys)}: {POLICIES}")


def _exchange(name: str, value: Mapping[str, Any]) -> Planned:
    if not name or name.startswith(RESERVED):
        return None
    kind, arguments = text_of(value, "type"), table_of(value, "arguments")
    for field in ("durable", "auto_delete", "internal"):
        flag_of(value, field, False)
    if kind == DELAYED_TYPE and arguments.get(DELAYED_ARGUMENT) in TYPES:
        return Step("exchanges", name, value)
    if kind not in TYPES:
        known = ", ".join((*TYPES, DELAYED_TYPE))
        return Remark("exchanges", name, f"unknown exchange type {kind!r}: there are {known}")
    return Step("exchanges", name, value)


def _queue(name: str, value: Mapping[str, Any]) -> Planned:
    if not name or name.startswith(RESERVED):
        return Remark("queues", name, "its client makes it again", is_loss=False)
    for field in ("durable", "auto_delete"):
        flag_of(value, field, False)
    settings_of(name, mapping.queue_arguments(table_of(value, "arguments")))
    return Step("queues", name, value)


def _binding(name: str, value: Mapping[str, Any]) -> Planned:
    source, destination = text_of(value, "source"), text_of(value, "destination")
    kind = text_of(value, "destination_type", "queue")
    text_of(value, "routing_key", "")
    table_of(value, "arguments")
    if not source or destination.startswith("amq.gen"):
        return None  # to the default exchange, which is made with the queue
    if kind not in ("queue", "exchange"):
        return Remark("bindings", name, f"unknown destination_type {kind!r}")
    return Step("bindings", name, value)


_PLANS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Planned]]] = {
    "users": _user,
    "vhosts": _vhost,
    "permissions": _permission,
    "topic_permissions": _topic_permission,
    "parameters": _parameter,
    "global_parameters": _global_parameter,
    "policies": _policy,
    "exchanges": _exchange,
    "queues": _queue,
    "bindings": _binding,
}
