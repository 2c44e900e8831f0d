"""Connections of all listeners come out of one budget, and go back into it, however they end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvloop

from polymq.net import listener, loop_server
from polymq.net.budget import Budget, Share
from polymq.net.connection import Context, SocketConnection
from polymq.net.listener import Listener, listen
from polymq.net.plane import CompiledPlane
from polymq.net.proxied import Proxies
from polymq.net.tls_source import fixed
from tests.harness.descriptors import no_more_descriptors

CERTIFICATES = Path(__file__).parent.parent.parent / "interop_tests" / "certificates"
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)
WAYS = ("loop", "tls") if CompiledPlane is None else ("loop", "tls", "plane")


def takes(share: Share) -> int:
    """How many more connections it takes."""
    count = 0
    while share.take():
        count += 1
    return count


def test_a_listener_has_its_own_limit_and_all_have_the_budget() -> None:
    budget = Budget(64)
    small, large, other = budget.share(3), budget.share(1000), budget.share(1000)
    assert budget.is_tight
    assert takes(small) == 3
    taken = takes(large)
    assert takes(other) == 2  # its part is left to it
    assert small.count + taken + other.count == 64
    large.give()
    assert takes(other) == 1
    for share in (small, large, other):
        for _ in range(share.count):
            share.give()
    assert takes(large) == 64 - 2 - 2  # all but what the others keep


def test_a_budget_that_is_large_enough_lowers_nothing() -> None:
    budget = Budget(100)
    assert [takes(budget.share(50)), takes(budget.share(50))] == [50, 50]
    assert not budget.is_tight


def server_tls() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    return tls


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def begin(way: str, budget: Budget) -> Listener:
    context = Context(asyncio.get_running_loop(), plane=way == "plane", budget=budget)
    return await listen(
        context,
        lambda: SocketConnection(context),
        host="127.0.0.1",
        port=0,
        tls=fixed(server_tls() if way == "tls" else None),
        connections_max=1000,
    )


def dial(found: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", found.port), timeout=10)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_who_is_one_too_many_is_closed_before_a_handshake(
    way: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Strangers say nothing. With TLS none of them ever gets to an end of the handshake."""

    async def scenario() -> None:
        found = await begin(way, Budget(4))
        strangers = [dial(found) for _ in range(4)]
        await until(lambda: len(found.connections) == 4)
        late = dial(found)
        late.setblocking(False)
        await until(lambda: found.roster.refused_count == 1)
        assert await asyncio.get_running_loop().sock_recv(late, 1) == b""
        for stranger in strangers:  # a reset in the middle of a handshake is an end, too
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
        await until(lambda: not found.connections)
        again = [dial(found) for _ in range(4)]
        await until(lambda: len(found.connections) == 4)
        for client in (*again, late):
            client.close()
        await until(lambda: not found.connections)
        await found.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_proxy_does_not_introduce_takes_no_room(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A connection that is closed for its header does not count any more."""

    async def scenario() -> None:
        context = Context(asyncio.get_running_loop(), budget=Budget(4))
        proxies = Proxies([ip_network("127.0.0.0/8")])
        found = await listen(
            context,
            lambda: SocketConnection(context),
            host="127.0.0.1",
            port=0,
            connections_max=1000,
            proxies=proxies,
        )
        for count in range(1, 7):  # more than there is room for
            with dial(found) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda count=count: proxies.failed_count == count)  # type: ignore[misc]
                await until(lambda: not found.connections)
        assert not found.roster.refused_count
        await found.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_without_descriptors_new_clients_wait(
    way: str,
    loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said once, and who connected meanwhile is served when there is room again."""
    monkeypatch.setattr(listener, "EXHAUSTED_SECONDS", 0.01)
    monkeypatch.setattr(loop_server, "EXHAUSTED_SECONDS", 0.01)

    async def scenario() -> None:
        found = await begin(way, Budget())
        client = socket.socket()
        with no_more_descriptors():
            client.connect(("127.0.0.1", found.port))
            await until(lambda: "no new connections" in caplog.text)
            later = asyncio.get_running_loop().time() + 0.05
            await until(lambda: asyncio.get_running_loop().time() > later)  # more attempts
            assert not found.connections
        await until(lambda: found.connections)
        assert caplog.text.count("no new connections") == 1
        client.close()
        await found.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
