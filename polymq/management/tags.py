"""RabbitMQ's user tags and PolyMQ's roles. Pure.

    administrator   role `admin`
    monitoring      role `reader`
    others          a role of the same name, without rights of its own

Users with the role `management` or `policymaker` may log in at this API, and see and do there what
their permissions allow in AMQP. A role `operator` shows as `monitoring` and `policymaker`. Nobody
gets it by a tag: it may do more than either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polymq.broker.accounts.permissions import ADMIN_ROLE, ANONYMOUS, OPERATOR_ROLE, READER_ROLE
from polymq.broker.accounts.user import NAME

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"

MANAGEMENT_ROLES: Final = frozenset({MANAGEMENT, POLICYMAKER})
"""Roles that let a user log in here, and nothing more."""
_TAGS_OF_ROLES: Final = {
    ADMIN_ROLE: (ADMINISTRATOR,),
    OPERATOR_ROLE: (MONITORING, POLICYMAKER),
    READER_ROLE: (MONITORING,),
}
_ROLES_OF_TAGS: Final = {ADMINISTRATOR: ADMIN_ROLE, MONITORING: READER_ROLE}
_RESERVED: Final = frozenset({*_TAGS_OF_ROLES, ANONYMOUS})


class BadTag(ValueError):
    """A tag that no role stands for; the text says why."""


def tags_of(roles: Iterable[str]) -> list[str]:
    """The tags of a user with these roles."""
    found: dict[str, None] = {}
    for role in roles:
        found.update(dict.fromkeys(_TAGS_OF_ROLES.get(role, (role,))))
    return list(found)


def roles_of(tags: Iterable[str]) -> list[str]:
    """The roles of a user with these tags. Raises BadTag."""
    roles: dict[str, None] = {}
    for tag in tags:
        if tag in _RESERVED:
            raise BadTag(f"the tag {tag!r} is the name of a role with rights: use another")
        if tag not in _ROLES_OF_TAGS and NAME.fullmatch(tag) is None:
            raise BadTag(
                f"the tag {tag!r} is no name of a role: use letters, digits, '.', '_', '@' and '-'"
            )
        roles[_ROLES_OF_TAGS.get(tag, tag)] = None
    return list(roles)


def read_tags(value: object) -> list[str]:
    """Tags as clients send them: a list, or a text with commas. Raises BadTag."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise BadTag("tags have to be a list of texts, or a text with commas")
    return [tag for tag in value if tag]
