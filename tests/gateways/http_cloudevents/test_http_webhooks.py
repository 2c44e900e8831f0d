"""Delivery to webhooks: order, modes, retries, dead letters, rates, isolation, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from base64 import b64encode
from urllib.parse import unquote

import pytest
from aiohttp import web

from polymq.broker.port import Reason, Refused
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from tests.gateways.http_cloudevents.http_harness import (
    BINARY,
    EVENT,
    STRUCTURED,
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

RETRY = {"attemptsMax": 3, "firstSeconds": 2, "waitSecondsMax": 10}


# --- modes ------------------------------------------------------------------------------------


def test_binary_delivery() -> None:
    """Attributes as headers, the body verbatim, our origin in every request."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink)
            body = b'{"a" :1.10,\n "a":2}'
            headers = {**BINARY, "ce-subject": "a+b/c", "Content-Type": "text/x; charset=utf-8"}
            await gateway.publish(body, headers)
            await until(lambda: queue.settled)
            (got,) = sink.deliveries
            assert got.body == body
            assert {k: v for k, v in got.headers.items() if k.startswith("ce-")} == {
                **BINARY,
                "ce-subject": "a+b/c",
            }
            assert got.headers["Content-Type"] == "text/x; charset=utf-8"
            assert got.headers["WebHook-Request-Origin"] == "polymq.test"
            assert got.path == "/hook"
            assert "Cache-Control" not in got.headers

    run(scenario())


def test_structured_delivery() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink, config={"mode": "structured"})
            document = json.dumps({**EVENT, "n": 5, "data": {"a": 1.5}}).encode()
            await gateway.publish(document, STRUCTURED)
            await until(lambda: queue.settled)
            (got,) = sink.deliveries
            assert json.loads(got.body) == json.loads(document)
            assert got.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"

    run(scenario())


def test_batched_delivery_keeps_the_order() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink, config={"mode": "batch", "maxBatch": 4})
            await publish_batch(gateway, *"abcdefghij")
            await until(lambda: len(queue.settled) == 10)
            batches = [[one["id"] for one in json.loads(got.body)] for got in sink.deliveries]
            assert batches == [list("abcd"), list("efgh"), list("ij")]
            content_type = sink.deliveries[0].headers["Content-Type"]
            assert content_type == "application/cloudevents-batch+json; charset=utf-8"

    run(scenario())


def test_batches_are_bounded_in_bytes() -> None:
    async def scenario() -> None:
        limits = HttpLimits(webhook_batch_bytes_max=10)
        async with http(limits=limits) as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink, config={"mode": "batch"})
            await publish_batch(gateway, "aaaa", "bb", "c" * 20, "d")
            await until(lambda: len(queue.settled) == 4)
            batches = [[one["id"] for one in json.loads(got.body)] for got in sink.deliveries]
            assert batches == [["aaaa", "bb"], ["c" * 20], ["d"]]

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "text/plain"}, b""),
        ({}, b"no type"),
        ({"Content-Type": "a/b", "ce-ext": "x" * 7_000}, b"x"),
        ({"Content-Type": "a/b", "ce-ext": "two%20words"}, b"x"),
        ({"Content-Type": "a/b", "ce-ext": "b%C3%BCro"}, b"x"),
        ({"Content-Type": "a/b", "ce-ext": "50%25"}, b"x"),
        ({"Content-Type": "a/b", "ce-ext": "q%22uote"}, b"x"),
    ],
)
def test_what_binary_mode_cannot_carry_goes_structured(
    headers: dict[str, str], body: bytes
) -> None:
    """No payload, no media type to name, no room in the headers, or a value that a header would
    have to percent-encode, which many receivers do not decode: the same event as JSON."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink)
            await gateway.publish(body, {**BINARY, **headers})
            await until(lambda: queue.settled)
            (got,) = sink.deliveries
            event = json.loads(got.body)
            assert got.headers["Content-Type"].startswith("application/cloudevents+json")
            assert event.get("data_base64") == (b64encode(body).decode() if body else None)
            assert event.get("datacontenttype") == headers.get("Content-Type")
            assert event.get("ext") == (unquote(headers["ce-ext"]) if "ce-ext" in headers else None)

    run(scenario())


def test_a_plain_message_is_delivered_with_its_bytes() -> None:
    """An MQTT publish: wrapped, in binary mode the payload is the body."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink)
            gateway.port.add("orders", "eu.new", b"\x00\xff", {"PMQ_PROTO": "mqtt"})
            gateway.port.flush()
            await until(lambda: queue.settled)
            (got,) = sink.deliveries
            assert got.body == b"\x00\xff"
            assert got.headers["ce-subject"] == "orders/eu/new"
            assert got.headers["Content-Type"] == "application/octet-stream"

    run(scenario())


def test_a_token_in_the_url_is_not_cached_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver(400) as sink:
            sink.url += "?access_token=s3cret"
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled)
            (got,) = sink.deliveries
            assert got.path == "/hook?access_token=s3cret"
            assert got.headers["Cache-Control"] == "no-store"
            assert "s3cret" not in str(gateway.port.stored[-1].properties)

    with caplog.at_level(logging.DEBUG, logger="gateways"):
        run(scenario())
    assert caplog.records
    assert "s3cret" not in caplog.text


# --- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_settles(status: int) -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver(status) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled == {0})
            assert len(sink.deliveries) == 1

    run(scenario())


@pytest.mark.parametrize("status", [404, 408, 409, 429, 500, 503])
def test_failures_are_retried_in_order(status: int) -> None:
    """The head of the line stays until it is through; the waits double, half of them by jitter."""

    async def scenario() -> None:
        async with http() as gateway, receiver(status, status, 204) as sink:
            queue = await subscribe_webhook(gateway, sink, config={"retry": RETRY})
            await publish_batch(gateway, "a", "b")
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "a", "a", "b"]
            assert gateway.sleeps.seconds == [1.0, 2.0]

    run(scenario())


@pytest.mark.parametrize("status", [400, 401, 403, 413, 415, 301, 302, 307])
def test_a_refusal_is_a_dead_letter(status: int) -> None:
    """It would be refused for ever: at once to the dead letters, and the next one goes on."""

    async def scenario() -> None:
        async with http() as gateway, receiver(status, 204) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a", "b")
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "b"]
            letter = gateway.port.stored[-1]
            assert letter.topic == "%DLQ%s"
            assert letter.tag == "t"
            assert letter.body == b'"a"'
            assert letter.properties["CE_id"] == "a"
            assert letter.properties["PMQ_DLQ_STATUS"] == str(status)
            assert letter.properties["PMQ_DLQ_REASON"] == f"the sink answered {status}"
            assert letter.properties["PMQ_DLQ_SINK"] == sink.url
            if status >= 400:
                assert letter.properties["PMQ_DLQ_REPLY"] == f"answer {status}"

    run(scenario())


def test_redirects_are_not_followed() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as other, receiver() as sink:
            queue = await subscribe_webhook(gateway, sink)
            sink.location = other.url
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled)
            assert other.requests == []

    run(scenario())


def test_attempts_are_bounded() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver(500, 500, 500, 204) as sink:
            config = {"retry": RETRY, "deadLetterTopic": "dead"}
            queue = await subscribe_webhook(gateway, sink, config=config)
            await publish_batch(gateway, "a", "b")
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "a", "a", "b"]
            letter = gateway.port.stored[-1]
            assert letter.topic == "dead"
            assert letter.properties["PMQ_DLQ_ATTEMPTS"] == "3"
            assert letter.properties["PMQ_DLQ_REASON"] == "the sink answered 500, 3 times"

    run(scenario())


def test_retry_after_is_obeyed() -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "77"})

    async def scenario() -> None:
        async with http() as gateway, receiver(busy, 204) as sink:
            queue = await subscribe_webhook(gateway, sink, config={"retry": RETRY})
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled)
            assert gateway.sleeps.seconds == [77.0]

    run(scenario())


def test_gone_disables_the_subscription() -> None:
    """410: nothing more is sent, nothing is lost, the state is stored; PUT makes it work again."""

    async def scenario() -> None:
        port = SpyPort()
        async with receiver(410) as sink:
            async with http(port) as gateway:
                queue = await subscribe_webhook(gateway, sink)
                await publish_batch(gateway, "a", "b")
                await until(lambda: queue.consumer is None)
                _, shown, _ = await gateway.call("GET", "/subscriptions/s")
                assert shown["status"] == {
                    "state": "disabled",
                    "reason": "the sink answered 410",
                }
                assert queue.settled == set()
                assert queue.requeued == [0, 1]
            async with http(port) as gateway:
                assert queue.consumer is None, "after a restart too"
                await publish_batch(gateway, "c")
                assert len(sink.deliveries) == 1
                await subscribe_webhook(gateway, sink)
                await until(lambda: queue.settled == {0, 1, 2})
                assert len(sink.handshakes) == 2
                assert sink.ids == ["a", "a", "b", "c"]

    run(scenario())


def test_network_errors_are_retried() -> None:
    """A connection that is cut, an answer that is no HTTP, one that takes too long."""

    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def nonsense(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(b"SMTP 220 hello\r\n\r\n")
        request.transport.close()
        return web.Response()

    async def slow(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async def scenario() -> None:
        async with http() as gateway, receiver(cut, nonsense, slow, 204) as sink:
            config = {"timeoutSeconds": 0.2, "retry": {"attemptsMax": 4}}
            queue = await subscribe_webhook(gateway, sink, config=config)
            await publish_batch(gateway, "a")
            await until(lambda: queue.settled)
            assert sink.ids == ["a"] * 4
            assert all(message.topic == "orders" for message in gateway.port.stored)

    run(scenario())


def test_an_endless_answer_is_not_read() -> None:
    """The status says everything; of the body a bounded piece is read, and no more."""

    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=400)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while sent < 200_000_000:
                await response.write(b"x" * 100_000)
                sent += 100_000
        return response

    async def scenario() -> None:
        async with http() as gateway, receiver(endless, 204) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a", "b")
            await until(lambda: queue.settled == {0, 1})
            reply = gateway.port.stored[-1].properties["PMQ_DLQ_REPLY"]
            assert reply == "x" * 1024
            assert sent < 100_000_000

    run(scenario())


# --- batches that fail ------------------------------------------------------------------------


def test_a_refused_batch_is_sent_one_by_one() -> None:
    """One bad event must not take its neighbours with it: only itself becomes a dead letter."""

    async def judge(request: web.Request) -> web.Response:
        events = json.loads(await request.read())
        events = events if isinstance(events, list) else [events]
        return web.Response(status=400 if any(one["id"] == "bad" for one in events) else 204)

    async def scenario() -> None:
        async with http() as gateway, receiver(*[judge] * 20) as sink:
            queue = await subscribe_webhook(gateway, sink, config={"mode": "batch", "maxBatch": 4})
            await publish_batch(gateway, "a", "bad", "c", "d", "e", "f")
            await until(lambda: len(queue.settled) == 6)
            batches = [[one["id"] for one in json.loads(got.body)] for got in sink.deliveries]
            assert batches == [["a", "bad", "c", "d"], ["a"], ["bad"], ["c"], ["d"], ["e", "f"]]
            letters = [m for m in gateway.port.stored if m.topic != "orders"]
            assert [letter.properties["CE_id"] for letter in letters] == ["bad"]

    run(scenario())


def test_a_batch_that_fails_to_the_end_is_sent_one_by_one() -> None:
    """A last attempt for each event alone; who fails again is a dead letter."""

    async def judge(request: web.Request) -> web.Response:
        events = json.loads(await request.read())
        return web.Response(status=500 if any(one["id"] == "bad" for one in events) else 204)

    async def scenario() -> None:
        async with http() as gateway, receiver(*[judge] * 20) as sink:
            config = {"mode": "batch", "maxBatch": 3, "retry": RETRY}
            queue = await subscribe_webhook(gateway, sink, config=config)
            await publish_batch(gateway, "a", "bad", "c", "d")
            await until(lambda: len(queue.settled) == 4)
            batches = [[one["id"] for one in json.loads(got.body)] for got in sink.deliveries]
            assert batches == [["a", "bad", "c"]] * 3 + [["a"], ["bad"], ["c"], ["d"]]
            assert len(gateway.sleeps.seconds) == 2

    run(scenario())


# --- the engine's side ------------------------------------------------------------------------


def test_a_dead_letter_that_cannot_be_stored_is_tried_again() -> None:
    """The disk is full for a while: the event stays at the head and is not lost."""

    async def scenario() -> None:
        async with http() as gateway, receiver(400, 204) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, "a", "b")
            gateway.port.refusals = [Refused(Reason.STORAGE_FULL, "full")] * 3
            await until(lambda: queue.settled == {0, 1})
            assert sink.ids == ["a", "b"]
            assert gateway.sleeps.seconds == [0.5, 1.0, 2.0]
            assert gateway.port.stored[-1].topic == "%DLQ%s"

    run(scenario())


def test_filters_decide_what_is_delivered() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            filters = [{"any": [{"exact": {"region": "eu"}}, {"exact": {"region": "us"}}]}]
            queue = await subscribe_webhook(gateway, sink, filters=filters)
            await publish_batch(gateway, "a", region="eu")
            await publish_batch(gateway, "b", region="ap")
            await publish_batch(gateway, "c", region="us")
            await until(lambda: queue.settled == {0, 1, 2})
            assert len(sink.deliveries) == 2

    run(scenario())


def test_the_window_is_bounded() -> None:
    """What waits for a slow sink waits in the queue, not in memory."""

    release = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response(status=204)

    async def scenario() -> None:
        limits = HttpLimits(webhook_window_count=5, webhook_window_bytes=40)
        async with http(limits=limits) as gateway, receiver(slow) as sink:
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, *(str(n) for n in range(50)))
            await until(lambda: sink.deliveries)
            assert queue.delivered == {0, 1, 2, 3, 4}
            release.set()
            await until(lambda: len(queue.settled) == 50)
            assert sink.ids == [str(n) for n in range(50)]

    run(scenario())


def test_subscriptions_do_not_wait_for_each_other() -> None:
    """A sink that never answers holds up only its own subscription."""

    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async def scenario() -> None:
        async with http() as gateway, receiver(never) as stuck, receiver() as fine:
            await subscribe_webhook(gateway, stuck, "stuck")
            queue = await subscribe_webhook(gateway, fine, "fine")
            await publish_batch(gateway, *"abcdef")
            await until(lambda: len(queue.settled) == 6)
            assert fine.ids == list("abcdef")
            assert stuck.ids == ["a"]

    run(scenario())


async def _never(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


def test_many_hung_sinks_of_one_host_do_not_hold_up_another() -> None:
    """They have the share of their host, however many subscriptions name it."""
    limits = HttpLimits(webhook_requests_max=8, webhook_requests_per_host_max=3)

    async def scenario() -> None:
        async with http(limits=limits) as gateway, receiver() as stuck, receiver() as fine:
            queue = await subscribe_webhook(gateway, fine, "fine")
            await publish_batch(gateway, "a")
            await until(lambda: len(queue.settled) == 1)  # It is known to answer.
            for number in range(10):
                await subscribe_webhook(gateway, stuck, f"stuck{number}")
            stuck.answers = [_never] * 10
            await publish_batch(gateway, "b")
            await until(lambda: len(queue.settled) == 2 and len(stuck.deliveries) == 3)
            found = gateway.server.statistics()
            assert found.webhook_requests_under_way == 3
            assert found.webhook_requests_waiting == 7
            assert found.webhook_requests == {
                "delivered": 2,
                "retry": 0,
                "rejected": 0,
                "gone": 0,
            }

    run(scenario())


def test_new_subscriptions_that_hang_leave_slots_to_those_that_answer() -> None:
    """None of their requests has ended, and they have a port each."""
    limits = HttpLimits(webhook_requests_max=4, webhook_requests_per_host_max=4)

    async def scenario() -> None:
        async with http(limits=limits) as gateway, contextlib.AsyncExitStack() as stack:
            fine = await stack.enter_async_context(receiver())
            queue = await subscribe_webhook(gateway, fine, "fine")
            await publish_batch(gateway, "a")
            await until(lambda: len(queue.settled) == 1)
            sinks = [await stack.enter_async_context(receiver(_never)) for _ in range(6)]
            for number, sink in enumerate(sinks):
                await subscribe_webhook(gateway, sink, f"stuck{number}")
            await publish_batch(gateway, "b")
            await until(lambda: sum(len(sink.deliveries) for sink in sinks) == 2)
            await publish_batch(gateway, "c")
            await until(lambda: len(queue.settled) == 3)
            assert sum(len(sink.deliveries) for sink in sinks) == 2

    run(scenario())


def test_sinks_that_failed_share_a_quarter_of_all_requests() -> None:
    """Sinks hang: those that answer, and new ones, are not delayed."""
    limits = HttpLimits(webhook_requests_max=8, webhook_requests_per_host_max=8)

    async def scenario() -> None:
        async with http(limits=limits) as gateway, contextlib.AsyncExitStack() as stack:
            sinks = [await stack.enter_async_context(receiver(500, _never)) for _ in range(5)]
            queues = [
                await subscribe_webhook(gateway, sink, f"stuck{number}", config={"retry": RETRY})
                for number, sink in enumerate(sinks)
            ]
            await publish_batch(gateway, "a")
            await until(lambda: sum(len(sink.deliveries) for sink in sinks) == 5 + 2)
            fine = await stack.enter_async_context(receiver())
            queue = await subscribe_webhook(gateway, fine, "fine")
            await publish_batch(gateway, *"bc")
            await until(lambda: len(queue.settled) == 2)
            assert sum(len(sink.deliveries) for sink in sinks) == 5 + 2
            assert not any(one.settled for one in queues)
            assert gateway.server.statistics().webhooks == {
                "active": 1,
                "failing": 5,
                "paused": 0,
                "disabled": 0,
            }

    run(scenario())


@pytest.mark.slow
def test_a_sink_that_was_slow_is_doubtful() -> None:
    """It answers, but late: it shares with those that fail until it is quick again."""
    limits = HttpLimits(webhook_requests_max=2, webhook_slow_seconds=0.0)

    async def scenario() -> None:
        async with http(limits=limits) as gateway, contextlib.AsyncExitStack() as stack:
            sinks = [await stack.enter_async_context(receiver(204, _never)) for _ in range(3)]
            for number, sink in enumerate(sinks):
                await subscribe_webhook(gateway, sink, f"slow{number}")
            await publish_batch(gateway, *"ab")
            await until(lambda: gateway.server.statistics().webhook_requests["delivered"] == 3)
            await until(lambda: sum(len(sink.deliveries) for sink in sinks) == 3 + 1)
            await until(lambda: gateway.server.statistics().webhook_requests_waiting == 2)
            assert gateway.server.statistics().webhook_requests_under_way == 1

    run(scenario())


def test_connections_to_many_hosts_are_not_kept() -> None:
    """A connection that waits for the next event costs a descriptor."""
    limits = HttpLimits(webhook_idle_hosts_max=1)

    async def scenario() -> None:
        async with http(limits=limits) as gateway, receiver() as first, receiver() as second:
            one = await subscribe_webhook(gateway, first, "one")
            await publish_batch(gateway, "a")
            await until(lambda: len(one.settled) == 1)
            two = await subscribe_webhook(gateway, second, "two")
            await publish_batch(gateway, "b")
            await until(lambda: len(one.settled) == 2 and len(two.settled) == 1)
            assert [got.headers.get("Connection") for got in first.deliveries] == [None, None]
            assert [got.headers.get("Connection") for got in second.deliveries] == ["close"]

    run(scenario())


def test_the_granted_rate_is_kept() -> None:
    """60 a minute: a second between two deliveries."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            sink.consent = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "60"}
            queue = await subscribe_webhook(gateway, sink)
            await publish_batch(gateway, *"abc")
            await until(lambda: len(queue.settled) == 3)
            assert len(gateway.sleeps.seconds) == 2
            assert gateway.sleeps.seconds[0] == pytest.approx(1.0, abs=0.2)
            assert gateway.sleeps.seconds[1] == pytest.approx(2.0, abs=0.2), "no time has passed"

    run(scenario())


def test_a_webhook_whose_owner_lost_its_right_is_disabled_and_keeps_its_queue() -> None:
    """The engine cancels its consumer: what it held goes back, and its users read why."""

    async def scenario() -> None:
        sleeps = Sleeps(at_once=False)
        async with http(sleeps=sleeps) as gateway, receiver(500) as sink:
            queue = await subscribe_webhook(gateway, sink, config={"retry": RETRY})
            await publish_batch(gateway, "a", "b")
            await until(lambda: len(queue.delivered) == 2 and sleeps.seconds)
            consumer = queue.consumer
            assert consumer is not None
            queue.consumer = None  # as the engine does it: first the hold, then the consumer
            consumer.cancelled()
            await until(lambda: queue.requeued == [0, 1])
            assert queue.delivered == set()
            _, shown, _ = await gateway.call("GET", "/subscriptions/s")
            assert shown["status"]["state"] == "disabled"
            assert "owner" in shown["status"]["reason"]

    run(scenario())
