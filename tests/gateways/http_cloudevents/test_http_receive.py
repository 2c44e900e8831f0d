"""Receiving by long poll: locks, acknowledge, release, reject, time, restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from polymq.broker.limits import Limits
from polymq.broker.port import BrokerPort
from polymq.gateways.http_cloudevents.delivery_counts import DOCUMENT_KIND, RUNS_MAX, DeliveryCounts
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from tests.gateways.http_cloudevents.http_harness import (
    BINARY,
    EVENT,
    Http,
    http,
    receiver,
    run,
    until,
)
from tests.gateways.http_cloudevents.http_spy_port import SpyPort, SpyQueue


async def subscribe(gateway: Http, **body: Any) -> SpyQueue:
    status, answer, _ = await gateway.call("PUT", "/subscriptions/s", {"topic": "orders", **body})
    assert status in (200, 201), answer
    return gateway.port.queue_by_name["sub:s"]


async def receive(gateway: Http, count: int = 10, wait: int = 0) -> list[dict[str, Any]]:
    query = f"maxEvents={count}&maxWaitTime={wait}"
    status, body, _ = await gateway.call("POST", f"/topics/orders/subscriptions/s:receive?{query}")
    assert status == 200, body
    value: list[dict[str, Any]] = body["value"]
    return value


async def settle(gateway: Http, verb: str, *tokens: str, query: str = "") -> dict[str, Any]:
    status, body, _ = await gateway.call(
        "POST", f"/topics/orders/subscriptions/s:{verb}{query}", {"lockTokens": list(tokens)}
    )
    assert status == 200, body
    found: dict[str, Any] = body
    return found


async def publish(gateway: Http, *ids: str, kind: str = "t") -> None:
    for one in ids:
        headers = {**BINARY, "ce-id": one, "ce-type": kind, "Content-Type": "application/json"}
        assert await gateway.publish(b'{"n" : 1.10}', headers) == (204, None)


def ids(received: list[dict[str, Any]]) -> list[str]:
    return [one["event"]["id"] for one in received]


def tokens(received: list[dict[str, Any]]) -> list[str]:
    return [one["brokerProperties"]["lockToken"] for one in received]


SHORT = HttpLimits(receive_seconds_min=0.02)


def test_receive_and_acknowledge() -> None:
    """Event Grid's shape; the data stands in the answer byte for byte; acknowledged is settled."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway)
            await publish(gateway, "a", "b")
            path = gateway.url + "/topics/orders/subscriptions/s:receive?maxEvents=5"
            async with gateway.client.post(path) as answer:
                text = await answer.read()
            assert b'"data":{"n" : 1.10}}' in text
            received = json.loads(text)["value"]
            assert ids(received) == ["a", "b"]
            assert received[0]["event"]["source"] == "/s"
            assert received[0]["brokerProperties"] == {
                "lockToken": "0.secret0",
                "deliveryCount": 1,
            }
            assert await receive(gateway) == [], "locked events are nobody else's"
            both = tokens(received)
            assert await settle(gateway, "acknowledge", *both) == {
                "succeededLockTokens": both,
                "failedLockTokens": [],
            }
            assert queue.settled == {0, 1}
            again = await settle(gateway, "acknowledge", both[0], "nonsense")
            assert again["succeededLockTokens"] == []
            failed = again["failedLockTokens"]
            assert [one["lockToken"] for one in failed] == [both[0], "nonsense"]
            assert failed[0]["error"]["code"] == "TokenLost"

    run(scenario())


def test_a_poll_waits_for_an_event() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            await subscribe(gateway)
            poll = asyncio.create_task(receive(gateway, wait=20))
            queue = gateway.port.queue_by_name["sub:s"]
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            await publish(gateway, "a")
            assert ids(await poll) == ["a"]

    run(scenario())


def test_nothing_is_fetched_without_a_poll() -> None:
    """An idle subscription holds nothing in memory: credit is what the polls want."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway)
            await publish(gateway, *"abcdef")
            assert queue.delivered == set()
            assert ids(await receive(gateway, count=2)) == ["a", "b"]
            assert queue.delivered == {0, 1}

    run(scenario())


def test_polls_share_the_events() -> None:
    """First come, first served; each event goes to one of them."""

    async def scenario() -> None:
        async with http() as gateway:
            queue = await subscribe(gateway)
            polls = []
            for _ in range(3):
                polls.append(asyncio.create_task(receive(gateway, count=2, wait=20)))
                await until(lambda: queue.consumer and queue.consumer.credit() == 2 * len(polls))
            body = json.dumps([{**EVENT, "id": str(n)} for n in range(5)]).encode()
            await gateway.publish(body, {"Content-Type": "application/cloudevents-batch+json"})
            answers = [ids(answer) for answer in await asyncio.gather(*polls)]
            assert answers == [["0", "1"], ["2", "3"], ["4"]]

    run(scenario())


def test_released_events_come_again_with_their_count() -> None:
    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            await subscribe(gateway)
            await publish(gateway, "a", "b")
            first = await receive(gateway)
            await settle(gateway, "release", tokens(first)[0])
            second = await receive(gateway)
            assert ids(second) == ["a"]
            assert second[0]["brokerProperties"]["deliveryCount"] == 2
            lost = await settle(gateway, "acknowledge", tokens(first)[0])
            assert lost["failedLockTokens"], "the old token reaches nothing"
            assert (await settle(gateway, "acknowledge", *tokens(second)))["succeededLockTokens"]

    run(scenario())


def test_a_delayed_release_hides_the_event() -> None:
    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            await subscribe(gateway)
            await publish(gateway, "a")
            (first,) = await receive(gateway)
            token = first["brokerProperties"]["lockToken"]
            query = "?releaseDelayInSeconds=1"
            assert (await settle(gateway, "release", token, query=query))["succeededLockTokens"]
            assert await receive(gateway) == []
            assert (await settle(gateway, "acknowledge", token))["failedLockTokens"]
            assert ids(await receive(gateway, wait=10)) == ["a"]

    run(scenario())


def test_a_lock_that_ends_gives_the_event_back() -> None:
    """A consumer that crashed: another one gets the event, flagged by its count."""

    async def scenario() -> None:
        async with http() as gateway:
            await subscribe(gateway, config={"lockSeconds": 0.05})
            await publish(gateway, "a")
            first = await receive(gateway)
            second = await receive(gateway, wait=10)
            assert ids(first) == ids(second) == ["a"]
            assert second[0]["brokerProperties"]["deliveryCount"] == 2

    run(scenario())


def test_a_renewed_lock_goes_on() -> None:
    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            await subscribe(gateway, config={"lockSeconds": 1.0})
            await publish(gateway, "a")
            received = await receive(gateway)
            clock = asyncio.get_running_loop().time
            end = clock() + 1.5  # which the lock alone would not last
            while clock() < end:
                assert await receive(gateway) == []
                renewed = await settle(gateway, "renewLock", *tokens(received))
                assert renewed["succeededLockTokens"] == tokens(received)
            assert (await settle(gateway, "acknowledge", *tokens(received)))["succeededLockTokens"]

    run(scenario())


def test_a_rejected_event_is_a_dead_letter() -> None:
    """Stored and settled in one record; it can be read there, with the reason beside it."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway, config={"deadLetterTopic": "dead"})
            dead = {"topic": "dead"}
            assert (await gateway.call("PUT", "/subscriptions/d", dead))[0] == 201
            await publish(gateway, "a")
            received = await receive(gateway)
            await settle(gateway, "reject", *tokens(received))
            assert queue.settled == {0}
            path = "/topics/dead/subscriptions/d:receive?maxWaitTime=5"
            _, body, _ = await gateway.call("POST", path)
            (letter,) = body["value"]
            assert letter["event"] == received[0]["event"]
            reported = letter["brokerProperties"]["deadLetter"]
            assert reported.pop("messageId").startswith("b1-")
            assert reported == {
                "reason": "rejected by a consumer",
                "topic": "orders",
                "attempts": "1",
            }

    run(scenario())


def test_an_event_that_nobody_can_handle_becomes_a_dead_letter() -> None:
    """Released again and again: after attemptsMax deliveries it goes away by itself."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway, config={"retry": {"attemptsMax": 2}})
            await publish(gateway, "a", "b")
            for _ in range(2):
                received = await receive(gateway, count=1)
                assert ids(received) == ["a"]
                await settle(gateway, "release", *tokens(received))
            assert ids(await receive(gateway)) == ["b"]
            assert 0 in queue.settled
            letter = gateway.port.stored[-1]
            assert letter.topic == "%DLQ%s"
            assert letter.properties["PMQ_DLQ_ATTEMPTS"] == "2"
            assert "too often" in letter.properties["PMQ_DLQ_REASON"]

    run(scenario())


def test_filters_decide_what_is_received() -> None:
    """What does not pass is settled, so that it does not come back."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway, filters=[{"suffix": {"type": ".created"}}])
            await publish(gateway, "a", kind="order.deleted")
            await publish(gateway, "b", kind="order.created")
            await publish(gateway, "c", kind="order.deleted")
            assert ids(await receive(gateway, wait=5)) == ["b"]
            await receive(gateway)
            assert queue.settled == {0, 2}

    run(scenario())


def test_an_answer_is_bounded_in_bytes() -> None:
    """At least one event, then as many as fit; the rest waits for the next poll in order."""

    async def scenario() -> None:
        limits = HttpLimits(receive_bytes_max=25, receive_seconds_min=0.02)
        async with http(limits=limits) as gateway:
            await subscribe(gateway)
            await publish(gateway, *"abcde")
            assert ids(await receive(gateway)) == ["a", "b"]
            assert ids(await receive(gateway)) == ["c", "d"]
            assert ids(await receive(gateway)) == ["e"]

    run(scenario())


def test_locks_and_polls_are_bounded() -> None:
    async def scenario() -> None:
        limits = HttpLimits(
            locked_events_max=3, polls_per_subscription_max=1, receive_seconds_min=0.02
        )
        async with http(limits=limits) as gateway:
            queue = await subscribe(gateway)
            await publish(gateway, *"abcde")
            received = await receive(gateway)
            assert ids(received) == ["a", "b", "c"]
            path = "/topics/orders/subscriptions/s:receive"
            status, problem, _ = await gateway.call("POST", path)
            assert (status, problem["title"]) == (429, "Too many locked events")
            await settle(gateway, "acknowledge", *tokens(received))
            assert ids(await receive(gateway)) == ["d", "e"]
            poll = asyncio.create_task(receive(gateway, wait=5))
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            status, problem, _ = await gateway.call("POST", path)
            assert (status, problem["title"]) == (429, "Too many polls")
            await publish(gateway, "f")
            assert ids(await poll) == ["f"]

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/topics/orders/subscriptions/s:receive?maxEvents=0", None, 400),
        ("/topics/orders/subscriptions/s:receive?maxEvents=x", None, 400),
        ("/topics/orders/subscriptions/s:receive?maxEvents=1001", None, 400),
        ("/topics/orders/subscriptions/s:receive?maxWaitTime=121", None, 400),
        ("/topics/orders/subscriptions/s:receive?maxWaitTime=-1", None, 400),
        (
            "/topics/orders/subscriptions/s:release?releaseDelayInSeconds=9999",
            {"lockTokens": []},
            400,
        ),
        ("/topics/orders/subscriptions/s:acknowledge", None, 400),
        ("/topics/orders/subscriptions/s:acknowledge", {"lockTokens": "x"}, 400),
        ("/topics/orders/subscriptions/s:acknowledge", {"lockTokens": [1]}, 400),
        ("/topics/orders/subscriptions/s:acknowledge", {"lockTokens": ["x"] * 11}, 413),
        ("/topics/orders/subscriptions/s:eat", {"lockTokens": []}, 404),
        ("/topics/orders/subscriptions/s", None, 404),
        ("/topics/orders/subscriptions/other:receive", None, 404),
        ("/topics/other/subscriptions/s:receive", None, 404),
    ],
)
def test_bad_requests(path: str, body: Any, status: int) -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(lock_tokens_max=10)) as gateway:
            await subscribe(gateway)
            assert (await gateway.call("POST", path, body))[0] == status

    run(scenario())


def test_a_consumer_that_goes_away_loses_nothing() -> None:
    """Its poll ends with the connection; the event that arrives next goes to somebody else."""

    async def scenario() -> None:
        async with http() as gateway:
            queue = await subscribe(gateway)
            poll = asyncio.create_task(receive(gateway, wait=20))
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await until(lambda: queue.consumer is not None and queue.consumer.credit() == 0)
            await publish(gateway, "a")
            assert queue.delivered == set()
            assert ids(await receive(gateway, wait=5)) == ["a"]

    run(scenario())


def test_a_consumer_that_goes_away_as_its_event_comes_loses_nothing() -> None:
    """The event was locked for a poll whose connection is gone in the same moment: back it goes."""

    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            queue = await subscribe(gateway)
            registry = gateway.server._registry
            assert registry is not None
            part = registry.pull("s", "orders")
            poll = asyncio.create_task(part.receive(1, 20.0))
            await until(lambda: part.credit() > 0)
            gateway.port.add("orders", "t", b"x", {})
            gateway.port.flush()
            await asyncio.sleep(0)
            assert len(part._locks) == 1
            assert not poll.done()
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            assert queue.requeued == [0]
            (received,) = await receive(gateway)
            assert received["brokerProperties"]["deliveryCount"] == 2

    run(scenario())


def test_stop_answers_polls_and_puts_everything_back() -> None:
    """SIGTERM: waiting consumers get an empty answer, locked events are delivered again later."""

    async def scenario() -> None:
        port = SpyPort()
        async with http(port) as gateway:
            queue = await subscribe(gateway)
            await publish(gateway, "a", "b")
            assert len(await receive(gateway)) == 2
            poll = asyncio.create_task(receive(gateway, wait=100))
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            await gateway.server.stop(5.0)
            assert await poll == []
            assert queue.requeued == [0, 1]
            assert queue.consumer is None
        async with http(port) as gateway:
            received = await receive(gateway, wait=5)
            assert ids(received) == ["a", "b"]
            assert received[0]["brokerProperties"]["deliveryCount"] == 2

    run(scenario())


def test_a_deleted_subscription_ends_its_polls() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            queue = await subscribe(gateway)
            poll = asyncio.create_task(receive(gateway, wait=100))
            await until(lambda: queue.consumer is not None and queue.consumer.credit() > 0)
            assert (await gateway.call("DELETE", "/subscriptions/s"))[0] == 204
            assert await poll == []

    run(scenario())


def test_a_change_of_settings_keeps_the_locks() -> None:
    async def scenario() -> None:
        async with http(limits=SHORT) as gateway:
            await subscribe(gateway)
            await publish(gateway, "a")
            received = await receive(gateway)
            await subscribe(gateway, config={"lockSeconds": 5})
            assert (await settle(gateway, "acknowledge", *tokens(received)))["succeededLockTokens"]

    run(scenario())


def test_a_webhook_is_not_received_from() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            await subscribe(gateway, sink=sink.url)
            path = "/topics/orders/subscriptions/s:receive"
            status, problem, _ = await gateway.call("POST", path)
            assert status == 409
            assert "without a sink" in problem["detail"]

    run(scenario())


def test_plain_messages_are_received_as_events() -> None:
    """What an MQTT client published arrives wrapped."""

    async def scenario() -> None:
        async with http() as gateway:
            await subscribe(gateway)
            port = gateway.port
            port.add("orders", "eu.new", b"21.5", {"PMQ_PROTO": "mqtt"})
            port.flush()
            (received,) = await receive(gateway, wait=5)
            assert received["event"]["type"] == "eu.new"
            assert received["event"]["subject"] == "orders/eu/new"
            assert received["event"]["data_base64"] == "MjEuNQ=="

    run(scenario())


# --- delivery counts over a restart -----------------------------------------------------------


async def received_often(port: SpyPort, *counts: int) -> None:
    """Receive as many events as there are counts, in a server of its own; check their counts."""
    async with http(port, limits=SHORT) as gateway:
        got = await receive(gateway, len(counts))
        assert [one["brokerProperties"]["deliveryCount"] for one in got] == list(counts)
        await settle(gateway, "release", tokens(got)[0])


def test_delivery_counts_are_kept_over_a_stop() -> None:
    """Of events that were locked and of one that had gone back, until they are settled."""

    async def scenario() -> None:
        port = SpyPort()
        async with http(port, limits=SHORT) as gateway:
            await subscribe(gateway)
            await publish(gateway, "a", "b")
        await received_often(port, 1, 1)
        assert port.documents.of_kind(DOCUMENT_KIND) == {}  # the queue remembers that
        await received_often(port, 2, 2)
        assert port.documents.of_kind(DOCUMENT_KIND) == {"s": {"runs": [[0, 2, 2]]}}
        await received_often(port, 3, 3)
        async with http(port, limits=SHORT) as gateway:
            await settle(gateway, "acknowledge", *tokens(await receive(gateway)))
        assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


def test_another_subscription_of_a_name_counts_anew() -> None:
    async def scenario() -> None:
        port = SpyPort()
        async with http(port, limits=SHORT) as gateway:
            await subscribe(gateway)
            await publish(gateway, "a")
        await received_often(port, 1)
        await received_often(port, 2)
        async with http(port, limits=SHORT) as gateway:
            assert (await gateway.call("DELETE", "/subscriptions/s"))[0] == 204
        assert port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


def test_kept_counts_are_bounded_and_read_back() -> None:
    """The first ones are kept: they come again first."""
    port = SpyPort(auto_flush=False)
    counts = DeliveryCounts(cast("BrokerPort", port))
    many = {offset: 2 + offset % 2 for offset in range(RUNS_MAX + 10)}
    counts.put("s", many)
    assert counts.get("s") == {offset: many[offset] for offset in range(RUNS_MAX)}
    assert len(json.dumps(port.documents.of_kind(DOCUMENT_KIND)["s"])) < Limits().document_bytes_max
    counts.put("s", {1 << 60: 10**9, 5: 3, 6: 3, 7: 1})
    assert counts.get("s") == {1 << 60: 10**9, 5: 3, 6: 3}
    assert counts.get("other") == {}
