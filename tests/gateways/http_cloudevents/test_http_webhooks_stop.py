"""Webhooks that are stopped, changed and deleted while they deliver."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from polymq.broker.port import Reason, Refused
from tests.gateways.http_cloudevents.http_harness import (
    Sleeps,
    http,
    publish_batch,
    receiver,
    run,
    subscribe_webhook,
    until,
)
from tests.gateways.http_cloudevents.http_spy_port import SpyPort

pytestmark = pytest.mark.usefixtures("no_mistakes")


def test_stop_lets_the_delivery_under_way_end() -> None:
    """Its answer counts; nothing else is started; the rest goes back to the queue."""

    release = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response(status=204)

    async def scenario() -> None:
        port = SpyPort()
        async with receiver(slow) as sink:
            async with http(port) as gateway:
                queue = await subscribe_webhook(gateway, sink)
                await publish_batch(gateway, "a", "b")
                await until(lambda: sink.deliveries)
                stop = asyncio.create_task(gateway.server.stop(5.0))
                await asyncio.sleep(0)
                release.set()
                await stop
                assert (queue.settled, queue.requeued) == ({0}, [1])
            async with http(port):
                await until(lambda: queue.settled == {0, 1})
                assert sink.ids == ["a", "b"]

    run(scenario())


def test_stop_abandons_what_takes_too_long() -> None:
    """Not settled: it is delivered again after the start, perhaps a second time."""

    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async def scenario() -> None:
        port = SpyPort()
        async with receiver(never) as sink:
            async with http(port, drain_seconds=0.05) as gateway:
                queue = await subscribe_webhook(gateway, sink)
                await publish_batch(gateway, "a", "b")
                await until(lambda: sink.deliveries)
            assert (queue.settled, queue.requeued) == (set(), [0, 1])
            async with http(port):
                await until(lambda: queue.settled == {0, 1})
                assert sink.ids == ["a", "a", "b"]

    run(scenario())


def test_stop_does_not_wait_for_a_retry() -> None:
    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with receiver(500) as sink, http(sleeps=sleeps, drain_seconds=20.0) as gateway:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: sleeps.seconds)
            await asyncio.wait_for(gateway.server.stop(20.0), 2.0)
            assert queue.requeued == [0]

    run(scenario())


def test_a_changed_sink_gets_the_rest() -> None:
    """PUT with another sink: what the old one did not take goes to the new one, in order."""

    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with http(sleeps=sleeps) as gateway, receiver(204, 500) as old, receiver() as new:
            queue = await subscribe_webhook(gateway, old)
            await publish_batch(gateway, *"abc")
            await until(lambda: sleeps.seconds)
            await subscribe_webhook(gateway, new)
            await until(lambda: len(queue.settled) == 3)
            assert (old.ids, new.ids) == (["a", "b"], ["b", "c"])

    run(scenario())


def test_a_webhook_can_become_a_pull_subscription() -> None:
    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with http(sleeps=sleeps) as gateway, receiver(500) as sink:
            await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: sleeps.seconds)
            status, _, _ = await gateway.call("PUT", "/subscriptions/s", {"topic": "orders"})
            assert status == 200
            path = "/topics/orders/subscriptions/s:receive?maxWaitTime=5"
            _, body, _ = await gateway.call("POST", path)
            assert [one["event"]["id"] for one in body["value"]] == ["a"]

    run(scenario())


def test_delete_ends_the_delivery() -> None:
    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with http(sleeps=sleeps) as gateway, receiver(500) as sink:
            await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: sleeps.seconds)
            assert (await gateway.call("DELETE", "/subscriptions/s"))[0] == 204
            assert gateway.port.queue_by_name == {}
            await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "b")
            await until(lambda: sink.ids == ["a", "b"])

    run(scenario())


def test_a_delete_that_the_engine_refuses_changes_nothing() -> None:
    """Read-only for a moment: the subscription goes on as if nobody had asked."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink)
            delete = gateway.port.delete_subscription

            def refuse(name: str) -> int:
                raise Refused(Reason.READ_ONLY, "read-only")

            gateway.port.delete_subscription = refuse  # type: ignore[method-assign,assignment]
            assert (await gateway.call("DELETE", "/subscriptions/s"))[0] == 503
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled == {0})
            gateway.port.delete_subscription = delete  # type: ignore[method-assign]
            assert (await gateway.call("DELETE", "/subscriptions/s"))[0] == 204

    run(scenario())
