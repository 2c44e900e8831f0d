"""The broker as a whole: overview, nodes, the cluster's name, the virtual host, who one is."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any, Final

from polymq.broker.exchanges.entities import DELAYED_TYPE, TYPES
from polymq.gateways.amqp.inspection import connection_info
from polymq.management.callers import Rank
from polymq.management.context import RABBITMQ_VERSION, Context
from polymq.management.errors import bad, missing
from polymq.management.figures import COUNTERS, GAUGES, picked
from polymq.management.lists import NOTHING, Items, itself
from polymq.management.routing import VHOST, Call, Route
from polymq.management.totals import Totals
from polymq.steps import in_steps

_TYPE_TEXTS: Final = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    DELAYED_TYPE: "Delayed message exchange",
}
STEP_CONNECTIONS: Final = 100
"""Connections that are looked at in one step."""
FLAGS: Final = (
    "classic_mirrored_queue_version",
    "implicit_default_bindings",
    "maintenance_mode_status",
    "quorum_queue",
    "user_limits",
    "virtual_host_metadata",
)
"""Feature flags of RabbitMQ that clients look for: their features are there, or of no matter."""


class OverviewHandlers:
    """The answers about the broker as a whole."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._node = context.node
        self._totals = Totals(context.engine)

    def routes(self) -> list[Route]:
        """For the table."""
        rank, monitoring = Rank.MANAGEMENT, Rank.MONITORING
        return [
            Route("GET", "/overview", rank, self._overview),
            Route("GET", "/cluster-name", rank, self._cluster_name),
            Route("PUT", "/cluster-name", Rank.ADMINISTRATOR, self._rename_cluster),
            Route("GET", "/nodes", monitoring, self._nodes),
            Route("GET", "/nodes/{name}", monitoring, self._show_node),
            Route("GET", "/nodes/{name}/memory", monitoring, self._memory),
            Route("GET", "/vhosts", rank, self._vhosts),
            Route("GET", "/vhosts/{name}", rank, self._show_vhost),
            Route("PUT", "/vhosts/{name}", Rank.ADMINISTRATOR, self._make_vhost),
            Route("DELETE", "/vhosts/{name}", Rank.ADMINISTRATOR, self._delete_vhost),
            Route("POST", "/vhosts/{vhost}/start/{node}", Rank.ADMINISTRATOR, self._start_vhost),
            Route("GET", "/whoami", rank, self._whoami),
            Route("GET", "/auth", rank, self._auth),
            Route("GET", "/extensions", rank, self._extensions),
            Route("GET", "/feature-flags", rank, self._flags),
            Route("GET", "/deprecated-features", rank, self._nothing),
            Route("GET", "/deprecated-features/used", rank, self._nothing),
            Route("GET", "/federation-links", rank, self._nothing),
            Route("GET", "/federation-links/{vhost}", rank, self._nothing),
            Route("GET", "/shovels", rank, self._nothing),
            Route("GET", "/shovels/{vhost}", rank, self._nothing),
        ]

    # --- overview -------------------------------------------------------------------------

    async def _overview(self, call: Call) -> Mapping[str, Any]:
        counts = await in_steps(self._totals.count())
        shown = self._context.rates.with_rates("overview", counts)
        node = self._node
        value: dict[str, Any] = {
            "management_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "PolyMQ",
            "product_version": node.version,
            "erlang_version": "none",
            "erlang_full_version": f"none: Python {platform.python_version()}",
            "cluster_name": node.cluster,
            "rates_mode": "basic",
            "statistics_level": "fine",
            "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
            "release_series_support_status": "supported",
            "disable_stats": False,
            "enable_queue_totals": False,
            "is_op_policy_updating_enabled": False,
            "exchange_types": _exchange_types(),
            "node": node.name,
            "statistics_db_node": node.name,
            "statistics_db_event_queue": 0,
            "message_stats": picked(shown, COUNTERS),
            "queue_totals": picked(shown, GAUGES),
            "churn_rates": {},
            "object_totals": await in_steps(self._object_totals()),
        }
        if call.caller.sees_all:
            value |= {"listeners": self._listeners(), "contexts": self._contexts()}
        return value

    def _object_totals(self) -> Generator[None, None, Mapping[str, int]]:
        """How many there are of each kind, in steps."""
        channels = consumers = count = 0
        for number, connection in enumerate(list(self._node.connections())):
            info = connection_info(connection)
            if info is not None:
                count += 1
                channels += len(info.channels)
                consumers += sum(len(one.consumers) for one in info.channels.values())
            if number % STEP_CONNECTIONS == 0:
                yield
        return {
            "connections": count + len(self._engine.connections.clients),
            "channels": channels,
            "consumers": consumers,
            "exchanges": len(self._engine.exchanges.exchanges),
            "queues": len(self._engine.named_queues.queues),
        }

    def _listeners(self) -> list[dict[str, Any]]:
        return [
            {
                "node": self._node.name,
                "protocol": one.protocol,
                "ip_address": one.host,
                "port": one.port,
                "socket_opts": {},
            }
            for one in self._node.listeners()
        ]

    def _contexts(self) -> list[dict[str, Any]]:
        return [
            {
                "node": self._node.name,
                "description": "RabbitMQ Management",
                "path": "/",
                "port": str(one.port),
                "ip": one.host,
                "ssl": one.protocol == "https",
            }
            for one in self._node.listeners()
            if one.protocol in ("http", "https")
        ]

    # --- nodes ----------------------------------------------------------------------------

    async def _nodes(self, _call: Call) -> Items:
        return Items(entries=[self._node_row()], row=itself, name=_name_of)

    async def _show_node(self, call: Call) -> Mapping[str, Any]:
        if call.names["name"] != self._node.name:
            raise missing()
        return self._node_row()

    async def _memory(self, call: Call) -> Mapping[str, Any]:
        if call.names["name"] != self._node.name:
            raise missing()
        used = _memory_used()
        return {"memory": {"total": {"rss": used, "allocated": used, "erlang": 0}}}

    def _node_row(self) -> Mapping[str, Any]:
        node, disk = self._node, self._engine.core.disk
        connections = sum(1 for _ in node.connections())
        health = node.health()
        gauges = {
            "mem_used": _memory_used(),
            "disk_free": disk.free_bytes,
            "fd_used": connections,
            "sockets_used": connections,
            "proc_used": 1,
        }
        return {
            "name": node.name,
            "type": "disc",
            "running": True,
            "being_drained": False,
            "os_pid": str(os.getpid()),
            "uptime": max(0, int(time.time() * 1000) - node.started_ms),
            "processors": os.cpu_count() or 1,
            "run_queue": 0,
            "fd_total": node.descriptors,
            "sockets_total": node.descriptors,
            "proc_total": 1,
            "mem_limit": _memory_of_machine(),
            "mem_alarm": False,
            "mem_calculation_strategy": "rss",
            "disk_free_limit": disk.reserve_bytes,
            "disk_free_alarm": disk.full,
            "partitions": [],
            "cluster_links": [],
            "rates_mode": "basic",
            "net_ticktime": 60,
            "db_dir": node.data_directory,
            "config_files": [],
            "log_files": ["<stderr>"],
            "enabled_plugins": ["rabbitmq_management"],
            "applications": [
                {"name": "polymq", "description": health, "version": node.version},
            ],
            "exchange_types": _exchange_types(),
            "auth_mechanisms": [
                {"name": name, "description": f"SASL {name}", "enabled": True}
                for name in ("PLAIN", "AMQPLAIN")
            ],
            "contexts": self._contexts(),
            **self._context.rates.with_rates("node", gauges),
        }

    # --- the cluster and the virtual host -------------------------------------------------

    async def _cluster_name(self, _call: Call) -> Mapping[str, str]:
        return {"name": self._node.cluster}

    async def _rename_cluster(self, call: Call) -> None:
        if call.body.text("name") != self._node.cluster:
            raise bad("the cluster is named by the setting names.cluster: change that, and restart")

    async def _vhosts(self, _call: Call) -> Items:
        return Items(entries=[await self._vhost_row()], row=itself, name=_name_of)

    async def _show_vhost(self, call: Call) -> Mapping[str, Any]:
        if call.names["name"] != VHOST:
            raise missing()
        return await self._vhost_row()

    async def _vhost_row(self) -> Mapping[str, Any]:
        counts = await in_steps(self._totals.count())
        shown = self._context.rates.with_rates("vhost", counts)
        return {
            "name": VHOST,
            "description": "Default virtual host",
            "tags": [],
            "default_queue_type": "classic",
            "metadata": {"description": "Default virtual host", "tags": []},
            "tracing": False,
            "cluster_state": {self._node.name: "running"},
            "message_stats": picked(shown, COUNTERS),
            **picked(shown, GAUGES),
        }

    async def _make_vhost(self, call: Call) -> None:
        if call.names["name"] != VHOST:
            raise bad("there is one virtual host, '/', and no other can be made")

    async def _delete_vhost(self, call: Call) -> None:
        if call.names["name"] != VHOST:
            raise missing()
        raise bad("the virtual host '/' cannot be deleted: there is no other")

    async def _start_vhost(self, call: Call) -> None:
        if call.names["node"] != self._node.name:
            raise missing()

    # --- who one is, and what there is ----------------------------------------------------

    async def _whoami(self, call: Call) -> Mapping[str, Any]:
        caller = call.caller
        return {
            "name": caller.name,
            "tags": list(caller.tags),
            "is_internal_user": True,
            "auth_backend": "rabbit_auth_backend_internal",
        }

    async def _auth(self, _call: Call) -> Mapping[str, Any]:
        return {"oauth_enabled": False}

    async def _extensions(self, _call: Call) -> Items:
        return Items(entries=[{"javascript": "dispatcher.js"}], row=itself)

    async def _flags(self, _call: Call) -> Items:
        rows = [
            {
                "name": name,
                "desc": "",
                "doc_url": "",
                "state": "enabled",
                "stability": "stable",
                "provided_by": "rabbit",
            }
            for name in FLAGS
        ]
        return Items(entries=rows, row=itself, name=_name_of)

    async def _nothing(self, _call: Call) -> Items:
        """What RabbitMQ has plugins for, and nobody has here."""
        return NOTHING


def _name_of(row: Mapping[str, Any]) -> str:
    return str(row["name"])


def _exchange_types() -> list[dict[str, Any]]:
    return [
        {"name": name, "description": _TYPE_TEXTS[name], "enabled": True}
        for name in (*TYPES, DELAYED_TYPE)
    ]


def _memory_used() -> int:
    """Of this process, in bytes; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _memory_of_machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return sys.maxsize
