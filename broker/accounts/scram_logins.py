"""Logins by SCRAM: exchanges that clients have begun, and whether they prove what they should.

Rules:

* At most `exchanges_pending_max` exchanges are under way; whoever begins one ends it (`end`).
* A user that is not there, is disabled, or has no keys yet gets a decoy. The secret that decoys are
  made with is in the log: a salt that changed with a restart would tell that nobody has it. It is
  written when the first exchange begins.
* The proof is checked against the keys that the user has at that moment: a password that was
  changed meanwhile is wrong.
* Guesses are slowed as those of passwords are (`logins.py`).
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Final

from polymq.broker.accounts import passwords, scram
from polymq.broker.accounts.login_lines import Answer
from polymq.broker.accounts.logins import Logins
from polymq.broker.accounts.scram import BadExchange, Exchange, Keys
from polymq.broker.accounts.users import Users
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.documents import DocumentPort

_KIND: Final = "logins"
_KEY: Final = "decoys"


class ScramLogins:
    """See the head of this file.

    Args:
        random_bytes: for nonces and for the secret.
        iterations: see `iterations`.

    Attributes:
        iterations: of decoys, and of the keys that are made now; 0: there is no SCRAM.
    """

    def __init__(
        self,
        *,
        users: Users,
        logins: Logins,
        documents: DocumentPort,
        random_bytes: Callable[[int], bytes],
        pending_max: int,
        iterations: int,
    ) -> None:
        self._users = users
        self._logins = logins
        self._documents = documents
        self._random_bytes = random_bytes
        self._pending_max = pending_max
        self.iterations = iterations
        self._fallback = random_bytes(32)  # while the log takes nothing
        self.pending_count = 0
        """Exchanges that are under way."""

    @property
    def is_offered(self) -> bool:
        """Whether clients may use it."""
        return bool(self.iterations)

    def begin(self, first: bytes, unless_banned: Callable[[Answer], Answer]) -> ScramLogin:
        """See `AdmissionPort.begin_exchange`.

        Args:
            unless_banned: makes of an answer one that looks for bans first.
        """
        if self.pending_count >= self._pending_max:
            raise Refused(
                Reason.LIMIT, "too many logins by SCRAM are under way: try again in a moment"
            )
        nonce = base64.b64encode(self._random_bytes(scram.NONCE_BYTES))
        try:
            exchange = Exchange(first, keys_of=self._keys_of, nonce=nonce)
        except BadExchange as error:
            raise Refused(Reason.NOT_AUTHENTICATED, f"SCRAM failed: {error}") from error
        self.pending_count += 1
        return ScramLogin(self, exchange, unless_banned)

    def ended(self) -> None:
        """An exchange has."""
        self.pending_count -= 1

    def check(self, login: ScramLogin, final: bytes, address: str, answer: Answer) -> Withdraw:
        """See `LoginExchange.finish`."""
        exchange = login.exchange

        def is_proven() -> bool:
            try:
                login.last_message = exchange.finish(final) or b""
            except BadExchange:
                return False
            return bool(login.last_message) and self._keys_of(exchange.user) == exchange.keys

        return self._logins.check_proof(exchange.user, is_proven, address, answer)

    def _keys_of(self, name: str) -> Keys:
        user = self._users.users.get(name)
        keys = None if user is None else passwords.scram_keys(user.password_hash)
        # Made for every name, so that all cost the same.
        decoy = scram.decoy(name, self._secret(), self.iterations)
        return decoy if user is None or user.disabled or keys is None else keys

    def _secret(self) -> bytes:
        row = self._documents.of_kind(_KIND).get(_KEY)
        if row is not None:
            return bytes.fromhex(row["secret"])
        with contextlib.suppress(Refused):
            self._documents.put(_KIND, _KEY, {"secret": self._fallback.hex()})
        return self._fallback


Withdraw = Callable[[], None]


class ScramLogin:
    """One exchange: `port.LoginExchange`."""

    __slots__ = ("_has_ended", "_logins", "_unless_banned", "exchange", "last_message")

    def __init__(
        self, logins: ScramLogins, exchange: Exchange, unless_banned: Callable[[Answer], Answer]
    ) -> None:
        self._logins = logins
        self._unless_banned = unless_banned
        self._has_ended = False
        self.exchange = exchange
        self.last_message = b""

    @property
    def user(self) -> str:
        """See `LoginExchange`."""
        return self.exchange.user

    @property
    def challenge(self) -> bytes:
        """See `LoginExchange`."""
        return self.exchange.challenge

    def finish(self, final: bytes, address: str, answer: Answer) -> Withdraw:
        """See `LoginExchange.finish`."""
        return self._logins.check(self, final, address, self._unless_banned(answer))

    def end(self) -> None:
        """See `LoginExchange.end`."""
        if not self._has_ended:
            self._has_ended = True
            self._logins.ended()
