"""Sabotages of metrics and spans for a collector of OpenTelemetry."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_SPANS = "tests/polymq/telemetry/test_span_source.py"
_CONTEXT = "tests/polymq/telemetry/test_trace_context.py"
_COLLECTOR = "tests/polymq/telemetry/test_collector.py"

OF_THE_TELEMETRY = (
    Sabotage(
        name="spans-of-what-is-not-sampled",
        why="every message with a traceparent has spans, whatever its publisher decided",
        path="polymq/telemetry/trace_context.py",
        old=" or not int(flags, 16) & _SAMPLED:\n",
        new=":\n",
        tests=(_CONTEXT,),
    ),
    Sabotage(
        name="plain-kernel-finds-every-trace",
        why="the plain kernel makes objects of messages that are not sampled",
        path="core_log/kernels/traced.py",
        old="        and raw[at + FLAG_AT] in SAMPLED\n",
        new="",
        tests=("tests/core_log/test_traced_records.py",),
    ),
    Sabotage(
        name="spans-without-a-bound",
        why="a publisher that samples everything makes the server work for its spans alone",
        path="polymq/telemetry/span_source.py",
        old="        self._made_count += 1\n",
        new="",
        tests=(_SPANS,),
    ),
    Sabotage(
        name="spans-wait-without-a-bound",
        why="a collector that is away for long fills the memory",
        path="polymq/telemetry/span_source.py",
        old="        if len(self._spans) == WAITING_SPANS_MAX:\n",
        new="        if False:\n",
        tests=(_SPANS,),
    ),
    Sabotage(
        name="spans-from-far-behind",
        why="after a burst the reader is busy for minutes with what nobody looks for any more",
        path="polymq/telemetry/span_source.py",
        old="        if end - self._position > BEHIND_BYTES_MAX:\n",
        new="        if False:\n",
        tests=(_SPANS,),
    ),
    Sabotage(
        name="deliveries-of-other-messages",
        why="a message has a delivery when the one before it was acknowledged",
        path="polymq/telemetry/deliveries.py",
        old="            if at < 0 or offset >= sum(ordered[at]):\n",
        new="            if at < 0:\n",
        tests=(_SPANS,),
    ),
    Sabotage(
        name="no-pause-after-a-failure",
        why="a collector that is overloaded gets all requests again at once",
        path="polymq/telemetry/collector.py",
        old="        self._failures += 1\n",
        new="        self._failures = 1\n",
        tests=(_COLLECTOR,),
    ),
    Sabotage(
        name="a-failure-is-not-counted",
        why="nobody sees that the collector gets nothing",
        path="polymq/telemetry/collector.py",
        old='        self.results["failed"] += 1\n',
        new="",
        tests=(_COLLECTOR,),
    ),
)
