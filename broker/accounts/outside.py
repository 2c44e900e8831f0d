"""What decides about logins and permissions outside of the stored users and rules, as it is given
to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.broker.accounts.service_logins import LoginService
from polymq.broker.accounts.service_permissions import PermissionService
from polymq.broker.accounts.token_logins import TokenChecker


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What is asked beside the stored users.

    Attributes:
        token_checker: what checks tokens in the place of passwords; None: there are none.
        tokens_grant: whether tokens may grant permissions to others than stored users.
        service: what asks a service about logins; None: there is none.
        permission_service: what asks one about the permissions of MQTT clients; None: there is
            none.
    """

    token_checker: TokenChecker | None = None
    tokens_grant: bool = False
    service: LoginService | None = None
    service_limits: ServiceLimits = field(default_factory=ServiceLimits)
    permission_service: PermissionService | None = None
    permission_limits: ServiceLimits = field(default_factory=ServiceLimits)

    @property
    def outsiders(self) -> bool:
        """Whether clients have to log in even where there are no stored users: because others may,
        or because somebody else decides what they may do."""
        services = (self.service, self.permission_service)
        return self.tokens_grant or any(one is not None for one in services)
