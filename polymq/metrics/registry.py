"""Metrics for Prometheus: read from the parts when somebody asks, never counted on the hot path.

The registry is ours and is passed on; prometheus-client's global one stays empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Literal

import prometheus_client
from aiohttp import web
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The value of a histogram: how many were at most each bound, the last being all, and their
    sum."""

    counts: Sequence[tuple[str, float]]
    total: float


Value = float | Mapping[str, float] | Mapping[tuple[str, ...], float] | Distribution


class Histogram:
    """Counts of values by size.

    Args:
        bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def value(self) -> Distribution:
        """For a `Probe`."""
        names = [*map(str, self._bounds), "+Inf"]
        counts = list(zip(names, accumulate(self._counts), strict=True))
        return Distribution(counts=counts, total=self._total)


@dataclass(frozen=True, slots=True)
class Probe:
    """One metric and how to read it.

    Attributes:
        read: the value, or one per value of `label`; with `labels`, one for each tuple of theirs.
    """

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str
    read: Callable[[], Value]
    label: str = ""
    labels: tuple[str, ...] = ()


gauge: Final = partial(Probe, "gauge")
counter: Final = partial(Probe, "counter")


class ProbeCollector:
    """Asks every probe at each scrape."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._probes = tuple(probes)

    def collect(self) -> Iterable[Metric]:
        """The metrics, in the order of the probes."""
        for probe in self._probes:
            value = probe.read()
            if isinstance(value, Distribution):
                yield HistogramMetricFamily(
                    probe.name, probe.text, buckets=value.counts, sum_value=value.total
                )
                continue
            family = CounterMetricFamily if probe.kind == "counter" else GaugeMetricFamily
            names = probe.labels or ((probe.label,) if probe.label else ())
            metric = family(probe.name, probe.text, labels=list(names) or None)
            values = value.items() if isinstance(value, Mapping) else [((), value)]
            for found, number in values:
                metric.add_metric([found] if isinstance(found, str) else list(found), number)
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
