"""Users and permissions at the operator's listener: what the commands `polymq user` and
`polymq permission` ask for.

Every change is a line of the audit log. Passwords come in bodies only, never in a path or a query,
and go nowhere but into their hash. The secret of an access key is in one answer, to who had it
made, and in no other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.bodies import json_object
from polymq.broker.accounts import access_keys, audit, passwords, quotas
from polymq.broker.accounts.passwords import SALT_BYTES
from polymq.broker.accounts.permissions import (
    EXACT,
    Action,
    BadPattern,
    Effect,
    Rule,
    format_pattern,
    parse_pattern,
)
from polymq.broker.accounts.user import User
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position

COUNT_MAX: Final = 2**53
"""Of a quota: what JSON numbers hold exactly."""

Committed = Callable[[Position], Awaitable[None]]


class UserHandlers:
    """The answers under `/users`, `/permissions` and `/service-answers`.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._users = engine.users
        self._exchanges = engine.exchanges
        self._logins = engine.logins
        self._services = (engine.service_logins, engine.service_permissions)
        self._admission = engine.admission
        self._committed = committed

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/users", self._list_users),
            web.get("/users/{name}", self._show_user),
            web.put("/users/{name}", self._add_user),
            web.patch("/users/{name}", self._change_user),
            web.delete("/users/{name}", self._delete_user),
            web.post("/users/{name}/access-keys", self._add_access_key),
            web.delete("/users/{name}/access-keys/{key}", self._remove_access_key),
            web.get("/permissions", self._list_rules),
            web.post("/permissions", self._add_rules),
            web.delete("/permissions", self._remove_rules),
            web.get("/permissions/check", self._check),
            web.delete("/service-answers", self._forget_answers),
        ]

    # --- users ----------------------------------------------------------------------------

    async def _list_users(self, _request: web.Request) -> web.Response:
        users = self._users.users
        return web.json_response({"users": [_shown(users[name]) for name in sorted(users)]})

    async def _show_user(self, request: web.Request) -> web.Response:
        return web.json_response(_shown(self._users.need(request.match_info["name"])))

    async def _add_user(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = await json_object(request, {"password", "hash", "roles"})
        self._users.check_new(name)
        roles = _names(body.get("roles", []), "roles")
        if "hash" in body and "password" not in body:
            stored = _imported(body["hash"])
        else:
            stored = await self._hash(body.get("password"))
        position = self._users.add(name, stored, roles)
        audit.note("user added", user=name, roles=" ".join(roles), by=request[CALLER])
        await self._committed(position)
        return web.json_response(_shown(self._users.need(name)), status=201)

    async def _change_user(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = await json_object(
            request, {"password", "disabled", "add_roles", "remove_roles", "quotas"}
        )
        user = self._users.need(name)
        position = Position(0)
        if "password" in body:
            stored = await self._hash(body["password"])
            position = max(position, self._users.set_password(name, stored))
        if "disabled" in body:
            if not isinstance(body["disabled"], bool):
                raise Refused(Reason.BAD_ARGUMENT, "disabled must be true or false")
            position = max(position, self._users.set_disabled(name, body["disabled"]))
        if "add_roles" in body or "remove_roles" in body:
            roles = set(user.roles) | set(_names(body.get("add_roles", []), "add_roles"))
            roles -= set(_names(body.get("remove_roles", []), "remove_roles"))
            position = max(position, self._users.set_roles(name, sorted(roles)))
        if "quotas" in body:
            wanted = _quotas(user.quotas, body["quotas"])
            position = max(position, self._users.set_quotas(name, wanted))
        audit.note("user changed", user=name, what=" ".join(sorted(body)), by=request[CALLER])
        await self._committed(position)
        return web.json_response(_shown(self._users.need(name)))

    async def _delete_user(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        position = self._users.delete(name)
        audit.note("user deleted", user=name, by=request[CALLER])
        await self._committed(position)
        return web.Response(status=204)

    async def _add_access_key(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        key = secrets.token_hex(access_keys.KEY_BYTES).upper()
        secret = secrets.token_hex(access_keys.SECRET_BYTES)
        position = self._users.add_access_key(name, key, secret)
        audit.note("access key added", user=name, access_key=key, by=request[CALLER])
        await self._committed(position)
        return web.json_response({"access_key": key, "secret_key": secret}, status=201)

    async def _remove_access_key(self, request: web.Request) -> web.Response:
        name, key = request.match_info["name"], request.match_info["key"]
        position = self._users.remove_access_key(name, key)
        audit.note("access key removed", user=name, access_key=key, by=request[CALLER])
        await self._committed(position)
        return web.Response(status=204)

    async def _hash(self, password: object) -> str:
        if not isinstance(password, str):
            raise Refused(Reason.BAD_ARGUMENT, 'send {"password": "..."}')
        hashed: asyncio.Future[str | Refused] = asyncio.get_running_loop().create_future()

        def done(result: str | Refused) -> None:
            if not hashed.done():  # the client may have gone
                hashed.set_result(result)

        raw = password.encode("utf-8", "surrogatepass")
        self._logins.hash_new(raw, secrets.token_bytes(SALT_BYTES), done)
        result = await hashed
        if isinstance(result, Refused):
            raise result
        return result

    # --- permissions ----------------------------------------------------------------------

    async def _list_rules(self, request: web.Request) -> web.Response:
        rules = self._users.rules(request.query.get("subject"))
        return web.json_response({"permissions": [_rule_shown(rule) for rule in rules]})

    async def _add_rules(self, request: web.Request) -> web.Response:
        body = await json_object(request, {"effect", "subject", "actions", "topic"})
        rules = _rules(body, _effects(body.get("effect")))
        position = Position(0)
        for rule in rules:
            position = max(position, self._users.add_rule(rule))
            audit.note("permission added", rule=str(rule), by=request[CALLER])
        await self._committed(position)
        return web.json_response({"permissions": [_rule_shown(rule) for rule in rules]})

    async def _remove_rules(self, request: web.Request) -> web.Response:
        """Rules of either effect, unless one is named; at least one has to be there."""
        body = await json_object(request, {"effect", "subject", "actions", "topic"})
        named = body.get("effect")
        rules = _rules(body, tuple(Effect) if named is None else _effects(named))
        known = set(self._users.rules(rules[0].subject))
        found = [rule for rule in rules if rule in known]
        if not found:
            pattern, actions = format_pattern(rules[0].pattern), " ".join(body["actions"])
            raise Refused(
                Reason.NOT_FOUND, f"there is no rule for {rules[0].subject} {actions} {pattern}"
            )
        position = Position(0)
        for rule in found:
            position = max(position, self._users.remove_rule(rule))
            audit.note("permission removed", rule=str(rule), by=request[CALLER])
        await self._committed(position)
        return web.json_response({"permissions": [_rule_shown(rule) for rule in found]})

    async def _forget_answers(self, request: web.Request) -> web.Response:
        for service in self._services:
            if service is not None:
                service.forget_all()
        audit.note("answers of services dropped", by=request[CALLER])
        return web.Response(status=204)

    async def _check(self, request: web.Request) -> web.Response:
        query = request.query
        name, action = query.get("user", ""), _action(query.get("action"))
        if name != "anonymous":
            self._users.need(name)
        address = _pattern(query.get("topic"))
        if address[0] == EXACT:  # a topic with dots as it is
            address = address[1:]
        rules = self._admission.rules_of(name).for_client(query.get("client_id"))
        reads = action is Action.SUBSCRIBE
        decision = (rules.decide_filter if reads else rules.decide)(action, address)
        needs = action
        is_made = self._exchanges.is_made(address[0])
        if action is Action.PUBLISH and decision.allowed and not is_made:
            making = rules.decide(Action.CREATE, address)  # the first message makes the topic
            if not making.allowed:
                decision, needs = making, Action.CREATE
        rule = None if decision.rule is None else str(decision.rule)
        return web.json_response({"allowed": decision.allowed, "rule": rule, "needs": needs.value})


# --- values ------------------------------------------------------------------------------------


def _imported(value: object) -> str:
    """The hash of a password from another broker's file."""
    if not isinstance(value, str) or not passwords.is_importable(value):
        raise Refused(Reason.BAD_ARGUMENT, "hash must be of mosquitto's form $6$ or $7$")
    return value


def _names(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refused(Reason.BAD_ARGUMENT, f"{what} must be a list of names")
    return value


def _quotas(before: quotas.Quotas, value: object) -> quotas.Quotas:
    """Changed quotas: a number, null for no bound, or "default"."""
    if not isinstance(value, dict):
        raise Refused(Reason.BAD_ARGUMENT, "quotas must be an object")
    changed: dict[str, int | None] = {}
    for name, wanted in value.items():
        if name not in quotas.NAMES:
            raise Refused(
                Reason.BAD_ARGUMENT, f"there is no quota {name!r}: use {', '.join(quotas.NAMES)}"
            )
        if wanted == "default":
            wanted = getattr(quotas.DEFAULT, name)
        elif wanted is not None and (
            isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 < wanted <= COUNT_MAX
        ):
            raise Refused(Reason.BAD_ARGUMENT, f"{name} must be a number above 0, null, or default")
        changed[name] = wanted
    return replace(before, **changed)


def _rules(body: Mapping[str, Any], effects: Sequence[Effect]) -> list[Rule]:
    subject = body.get("subject")
    if not isinstance(subject, str):
        raise Refused(
            Reason.BAD_ARGUMENT,
            "subject must be the name of a user, or role: and the name of a role",
        )
    actions = [_action(one) for one in _names(body.get("actions"), "actions")]
    if not actions:
        raise Refused(Reason.BAD_ARGUMENT, "name at least one action")
    pattern = _pattern(body.get("topic"))
    return [
        Rule(subject=subject, effect=effect, action=action, pattern=pattern)
        for effect in effects
        for action in actions
    ]


def _effects(value: object) -> tuple[Effect, ...]:
    try:
        return (Effect(value),)
    except ValueError:
        raise Refused(Reason.BAD_ARGUMENT, "effect must be allow or deny") from None


def _action(value: object) -> Action:
    try:
        return Action(value)
    except ValueError:
        names = ", ".join(action.value for action in Action)
        raise Refused(Reason.BAD_ARGUMENT, f"there is no action {value!r}: use {names}") from None


def _pattern(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Refused(Reason.BAD_ARGUMENT, "topic must be a pattern, such as sensors.#")
    try:
        return parse_pattern(value)
    except BadPattern as error:
        raise Refused(Reason.BAD_ARGUMENT, str(error)) from None


def _shown(user: User) -> dict[str, Any]:
    """A user without its hash, and its access keys without their secrets."""
    return {
        "name": user.name,
        "roles": list(user.roles),
        "disabled": user.disabled,
        "quotas": asdict(user.quotas),
        "access_keys": [
            {"access_key": key.name, "created_ms": key.created_ms} for key in user.access_keys
        ],
    }


def _rule_shown(rule: Rule) -> dict[str, str]:
    return {
        "subject": rule.subject,
        "effect": rule.effect.value,
        "action": rule.action.value,
        "topic": format_pattern(rule.pattern),
    }
