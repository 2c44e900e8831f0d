"""Permissions of MQTT clients that a service decides, topic by topic.

Rules:

* How much is asked and remembered is in `service_calls.py`.
* Nothing is allowed without an answer. A service that fails, or does not answer in time, leaves it
  unknown, which is refused (UNDECIDED) and not remembered.
* Who asks when is in `admission/asking.py`; stored and granted rules were asked before.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from polymq.broker.accounts.permission_answers import PermissionQuestion
from polymq.broker.accounts.service_answers import Result
from polymq.broker.accounts.service_calls import AskedService, ServiceCalls, ServiceLimits
from polymq.broker.notices import Notices
from polymq.broker.pacing.scheduler import Scheduler

TOPIC_BYTES_MAX: Final = 4_096
"""Of a topic that the service is asked about: as long as EMQX's longest. A longer one is refused
without a question, because thousands of questions may wait."""

PermissionService = AskedService[PermissionQuestion, Result]


class Said(enum.Enum):
    """What a service says of a permission."""

    ALLOWED = enum.auto()
    REFUSED = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """What is known of one permission.

    Attributes:
        until: when it has to be asked for again, in seconds since the epoch.
        generation: of the service's answers; once they were dropped, it does not count.
    """

    said: Said
    until: float = 0.0
    generation: int = -1


REFUSED: Final = TopicAnswer(Said.REFUSED)
UNKNOWN: Final = TopicAnswer(Said.UNKNOWN)


class ServicePermissions(ServiceCalls[PermissionQuestion, Result, TopicAnswer]):
    """See the head of this file.

    Args:
        notices: says why the service failed, at a bounded rate.
    """

    def __init__(
        self,
        *,
        service: PermissionService,
        limits: ServiceLimits,
        scheduler: Scheduler,
        now: Callable[[], float],
        secret: bytes,
        notices: Notices,
    ) -> None:
        super().__init__(
            service=service, limits=limits, scheduler=scheduler, now=now, secret=secret
        )
        self._notices = notices

    def counts_still(self, until: float, generation: int) -> bool:
        """Whether a permission that was given until then may still be used."""
        return generation == self.generation and self._now() < until

    # --- `ServiceCalls` -----------------------------------------------------------------------

    def _result_of(self, verdict: Result) -> Result:
        return verdict

    def _decide(
        self, user: str, address: str, verdict: Result, until: float, generation: int
    ) -> tuple[TopicAnswer, float]:
        if verdict is Result.ALLOW:
            return TopicAnswer(Said.ALLOWED, until, generation), until
        return REFUSED, until

    def _failed(self, user: str, address: str, text: str) -> TopicAnswer:
        self._warn(user, address, f"the permission service failed: {text}")
        return UNKNOWN

    def _not_asked(self, user: str, address: str) -> TopicAnswer:
        self._warn(user, address, "too many questions wait for the permission service")
        return UNKNOWN

    def _warn(self, user: str, address: str, reason: str) -> None:
        self._notices.warn(
            "a permission is not known", "permission service", user=user, address=address,
            reason=reason,
        )  # fmt: skip
