"""Logins that a service decides: asked at a bounded pace, and remembered for a while.

Rules:

* What asks the service is given to the engine (`LoginService`); the engine knows no HTTP.
* Nobody comes in without an answer: a service that fails, or does not answer in time, refuses
  (LIMIT, which is not "wrong").
* At most `calls_max` questions are with the service. Others wait in lines, where addresses have
  their turns (`login_lines.py`), and not longer than `wait_seconds_max`.
* The same question by many at once is asked once. Many are answered in steps.
* An answer is remembered under a keyed digest of all that was asked, so no password is kept. Its
  memory is bounded: by the number of answers, and by that of their rules.
* Guesses are counted and slowed before they come here (`logins.py`), as those of passwords.
"""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from polymq.broker.accounts import audit
from polymq.broker.accounts.granting import GrantedPrincipal, is_grantable
from polymq.broker.accounts.login_answers import Question, Result, Verdict
from polymq.broker.accounts.login_lines import Answer, Attempt, Lines
from polymq.broker.accounts.logins import Decided, Decision, Logins, NotDecided, Undecided
from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.pacing.scheduler import Scheduler
from polymq.broker.port.principals import Origin
from polymq.net.newcomers import network_of

PASSWORD_BYTES_MAX: Final = 8 * 1024
CACHED_RULES_MAX: Final = 200_000
"""Rules of all remembered answers, some 0.2 KiB each."""
ANSWERED_AT_ONCE: Final = 32
"""Logins that are answered in one iteration of the loop, at most 0.3 ms each."""
_FAILED: Final = "the login service did not decide: try again in a moment"
_TOO_MANY: Final = "too many logins wait for the login service: try again in a moment"


class LoginService(Protocol):
    """Asks a service."""

    def ask(self, question: Question, answer: Callable[[Verdict | str], None]) -> None:
        """`answer` is called once, later: with what the service says, or with why it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """How much is asked and remembered.

    Attributes:
        cache_seconds, denied_cache_seconds: how long an answer counts. 0: it is not remembered.
    """

    calls_max: int = 16
    waiting_max: int = 1_000
    wait_seconds_max: float = 4.0
    cache_max: int = 10_000
    cache_seconds: float = 60.0
    denied_cache_seconds: float = 5.0


@dataclass(slots=True, eq=False)
class _Call(Attempt):
    """One question, and all who wait for its answer."""

    question: Question | None = None
    asked_at: float = 0.0
    waiters: dict[object, Decided] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Remembered:
    decision: Decision
    until: float

    @property
    def rules_count(self) -> int:
        decision = self.decision
        return len(decision.rules) if isinstance(decision, GrantedPrincipal) else 0


class ServiceLogins:
    """See the head of this file.

    Args:
        now: seconds since the epoch.
        secret: key of the digests, random for each start.

    Attributes:
        counts: what came of the calls and of those that were not made (a metric).
        hits, misses: questions that were answered from memory, and others (metrics).
        calling: questions that are with the service (a metric).
    """

    def __init__(
        self,
        *,
        service: LoginService,
        limits: ServiceLimits,
        logins: Logins,
        scheduler: Scheduler,
        now: Callable[[], float],
        secret: bytes,
    ) -> None:
        self._service = service
        self._limits = limits
        self._logins = logins
        self._scheduler = scheduler
        self._answers: deque[tuple[_Call, Decision]] = deque()
        self._is_answering = False
        self._now = now
        self._secret = secret
        self._lines = Lines(limits.waiting_max)
        self._pending: dict[bytes, _Call] = {}
        self._known: BoundedCache[bytes, _Remembered] = BoundedCache(limits.cache_max)
        self._known_rules = 0
        self.counts = dict.fromkeys(("allow", "deny", "ignore", "failed", "not_asked"), 0)
        self.hits = 0
        self.misses = 0
        self.calling = 0

    @property
    def waiting_count(self) -> int:
        """Questions that wait for their turn (a metric)."""
        return len(self._lines)

    def check(
        self, user: str, password: bytes, address: str, answer: Answer, origin: Origin
    ) -> Callable[[], None]:
        """See `AdmissionPort.authenticate`."""
        ask = partial(self._ask, user, password, address, origin)
        return self._logins.check_elsewhere(user, password, ask, address, answer)

    def _ask(
        self, user: str, password: bytes, address: str, origin: Origin, decided: Decided
    ) -> Callable[[], None]:
        """See `logins.Elsewhere`."""
        text = _text_of(password)
        if text is None or not is_grantable(user):  # nobody can have said this
            decided(Undecided.DENIED)
            return _nothing
        question = Question(user=user, password=text, address=address, origin=origin)
        digest = hmac.digest(self._secret, question.content(), "sha256")
        known = self._known.pop(digest, None)
        if known is not None and known.until > self._now():
            self.hits += 1
            self._known.add(digest, known)
            decided(known.decision)
            return _nothing
        if known is not None:
            self._known_rules -= known.rules_count
        self.misses += 1
        waiter = object()
        call = self._pending.get(digest)
        if call is None:
            source = network_of(address)
            call = _Call(digest, user, b"", "", source, address, {}, question, self._now())
            self._pending[digest] = call
            call.waiters[waiter] = decided
            self._logins.begin_trying(source, user)
            refused = self._lines.add(call)
            if refused is not None:
                self._give_up(refused, _TOO_MANY)
            self._call_next()
        else:
            call.waiters[waiter] = decided
        return partial(self._withdraw, call, waiter)

    def _withdraw(self, call: _Call, waiter: object) -> None:
        """Somebody has gone. What nobody waits for is not asked; what is being asked is finished,
        and counts."""
        if waiter not in call.waiters or call.question is None:
            return
        if len(call.waiters) > 1:
            del call.waiters[waiter]
        elif self._lines.remove(call):
            self._ended(call)

    def _ended(self, call: _Call) -> None:
        """It waits for no answer any more."""
        del self._pending[call.digest]
        self._logins.end_trying(call.source, call.user)

    def _call_next(self) -> None:
        while self.calling < self._limits.calls_max:
            call = self._lines.take()
            if call is None:
                return
            assert isinstance(call, _Call)
            question, call.question = call.question, None
            assert question is not None
            if self._now() - call.asked_at > self._limits.wait_seconds_max:
                self._give_up(call, _TOO_MANY)
                continue
            self.calling += 1
            self._service.ask(question, partial(self._answered, call))

    def _answered(self, call: _Call, verdict: Verdict | str) -> None:
        self.calling -= 1
        self._ended(call)
        if isinstance(verdict, str):
            self.counts["failed"] += 1
            reason = f"the login service failed: {verdict}"
            self._tell(call, NotDecided(_FAILED, reason))
        else:
            self.counts[verdict.result.value] += 1
            decision = self._decision_of(call.user, verdict)
            self._remember(call.digest, decision)
            if isinstance(decision, GrantedPrincipal):
                audit.note("login", user=call.user, address=call.address, service=True)
            self._tell(call, decision)
        self._call_next()

    def _decision_of(self, user: str, verdict: Verdict) -> Decision:
        if verdict.result is Result.IGNORE:
            return Undecided.IGNORED
        if verdict.result is Result.DENY:
            return Undecided.DENIED
        seconds = math.inf if verdict.seconds is None else verdict.seconds
        return GrantedPrincipal(user, self._now() + seconds, verdict.rules)

    def _remember(self, digest: bytes, decision: Decision) -> None:
        now = self._now()
        seconds = self._limits.cache_seconds
        if decision is Undecided.DENIED:
            seconds = self._limits.denied_cache_seconds
        until = now + seconds
        if isinstance(decision, GrantedPrincipal):
            until = min(until, decision.expires_at)
        if until <= now:
            return
        remembered = _Remembered(decision, until)
        gone = self._known.add(digest, remembered)
        self._known_rules += remembered.rules_count - (gone.rules_count if gone else 0)
        while self._known_rules > CACHED_RULES_MAX:
            self._known_rules -= self._known.popitem(last=False)[1].rules_count

    def _give_up(self, call: Attempt, text: str) -> None:
        """The service is not asked."""
        assert isinstance(call, _Call)
        self.counts["not_asked"] += 1
        self._ended(call)
        self._tell(call, NotDecided(text, text))

    def _tell(self, call: _Call, decision: Decision) -> None:
        self._answers.append((call, decision))
        if not self._is_answering:
            self._is_answering = True
            self._answer_some()

    def _answer_some(self) -> None:
        for _ in range(ANSWERED_AT_ONCE):
            if not self._answers:
                break
            call, decision = self._answers[0]
            if call.waiters:
                _, decided = call.waiters.popitem()
                decided(decision)
                if decision is Undecided.DENIED:
                    self._answers[0] = call, Undecided.DENIED_TOO
            if not call.waiters:
                self._answers.popleft()
        self._scheduler.call_soon(self._answer_more)  # nothing more in this iteration

    def _answer_more(self) -> None:
        if self._answers:
            self._answer_some()
        else:
            self._is_answering = False


def _text_of(password: bytes) -> str | None:
    """The password as JSON can say it; None: it cannot, or it is too long."""
    if len(password) > PASSWORD_BYTES_MAX:
        return None
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None


def _nothing() -> None:
    """It was answered at once."""
