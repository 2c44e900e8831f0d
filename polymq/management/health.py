"""Health checks: 200 and `{"status":"ok"}`, or 503 and what is wrong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from polymq.management.callers import Rank
from polymq.management.context import Context
from polymq.management.errors import UNAVAILABLE, Problem, bad
from polymq.management.routing import Call, Route
from polymq.tls import validity

OK: Final = {"status": "ok"}
_UNITS: Final = {
    "days": timedelta(days=1),
    "weeks": timedelta(days=7),
    "months": timedelta(days=30),
    "years": timedelta(days=365),
}
WITHIN_MAX: Final = 1_000
_ALIASES: Final = {"amqp091": "amqp", "amqps": "amqp/ssl", "mqtts": "mqtt/ssl"}


class Unhealthy(Problem):
    """A check that failed.

    Args:
        more: further fields of the answer.
    """

    def __init__(self, reason: str, **more: Any) -> None:
        super().__init__(UNAVAILABLE, reason)
        self._more = more

    def value(self) -> dict[str, Any]:
        """The answer's JSON object."""
        return {"status": "failed", "reason": self.reason, **self._more}


class HealthHandlers:
    """The answers below `/health/checks`, and the older tests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._node = context.node

    def routes(self) -> list[Route]:
        """For the table."""
        rank, checks = Rank.MANAGEMENT, "/health/checks"
        within = f"{checks}/certificate-expiration/{{within}}/{{unit}}"
        return [
            Route("GET", f"{checks}/alarms", rank, self._alarms),
            Route("GET", f"{checks}/local-alarms", rank, self._alarms),
            Route("GET", f"{checks}/virtual-hosts", rank, self._alive),
            Route("GET", f"{checks}/ready-to-serve-clients", rank, self._alive),
            Route("GET", f"{checks}/is-in-service", rank, self._alive),
            Route("GET", f"{checks}/node-is-quorum-critical", rank, self._alive),
            Route("GET", f"{checks}/node-is-mirror-sync-critical", rank, self._alive),
            Route("GET", f"{checks}/below-node-connection-limit", rank, self._alive),
            Route("GET", f"{checks}/port-listener/{{port}}", rank, self._port),
            Route("GET", f"{checks}/protocol-listener/{{protocol}}", rank, self._protocol),
            Route("GET", f"{checks}/protocol-listener/{{one}}/{{two}}", rank, self._protocol),
            Route("GET", within, rank, self._certificate),
            Route("GET", "/aliveness-test/{vhost}", rank, self._alive),
            Route("GET", "/healthchecks/node", rank, self._alive),
            Route("GET", "/healthchecks/node/{name}", rank, self._alive),
        ]

    async def _alive(self, _call: Call) -> dict[str, Any]:
        """Whether the broker takes messages."""
        health = self._node.health()
        if health != "ok":
            raise Unhealthy(health)
        return OK

    async def _alarms(self, _call: Call) -> dict[str, Any]:
        disk = self._context.engine.core.disk
        if disk.full:
            alarm = {"node": self._node.name, "resource": "disk"}
            raise Unhealthy("There are alarms in effect in the cluster", alarms=[alarm])
        return OK

    async def _port(self, call: Call) -> dict[str, Any]:
        text = call.names["port"]
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            raise bad(f"{text!r} is not a port")
        ports = sorted({one.port for one in self._node.listeners()})
        if int(text) not in ports:
            raise Unhealthy("No active listener", missing=int(text), ports=ports)
        return {**OK, "port": int(text)}

    async def _protocol(self, call: Call) -> dict[str, Any]:
        asked = "/".join(call.names.values()).lower()
        protocols = sorted({one.protocol for one in self._node.listeners()})
        if _ALIASES.get(asked, asked) not in protocols:
            raise Unhealthy("No active listener", missing=asked, protocols=protocols)
        return {**OK, "protocol": asked}

    async def _certificate(self, call: Call) -> dict[str, Any]:
        within, unit = call.names["within"], _UNITS.get(call.names["unit"])
        is_number = within.isascii() and within.isdecimal() and len(within) < 5
        if unit is None or not is_number or not 0 < int(within) <= WITHIN_MAX:
            units = ", ".join(_UNITS)
            raise bad(f"certificates expire within 1 to {WITHIN_MAX} of: {units}")
        if not self._node.certificate:
            return OK
        ends = await asyncio.to_thread(_end_of, self._node.certificate)
        if ends is None:
            raise Unhealthy(f"{self._node.certificate} cannot be read")
        if ends <= datetime.now(UTC) + int(within) * unit:
            text = f"Certificates expiring: {self._node.certificate}, {ends:%Y-%m-%d}"
            raise Unhealthy(text, expired=[])
        return OK


def _end_of(file: str) -> datetime | None:
    """When the first certificate of a file ends; None if that cannot be read."""
    try:
        return validity(Path(file).read_text(encoding="ascii", errors="replace"))[1]
    except (OSError, ValueError):
        return None
