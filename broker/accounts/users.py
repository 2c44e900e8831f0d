"""Users, their roles and quotas, and the rules: one set for all protocols, kept in the log.

Rules:

* A user is its name, the hash of its password, its roles and its quotas. Names are ASCII without
  colon, so that every protocol can say them (HTTP Basic splits at the colon, RFC 7617).
* A rule belongs to a user or to a role. A role is a name that rules and users share, nothing more.
* A change takes effect when it is written, which is before it is answered. `version` counts the
  changes: whoever keeps a decision compares it.
* Deleting a user deletes its rules: who gets the name later inherits nothing.
* The hash never leaves this file but to `logins.py`; nothing here logs it, nor an access key's
  secret (`access_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from polymq.broker.accounts import access_keys, passwords
from polymq.broker.accounts.access_keys import AccessKey, KeyRing
from polymq.broker.accounts.granting import GrantedPrincipal
from polymq.broker.accounts.permissions import (
    ADMIN_ROLE,
    ANONYMOUS,
    ROLE_RULES,
    Action,
    Effect,
    Rule,
    RuleSet,
    format_pattern,
)
from polymq.broker.accounts.quotas import Quotas
from polymq.broker.accounts.user import NAME, USER_NAME, User, user_from, user_row
from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.values import Address, Position
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each

ROLE_PREFIX: Final = "role:"
_NAME_TEXT: Final = (
    "is 1 to 64 letters, digits, '.', '_', '@' and '-', and begins with a letter or digit"
)
_USER_NAME_TEXT: Final = (
    f"{_NAME_TEXT}; or it is a certificate's subject, such as CN=sensor7,O=Plant, with at most "
    "119 letters, digits, blanks and characters of `._@=,+\\-` after the first `=`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What was changed, for those who act on it at once.

    Attributes:
        subject: the user, or `role:` and the role, whose rights may be others now.
        expels: why the user's connections have to end; None if they may stay.
        access_key: only those that came with this key have to.
        ended: the user does not exist any more.
        opens_or_closes: the first user came, or the last one went: all are concerned.
    """

    subject: str
    expels: str | None = None
    access_key: str | None = None
    ended: bool = False
    opens_or_closes: bool = False


class Users:
    """All users and rules.

    Attributes:
        version: grows with every change.
        outsiders: whether clients have to log in even without stored users, because somebody else
            says who they are, or what they may do.
        ring: all access keys.
        on_change: called after a change that was made now (not by a fold at the start).
    """

    def __init__(self, core: Core, *, outsiders: bool = False) -> None:
        self.core = core
        self.users: dict[str, User] = {}
        self.version = 1
        self.outsiders = outsiders
        self.ring = KeyRing()
        self.on_change: Callable[[Change], None] = lambda change: None
        self._rules: dict[str, Rule] = {}  # by the key of their row
        self._by_subject: dict[str, dict[str, Rule]] = {}
        self._sets: dict[str, RuleSet] = {}  # of principals, as of `version`
        for name, handler in (
            ("user=", self._apply_user),
            ("user-", self._apply_user_end),
            ("rule+", self._apply_rule),
            ("rule-", self._apply_rule_end),
        ):
            core.journal.handle(name, handler)

    # --- users ----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether clients have to log in."""
        return self.outsiders or bool(self.users)

    def need(self, name: str) -> User:
        """The user, or Refused NOT_FOUND."""
        user = self.users.get(name)
        if user is None:
            raise Refused(Reason.NOT_FOUND, f"there is no user {name!r}")
        return user

    def check_new(self, name: str) -> None:
        """Whether a user of this name can be made. Raises Refused."""
        if USER_NAME.fullmatch(name) is None:
            raise Refused(Reason.BAD_NAME, f"a user's name {_USER_NAME_TEXT}")
        if name == ANONYMOUS:
            raise Refused(
                Reason.BAD_NAME,
                f"{ANONYMOUS!r} stands for clients that name no user: choose another name",
            )
        if name in self.users:
            raise Refused(Reason.DIFFERENT, f"user {name!r} exists: change it, or delete it first")
        if len(self.users) >= self.core.limits.users_max:
            raise Refused(
                Reason.LIMIT, f"there are {len(self.users)} users, which is the limit: delete some"
            )

    def add(self, name: str, password_hash: str, roles: Sequence[str] = ()) -> Position:
        """Make a user. Raises Refused: BAD_NAME, DIFFERENT (it exists), LIMIT."""
        self.check_new(name)
        self._check_roles(roles)
        first = not self.users
        self.core.check_writable()
        position = self._write(
            User(
                name=name,
                password_hash=password_hash,
                roles=_canonical(roles),
                number=self.core.take_number(),
            )
        )
        self.on_change(Change(subject=name, opens_or_closes=first))
        return position

    def delete(self, name: str) -> Position:
        """Delete a user with its rules. Its connections end. Raises Refused: NOT_FOUND."""
        self.need(name)
        self.core.check_writable()
        position = self.core.journal.write({"op": "user-", "name": name})
        self.on_change(
            Change(
                subject=name,
                expels="the user was deleted",
                ended=True,
                opens_or_closes=not self.users,
            )
        )
        return position

    def set_password(self, name: str, password_hash: str) -> Position:
        """Another password: connections made with the old one end. Raises Refused: NOT_FOUND."""
        position = self._write(replace(self.need(name), password_hash=password_hash))
        self.on_change(Change(subject=name, expels="the password was changed"))
        return position

    def renew_hash(self, name: str, password_hash: str) -> Position:
        """Another form of the same password: nobody has to go. Raises Refused: NOT_FOUND."""
        return self._write(replace(self.need(name), password_hash=password_hash))

    def set_disabled(self, name: str, disabled: bool) -> Position:
        """Keep a user out, or let it in again. Raises Refused: NOT_FOUND."""
        position = self._write(replace(self.need(name), disabled=disabled))
        self.on_change(Change(subject=name, expels="the user was disabled" if disabled else None))
        return position

    def set_roles(self, name: str, roles: Sequence[str]) -> Position:
        """The user has these roles from now on. Raises Refused: NOT_FOUND, BAD_NAME, LIMIT."""
        user = self.need(name)
        self._check_roles(roles)
        position = self._write(replace(user, roles=_canonical(roles)))
        self.on_change(Change(subject=name))
        return position

    def set_quotas(self, name: str, wanted: Quotas) -> Position:
        """Other quotas; what is there already stays. Raises Refused: NOT_FOUND."""
        position = self._write(replace(self.need(name), quotas=wanted))
        self.on_change(Change(subject=name))
        return position

    def add_access_key(self, name: str, key: str, secret: str) -> Position:
        """The user's programs may sign with this key, too. Raises Refused: NOT_FOUND, BAD_NAME,
        DIFFERENT (it is somebody's), LIMIT."""
        user = self.need(name)
        if access_keys.KEY.fullmatch(key) is None:
            raise Refused(Reason.BAD_NAME, "an access key has 8 to 64 letters and digits")
        if key in self.ring:
            raise Refused(Reason.DIFFERENT, "this access key is in use: choose another")
        most = self.core.limits.access_keys_per_user_max
        if len(user.access_keys) >= most:
            raise Refused(
                Reason.LIMIT, f"user {name!r} has {most} access keys: remove one that is not used"
            )
        new = AccessKey(name=key, secret=secret, created_ms=self.core.clock_ms())
        return self._write(replace(user, access_keys=(*user.access_keys, new)))

    def remove_access_key(self, name: str, key: str) -> Position:
        """Nobody may sign with this key any more: connections that did end. Raises Refused:
        NOT_FOUND."""
        user = self.need(name)
        left = tuple(one for one in user.access_keys if one.name != key)
        if len(left) == len(user.access_keys):
            raise Refused(Reason.NOT_FOUND, f"user {name!r} has no access key {key!r}")
        position = self._write(replace(user, access_keys=left))
        self.on_change(Change(subject=name, expels="its access key was removed", access_key=key))
        return position

    def restore(self, wanted: User) -> Position:
        """Make a user, or let one become, what another broker has stored, in one record.

        Connections end as after each change by itself: those with another password, those of a
        user who is disabled, and those that came with an access key that is gone.

        Raises:
            Refused: BAD_NAME, BAD_ARGUMENT, DIFFERENT (an access key is somebody else's), LIMIT.
        """
        before = self.users.get(wanted.name)
        if before is None:
            self.check_new(wanted.name)
        self.check_stored(wanted)
        self.core.check_writable()
        first = not self.users
        number = self.core.take_number() if before is None else before.number
        position = self._write(replace(wanted, roles=_canonical(wanted.roles), number=number))
        expels = None
        if before is not None and before.password_hash != wanted.password_hash:
            expels = "the password was changed"
        if wanted.disabled:
            expels = "the user was disabled"
        self.on_change(Change(subject=wanted.name, expels=expels, opens_or_closes=first))
        left = {key.name for key in wanted.access_keys}
        for key in () if before is None else before.access_keys:
            if key.name not in left:
                gone = "its access key was removed"
                self.on_change(Change(subject=wanted.name, expels=gone, access_key=key.name))
        return position

    def check_stored(self, wanted: User) -> None:
        """Whether a user can have what is stored of this one. Raises Refused."""
        self._check_roles(wanted.roles)
        if not passwords.is_stored_form(wanted.password_hash):
            raise Refused(Reason.BAD_ARGUMENT, "its password_hash is no hash that logins can check")
        keys = wanted.access_keys
        most = self.core.limits.access_keys_per_user_max
        if len(keys) > most:
            raise Refused(Reason.LIMIT, f"a user has at most {most} access keys")
        if len({key.name for key in keys}) < len(keys):
            raise Refused(Reason.BAD_ARGUMENT, "it has the same access key twice")
        for key in keys:
            if access_keys.KEY.fullmatch(key.name) is None or not key.secret:
                raise Refused(Reason.BAD_NAME, "an access key has 8 to 64 letters and digits")
            if self.ring.owner(key.name) not in (None, wanted.name):
                raise Refused(Reason.DIFFERENT, f"access key {key.name} is another user's")

    def _check_roles(self, roles: Sequence[str]) -> None:
        for role in roles:
            if NAME.fullmatch(role) is None:
                raise Refused(Reason.BAD_NAME, f"a role's name {_NAME_TEXT}")
            if role == ANONYMOUS:
                raise Refused(
                    Reason.BAD_NAME, f"role {ANONYMOUS!r} is for clients that name no user"
                )
        if len(set(roles)) > self.core.limits.roles_per_user_max:
            raise Refused(
                Reason.LIMIT, f"a user has at most {self.core.limits.roles_per_user_max} roles"
            )

    def _write(self, user: User) -> Position:
        self.core.check_writable()
        return self.core.journal.write({"op": "user=", "name": user.name, **user_row(user)})

    def _apply_user(self, op: Op) -> Touched:
        self.load_user(op["name"], op)
        return [("user", op["name"])]

    def _apply_user_end(self, op: Op) -> Touched:
        name = op["name"]
        self._put(name, None)
        touched = [("user", name)]
        for key in self._by_subject.pop(name, {}):
            del self._rules[key]
            touched.append(("rule", key))
        self._changed()
        return touched

    # --- rules ----------------------------------------------------------------------------

    def rules(self, subject: str) -> list[Rule]:
        """The rules of one subject, in the order of their text."""
        found = self._by_subject.get(subject, {})
        return [found[key] for key in sorted(found)]

    def rule_table(self, subject: str | None = None) -> Mapping[str, Rule]:
        """All rules, or those of one subject, by their text, in no order. The table changes with
        them."""
        return self._rules if subject is None else self._by_subject.get(subject, {})

    def add_rule(self, rule: Rule) -> Position:
        """Add a rule; the same rule twice is one.

        Raises:
            Refused: NOT_FOUND (no such user), BAD_NAME, LIMIT.
        """
        self.check_new_rules(rule.subject, [rule])
        self.core.check_writable()
        position = self.core.journal.write({"op": "rule+", **_rule_row(rule)})
        self.on_change(Change(subject=rule.subject))
        return position

    def check_new_rules(self, subject: str, rules: Collection[Rule]) -> None:
        """Whether all of these rules of one subject can be added. Raises Refused as `add_rule`."""
        self.check_subject(subject)
        limits = self.core.limits
        count = len({key for rule in rules if (key := _key(rule)) not in self._rules})
        if not count:
            return
        if len(self._rules) + count > limits.rules_max:
            text = f"there are {len(self._rules)} rules, and {limits.rules_max} is the limit"
            raise Refused(Reason.LIMIT, f"{text}: remove some")
        if len(self._by_subject.get(subject, ())) + count > limits.rules_per_subject_max:
            text = f"{subject} can have {limits.rules_per_subject_max} rules"
            raise Refused(Reason.LIMIT, f"{text}: use wildcards, or a role")

    def remove_rule(self, rule: Rule) -> Position:
        """Remove a rule. Raises Refused: NOT_FOUND."""
        if _key(rule) not in self._rules:
            raise Refused(Reason.NOT_FOUND, f"there is no rule `{rule}`")
        self.core.check_writable()
        position = self.core.journal.write({"op": "rule-", **_rule_row(rule)})
        self.on_change(Change(subject=rule.subject))
        return position

    def has_rule(self, rule: Rule) -> bool:
        """Whether there is this rule."""
        return _key(rule) in self._rules

    def check_subject(self, subject: str, *, needs_user: bool = True) -> None:
        """Whether there can be a rule of this subject. Raises Refused.

        Args:
            needs_user: whether a user has to be there already.
        """
        role = subject.removeprefix(ROLE_PREFIX)
        if role != subject:
            if NAME.fullmatch(role) is None:
                raise Refused(Reason.BAD_NAME, f"a role's name {_NAME_TEXT}")
            if role == ADMIN_ROLE:
                raise Refused(
                    Reason.FORBIDDEN, f"role {ADMIN_ROLE!r} may do everything: use another role"
                )
        elif subject == ANONYMOUS:
            raise Refused(Reason.NOT_FOUND, f"write {ROLE_PREFIX}{ANONYMOUS}")
        elif needs_user:
            self.need(subject)

    def _apply_rule(self, op: Op) -> Touched:
        rule = _rule_from(op)
        self.load_rule(_key(rule), op)
        return [("rule", _key(rule))]

    def _apply_rule_end(self, op: Op) -> Touched:
        rule = _rule_from(op)
        key = _key(rule)
        self._rules.pop(key, None)
        of_subject = self._by_subject.get(rule.subject, {})
        of_subject.pop(key, None)
        if not of_subject:
            self._by_subject.pop(rule.subject, None)
        self._changed()
        return [("rule", key)]

    # --- who may what ---------------------------------------------------------------------

    def rule_set(self, name: str) -> RuleSet:
        """The rules of a principal: a user with its roles, or who comes without a name."""
        found = self._sets.get(name)
        if found is None:
            if len(self._sets) >= self.core.limits.rule_sets_max:
                self._sets.clear()
            found = self._sets[name] = RuleSet(self._rules_of(name), user=self._user_name(name))
        return found

    def granted_rule_set(self, principal: GrantedPrincipal) -> RuleSet:
        """The rules that came with a login, beside those that are stored for its name. A user that
        is disabled has none."""
        user = self.users.get(principal)
        granted = () if user is not None and user.disabled else principal.rules
        return RuleSet([*self._rules_of(principal), *granted], user=self._user_name(principal))

    def _user_name(self, name: str) -> str | None:
        return None if name == ANONYMOUS else name

    def _rules_of(self, name: str) -> list[Rule]:
        if name == ANONYMOUS:
            return self.rules(ROLE_PREFIX + ANONYMOUS)
        user = self.users.get(name)
        if user is None or user.disabled:
            return []
        found = self.rules(name)
        for role in user.roles:
            found += self.rules(ROLE_PREFIX + role)
            found += ROLE_RULES.get(role, ())
        return found

    def concerns(self, change: Change, name: str) -> bool:
        """Whether a change may be one for the principal."""
        if change.opens_or_closes or change.subject == name:
            return True
        role = change.subject.removeprefix(ROLE_PREFIX)
        if role == change.subject:
            return False
        if name == ANONYMOUS:
            return role == ANONYMOUS
        user = self.users.get(name)
        return user is not None and role in user.roles

    def _put(self, name: str, user: User | None) -> None:
        before = self.users.pop(name, None)
        if user is not None:
            self.users[name] = user
        had = () if before is None else before.access_keys
        self.ring.replace(name, had, () if user is None else user.access_keys)

    def _changed(self) -> None:
        self.version += 1
        self._sets.clear()

    # --- snapshot -------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (
            StateKind("user", self.row_user, each(self.load_user)),
            StateKind("rule", self.row_rule, each(self.load_rule)),
        )

    def load_user(self, name: str, value: Mapping[str, Any]) -> None:
        """Take a user from its op or its snapshot."""
        user = user_from(name, value)
        self.core.saw_number(user.number)
        self._put(name, user)
        self._changed()

    def row_user(self, name: str) -> Mapping[str, Any] | None:
        """The user as a JSON value for the snapshot."""
        user = self.users.get(name)
        return None if user is None else user_row(user)

    def load_rule(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a rule from its op or its snapshot."""
        rule = _rule_from(value)
        self._rules[key] = rule
        self._by_subject.setdefault(rule.subject, {})[key] = rule
        self._changed()

    def row_rule(self, key: str) -> Mapping[str, Any] | None:
        """The rule as a JSON value for the snapshot."""
        rule = self._rules.get(key)
        return None if rule is None else _rule_row(rule)


def _canonical(roles: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(roles)))


def _key(rule: Rule) -> str:
    pattern = format_pattern(rule.pattern)
    return f"{rule.subject}\x00{rule.effect.value}\x00{rule.action.value}\x00{pattern}"


def _rule_row(rule: Rule) -> dict[str, Any]:
    return {
        "s": rule.subject,
        "e": rule.effect.value,
        "a": rule.action.value,
        "w": list(rule.pattern),
    }


def _rule_from(value: Mapping[str, Any]) -> Rule:
    pattern: Address = tuple(value["w"])
    return Rule(
        subject=value["s"],
        effect=Effect(value["e"]),
        action=Action(value["a"]),
        pattern=pattern,
    )
