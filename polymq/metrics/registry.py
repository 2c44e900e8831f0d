"""Metrics for Prometheus: read from the parts when somebody asks, never counted on the hot path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from polymq.core_log.durations import Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The value of a histogram: how many were at most each bound, the last being all, and their
    sum."""

    counts: Sequence[tuple[str, float]]
    total: float


Value = float | Mapping[str, float] | Mapping[tuple[str, ...], float] | Distribution


def distribution(durations: Durations) -> Distribution:
    """What was counted, as a histogram."""
    names = [*map(str, durations.bounds), "+Inf"]
    counts = list(zip(names, accumulate(durations.counts), strict=True))
    return Distribution(counts=counts, total=durations.total)


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


def histogram(name: str, text: str, durations: Durations) -> Probe:
    """A metric of durations in seconds."""
    return Probe("histogram", name, text, partial(distribution, durations))


def metric_of(probe: Probe) -> Metric:
    """Ask a probe."""
    value = probe.read()
    if isinstance(value, Distribution):
        return HistogramMetricFamily(
            probe.name, probe.text, buckets=value.counts, sum_value=value.total
        )
    family = CounterMetricFamily if probe.kind == "counter" else GaugeMetricFamily
    names = probe.labels or ((probe.label,) if probe.label else ())
    metric = family(probe.name, probe.text, labels=list(names) or None)
    values = value.items() if isinstance(value, Mapping) else [((), value)]
    for found, number in values:
        metric.add_metric([found] if isinstance(found, str) else list(found), number)
    return metric
