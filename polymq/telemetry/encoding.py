"""Metrics and spans as requests of OTLP (protobuf). Pure, in steps.

`opentelemetry-proto` has the messages; it is loaded only where telemetry is on. The names of
metrics are those of `/metrics`, where a counter ends in `_total`. They have no units beside their
names, because a receiver would add these to the names once more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import Metric

from polymq.errors import ExitCode, Failure
from polymq.telemetry.spans import Span

POINTS_MAX: Final = 5_000
"""Of one request: less than a megabyte."""
AT_ONCE: Final = 100
"""Points that are made in one step: some 300 us."""
NS_PER_MS: Final = 1_000_000
SPAN_FLAGS: Final = 0x301
"""Sampled; and that it is known to be remote where the parent is, which it is."""
BUCKET_LABEL: Final = "le"
MODULES: Final = {
    "common": "opentelemetry.proto.common.v1.common_pb2",
    "resource": "opentelemetry.proto.resource.v1.resource_pb2",
    "metrics": "opentelemetry.proto.metrics.v1.metrics_pb2",
    "traces": "opentelemetry.proto.trace.v1.trace_pb2",
    "metrics_service": "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    "errors": "google.protobuf.message",
    "trace_service": "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
}

Requests = Generator[None, None, list[bytes]]
Request = Generator[None, None, bytes]


class Encoder:
    """Makes requests.

    Args:
        resource: attributes of this broker.
        started_ms: when it was started: counters count from then on.
        new_id: random bytes, so many.

    Raises:
        Failure: USAGE, the extra is not installed.
    """

    def __init__(
        self, resource: Mapping[str, str], *, started_ms: int, new_id: Callable[[int], bytes]
    ) -> None:
        try:
            loaded = {name: importlib.import_module(path) for name, path in MODULES.items()}
        except ImportError as error:
            text = (
                "telemetry.endpoint needs OpenTelemetry's messages: install them with "
                "`pip install 'polymq[telemetry]'`"
            )
            raise Failure(ExitCode.USAGE, text) from error
        self._loaded: Mapping[str, Any] = loaded
        self._resource = loaded["resource"].Resource(attributes=self._attributes(resource))
        self._scope = loaded["common"].InstrumentationScope(name="polymq")
        self._started_ns = started_ms * NS_PER_MS
        self._new_id = new_id

    def _attributes(self, values: Mapping[str, str | int]) -> list[Any]:
        common = self._loaded["common"]
        return [
            common.KeyValue(
                key=key,
                value=common.AnyValue(int_value=value)
                if isinstance(value, int)
                else common.AnyValue(string_value=value.encode("utf-8", "replace").decode()),
            )
            for key, value in values.items()
        ]

    # --- metrics ------------------------------------------------------------------------------

    def metrics(self, metrics: Iterable[Metric], now_ms: int) -> Requests:
        """The requests that these metrics are, as of now."""
        proto, count = self._loaded["metrics"], 0
        requests: list[bytes] = []
        made: list[Any] = []
        for metric in metrics:
            points = self._histogram if metric.type == "histogram" else self._numbers
            for one, size in points(metric, now_ms * NS_PER_MS):
                made.append(one)
                count += size
                if count >= POINTS_MAX:
                    requests.append(self._metrics_request(proto, made))
                    made, count = [], 0
                yield
        if made:
            requests.append(self._metrics_request(proto, made))
        return requests

    def _metrics_request(self, proto: Any, metrics: Sequence[Any]) -> bytes:
        scoped = proto.ScopeMetrics(scope=self._scope, metrics=metrics)
        found = proto.ResourceMetrics(resource=self._resource, scope_metrics=[scoped])
        request = self._loaded["metrics_service"].ExportMetricsServiceRequest(
            resource_metrics=[found]
        )
        content: bytes = request.SerializeToString()
        return content

    def _numbers(self, metric: Metric, now_ns: int) -> Iterable[tuple[Any, int]]:
        """A counter or gauge, so many points at a time."""
        proto = self._loaded["metrics"]
        is_counter = metric.type == "counter"
        name = f"{metric.name}_total" if is_counter else metric.name
        samples = [sample for sample in metric.samples if sample.name == name]
        for first in range(0, len(samples), AT_ONCE):
            points = [
                proto.NumberDataPoint(
                    attributes=self._attributes(sample.labels),
                    start_time_unix_nano=self._started_ns if is_counter else 0,
                    time_unix_nano=now_ns,
                    as_double=sample.value,
                )
                for sample in samples[first : first + AT_ONCE]
            ]
            made = proto.Metric(name=name, description=metric.documentation)
            if is_counter:
                made.sum.CopyFrom(
                    proto.Sum(
                        data_points=points,
                        aggregation_temporality=proto.AGGREGATION_TEMPORALITY_CUMULATIVE,
                        is_monotonic=True,
                    )
                )
            else:
                made.gauge.CopyFrom(proto.Gauge(data_points=points))
            yield made, len(points)

    def _histogram(self, metric: Metric, now_ns: int) -> Iterable[tuple[Any, int]]:
        """A histogram of one series: bounds, and what is between each two."""
        proto = self._loaded["metrics"]
        bounds: list[float] = []
        up_to: list[int] = []
        total = 0.0
        for sample in metric.samples:
            if sample.name == f"{metric.name}_bucket":
                bounds.append(float(sample.labels[BUCKET_LABEL]))
                up_to.append(int(sample.value))
            elif sample.name == f"{metric.name}_sum":
                total = sample.value
        between = [after - before for before, after in zip([0, *up_to], up_to, strict=False)]
        point = proto.HistogramDataPoint(
            start_time_unix_nano=self._started_ns,
            time_unix_nano=now_ns,
            count=up_to[-1],
            sum=total,
            bucket_counts=between,
            explicit_bounds=bounds[:-1],
        )
        made = proto.Metric(name=metric.name, description=metric.documentation)
        made.histogram.CopyFrom(
            proto.Histogram(
                data_points=[point],
                aggregation_temporality=proto.AGGREGATION_TEMPORALITY_CUMULATIVE,
            )
        )
        yield made, 1

    # --- spans --------------------------------------------------------------------------------

    def spans(self, spans: Sequence[Span]) -> Request:
        """The request that these spans are."""
        proto = self._loaded["traces"]
        made = []
        for span in spans:
            made.append(self._span(proto, span))
            yield
        scoped = proto.ScopeSpans(scope=self._scope, spans=made)
        found = proto.ResourceSpans(resource=self._resource, scope_spans=[scoped])
        service = self._loaded["trace_service"]
        request = service.ExportTraceServiceRequest(resource_spans=[found])
        content: bytes = request.SerializeToString()
        return content

    def _span(self, proto: Any, span: Span) -> Any:
        parent = span.parent
        return proto.Span(
            trace_id=parent.trace_id,
            span_id=self._new_id(8),
            parent_span_id=parent.span_id,
            trace_state=parent.state,
            flags=SPAN_FLAGS,
            name=span.name.encode("utf-8", "replace").decode(),
            kind=proto.Span.SPAN_KIND_CONSUMER
            if span.is_delivery
            else proto.Span.SPAN_KIND_PRODUCER,
            start_time_unix_nano=span.start_ms * NS_PER_MS,
            end_time_unix_nano=span.end_ms * NS_PER_MS,
            attributes=self._attributes(span.attributes),
        )

    # --- answers ------------------------------------------------------------------------------

    def rejected_of(self, signal: str, answer: bytes) -> tuple[int, str]:
        """How much of a request the collector did not take, by its answer, and why. Raises
        ValueError: it is no answer of OTLP."""
        service = self._loaded["trace_service" if signal == "traces" else "metrics_service"]
        kind = "Trace" if signal == "traces" else "Metrics"
        try:
            found = getattr(service, f"Export{kind}ServiceResponse").FromString(answer)
        except self._loaded["errors"].DecodeError as error:
            raise ValueError("it does not answer as a collector of OTLP") from error
        partial = found.partial_success
        count = partial.rejected_spans if signal == "traces" else partial.rejected_data_points
        return count, partial.error_message
