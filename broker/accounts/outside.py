"""What decides about logins outside of the stored users, as it is given to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymq.broker.accounts.service_logins import LoginService, ServiceLimits
from polymq.broker.accounts.token_logins import TokenChecker


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What is asked beside the stored users.

    Attributes:
        token_checker: what checks tokens in the place of passwords; None: there are none.
        tokens_grant: whether tokens may grant permissions to others than stored users.
        service: what asks a service about logins; None: there is none.
    """

    token_checker: TokenChecker | None = None
    tokens_grant: bool = False
    service: LoginService | None = None
    service_limits: ServiceLimits = field(default_factory=ServiceLimits)

    @property
    def outsiders(self) -> bool:
        """Whether others than stored users may log in."""
        return self.tokens_grant or self.service is not None
