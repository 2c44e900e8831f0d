"""What operators see of logins."""

from __future__ import annotations

from polymq.broker.engine import Engine
from polymq.metrics import Probe, counter, gauge


def login_probes(engine: Engine) -> list[Probe]:
    """The metrics of users and their logins."""
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
