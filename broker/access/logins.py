"""Is this the user that it says it is? Checks passwords, off the loop and at a bounded pace; and
signatures, at once (`access_keys.py` has their rules).

Rules:

* Hashing runs in worker threads, at most as many at once as they are (two), and at most
  `logins_pending_max` wait. Beyond that a login is told to come again.
* A login that was right is remembered for `login_cache_seconds` under a keyed digest of name and
  password, so that a client that comes back, or asks over HTTP, costs no hash. It counts only as
  long as the user's hash is the one that it was checked against: any change drops it.
* The same login by many at once (a fleet that reconnects) is checked once for all of them.
* An unknown user, a disabled one and a wrong password cost the same work and get the same answer.
* After `login_failures_max` failures of one (address, user) within a minute, its next login waits
  before it is looked at: 1 s, then twice as long each time, up to a minute; and while one waits,
  others of that pair are refused. This comes before the cache, which would otherwise tell at once
  which guess is right.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from broker.access import audit, passwords
from broker.access.users import Users
from broker.core import Scheduler
from broker.errors import Reason, Refused
from broker.limits import Limits

Answer = Callable[[str | Refused], None]
"""Told once: the principal, or why there is none."""

WRONG: Final = "user or password is wrong"
WRONG_SIGNATURE: Final = (
    "there is no such access key, or the signature is not made with its secret key: check both in "
    "the client, or have a new pair made with `polymq user access-key add NAME`"
)
_SLOW_DOWN: Final = "too many logins failed: wait a minute, then try again"


class Hashers(Protocol):
    """Worker threads for hashing."""

    def submit(
        self,
        read: Callable[[], bytes],
        done: Callable[[bytes | None, Exception | None], None],
    ) -> None:
        """Run `read` in a thread, then `done` on the loop."""


@dataclass(slots=True)
class _Failures:
    """Of one (address, user)."""

    count: int = 0
    last: float = 0.0
    waiting: bool = False  # one login is held back; others are refused meanwhile


@dataclass(slots=True, frozen=True)
class _Known:
    """A login that was right."""

    password_hash: str
    until: float


class Logins:
    """Checks of passwords.

    Args:
        hashers: threads of their own, so that a flood of logins slows no read of history.
        now: seconds, of any clock.
        secret: key of the cache's digests, random for each start.
    """

    def __init__(
        self,
        *,
        users: Users,
        scheduler: Scheduler,
        hashers: Hashers,
        now: Callable[[], float],
        limits: Limits,
        secret: bytes,
    ) -> None:
        self._users = users
        self._scheduler = scheduler
        self._hashers = hashers
        self._now = now
        self._limits = limits
        self._secret = secret
        self._known: dict[bytes, _Known] = {}  # oldest first
        self._failures: dict[tuple[str, str], _Failures] = {}  # least recent first
        self._pending: dict[bytes, list[Answer]] = {}  # logins that are being hashed
        self._trying: dict[tuple[str, str], int] = {}  # of them, by (address, user)
        self.strangers = audit.Throttle(now)
        """Where failed logins are logged."""
        self.failed_count = 0
        """Logins that were wrong (a metric)."""
        self.hashed_count = 0
        """Passwords that were hashed (a metric)."""

    def check(self, user: str, password: bytes, address: str, answer: Answer) -> None:
        """Is it the user? `answer` is called with its name, or with Refused: NOT_AUTHENTICATED,
        LIMIT. It may be called during this call.

        Args:
            address: where the client is, without its port.
        """
        pair = (address, user[:64])
        failures = self._failures_of(pair)
        if failures is None:
            self._look_up(user, password, pair, answer)
        elif failures.waiting:
            self._failed(user, pair, answer, Refused(Reason.NOT_AUTHENTICATED, _SLOW_DOWN), 0)
        else:
            failures.waiting = True
            over = failures.count - self._limits.login_failures_max
            seconds = min(2.0 ** max(0, min(over, 16)), self._limits.login_delay_seconds_max)
            self._scheduler.call_later(
                seconds, partial(self._waited, failures, user, password, pair, answer)
            )

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """The user whose access key signed the content. Takes microseconds, so it is done at once.
        Raises Refused: NOT_AUTHENTICATED."""
        name = self._users.ring.signer(access_key, content, digest)
        if name is None or self._users.users[name].disabled:
            self.failed_count += 1
            self.strangers.warn(
                "login failed", address, access_key=access_key, reason="the signature is wrong"
            )
            raise Refused(Reason.NOT_AUTHENTICATED, WRONG_SIGNATURE)
        return name

    def hash_new(self, password: bytes, salt: bytes, done: Callable[[str | Refused], None]) -> None:
        """Hash a password that is to be set, in a thread. Refused: BAD_ARGUMENT."""
        try:
            passwords.check_new(password)
        except passwords.BadPassword as error:
            done(Refused(Reason.BAD_ARGUMENT, str(error)))
            return

        def hashed(result: bytes | None, error: Exception | None) -> None:
            if result is None:
                done(Refused(Reason.LIMIT, f"the password could not be hashed: {error}"))
            else:
                done(result.decode())

        self._hashers.submit(lambda: passwords.make_hash(password, salt).encode(), hashed)

    # --- failures -------------------------------------------------------------------------

    def _failures_of(self, pair: tuple[str, str]) -> _Failures | None:
        """Its failures if it has to wait; logins under way count, lest they all slip through."""
        failures = self._failures.get(pair)
        recent = 0
        if failures is not None:
            quiet = self._now() - failures.last
            if failures.waiting or quiet <= self._limits.login_failure_seconds:
                recent = failures.count
            else:
                del self._failures[pair]
                failures = None
        if recent + self._trying.get(pair, 0) < self._limits.login_failures_max:
            return None
        return failures or self._note(pair, 0)

    def _waited(
        self,
        failures: _Failures,
        user: str,
        password: bytes,
        pair: tuple[str, str],
        answer: Answer,
    ) -> None:
        failures.waiting = False
        self._look_up(user, password, pair, answer)

    def _note(self, pair: tuple[str, str], count: int) -> _Failures:
        failures = self._failures.pop(pair, None) or _Failures()
        failures.count += count
        failures.last = self._now()
        if len(self._failures) >= self._limits.login_failures_kept_max:
            del self._failures[next(iter(self._failures))]
        self._failures[pair] = failures
        return failures

    def _failed(
        self, user: str, pair: tuple[str, str], answer: Answer, refused: Refused, count: int
    ) -> None:
        self.failed_count += 1
        if count:
            self._note(pair, count)
        self.strangers.warn("login failed", pair[0], user=user, reason=refused.text)
        answer(refused)

    # --- checking -------------------------------------------------------------------------

    def _look_up(self, user: str, password: bytes, pair: tuple[str, str], answer: Answer) -> None:
        name = user.encode("utf-8", "surrogatepass")
        # The name's size stands in front, so that no two (name, password) give the same digest.
        text = len(name).to_bytes(4, "big") + name + password
        digest = hmac.digest(self._secret, text, "sha256")
        found = self._users.users.get(user)
        known = self._known.get(digest)
        if known is not None:
            fresh = known.until > self._now()
            if fresh and found is not None and found.password_hash == known.password_hash:
                if not found.disabled:
                    answer(user)
                    return
            else:
                del self._known[digest]
        waiting = self._pending.get(digest)
        if waiting is not None:
            waiting.append(answer)
            return
        if len(self._pending) >= self._limits.logins_pending_max:
            answer(Refused(Reason.LIMIT, "too many logins at the same time: try again"))
            return
        self._pending[digest] = [answer]
        self._trying[pair] = self._trying.get(pair, 0) + 1
        stored = passwords.UNKNOWN if found is None else found.password_hash
        self.hashed_count += 1
        self._hashers.submit(
            lambda: b"1" if passwords.is_right(password, stored) else b"",
            lambda right, _error: self._hashed(digest, user, stored, pair, bool(right)),
        )

    def _hashed(
        self, digest: bytes, user: str, stored: str, pair: tuple[str, str], right: bool
    ) -> None:
        answers = self._pending.pop(digest)
        if self._trying[pair] == 1:
            del self._trying[pair]
        else:
            self._trying[pair] -= 1
        found = self._users.users.get(user)
        if right and found is not None and found.password_hash == stored and not found.disabled:
            self._remember(digest, stored)
            audit.note("login", user=user, address=pair[0])
            for answer in answers:
                answer(user)
            return
        for at, answer in enumerate(answers):
            refused = Refused(Reason.NOT_AUTHENTICATED, WRONG)
            self._failed(user, pair, answer, refused, 1 if at == 0 else 0)

    def _remember(self, digest: bytes, password_hash: str) -> None:
        self._known.pop(digest, None)
        if len(self._known) >= self._limits.login_cache_max:
            del self._known[next(iter(self._known))]
        until = self._now() + self._limits.login_cache_seconds
        self._known[digest] = _Known(password_hash, until)
