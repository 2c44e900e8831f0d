"""What of a started server the admin API shows, beside its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from polymq.admin.backups import BackupHandlers
from polymq.admin.gateways import Gateways
from polymq.broker.engine import Engine
from polymq.core_log.store import Store
from polymq.names import Registration
from polymq.net.budget import Budget
from polymq.recent_lines import RecentLines, no_lines
from polymq.reloading.reloader import Reloader
from polymq.replicating import Replication
from polymq.settings import Settings

NO_GATEWAYS: Final = Gateways()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNode:
    """A started server.

    Attributes:
        current: the settings that are in force; a reload changes them.
        status: `ok`, or what is wrong with it.
        connections: clients that are connected now, by protocol.
        registration: with name servers; None: it registers with none.
        gateways: the protocol servers.
        ports: of the listeners for clients, by name; None: it is not open.
        mqtt_listeners: port or path of the further MQTT listeners, by name.
        recent_lines: the last lines of the log.
        started_ms: when it started, in milliseconds since the epoch.
        reloader: reloads the settings; None: nothing does.
    """

    current: Callable[[], Settings]
    engine: Engine
    store: Store
    budget: Budget
    replication: Replication
    backups: BackupHandlers
    status: Callable[[], str]
    connections: Callable[[], Mapping[str, int]]
    registration: Callable[[], Registration | None]
    started_ms: int
    reloader: Reloader | None
    gateways: Gateways = NO_GATEWAYS
    ports: Callable[[], Mapping[str, int | None]] = dict
    mqtt_listeners: Callable[[], Mapping[str, int | str]] = dict
    recent_lines: Callable[[], RecentLines] = no_lines

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.current()
