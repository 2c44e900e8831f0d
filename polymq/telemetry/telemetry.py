"""Metrics and spans to a collector: what runs beside a server for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

from polymq.broker.engine import Engine
from polymq.core_log.store import Store
from polymq.lasting_tasks import report_bug
from polymq.metrics.exposition import Exposition
from polymq.metrics.registry import Probe, Value, counter, gauge
from polymq.net.kernels.streams import clock_ms
from polymq.settings import Settings
from polymq.steps import in_steps
from polymq.telemetry.collector import Collector, Files, Outcome, read_files
from polymq.telemetry.encoding import Encoder
from polymq.telemetry.span_source import SpanSource
from polymq.workers import Workers

READ_SECONDS: Final = 0.2
"""Between two looks at the log."""
SPANS_AT_ONCE: Final = 256
"""Of one request."""
SEND_SECONDS: Final = 1.0
"""Between two requests with spans, unless one is full."""
LEAVE_SECONDS: Final = 1.0
"""How long a stop waits for the collector to take what there is."""


def check_telemetry(settings: Settings) -> None:
    """Whether telemetry can run with these settings. Raises Failure: USAGE."""
    if settings.telemetry.enabled:
        read_files(settings.telemetry)
        make_encoder(settings)


def make_encoder(settings: Settings) -> Encoder:
    """What encodes this broker's telemetry. Raises Failure: USAGE."""
    resource = {
        "service.name": "polymq",
        "service.namespace": settings.names.cluster,
        "service.instance.id": settings.names.broker,
    }
    return Encoder(resource, started_ms=clock_ms(), new_id=os.urandom)


class Telemetry:
    """Sends between `start` and `stop`; does nothing where no collector is set.

    Raises:
        Failure: USAGE, the extra or a file is missing.
    """

    def __init__(self, settings: Settings, engine: Engine, store: Store) -> None:
        chosen = self._settings = settings.telemetry
        self._metrics: Collector | None = None
        self._traces: Collector | None = None
        self._threads: Workers | None = None
        self._spans: SpanSource | None = None
        self._unsent: tuple[bytes, int] | None = None  # a request, and how many spans it has
        self._tasks: list[asyncio.Task[None]] = []
        self._files: Files | None = None
        self._changed = {"metrics": asyncio.Event(), "traces": asyncio.Event()}
        if not chosen.enabled:
            return
        encoder, self._files = make_encoder(settings), read_files(chosen)
        if chosen.metrics:
            self._metrics = Collector(chosen, "metrics", encoder, self._files)
        if chosen.traces:
            self._traces = Collector(chosen, "traces", encoder, self._files)
            loop = asyncio.get_running_loop()
            self._threads = Workers(loop, name="polymq-telemetry", count=1)
            self._spans = SpanSource(engine, store, self._threads, chosen.spans_per_second_max)

    def start(self, exposition: Exposition) -> None:
        """Begin, on the running loop."""
        loop = asyncio.get_running_loop()
        if self._metrics is not None:
            self._tasks.append(loop.create_task(self._run_metrics(self._metrics, exposition)))
        if self._traces is not None and self._spans is not None:
            self._tasks.append(loop.create_task(self._run_reader(self._spans)))
            self._tasks.append(loop.create_task(self._run_traces(self._traces, self._spans)))
        for task in self._tasks:
            task.add_done_callback(report_bug)

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Read the files of other settings, maybe in a thread. Returns what goes on with them, on
        the loop, from the next request on. Raises Failure."""
        if not settings.telemetry.enabled:
            return lambda: None
        files = read_files(settings.telemetry)

        def apply() -> None:
            self._settings, self._files = settings.telemetry, files
            if self._spans is not None:
                self._spans.per_second_max = settings.telemetry.spans_per_second_max
            for changed in self._changed.values():
                changed.set()

        return apply

    async def stop(self) -> None:
        """Send the spans that there are, if the collector takes them at once, and end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._traces is not None and self._spans is not None and not self._traces.is_paused:
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._spans.read()
                    await self._send_spans(self._traces, self._spans)
            except TimeoutError:
                pass  # nobody waits for a collector
        for collector in (self._metrics, self._traces):
            if collector is not None:
                await collector.close()
        if self._threads is not None:
            self._threads.close()

    # --- what runs ----------------------------------------------------------------------------

    async def _run_metrics(self, collector: Collector, exposition: Exposition) -> None:
        while True:
            await self._pause("metrics", collector, self._settings.interval_seconds)
            if collector.is_paused:
                continue
            metrics = await exposition.metrics()
            for request in await in_steps(collector.encoder.metrics(metrics, clock_ms())):
                if await collector.send(request) is not Outcome.SENT:
                    break  # the next ones have the same and more

    async def _run_reader(self, spans: SpanSource) -> None:
        while True:
            if not await spans.read():
                await asyncio.sleep(READ_SECONDS)

    async def _run_traces(self, collector: Collector, spans: SpanSource) -> None:
        while True:
            if spans.waiting_count < SPANS_AT_ONCE or collector.is_paused:
                await self._pause("traces", collector, SEND_SECONDS)
            if not collector.is_paused:
                await self._send_spans(collector, spans)

    async def _send_spans(self, collector: Collector, source: SpanSource) -> None:
        """Send one request, the last one again if nobody has answered it."""
        if self._unsent is None:
            spans = source.take(SPANS_AT_ONCE)
            if not spans:
                return
            self._unsent = await in_steps(collector.encoder.spans(spans)), len(spans)
        request, count = self._unsent
        outcome = await collector.send(request)
        if outcome is Outcome.REFUSED:
            source.refused(count)
        if outcome is not Outcome.UNREACHED:
            self._unsent = None

    async def _pause(self, signal: str, collector: Collector, seconds: float) -> None:
        """Wait until the next request is due, or a reload has changed how it is sent."""
        changed = self._changed[signal]
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass
        if changed.is_set() and self._files is not None:
            changed.clear()
            await collector.change(self._settings, self._files)

    # --- what operators see -------------------------------------------------------------------

    def probes(self) -> list[Probe]:
        """The metrics of telemetry itself."""
        collectors = {"metrics": self._metrics, "traces": self._traces}
        known = {name: one for name, one in collectors.items() if one is not None}
        if not known:
            return []
        found = [
            counter(
                "polymq_telemetry_requests",
                "Requests to the collector of OpenTelemetry.",
                lambda: _results_of(known),
                labels=("signal", "result"),
            ),
            counter(
                "polymq_telemetry_rejected",
                "Points of metrics and spans that the collector did not take of a request.",
                lambda: {name: one.rejected_count for name, one in known.items()},
                label="signal",
            ),
        ]
        return found if self._spans is None else [*found, *_span_probes(self._spans)]


def _results_of(collectors: Mapping[str, Collector]) -> Value:
    found: dict[tuple[str, ...], float] = {}
    for signal, collector in collectors.items():
        for result, count in collector.results.items():
            found[signal, result] = count
    return found


def _span_probes(spans: SpanSource) -> list[Probe]:
    return [
        counter(
            "polymq_telemetry_spans_dropped",
            "Spans that were not made because of telemetry.spans_per_second_max (rate), that "
            "waited for the collector for too long (waiting), or that it did not take (refused).",
            lambda: spans.dropped,
            label="reason",
        ),
        gauge(
            "polymq_telemetry_spans_waiting",
            "Spans that are to be sent to the collector.",
            lambda: spans.waiting_count,
        ),
        counter(
            "polymq_telemetry_passed_bytes",
            "Bytes of the log in which no spans were looked for, because reading was behind or had "
            "failed.",
            lambda: spans.passed_bytes,
        ),
        counter(
            "polymq_telemetry_messages_forgotten",
            "Messages of sampled traces whose deliveries were not waited for any more, because "
            "there were too many.",
            lambda: spans.forgotten_count,
        ),
    ]
