"""A slave gets in between connections that have not proven the secret."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from polymq.replication.limits import NEWCOMERS_MAX
from tests.harness.broker import Broker
from tests.replication.test_link import Pair, run


def newcomers_count(pair: Pair) -> int:
    """Connections to the master that have not proven the secret."""
    return sum(roster.newcomers_count for roster in pair.server.rosters)


def test_a_slave_gets_in_between_idle_connections(master: Broker, slave: Broker) -> None:
    """Somebody without the secret fills the room of newcomers, and keeps the connections open."""

    async def scenario(pair: Pair) -> None:
        port = await pair.server.start("127.0.0.1", 0)
        with contextlib.ExitStack() as stack:
            for _ in range(NEWCOMERS_MAX + 16):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                await asyncio.sleep(0)
            listener = pair.server._listener
            assert listener is not None
            await pair.until(lambda: len(listener.connections) == NEWCOMERS_MAX)
            await pair.follow(port)
            assert newcomers_count(pair) < NEWCOMERS_MAX

    run(master, slave, scenario)


def test_idle_connections_that_come_back_keep_no_slave_out(master: Broker, slave: Broker) -> None:
    """Very many are opened again as soon as they are closed."""

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
        count = NEWCOMERS_MAX - 1
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
            await pair.until(lambda: newcomers_count(pair) == 1)
            await pair.until(lambda: newcomers_count(pair) == 0)

    run(master, slave, scenario)
