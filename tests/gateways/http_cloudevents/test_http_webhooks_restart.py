"""What failed before a restart: counted on, waited for, and forgotten when it is over."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from polymq.gateways.http_cloudevents.retry_state import DOCUMENT_KIND
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

RETRY = {"attemptsMax": 4, "firstSeconds": 2, "waitSecondsMax": 10}


def test_attempts_count_on_over_a_restart() -> None:
    """Two failures before, two after: then it is a dead letter, and the next one starts anew. The
    wait after the last failure is waited again before the sink is called."""

    async def scenario() -> None:
        port = SpyPort()
        async with receiver(500, 500, 500, 500, 204) as sink:
            sleeps = Sleeps(at_once=False)
            async with http(port, sleeps=sleeps) as gateway:
                await subscribe_webhook(gateway, sink, config={"retry": RETRY})
                await publish_batch(gateway, "a", "b")
                await until(lambda: sleeps.seconds == [1.0])
                sleeps.wake()
                await until(lambda: sleeps.seconds == [1.0, 2.0])
            assert sink.ids == ["a", "a"]
            (saved,) = port.documents.of_kind(DOCUMENT_KIND).values()
            assert (saved["offset"], saved["attempts"]) == (0, 2)
            sleeps = Sleeps(at_once=False)
            async with http(port, sleeps=sleeps) as gateway:
                await until(lambda: sleeps.seconds == [2.0])
                assert sink.ids == ["a", "a"]
                sleeps.wake()
                await until(lambda: sleeps.seconds == [2.0, 4.0])
                sleeps.wake()
                await until(lambda: port.queue_by_name["sub:s"].settled == {0, 1})
            assert sink.ids == ["a", "a", "a", "a", "b"]
            assert port.stored[-1].properties["PMQ_DLQ_ATTEMPTS"] == "4"
            assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


def test_what_is_isolated_stays_isolated() -> None:
    """A refused batch is sent one by one, also when the server restarts in the middle of that."""

    async def scenario() -> None:
        port = SpyPort()
        config = {"mode": "batch", "maxBatch": 3, "retry": RETRY}
        async with receiver(400, 204, 500) as sink:
            sleeps = Sleeps(at_once=False)
            async with http(port, sleeps=sleeps) as gateway:
                await subscribe_webhook(gateway, sink, config=config)
                await publish_batch(gateway, "a", "b", "c")
                await until(lambda: len(sleeps.seconds) == 1)
            (saved,) = port.documents.of_kind(DOCUMENT_KIND).values()
            assert (saved["offset"], saved["attempts"], saved["alone"]) == (1, 1, 2)
            async with http(port):
                await until(lambda: port.queue_by_name["sub:s"].settled == {0, 1, 2})
            assert len(sink.deliveries) == 5
            assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


def test_what_is_left_of_a_batch_is_kept_while_it_is_sent() -> None:
    """The first of three is through, the second under way: a restart now sends two one by one."""

    async def scenario() -> None:
        port = SpyPort()
        go_on = asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            await go_on.wait()
            return web.Response(status=204)

        config = {"mode": "batch", "maxBatch": 3, "retry": RETRY}
        async with receiver(400, 204, slow) as sink, http(port) as gateway:
            await subscribe_webhook(gateway, sink, config=config)
            await publish_batch(gateway, "a", "b", "c")
            await until(lambda: len(sink.deliveries) == 3)
            (saved,) = port.documents.of_kind(DOCUMENT_KIND).values()
            assert saved == {"offset": 1, "attempts": 0, "alone": 2, "last_chance": False}
            go_on.set()
            await until(lambda: port.queue_by_name["sub:s"].settled == {0, 1, 2})

    run(scenario())


def test_what_was_kept_of_another_message_does_not_count() -> None:
    """The message that had failed is gone (its queue was purged): the next one starts anew."""

    async def scenario() -> None:
        port = SpyPort()
        stale = {"offset": 7, "attempts": 3, "alone": 0, "last_chance": False}
        async with receiver(500, 204) as sink, http(port) as gateway:
            port.put_document(DOCUMENT_KIND, "s", stale)
            await subscribe_webhook(gateway, sink, config={"retry": RETRY})
            port.put_document(DOCUMENT_KIND, "s", stale)
            await publish_batch(gateway, "a")
            await until(lambda: port.queue_by_name["sub:s"].settled == {0})
            assert gateway.sleeps.seconds == [1.0]
            assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


@pytest.mark.parametrize("change", ["replace", "delete"])
def test_a_changed_subscription_starts_anew(change: str) -> None:
    """A new sink is called at once; a new subscription of the name has nothing to go on with."""

    async def scenario() -> None:
        port = SpyPort()
        sleeps = Sleeps(at_once=False)
        async with receiver(500, 500, 500, 204) as sink, http(port, sleeps=sleeps) as gateway:
            await subscribe_webhook(gateway, sink, config={"retry": RETRY})
            await publish_batch(gateway, "a")
            await until(lambda: len(sleeps.seconds) == 1)
            assert port.documents.of_kind(DOCUMENT_KIND)
            if change == "replace":
                await subscribe_webhook(
                    gateway, sink, config={"retry": {**RETRY, "firstSeconds": 6}}
                )
                await until(lambda: sleeps.seconds == [1.0, 3.0])
                assert sink.ids == ["a", "a"]
                (saved,) = port.documents.of_kind(DOCUMENT_KIND).values()
                assert saved["attempts"] == 1
            else:
                await gateway.call("DELETE", "/subscriptions/s")
                assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())
