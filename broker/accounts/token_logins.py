"""Logins by a signed token in the place of a password.

Rules:

* What checks a token is given to the engine (`TokenChecker`); the engine knows no format.
* A token says who its user is. That user has to exist, and the name that the client sends beside
  the token has to be the same, or empty.
* A login by token counts and waits as any other (`logins.py`). A token is checked when its turn has
  come, in far less than a millisecond: with keys that are there, and without the network.
* A login ends when its token does: the principal says when (`TokenPrincipal`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polymq.broker.accounts.login_lines import Answer
from polymq.broker.accounts.logins import Logins
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token says.

    Attributes:
        expires_at: in seconds since the epoch.
    """

    user: str
    expires_at: float


class BadToken(ValueError):
    """A token that nobody comes in with; the text says why, for the log."""


class TokenChecker(Protocol):
    """Knows the keys that tokens are signed with."""

    def is_token(self, password: bytes) -> bool:
        """Whether a password is a token by its form."""

    def claimed_user(self, token: bytes) -> str:
        """Who the token says it is of, unchecked: for counting failures. Empty if it does not."""

    def check(self, token: bytes, now: float) -> Token:
        """What it says, if it is signed as it should be and holds now (seconds since the epoch).

        Raises:
            BadToken: else.
        """


class TokenPrincipal(str):
    """The name of a user that logged in by a token.

    Attributes:
        expires_at: when the connection has to end, in seconds since the epoch.
    """

    __slots__ = ("expires_at",)

    expires_at: float

    def __new__(cls, name: str, expires_at: float) -> TokenPrincipal:
        """A name, with the time."""
        made = super().__new__(cls, name)
        made.expires_at = expires_at
        return made


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
            return found[0].user == name

        def known(principal: str | Refused) -> None:
            if not isinstance(principal, Refused):
                principal = TokenPrincipal(principal, found[0].expires_at)
            answer(principal)

        return self._logins.check_proof(name, is_proven, address, known)
