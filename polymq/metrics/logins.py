"""What operators see of logins, and of services that are asked."""

from __future__ import annotations

from polymq.broker.accounts.service_logins import ServiceLogins
from polymq.broker.accounts.service_permissions import ServicePermissions
from polymq.broker.engine import Engine
from polymq.metrics.registry import Probe, counter, gauge


def login_probes(engine: Engine) -> list[Probe]:
    """The metrics of users and their logins."""
    return [
        *_user_probes(engine),
        *_service_probes(engine.service_logins),
        *_permission_probes(engine.service_permissions),
    ]


def _service_probes(logins: ServiceLogins | None) -> list[Probe]:
    if logins is None:
        return []
    return [
        counter(
            "polymq_login_service_results",
            "Logins that the login service decided, and those that it did not.",
            lambda: logins.counts,
            label="result",
        ),
        counter(
            "polymq_login_service_lookups",
            "Logins whose answer was remembered, and others.",
            lambda: {"hit": logins.hits, "miss": logins.misses},
            label="result",
        ),
        gauge(
            "polymq_login_service_calling",
            "Questions that are with the login service.",
            lambda: logins.calling,
        ),
        gauge(
            "polymq_login_service_waiting",
            "Questions that wait for their turn with the login service.",
            lambda: logins.waiting_count,
        ),
    ]


def _permission_probes(permissions: ServicePermissions | None) -> list[Probe]:
    if permissions is None:
        return []
    return [
        counter(
            "polymq_permission_service_results",
            "Permissions that the permission service decided, and those that it did not.",
            lambda: permissions.counts,
            label="result",
        ),
        counter(
            "polymq_permission_service_lookups",
            "Permissions whose answer was remembered, and others.",
            lambda: {"hit": permissions.hits, "miss": permissions.misses},
            label="result",
        ),
        gauge(
            "polymq_permission_service_calling",
            "Questions that are with the permission service.",
            lambda: permissions.calling,
        ),
        gauge(
            "polymq_permission_service_waiting",
            "Questions that wait for their turn with the permission service.",
            lambda: permissions.waiting_count,
        ),
    ]


def _user_probes(engine: Engine) -> list[Probe]:
    return [
        gauge(
            "polymq_users",
            "Users. With 0, clients need not log in.",
            lambda: len(engine.users.users),
        ),
        counter(
            "polymq_login_failures",
            "Logins with a wrong user or password, and requests with a wrong signature.",
            lambda: engine.logins.failed_count,
        ),
        gauge(
            "polymq_logins_waiting",
            "Logins that wait for their password to be checked.",
            lambda: engine.logins.waiting_count,
        ),
        counter(
            "polymq_logins_refused",
            "Logins that were refused without a check: too many waited or had failed.",
            lambda: engine.logins.refused_count,
        ),
    ]
