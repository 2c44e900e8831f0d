"""aio-pika as its documentation shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.patterns import RPC, Master, Worker

from interop_tests.conftest import Server, StartServer

SECONDS_MAX = 20.0


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all; a test that stops or harms it starts its own."""
    return shared_server


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await scenario

    asyncio.run(bounded())


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Any]:
    connection = await aio_pika.connect_robust(
        f"amqp://guest:guest@{server.host}:{server.amqp_port}/"
    )
    async with connection:
        yield connection


def test_simple_publisher_and_consumer(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("test_queue", auto_delete=True)
            await channel.default_exchange.publish(
                aio_pika.Message(body=b"Hello test_queue"), routing_key="test_queue"
            )
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        assert message.body == b"Hello test_queue"
                    break

    run(scenario())


def test_get_a_single_message(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("direct", auto_delete=True)
            queue = await channel.declare_queue("single", auto_delete=True)
            await queue.bind(exchange, "single")
            await exchange.publish(
                aio_pika.Message(
                    b"Hello", content_type="text/plain", headers={"foo": "bar", "n": 2**40}
                ),
                "single",
            )
            message = await queue.get(timeout=5)
            assert message.headers == {"foo": "bar", "n": 2**40}
            assert message.content_type == "text/plain"
            await message.ack()
            with pytest.raises(aio_pika.exceptions.QueueEmpty):
                await queue.get(timeout=5)
            await queue.unbind(exchange, "single")
            await queue.delete()

    run(scenario())


def test_prefetch_and_concurrent_work(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue("work", durable=True)
            got: list[int] = []
            done = asyncio.Event()

            async def process(message: Any) -> None:
                async with message.process():
                    got.append(int(message.body))
                if len(got) == 200:
                    done.set()

            await queue.consume(process)
            await asyncio.gather(
                *(
                    channel.default_exchange.publish(
                        aio_pika.Message(
                            b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                        ),
                        "work",
                    )
                    for number in range(200)
                )
            )
            await done.wait()
            assert got == list(range(200))

    run(scenario())


def test_unroutable_messages_come_back(server: Server) -> None:
    """aio-pika publishes with mandatory: a default exchange without the queue returns it."""

    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), "nobody")

    run(scenario())


def test_errors_close_the_channel(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue("none", passive=True)
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed):
                await channel.declare_queue("q", durable=False)

    run(scenario())


def test_rpc_pattern(server: Server) -> None:
    """A call with an answer, and one that fails: the pattern declares a headers exchange."""

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            rpc = await RPC.create(channel)
            await rpc.register("multiply", multiply, auto_delete=True)
            assert await rpc.proxy.multiply(x=6, y=7) == 42
            with pytest.raises(TypeError):
                await rpc.proxy.multiply(x=6)
            await rpc.close()

    run(scenario())


def test_master_and_worker_pattern(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            master = Master(channel)
            done: asyncio.Queue[int] = asyncio.Queue()

            async def task(*, task_id: int) -> None:
                await done.put(task_id)

            worker: Worker = await master.create_worker("my_task_name", task, auto_delete=True)
            for task_id in range(5):
                await master.proxy.my_task_name(task_id=task_id)
            assert [await done.get() for _ in range(5)] == list(range(5))
            await worker.close()

    run(scenario())


def test_topics_and_fanout(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            logs = await channel.declare_exchange("logs", aio_pika.ExchangeType.FANOUT)
            topics = await channel.declare_exchange("topic_logs", aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(logs)
            await queue.bind(topics, routing_key="kern.#")
            await logs.publish(aio_pika.Message(b"log"), routing_key="ignored")
            await topics.publish(aio_pika.Message(b"kernel"), routing_key="kern.critical.cpu")
            await topics.publish(aio_pika.Message(b"cron"), routing_key="cron.info")
            bodies = []
            async with queue.iterator(no_ack=True) as messages:
                async for message in messages:
                    bodies.append(message.body)
                    if len(bodies) == 2:
                        break
            assert sorted(bodies) == [b"kernel", b"log"]

    run(scenario())


@pytest.mark.slow
def test_a_robust_connection_comes_back_after_a_restart(start_server: StartServer) -> None:
    """Its consumer too: the message that was not acknowledged comes again, flagged."""

    server = start_server()

    async def scenario() -> None:
        async with connected(server) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("survivor", durable=True)
            deliveries: asyncio.Queue[Any] = asyncio.Queue()
            await queue.consume(deliveries.put)
            message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "survivor")
            first = await deliveries.get()
            assert (first.body, first.redelivered) == (b"kept", False)
            await asyncio.to_thread(server.restart)
            again = await deliveries.get()
            assert (again.body, again.redelivered) == (b"kept", True)
            await again.ack()

    run(scenario())
