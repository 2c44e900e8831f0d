"""Permissions that somebody else grants with a login: the claim of a token, or the answer of a
login service. Pure.

There are two forms, and both become rules of this broker (`permissions.py`):

* A list of objects, as `polymq permission` has them: `{"action": "publish", "pattern": "a.#"}`.
  `action` may be a list, and `"effect": "deny"` denies.
* An object of lists of MQTT topic filters, as EMQX's tokens have them: `{"pub": [...], "sub":
  [...], "all": [...]}`. To publish includes to create the topic by it. `${username}` and
  `${clientid}` stand for names where they are a whole level.

Rules:

* What cannot be said as rules that allow no more is an error of the whole: nobody comes in with
  half of the permissions.
* The rules belong to one login (`GrantedPrincipal`), beside those that are stored for a user of the
  name. They are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from polymq.broker.accounts.permissions import (
    ANONYMOUS,
    Action,
    BadPattern,
    Effect,
    Rule,
    exact_text,
    parse_pattern,
)
from polymq.broker.accounts.user import USER_NAME
from polymq.broker.port.values import Address

PERMISSIONS_MAX: Final = 200
"""Rules of one login."""
_PUBLISHING: Final = (Action.PUBLISH, Action.CREATE)
_OF_LISTS: Final[Mapping[str, tuple[Action, ...]]] = {
    "pub": _PUBLISHING,
    "sub": (Action.SUBSCRIBE,),
    "all": (*_PUBLISHING, Action.SUBSCRIBE),
}
_NAMES: Final = {"${username}": "{user}", "${clientid}": "{client_id}", "%u": "%u", "%c": "%c"}
_ACTIONS: Final[Mapping[str, Action]] = {action.value: action for action in Action}
_EFFECTS: Final[Mapping[str, Effect]] = {effect.value: effect for effect in Effect}
_SHOWN_MAX: Final = 100
_T = TypeVar("_T")


class BadPermissions(ValueError):
    """Not permissions; the text says what is wrong, for the log."""


class GrantedPrincipal(str):
    """The name of a user whose login somebody else decided. Equal to the plain name.

    Attributes:
        expires_at: when the connection has to end, in seconds since the epoch; infinity: never.
        rules: what it may do, beside what a stored user of the name may.
    """

    __slots__ = ("expires_at", "rules")

    expires_at: float
    rules: tuple[Rule, ...]

    def __new__(
        cls, name: str, expires_at: float = math.inf, rules: tuple[Rule, ...] = ()
    ) -> GrantedPrincipal:
        """A name, with what was granted."""
        made = super().__new__(cls, name)
        made.expires_at = expires_at
        made.rules = rules
        return made


def publisher_of(name: str, address: Address) -> GrantedPrincipal:
    """A principal that was granted to publish at one place, and has no other right left."""
    rules = tuple(
        Rule(subject=name, effect=Effect.ALLOW, action=action, pattern=address)
        for action in _PUBLISHING
    )
    return GrantedPrincipal(name, rules=rules)


def is_grantable(name: str) -> bool:
    """Whether somebody that is no stored user may have this name."""
    return name != ANONYMOUS and USER_NAME.fullmatch(name) is not None


def parse_permissions(value: Any, user: str) -> tuple[Rule, ...]:
    """The rules that a JSON value grants to a user.

    Raises:
        BadPermissions: it is in neither form, says what rules cannot say, or too much.
    """
    if isinstance(value, list):
        found = _of_list(value, user)
    elif isinstance(value, dict):
        found = _of_lists(value, user)
    else:
        raise BadPermissions(
            "permissions are a list of objects, or an object with the lists pub, sub and all"
        )
    rules: list[Rule] = []
    for rule in found:
        if len(rules) == PERMISSIONS_MAX:
            raise BadPermissions(f"a login has at most {PERMISSIONS_MAX} permissions")
        rules.append(rule)
    return tuple(rules)


def _of_list(listed: list[Any], user: str) -> Iterator[Rule]:
    for one in listed:
        if not isinstance(one, dict) or not {"action", "pattern"} <= one.keys():
            raise BadPermissions("a permission is an object with action and pattern")
        unknown = one.keys() - {"action", "pattern", "effect"}
        if unknown:
            raise BadPermissions(f"a permission has no {_shown(min(unknown))}")
        effect = _member(_EFFECTS, one.get("effect", "allow"), "effect")
        pattern = _pattern(one["pattern"])
        actions = one["action"] if isinstance(one["action"], list) else [one["action"]]
        for name in actions:
            action = _member(_ACTIONS, name, "action")
            yield Rule(subject=user, effect=effect, action=action, pattern=pattern)


def _of_lists(lists: Mapping[str, Any], user: str) -> Iterator[Rule]:
    for name, filters in lists.items():
        actions = _OF_LISTS.get(name)
        if actions is None:
            text = f"permissions have the lists pub, sub and all, and no {_shown(name)}"
            raise BadPermissions(text)
        if not isinstance(filters, list):
            raise BadPermissions(f"{name} is a list of topic filters")
        for text in filters:
            pattern = _filter(text)
            for action in actions:
                yield Rule(subject=user, effect=Effect.ALLOW, action=action, pattern=pattern)


def _pattern(text: Any) -> Address:
    if not isinstance(text, str):
        raise BadPermissions("a pattern is a text")
    try:
        return parse_pattern(text)
    except BadPattern as error:
        raise BadPermissions(str(error)) from error


def _filter(text: Any) -> Address:
    """A topic filter of MQTT as a pattern that matches nothing else."""
    if not isinstance(text, str) or not text:
        raise BadPermissions("a topic filter is a text that is not empty")
    levels = [_level(level, text) for level in text.split("/")]
    if levels[0].startswith("$"):
        raise BadPermissions(f"there are no topics like {_shown(text)} that could be allowed")
    return _pattern(exact_text("/".join(levels)))


def _level(level: str, text: str) -> str:
    if level in _NAMES:
        return _NAMES[level]
    if any(name in level for name in _NAMES):
        raise BadPermissions(f"a name has to be a whole level, unlike in {_shown(text)}")
    if any(letter in level for letter in "*{}"):
        raise BadPermissions(f"*, {{ and }} cannot be characters of a topic, as in {_shown(text)}")
    return level


def _member(members: Mapping[str, _T], name: Any, what: str) -> _T:
    found = members.get(name) if isinstance(name, str) else None
    if found is None:
        raise BadPermissions(f"{what} is one of {', '.join(members)}, and not {_shown(name)}")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
