"""A server of the HTTP listener on a spy port, a client for it, and a webhook receiver."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
from aiohttp import web

from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.limits import WebhookSettings
from polymq.gateways.http_cloudevents.server import Server as HttpServer
from polymq.net.connection import Context
from tests.gateways.http_cloudevents.http_spy_port import SpyPort, SpyQueue

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
BINARY = {f"ce-{name}": value for name, value in EVENT.items()}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on a loop of its own; whatever hangs is an error after a while."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds (the bound is `run`'s)."""
    while not condition():
        await asyncio.sleep(0)


class Sleeps:
    """Waits that end when the test says so; keeps how long they should have been."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.seconds: list[float] = []
        self._waiting: list[asyncio.Event] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if self.at_once:
            await asyncio.sleep(0)
            return
        event = asyncio.Event()
        self._waiting.append(event)
        await event.wait()

    def wake(self) -> None:
        """End all waits."""
        for event in self._waiting:
            event.set()
        self._waiting.clear()


@dataclass
class Http:
    """A started server with a client that talks to it."""

    server: HttpServer
    port: SpyPort
    bound: int
    client: aiohttp.ClientSession
    sleeps: Sleeps

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.bound}"

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body and headers of an answer. `_` in header names stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        async with self.client.request(
            method, self.url + path, data=data, headers=named, skip_auto_headers=["Content-Type"]
        ) as answer:
            text = await answer.read()
            decoded: Any = text
            if "json" in answer.headers.get("Content-Type", ""):
                decoded = json.loads(text)
            return answer.status, decoded, dict(answer.headers)

    async def publish(
        self, body: bytes, headers: dict[str, str], topic: str = "orders"
    ) -> tuple[int, Any]:
        async with self.client.post(
            f"{self.url}/topics/{topic}",
            data=body,
            headers=headers,
            skip_auto_headers=["Content-Type"],
        ) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else None

    async def raw(self, request: bytes) -> bytes:
        """What the server answers to these bytes, until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.bound)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def http(
    port: SpyPort | None = None,
    *,
    limits: HttpLimits | None = None,
    sleeps: Sleeps | None = None,
    webhooks: WebhookSettings | None = None,
    drain_seconds: float = 1.0,
    **settings: Any,
) -> AsyncIterator[Http]:
    """A started server. Webhooks reach loopback over plain HTTP, and waits end at once."""
    port = port or SpyPort()
    sleeps = sleeps or Sleeps()
    context = Context(asyncio.get_running_loop())
    numbers = count()
    server = HttpServer(
        port=port,  # type: ignore[arg-type]  # the spy has what this listener uses
        context=context,
        limits=limits,
        webhooks=webhooks
        or WebhookSettings(origin="polymq.test", allow_http=True, allow_networks=LOOPBACK),
        sleep=sleeps,
        random_part=lambda: 0.5,
        secret=lambda: f"secret{next(numbers)}",
        broker_name="b1",
        **settings,
    )
    bound = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as client:
            yield Http(server, port, bound, client, sleeps)
    finally:
        await server.stop(drain_seconds)
        context.close()


@dataclass
class Received:
    """A request that the receiver got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    """A webhook receiver that answers as the test says.

    Attributes:
        answers: statuses of the next deliveries, or functions that answer; then always 204.
        consent: headers of the answer to OPTIONS.
        location: if set, every request is redirected there.
    """

    url: str = ""
    answers: list[int | Answer] = field(default_factory=list)
    consent: dict[str, str] = field(
        default_factory=lambda: {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}
    )
    requests: list[Received] = field(default_factory=list)
    location: str = ""

    @property
    def deliveries(self) -> list[Received]:
        return [request for request in self.requests if request.method == "POST"]

    @property
    def handshakes(self) -> list[Received]:
        return [request for request in self.requests if request.method == "OPTIONS"]

    @property
    def ids(self) -> list[str]:
        """Ids of the binary deliveries, in their order."""
        return [request.headers["ce-id"] for request in self.deliveries]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(Received(request.method, request.path_qs, dict(request.headers), body))
        if self.location:
            return web.Response(status=307, headers={"Location": self.location})
        if request.method == "OPTIONS":
            return web.Response(headers=self.consent)
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, int):
            return web.Response(status=answer, text=f"answer {answer}" if answer >= 400 else None)
        return await answer(request)


@asynccontextmanager
async def receiver(*answers: int | Answer) -> AsyncIterator[Receiver]:
    """A started webhook receiver."""
    found = Receiver(answers=list(answers))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{site.port}/hook"
    try:
        yield found
    finally:
        await runner.cleanup()


async def subscribe_webhook(
    gateway: Http, sink: Receiver, name: str = "s", **body: Any
) -> SpyQueue:
    wanted = {"topic": "orders", "sink": sink.url, **body}
    status, answer, _ = await gateway.call("PUT", f"/subscriptions/{name}", wanted)
    assert status in (200, 201), answer
    return gateway.port.queue_by_name[f"sub:{name}"]


async def publish_batch(gateway: Http, *ids: str, **headers: str) -> None:
    """Events in one batch, so that they are there together."""
    body = json.dumps([{**EVENT, "id": one, "data": one, **headers} for one in ids]).encode()
    assert await gateway.publish(body, BATCH) == (204, None)
