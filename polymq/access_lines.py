"""What the log says at a start of who may connect, and of what crosses the network unencrypted."""

from __future__ import annotations

from datetime import UTC, datetime

from polymq.broker.engine import Engine
from polymq.logs import logger
from polymq.mqtt_listeners import is_private, plain_listeners
from polymq.settings import Settings, is_loopback
from polymq.tls import warn_of_dates


def log_access(settings: Settings, engine: Engine) -> None:
    """Write these lines, once the state is folded."""
    log = logger("polymq")
    _log_users(settings, engine)
    plain = _plain_listeners(settings)
    if plain:
        log.warning(
            "messages and passwords cross the network unencrypted at the ports without TLS",
            servers=plain,
        )
    if settings.tls.certificate:
        warn_of_dates(settings.tls, datetime.now(UTC), log.warning)


def _log_users(settings: Settings, engine: Engine) -> None:
    log, users, outside = logger("polymq"), engine.users.users, not is_private(settings)
    if engine.admission.is_open:
        clients = "every client that reaches a port" if outside else "every client on this machine"
        tell = log.warning if outside else log.info
        tell(f"there are no users: {clients} may do everything; `polymq user add NAME` ends that")
    elif not users and engine.users.outsiders:
        log.info("clients have to log in; there are no users stored here")
    elif not users:
        log.warning("there are no users: no client is accepted before `polymq user add NAME`")
    else:
        log.info("clients have to log in", users=len(users))


def _plain_listeners(settings: Settings) -> list[str]:
    """Listeners without TLS that other machines reach."""
    sections = settings.listeners.items()
    plain = [name for name, section in sections if section.enabled and section.plain]
    if is_loopback(settings.server.host):
        plain = []
    plain += plain_listeners(settings)
    metrics = settings.metrics
    if metrics.enabled and metrics.login and not metrics.tls:
        plain += [] if is_loopback(metrics.host or settings.server.host) else ["metrics"]
    return plain
