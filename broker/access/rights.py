"""The rights of one principal, as they are now: the part of a checked port that decides.

What it takes from the users (rules, rates) it keeps until their version changes. A refusal is an
error with a sentence for the client, and a line of the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.access import audit
from broker.access.permissions import Action, Decision, RuleSet, format_pattern
from broker.access.quotas import Pace
from broker.errors import Reason, Refused
from broker.port import Words

if TYPE_CHECKING:
    from broker.access.admission import Admission

TOLD_MAX: Final = 32
"""Places of one client whose refusal is logged, until its rights change: one that asks for ever
does not fill the disk."""
_NOTHING: Final[frozenset[tuple[Action, Words]]] = frozenset()


class Rights:
    """Decides for one principal.

    Args:
        clock_ms: wall clock, for its rates.
        client_id: of an MQTT connection, for rules that name it.
    """

    __slots__ = (
        "__weakref__",
        "_admission",
        "_client_id",
        "_clock_ms",
        "_pace",
        "_rules",
        "_told",
        "_users",
        "_version",
        "principal",
    )

    def __init__(
        self,
        *,
        admission: Admission,
        clock_ms: Callable[[], int],
        principal: str,
        client_id: str | None,
    ) -> None:
        self.principal = principal
        self._admission = admission
        self._users = admission.users
        self._clock_ms = clock_ms
        self._client_id = client_id
        self._version = -1  # of the users, that what follows was taken from
        self._rules: RuleSet
        self._pace: Pace
        self._told = _NOTHING  # refusals that were logged

    def may_read(self, words: Words) -> bool:
        """Whether everything that the filter matches may be read."""
        self._refresh()
        return self._rules.decide_filter(Action.SUBSCRIBE, words).allowed

    def _may_know(self, topic: str) -> bool:
        """Whether anything in the topic may be read or published."""
        self._refresh()
        return self._rules.speaks_of(topic)

    def _now(self) -> float:
        return self._clock_ms() / 1000

    def _refresh(self) -> None:
        """Take rules and rates anew if the users have changed."""
        if self._version != self._users.version:
            self._version = self._users.version
            rules = self._admission.rules_of(self.principal)
            self._rules = rules.for_client(self.principal, self._client_id)
            self._pace = self._admission.pace_of(self.principal, self._now())
            self._told = _NOTHING

    def _check(self, action: Action, words: Words) -> None:
        """About one place. Raises Refused: FORBIDDEN."""
        self._refresh()
        self._require(action, words, self._rules.decide(action, words))

    def _check_filter(self, words: Words, action: Action = Action.SUBSCRIBE) -> None:
        """About everything that the filter matches. Raises Refused: FORBIDDEN."""
        self._refresh()
        self._require(action, words, self._rules.decide_filter(action, words))

    def _require(self, action: Action, words: Words, decision: Decision) -> None:
        if decision.allowed:
            return
        place = format_pattern(words)
        if (action, words) not in self._told and len(self._told) < TOLD_MAX:
            self._told |= {(action, words)}
            audit.warn(
                "refused",
                user=self.principal,
                what=action.value,
                place=place,
                client_id=self._client_id or "",
                rule="" if decision.rule is None else str(decision.rule),
            )
        raise Refused(
            Reason.FORBIDDEN,
            f"user '{self.principal}' may not {action.value} {audit.printable(place)}",
        )
