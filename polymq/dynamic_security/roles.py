"""The commands about roles, and about what holds where no role says anything.

A role is a name that rules and users share, and nothing more: it is there as long as a user has it
or a rule is about it. So to create one without ACLs stores nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from polymq.admin.permissions import NewPermissions, RemovedPermissions
from polymq.admin.users import UserChange
from polymq.broker.accounts.permissions import (
    ROLE_RULES,
    Action,
    Effect,
    Rule,
    format_pattern,
    parse_pattern,
)
from polymq.broker.accounts.users import ROLE_PREFIX, Users
from polymq.broker.errors import Reason, Refused
from polymq.dynamic_security.clients import chosen
from polymq.dynamic_security.commands import Caller, Command, Operations, Values
from polymq.dynamic_security.fields import (
    Acl,
    AclChange,
    AclName,
    DefaultAccesses,
    Listed,
    NoFields,
    RoleGiven,
    RoleName,
    check_priority,
    check_texts,
)
from polymq.mosquitto.access_lists import (
    DEFAULTS,
    Entry,
    NoRule,
    Wanted,
    entries,
    rules_to_remove,
    wanted_rules,
)
from polymq.steps import in_steps

STEP_NAMES: Final = 1_000
"""Users or rules that are looked at in one step: below a millisecond."""
HOLDERS_MAX: Final = 100
"""Users from whom one command takes a role."""
AT_ONCE: Final = 20
"""Changes that are waited for together."""


class RoleCommands:
    """Carries them out."""

    def __init__(self, users: Users, operations: Operations) -> None:
        self._users = users
        self._operations = operations

    def commands(self) -> Mapping[str, Command]:
        """By their names."""
        return {
            "listRoles": Command(Listed, self._list),
            "getRole": Command(RoleName, self._get),
            "createRole": Command(RoleGiven, self._create),
            "modifyRole": Command(RoleGiven, self._modify),
            "deleteRole": Command(RoleName, self._delete),
            "addRoleACL": Command(AclChange, self._add_acl),
            "removeRoleACL": Command(AclName, self._remove_acl),
            "getDefaultACLAccess": Command(NoFields, self._get_defaults),
            "setDefaultACLAccess": Command(DefaultAccesses, self._set_defaults),
        }

    # --- roles ------------------------------------------------------------------------------

    async def _list(self, given: Listed, _caller: Caller) -> Values:
        return await in_steps(self._listed(given))

    def _listed(self, given: Listed) -> Generator[None, None, Values]:
        names = set(ROLE_RULES)
        users = iter(list(self._users.users.values()))
        while some := list(islice(users, STEP_NAMES)):
            names.update(role for user in some for role in user.roles)
            yield
        rules = iter(list(self._users.rule_table().values()))
        while found := list(islice(rules, STEP_NAMES)):
            names.update(
                rule.subject.removeprefix(ROLE_PREFIX)
                for rule in found
                if rule.subject.startswith(ROLE_PREFIX)
            )
            yield
        listed = yield from chosen(list(names), given)
        shown: list[Any] = listed
        if given.verbose:
            shown = []
            for name in listed:
                shown.append(self._shown(name))
                yield
        return {"totalCount": len(names), "roles": shown}

    async def _get(self, given: RoleName, _caller: Caller) -> Values:
        if not await self._exists(given.rolename):
            raise _no_role(given.rolename)
        return {"role": self._shown(given.rolename)}

    async def _create(self, given: RoleGiven, caller: Caller) -> None:
        check_texts(given)
        wanted = _wanted(given.acls or [])
        self._users.check_subject(ROLE_PREFIX + given.rolename)
        if await self._exists(given.rolename):
            raise Refused(Reason.DIFFERENT, f"role {given.rolename!r} exists: change it instead")
        await self._add(given.rolename, wanted, caller)

    async def _modify(self, given: RoleGiven, caller: Caller) -> None:
        check_texts(given)
        wanted = _wanted(given.acls or [])
        if not await self._exists(given.rolename):
            raise _no_role(given.rolename)
        if given.acls is None:
            return
        before = self._users.rules(ROLE_PREFIX + given.rolename)
        await self._add(given.rolename, wanted, caller)
        stay = {(one.effect, action, one.topic) for one in wanted for action in one.actions}
        await self._remove(
            [
                rule
                for rule in before
                if (rule.effect.value, rule.action.value, format_pattern(rule.pattern)) not in stay
            ],
            caller,
        )

    async def _delete(self, given: RoleName, caller: Caller) -> None:
        name = given.rolename
        if name in ROLE_RULES:
            raise Refused(Reason.FORBIDDEN, f"role {name!r} is the server's own, and stays")
        holders = await in_steps(self._holders(name, HOLDERS_MAX))
        rules = self._users.rules(ROLE_PREFIX + name)
        if not holders and not rules:
            raise _no_role(name)
        if len(holders) > HOLDERS_MAX:
            raise Refused(
                Reason.LIMIT,
                f"more than {HOLDERS_MAX} clients have role {name!r}: take it from them first "
                "(removeClientRole)",
            )
        await _together(
            [
                self._operations.ask(
                    "changeUser", caller, {"name": user}, UserChange(remove_roles=[name])
                )
                for user in holders
            ]
        )
        await self._remove(rules, caller)

    async def _exists(self, name: str) -> bool:
        if name in ROLE_RULES or self._users.rule_table(ROLE_PREFIX + name):
            return True
        return bool(await in_steps(self._holders(name, 0)))

    def _holders(self, role: str, enough: int) -> Generator[None, None, list[str]]:
        """The users that have a role; if there are more than enough of them, not all."""
        found: list[str] = []
        users = iter(list(self._users.users.values()))
        while len(found) <= enough and (some := list(islice(users, STEP_NAMES))):
            found += [user.name for user in some if role in user.roles]
            yield
        return found

    def _shown(self, name: str) -> Values:
        rules = [*ROLE_RULES.get(name, ()), *self._users.rules(ROLE_PREFIX + name)]
        return {"rolename": name, "acls": [_acl(entry) for entry in entries(rules)]}

    # --- ACLs -------------------------------------------------------------------------------

    async def _add_acl(self, given: AclChange, caller: Caller) -> None:
        self._users.check_subject(ROLE_PREFIX + given.rolename)
        await self._add(given.rolename, _wanted([given]), caller)

    async def _remove_acl(self, given: AclName, caller: Caller) -> None:
        actions, patterns = rules_to_remove(given.acltype, given.topic)
        found = [
            rule
            for rule in self._users.rules(ROLE_PREFIX + given.rolename)
            if rule.action in actions and format_pattern(rule.pattern) in patterns
        ]
        if not found:
            raise Refused(
                Reason.NOT_FOUND,
                f"role {given.rolename!r} has no ACL {given.acltype} {given.topic}",
            )
        await self._remove(found, caller)

    async def _add(self, role: str, wanted: Sequence[Wanted], caller: Caller) -> None:
        """Add all rules, or none."""
        subject = ROLE_PREFIX + role
        self._users.check_new_rules(
            subject,
            [
                Rule(
                    subject=subject,
                    effect=Effect(one.effect),
                    action=Action(action),
                    pattern=parse_pattern(one.topic),
                )
                for one in wanted
                for action in one.actions
            ],
        )
        await _together(
            [
                self._operations.ask(
                    "addPermissions",
                    caller,
                    {},
                    NewPermissions(
                        effect=one.effect,
                        subject=subject,
                        actions=list(one.actions),
                        topic=one.topic,
                    ),
                )
                for one in wanted
            ]
        )

    async def _remove(self, rules: Sequence[Rule], caller: Caller) -> None:
        await _together(
            [
                self._operations.ask(
                    "removePermissions",
                    caller,
                    {},
                    RemovedPermissions(
                        subject=rule.subject,
                        actions=rule.action.value,
                        topic=format_pattern(rule.pattern),
                        effect=rule.effect.value,
                    ),
                )
                for rule in rules
            ]
        )

    # --- defaults ---------------------------------------------------------------------------

    async def _get_defaults(self, _given: NoFields, _caller: Caller) -> Values:
        return {
            "acls": [{"acltype": name, "allow": allow} for name, allow in DEFAULTS.items()],
        }

    async def _set_defaults(self, given: DefaultAccesses, _caller: Caller) -> None:
        for one in given.acls:
            if one.acltype not in DEFAULTS:
                known = ", ".join(DEFAULTS)
                raise Refused(Reason.BAD_ARGUMENT, f"{one.acltype!r} is none of {known}")
            allow = one.access == "allow" if one.allow is None else one.allow
            if allow != DEFAULTS[one.acltype]:
                word = "allowed" if DEFAULTS[one.acltype] else "denied"
                raise Refused(
                    Reason.BAD_ARGUMENT,
                    f"{one.acltype} is {word} where no ACL says anything, and that cannot be "
                    "changed: add an ACL for # to a role",
                )


def _wanted(acls: Sequence[Acl]) -> list[Wanted]:
    """The rules of ACLs. Raises Refused."""
    found = []
    for acl in acls:
        check_priority(acl.priority)
        try:
            wanted = wanted_rules(acl.acltype, acl.topic, allow=acl.allow)
        except NoRule as error:
            raise Refused(Reason.BAD_ARGUMENT, f"{acl.acltype} {acl.topic}: {error}") from None
        if wanted is not None:
            found.append(wanted)
    return found


def _acl(entry: Entry) -> Values:
    return {
        "acltype": entry.acltype,
        "topic": entry.topic,
        "priority": 0,
        "allow": entry.allow,
    }


def _no_role(name: str) -> Refused:
    return Refused(Reason.NOT_FOUND, f"there is no role {name!r}")


async def _together(changes: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Carry out changes, some at a time, so that one wait for the disk is enough for several.
    Raises what the first that fails raises."""
    left = iter(changes)
    try:
        while some := list(islice(left, AT_ONCE)):
            await asyncio.gather(*some)
    finally:
        for change in left:
            change.close()
