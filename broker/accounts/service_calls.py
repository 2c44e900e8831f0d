"""Questions to a service outside of the server: asked at a bounded pace, and remembered.

What is asked, and what follows from an answer, is of those who use it: logins
(`service_logins.py`) and permissions (`service_permissions.py`).

Rules:

* What asks the service is given to the engine (`AskedService`); the engine knows no HTTP.
* At most `calls_max` questions are with the service. Others wait in lines, where addresses have
  their turns (`login_lines.py`), and not longer than `wait_seconds_max`.
* The same question by many at once is asked once. Many are answered in steps.
* An answer is remembered under a keyed digest of all that was asked, so no password is kept. Its
  memory is bounded: by the number of answers, and by their weight.
* What was asked before the answers were dropped (`forget_all`) is answered, and not remembered.
"""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from polymq.broker.accounts.login_lines import Attempt, Lines
from polymq.broker.accounts.service_answers import Result
from polymq.broker.bounded_cache import EVICTED_AT_ONCE, BoundedCache
from polymq.broker.pacing.scheduler import Scheduler
from polymq.net.newcomers import network_of

ANSWERED_AT_ONCE: Final = 32
"""Who is answered in one iteration of the loop, at most 0.3 ms each."""


class Askable(Protocol):
    """What a service can be asked."""

    def content(self) -> bytes:
        """It as a JSON object."""


Q = TypeVar("Q", bound=Askable)
V = TypeVar("V")
"""What a service answers."""
D = TypeVar("D")
"""What follows from that."""
Q_contra = TypeVar("Q_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)


class AskedService(Protocol[Q_contra, V_co]):
    """Asks a service."""

    def ask(self, question: Q_contra, answer: Callable[[V_co | str], None]) -> None:
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

    question: Any = field(default=None, repr=False)
    asked_at: float = 0.0
    generation: int = 0
    waiters: dict[object, Callable[[Any], None]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Remembered(Generic[D]):
    decision: D
    until: float
    generation: int


class ServiceCalls(Generic[Q, V, D]):
    """See the head of this file.

    Args:
        now: seconds since the epoch.
        secret: key of the digests, random for each start.

    Attributes:
        counts: what came of the calls and of those that were not made (a metric).
        hits, misses: questions that were answered from memory, and others (metrics).
        calling: questions that are with the service (a metric).
        generation: how often the answers were dropped.
    """

    weight_max: int = 0
    """Of all remembered decisions; 0: they have no weight."""

    def __init__(
        self,
        *,
        service: AskedService[Q, V],
        limits: ServiceLimits,
        scheduler: Scheduler,
        now: Callable[[], float],
        secret: bytes,
    ) -> None:
        self._service = service
        self._limits = limits
        self._scheduler = scheduler
        self._answers: deque[tuple[_Call, D]] = deque()
        self._is_answering = False
        self._now = now
        self._secret = secret
        self._lines = Lines(limits.waiting_max)
        self._pending: dict[bytes, _Call] = {}
        self._known: BoundedCache[bytes, _Remembered[D]] = BoundedCache(limits.cache_max)
        self._weight = 0
        self.counts = dict.fromkeys(("allow", "deny", "ignore", "failed", "not_asked"), 0)
        self.hits = 0
        self.misses = 0
        self.calling = 0
        self.generation = 0

    # --- what is asked, and what follows ------------------------------------------------------

    @abstractmethod
    def _result_of(self, verdict: V) -> Result:
        """What is counted of an answer."""

    @abstractmethod
    def _decide(
        self, user: str, address: str, verdict: V, until: float, generation: int
    ) -> tuple[D, float]:
        """What follows from an answer, and until when it may be remembered: not longer than
        `until`, which the settings say."""

    @abstractmethod
    def _failed(self, user: str, address: str, text: str) -> D:
        """The service has not answered; the text says why."""

    @abstractmethod
    def _not_asked(self, user: str, address: str) -> D:
        """There was no room for the question, or no time."""

    def _for_others(self, decision: D) -> D:
        """What the others are told who asked the same at the same time."""
        return decision

    def _weight_of(self, decision: D) -> int:
        """What it takes of `weight_max` to remember this."""
        return 0

    def _began(self, source: str, user: str) -> None:
        """A question waits."""

    def _ended(self, source: str, user: str) -> None:
        """It does not wait any more."""

    # --- other limits ---------------------------------------------------------------------

    def change(self, limits: ServiceLimits) -> None:
        """What holds from now on. What waits and what is remembered stays; the memory shrinks with
        the next answers if it has too much."""
        self._limits = limits
        self._lines.count_max = limits.waiting_max
        self._known.count_max = limits.cache_max
        self._call_next()

    # --- asking -------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        """Questions that wait for their turn (a metric)."""
        return len(self._lines)

    def forget_all(self) -> None:
        """No answer counts any more that was given until now, or to what was asked until now. (What
        is remembered gives way to new answers.)"""
        self.generation += 1

    def find(self, question: Q) -> D | None:
        """What is remembered of a question."""
        return self._find(self._digest_of(question))

    def begin(
        self, question: Q, user: str, address: str, decided: Callable[[D], None]
    ) -> Callable[[], None]:
        """Ask. `decided` is called once, maybe in this call.

        Args:
            user, address: whose turn it is.

        Returns:
            Call this when nobody waits for the answer any more.
        """
        digest = self._digest_of(question)
        known = self._find(digest)
        if known is not None:
            decided(known)
            return nothing
        self.misses += 1
        waiter = object()
        call = self._pending.get(digest)
        if call is None or call.generation != self.generation:
            source = network_of(address)
            call = _Call(digest, user, b"", "", source, address, {}, question)
            call.asked_at, call.generation = self._now(), self.generation
            self._pending[digest] = call
            call.waiters[waiter] = decided
            self._began(source, user)
            refused = self._lines.add(call)
            if refused is not None:
                self._give_up(refused)
            self._call_next()
        else:
            call.waiters[waiter] = decided
        return partial(self._withdraw, call, waiter)

    def _digest_of(self, question: Q) -> bytes:
        return hmac.digest(self._secret, question.content(), "sha256")

    def _find(self, digest: bytes) -> D | None:
        known = self._known.pop(digest, None)
        if known is None:
            return None
        if known.until > self._now() and known.generation == self.generation:
            self.hits += 1
            self._known.add(digest, known)
            return known.decision
        self._weight -= self._weight_of(known.decision)
        return None

    def _withdraw(self, call: _Call, waiter: object) -> None:
        """Somebody has gone. What nobody waits for is not asked; what is being asked is finished,
        and counts."""
        if waiter not in call.waiters or call.question is None:
            return
        if len(call.waiters) > 1:
            del call.waiters[waiter]
        elif self._lines.remove(call):
            self._is_over(call)

    def _is_over(self, call: _Call) -> None:
        """It waits for no answer any more."""
        if self._pending.get(call.digest) is call:
            del self._pending[call.digest]
        self._ended(call.source, call.user)

    def _call_next(self) -> None:
        while self.calling < self._limits.calls_max:
            call = self._lines.take()
            if call is None:
                return
            assert isinstance(call, _Call)
            question, call.question = call.question, None
            if self._now() - call.asked_at > self._limits.wait_seconds_max:
                self._give_up(call)
                continue
            self.calling += 1
            self._service.ask(question, partial(self._answered, call))

    def _answered(self, call: _Call, verdict: V | str) -> None:
        self.calling -= 1
        self._is_over(call)
        if isinstance(verdict, str):
            self.counts["failed"] += 1
            decision = self._failed(call.user, call.address, verdict)
        else:
            result = self._result_of(verdict)
            self.counts[result.value] += 1
            limits = self._limits
            is_denied = result is Result.DENY
            seconds = limits.denied_cache_seconds if is_denied else limits.cache_seconds
            decision, until = self._decide(
                call.user, call.address, verdict, self._now() + seconds, call.generation
            )
            self._remember(call, decision, until)
        self._tell(call, decision)
        self._call_next()

    def _remember(self, call: _Call, decision: D, until: float) -> None:
        if until <= self._now():
            return
        before = self._known.pop(call.digest, None)  # asked before the answers were dropped
        gone = self._known.add(call.digest, _Remembered(decision, until, call.generation))
        self._weight += self._weight_of(decision)
        for other in (before, gone):
            if other is not None:
                self._weight -= self._weight_of(other.decision)
        for _ in range(min(EVICTED_AT_ONCE, len(self._known) - self._known.count_max)):
            self._weight -= self._weight_of(self._known.popitem(last=False)[1].decision)
        while self._weight > self.weight_max:
            self._weight -= self._weight_of(self._known.popitem(last=False)[1].decision)

    def _give_up(self, call: Attempt) -> None:
        """The service is not asked."""
        assert isinstance(call, _Call)
        self.counts["not_asked"] += 1
        self._is_over(call)
        self._tell(call, self._not_asked(call.user, call.address))

    def _tell(self, call: _Call, decision: D) -> None:
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
                self._answers[0] = call, self._for_others(decision)
            if not call.waiters:
                self._answers.popleft()
        self._scheduler.call_soon(self._answer_more)  # nothing more in this iteration

    def _answer_more(self) -> None:
        if self._answers:
            self._answer_some()
        else:
            self._is_answering = False


def nothing() -> None:
    """There is nothing to withdraw."""
