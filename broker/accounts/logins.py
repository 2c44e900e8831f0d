"""Is this the user that it says it is? Checks passwords, off the loop and at a bounded pace; and
signatures, at once (`access_keys.py` has their rules).

Rules:

* Hashing runs in worker threads, `logins_hashing_max` at a time. The other logins wait in lines
  (`login_lines.py`), where addresses have their turns and at most `logins_pending_max` wait: who
  sends more than others is refused first. An address of IPv6 is a network of 64 bits.
* A user that has logged in from an address within `login_proven_seconds` has a line of its own
  there, as long, which is served three times as often. So a flood from however many addresses does
  not keep out who was in before.
* A login that was right is remembered for `login_cache_seconds` under a keyed digest of name and
  password, so that a client that comes back, or asks over HTTP, costs no hash. It counts only as
  long as the user's hash is the one that it was checked against: any change drops it.
* The same login by many at once (a fleet that reconnects) is checked once for all of them.
* An unknown user, a disabled one and a wrong password cost the same work and get the same answer.
* After `login_failures_max` failures of one (address, user) within a minute, its next login waits
  before it is looked at: 1 s, then twice as long each time, up to a minute; and while one waits,
  others of that pair are refused. This comes before the cache, which would otherwise tell at once
  which guess is right.
* An address that fails with many users is slowed in the same way (`spraying.py`), but for users
  that have logged in from there before.
* A password that was right and is stored in an old form is stored in the new one, in the same
  thread: with keys for SCRAM, or without the hash of another broker's file.
* An exchange of SCRAM (`scram_logins.py`) costs no hash, so its proof is checked at once; but its
  guesses count and wait like those of passwords.
* Somebody else may be asked about a login first (`check_elsewhere`), when its turn has come. What
  they deny counts and is slowed as a wrong password.
* A login whose client has gone is withdrawn: it is not hashed, and it is no failure. Only what is
  being hashed at that moment is finished, and counts.
* "Wrong" is the answer to a password that was checked. A login that is refused unchecked gets
  LIMIT, and the reason in words, because the same login may be right a minute later.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from polymq.broker.accounts import audit, passwords
from polymq.broker.accounts.granting import GrantedPrincipal
from polymq.broker.accounts.login_lines import Answer, Attempt, Lines
from polymq.broker.accounts.spraying import Spraying
from polymq.broker.accounts.users import Users
from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.errors import Reason, Refused
from polymq.broker.limits import Limits
from polymq.broker.pacing.scheduler import Scheduler
from polymq.net.newcomers import network_of

WRONG: Final = "user or password is wrong"
WRONG_SIGNATURE: Final = (
    "there is no such access key, or the signature is not made with its secret key: check both in "
    "the client, or create a new pair with `polymq user access-key add NAME`"
)
_USER_SLOWED: Final = (
    "the password was not checked: too many logins of this user from this address failed, and only "
    "one at a time is checked: wait a minute, then try again"
)
_ADDRESS_SLOWED: Final = (
    "the password was not checked: too many logins from this address failed, and only one at a "
    "time is checked: wait a minute, then try again"
)
_TOO_MANY: Final = (
    "the password was not checked: too many logins are waiting: try again in a moment"
)
_RIGHT: Final = "right:"
PROVEN_TURNS: Final = 3
"""Turns of logins that were right before, for one of the others."""


class Undecided(enum.Enum):
    """What somebody else may say of a login without letting it in."""

    DENIED = enum.auto()
    """It is wrong."""
    DENIED_TOO = enum.auto()
    """It is wrong, like the same login at the same time, which was counted."""
    IGNORED = enum.auto()
    """The stored users decide."""


@dataclass(frozen=True, slots=True)
class NotDecided:
    """Somebody else was asked, and did not decide.

    Attributes:
        text: for the client.
        reason: for the log.
    """

    text: str
    reason: str


Decision = GrantedPrincipal | Undecided | NotDecided
Decided = Callable[[Decision], None]
"""Told once what somebody else says of a login."""
Elsewhere = Callable[[Decided], Callable[[], None]]
"""Asks somebody else. The answer may come during the call. What is returned says that nobody waits
for it any more."""


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
    pause: _Pause | None = None  # one login is held back; others are refused meanwhile


@dataclass(slots=True, eq=False)
class _Asked:
    """A login as it came in.

    Attributes:
        is_proven: of a login without a password: whether it is right, at once.
        stored_only: it is not, unless there is a stored user of the name.
        elsewhere: asks somebody else about the login first.
        take_back: see `Elsewhere`, while that is being asked.
        pause: what it waits in before it is looked at.
        attempt: what it was looked up as.
    """

    user: str
    password: bytes = field(repr=False)
    source: str
    address: str
    answer: Answer
    is_proven: Callable[[], bool] | None = None
    stored_only: bool = True
    elsewhere: Elsewhere | None = None
    take_back: Callable[[], None] | None = None
    pause: _Pause | None = None
    attempt: Attempt | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """What failures are counted by."""
        return _pair(self.source, self.user)


@dataclass(slots=True, eq=False)
class _Pause:
    """A timer, and the login that is looked at when it fires. When that login is withdrawn, the
    timer goes on, and the next login takes the place: a client that comes and goes shortens no
    pause and starts no second timer."""

    asked: _Asked | None = None

    def take(self, asked: _Asked) -> bool:
        """Let a login wait here. Returns whether the place is free."""
        if self.asked is not None:
            return False
        self.asked, asked.pause = asked, self
        return True

    def end(self) -> _Asked | None:
        """The timer has fired. Returns the login to look at."""
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.pause = None
        return asked


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
        random_bytes: for salts.
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
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._users = users
        self._random_bytes = random_bytes
        self._scheduler = scheduler
        self._hashers = hashers
        self._now = now
        self._limits = limits
        self.scram_iterations = limits.scram_iterations
        self._secret = secret
        # The least recent first, each of them.
        self._known: BoundedCache[bytes, _Known] = BoundedCache(limits.login_cache_max)
        self._failures: BoundedCache[tuple[str, str], _Failures] = BoundedCache(
            limits.login_failures_cached_max
        )
        self._pending: dict[bytes, Attempt] = {}  # logins that wait or are being hashed
        self._lines = Lines(limits.logins_pending_max)
        self._proven_lines = Lines(limits.logins_pending_max)
        self._proven: BoundedCache[tuple[str, str], float] = BoundedCache(limits.login_proven_max)
        """Until when."""
        self._turn = 0
        self._hashing = 0
        self._spraying = Spraying(limits)
        self._paused: dict[str, _Pause] = {}  # by source: those that `_spraying` slows
        self._trying: dict[tuple[str, str], int] = {}  # of them, by (address, user)
        self.strangers = audit.Throttle(now)
        """Where failed logins are logged."""
        self.failed_count = 0
        """Logins that were checked and wrong (a metric)."""
        self.hashed_count = 0
        """Passwords that were hashed (a metric)."""
        self.refused_count = 0
        """Logins that were refused unchecked (a metric)."""

    @property
    def waiting_count(self) -> int:
        """Logins that wait for their hash (a metric)."""
        return len(self._lines) + len(self._proven_lines)

    def check(self, user: str, password: bytes, address: str, answer: Answer) -> Callable[[], None]:
        """Is it the user? `answer` is called with its name, or with Refused: NOT_AUTHENTICATED,
        LIMIT. It may be called during this call.

        Args:
            address: where the client is, without its port.

        Returns:
            To be called when the client has gone: then nothing is answered any more, and a
            password that is not being hashed yet is not checked. Later than the answer it does
            nothing.
        """
        return self._ask(_Asked(user, password, network_of(address), address, answer))

    def check_proof(
        self,
        user: str,
        is_proven: Callable[[], bool],
        address: str,
        answer: Answer,
        *,
        stored_only: bool = True,
    ) -> Callable[[], None]:
        """The same for a login that proves itself without a password. It waits like others, and
        then `is_proven` says at once whether it is right.

        Args:
            stored_only: whether there has to be a stored user of the name. One that is disabled
                does not come in either way.
        """
        source = network_of(address)
        return self._ask(_Asked(user, b"", source, address, answer, is_proven, stored_only))

    def check_elsewhere(
        self, user: str, password: bytes, elsewhere: Elsewhere, address: str, answer: Answer
    ) -> Callable[[], None]:
        """The same for a login that somebody else is asked about, once its turn has come. Answered
        with the `GrantedPrincipal` of the decision; if that is IGNORED, as by `check`."""
        asked = _Asked(user, password, network_of(address), address, answer, elsewhere=elsewhere)
        return self._ask(asked)

    def refuse(self, user: str, address: str, answer: Answer, text: str) -> None:
        """Refuse a login that cannot be checked now: LIMIT."""
        self._refuse(_Asked(user, b"", "", address, answer), text)

    def _ask(self, asked: _Asked) -> Callable[[], None]:
        failures = self._failures_of(asked.pair)
        if failures is None:
            self._pass_address(asked)
        elif failures.pause is not None:
            if not failures.pause.take(asked):
                self._refuse(asked, _USER_SLOWED)
        else:
            failures.pause = _Pause()
            failures.pause.take(asked)
            over = failures.count - self._limits.login_failures_max
            seconds = min(2.0 ** max(0, min(over, 16)), self._limits.login_delay_seconds_max)
            self._scheduler.call_later(seconds, partial(self._waited, failures))
        return partial(self._withdraw, asked)

    def _withdraw(self, asked: _Asked) -> None:
        """The client has gone: nobody waits for this answer."""
        if asked.pause is not None:
            asked.pause.end()
        if asked.take_back is not None:
            asked.take_back()
            asked.take_back = None
            asked.answer = _nobody  # what is being asked is finished, and counts
        attempt = asked.attempt
        if attempt is None or attempt.answers.pop(asked, None) is None or attempt.answers:
            return
        if self._proven_lines.remove(attempt) or self._lines.remove(attempt):
            self._ended(attempt)

    def _pass_address(self, asked: _Asked) -> None:
        """Look at a login now, or after the pause that its address has to make."""
        seconds = self._spraying.pause_seconds(asked.source, self._now())
        if not seconds or self._is_proven(asked.pair):
            self._look_up(asked)
            return
        pause = self._paused.get(asked.source)
        if pause is None:
            pause = self._paused[asked.source] = _Pause()
            self._scheduler.call_later(seconds, partial(self._paused_enough, asked.source))
        if not pause.take(asked):
            self._refuse(asked, _ADDRESS_SLOWED)

    def _paused_enough(self, source: str) -> None:
        asked = self._paused.pop(source).end()
        if asked is not None:
            self._look_up(asked)

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

        iterations = self.scram_iterations
        self._hashers.submit(
            lambda: passwords.make_hash(password, salt, scram_iterations=iterations).encode(),
            hashed,
        )

    # --- failures -------------------------------------------------------------------------

    def _failures_of(self, pair: tuple[str, str]) -> _Failures | None:
        """Its failures if it has to wait; logins under way count, lest they all slip through."""
        failures = self._failures.get(pair)
        recent = 0
        if failures is not None:
            quiet = self._now() - failures.last
            if failures.pause is not None or quiet <= self._limits.login_failure_seconds:
                recent = failures.count
            else:
                del self._failures[pair]
                failures = None
        if recent + self._trying.get(pair, 0) < self._limits.login_failures_max:
            return None
        return failures or self._note(pair, 0)

    def _waited(self, failures: _Failures) -> None:
        assert failures.pause is not None
        asked = failures.pause.end()
        failures.pause = None
        if asked is not None:
            self._pass_address(asked)

    def _note(self, pair: tuple[str, str], count: int) -> _Failures:
        failures = self._failures.pop(pair, None) or _Failures()
        failures.count += count
        failures.last = self._now()
        self._failures.add(pair, failures)
        return failures

    def _refuse(self, asked: _Asked, text: str, reason: str = "") -> None:
        """A login that was not checked: it may be right. `reason`: more than the client is told."""
        self.refused_count += 1
        self.strangers.warn("login refused", asked.address, user=asked.user, reason=reason or text)
        asked.answer(Refused(Reason.LIMIT, text))

    def _refuse_all(self, attempt: Attempt, text: str) -> None:
        """`_refuse` all that ask the same."""
        for answer in list(attempt.answers.values()):
            self._refuse(_Asked(attempt.user, b"", attempt.source, attempt.address, answer), text)

    def _wrong(self, attempt: Attempt, answers: Sequence[Answer], *, counts: bool = True) -> None:
        """A login that was checked. Those who asked the same at the same time guessed once."""
        if counts:
            self._note(_pair(attempt.source, attempt.user), 1)
            self._spraying.failed(attempt.source, self._now())
        for answer in answers or (_nobody,):
            self.failed_count += 1
            self.strangers.warn("login failed", attempt.address, user=attempt.user, reason=WRONG)
            answer(Refused(Reason.NOT_AUTHENTICATED, WRONG))

    # --- checking -------------------------------------------------------------------------

    def _look_up_elsewhere(self, asked: _Asked, elsewhere: Elsewhere) -> None:
        asked.take_back = _nothing
        take_back = elsewhere(partial(self._decided, asked))
        if asked.take_back is not None:
            asked.take_back = take_back

    def _decided(self, asked: _Asked, decision: Decision) -> None:
        """What somebody else says."""
        asked.take_back = None
        found = self._users.users.get(asked.user)
        if decision is Undecided.IGNORED:
            self._look_up_password(asked)
        elif isinstance(decision, NotDecided):
            self._refuse(asked, decision.text, decision.reason)
        elif isinstance(decision, Undecided) or (found is not None and found.disabled):
            attempt = Attempt(b"", asked.user, b"", "", asked.source, asked.address)
            self._wrong(attempt, [asked.answer], counts=decision is not Undecided.DENIED_TOO)
        else:
            self._prove(asked.pair)
            asked.answer(decision)

    def _look_up(self, asked: _Asked) -> None:
        if asked.elsewhere is not None:
            self._look_up_elsewhere(asked, asked.elsewhere)
            return
        if asked.is_proven is None:
            self._look_up_password(asked)
            return
        attempt = Attempt(b"", asked.user, b"", "", asked.source, asked.address)
        found = self._users.users.get(asked.user)
        may_come = not asked.stored_only if found is None else not found.disabled
        if asked.is_proven() and may_come:
            self._prove(asked.pair)
            audit.note("login", user=asked.user, address=asked.address)
            asked.answer(asked.user)
        else:
            self._wrong(attempt, [asked.answer])

    def _look_up_password(self, asked: _Asked) -> None:
        user, password = asked.user, asked.password
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
                    self._prove(asked.pair)
                    asked.answer(user)
                    return
            else:
                del self._known[digest]
        waiting = self._pending.get(digest)
        if waiting is not None:
            waiting.answers[asked] = asked.answer
            asked.attempt = waiting
            return
        stored = passwords.UNKNOWN if found is None else found.password_hash
        attempt = asked.attempt = Attempt(
            digest, user, password, stored, asked.source, asked.address, {asked: asked.answer}
        )
        self._pending[digest] = attempt
        self.begin_trying(asked.source, user)
        lines = self._proven_lines if self._is_proven(asked.pair) else self._lines
        refused = lines.add(attempt)
        if refused is not None:
            self._ended(refused)
            self._refuse_all(refused, _TOO_MANY)
        self._hash_next()

    def _hash_next(self) -> None:
        """Give the threads as much as they can do at a time."""
        while self._hashing < self._limits.logins_hashing_max:
            self._turn = (self._turn + 1) % (PROVEN_TURNS + 1)
            first, second = self._proven_lines, self._lines
            if self._turn == 0:
                first, second = second, first
            attempt = first.take() or second.take()
            if attempt is None:
                return
            self._hashing += 1
            self.hashed_count += 1
            iterations = self.scram_iterations
            salt = b""
            if passwords.is_outdated(attempt.stored, iterations):
                salt = self._random_bytes(passwords.SALT_BYTES)
            self._hashers.submit(
                partial(_checked, attempt.password, attempt.stored, salt, iterations),
                partial(self._hashed, attempt),
            )

    def _ended(self, attempt: Attempt) -> None:
        """It waits no more."""
        del self._pending[attempt.digest]
        self.end_trying(attempt.source, attempt.user)

    def begin_trying(self, source: str, user: str) -> None:
        """Another guess is being checked: it counts as a failure until it has ended."""
        pair = _pair(source, user)
        self._trying[pair] = self._trying.get(pair, 0) + 1

    def end_trying(self, source: str, user: str) -> None:
        """It is not being checked any more."""
        pair = _pair(source, user)
        if self._trying[pair] == 1:
            del self._trying[pair]
        else:
            self._trying[pair] -= 1

    def _hashed(self, attempt: Attempt, right: bytes | None, error: Exception | None) -> None:
        self._hashing -= 1
        user, stored, source = attempt.user, attempt.stored, attempt.source
        self._ended(attempt)
        answers = list(attempt.answers.values())
        found = self._users.users.get(user)
        if right and found is not None and found.password_hash == stored and not found.disabled:
            self._remember(attempt.digest, self._renewed(user, stored, right))
            self._prove(_pair(source, user))
            audit.note("login", user=user, address=attempt.address)
            for answer in answers:
                answer(user)
        elif error is not None:
            self._refuse_all(attempt, f"the password could not be checked: {error}: try again")
        else:
            self._wrong(attempt, answers)
        self._hash_next()

    def _renewed(self, user: str, stored: str, checked: bytes) -> str:
        """Store a password that was right in its new form, if there is one. Returns what is stored
        then."""
        new = checked.decode().removeprefix(_RIGHT)
        if not new:
            return stored
        try:
            self._users.renew_hash(user, new)
        except Refused:
            return stored  # at another login
        return new

    def _is_proven(self, pair: tuple[str, str]) -> bool:
        """Whether the user has logged in from there."""
        until = self._proven.get(pair)
        return until is not None and until > self._now()

    def _prove(self, pair: tuple[str, str]) -> None:
        self._proven.pop(pair, None)
        self._proven.add(pair, self._now() + self._limits.login_proven_seconds)

    def _remember(self, digest: bytes, password_hash: str) -> None:
        self._known.pop(digest, None)
        until = self._now() + self._limits.login_cache_seconds
        self._known.add(digest, _Known(password_hash, until))


def _pair(source: str, user: str) -> tuple[str, str]:
    return source, user[:64]


def _checked(password: bytes, stored: str, salt: bytes, scram_iterations: int) -> bytes:
    """In a thread: something where the password is right; with a salt, and its new form."""
    if not passwords.is_right(password, stored):
        return b""
    if not salt or stored == passwords.UNKNOWN:
        return _RIGHT.encode()
    try:
        passwords.check_new(password)
    except passwords.BadPassword:
        return _RIGHT.encode()
    new = passwords.make_hash(password, salt, scram_iterations=scram_iterations)
    return f"{_RIGHT}{new}".encode()


def _nothing() -> None:
    """There is nothing to take back yet."""


def _nobody(_answer: str | Refused) -> None:
    """Whoever waited for it has gone."""
