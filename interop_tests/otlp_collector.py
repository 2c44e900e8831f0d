"""A collector of OpenTelemetry: a real receiver of OTLP over HTTP, which parses what it is sent."""

from __future__ import annotations

import asyncio
import importlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

SECONDS_MAX = 20.0
PACKAGE = "opentelemetry.proto.collector"


class Collector:
    """A running collector.

    Attributes:
        metrics, spans: what came, in the order of the requests; spans one by one.
        headers: of the last request.
        status: what requests are answered with.
        hangs: whether there is no answer before it is closed.
        rejected: how many spans of each request are not taken.
    """

    def __init__(self) -> None:
        self.metrics: queue.Queue[Any] = queue.Queue()
        self.spans: queue.Queue[Any] = queue.Queue()
        self.asked: queue.Queue[str] = queue.Queue()
        self.headers: dict[str, str] = {}
        self.status = 200
        self.hangs = False
        self.rejected = 0
        self.port = 0
        self.over: asyncio.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.put(request.path)
        if self.hangs:
            await self.over.wait()
        if self.status == 200:
            return self._take(request.path, body)
        return web.Response(status=self.status)

    def _take(self, path: str, body: bytes) -> web.Response:
        if path == "/v1/metrics":
            service = importlib.import_module(f"{PACKAGE}.metrics.v1.metrics_service_pb2")
            for found in service.ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics.put(found)
            answer = service.ExportMetricsServiceResponse()
        else:
            service = importlib.import_module(f"{PACKAGE}.trace.v1.trace_service_pb2")
            for found in service.ExportTraceServiceRequest.FromString(body).resource_spans:
                for span in found.scope_spans[0].spans:
                    self.spans.put(span)
            answer = service.ExportTraceServiceResponse()
            answer.partial_success.rejected_spans = self.rejected
        return web.Response(body=answer.SerializeToString(), content_type="application/x-protobuf")


@contextmanager
def running() -> Iterator[Collector]:
    """A collector on a free port of this machine. Skips the test without the extra."""
    pytest.importorskip("opentelemetry.proto", reason="needs polymq[telemetry]")
    collector = Collector()
    loop = asyncio.new_event_loop()
    is_open = threading.Event()
    ends: asyncio.Future[None] = loop.create_future()

    async def serve() -> None:
        collector.over = asyncio.Event()
        application = web.Application(client_max_size=1 << 26)
        application.router.add_post("/v1/{signal}", collector.answer)
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", collector.port)
        await site.start()
        collector.port = runner.addresses[0][1]
        is_open.set()
        await ends
        collector.over.set()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert is_open.wait(SECONDS_MAX)
    try:
        yield collector
    finally:
        loop.call_soon_threadsafe(ends.set_result, None)
        thread.join(SECONDS_MAX)
        loop.close()
