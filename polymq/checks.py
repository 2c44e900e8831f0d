"""Whether a server can run with its settings: files that they name, and parts that belong together.
To be asked before anything is written."""

from __future__ import annotations

from polymq.logins.outside_logins import OutsideLogins
from polymq.mqtt_bridges import check_bridges
from polymq.mqtt_listeners import check_listeners_tls
from polymq.name_server import names_credentials
from polymq.replication_settings import check_settings
from polymq.servers import check_tls
from polymq.settings import Settings
from polymq.telemetry.telemetry import check_telemetry


def check_all(settings: Settings) -> None:
    """Raises Failure: what is wrong first."""
    check_settings(settings)
    check_tls(settings)
    OutsideLogins(settings)
    check_listeners_tls(settings)
    check_bridges(settings)
    names_credentials(settings)
    check_telemetry(settings)
