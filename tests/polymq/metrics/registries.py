"""Metrics as prometheus-client itself collects them: what an answer is compared with."""

from __future__ import annotations

from collections.abc import Iterable

import prometheus_client
from prometheus_client.core import Metric

from polymq.metrics.registry import Probe, metric_of


class ProbeCollector:
    """Asks every probe."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._probes = tuple(probes)

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the order of the probes."""
        return map(metric_of, self._probes)


def make_registry(probes: Iterable[Probe]) -> prometheus_client.CollectorRegistry:
    """A registry with the probes and what the process itself can tell."""
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(ProbeCollector(probes))
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    return registry
