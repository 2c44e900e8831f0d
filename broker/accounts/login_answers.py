"""What a service is asked about a login, and what it answers. Pure.

The answer is a JSON object:

* `result`: `allow`, `deny`, or `ignore`: the users that are stored here decide.
* `permissions`: in either form of `granting.py`; `superuser`: whether it may do everything.
* `expires_in`: seconds after which the login ends.

Rule: an answer that is not exactly this decides nothing, and so does one with a field that is not
known: it may be a misspelt `permissions`.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.permissions import ADMIN_RULES, Rule
from polymq.broker.port.principals import Origin

SECONDS_MAX: Final = 10 * 365 * 86_400
_FIELDS: Final = {"result", "permissions", "superuser", "expires_in"}
_SHOWN_MAX: Final = 60


class Result(enum.Enum):
    """What the service decides."""

    ALLOW = "allow"
    DENY = "deny"
    IGNORE = "ignore"


class BadAnswer(ValueError):
    """Not an answer; the text says what is wrong, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A login that a service is asked about."""

    user: str
    password: str = field(repr=False)
    address: str
    origin: Origin

    def content(self) -> bytes:
        """It as a JSON object."""
        value = {
            "user": self.user,
            "password": self.password,
            "client_id": self.origin.client_id,
            "protocol": self.origin.protocol,
            "address": self.address,
            "mount_point": self.origin.mount_point,
            "certificate": self.origin.certificate(),
        }
        return json.dumps(value).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a service has answered.

    Attributes:
        rules: of one that comes in.
        seconds: until its login ends; None: it does not.
    """

    result: Result
    rules: tuple[Rule, ...] = ()
    seconds: float | None = None


def parse_answer(content: bytes, user: str) -> Verdict:
    """The answer about a login of this user.

    Raises:
        BadAnswer: it is none.
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_object)
    except BadAnswer:
        raise
    except (ValueError, RecursionError) as error:
        raise BadAnswer("it is not JSON in UTF-8") from error
    if not isinstance(value, dict):
        raise BadAnswer("it is no object")
    unknown = value.keys() - _FIELDS
    if unknown:
        raise BadAnswer(f"it has a field {_shown(min(unknown))}, which is not known")
    try:
        result = Result(value.get("result"))
    except ValueError:
        shown = _shown(value.get("result"))
        raise BadAnswer(f"result is one of allow, deny and ignore, and not {shown}") from None
    superuser = value.get("superuser", False)
    if not isinstance(superuser, bool):
        raise BadAnswer("superuser is true or false")
    seconds = value.get("expires_in")
    if seconds is not None and not _is_duration(seconds):
        raise BadAnswer(f"expires_in is a number of seconds, and not {_shown(seconds)}")
    if result is not Result.ALLOW:
        return Verdict(result=result)
    try:
        rules = parse_permissions(value.get("permissions", []), user)
    except BadPermissions as error:
        raise BadAnswer(f"its permissions cannot be taken: {error}") from error
    if superuser:
        rules += tuple(replace(rule, subject=user) for rule in ADMIN_RULES)
    return Verdict(result=result, rules=rules, seconds=seconds)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises BadAnswer: which of two fields of a name counts is anybody's guess."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadAnswer(f"it has a field {_shown(name)} twice")
        found[name] = value
    return found


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= SECONDS_MAX


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
