"""Metrics and spans as OTLP has them, parsed by its own messages."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from polymq.telemetry.encoding import AT_ONCE, POINTS_MAX, Encoder
from polymq.telemetry.spans import Span
from polymq.telemetry.trace_context import TraceContext

service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    reason="needs polymq[telemetry]",
)

T = TypeVar("T")


@pytest.fixture
def encoder() -> Encoder:
    numbers = itertools.count(1)
    return Encoder(
        {"service.name": "polymq"},
        started_ms=1_000,
        new_id=lambda size: next(numbers).to_bytes(size),
    )


def finish(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What a generator returns, and in how many steps."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def metrics_in(request: bytes) -> list[Any]:
    (found,) = service.ExportMetricsServiceRequest.FromString(request).resource_metrics
    assert found.resource.attributes[0].value.string_value == "polymq"
    (scoped,) = found.scope_metrics
    return list(scoped.metrics)


def test_kinds_of_metrics(encoder: Encoder) -> None:
    counter = CounterMetricFamily("polymq_saves", "Saves.", labels=["kind"])
    counter.add_metric(["state"], 7)
    gauge = GaugeMetricFamily("polymq_users", "Users.", value=2.5)
    buckets = [("0.1", 3.0), ("1.0", 5.0), ("+Inf", 6.0)]
    histogram = HistogramMetricFamily("polymq_seconds", "Time.", buckets=buckets, sum_value=9.5)
    (request,), _ = finish(encoder.metrics([counter, gauge, histogram], 2_000))
    saves, users, seconds = metrics_in(request)
    assert (saves.name, saves.description) == ("polymq_saves_total", "Saves.")
    assert saves.sum.is_monotonic
    assert saves.sum.aggregation_temporality == 2, "cumulative"
    (point,) = saves.sum.data_points
    assert (point.as_double, point.attributes[0].key) == (7, "kind")
    assert (point.start_time_unix_nano, point.time_unix_nano) == (10**9, 2 * 10**9)
    assert users.gauge.data_points[0].as_double == 2.5
    (point,) = seconds.histogram.data_points
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [3, 2, 1]
    assert (point.count, point.sum) == (6, 9.5)


def test_very_many_series_are_several_requests_in_many_steps(encoder: Encoder) -> None:
    gauge = GaugeMetricFamily("polymq_many", "Many.", labels=["name"])
    count = 2 * POINTS_MAX + 1
    for number in range(count):
        gauge.add_metric([str(number)], number)
    requests, steps = finish(encoder.metrics([gauge], 0))
    assert len(requests) == 3
    assert steps >= count // AT_ONCE
    points = [
        point.as_double
        for request in requests
        for metric in metrics_in(request)
        for point in metric.gauge.data_points
    ]
    assert points == list(range(count))


def test_text_that_is_no_unicode_fails_nothing(encoder: Encoder) -> None:
    """A topic may have any bytes."""
    parent = TraceContext(trace_id=b"t" * 16, span_id=b"s" * 8)
    span = Span(
        name="publish \udcff",
        parent=parent,
        is_delivery=False,
        start_ms=1,
        end_ms=1,
        attributes={"messaging.destination.name": "\udcff"},
    )
    request, _ = finish(encoder.spans([span, span]))
    traces = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    (found,) = traces.ExportTraceServiceRequest.FromString(request).resource_spans
    one, other = found.scope_spans[0].spans
    assert (one.name, one.attributes[0].value.string_value) == ("publish ?", "?")
    assert one.span_id != other.span_id
    assert (one.trace_id, one.parent_span_id) == (b"t" * 16, b"s" * 8)


def test_answers_that_are_none(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="collector of OTLP"):
        encoder.rejected_of("traces", b"\xff\xff\xff")
    assert encoder.rejected_of("metrics", b"") == (0, "")
