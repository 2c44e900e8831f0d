"""One user as a value, and as a row of the state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.broker.accounts import access_keys, passwords, quotas
from polymq.broker.accounts.access_keys import AccessKey
from polymq.broker.accounts.quotas import Quotas

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Of a user or a role."""
USER_NAME: Final = re.compile(rf"{NAME.pattern}|[A-Za-z]{{1,8}}=[A-Za-z0-9 ._@=,+\\-]{{1,119}}")
"""A user may also be named as the subject of a certificate is (RFC 4514): `CN=sensor7,O=Plant`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user.

    Attributes:
        password_hash: as `passwords.make_hash` gives it, the keys of SCRAM included.
        access_keys: what its programs sign with, oldest first.
        disabled: it exists, and cannot log in.
        number: tells it from others that had the name before and were deleted; 0 for users that
            were made before there were numbers.
    """

    name: str
    password_hash: str = field(repr=False)
    roles: tuple[str, ...] = ()
    quotas: Quotas = quotas.DEFAULT
    access_keys: tuple[AccessKey, ...] = ()
    disabled: bool = False
    number: int = 0


def user_row(user: User) -> dict[str, Any]:
    """The user without its name, as a JSON value."""
    digest, keys = passwords.split(user.password_hash)
    row: dict[str, Any] = {
        "hash": digest,
        "roles": list(user.roles),
        "quotas": user.quotas.row(),
        "disabled": user.disabled,
    }
    if keys:
        row["scram"] = keys  # apart, because versions before it read `hash` only
    if user.access_keys:
        row["keys"] = access_keys.rows(user.access_keys)
    if user.number:
        row["n"] = user.number
    return row


def user_from(name: str, row: Mapping[str, Any]) -> User:
    """The user of a row."""
    return User(
        name=name,
        password_hash=passwords.join(row["hash"], row.get("scram", "")),
        roles=tuple(row["roles"]),
        quotas=quotas.from_row(row["quotas"]),
        access_keys=access_keys.from_row(row),
        disabled=row["disabled"],
        number=row.get("n", 0),
    )
