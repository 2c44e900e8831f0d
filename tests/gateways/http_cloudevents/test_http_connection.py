"""What a bad client can do to a connection: slow, broken, too many, too large, gone."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import pytest
from aiohttp import web

from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.server import Server as HttpServer
from polymq.net.connection import Context
from polymq.net.listener import CannotListen
from tests.gateways.http_cloudevents.http_harness import BINARY, http, run, until
from tests.gateways.http_cloudevents.http_spy_port import SpyPort

HEAD = b"POST /topics/t HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("sent", [b"", b"P", HEAD, HEAD + b"X-Slow: "])
def test_a_slow_head_is_closed(sent: bytes) -> None:
    """Slow loris: whatever part of the head has come, its time is bounded from the first byte."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(head_seconds_max=0.05)) as gateway:
            assert await gateway.raw(sent) == b""
            assert gateway.server.census.slow == 1

    run(scenario())


def test_drops_of_a_head_do_not_extend_its_time() -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(head_seconds_max=0.05)) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(HEAD + b"X-Slow: ")
            answer = asyncio.create_task(reader.read())
            while not answer.done():
                writer.write(b"y")
                await asyncio.wait([answer], timeout=0.01)
            await asyncio.gather(answer, return_exceptions=True)
            assert gateway.server.census.slow == 1
            writer.close()

    run(scenario())


def test_the_second_head_is_timed_as_well() -> None:
    """A connection that was used once is no licence to be slow."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(head_seconds_max=0.05)) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b'{"status":"ok"}')
            writer.write(b"GET /hea")
            assert await reader.read() == b""
            assert gateway.server.census.slow == 1
            writer.close()

    run(scenario())


def test_an_idle_connection_has_longer() -> None:
    """Between requests the idle limit counts, not that of a head."""

    async def scenario() -> None:
        limits = HttpLimits(head_seconds_max=0.02, idle_seconds_max=0.2)
        async with http(limits=limits) as gateway:
            started = asyncio.get_running_loop().time()
            answer = await gateway.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert asyncio.get_running_loop().time() - started >= 0.19
            assert gateway.server.census.slow == 0

    run(scenario())


def test_a_slow_handler_is_no_slow_head() -> None:
    """The wait for the disk is ours, not the client's."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port, limits=HttpLimits(head_seconds_max=0.02)) as gateway:
            request = asyncio.create_task(gateway.publish(b"x", BINARY))
            await until(lambda: port.stored)
            await asyncio.wait([request], timeout=0.1)
            port.flush()
            assert await request == (204, None)

    run(scenario())


def test_a_slow_body_is_408() -> None:
    async def scenario() -> None:
        async with http(
            limits=HttpLimits(body_seconds_max=0.05, linger_seconds_max=0.01)
        ) as gateway:
            answer = await gateway.raw(
                HEAD + b"Connection: close\r\nContent-Type: a/b\r\nContent-Length: 100\r\n\r\nabc"
            )
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert gateway.port.stored == []

    run(scenario())


def test_expect_is_answered_after_the_check_of_the_size() -> None:
    """A declared gigabyte is refused before `100 Continue` asks for it."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(linger_seconds_max=0.01)) as gateway:
            big = HEAD + b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
            answer = await gateway.raw(big)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"100 Continue" not in answer
            answer = await gateway.raw(HEAD + b"Content-Length: 1000000000\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 413 ")
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(HEAD + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"x")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 204 ")
            writer.close()
            assert [message.body for message in gateway.port.stored] == [b"x"]
            answer = await gateway.raw(
                HEAD + b"Connection: close\r\nContent-Length: 0\r\nExpect: nonsense\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 417 ")

    run(scenario())


def test_chunked_body_over_the_limit() -> None:
    async def scenario() -> None:
        limits = HttpLimits(message_bytes_max=10, body_bytes_max=100, linger_seconds_max=0.01)
        async with http(limits=limits) as gateway:
            chunk = b"40\r\n" + b"x" * 64 + b"\r\n"
            answer = await gateway.raw(
                HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4 + b"0\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"\r\nConnection: close\r\n" in answer
            assert b"Body too large" in answer

    run(scenario())


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n",
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_so_quietly(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """400 in words, the connection closed, nothing in the log that an attacker could flood."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(head_seconds_max=2.0)) as gateway:
            answer = await gateway.raw(sent)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b" 400 " in head.splitlines()[0]
            assert json.loads(body)["status"] == 400
            assert gateway.server.census.malformed == 1

    with caplog.at_level(logging.INFO):
        run(scenario())
    assert caplog.records == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 10_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"y" * 10_000 + b": x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"y" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    ],
)
def test_a_head_that_is_too_long_is_told_what_is(sent: bytes, status: int) -> None:
    """431 for headers (RFC 6585 5) and 414 for the path, so that a client knows what to shorten."""

    async def scenario() -> None:
        async with http() as gateway:
            head, _, body = (await gateway.raw(sent)).partition(b"\r\n\r\n")
            assert b" %d " % status in head.splitlines()[0]
            problem = json.loads(body)
            assert problem["status"] == status
            assert "exceed" in problem["detail"] or "more than" in problem["detail"]
            assert gateway.server.census.malformed == 1

    run(scenario())


def test_connections_are_bounded() -> None:
    """One too many is told 503; the others go on; a place is free again when one leaves."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(connections_max=2)) as gateway:
            first = await asyncio.open_connection("127.0.0.1", gateway.bound)
            second = await asyncio.open_connection("127.0.0.1", gateway.bound)
            await until(lambda: gateway.server.connection_count == 2)
            assert (await gateway.raw(b"")).startswith(b"HTTP/1.1 503 ")
            assert gateway.server.roster.refused_count == 1
            first[1].close()
            await until(lambda: gateway.server.connection_count == 1)
            assert (await gateway.call("GET", "/healthz"))[0] == 200
            second[1].close()

    run(scenario())


def test_unknown_paths_and_methods_are_problems() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            for method, path, status in (
                ("GET", "/", 404),
                ("GET", "/topics", 404),
                ("POST", "/topics/", 404),
                ("POST", "/topics/a/b", 404),
                ("POST", "/subscriptions/a/b", 404),
                ("GET", "/topics/t", 405),
                ("PATCH", "/subscriptions/x", 405),
                ("POST", "/healthz", 405),
            ):
                found, problem, headers = await gateway.call(method, path, b"")
                assert (found, problem["status"]) == (status, status), path
                assert headers["Content-Type"].startswith("application/problem+json")
                assert ("Allow" in headers) == (status == 405)

    run(scenario())


def test_versions_of_libraries_are_not_told() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            for method, path in (("GET", "/healthz"), ("GET", "/nothing"), ("POST", "/topics/t")):
                _, _, headers = await gateway.call(method, path, b"")
                assert headers["Server"] == "PolyMQ"
            assert b"aiohttp" not in await gateway.raw(b"no http\r\n\r\n")

    run(scenario())


def test_a_client_that_goes_away_does_not_disturb() -> None:
    """Its event is stored all the same; the next request is answered."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            request = asyncio.create_task(gateway.publish(b"x", BINARY))
            await until(lambda: port.stored)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await until(lambda: not gateway.server._commits._waiting)
            port.flush()
            port.auto_flush = True
            assert await gateway.publish(b"y", BINARY) == (204, None)

    run(scenario())


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 100\r\n\r\nhalf",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n40\r\nhalf",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n\x1f\x8b",
    ],
)
def test_half_a_body_is_nothing(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The client is gone in the middle: nothing stored, nothing said, the budget given back."""

    async def scenario() -> None:
        async with http() as gateway:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(sent)
            handlers = gateway.server._handlers
            assert handlers is not None
            await until(lambda: handlers._budget._requests == 1)
            writer.close()
            await until(lambda: handlers._budget._requests == 0)
            assert handlers._budget._bytes == 0
            assert gateway.port.stored == []

    with caplog.at_level(logging.INFO):
        run(scenario())
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_broken_body_is_400(sent: bytes) -> None:
    async def scenario() -> None:
        async with http(limits=HttpLimits(linger_seconds_max=0.01)) as gateway:
            assert b" 400 Bad Request" in await gateway.raw(sent)
            assert gateway.port.stored == []

    run(scenario())


def test_a_bug_of_ours_is_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    """The client learns nothing about the inside, the operator all."""

    async def scenario() -> None:
        port = SpyPort()
        async with http(port) as gateway:
            port.topic = None  # type: ignore[method-assign,assignment]
            status, problem = await gateway.publish(b"x", BINARY)
            assert status == 500
            assert problem["detail"] == "an internal error occurred; see the log of the broker"

    run(scenario())
    (record,) = caplog.records
    assert "'NoneType' object is not callable" in (record.exc_text or str(record.exc_info))


# --- start and stop ---------------------------------------------------------------------------


def test_stop_lets_requests_end() -> None:
    """SIGTERM: no new connections, the request under way gets its answer after the flush."""

    async def scenario() -> None:
        port = SpyPort(auto_flush=False)
        async with http(port) as gateway:
            request = asyncio.create_task(gateway.publish(b"x", BINARY))
            await until(lambda: port.stored)
            stop = asyncio.create_task(gateway.server.stop(5.0))
            await asyncio.sleep(0)
            with pytest.raises(aiohttp.ClientConnectorError):
                await gateway.call("GET", "/healthz")
            assert not request.done()
            port.flush()
            assert await request == (204, None)
            await stop

    run(scenario())


def test_stop_does_not_wait_for_idle_connections() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            await until(lambda: gateway.server.connection_count == 1)
            await asyncio.wait_for(gateway.server.stop(20.0), 2.0)
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_a_taken_port_is_said_in_words() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            context = Context(asyncio.get_running_loop())
            other = HttpServer(port=SpyPort(), context=context)  # type: ignore[arg-type]
            with pytest.raises(CannotListen, match="is taken"):
                await other.start("127.0.0.1", gateway.bound)
            await other.stop(0.0)
            context.close()

    run(scenario())


def test_more_routes_can_be_served() -> None:
    """The program mounts its metrics here."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text="up 1")

    async def scenario() -> None:
        async with http(routes=[web.get("/metrics", metrics)]) as gateway:
            assert (await gateway.call("GET", "/metrics"))[:2] == (200, b"up 1")

    run(scenario())
