"""Permissions: rules that allow or deny actions on topics, and what they decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from polymq.admin.commits import Committed
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import audit
from polymq.broker.accounts.permissions import (
    EXACT,
    Action,
    BadPattern,
    Effect,
    Rule,
    format_pattern,
    parse_pattern,
)
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position
from polymq.steps import in_steps

ActionName = Literal["publish", "subscribe", "create", "monitor", "operate", "admin"]
EffectName = Literal["allow", "deny"]
ANONYMOUS: Final = "anonymous"


class Permission(Value):
    """A rule.

    Attributes:
        subject: the name of a user, or role: and the name of a role.
        effect: what it does.
        action: what it allows or denies.
        topic: a pattern of topics, such as sensors.#.
    """

    subject: str
    effect: EffectName
    action: ActionName
    topic: str


class Permissions(Value):
    """Rules that were added or removed.

    Attributes:
        permissions: these rules.
    """

    permissions: list[Permission]


class PermissionsQuery(PageQuery):
    """Which rules.

    Attributes:
        prefix: only rules whose subjects begin with this text.
        subject: only rules of this user or role.
    """

    subject: str | None = None


class NewPermissions(Given):
    """Rules for several actions.

    Attributes:
        effect: what the rules do.
        subject: the name of a user, or role: and the name of a role; role:anonymous stands for
            clients that do not log in.
        actions: what they allow or deny.
        topic: a pattern of topics, such as sensors.room1.temp, sensors.*.temp or sensors.#.
    """

    effect: EffectName
    subject: str
    actions: list[ActionName]
    topic: str


class RemovedPermissions(Given):
    """Which rules are removed. At least one of them has to be there.

    Attributes:
        subject: the name of a user, or role: and the name of a role.
        actions: the actions, separated by commas.
        topic: the pattern, as the list shows it.
        effect: only rules with this effect; without it, rules of both.
    """

    subject: str
    actions: str
    topic: str
    effect: EffectName | None = None


class Question(Given):
    """What somebody may do.

    Attributes:
        user: a user, or anonymous.
        action: what it would do.
        topic: on which topic, or with which topic filter.
        client_id: an MQTT client identifier, for rules with {client_id}.
    """

    user: str
    action: ActionName
    topic: str
    client_id: str | None = None


class Verdict(Value):
    """Whether somebody may do something.

    Attributes:
        allowed: whether it may.
        rule: the rule that decides; null: none allows it.
        needs: the action that the rule is about. It is create if a message would make its topic.
    """

    allowed: bool
    rule: str | None
    needs: ActionName


class PermissionHandlers:
    """Carries out the operations on permissions.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._users = engine.users
        self._exchanges = engine.exchanges
        self._services = (engine.service_logins, engine.service_permissions)
        self._admission = engine.admission
        self._committed = committed

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="permissions",
            about="Rules that allow or deny actions. What no rule allows is denied, and a rule "
            "that denies takes precedence.",
            operations=[
                Operation(
                    method="GET",
                    path="/permissions",
                    name="listPermissions",
                    summary="List rules",
                    right="monitor",
                    handler=self._list,
                    query=PermissionsQuery,
                    answer=Page[Permission],
                ),
                Operation(
                    method="POST",
                    path="/permissions",
                    name="addPermissions",
                    summary="Add rules",
                    about="They apply at once.",
                    right="admin",
                    handler=self._add,
                    body=NewPermissions,
                    answer=Permissions,
                ),
                Operation(
                    method="DELETE",
                    path="/permissions",
                    name="removePermissions",
                    summary="Remove rules",
                    about="That applies at once.",
                    right="admin",
                    handler=self._remove,
                    query=RemovedPermissions,
                    answer=Permissions,
                ),
                Operation(
                    method="GET",
                    path="/permissions/check",
                    name="checkPermission",
                    summary="Ask whether a user may do something, and which rule decides",
                    right="monitor",
                    handler=self._check,
                    query=Question,
                    answer=Verdict,
                ),
                Operation(
                    method="DELETE",
                    path="/service-answers",
                    name="forgetServiceAnswers",
                    summary="Forget what login and permission services have answered",
                    about="They are asked again about the next login, publish or subscription.",
                    right="admin",
                    handler=self._forget_answers,
                ),
            ],
        )

    async def _list(self, call: Call[PermissionsQuery]) -> Page[Permission]:
        table = self._users.rule_table(call.query.subject)
        listing = Listing(names=table, find=table.get, row=lambda _, rule: _shown(rule))
        return await in_steps(page_of(listing, call.query))

    async def _add(self, call: Call[Given]) -> Permissions:
        body: NewPermissions = call.body
        rules = _rules(body.subject, [body.effect], body.actions, body.topic)
        self._users.check_new_rules(body.subject, rules)  # before the first of them is added
        position = Position(0)
        for rule in rules:
            position = max(position, self._users.add_rule(rule))
            audit.note("permission added", rule=str(rule), by=call.caller)
        await self._committed(position)
        return Permissions(permissions=[_shown(rule) for rule in rules])

    async def _remove(self, call: Call[RemovedPermissions]) -> Permissions:
        asked = call.query
        effects = [effect.value for effect in Effect] if asked.effect is None else [asked.effect]
        actions = [name.strip() for name in asked.actions.split(",")]
        rules = _rules(asked.subject, effects, actions, asked.topic)
        known = set(self._users.rules(asked.subject))
        found = [rule for rule in rules if rule in known]
        if not found:
            pattern = format_pattern(rules[0].pattern)
            raise Refused(
                Reason.NOT_FOUND,
                f"there is no rule for {asked.subject} {' '.join(actions)} {pattern}",
            )
        position = Position(0)
        for rule in found:
            position = max(position, self._users.remove_rule(rule))
            audit.note("permission removed", rule=str(rule), by=call.caller)
        await self._committed(position)
        return Permissions(permissions=[_shown(rule) for rule in found])

    async def _check(self, call: Call[Question]) -> Verdict:
        asked = call.query
        action = Action(asked.action)
        if asked.user != ANONYMOUS:
            self._users.need(asked.user)
        address = _pattern(asked.topic)
        if address[0] == EXACT:  # a topic with dots as it is
            address = address[1:]
        rules = self._admission.rules_of(asked.user).for_client(asked.client_id)
        reads = action is Action.SUBSCRIBE
        decision = (rules.decide_filter if reads else rules.decide)(action, address)
        needs = asked.action
        is_made = self._exchanges.is_made(address[0])
        if action is Action.PUBLISH and decision.allowed and not is_made:
            making = rules.decide(Action.CREATE, address)  # the first message makes the topic
            if not making.allowed:
                decision, needs = making, "create"
        rule = None if decision.rule is None else str(decision.rule)
        return Verdict(allowed=decision.allowed, rule=rule, needs=needs)

    async def _forget_answers(self, call: Call[Given]) -> None:
        for service in self._services:
            if service is not None:
                service.forget_all()
        audit.note("answers of services dropped", by=call.caller)


def _rules(subject: str, effects: Sequence[str], actions: Sequence[str], topic: str) -> list[Rule]:
    if not actions:
        raise Refused(Reason.BAD_ARGUMENT, "name at least one action")
    pattern = _pattern(topic)
    return [
        Rule(subject=subject, effect=Effect(effect), action=_action(action), pattern=pattern)
        for effect in effects
        for action in actions
    ]


def _action(name: str) -> Action:
    try:
        return Action(name)
    except ValueError:
        names = ", ".join(action.value for action in Action)
        raise Refused(Reason.BAD_ARGUMENT, f"there is no action {name!r}: use {names}") from None


def _pattern(text: str) -> tuple[str, ...]:
    try:
        return parse_pattern(text)
    except BadPattern as error:
        raise Refused(Reason.BAD_ARGUMENT, str(error)) from None


def _shown(rule: Rule) -> Permission:
    return Permission(
        subject=rule.subject,
        effect=rule.effect.value,
        action=rule.action.value,
        topic=format_pattern(rule.pattern),
    )
