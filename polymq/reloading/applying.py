"""Applying settings to the parts of a server that runs.

Rule: everything that can fail is done while it is prepared. What `prepare` returns cannot fail, and
is done in one iteration of the loop: no client meets one half of a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from polymq.broker.changes import change_engine
from polymq.broker.engine import Engine
from polymq.engine_settings import changeable_of
from polymq.logins.outside_logins import OutsideLogins
from polymq.logs import change_logs
from polymq.mqtt_listeners import listener_terms, tls_for
from polymq.servers import amqp_limits, mqtt_terms, webhook_settings
from polymq.settings import Settings
from polymq.telemetry.telemetry import Telemetry
from polymq.tls_files import TlsFiles, TlsWatch
from polymq.upkeep import Upkeep

if TYPE_CHECKING:
    from polymq.gateways.mqtt.sys_values import SysValues

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts that a reload changes.

    Attributes:
        servers: of all listeners for clients, by their labels.
        sys_values: None where there are none.
    """

    engine: Engine
    upkeep: Upkeep
    servers: Mapping[str, Any]
    tls_files: TlsFiles
    tls_watch: TlsWatch
    outside: OutsideLogins
    telemetry: Telemetry
    sys_values: SysValues | None


def prepare(running: Running, before: Settings, settings: Settings) -> Step:
    """Read the files that the settings name, and make what takes the place of what is there. May be
    called in a thread.

    Args:
        before: the settings that are in force. Only what a reload applies is different.

    Returns:
        What applies them, on the loop.

    Raises:
        Failure: a file cannot be used.
    """
    steps: list[Step] = [
        running.tls_files.prepare(partial(tls_for, settings)),
        *running.outside.prepare(settings),
        running.telemetry.prepare(settings),
        partial(change_engine, running.engine, changeable_of(settings)),
        *_of_servers(running.servers, before, settings),
        *_of_services(running.engine, before, settings),
    ]
    storage = settings.storage
    if storage != before.storage:
        change_upkeep = partial(
            running.upkeep.change,
            save_seconds=storage.save_seconds,
            tidy_seconds=storage.retention_check_seconds,
            disk_seconds=storage.disk_check_seconds,
        )
        steps.append(change_upkeep)
    if settings.tls != before.tls:
        steps.append(partial(running.tls_watch.every, settings.tls.check_files_seconds))
    if running.sys_values is not None and settings.mqtt != before.mqtt:
        steps.append(partial(running.sys_values.every, settings.mqtt.sys_interval_seconds))
    if settings.log != before.log:
        steps.append(partial(change_logs, settings.log))

    def apply() -> None:
        for step in steps:
            step()

    return apply


def _of_servers(servers: Mapping[str, Any], before: Settings, settings: Settings) -> Iterator[Step]:
    """What changes at the listeners for clients."""
    listeners = {listener.label: listener for listener in settings.mqtt.listeners}
    for label, server in servers.items():
        protocol = label.rstrip("s")  # a port with TLS may have a server of its own
        if label.startswith("mqtt"):
            if settings.mqtt == before.mqtt:
                continue
            listener = listeners.get(label)
            if listener is not None:
                terms = listener_terms(settings, listener)
            else:
                terms = mqtt_terms(settings, websocket="_ws" in label)
            yield partial(server.change, **terms)
        elif protocol == "amqp":
            yield partial(server.change, amqp_limits(settings))
        elif protocol == "http":
            yield partial(
                server.change,
                connections_max=settings.http.connections_max,
                subscriptions_max=settings.http.subscriptions_max,
                webhooks=webhook_settings(settings),
            )
        elif protocol == "rocketmq":
            yield partial(server.change, connections_max=settings.rocketmq.connections_max)


def _of_services(engine: Engine, before: Settings, settings: Settings) -> Iterator[Step]:
    """Another service, or another way to ask it: what the former one said does not count."""
    if engine.service_logins is not None and settings.login_service != before.login_service:
        yield engine.service_logins.forget_all
    permissions = engine.service_permissions
    if permissions is not None and settings.permission_service != before.permission_service:
        yield permissions.forget_all
