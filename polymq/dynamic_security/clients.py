"""The commands about clients, which are users here."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from polymq.admin.operations import Given
from polymq.admin.users import NewUser, User, UserChange
from polymq.broker.accounts.user import User as BrokerUser
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Reason, Refused
from polymq.definitions.ordering import in_order
from polymq.dynamic_security.commands import LISTED_MAX, Caller, Command, Operations, Values
from polymq.dynamic_security.fields import (
    ClientGiven,
    ClientIdentifier,
    ClientName,
    ClientPassword,
    ClientRole,
    ClientRoleChange,
    Listed,
    check_client_id,
    check_priority,
    check_texts,
    refuse_groups,
)
from polymq.steps import in_steps

Chosen = Generator[None, None, list[str]]


def chosen(names: list[str], given: Listed) -> Chosen:
    """Those of the names that a command asks for, in steps."""
    count = LISTED_MAX if given.count < 0 else min(given.count, LISTED_MAX)
    found: list[str] = []
    left = given.offset
    for name in in_order(names):
        if name is None:
            yield
        elif left:
            left -= 1
            if left % LISTED_MAX == 0:
                yield
        elif len(found) < count:
            found.append(name)
        else:
            break
    return found


class ClientCommands:
    """Carries them out."""

    def __init__(self, users: Users, operations: Operations) -> None:
        self._users = users
        self._operations = operations

    def commands(self) -> Mapping[str, Command]:
        """By their names."""
        return {
            "listClients": Command(Listed, self._list),
            "getClient": Command(ClientName, self._get),
            "createClient": Command(ClientGiven, self._create),
            "modifyClient": Command(ClientGiven, self._modify),
            "deleteClient": Command(ClientName, self._delete),
            "setClientPassword": Command(ClientPassword, self._set_password),
            "setClientId": Command(ClientIdentifier, self._set_client_id),
            "enableClient": Command(ClientName, self._enable),
            "disableClient": Command(ClientName, self._disable),
            "addClientRole": Command(ClientRoleChange, self._add_role),
            "removeClientRole": Command(ClientRoleChange, self._remove_role),
        }

    async def _list(self, given: Listed, _caller: Caller) -> Values:
        return await in_steps(self._listed(given))

    def _listed(self, given: Listed) -> Generator[None, None, Values]:
        names = list(self._users.users)
        found = yield from chosen(names, given)
        shown: list[Any] = found
        if given.verbose:
            shown = []
            for name in found:
                user = self._users.users.get(name)
                if user is not None:  # else it went meanwhile
                    shown.append(_shown(user))
                yield
        return {"totalCount": len(names), "clients": shown}

    async def _get(self, given: ClientName, caller: Caller) -> Values:
        user = await self._ask("getUser", caller, given.username)
        return {"client": _shown(user)}

    async def _create(self, given: ClientGiven, caller: Caller) -> None:
        roles = _roles(given)
        if not given.password:
            raise Refused(Reason.BAD_ARGUMENT, "a client needs a password: give one")
        body = NewUser(password=given.password, roles=roles)
        await self._ask("addUser", caller, given.username, body)

    async def _modify(self, given: ClientGiven, caller: Caller) -> None:
        roles = _roles(given)
        change = UserChange()
        if given.password is not None:
            change.password = given.password
        if given.roles is not None:
            user = self._users.need(given.username)
            change.add_roles = [role for role in roles if role not in user.roles]
            change.remove_roles = [role for role in user.roles if role not in roles]
        await self._ask("changeUser", caller, given.username, change)

    async def _delete(self, given: ClientName, caller: Caller) -> None:
        await self._ask("deleteUser", caller, given.username)

    async def _set_password(self, given: ClientPassword, caller: Caller) -> None:
        await self._ask("changeUser", caller, given.username, UserChange(password=given.password))

    async def _set_client_id(self, given: ClientIdentifier, caller: Caller) -> None:
        check_client_id(given.clientid)
        await self._ask("getUser", caller, given.username)  # it may have none already

    async def _enable(self, given: ClientName, caller: Caller) -> None:
        await self._ask("changeUser", caller, given.username, UserChange(disabled=False))

    async def _disable(self, given: ClientName, caller: Caller) -> None:
        await self._ask("changeUser", caller, given.username, UserChange(disabled=True))

    async def _add_role(self, given: ClientRoleChange, caller: Caller) -> None:
        check_priority(given.priority)
        change = UserChange(add_roles=[given.rolename])
        await self._ask("changeUser", caller, given.username, change)

    async def _remove_role(self, given: ClientRoleChange, caller: Caller) -> None:
        user = self._users.need(given.username)
        if given.rolename not in user.roles:
            raise Refused(
                Reason.NOT_FOUND, f"user {given.username!r} has no role {given.rolename!r}"
            )
        change = UserChange(remove_roles=[given.rolename])
        await self._ask("changeUser", caller, given.username, change)

    async def _ask(self, name: str, caller: Caller, user: str, body: Given | None = None) -> Any:
        return await self._operations.ask(name, caller, {"name": user}, body)


def _roles(given: ClientGiven) -> list[str]:
    """The roles of a client. Raises Refused: it has what a user has not."""
    check_texts(given)
    check_client_id(given.clientid)
    if given.groups:
        refuse_groups()
    roles: list[ClientRole] = given.roles or []
    for role in roles:
        check_priority(role.priority)
    return [role.rolename for role in roles]


def _shown(user: User | BrokerUser) -> Values:
    value: dict[str, Any] = {"username": user.name}
    if user.disabled:
        value["disabled"] = True
    value["roles"] = [{"rolename": role} for role in user.roles]
    value["groups"] = []
    return value
