"""Producers and consumers over real connections: one server with its name server beside it, found
by its name server alone, under asyncio and under trio."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="the name server and one of the drivers need trio")

from polymq.remoting import driver_asyncio, driver_trio
from polymq.remoting.awaiting import consume
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import Begin, ConsumerSettings
from polymq.remoting.driver_blocking import BlockingDriver, PollingConsumer
from polymq.remoting.errors import RequestFailed
from polymq.remoting.messages import Message
from polymq.remoting.producer import Producer
from polymq.remoting.records import Record, parse_properties
from polymq.remoting.routes import NameServers, Routes
from polymq.remoting.steps import Address
from tests.durability.running import Running, running

SECONDS_MAX = 30.0
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory: Path = tmp_path_factory.mktemp("traffic")
    with running(directory, names__enabled=True, names__port=0) as started:
        yield started


def routes(server: Running) -> Routes:
    assert server.ports.names is not None
    servers = (Address("127.0.0.1", server.ports.names),)
    return Routes(NameServers(servers, Random(1).randrange))


def producer(server: Running) -> Producer:
    return Producer(
        group="producers",
        client_id=f"producer-{next(numbers)}",
        routes=routes(server),
        clock=time.monotonic,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        choose=Random(1).randrange,
        new_id=lambda: secrets.token_hex(16).upper(),
    )


def consumer(server: Running, topic: str, expression: str = "*", **settings: float) -> Consumer:
    return Consumer(
        group=f"readers-of-{topic}",
        client_id=f"consumer-{next(numbers)}",
        routes=routes(server),
        subscriptions={topic: expression},
        started_ms=time.time_ns() // 1_000_000,
        settings=ConsumerSettings(begin=Begin.FIRST, pause_seconds=0.1, **settings),  # type: ignore[arg-type]
    )


def send(server: Running, topic: str, count: int) -> list[bytes]:
    """By a blocking producer; the topic is made by the first message. The bodies that it sent."""
    driver, sender = BlockingDriver(), producer(server)
    bodies = [f"{topic}-{number}".encode() for number in range(count)]
    deadline = time.monotonic() + SECONDS_MAX
    while True:  # the broker may not have registered yet
        try:
            driver.run(sender.routes.fetch("TBW102"))
            break
        except RequestFailed:
            assert time.monotonic() < deadline
    for body in bodies[:-3]:
        message = Message(topic=topic, body=body, tag="T", keys=("k",), properties={"p": "v"})
        assert driver.run(sender.send(message)).message_id
    batch = [Message(topic=topic, body=body, tag="T") for body in bodies[-3:]]
    driver.run(sender.send_batch(batch, key="one queue"))
    driver.run(sender.presence.beat())
    driver.run(sender.presence.leave())
    driver.close()
    return bodies


def test_asyncio_reads_what_was_sent_and_goes_on_where_it_was(server: Running) -> None:
    sent = send(server, "asyncio", 10)

    async def read(count: int) -> list[Record]:
        got: list[Record] = []
        enough = asyncio.Event()

        async def handle(record: Record) -> None:
            got.append(record)
            if len(got) >= count:
                enough.set()

        reader = consumer(server, "asyncio", "T||U")
        driver = driver_asyncio.AsyncioDriver(handler=reader.asked)
        task = asyncio.create_task(consume(driver, reader, handle))
        async with asyncio.timeout(SECONDS_MAX):
            await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        driver.close()
        return got

    got = asyncio.run(read(10))
    assert sorted(record.body for record in got) == sorted(sent)
    first = next(record for record in got if record.body == sent[0])
    properties = parse_properties(first.properties)
    assert (properties["TAGS"], properties["KEYS"], properties["p"]) == ("T", "k", "v")
    more = send(server, "asyncio", 4)
    assert sorted(record.body for record in asyncio.run(read(4))) == sorted(more)


def test_a_thread_polls(server: Running) -> None:
    sent = send(server, "polled", 7)
    got: list[bytes] = []
    for part in (4, 3):  # the second goes on where the first has committed
        reader = consumer(server, "polled", long_poll_seconds=0.0, pull_count_max=1)
        driver = BlockingDriver(handler=reader.asked)
        polling = PollingConsumer(reader, driver)
        deadline = time.monotonic() + SECONDS_MAX
        end = len(got) + part
        while len(got) < end:
            assert time.monotonic() < deadline
            found = polling.poll(1.0)
            got += [record.body for _, record in found]
            polling.handled()
        polling.close()
        driver.close()
    assert sorted(got) == sorted(sent)


def test_trio_consumers_share_and_take_over(server: Running) -> None:
    """Two of them have half of the queues each; when one leaves, the other has all at once."""
    send(server, "trio", 5)

    async def scenario() -> None:
        one, two = consumer(server, "trio"), consumer(server, "trio")
        seen: list[bytes] = []

        async def handle(record: Record) -> None:
            seen.append(record.body)

        async def run(member: Consumer, scope: trio.CancelScope) -> None:
            with scope:
                async with driver_trio.open_trio_driver(handler=member.asked) as driver:
                    await consume(driver, member, handle)

        scopes = [trio.CancelScope(), trio.CancelScope()]
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, one, scopes[0])
                await wait_for_shares(one, 4)
                nursery.start_soon(run, two, scopes[1])
                await wait_for_shares(one, 2)
                await wait_for_shares(two, 2)
                scopes[0].cancel()
                await wait_for_shares(two, 4)
                while len(set(seen)) < 5:  # one may come to both
                    await trio.lowlevel.checkpoint()
                scopes[1].cancel()
        assert sorted(set(seen)) == sorted(f"trio-{number}".encode() for number in range(5))

    async def wait_for_shares(member: Consumer, count: int) -> None:
        while sum(queue.topic == "trio" for queue in member.queues) != count:
            await trio.lowlevel.checkpoint()

    trio.run(scenario)


def test_what_is_handled_in_vain_comes_back_to_the_broker(server: Running) -> None:
    """It is committed and sent back: the group's retry topic has it when it is due."""
    send(server, "vain", 4)

    async def scenario() -> None:
        reader = consumer(server, "vain")
        handled = trio.Event()
        count = 0

        async def handle(record: Record) -> None:
            nonlocal count
            count += 1
            if count == 4:
                handled.set()
            raise ValueError("not now")

        with trio.fail_after(SECONDS_MAX):
            async with (
                driver_trio.open_trio_driver(handler=reader.asked) as driver,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(consume, driver, reader, handle)
                await handled.wait()
                while server.call(lambda: server._node.engine.delays.waiting_count) < 4:
                    await trio.lowlevel.checkpoint()  # what was handled last is sent back now
                nursery.cancel_scope.cancel()

    trio.run(scenario)
