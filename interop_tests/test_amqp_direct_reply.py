"""Requests and answers through `amq.rabbitmq.reply-to`, and copies by CC and BCC, as applications
that were written for RabbitMQ ask for them."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server

SECONDS_MAX = 20.0
REPLY_TO = "amq.rabbitmq.reply-to"


def open_channel(server: Server) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(server.host, server.amqp_port)
    ).channel()


def serve(channel: Any, queue: str) -> None:
    """Answer what comes to a queue."""
    channel.queue_declare(queue, durable=True)

    def answer(_: Any, method: Any, properties: Any, body: bytes) -> None:
        reply = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body.upper(), reply, mandatory=True)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, answer)


def test_pikas_example(shared_server: Server) -> None:
    """As in pika's examples/direct_reply_to.py, with many requests at once, then a late answer."""
    client, server = open_channel(shared_server), open_channel(shared_server)
    serve(server, "rpc")
    assert client.queue_declare(REPLY_TO, passive=True).method.consumer_count == 1
    got: dict[str, bytes] = {}
    client.basic_consume(
        REPLY_TO,
        lambda _c, _m, properties, body: got.update({properties.correlation_id: body}),
        auto_ack=True,
    )
    for number in range(100):
        properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=str(number))
        client.basic_publish("", "rpc", f"request {number}".encode(), properties)
    while len(got) < 100:
        server.connection.process_data_events(time_limit=0.05)
        client.connection.process_data_events(time_limit=0.05)
    assert got == {str(number): f"REQUEST {number}".encode() for number in range(100)}
    server.confirm_delivery()
    client.basic_publish("", "late", b"x", pika.BasicProperties(reply_to=REPLY_TO))
    client.connection.close()
    with pytest.raises(pika.exceptions.UnroutableError):
        server.basic_publish("", f"{REPLY_TO}.gone", b"late", mandatory=True)
    server.connection.close()


def test_pika_is_told_what_is_wrong(shared_server: Server) -> None:
    channel = open_channel(shared_server)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.basic_consume(REPLY_TO, lambda *_: None)
    assert raised.value.reply_code == 406
    channel = channel.connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(reply_to=REPLY_TO)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.basic_publish("amq.topic", "a.b", b"", properties)
    assert raised.value.reply_code == 406
    channel.connection.close()


def test_aio_pika_asks_and_is_answered(shared_server: Server) -> None:
    """A passive declaration first, as frameworks on aio-pika do it."""

    async def run() -> bytes:
        url = f"amqp://{shared_server.host}:{shared_server.amqp_port}/"
        async with await aio_pika.connect(url) as connection, await aio_pika.connect(url) as other:
            channel, worker = await connection.channel(), await other.channel()
            requests = await worker.declare_queue("aio-rpc")

            async def answer(request: Any) -> None:
                assert request.reply_to.startswith(f"{REPLY_TO}.")
                await worker.default_exchange.publish(
                    aio_pika.Message(request.body[::-1]), routing_key=request.reply_to
                )
                await request.ack()

            await requests.consume(answer)
            answers = await channel.declare_queue(REPLY_TO, passive=True)
            got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            async def take(reply: Any) -> None:
                got.set_result(reply.body)

            await answers.consume(take, no_ack=True)
            await channel.default_exchange.publish(
                aio_pika.Message(b"abc", reply_to=REPLY_TO), routing_key="aio-rpc"
            )
            return await asyncio.wait_for(got, SECONDS_MAX)

    assert asyncio.run(run()) == b"cba"


def test_pika_sends_copies(shared_server: Server) -> None:
    channel = open_channel(shared_server)
    channel.confirm_delivery()
    for queue in ("to", "cc", "bcc"):
        channel.queue_declare(queue, durable=True)
    headers = {"CC": ["cc", "to"], "BCC": ["bcc", "cc"], "mine": 1}
    channel.basic_publish("", "to", b"hello", pika.BasicProperties(headers=headers))
    for queue in ("to", "cc", "bcc"):
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, body, method.message_count) == ("to", b"hello", 0)
        assert properties.headers == {"CC": ["cc", "to"], "mine": 1}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.basic_publish("", "to", b"", pika.BasicProperties(headers={"CC": "cc"}))
    assert raised.value.reply_code == 406
    channel.connection.close()
