"""The list: what `make sabotage` does to the code.

Prefer lines that will stay, and the narrowest suite that has to notice.
"""

from __future__ import annotations

from tests.sabotage.of_amqp import OF_AMQP
from tests.sabotage.of_crashes import OF_CRASHES
from tests.sabotage.of_mqtt_5 import OF_MQTT_5
from tests.sabotage.of_mqtt_extras import OF_MQTT_EXTRAS
from tests.sabotage.of_the_backups import OF_THE_BACKUPS
from tests.sabotage.of_the_bounds import OF_THE_BOUNDS
from tests.sabotage.of_the_bridges import OF_THE_BRIDGES
from tests.sabotage.of_the_clients import OF_THE_CLIENTS
from tests.sabotage.of_the_console import OF_THE_CONSOLE
from tests.sabotage.of_the_control import OF_THE_CONTROL
from tests.sabotage.of_the_conversion import OF_THE_CONVERSION
from tests.sabotage.of_the_definitions import OF_THE_DEFINITIONS
from tests.sabotage.of_the_documentation import OF_THE_DOCUMENTATION
from tests.sabotage.of_the_engine import OF_THE_ENGINE
from tests.sabotage.of_the_gateways import OF_THE_GATEWAYS
from tests.sabotage.of_the_kernels import OF_THE_KERNELS
from tests.sabotage.of_the_lake import OF_THE_LAKE
from tests.sabotage.of_the_listeners import OF_THE_LISTENERS
from tests.sabotage.of_the_logins import OF_THE_LOGINS
from tests.sabotage.of_the_management import OF_THE_MANAGEMENT
from tests.sabotage.of_the_metrics import OF_THE_METRICS
from tests.sabotage.of_the_mqtt_rules import OF_THE_MQTT_RULES
from tests.sabotage.of_the_names import OF_THE_NAMES
from tests.sabotage.of_the_operators import OF_THE_OPERATORS
from tests.sabotage.of_the_overlaps import OF_THE_OVERLAPS
from tests.sabotage.of_the_packages import OF_THE_PACKAGES
from tests.sabotage.of_the_pauses import OF_THE_PAUSES
from tests.sabotage.of_the_permissions import OF_THE_PERMISSIONS
from tests.sabotage.of_the_preshared_keys import OF_THE_PRESHARED_KEYS
from tests.sabotage.of_the_properties import OF_THE_PROPERTIES
from tests.sabotage.of_the_reloads import OF_THE_RELOADS
from tests.sabotage.of_the_remoting import OF_THE_REMOTING
from tests.sabotage.of_the_replication import OF_THE_REPLICATION
from tests.sabotage.of_the_retained import OF_THE_RETAINED
from tests.sabotage.of_the_retention import OF_THE_RETENTION
from tests.sabotage.of_the_session_bytes import OF_THE_SESSION_BYTES
from tests.sabotage.of_the_sessions import OF_THE_SESSIONS
from tests.sabotage.of_the_shortages import OF_THE_SHORTAGES
from tests.sabotage.of_the_sink import OF_THE_SINK
from tests.sabotage.of_the_speed import OF_THE_SPEED
from tests.sabotage.of_the_starts import OF_THE_STARTS
from tests.sabotage.of_the_store import OF_THE_STORE
from tests.sabotage.of_the_telemetry import OF_THE_TELEMETRY
from tests.sabotage.of_the_traffic import OF_THE_TRAFFIC
from tests.sabotage.of_the_turns import OF_THE_TURNS
from tests.sabotage.of_the_users import OF_THE_USERS
from tests.sabotage.of_the_ways import OF_THE_WAYS
from tests.sabotage.of_the_websockets import OF_THE_WEBSOCKETS

SABOTAGES = (
    *OF_THE_STORE,
    *OF_THE_BRIDGES,
    *OF_THE_SHORTAGES,
    *OF_THE_STARTS,
    *OF_THE_RELOADS,
    *OF_CRASHES,
    *OF_THE_KERNELS,
    *OF_THE_BOUNDS,
    *OF_THE_TURNS,
    *OF_THE_TRAFFIC,
    *OF_THE_CLIENTS,
    *OF_THE_CONSOLE,
    *OF_THE_CONTROL,
    *OF_THE_CONVERSION,
    *OF_THE_DEFINITIONS,
    *OF_THE_DOCUMENTATION,
    *OF_THE_ENGINE,
    *OF_THE_SESSION_BYTES,
    *OF_THE_SESSIONS,
    *OF_THE_OVERLAPS,
    *OF_THE_GATEWAYS,
    *OF_MQTT_5,
    *OF_THE_LAKE,
    *OF_THE_LISTENERS,
    *OF_THE_PRESHARED_KEYS,
    *OF_MQTT_EXTRAS,
    *OF_THE_MQTT_RULES,
    *OF_AMQP,
    *OF_THE_NAMES,
    *OF_THE_METRICS,
    *OF_THE_MANAGEMENT,
    *OF_THE_OPERATORS,
    *OF_THE_PACKAGES,
    *OF_THE_SPEED,
    *OF_THE_USERS,
    *OF_THE_LOGINS,
    *OF_THE_PAUSES,
    *OF_THE_PERMISSIONS,
    *OF_THE_PROPERTIES,
    *OF_THE_REMOTING,
    *OF_THE_RETAINED,
    *OF_THE_RETENTION,
    *OF_THE_BACKUPS,
    *OF_THE_REPLICATION,
    *OF_THE_SINK,
    *OF_THE_WAYS,
    *OF_THE_TELEMETRY,
    *OF_THE_WEBSOCKETS,
)
