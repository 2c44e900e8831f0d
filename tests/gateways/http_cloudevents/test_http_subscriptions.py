"""Making, changing, reading and deleting subscriptions; the handshake; restarts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from polymq.broker.port import REST, Address, Position, Reason, Refused
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.limits import WebhookSettings
from polymq.gateways.http_cloudevents.subscriptions import (
    DOCUMENT_KIND,
    from_document,
    hide_query,
    hide_token,
    without_query,
)
from tests.gateways.http_cloudevents.http_harness import (
    BINARY,
    LOOPBACK,
    Http,
    http,
    receiver,
    run,
    until,
)
from tests.gateways.http_cloudevents.http_spy_port import SpyPort

PULL = {"topic": "orders"}


class Following(SpyPort):
    """The port of a slave: it has its master's state, and takes no changes."""

    def declare_subscription(self, name: str, address: Address) -> Position:
        raise Refused(Reason.READ_ONLY, "this broker is a slave: its master is m:1, ask there")


async def put(gateway: Http, name: str, body: Any) -> tuple[int, Any]:
    status, answer, _ = await gateway.call("PUT", f"/subscriptions/{name}", body)
    return status, answer


def test_subscriptions_rest_at_a_slave(caplog: pytest.LogCaptureFixture) -> None:
    """That is no error: the log says it in one line, and who wants to receive is told where to."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with http() as gateway:
            for name in ("a", "b"):
                assert (await put(gateway, name, PULL))[0] == 201
            slave = Following()
            slave._documents = gateway.port._documents
        async with http(slave) as gateway:
            said = [r for r in caplog.records if "not served" in r.getMessage()]
            assert [(r.levelname, r.getMessage().partition(":")[0]) for r in said] == [
                ("INFO", "2 subscriptions are not served for now")
            ]
            assert [r for r in caplog.records if r.levelno > logging.INFO] == []
            assert (await gateway.call("GET", "/subscriptions"))[0] == 200
            path = "/topics/orders/subscriptions/a:receive"
            status, problem, _ = await gateway.call("POST", path)
            assert (status, "its master is m:1" in problem["detail"]) == (503, True)

    run(scenario())


def test_life_of_a_subscription() -> None:
    """Make, read, list, change, delete: stored in the engine at each step before the answer."""

    async def scenario() -> None:
        async with http() as gateway:
            status, made, headers = await gateway.call(
                "POST", "/subscriptions", {"id": "s1", "topic": "orders"}
            )
            assert (status, headers["Location"]) == (201, "/subscriptions/s1")
            assert made == {
                "id": "s1",
                "topic": "orders",
                "filters": [],
                "config": {
                    "mode": "binary",
                    "maxBatch": 100,
                    "timeoutSeconds": 15.0,
                    "ratePerMinute": None,
                    "lockSeconds": 60.0,
                    "deadLetterTopic": "%DLQ%s1",
                    "retry": {"attemptsMax": 10, "firstSeconds": 1.0, "waitSecondsMax": 60.0},
                },
                "status": {"state": "active"},
            }
            assert "s1" in gateway.port.documents.of_kind(DOCUMENT_KIND)
            assert gateway.port.queue_by_name["sub:s1"].address == ("orders", REST)
            assert await put(gateway, "s1", made) == (200, made), "what was read can be sent"
            assert (await gateway.call("GET", "/subscriptions/s1"))[:2] == (200, made)
            assert (await gateway.call("GET", "/subscriptions"))[:2] == (200, [made])
            assert (await gateway.call("DELETE", "/subscriptions/s1"))[0] == 204
            assert gateway.port.documents.of_kind(DOCUMENT_KIND) == {}
            assert gateway.port.queue_by_name == {}
            assert (await gateway.call("GET", "/subscriptions/s1"))[0] == 404
            assert (await gateway.call("DELETE", "/subscriptions/s1"))[0] == 404

    run(scenario())


def test_a_subscription_of_the_topic_without_a_name() -> None:
    """It collects that topic, is shown with the name that tools have for it, and survives."""

    async def scenario() -> None:
        async with http() as gateway:
            config = {"deadLetterTopic": "|||"}
            wanted = {"id": "s1", "topic": "||", "config": config}
            status, made, _ = await gateway.call("POST", "/subscriptions", wanted)
            assert (status, made["topic"]) == (201, "||")
            assert made["config"]["deadLetterTopic"] == "|||"
            assert gateway.port.queue_by_name["sub:s1"].address == ("", REST)
            (stored,) = gateway.port.documents.of_kind(DOCUMENT_KIND).values()
            again = from_document("s1", stored)
            assert (again.topic, again.dead_letter_topic) == ("", "||")
            path = "/topics/%7C%7C/subscriptions/s1:acknowledge"
            assert (await gateway.call("POST", path, {"lockTokens": []}))[0] == 200
            other = path.replace("%7C%7C", "other")
            assert (await gateway.call("POST", other, {"lockTokens": []}))[0] == 404

    run(scenario())


def test_nothing_is_answered_before_the_commit() -> None:
    """Made and deleted: both answers wait for the disk."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            for method in ("PUT", "DELETE"):
                body = PULL if method == "PUT" else None
                request = asyncio.create_task(gateway.call(method, "/subscriptions/s", body))
                await until(lambda: port.appended > port.flushed)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not request.done()
                port.flush()
                assert (await request)[0] in (201, 204)

    run(scenario())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`"),
        ({}, "missing required field `topic`"),
        ({"topic": ""}, "$.topic"),
        ({"topic": "t", "sinc": "https://x"}, "unknown field `sinc`"),
        ({"topic": "t", "config": {"maxbatch": 5}}, "unknown field `maxbatch`"),
        ({"topic": "t", "config": {"maxBatch": 0}}, "$.config.maxBatch"),
        ({"topic": "t", "config": {"maxBatch": 1_000_000}}, "config.maxBatch must be at most"),
        ({"topic": "t", "config": {"mode": "xml"}}, "$.config.mode"),
        ({"topic": "t", "config": {"retry": {"attemptsMax": 0}}}, "$.config.retry.attemptsMax"),
        ({"topic": "t", "config": {"timeoutSeconds": 1e9}}, "$.config.timeoutSeconds"),
        ({"topic": "t", "protocol": "KAFKA"}, "$.protocol"),
        ({"topic": "t", "filters": [{"sql": "x"}]}, "filters[0].sql"),
        ({"topic": "t", "filters": {}}, "$.filters"),
        ({"topic": "t", "id": "other"}, "the path says 's'"),
        ({"topic": "t", "sink": "http://10.0.0.1/"}, "not a public address"),
        ({"topic": "t", "sink": "ftp://x/"}, "https"),
        ({"topic": "t", "sink": ""}, "scheme"),
    ],
)
def test_a_bad_subscription_is_refused_in_words(body: Any, text: str) -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, problem = await put(gateway, "s", body)
            assert status == 400
            assert text in problem["detail"]
            assert gateway.port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


@pytest.mark.parametrize(
    ("body", "member"),
    [
        (b'{"topic": "t", "topic": "u"}', "topic"),
        (b'{"topic": "t", "config": {"mode": "binary", "mode": "structured"}}', "mode"),
    ],
)
def test_a_member_that_is_there_twice_is_refused(body: bytes, member: str) -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, problem, _ = await gateway.call("PUT", "/subscriptions/s", body)
            assert status == 400
            assert f"the member '{member}' occurs twice" in problem["detail"]

    run(scenario())


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "ä", "x" * 65, "a/b", "a:b"])
def test_bad_names(name: str) -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, _, _ = await gateway.call("POST", "/subscriptions", {"topic": "t", "id": name})
            assert status == 400

    run(scenario())


def test_post_does_not_replace() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            assert (await put(gateway, "s", PULL))[0] == 201
            status, problem, _ = await gateway.call("POST", "/subscriptions", {**PULL, "id": "s"})
            assert status == 409
            assert "PUT" in problem["detail"]

    run(scenario())


def test_what_a_subscription_collects_cannot_change() -> None:
    """Its queue holds messages already. Filters that only decide at reading may change."""

    async def scenario() -> None:
        async with http() as gateway:
            assert (await put(gateway, "s", PULL))[0] == 201
            assert (await put(gateway, "s", {"topic": "other"}))[0] == 409
            exact = [{"exact": {"type": "a"}}]
            assert (await put(gateway, "s", {**PULL, "filters": exact}))[0] == 409
            assert gateway.port.documents.of_kind(DOCUMENT_KIND)["s"]["topic"] == "orders"
            assert gateway.port.documents.of_kind(DOCUMENT_KIND)["s"]["filters"] == []
            suffix = [{"suffix": {"type": ".a"}}]
            assert (await put(gateway, "s", {**PULL, "filters": suffix}))[0] == 200

    run(scenario())


def test_subscriptions_are_bounded() -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(subscriptions_max=2)) as gateway:
            assert [(await put(gateway, n, PULL))[0] for n in "abc"] == [201, 201, 429]
            assert (await put(gateway, "a", PULL))[0] == 200, "changing one is no new one"

    run(scenario())


def test_a_large_subscription_is_refused() -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(subscription_bytes_max=100)) as gateway:
            assert (await put(gateway, "s", {"topic": "t" * 200}))[0] == 413

    run(scenario())


def test_a_refusal_of_the_engine_makes_no_subscription() -> None:
    async def scenario() -> None:
        port = SpyPort()
        async with http(port) as gateway:

            def refuse(*arguments: object) -> int:
                raise Refused(Reason.READ_ONLY, "read-only")

            port.put_document = refuse  # type: ignore[method-assign,assignment]
            assert (await put(gateway, "s", PULL))[0] == 503
            assert (await gateway.call("GET", "/subscriptions"))[1] == []

    run(scenario())


def test_options_name_the_methods() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            _, _, headers = await gateway.call("OPTIONS", "/subscriptions")
            assert headers["Allow"] == "GET, POST, OPTIONS"
            _, _, headers = await gateway.call("OPTIONS", "/subscriptions/x")
            assert headers["Allow"] == "GET, PUT, DELETE, OPTIONS"

    run(scenario())


def test_a_change_goes_on_without_its_client() -> None:
    """The client goes away between the handshake and the commit: no half-made subscription."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            request = asyncio.create_task(put(gateway, "s", PULL))
            await until(lambda: port.documents.of_kind(DOCUMENT_KIND))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            for _ in range(20):
                await asyncio.sleep(0)
            port.flush()
            registry = gateway.server._registry
            assert registry is not None
            await until(registry.all)
            assert (await gateway.call("GET", "/subscriptions/s"))[0] == 200

    run(scenario())


def test_two_changes_at_a_time() -> None:
    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            first = asyncio.create_task(put(gateway, "s", PULL))
            await until(lambda: port.documents.of_kind(DOCUMENT_KIND))
            assert (await put(gateway, "s", PULL))[0] == 409
            port.flush()
            assert (await first)[0] == 201

    run(scenario())


# --- the handshake ----------------------------------------------------------------------------


def test_a_sink_is_asked_for_its_consent() -> None:
    """OPTIONS to the exact URL, with our origin and the rate; what it grants is kept."""

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            sink.consent = {
                "WebHook-Allowed-Origin": "PolyMQ.test",
                "WebHook-Allowed-Rate": "120",
            }
            body = {**PULL, "sink": sink.url + "?a=b", "config": {"ratePerMinute": 600}}
            status, made = await put(gateway, "s", body)
            assert status == 201
            assert made["status"] == {"state": "active", "grantedRatePerMinute": 120}
            (asked,) = sink.handshakes
            assert asked.path == "/hook?a=b"
            assert asked.headers["WebHook-Request-Origin"] == "polymq.test"
            assert asked.headers["WebHook-Request-Rate"] == "600"
            assert asked.body == b""

    run(scenario())


@pytest.mark.parametrize(
    ("consent", "wanted", "status", "granted"),
    [
        ({}, None, 422, None),
        ({"WebHook-Allowed-Origin": "other.example"}, None, 422, None),
        ({"WebHook-Allowed-Origin": "sub.polymq.test"}, None, 422, None),
        ({"WebHook-Allowed-Origin": "*"}, None, 201, None),
        ({"WebHook-Allowed-Origin": "*"}, 60, 201, 60),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}, 60, 201, None),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "30"}, None, 201, 30),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "lots"}, 60, 201, 60),
    ],
)
def test_what_counts_as_consent(
    consent: dict[str, str], wanted: int | None, status: int, granted: int | None
) -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            sink.consent = consent
            body = {**PULL, "sink": sink.url, "config": {"ratePerMinute": wanted}}
            found, answer = await put(gateway, "s", body)
            assert found == status
            if status == 201:
                assert answer["status"].get("grantedRatePerMinute") == granted
            else:
                assert answer["title"] == "The sink did not consent"
                assert gateway.port.documents.of_kind(DOCUMENT_KIND) == {}

    run(scenario())


def test_a_redirect_is_no_consent_and_is_not_followed() -> None:
    async def scenario() -> None:
        async with http() as gateway, receiver() as other, receiver() as sink:
            sink.location = other.url
            status, _ = await put(gateway, "s", {**PULL, "sink": sink.url})
            assert status == 422
            assert len(sink.requests) == 1
            assert other.requests == []

    run(scenario())


def test_a_sink_that_cannot_be_reached() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            async with receiver() as sink:
                gone = sink.url
            status, problem = await put(gateway, "s", {**PULL, "sink": gone})
            assert status == 422
            assert "OPTIONS to the sink failed" in problem["detail"]

    run(scenario())


def test_a_name_inside_the_network_is_no_sink() -> None:
    """The guard holds for the handshake as well, and says why."""

    async def scenario() -> None:
        settings = WebhookSettings(origin="polymq.test", allow_http=True)
        async with http(webhooks=settings) as gateway, receiver() as sink:
            url = sink.url.replace("127.0.0.1", "localhost")
            status, problem = await put(gateway, "s", {**PULL, "sink": url})
            assert status == 422
            assert "is not a public address" in problem["detail"]
            assert sink.requests == []

    run(scenario())


def test_the_handshake_can_be_switched_off() -> None:
    async def scenario() -> None:
        settings = WebhookSettings(
            allow_http=True,
            allow_networks=LOOPBACK,
            handshake=False,
        )
        async with http(webhooks=settings) as gateway, receiver() as sink:
            sink.consent = {}
            assert (await put(gateway, "s", {**PULL, "sink": sink.url}))[0] == 201
            assert sink.handshakes == []

    run(scenario())


def test_access_tokens_are_not_shown() -> None:
    assert hide_token("https://x/h?a=b&access_token=s3cret") == "https://x/h?a=b&access_token=***"
    assert hide_token("https://x/h?a=%20b") == "https://x/h?a=%20b"
    assert without_query("https://x/h?access_token=s3cret#f") == "https://x/h"

    async def scenario() -> None:
        async with http() as gateway, receiver() as sink:
            body = {**PULL, "sink": sink.url + "?access_token=s3cret"}
            for _, answer in (
                await put(gateway, "s", body),
                (await gateway.call("GET", "/subscriptions/s"))[:2],
                (await gateway.call("GET", "/subscriptions"))[:2],
            ):
                assert "s3cret" not in str(answer)
                assert "access_token=***" in str(answer)
            _, shown, _ = await gateway.call("GET", "/subscriptions/s")
            status, problem = await put(gateway, "s", shown)
            assert status == 400
            assert "send the whole URL" in problem["detail"]

    run(scenario())


@pytest.mark.parametrize(
    ("sink", "shown"),
    [
        ("https://x/h?code=s3cret&a=b", "https://x/h?***"),
        ("https://x/h?s3cret", "https://x/h?***"),
        ("https://x/h", "https://x/h"),
    ],
)
def test_readers_do_not_see_the_query_of_a_sink(sink: str, shown: str) -> None:
    """Keys stand there (`code`, `sig`), under any name. The owner of the subscription sees them."""
    assert hide_query(sink) == shown

    class Reader(SpyPort):
        """Lets everybody read, and nobody administer."""

        def check_admin(self, address: Address) -> None:
            raise Refused(Reason.FORBIDDEN, "not yours")

    async def scenario() -> None:
        port = Reader()
        document: dict[str, object] = {
            "topic": "orders",
            "sink": sink,
            "filters": [],
            "config": {},
            "granted": None,
            "disabled": "resting",
            "owner": "somebody",
        }
        port.put_document(DOCUMENT_KIND, "s", document)
        async with http(port) as gateway:
            for path in ("/subscriptions/s", "/subscriptions"):
                _, answer, _ = await gateway.call("GET", path)
                (one,) = answer if isinstance(answer, list) else [answer]
                assert one["sink"] == shown

    run(scenario())


# --- restarts ---------------------------------------------------------------------------------


def test_subscriptions_survive_a_restart() -> None:
    """The engine keeps the documents; a new server takes them up without a new handshake."""

    async def scenario() -> None:
        port = SpyPort()
        async with receiver() as sink:
            async with http(port) as gateway:
                await put(gateway, "hook", {**PULL, "sink": sink.url})
                await put(gateway, "pull", {**PULL, "filters": [{"suffix": {"type": ".x"}}]})
                before = (await gateway.call("GET", "/subscriptions"))[1]
            async with http(port) as gateway:
                assert (await gateway.call("GET", "/subscriptions"))[1] == before
                await gateway.publish(b"x", {**BINARY, "Content-Type": "a/b"})
                await until(lambda: sink.deliveries)
                assert len(sink.handshakes) == 1

    run(scenario())


def test_one_subscription_that_cannot_be_served_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        port = SpyPort()
        async with http(port) as gateway:
            await put(gateway, "a", PULL)
            await put(gateway, "b", PULL)
        port.queue_by_name["sub:a"].address = ("something", "else")
        async with http(port) as gateway:
            path = "/topics/orders/subscriptions/{}:receive?maxWaitTime=0"
            assert (await gateway.call("POST", path.format("a")))[0] == 503
            assert (await gateway.call("POST", path.format("b")))[0] == 200

    run(scenario())
