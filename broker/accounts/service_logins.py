"""Logins that a service decides.

Rules:

* How much is asked and remembered is in `service_calls.py`.
* Nobody comes in without an answer: a service that fails, or does not answer in time, refuses
  (LIMIT, which is not "wrong").
* Guesses are counted and slowed before they come here (`logins.py`), as those of passwords.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from polymq.broker.accounts import audit
from polymq.broker.accounts.granting import GrantedPrincipal, is_grantable
from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.login_lines import Answer
from polymq.broker.accounts.logins import Decided, Decision, Logins, NotDecided, Undecided
from polymq.broker.accounts.service_answers import Result
from polymq.broker.accounts.service_calls import AskedService, ServiceCalls, ServiceLimits, nothing
from polymq.broker.pacing.scheduler import Scheduler
from polymq.broker.port.principals import Origin

PASSWORD_BYTES_MAX: Final = 8 * 1024
CACHED_RULES_MAX: Final = 200_000
"""Rules of all remembered answers, some 0.2 KiB each."""
_FAILED: Final = "the login service did not decide: try again in a moment"
_TOO_MANY: Final = "too many logins wait for the login service: try again in a moment"

LoginService = AskedService[Question, Verdict]


class ServiceLogins(ServiceCalls[Question, Verdict, Decision]):
    """See the head of this file."""

    weight_max = CACHED_RULES_MAX

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
        super().__init__(
            service=service, limits=limits, scheduler=scheduler, now=now, secret=secret
        )
        self._logins = logins

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
            return nothing
        question = Question(user=user, password=text, address=address, origin=origin)
        return self.begin(question, user, address, decided)

    # --- `ServiceCalls` -----------------------------------------------------------------------

    def _result_of(self, verdict: Verdict) -> Result:
        return verdict.result

    def _decide(
        self, user: str, address: str, verdict: Verdict, until: float, generation: int
    ) -> tuple[Decision, float]:
        if verdict.result is Result.IGNORE:
            return Undecided.IGNORED, until
        if verdict.result is Result.DENY:
            return Undecided.DENIED, until
        seconds = math.inf if verdict.seconds is None else verdict.seconds
        decision = GrantedPrincipal(user, self._now() + seconds, verdict.rules)
        audit.note("login", user=user, address=address, service=True)
        return decision, min(until, decision.expires_at)

    def _failed(self, user: str, address: str, text: str) -> Decision:
        return NotDecided(_FAILED, f"the login service failed: {text}")

    def _not_asked(self, user: str, address: str) -> Decision:
        return NotDecided(_TOO_MANY, _TOO_MANY)

    def _began(self, source: str, user: str) -> None:
        self._logins.begin_trying(source, user)

    def _ended(self, source: str, user: str) -> None:
        self._logins.end_trying(source, user)

    def _for_others(self, decision: Decision) -> Decision:
        return Undecided.DENIED_TOO if decision is Undecided.DENIED else decision

    def _weight_of(self, decision: Decision) -> int:
        return len(decision.rules) if isinstance(decision, GrantedPrincipal) else 0


def _text_of(password: bytes) -> str | None:
    """The password as JSON can say it; None: it cannot, or it is too long."""
    if len(password) > PASSWORD_BYTES_MAX:
        return None
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None
