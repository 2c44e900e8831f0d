"""Metrics for Prometheus: read from the parts when somebody asks, never counted on the hot path.

The registry is ours and is passed on; prometheus-client's global one stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import prometheus_client
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Value = float | Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One metric and how to read it.

    Attributes:
        read: the value, or one per value of `label`.
    """

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    read: Callable[[], Value]
    label: str = field(default="")


class ProbeCollector:
    """Asks every probe at each scrape."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._probes = tuple(probes)

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the order of the probes."""
        for probe in self._probes:
            family = CounterMetricFamily if probe.kind == "counter" else GaugeMetricFamily
            metric = family(probe.name, probe.text, labels=[probe.label] if probe.label else None)
            value = probe.read()
            values = value.items() if isinstance(value, Mapping) else [("", value)]
            for label, number in values:
                metric.add_metric([label] if probe.label else [], number)
            yield metric


def make_registry(probes: Iterable[Probe]) -> prometheus_client.CollectorRegistry:
    """A registry with the probes and what the process itself can tell."""
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(ProbeCollector(probes))
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    return registry


def metrics_route(registry: prometheus_client.CollectorRegistry) -> web.RouteDef:
    """`GET /metrics` in Prometheus' text format."""

    async def answer(_request: web.Request) -> web.Response:
        body = prometheus_client.generate_latest(registry)
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return web.Response(body=body, headers=headers)

    return web.get("/metrics", answer)
