"""Connections that have not proven the secret: how many there may be, and that a slave gets in
between them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

import pytest

from replication.limits import NEWCOMERS_MAX, NEWCOMERS_OF_A_NETWORK_MAX
from replication.newcomers import Newcomers, network_of
from tests.harness.broker import Broker
from tests.replication.test_link import Pair, run


@dataclass(eq=False)
class Peer:
    """A connection that does nothing."""

    address: str
    has_spoken: bool = False


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_what_counts_as_one_peer(address: str, network: str) -> None:
    """A /64 of IPv6 is one customer."""
    assert network_of(address) == network


def test_a_network_competes_with_itself() -> None:
    """When its share is full the oldest silent connection goes, and nobody else's."""
    pool: Newcomers[Peer] = Newcomers()
    other = Peer("10.0.0.9")
    assert pool.add(other) is None
    spoken = Peer("10.0.0.1", has_spoken=True)
    assert pool.add(spoken) is None
    silent = [Peer("10.0.0.1") for _ in range(NEWCOMERS_OF_A_NETWORK_MAX)]
    gone = [pool.add(peer) for peer in silent]
    assert gone == [None] * (NEWCOMERS_OF_A_NETWORK_MAX - 1) + [silent[0]]
    assert len(pool) == 1 + NEWCOMERS_OF_A_NETWORK_MAX
    for peer in (other, spoken, *silent):
        pool.remove(peer)
    assert len(pool) == 0


def test_the_oldest_goes_when_all_have_spoken() -> None:
    """Saying something is no way to stay."""
    pool: Newcomers[Peer] = Newcomers()
    peers = [Peer("10.0.0.1", has_spoken=True) for _ in range(NEWCOMERS_OF_A_NETWORK_MAX + 1)]
    gone = [pool.add(peer) for peer in peers]
    assert gone[-1] is peers[0]


def test_a_full_pool_takes_from_who_has_most() -> None:
    """Many networks together keep nobody out either."""
    pool: Newcomers[Peer] = Newcomers()
    networks = [f"2001:db8:0:{number:x}::1" for number in range(NEWCOMERS_MAX)]
    most = [Peer(networks[0]) for _ in range(3)]
    for peer in most:
        assert pool.add(peer) is None
    for network in networks[1 : NEWCOMERS_MAX - 2]:
        assert pool.add(Peer(network)) is None
    assert len(pool) == NEWCOMERS_MAX
    assert pool.add(Peer("10.0.0.1")) is most[0]
    assert len(pool) == NEWCOMERS_MAX


def test_a_slave_gets_in_between_idle_connections(master: Broker, slave: Broker) -> None:
    """Somebody without the secret opens more connections than its share, and keeps them open."""

    async def scenario(pair: Pair) -> None:
        port = await pair.server.start("127.0.0.1", 0)
        with contextlib.ExitStack() as stack:
            for _ in range(NEWCOMERS_OF_A_NETWORK_MAX + 16):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                await asyncio.sleep(0)
            listener = pair.server._listener
            assert listener is not None
            await pair.until(lambda: len(listener.connections) == NEWCOMERS_OF_A_NETWORK_MAX)
            await pair.follow(port)
            assert len(pair.server.newcomers) < NEWCOMERS_OF_A_NETWORK_MAX

    run(master, slave, scenario)


def test_idle_connections_that_come_back_keep_no_slave_out(master: Broker, slave: Broker) -> None:
    """Some dozens are opened again as soon as they are closed."""

    async def keep_open(port: int, opened: list[int]) -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(port)
            try:
                await reader.read()
            finally:
                writer.close()

    async def scenario(pair: Pair) -> None:
        port = await pair.server.start("127.0.0.1", 0)
        opened: list[int] = []
        count = NEWCOMERS_OF_A_NETWORK_MAX - 1
        tasks = [asyncio.create_task(keep_open(port, opened)) for _ in range(count)]
        try:
            await pair.until(lambda: len(opened) == count)
            await pair.follow(port)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # in which the sockets are closed

    run(master, slave, scenario)


def test_who_says_nothing_is_closed_soon(master: Broker, slave: Broker) -> None:
    """Without the secret there is no staying."""

    async def scenario(pair: Pair) -> None:
        port = await pair.server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)):
            await pair.until(lambda: len(pair.server.newcomers) == 1)
            await pair.until(lambda: len(pair.server.newcomers) == 0)

    run(master, slave, scenario)
