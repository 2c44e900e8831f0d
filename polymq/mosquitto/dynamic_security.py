"""The file of mosquitto's dynamic security (`dynamic-security.json`) as users and rules of ours.
Pure.

Rules:

* A role becomes a role, with rules that allow no more than its ACLs. Its name must not be that of a
  role that has rights here by itself: the users of an `admin` that may change a few things would be
  administrators of everything.
* A group gives its roles to its members. The group of clients without a user name gives the ACLs of
  its roles to `role:anonymous`.
* mosquitto's defaults are ours, or are said by no rule: then the entry that changes one is listed.
  Where clients may not receive by default, they may subscribe here to what they may also receive.
* Who may not receive something may not subscribe to it.
* What is said by no rule is listed, and the rest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from polymq.broker.accounts import passwords
from polymq.broker.accounts.permissions import ANONYMOUS, ROLE_RULES
from polymq.broker.accounts.user import NAME, USER_NAME
from polymq.mosquitto.access_lists import (
    DEFAULTS,
    READING,
    RECEIVE,
    SUBSCRIBE,
    AclType,
    NoRule,
    wanted_rules,
)
from polymq.mosquitto.files import ANONYMOUS_SUBJECT


@dataclass(frozen=True, slots=True)
class FoundUser:
    """A client that can be imported as a user."""

    name: str
    password_hash: str
    roles: tuple[str, ...]
    disabled: bool


@dataclass(frozen=True, slots=True)
class FoundRule:
    """An ACL that can be imported as rules, one for each action.

    Attributes:
        topic: as a pattern of rules.
    """

    effect: str
    subject: str
    actions: tuple[str, ...]
    topic: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What cannot be imported: where it is, and why."""

    where: str
    text: str


class BadFile(ValueError):
    """It is no such file; the text says why."""


class _Acl(msgspec.Struct):
    acltype: AclType
    topic: str
    allow: bool
    priority: int = 0


class _Role(msgspec.Struct):
    rolename: str
    acls: list[_Acl] = []


class _RoleName(msgspec.Struct):
    rolename: str


class _Username(msgspec.Struct):
    username: str


class _Client(msgspec.Struct):
    username: str
    password: str = ""
    salt: str = ""
    iterations: int = 0
    clientid: str = ""
    disabled: bool = False
    roles: list[_RoleName] = []


class _Group(msgspec.Struct):
    groupname: str
    roles: list[_RoleName] = []
    clients: list[_Username] = []


class _File(msgspec.Struct):
    clients: list[_Client] = []
    groups: list[_Group] = []
    roles: list[_Role] = []
    defaults: dict[str, bool] = msgspec.field(name="defaultACLAccess", default_factory=dict)
    anonymous: str = msgspec.field(name="anonymousGroup", default="")


def read_dynamic_security(content: bytes) -> Iterator[FoundUser | FoundRule | Remark]:
    """What is in a file: rules, then users, and remarks where they belong. Raises BadFile."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(f"not a file of mosquitto's dynamic security: {error}") from error
    yield from _remarks(file)
    groups = {group.groupname: group for group in file.groups}
    anonymous = groups.get(file.anonymous)
    for_anonymous = set() if anonymous is None else {role.rolename for role in anonymous.roles}
    usable: set[str] = set()
    for role in file.roles:
        why = _why_no_role(role.rolename)
        if why:
            yield Remark(f"role {role.rolename}", why)
            continue
        usable.add(role.rolename)
        receives = file.defaults.get(RECEIVE, DEFAULTS[RECEIVE])
        yield from _rules(role, f"role:{role.rolename}", receives=receives)
        if role.rolename in for_anonymous:
            yield from _rules(role, ANONYMOUS_SUBJECT, receives=receives)
    of_groups: dict[str, list[str]] = {}
    for group in file.groups:
        for member in group.clients:
            names = [role.rolename for role in group.roles]
            of_groups.setdefault(member.username, []).extend(names)
    for client in file.clients:
        names = [role.rolename for role in client.roles]
        yield from _user(client, [*names, *of_groups.get(client.username, ())], usable)


def _remarks(file: _File) -> Iterator[Remark]:
    for name, allow in file.defaults.items():
        if DEFAULTS.get(name, allow) != allow:
            word = "allowed" if allow else "denied"
            text = f"it is {word} where no ACL says anything, which no rule of roles says"
            yield Remark(f"defaultACLAccess {name}", text)
    if any(acl.priority for role in file.roles for acl in role.acls):
        yield Remark("priorities", "they are left out: a rule that denies takes precedence")


def _why_no_role(name: str) -> str:
    if name in ROLE_RULES:
        return f"the role {name!r} has rights of its own here: rename it, or give it by hand"
    if name == ANONYMOUS or NAME.fullmatch(name) is None:
        return "it cannot be the name of a role here"
    return ""


def _rules(role: _Role, subject: str, *, receives: bool) -> Iterator[FoundRule | Remark]:
    """The rules of a role.

    Args:
        receives: its clients get what they have subscribed to, unless an ACL denies it.
    """
    received = {acl.topic for acl in role.acls if acl.acltype == RECEIVE and acl.allow}
    for acl in role.acls:
        where = f"{subject} {acl.acltype} {acl.topic}"
        acltype = acl.acltype
        if acltype == RECEIVE and not acl.allow:
            acltype = SUBSCRIBE
        elif acltype in READING and acl.allow and not (receives or {acl.topic, "#"} & received):
            yield Remark(where, "clients may subscribe to this, and not receive it")
            continue
        try:
            wanted = wanted_rules(acltype, acl.topic, allow=acl.allow)
        except NoRule as error:
            yield Remark(where, str(error))
            continue
        if wanted is not None:
            yield FoundRule(wanted.effect, subject, wanted.actions, wanted.topic)


def _user(client: _Client, roles: list[str], usable: set[str]) -> Iterator[FoundUser | Remark]:
    where = f"client {client.username}"
    if USER_NAME.fullmatch(client.username) is None:
        yield Remark(where, "it cannot be the name of a user here")
        return
    if not client.password:
        yield Remark(where, "it has no password: create the user by hand")
        return
    stored = f"$7${client.iterations}${client.salt}${client.password}"
    if not passwords.is_importable(stored):
        yield Remark(where, "its password is no hash of mosquitto's")
        return
    if client.clientid:
        yield Remark(where, f"it is not tied to the client id {client.clientid!r} here")
    for role in dict.fromkeys(roles):
        if role not in usable:
            yield Remark(where, f"it does not get the role {role!r}")
    yield FoundUser(
        client.username,
        stored,
        tuple(dict.fromkeys(role for role in roles if role in usable)),
        client.disabled,
    )
