"""What a service is asked about a login, and what it answers. Pure.

Beside `result` (`service_answers.py`), where `ignore` means that the users that are stored here
decide, the answer may have:

* `permissions`: in either form of `granting.py`; `superuser`: whether it may do everything.
* `expires_in`: seconds after which the login ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.permissions import ADMIN_RULES, Rule
from polymq.broker.accounts.service_answers import BadAnswer, Result, parse_result, shown
from polymq.broker.port.principals import Origin

SECONDS_MAX: Final = 10 * 365 * 86_400
_FIELDS: Final = frozenset({"permissions", "superuser", "expires_in"})


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
    result, value = parse_result(content, _FIELDS)
    superuser = value.get("superuser", False)
    if not isinstance(superuser, bool):
        raise BadAnswer("superuser is true or false")
    seconds = value.get("expires_in")
    if seconds is not None and not _is_duration(seconds):
        raise BadAnswer(f"expires_in is a number of seconds, and not {shown(seconds)}")
    if result is not Result.ALLOW:
        return Verdict(result=result)
    try:
        rules = parse_permissions(value.get("permissions", []), user)
    except BadPermissions as error:
        raise BadAnswer(f"its permissions cannot be taken: {error}") from error
    if superuser:
        rules += tuple(replace(rule, subject=user) for rule in ADMIN_RULES)
    return Verdict(result=result, rules=rules, seconds=seconds)


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= SECONDS_MAX
