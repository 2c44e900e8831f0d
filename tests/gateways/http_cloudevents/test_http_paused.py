"""Subscriptions whose queue an operator has paused: nothing is handed out or sent to a sink, also
not what was taken from the queue before."""

from __future__ import annotations

import asyncio

import pytest

from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from tests.gateways.http_cloudevents.http_harness import (
    Sleeps,
    http,
    publish_batch,
    receiver,
    run,
    subscribe_webhook,
    until,
)
from tests.gateways.http_cloudevents.test_http_receive import ids, publish, receive, subscribe

pytestmark = pytest.mark.usefixtures("no_mistakes")


def test_what_was_fetched_for_a_poll_goes_back() -> None:
    """The bytes of the first answer were full, so an event waits for the next poll. A poll that
    waits gets it when the queue is resumed."""

    async def scenario() -> None:
        limits = HttpLimits(receive_bytes_max=25, receive_seconds_min=0.02)
        async with http(limits=limits) as gateway:
            queue = await subscribe(gateway)
            await publish(gateway, *"abc")
            assert ids(await receive(gateway)) == ["a", "b"]
            queue.paused = True
            assert await receive(gateway) == []
            assert queue.requeued == [2]
            _, shown, _ = await gateway.call("GET", "/subscriptions/s")
            assert shown["status"]["state"] == "paused"
            poll = asyncio.create_task(receive(gateway, wait=20))
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            queue.paused = False
            gateway.port.pump_soon(queue)
            assert ids(await poll) == ["c"]
            _, shown, _ = await gateway.call("GET", "/subscriptions/s")
            assert shown["status"]["state"] == "active"

    run(scenario())


def test_a_webhook_sends_nothing_and_gives_back_what_it_has() -> None:
    """It waits for its next attempt when the pause comes. Afterwards it counts its attempts on, and
    waits once more before it sends: as over a restart."""
    retry = {"attemptsMax": 3, "firstSeconds": 2, "waitSecondsMax": 10}

    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with receiver(500, 500, 204) as sink, http(sleeps=sleeps) as gateway:
            queue = await subscribe_webhook(gateway, sink, config={"retry": retry})
            await publish_batch(gateway, "a", "b")
            await until(lambda: sleeps.seconds == [1.0])
            queue.paused = True
            sleeps.wake()
            await until(lambda: queue.requeued == [0, 1])
            assert gateway.server.statistics().webhooks["paused"] == 1
            _, shown, _ = await gateway.call("GET", "/subscriptions/s")
            assert shown["status"]["state"] == "paused"
            assert sink.ids == ["a"]
            queue.paused = False
            gateway.port.pump_soon(queue)
            await until(lambda: sleeps.seconds == [1.0, 1.0])
            sleeps.wake()
            await until(lambda: sleeps.seconds == [1.0, 1.0, 2.0])
            assert sink.ids == ["a", "a"]
            sleeps.wake()
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "a", "a", "b"]

    run(scenario())


def test_the_attempts_are_those_of_the_event_that_failed() -> None:
    """It was purged during the pause: the next one begins anew."""
    retry = {"attemptsMax": 3, "firstSeconds": 2, "waitSecondsMax": 10}

    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with receiver(500, 204) as sink, http(sleeps=sleeps) as gateway:
            queue = await subscribe_webhook(gateway, sink, config={"retry": retry})
            await publish_batch(gateway, "a", "b")
            await until(lambda: sleeps.seconds == [1.0])
            queue.paused = True
            sleeps.wake()
            await until(lambda: queue.requeued == [0, 1])
            queue.requeued.remove(0)
            queue.paused = False
            gateway.port.pump_soon(queue)
            await until(lambda: queue.settled == {1})
            assert sleeps.seconds == [1.0]

    run(scenario())
