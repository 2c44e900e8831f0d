"""Publishing over HTTP: modes, answers, refusals, and the wait for the disk."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64encode

import pytest

from polymq.broker.port import TTL_PROPERTY, Reason, Refused, ttl_property
from polymq.gateways.http_cloudevents.attributes import time_ms
from polymq.gateways.http_cloudevents.errors import STATUS_OF_REASON
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.mapping import ttl_ms
from polymq.gateways.http_cloudevents.publishing import Publisher
from tests.gateways.http_cloudevents.http_harness import (
    BATCH,
    BINARY,
    EVENT,
    STRUCTURED,
    Http,
    http,
    run,
    until,
)
from tests.gateways.http_cloudevents.http_spy_port import SpyPort


def publisher_of(gateway: Http) -> Publisher:
    handlers = gateway.server._handlers
    assert handlers is not None
    return next(iter(handlers._publishers.values()))


def test_binary_event_is_stored_verbatim() -> None:
    """204 after the commit; the body's bytes and every attribute are in the message."""

    async def scenario() -> None:
        async with http() as gateway:
            body = b'{"a" :1.10,\n "a":2}'
            headers = {**BINARY, "ce-subject": "Euro%20%E2%82%AC", "Content-Type": "text/x"}
            assert await gateway.publish(body, headers) == (204, None)
            (message,) = gateway.port.stored
            assert message.body == body
            assert (message.topic, message.tag) == ("orders", "t")
            assert message.properties["CE_subject"] == "Euro €"
            assert message.properties["content-type"] == "text/x"

    run(scenario())


def test_structured_event_is_stored_exploded() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            body = json.dumps({**EVENT, "data": {"a": 1}}).encode()
            headers = {**STRUCTURED, "ce-id": "a copy that is ignored"}
            assert await gateway.publish(body, headers) == (204, None)
            (message,) = gateway.port.stored
            assert message.body == b'{"a": 1}'
            assert message.properties["CE_id"] == "1"
            assert message.properties["PMQ_CE_MODE"] == "structured-json"

    run(scenario())


def test_batch_of_one_type_is_one_publish() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            body = json.dumps([{**EVENT, "id": str(n), "data": n} for n in range(500)]).encode()
            assert await gateway.publish(body, BATCH) == (204, None)
            assert gateway.port.publish_calls == [500]
            assert [message.body for message in gateway.port.stored] == [
                b"%d" % n for n in range(500)
            ]

    run(scenario())


def test_large_batch_is_parsed_beside_the_loop() -> None:
    """The result is the same whichever thread parsed it, errors too."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(large_body_bytes=10)) as gateway:
            body = json.dumps([{**EVENT, "id": str(n)} for n in range(50)]).encode()
            assert await gateway.publish(body, BATCH) == (204, None)
            assert gateway.port.publish_calls == [50]
            status, problem = await gateway.publish(b"[{}]", BATCH)
            assert (status, problem["errors"][0]["index"]) == (400, 0)

    run(scenario())


def test_empty_batch_stores_nothing() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            assert await gateway.publish(b"[]", BATCH) == (204, None)
            assert gateway.port.stored == []

    run(scenario())


def test_one_bad_event_refuses_the_batch() -> None:
    """Atomic: nothing stored, and each bad event named by its place, id and attribute."""

    async def scenario() -> None:
        async with http() as gateway:
            events = [EVENT, {**EVENT, "id": "x", "time": "now"}, {**EVENT, "source": ""}]
            status, problem = await gateway.publish(json.dumps(events).encode(), BATCH)
            assert status == 400
            assert [
                (fault["index"], fault["id"], fault["attribute"]) for fault in problem["errors"]
            ] == [(1, "x", "time"), (2, "1", "source")]
            assert "nothing of the batch was stored" in problem["detail"]
            assert gateway.port.stored == []

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "body", "status", "text"),
    [
        ({"ce-id": "1"}, b"", 400, "specversion: is missing"),
        ({**BINARY, "ce-time": "now"}, b"", 400, "time: 'now'"),
        ({**BINARY, "ce-datacontenttype": "x/y"}, b"", 400, "datacontenttype"),
        ({**BINARY, "Content-Type": "json"}, b"", 400, "datacontenttype: 'json'"),
        (STRUCTURED, b"{}", 400, "specversion"),
        (STRUCTURED, b"\xff", 400, "not UTF-8"),
        (STRUCTURED, b"[]", 400, "not a JSON object"),
        (BATCH, b"{}", 400, "not a JSON array"),
        ({"Content-Type": "application/cloudevents+avro"}, b"", 415, "is not supported"),
    ],
)
def test_bad_event_is_a_problem_in_words(
    headers: dict[str, str], body: bytes, status: int, text: str
) -> None:
    async def scenario() -> None:
        async with http() as gateway:
            found, problem = await gateway.publish(body, headers)
            assert (found, problem["status"]) == (status, status)
            assert text in problem["detail"]
            assert gateway.port.stored == []

    run(scenario())


def test_a_header_that_comes_twice_is_refused() -> None:
    """Parsers differ about which of two counts: neither may."""

    async def scenario() -> None:
        async with http() as gateway:
            head = "".join(f"{name}: {value}\r\n" for name, value in BINARY.items())
            for twice in (
                "ce-id: 2\r\n",
                "CE-ID: 1\r\n",
                "Content-Type: a/b\r\nContent-Type: a/b\r\n",
            ):
                answer = await gateway.raw(
                    f"POST /topics/t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}{twice}"
                    "Content-Length: 0\r\n\r\n".encode()
                )
                assert b" 400 Bad Request\r\n" in answer
                assert b"twice" in answer or b"Duplicate" in answer
            assert gateway.port.stored == []

    run(scenario())


def test_plain_body_is_a_raw_publish() -> None:
    """No ce- header at all: a message without CloudEvents, tag by header, any body."""

    async def scenario() -> None:
        async with http() as gateway:
            assert await gateway.publish(b"\x00raw", {"Content-Type": "a/b"}) == (204, None)
            assert await gateway.publish(b"x", {"PolyMQ-Tag": "room1.t%20%C3%A9"}) == (204, None)
            first, second = gateway.port.stored
            assert (first.tag, first.body) == (None, b"\x00raw")
            assert first.properties == {"PMQ_PROTO": "http", "content-type": "a/b"}
            assert (second.tag, second.body) == ("room1.t é", b"x")
            assert second.properties == {"PMQ_PROTO": "http"}
            assert (await gateway.publish(b"x", {"PolyMQ-Tag": "%00"}))[0] == 400

    run(scenario())


def test_topic_names_are_percent_decoded() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            async with gateway.client.post(
                gateway.url + "/topics/a%20b%2Fc%7Bd%7D", headers=BINARY
            ) as answer:
                assert answer.status == 204
            assert gateway.port.stored[0].topic == "a b/c{d}"

    run(scenario())


@pytest.mark.parametrize("path", ["/topics/azt:publish", "/topics/a:b?x=y", "/topics/:receive"])
def test_an_unknown_operation_is_no_topic(path: str) -> None:
    """A client of another system's API must not believe that it has published."""

    async def scenario() -> None:
        async with http() as gateway:
            status, problem, _ = await gateway.call("POST", path, b"x", **BINARY)
            assert status == 404
            assert "no operation :" in problem["detail"]
            assert gateway.port.stored == []

    run(scenario())


def test_a_topic_in_the_path_is_utf_8() -> None:
    """Whatever else it were taken for would be the name of a topic that nobody meant."""

    async def scenario() -> None:
        async with http() as gateway:
            head = b"POST /topics/%C3( HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            answer = await gateway.raw(head + b"Content-Length: 1\r\n\r\nx")
            assert b" 400 " in answer.splitlines()[0]
            assert b"not UTF-8" in answer
            assert gateway.port.stored == []

    run(scenario())


def test_a_colon_in_the_name_of_a_topic_is_percent_encoded() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            head = b"POST /topics/azt%3Apublish HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            answer = await gateway.raw(head + b"Content-Length: 1\r\n\r\nx")
            assert b" 204 " in answer.splitlines()[0]
            assert gateway.port.stored[0].topic == "azt:publish"

    run(scenario())


# --- durability -------------------------------------------------------------------------------


def test_no_answer_before_the_commit() -> None:
    """Three requests wait for one flush; then all are answered."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            requests = [
                asyncio.create_task(gateway.publish(b"x", {**BINARY, "ce-id": str(n)}))
                for n in range(3)
            ]
            await until(lambda: len(port.stored) == 3)
            await asyncio.sleep(0)
            assert not any(request.done() for request in requests)
            port.flush()
            assert await asyncio.gather(*requests) == [(204, None)] * 3

    run(scenario())


def test_storage_failure_answers_all_who_wait() -> None:
    """503, unknown outcome, for those under way; 503 for those who come after; health says it."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            assert (await gateway.call("GET", "/healthz"))[0] == 200
            request = asyncio.create_task(gateway.publish(b"x", BINARY))
            await until(lambda: port.stored)
            port.fail()
            status, problem = await request
            assert status == 503
            assert "unknown" in problem["detail"]
            status, problem = await gateway.publish(b"x", BINARY)
            assert (status, problem["title"]) == (503, "The broker is read-only")
            status, body, _ = await gateway.call("GET", "/healthz")
            assert (status, body) == (503, {"status": "storage failed"})

    run(scenario())


def test_a_commit_that_takes_too_long() -> None:
    async def scenario() -> None:
        async with http(
            SpyPort(auto_flush=False), limits=HttpLimits(commit_seconds_max=0.01)
        ) as gateway:
            status, problem = await gateway.publish(b"x", BINARY)
            assert status == 503
            assert "unknown" in problem["detail"]

    run(scenario())


@pytest.mark.parametrize("reason", list(Reason))
def test_every_refusal_has_its_status(reason: Reason) -> None:
    async def scenario() -> None:
        port = SpyPort()
        port.refusals = [Refused(reason, "because of the test")]
        async with http(port) as gateway:
            status, problem = await gateway.publish(b"x", BINARY)
            assert status == STATUS_OF_REASON[reason]
            assert problem["detail"] == "because of the test"
            assert port.stored == []

    run(scenario())


def test_full_disk_is_507_and_says_when_to_come_again() -> None:
    async def scenario() -> None:
        port = SpyPort()
        port.refusals = [Refused(Reason.STORAGE_FULL, "full")]
        async with http(port) as gateway:
            status, _, headers = await gateway.call("POST", "/topics/t", b"x", **BINARY)
            assert (status, headers["Retry-After"]) == (507, "1")

    run(scenario())


def test_a_refusal_in_the_middle_says_what_was_stored() -> None:
    """Only the disk can do this: sizes, routes and permissions are checked before the first run."""

    async def scenario() -> None:
        port = SpyPort()
        port.refusals = [None, Refused(Reason.STORAGE_FULL, "the disk is full")]
        async with http(port) as gateway:
            events = [{**EVENT, "id": str(n), "type": kind} for n, kind in enumerate("aab")]
            status, problem = await gateway.publish(json.dumps(events).encode(), BATCH)
            assert (status, problem["stored"]) == (507, 2)

    run(scenario())


def test_closed_topic_is_refused_before_anything_is_stored() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, _ = await gateway.publish(b"x", BINARY, topic="RMQ_SYS_POLYMQ_STATE")
            assert status == 403

    run(scenario())


def test_templates_are_reused_and_replaced() -> None:
    """A template of a deleted topic is not used again."""

    async def scenario() -> None:
        async with http(SpyPort(queue_count=4)) as gateway:
            for key in ("a", "a", "b"):
                await gateway.publish(b"x", {**BINARY, "ce-partitionkey": key})
            shardings = gateway.port.shardings
            assert shardings[0] == shardings[1] != shardings[2]
            templates = publisher_of(gateway)._templates
            assert len(templates) == 2
            for template in templates.values():
                template.valid = False  # type: ignore[misc]
            assert await gateway.publish(b"x", {**BINARY, "ce-partitionkey": "a"}) == (204, None)
            assert sum(template.valid for template in templates.values()) == 1

    run(scenario())


# --- limits -----------------------------------------------------------------------------------

SMALL = HttpLimits(message_bytes_max=100, body_bytes_max=300, attributes_bytes_max=200)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({**BINARY, "Content-Type": "a/b"}, b"x" * 100, 204),
        ({**BINARY, "Content-Type": "a/b"}, b"x" * 101, 413),
        ({"Content-Type": "a/b"}, b"x" * 101, 413),
        ({**BINARY, "Content-Type": "a/b"}, b"x" * 301, 413),
        ({**BINARY, "ce-ext": "x" * 150}, b"", 431),
        ({**BINARY, "ce-type": "t" * 150}, b"", 431),
        (BATCH, json.dumps([EVENT, {**EVENT, "data": "x" * 100}]).encode(), 413),
    ],
)
def test_size_limits(headers: dict[str, str], body: bytes, status: int) -> None:
    async def scenario() -> None:
        async with http(limits=SMALL) as gateway:
            assert (await gateway.publish(body, headers))[0] == status
            assert len(gateway.port.stored) == (status == 204)

    run(scenario())


def test_batch_with_too_many_events() -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(events_per_batch_max=3)) as gateway:
            assert (await gateway.publish(json.dumps([EVENT] * 4).encode(), BATCH))[0] == 413
            assert (await gateway.publish(json.dumps([EVENT] * 3).encode(), BATCH))[0] == 204

    run(scenario())


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("batch", [False, True], ids=["event", "batch"])
@pytest.mark.parametrize(("depth", "status"), [(900, 204), (1_000, 400)])
def test_how_deep_data_may_be_nested(depth: int, status: int, batch: bool, padding: int) -> None:
    """As the documentation says, in both ways in which events are decoded."""
    nested = b"[" * depth + b" " * padding + b"]" * depth
    event = json.dumps(EVENT).encode()[:-1] + b',"data":' + nested + b"}"
    body, headers = (b"[" + event + b"]", BATCH) if batch else (event, STRUCTURED)

    async def scenario() -> None:
        async with http() as gateway:
            assert (await gateway.publish(body, headers))[0] == status

    run(scenario())


def test_decompression_is_bounded() -> None:
    """A small body that unpacks to a large one."""

    async def scenario() -> None:
        async with http(limits=SMALL) as gateway:
            headers = {**BINARY, "Content-Encoding": "gzip", "Content-Type": "a/b"}
            status, problem = await gateway.publish(gzip.compress(bytes(10_000_000)), headers)
            assert (status, problem["title"]) == (413, "Body too large")
            assert await gateway.publish(gzip.compress(b"small"), headers) == (204, None)
            assert gateway.port.stored[0].body == b"small"

    run(scenario())


def test_too_many_requests_under_way() -> None:
    """429 with Retry-After when the disk is slower than the clients; room again after a flush."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port, limits=HttpLimits(pending_requests_max=2)) as gateway:
            waiting = [asyncio.create_task(gateway.publish(b"x", BINARY)) for _ in range(2)]
            await until(lambda: len(port.stored) == 2)
            status, _, headers = await gateway.call("POST", "/topics/t", b"x")
            assert (status, headers["Retry-After"]) == (429, "1")
            port.flush()
            assert await asyncio.gather(*waiting) == [(204, None)] * 2
            port.auto_flush = True
            assert (await gateway.publish(b"x", BINARY))[0] == 204

    run(scenario())


def test_too_many_bytes_under_way() -> None:
    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        limits = HttpLimits(pending_bytes_max=150)
        async with http(port, limits=limits) as gateway:
            waiting = asyncio.create_task(gateway.publish(b"x" * 200, BINARY))
            await until(lambda: port.stored)
            assert (await gateway.publish(b"x", BINARY))[0] == 429
            port.flush()
            assert await waiting == (204, None)
            port.auto_flush = True
            assert (await gateway.publish(b"x" * 200, BINARY))[0] == 204

    run(scenario())


# --- the webhook target side ------------------------------------------------------------------


def test_options_consents_to_other_systems_webhooks() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, _, headers = await gateway.call(
                "OPTIONS", "/topics/t", WebHook_Request_Origin="other.example"
            )
            assert status == 200
            assert headers["Allow"] == "POST, OPTIONS"
            assert headers["WebHook-Allowed-Origin"] == "*"
            assert headers["WebHook-Allowed-Rate"] == "*"
            _, _, headers = await gateway.call("OPTIONS", "/topics/t")
            assert "WebHook-Allowed-Origin" not in headers

    run(scenario())


def token(user: str, password: str) -> str:
    return b64encode(f"{user}:{password}".encode()).decode()


def test_credentials() -> None:
    """Basic, Bearer and access_token carry the same token; the last makes answers private."""

    async def scenario() -> None:
        port = SpyPort()
        port.passwords = {"ann": b"secret:1"}
        good, bad = token("ann", "secret:1"), token("ann", "wrong")
        async with http(port) as gateway:
            for scheme in ("Basic", "basic", "Bearer"):
                status, _, headers = await gateway.call(
                    "POST", "/topics/t", b"x", Authorization=f"{scheme} {good}"
                )
                assert status == 204
                assert "Cache-Control" not in headers
            status, _, headers = await gateway.call("POST", f"/topics/t?access_token={good}", b"x")
            assert (status, headers["Cache-Control"]) == (204, "private")
            for authorization in (f"Basic {bad}", "Basic ???", "Basic", f"Digest {good}", ""):
                status, problem, headers = await gateway.call(
                    "POST", "/topics/t", b"x", Authorization=authorization
                )
                assert status == 401, authorization
                assert headers["WWW-Authenticate"].startswith("Basic ")
                assert "secret" not in json.dumps(problem)
            for method, path in (
                ("GET", "/subscriptions"),
                ("POST", "/subscriptions"),
                ("GET", "/subscriptions/x"),
                ("PUT", "/subscriptions/x"),
                ("DELETE", "/subscriptions/x"),
                ("POST", "/topics/t/subscriptions/x:receive"),
                ("POST", "/topics/t/subscriptions/x:acknowledge"),
            ):
                assert (await gateway.call(method, path, b"{}"))[0] == 401, path
            assert len(port.stored) == 4

    run(scenario())


def test_a_request_may_ask_for_a_delay() -> None:
    """The header holds for all that the request publishes, CloudEvents or not."""

    async def scenario() -> None:
        async with http() as gateway:
            delay = {"PolyMQ-Delay-Ms": "1500"}
            assert await gateway.publish(b"x", {**BINARY, **delay}) == (204, None)
            assert await gateway.publish(b"raw", {"Content-Type": "text/plain", **delay})
            assert gateway.port.delayed == [(1, 1500, 0), (1, 1500, 0)]
            for bad in ("-1", "soon", "1.5", ""):
                status, problem = await gateway.publish(b"x", {**BINARY, "PolyMQ-Delay-Ms": bad})
                assert (status, "milliseconds" in problem["detail"]) == (400, True)
            assert len(gateway.port.stored) == 2

    run(scenario())


def test_an_event_may_say_when_it_is_to_be_delivered() -> None:
    """The attribute counts before the header; events of one time and type are one run."""

    async def scenario() -> None:
        async with http() as gateway:
            times = ["2027-01-01T00:00:00.250Z"] * 2 + ["2027-01-01t01:00:00+01:00", None]
            events = [
                {**EVENT, "id": str(n), **({"deliverattime": at} if at else {})}
                for n, at in enumerate(times)
            ]
            headers = {**BATCH, "PolyMQ-Delay-Ms": "7"}
            assert await gateway.publish(json.dumps(events).encode(), headers) == (204, None)
            base = 1_798_761_600_000
            assert gateway.port.delayed == [(2, 7, base + 250), (1, 7, base), (1, 7, 0)]
            assert gateway.port.stored[0].properties["CE_deliverattime"] == times[0]
            status, _ = await gateway.publish(b"x", {**BINARY, "ce-deliverattime": "tomorrow"})
            assert status == 400

    run(scenario())


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("2016-12-31T23:59:60Z", 1_483_228_799_000),
        ("2027-01-01T00:00:00.123456789z", 1_798_761_600_123),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139_000),
    ],
)
def test_times_become_milliseconds(text: str, ms: int) -> None:
    assert time_ms(text) == ms


def test_an_event_says_when_it_expires() -> None:
    """`expirytime` becomes the message's time to live, from when it can be delivered; never later
    than it says. The attribute stays on the event."""

    async def scenario() -> None:
        async with http(clock_seconds=lambda: 1_700_000_000.0) as gateway:
            for expires, deliver in (
                ("2023-11-14T22:13:21.250Z", None),
                ("2023-11-14T22:13:00Z", None),
                ("2023-11-14T22:13:40Z", "2023-11-14T22:13:30Z"),
            ):
                headers = {**BINARY, "ce-expirytime": expires}
                if deliver:
                    headers["ce-deliverattime"] = deliver
                assert await gateway.publish(b"x", headers) == (204, None)
            lives = [constant[TTL_PROPERTY] for constant in gateway.port.constants]
            assert lives == [ttl_property(ms, 0) for ms in (1200, 0, 10_000)]
            assert gateway.port.stored[0].properties["CE_expirytime"] == "2023-11-14T22:13:21.250Z"
            status, _ = await gateway.publish(b"x", {**BINARY, "ce-expirytime": "soon"})
            assert status == 400

    run(scenario())


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (-5, 0),
        (99, 0),
        (59_999, 59_900),
        (60_001, 60_000),
        (3_600_000, 3_600_000),
        (3_661_000, 3_660_000),
        (93_599_999, 90_000_000),
    ],
)
def test_a_life_is_rounded_down_to_few_values(left: int, expected: int) -> None:
    """Each value is a template of its own."""
    assert ttl_ms(1_000_000 + left, 1_000_000) == expected
