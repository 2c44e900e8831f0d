"""Logins by a signed token in the place of a password.

Rules:

* What checks a token is given to the engine (`TokenChecker`); the engine knows no format.
* A token says who its user is, and the name that the client sends beside the token has to be the
  same, or empty. The user has to exist, unless the token grants permissions: then they are its
  bearer's, beside those of the user, and no user has to exist.
* A login by token counts and waits as any other (`logins.py`). A token is checked when its turn has
  come, in far less than a millisecond: with keys that are there, and without the network.
* Where the keys have to be fetched and are not there yet, a token is refused unchecked (LIMIT).
* A login ends when its token does: the principal says when (`GrantedPrincipal`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polymq.broker.accounts.granting import GrantedPrincipal, is_grantable
from polymq.broker.accounts.login_lines import Answer
from polymq.broker.accounts.logins import Logins
from polymq.broker.accounts.permissions import Rule
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token says.

    Attributes:
        expires_at: in seconds since the epoch.
        rules: what it grants; None: nothing is said, and the stored user's count alone.
    """

    user: str
    expires_at: float
    rules: tuple[Rule, ...] | None = None


class KeysMissing(Exception):
    """A token cannot be checked yet, for its key is still to come; the text says why."""


class BadToken(ValueError):
    """A token that nobody comes in with; the text says why, for the log."""


class TokenChecker(Protocol):
    """Knows the keys that tokens are signed with."""

    def is_token(self, password: bytes) -> bool:
        """Whether a password is a token by its form."""

    def claimed_user(self, token: bytes) -> str:
        """Who the token says it is of, unchecked: for counting failures. Empty if it does not."""

    def check_keys(self, token: bytes) -> None:
        """Whether the token can be checked now.

        Raises:
            KeysMissing: its key is being fetched.
        """

    def check(self, token: bytes, now: float) -> Token:
        """What it says, if it is signed as it should be and holds now (seconds since the epoch).

        Raises:
            BadToken: else.
        """


class TokenLogins:
    """See the head of this file.

    Args:
        now: seconds since the epoch.
    """

    def __init__(
        self, *, users: Users, logins: Logins, checker: TokenChecker, now: Callable[[], float]
    ) -> None:
        self._users = users
        self._logins = logins
        self._checker = checker
        self._now = now

    def accepts(self, password: bytes | None) -> bool:
        """Whether it is a token rather than a password."""
        return password is not None and self._checker.is_token(password)

    def check(
        self, user: str | None, token: bytes, address: str, answer: Answer
    ) -> Callable[[], None]:
        """See `AdmissionPort.authenticate`."""
        name = user or self._checker.claimed_user(token)
        found: list[Token] = []

        def is_proven() -> bool:
            try:
                found.append(self._checker.check(token, self._now()))
            except BadToken as error:
                self._logins.strangers.warn("token refused", address, user=name, reason=str(error))
                return False
            if found[0].user != name:
                return False
            return name in self._users.users or _grants(found[0])

        def known(principal: str | Refused) -> None:
            if not isinstance(principal, Refused):
                one = found[0]
                principal = GrantedPrincipal(principal, one.expires_at, one.rules or ())
            answer(principal)

        try:
            self._checker.check_keys(token)
        except KeysMissing as error:
            self._logins.refuse(name, address, answer, str(error))
            return _nothing
        return self._logins.check_proof(name, is_proven, address, known, stored_only=False)


def _grants(token: Token) -> bool:
    """Whether its bearer need not be a stored user."""
    return token.rules is not None and is_grantable(token.user)


def _nothing() -> None:
    """There is nothing to withdraw."""
