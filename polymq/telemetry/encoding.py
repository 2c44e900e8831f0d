"""Metrics and spans as requests of OTLP (protobuf). Pure, in steps.

`opentelemetry-proto` has the messages; it is loaded only where telemetry is on. The names of
metrics are those of `/metrics`, where a counter ends in `_total`. They have no units beside their
names, because a receiver would add these to the names once more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from prometheus_client.core import Metric, Sample

from polymq.errors import ExitCode, Failure
from polymq.telemetry.spans import Span

POINTS_MAX: Final = 2_000
"""Of one request: some hundred kilobytes."""
AT_ONCE: Final = 100
"""Points that are made in one step: some 300 us."""
NS_PER_MS: Final = 1_000_000
SPAN_ID_BYTES: Final = 8
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
                else common.AnyValue(string_value=_unicode(value)),
            )
            for key, value in values.items()
        ]

    # --- metrics ------------------------------------------------------------------------------

    def metrics(self, metrics: Iterable[Metric], now_ms: int) -> Requests:
        """The requests that these metrics are, as of now."""
        requests: list[bytes] = []
        request, made = self._metrics_request()
        count = 0
        for metric in metrics:
            add = self._add_histogram if metric.type == "histogram" else self._add_numbers
            for samples in _parts_of(metric):
                count += add(made, metric, samples, now_ms * NS_PER_MS)
                if count >= POINTS_MAX:
                    requests.append(request.SerializeToString())
                    request, made = self._metrics_request()
                    count = 0
                yield
        if count:
            requests.append(request.SerializeToString())
        return requests

    def _metrics_request(self) -> tuple[Any, Any]:
        """A request, and where its metrics are added: what is added is not copied any more."""
        request = self._loaded["metrics_service"].ExportMetricsServiceRequest()
        found = request.resource_metrics.add(resource=self._resource)
        return request, found.scope_metrics.add(scope=self._scope).metrics

    def _add_numbers(
        self, made: Any, metric: Metric, samples: Sequence[Sample], now_ns: int
    ) -> int:
        """Series of a counter or gauge. Returns how many points they are."""
        proto = self._loaded["metrics"]
        is_counter = metric.type == "counter"
        one = made.add(name=samples[0].name, description=metric.documentation)
        if is_counter:
            one.sum.aggregation_temporality = proto.AGGREGATION_TEMPORALITY_CUMULATIVE
            one.sum.is_monotonic = True
        points = one.sum.data_points if is_counter else one.gauge.data_points
        for sample in samples:
            points.add(
                attributes=self._attributes(sample.labels),
                start_time_unix_nano=self._started_ns if is_counter else 0,
                time_unix_nano=now_ns,
                as_double=sample.value,
            )
        return len(points)

    def _add_histogram(
        self, made: Any, metric: Metric, samples: Sequence[Sample], now_ns: int
    ) -> int:
        """A histogram of one series: bounds, and what is between each two."""
        proto = self._loaded["metrics"]
        bounds: list[float] = []
        up_to: list[int] = []
        total = 0.0
        for sample in samples:
            if sample.name == f"{metric.name}_bucket":
                bounds.append(float(sample.labels[BUCKET_LABEL]))
                up_to.append(int(sample.value))
            elif sample.name == f"{metric.name}_sum":
                total = sample.value
        one = made.add(name=metric.name, description=metric.documentation)
        one.histogram.aggregation_temporality = proto.AGGREGATION_TEMPORALITY_CUMULATIVE
        one.histogram.data_points.add(
            start_time_unix_nano=self._started_ns,
            time_unix_nano=now_ns,
            count=up_to[-1],
            sum=total,
            bucket_counts=[after - before for before, after in pairwise([0, *up_to])],
            explicit_bounds=bounds[:-1],
        )
        return 1

    # --- spans --------------------------------------------------------------------------------

    def spans(self, spans: Sequence[Span]) -> Request:
        """The request that these spans are."""
        request = self._loaded["trace_service"].ExportTraceServiceRequest()
        found = request.resource_spans.add(resource=self._resource)
        made = found.scope_spans.add(scope=self._scope).spans
        kinds = self._loaded["traces"].Span
        for span in spans:
            parent = span.parent
            made.add(
                trace_id=parent.trace_id,
                span_id=self._new_id(SPAN_ID_BYTES),
                parent_span_id=parent.span_id,
                trace_state=parent.state,
                flags=SPAN_FLAGS,
                name=_unicode(span.name),
                kind=kinds.SPAN_KIND_CONSUMER if span.is_delivery else kinds.SPAN_KIND_PRODUCER,
                start_time_unix_nano=span.start_ms * NS_PER_MS,
                end_time_unix_nano=span.end_ms * NS_PER_MS,
                attributes=self._attributes(span.attributes),
            )
            yield
        content: bytes = request.SerializeToString()
        return content

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


def _parts_of(metric: Metric) -> Iterator[Sequence[Sample]]:
    """The samples of a metric, so many at a time; a histogram is whole."""
    samples = metric.samples
    if metric.type == "histogram":
        yield samples
        return
    for first in range(0, len(samples), AT_ONCE):
        yield samples[first : first + AT_ONCE]


def _unicode(text: str) -> str:
    """Names of topics may have any bytes, which became surrogates."""
    return text.encode("utf-8", "replace").decode()
