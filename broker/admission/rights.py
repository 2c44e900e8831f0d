"""The rights of one principal, as they are now: the part of a checked port that decides.

What it takes from the users (rules, rates) it keeps until their version changes. A refusal is an
error with a sentence for the client, and a line of the audit log. Where no rule speaks of
something, a service may have to say whether it is allowed (`asking.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from polymq.broker.accounts import audit
from polymq.broker.accounts.permissions import ANONYMOUS, Action, Decision, RuleSet, format_pattern
from polymq.broker.accounts.quotas import Pace, Quotas
from polymq.broker.accounts.users import Users
from polymq.broker.admission.asking import Asker
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.values import REST, Address

LOGGED_MAX: Final = 32
"""Places of one client whose refusal is logged, until its rights change: one that asks for ever
does not fill the disk."""
GRANTED_MAX: Final = 4_096
"""Filters that were allowed and are remembered until rights change: each request of a RocketMQ
client asks for the same few again."""
_NOTHING: Final[frozenset[tuple[str, Address]]] = frozenset()


class RightsSource(Protocol):
    """What a principal has at the moment. Implemented by `Admission`."""

    users: Users

    def rules_of(self, principal: str) -> RuleSet:
        """What a principal may do now."""

    def pace_of(self, principal: str, now: float) -> Pace:
        """The rates of a principal, one for all its connections."""

    def quotas_of(self, principal: str) -> Quotas:
        """The quotas of a principal; one without a user has the defaults."""


class Rights:
    """Decides for one principal.

    Args:
        clock_ms: wall clock, for its rates.
        client_id: of an MQTT connection, for rules that name it.
        asker: asks a service about what no rule speaks of; None: that is refused.
    """

    __slots__ = (
        "__weakref__",
        "_admission",
        "_asker",
        "_client_id",
        "_clock_ms",
        "_granted",
        "_logged",
        "_rules",
        "_version",
        "name",
        "pace",
        "users",
    )

    def __init__(
        self,
        *,
        admission: RightsSource,
        clock_ms: Callable[[], int],
        name: str,
        client_id: str | None,
        asker: Asker | None = None,
    ) -> None:
        self.name = name
        self._admission = admission
        self.users = admission.users
        self._clock_ms = clock_ms
        self._client_id = client_id
        self._asker = asker
        self._version = -1  # of the users, that what follows was taken from
        self._rules: RuleSet
        self.pace: Pace
        self._logged = _NOTHING  # refusals that were logged
        self._granted: set[tuple[Action, Address]] = set()

    def may_read(self, address: Address) -> bool:
        """Whether everything that the filter matches may be read."""
        return self.decide_read(address).allowed

    def decide(self, action: Action, address: Address) -> Decision:
        """What the rules say about one place."""
        self.refresh()
        return self._rules.decide(action, address)

    def decide_all(self, action: Action, address: Address) -> Decision:
        """What the rules say about everything that the filter matches."""
        self.refresh()
        return self._rules.decide_filter(action, address)

    def decide_read(self, address: Address) -> Decision:
        """What the rules say of reading everything that the filter matches."""
        return self.decide_all(Action.SUBSCRIBE, address)

    def may_know(self, topic: str) -> bool:
        """Whether anything in the topic may be read or published."""
        self.refresh()
        return self._rules.speaks_of(topic)

    def is_admin(self) -> bool:
        """Whether everything may be administered."""
        return self.decide_all(Action.ADMIN, (REST,)).allowed

    def now(self) -> float:
        """The wall clock in seconds, for rates."""
        return self._clock_ms() / 1000

    def refresh(self) -> None:
        """Take rules and rates anew if the users have changed."""
        if self._version != self.users.version:
            self._version = self.users.version
            rules = self._admission.rules_of(self.name)
            self._rules = rules.for_client(self._client_id)
            self.pace = self._admission.pace_of(self.name, self.now())
            self._logged = _NOTHING
            self._granted.clear()

    def check_admitted(self) -> None:
        """Whether anything is allowed. Raises Refused: NOT_AUTHENTICATED, FORBIDDEN."""
        self.refresh()
        if not self._rules.is_empty:
            return
        user = self.name
        self._tell("anything", ())
        if user != ANONYMOUS:
            raise Refused(Reason.FORBIDDEN, f"user '{user}' may do nothing: no rule allows it")
        raise Refused(
            Reason.NOT_AUTHENTICATED,
            "this server has no users yet, so it accepts only clients of its own machine: create a "
            "user, or set server.allow_insecure = true"
            if not self.users.closed
            else "sign requests with an access key of a user: unsigned requests have no "
            "permissions here",
        )

    def check(self, action: Action, address: Address) -> float:
        """About one place.

        Returns:
            Until when it may be done, in seconds since the epoch; infinity: as long as the rules
            stay.

        Raises:
            Refused: FORBIDDEN, UNDECIDED (a service has not said it).
            Unanswered: a service has to be asked.
        """
        return self._require(action, address, self.decide(action, address))

    def check_filter(self, address: Address, action: Action = Action.SUBSCRIBE) -> float:
        """About everything that the filter matches. Returns and raises as `check`."""
        self.refresh()
        if (action, address) in self._granted:
            return math.inf
        until = self._require(action, address, self._rules.decide_filter(action, address))
        if until == math.inf:
            if len(self._granted) >= GRANTED_MAX:
                self._granted.clear()
            self._granted.add((action, address))
        return until

    def check_some(self, address: Address, action: Action) -> None:
        """About some place that the filter matches. Raises Refused: FORBIDDEN."""
        self.refresh()
        self._require(action, address, self._rules.decide_some(action, address))

    def check_quota(self, what: str, count: int, most: int | None) -> None:
        """Whether there may be one more. Raises Refused: LIMIT."""
        if most is not None and count >= most:
            if self.is_new(what, ()):
                audit.warn(audit.REFUSED, user=self.name, what=what, reason="quota")
            raise Refused(
                Reason.LIMIT, f"user '{self.name}' has {count} {what}, and may have {most}"
            )

    @property
    def quotas(self) -> Quotas:
        """How much it may have."""
        return self._admission.quotas_of(self.name)

    def _require(self, action: Action, address: Address, decision: Decision) -> float:
        if decision.allowed:
            return math.inf
        rule = "" if decision.rule is None else str(decision.rule)
        if decision.is_open and self._asker is not None:
            until = self._asker.until(action, address)
            if until is not None:
                return until
            rule = "none, and the permission service does not allow it"
        resource = format_pattern(address)
        self._tell(action.value, address, rule=rule)
        raise Refused(
            Reason.FORBIDDEN,
            f"user '{self.name}' may not {action.value} {audit.printable(resource)}",
        )

    def _tell(self, what: str, address: Address, *, rule: str = "") -> None:
        """Log a refusal, unless that was done since the rights changed."""
        if self.is_new(what, address):
            audit.warn(
                audit.REFUSED,
                user=self.name,
                what=what,
                resource=format_pattern(address),
                client_id=self._client_id or "",
                rule=rule,
            )

    def is_new(self, what: str, address: Address) -> bool:
        """Whether there is to be a line about this: one since the rights changed, and about
        `LOGGED_MAX` things at most."""
        if (what, address) in self._logged or len(self._logged) >= LOGGED_MAX:
            return False
        self._logged |= {(what, address)}
        return True
