"""The fields of mosquitto's commands.

What is in mosquitto's model and not in ours is a field, too, so that the answer can say what to do
instead. Other fields are refused by their names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

from polymq.admin.operations import Given
from polymq.broker.errors import Reason, Refused
from polymq.mosquitto.access_lists import AclType

NO_PRIORITIES: Final = (-1, 0)
"""What mosquitto's tools send where nobody asked for a priority."""


class Listed(Given):
    """Which of a list, in the order of their names.

    Attributes:
        verbose: with what they stand for.
        count: how many; -1: as many as one answer has.
        offset: how many are left out before.
    """

    verbose: bool = False
    count: Annotated[int, msgspec.Meta(ge=-1)] = -1
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class NoFields(Given):
    """Of a command that has none."""


class ClientRole(Given):
    """A role of a client, or that one gets."""

    rolename: str
    priority: int = -1


class Acl(Given):
    """An entry of a role."""

    acltype: AclType
    topic: str
    allow: bool
    priority: int = 0


class AclChange(Acl, kw_only=True):
    """An entry that a role gets."""

    rolename: str


class AclName(Given):
    """An entry that a role loses."""

    rolename: str
    acltype: AclType
    topic: str


class ClientName(Given):
    """A client."""

    username: str


class ClientPassword(Given):
    """The new password of a client."""

    username: str
    password: str


class ClientIdentifier(Given):
    """The client identifier that a client has to have."""

    username: str
    clientid: str = ""


class ClientRoleChange(Given):
    """A role that a client gets or loses."""

    username: str
    rolename: str
    priority: int = -1


class Texts(Given):
    """What mosquitto stores for people."""

    textname: str = ""
    textdescription: str = ""


class ClientGiven(Texts, kw_only=True):
    """A client as it is to be."""

    username: str
    password: str | None = None
    clientid: str = ""
    groups: list[Any] = msgspec.field(default_factory=list)
    roles: list[ClientRole] | None = None


class RoleName(Given):
    """A role."""

    rolename: str


class RoleGiven(Texts, kw_only=True):
    """A role as it is to be."""

    rolename: str
    acls: list[Acl] | None = None


class DefaultAccess(Given):
    """What holds where no entry does.

    Attributes:
        access: what mosquitto_ctrl calls `allow`, of which mosquitto takes no notice.
    """

    acltype: str
    allow: bool | None = None
    access: Literal["allow", "deny"] | None = None


class DefaultAccesses(Given):
    """The same of several kinds."""

    acls: list[DefaultAccess]


class Anything(msgspec.Struct):
    """Of a command that is refused whatever is in it."""


# --- what is not in our model ---------------------------------------------------------------


def check_priority(priority: int) -> None:
    """Raises Refused."""
    if priority not in NO_PRIORITIES:
        raise Refused(
            Reason.BAD_ARGUMENT,
            "there are no priorities: an ACL that denies takes precedence. Leave the priority out",
        )


def check_texts(given: Texts) -> None:
    """Raises Refused."""
    if given.textname or given.textdescription:
        raise Refused(
            Reason.BAD_ARGUMENT,
            "users and roles have no textname and no textdescription: leave them out",
        )


def check_client_id(client_id: str) -> None:
    """Raises Refused."""
    if client_id:
        raise Refused(
            Reason.BAD_ARGUMENT,
            "a user is not tied to a client id: use %c in the topics of ACLs instead",
        )


def refuse_groups() -> NoReturn:
    """Raises Refused."""
    raise Refused(
        Reason.BAD_ARGUMENT,
        "there are no groups: give roles to clients (addClientRole). Clients without a user name "
        "have the role anonymous",
    )
