"""Definitions of users, rules and bans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from polymq.broker.accounts.access_keys import AccessKey
from polymq.broker.accounts.permissions import (
    Action,
    BadPattern,
    Effect,
    Rule,
    format_pattern,
    parse_pattern,
)
from polymq.broker.accounts.quotas import Quotas
from polymq.broker.accounts.user import User as BrokerUser
from polymq.broker.accounts.users import ROLE_PREFIX
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position
from polymq.definitions.kinds import Kind, Need
from polymq.definitions.models import (
    BanDefinition,
    PermissionDefinition,
    RabbitmqPermissionDefinition,
    UserDefinition,
    UserKey,
    UserQuotas,
)
from polymq.definitions.ordering import in_order
from polymq.management.errors import Problem
from polymq.management.permissions import DOCUMENT, wanted_rules

USERS: Final = "users"


def user_kind(engine: Engine) -> Kind[UserDefinition]:
    """Users, with what others may not see of them."""
    users = engine.users

    def shown(name: str) -> UserDefinition | None:
        user = users.users.get(name)
        if user is None:
            return None
        keys = [UserKey(key.name, key.secret, key.created_ms) for key in user.access_keys]
        return UserDefinition(
            name=name,
            password_hash=user.password_hash,
            roles=list(user.roles),
            disabled=user.disabled,
            quotas=msgspec.convert(user.quotas, UserQuotas, from_attributes=True),
            access_keys=keys or None,
        )

    def everything() -> Iterator[UserDefinition | None]:
        return (None if name is None else shown(name) for name in in_order(users.users))

    def stored(wanted: UserDefinition, current: UserDefinition | None) -> BrokerUser:
        password_hash, keys = wanted.password_hash, wanted.access_keys
        if current is not None:
            password_hash = password_hash or current.password_hash
            keys = current.access_keys if keys is None else keys
        if password_hash is None:
            text = f"user {wanted.name!r} has no password_hash here, and does not exist: make it"
            raise Refused(Reason.BAD_ARGUMENT, f"{text} with `polymq user add` first")
        return BrokerUser(
            name=wanted.name,
            password_hash=password_hash,
            roles=tuple(wanted.roles),
            disabled=wanted.disabled,
            quotas=Quotas(**msgspec.structs.asdict(wanted.quotas)),
            access_keys=tuple(
                AccessKey(name=key.access_key, secret=key.secret_key, created_ms=key.created_ms)
                for key in keys or ()
            ),
        )

    def check(wanted: UserDefinition) -> UserDefinition:
        current = shown(wanted.name)
        if current is None:
            users.check_new(wanted.name)
        users.check_stored(stored(wanted, current))
        return msgspec.structs.replace(wanted, roles=sorted(set(wanted.roles)))

    async def put(wanted: UserDefinition, current: UserDefinition | None) -> Position:
        return users.restore(stored(wanted, current))

    return Kind(
        section=USERS,
        model=UserDefinition,
        name=lambda user: user.name,
        everything=everything,
        find=lambda user: shown(user.name),
        check=check,
        put=put,
        changing=frozenset({"password_hash", "roles", "disabled", "quotas", "access_keys"}),
        exists=lambda name: name in users.users,
    )


def permission_kind(engine: Engine) -> Kind[PermissionDefinition]:
    """Rules. One that is there is always equal."""
    users = engine.users

    def shown(rule: Rule) -> PermissionDefinition:
        pattern = format_pattern(rule.pattern)
        return PermissionDefinition(rule.subject, rule.effect.value, rule.action.value, pattern)

    def everything() -> Iterator[PermissionDefinition | None]:
        table = users.rule_table()
        for key in in_order(table):
            rule = None if key is None else table.get(key)
            yield None if rule is None else shown(rule)

    def stored(wanted: PermissionDefinition) -> Rule:
        try:
            pattern = parse_pattern(wanted.topic)
        except BadPattern as error:
            raise Refused(Reason.BAD_ARGUMENT, str(error)) from None
        effect, action = Effect(wanted.effect), Action(wanted.action)
        return Rule(subject=wanted.subject, effect=effect, action=action, pattern=pattern)

    def find(wanted: PermissionDefinition) -> PermissionDefinition | None:
        return wanted if users.has_rule(stored(wanted)) else None

    def check(wanted: PermissionDefinition) -> PermissionDefinition:
        users.check_subject(wanted.subject, needs_user=False)
        return shown(stored(wanted))

    def needs(wanted: PermissionDefinition) -> Iterable[Need]:
        return () if wanted.subject.startswith(ROLE_PREFIX) else [Need(USERS, wanted.subject)]

    async def put(wanted: PermissionDefinition, _current: PermissionDefinition | None) -> Position:
        return users.add_rule(stored(wanted))

    return Kind(
        section="permissions",
        model=PermissionDefinition,
        name=lambda rule: f"{rule.effect} {rule.subject} {rule.action} {rule.topic}",
        everything=everything,
        find=find,
        check=check,
        put=put,
        needs=needs,
    )


def rabbitmq_permission_kind(engine: Engine) -> Kind[RabbitmqPermissionDefinition]:
    """RabbitMQ's expressions."""
    documents = engine.documents

    def shown(user: str) -> RabbitmqPermissionDefinition | None:
        written = documents.of_kind(DOCUMENT).get(user)
        return None if written is None else RabbitmqPermissionDefinition(user=user, **written)

    def everything() -> Iterator[RabbitmqPermissionDefinition | None]:
        names = in_order(documents.of_kind(DOCUMENT))
        return (None if name is None else shown(name) for name in names)

    def check(wanted: RabbitmqPermissionDefinition) -> RabbitmqPermissionDefinition:
        try:
            wanted_rules(wanted.user, _expressions(wanted))
        except Problem as problem:
            raise Refused(Reason.BAD_ARGUMENT, problem.reason) from None
        return wanted

    async def put(
        wanted: RabbitmqPermissionDefinition, _current: RabbitmqPermissionDefinition | None
    ) -> Position:
        return documents.put(DOCUMENT, wanted.user, _expressions(wanted))

    return Kind(
        section="rabbitmq_permissions",
        model=RabbitmqPermissionDefinition,
        name=lambda one: one.user,
        everything=everything,
        find=lambda one: shown(one.user),
        check=check,
        put=put,
        changing=frozenset({"configure", "write", "read"}),
        needs=lambda one: [Need(USERS, one.user)],
    )


def _expressions(wanted: RabbitmqPermissionDefinition) -> dict[str, Any]:
    return {"configure": wanted.configure, "write": wanted.write, "read": wanted.read}


def ban_kind(engine: Engine) -> Kind[BanDefinition]:
    """Bans that are in force. One that has ended meanwhile is not taken over."""
    bans = engine.bans

    def everything() -> Iterator[BanDefinition | None]:
        now = engine.core.clock_ms()
        for key in in_order({ban.key for ban in bans.entries()}):
            ban = None if key is None else bans.find(key)
            in_force = ban is not None and (ban.until_ms is None or ban.until_ms > now)
            yield msgspec.convert(ban, BanDefinition, from_attributes=True) if in_force else None

    def find(wanted: BanDefinition) -> BanDefinition | None:
        now = engine.core.clock_ms()
        if wanted.until_ms is not None and wanted.until_ms <= now:
            return wanted
        ban = bans.find(f"{wanted.kind}\x00{wanted.value}")
        if ban is None or (ban.until_ms is not None and ban.until_ms <= now):
            return None
        return BanDefinition(
            wanted.kind, wanted.value, ban.reason, ban.until_ms, ban.since_ms, ban.by
        )

    def check(wanted: BanDefinition) -> BanDefinition:
        value = bans.check_new(wanted.kind, wanted.value, wanted.reason)
        return msgspec.structs.replace(wanted, value=value)

    async def put(wanted: BanDefinition, _current: BanDefinition | None) -> Position:
        fields = msgspec.structs.asdict(wanted)
        return bans.add(fields.pop("kind"), fields.pop("value"), **fields)

    return Kind(
        section="bans",
        model=BanDefinition,
        name=lambda ban: f"{ban.kind} {ban.value}",
        everything=everything,
        find=find,
        check=check,
        put=put,
        changing=frozenset({"reason", "until_ms", "since_ms", "by"}),
    )
