"""The answer of `/metrics`, in Prometheus' text format.

A server with very many queues has much to look at for one answer, so the answer is put together in
steps (`steps.py`), between which the server serves its clients. First the *surveys* look at
queues, sessions and groups, and store what they find. Then each probe is asked, and then all is
rendered.

While an answer is being made, whoever asks gets the same one: the work is done once, however many
monitors there are. Telemetry, which sends the same metrics, is one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Final, Protocol

import prometheus_client
from aiohttp import web
from prometheus_client.core import Metric

from polymq.broker.messages.readers import Reading
from polymq.metrics.registry import Probe, metric_of
from polymq.steps import in_steps

SAMPLES_AT_ONCE: Final = 100
"""Series that are rendered in one step: some 300 us."""

Steps = Generator[Any, Any, None]


class Survey(Protocol):
    """Looks at very much, and offers what it found as probes."""

    def steps(self) -> Steps:
        """Look at everything, in steps that are each well below a millisecond."""

    def probes(self) -> list[Probe]:
        """What the last look has found."""


class _Part:
    """A part of a metric, as prometheus-client wants to be given it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """The one metric."""
        return (self._metric,)


class Exposition:
    """What a server answers to `GET /metrics`.

    Args:
        probes: all metrics that are read at once.
        surveys: what takes longer; their probes are added to the others.
        reading: reads from the disk what a survey needs.
    """

    def __init__(
        self,
        probes: Iterable[Probe],
        surveys: Sequence[Survey] = (),
        reading: Reading | None = None,
    ) -> None:
        self.probes = [*probes, *(probe for survey in surveys for probe in survey.probes())]
        self._surveys = surveys
        self._reading = reading
        own = prometheus_client.CollectorRegistry(auto_describe=False)
        self._process = (
            prometheus_client.ProcessCollector(registry=own),
            prometheus_client.PlatformCollector(registry=own),
        )
        self._asking: asyncio.Task[list[Metric]] | None = None
        self._under_way: asyncio.Task[bytes] | None = None

    def _steps(self) -> Generator[Any, Any, list[Metric]]:
        """Ask for all metrics."""
        for survey in self._surveys:
            yield from survey.steps()
        found: list[Metric] = []
        for probe in self.probes:
            found.append(metric_of(probe))
            yield
        for collector in self._process:
            found += collector.collect()
            yield
        return found

    async def metrics(self) -> list[Metric]:
        """All metrics, as they are now. They are shared, and not to be changed."""
        task = self._asking
        if task is None:
            task = asyncio.get_running_loop().create_task(in_steps(self._steps(), self._reading))
            self._asking = task
            task.add_done_callback(self._asked)
        return await asyncio.shield(task)  # who goes leaves the others theirs

    def _asked(self, _task: asyncio.Task[list[Metric]]) -> None:
        self._asking = None

    async def text(self) -> bytes:
        """The answer."""
        task = self._under_way
        if task is None:
            task = asyncio.get_running_loop().create_task(self._text())
            self._under_way = task
            task.add_done_callback(self._made)
        return await asyncio.shield(task)  # a monitor that goes leaves the others theirs

    async def _text(self) -> bytes:
        return await in_steps(_text_of(await self.metrics()))

    def _made(self, _task: asyncio.Task[bytes]) -> None:
        self._under_way = None  # nobody needs it any more

    async def stop(self) -> None:
        """Give up an answer that is being made."""
        tasks = [task for task in (self._under_way, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _text_of(metrics: Iterable[Metric]) -> Generator[None, None, bytes]:
    """The lines of all metrics."""
    parts: list[bytes] = []
    for metric in metrics:
        for part in _rendered(metric):
            parts.append(part)
            yield
    return b"".join(parts)


def _rendered(metric: Metric) -> Iterator[bytes]:
    """The lines of a metric, so many at a time. What describes it comes once, before the first."""
    samples, part = metric.samples, copy(metric)
    for first in range(0, len(samples), SAMPLES_AT_ONCE):
        part.samples = samples[first : first + SAMPLES_AT_ONCE]
        text = prometheus_client.generate_latest(_Part(part))
        yield text if first == 0 else _without_comments(text)
    if not samples:
        yield prometheus_client.generate_latest(_Part(metric))


def _without_comments(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))


def metrics_route(exposition: Exposition) -> web.RouteDef:
    """`GET /metrics`."""

    async def answer(_request: web.Request) -> web.Response:
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return web.Response(body=await exposition.text(), headers=headers)

    return web.get("/metrics", answer)
