"""What `/metrics` of a server is made of: the metrics of all its parts. A part of the composition
root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from polymq.admin.mqtt_names import MqttNames
from polymq.broker.engine import Engine
from polymq.core_log.store import Store
from polymq.logins.outside_logins import OutsideLogins
from polymq.metrics.exposition import Exposition, Survey
from polymq.metrics.http import http_probes, webhook_names
from polymq.metrics.log import log_probes
from polymq.metrics.logins import login_probes
from polymq.metrics.mqtt import limit_probes, mqtt_probes
from polymq.metrics.protocols import protocol_probes
from polymq.metrics.queues import queue_probes
from polymq.metrics.readers import ReaderSurvey
from polymq.metrics.registry import Probe, counter, gauge
from polymq.metrics.rosters import Rosters, roster_probes
from polymq.metrics.shortages import shortage_probes
from polymq.metrics.topics import TopicSurvey
from polymq.names import Registration, names_probe
from polymq.net.budget import Budget
from polymq.net.kernels.streams import clock_ms
from polymq.pauses import Pauses
from polymq.replicating import Replication
from polymq.servers import GatewayServer
from polymq.settings import Settings
from polymq.store_report import store_probes
from polymq.tls_files import TlsFiles
from polymq.upkeep import Upkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The parts of a server that have metrics. What is called is called when somebody looks.

    Attributes:
        servers: those of the protocols, by name; more may be opened later.
        rosters: of all listeners that are open.
        has_failed: whether the disk has.
        bugs_count: unexpected errors.
    """

    settings: Settings
    engine: Engine
    store: Store
    budget: Budget
    outside: OutsideLogins
    tls_files: TlsFiles
    replication: Replication
    pauses: Pauses
    servers: Mapping[str, GatewayServer]
    rosters: Callable[[], Rosters]
    upkeep: Callable[[], Upkeep]
    registration: Callable[[], Registration | None]
    has_failed: Callable[[], bool]
    bugs_count: Callable[[], int]

    def http_server(self) -> object:
        """The one that knows the webhooks; None without one."""
        return self.servers.get("http") or self.servers.get("https")


def make_exposition(measured: Measured, more: Sequence[Probe]) -> Exposition:
    """What `/metrics` answers, with further metrics at its end."""
    engine, settings = measured.engine, measured.settings
    shown_max = settings.metrics.objects_max if settings.metrics.per_object else 0
    readers = ReaderSurvey(
        engine,
        clock_ms=clock_ms,
        webhooks=partial(webhook_names, measured.http_server),
        filter_name=MqttNames(engine.port, settings.mqtt.topic).name,
        shown_max=shown_max,
    )
    surveys: list[Survey] = [TopicSurvey(engine, shown_max=shown_max), readers]
    return Exposition([*_probes(measured), *more], surveys, engine.core.reading)


def _probes(measured: Measured) -> list[Probe]:
    engine = measured.engine
    return [
        *store_probes(engine, measured.store),
        *log_probes(engine, measured.store),
        *protocol_probes(lambda: measured.servers),
        *queue_probes(engine),
        *login_probes(engine),
        *measured.outside.probes(),
        *measured.tls_files.probes(),
        *roster_probes(measured.rosters),
        *shortage_probes(measured.upkeep, measured.budget),
        *measured.replication.probes(),
        *mqtt_probes(lambda: measured.servers),
        *limit_probes(engine),
        *http_probes(measured.http_server),
        *measured.pauses.probes(),
        names_probe(measured.registration),
        gauge(
            "polymq_read_only",
            "1 after the disk has failed: nothing can be published until a restart.",
            lambda: float(measured.has_failed()),
        ),
        counter(
            "polymq_bugs",
            "Unexpected errors. Please report the log lines about them.",
            measured.bugs_count,
        ),
    ]
