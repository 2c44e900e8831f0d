"""pika as its documentation and RabbitMQ's tutorials show it: blocking, select and asyncio."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pika
import pika.adapters.asyncio_connection
import pika.exceptions
import pytest

from interop_tests.conftest import Server

SECONDS_MAX = 20.0

Blocking: TypeAlias = Any
Channel: TypeAlias = Any


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all tests here: each has names of its own, but for the queue "q"."""
    parameters = pika.ConnectionParameters(shared_server.host, shared_server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_delete("q")
    return shared_server


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Blocking]]:
    """Makes connections, and closes those that are still open."""
    made: list[Blocking] = []

    def open_one(**options: Any) -> Blocking:
        parameters = pika.ConnectionParameters(server.host, server.amqp_port, **options)
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield open_one
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[..., Blocking]) -> Channel:
    return connect().channel()


def receive(channel: Channel, queue: str, count: int, **settings: Any) -> list[bytes]:
    """`count` bodies from a queue, acknowledged."""
    bodies: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=SECONDS_MAX, **settings):
        assert method is not None, f"only {bodies} came in time"
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


# --- RabbitMQ's tutorials ------------------------------------------------------------------------


def test_tutorial_1_hello_world(channel: Channel) -> None:
    channel.queue_declare(queue="hello")
    channel.basic_publish(exchange="", routing_key="hello", body="Hello World!")
    got: list[bytes] = []

    def callback(ch: Channel, method: Any, properties: Any, body: bytes) -> None:
        got.append(body)
        ch.stop_consuming()

    channel.basic_consume(queue="hello", on_message_callback=callback, auto_ack=True)
    channel.start_consuming()
    assert got == [b"Hello World!"]


def test_tutorial_2_work_queues(connect: Callable[..., Blocking]) -> None:
    """Fair dispatch: with a prefetch of one, a busy worker gets nothing more."""
    sender = connect().channel()
    sender.queue_declare(queue="task_queue", durable=True)
    workers = [connect().channel() for _ in range(2)]
    held: list[list[tuple[int, bytes]]] = [[], []]
    for index, worker in enumerate(workers):
        worker.basic_qos(prefetch_count=1)
        worker.basic_consume("task_queue", functools.partial(take, held[index]))
    for number in range(4):
        sender.basic_publish(
            "",
            "task_queue",
            f"task {number}",
            pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
        )
    for index, worker in enumerate(workers):
        until_true(worker.connection, held[index], 1)
    quick = workers[0]
    while len(held[0]) < 3:
        quick.basic_ack(held[0][-1][0])
        until_true(quick.connection, held[0], len(held[0]) + 1)
    assert len(held[1]) == 1
    bodies = sorted(body for _, body in held[0] + held[1])
    assert bodies == [b"task 0", b"task 1", b"task 2", b"task 3"]


def take(
    held: list[tuple[int, bytes]], _channel: Channel, method: Any, _properties: Any, body: bytes
) -> None:
    held.append((method.delivery_tag, body))


def until_true(connection: Blocking, held: list[tuple[int, bytes]], count: int) -> None:
    until(connection, lambda: len(held) >= count)


def until(connection: Blocking, done: Callable[[], bool]) -> None:
    """Let the connection work until something is so."""
    for _ in range(int(SECONDS_MAX / 0.1)):
        if done():
            return
        connection.process_data_events(time_limit=0.1)
    raise AssertionError("it did not happen in time")


def test_tutorial_3_publish_subscribe(connect: Callable[..., Blocking]) -> None:
    channels = [connect().channel() for _ in range(3)]
    queues = []
    for channel in channels:
        channel.exchange_declare(exchange="logs", exchange_type="fanout")
        result = channel.queue_declare(queue="", exclusive=True)
        channel.queue_bind(exchange="logs", queue=result.method.queue)
        queues.append(result.method.queue)
    channels[0].basic_publish(exchange="logs", routing_key="", body="info: Hello World!")
    for channel, queue in zip(channels, queues, strict=True):
        assert receive(channel, queue, 1) == [b"info: Hello World!"]


def test_tutorial_4_routing(channel: Channel) -> None:
    channel.exchange_declare(exchange="direct_logs", exchange_type="direct")
    queue = channel.queue_declare(queue="", exclusive=True).method.queue
    for severity in ("warning", "error"):
        channel.queue_bind(exchange="direct_logs", queue=queue, routing_key=severity)
    for severity in ("info", "error", "warning"):
        channel.basic_publish("direct_logs", severity, severity)
    assert receive(channel, queue, 2) == [b"error", b"warning"]


def test_tutorial_5_topics(channel: Channel) -> None:
    channel.exchange_declare(exchange="topic_logs", exchange_type="topic")
    queues = {}
    for key in ("#", "kern.*", "*.critical"):
        queues[key] = channel.queue_declare(queue="", exclusive=True).method.queue
        channel.queue_bind(exchange="topic_logs", queue=queues[key], routing_key=key)
    for key in ("kern.critical", "kern.info", "cron.critical", "cron.info"):
        channel.basic_publish("topic_logs", key, key)
    assert receive(channel, queues["kern.*"], 2) == [b"kern.critical", b"kern.info"]
    assert receive(channel, queues["*.critical"], 2) == [b"kern.critical", b"cron.critical"]
    assert len(receive(channel, queues["#"], 4)) == 4


def test_tutorial_6_rpc(connect: Callable[..., Blocking]) -> None:
    server, client = connect().channel(), connect().channel()
    server.queue_declare(queue="rpc_queue")

    def on_request(ch: Channel, method: Any, props: Any, body: bytes) -> None:
        ch.basic_publish(
            exchange="",
            routing_key=props.reply_to,
            properties=pika.BasicProperties(correlation_id=props.correlation_id),
            body=str(int(body) ** 2),
        )
        ch.basic_ack(delivery_tag=method.delivery_tag)

    server.basic_qos(prefetch_count=1)
    server.basic_consume(queue="rpc_queue", on_message_callback=on_request)
    callback_queue = client.queue_declare(queue="", exclusive=True).method.queue
    answers: dict[str, bytes] = {}
    client.basic_consume(
        callback_queue,
        lambda _ch, _m, props, body: answers.update({props.correlation_id: body}),
        auto_ack=True,
    )
    for number in (3, 12):
        client.basic_publish(
            "",
            "rpc_queue",
            str(number),
            pika.BasicProperties(reply_to=callback_queue, correlation_id=f"id {number}"),
        )
    for _ in range(200):
        server.connection.process_data_events(time_limit=0.05)
        client.connection.process_data_events(time_limit=0.05)
        if len(answers) == 2:
            break
    assert answers == {"id 3": b"9", "id 12": b"144"}


def test_tutorial_7_publisher_confirms(channel: Channel) -> None:
    channel.queue_declare(queue="confirmed", durable=True)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish(
            "", "confirmed", str(number), pika.BasicProperties(delivery_mode=2), mandatory=True
        )
    assert channel.queue_declare(queue="confirmed", passive=True).method.message_count == 20
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "nobody", b"back", mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.body) == (312, b"back")
    channel.basic_publish("", "nobody", b"dropped")  # confirmed all the same
    assert [int(body) for body in receive(channel, "confirmed", 20)] == list(range(20))


# --- properties and bodies -----------------------------------------------------------------------


def test_properties_and_headers_come_back(channel: Channel) -> None:
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers={
            "text": "caf\u00e9",
            "number": 2**40,
            "flag": True,
            "none": None,
            "list": [1, "a"],
        },
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.queue_declare(queue="q")
    channel.basic_publish("", "q", json.dumps({"a": 1}), sent)
    _, got, body = channel.basic_get("q", auto_ack=True)
    assert got == sent
    assert json.loads(body) == {"a": 1}


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000, 4 * 1024 * 1024])
def test_bodies_of_all_sizes(channel: Channel, size: int) -> None:
    """Up to one frame, exactly one, many; with confirms, so that each arrives."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    channel.confirm_delivery()
    channel.queue_declare(queue="q")
    channel.basic_publish("", "q", body)
    assert receive(channel, "q", 1) == [body]


def test_a_body_over_the_limit_closes_the_channel_only(connect: Callable[..., Blocking]) -> None:
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", "q", bytes(16 * 1024 * 1024 + 1))
    assert caught.value.reply_code == 406
    connection.channel().queue_declare(queue="q")


# --- consuming -----------------------------------------------------------------------------------


def test_get_nack_and_the_order_of_what_comes_back(channel: Channel) -> None:
    channel.queue_declare(queue="q")
    for body in "abcd":
        channel.basic_publish("", "q", body)
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(4)]
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_nack(tags[0], requeue=True)
    again = [channel.basic_get("q") for _ in range(2)]
    assert [(body, method.redelivered) for method, _, body in again] == [
        (b"a", True),
        (b"c", True),
    ]
    assert channel.basic_get("q") == (None, None, None)
    channel.basic_recover(requeue=True)
    assert channel.queue_declare(queue="q", passive=True).method.message_count == 4
    assert channel.queue_purge("q").method.message_count == 4
    assert channel.queue_delete("q").method.message_count == 0


def test_what_was_not_acknowledged_comes_again(connect: Callable[..., Blocking]) -> None:
    first = connect().channel()
    first.queue_declare(queue="q")
    for body in "abc":
        first.basic_publish("", "q", body)
    method, _, _ = first.basic_get("q")
    first.basic_get("q")
    first.basic_ack(method.delivery_tag)
    first.connection.close()
    assert receive(connect().channel(), "q", 2) == [b"b", b"c"]


def test_cancel_returns_what_was_prefetched(channel: Channel) -> None:
    channel.queue_declare(queue="q")
    for number in range(10):
        channel.basic_publish("", "q", str(number))
    channel.basic_qos(prefetch_count=5)
    for _, _, body in channel.consume("q"):
        assert body == b"0"
        break
    channel.cancel()
    assert channel.queue_declare("q", passive=True).method.message_count == 9


def test_a_consumer_hears_that_its_queue_is_gone(connect: Callable[..., Blocking]) -> None:
    channel, other = connect().channel(), connect().channel()
    channel.queue_declare(queue="q")
    gone: list[Any] = []
    channel.add_on_cancel_callback(gone.append)
    channel.basic_consume("q", lambda *_: None)
    other.queue_delete("q")
    until(channel.connection, lambda: bool(gone))


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda ch: ch.queue_declare("none", passive=True), 404),
        (lambda ch: ch.exchange_declare("none", passive=True), 404),
        (lambda ch: ch.basic_get("none"), 404),
        (lambda ch: ch.queue_bind("q", "none"), 404),
        (lambda ch: ch.queue_declare("q", durable=True), 406),
        (lambda ch: ch.exchange_declare("x", exchange_type="x-unheard-of"), 406),
        (lambda ch: ch.queue_declare("amq.reserved"), 403),
        (lambda ch: ch.queue_declare("mine"), 405),
    ],
)
def test_errors_close_the_channel_and_leave_the_connection(
    connect: Callable[..., Blocking], act: Callable[[Channel], object], code: int
) -> None:
    owner, connection = connect().channel(), connect()
    owner.queue_declare("q")
    owner.queue_declare("mine", exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        act(connection.channel())
    assert caught.value.reply_code == code
    assert connection.channel().queue_declare("q", passive=True).method.queue == "q"


def test_publishing_to_nowhere_closes_the_channel(channel: Channel) -> None:
    channel.basic_publish("no such exchange", "k", b"x")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange"):
        channel.queue_declare("q")


def test_an_unknown_virtual_host(connect: Callable[..., Blocking]) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(virtual_host="elsewhere")


def test_flow_and_many_channels(connect: Callable[..., Blocking]) -> None:
    connection = connect(heartbeat=1)
    channels = [connection.channel() for _ in range(50)]
    assert all(channel.flow(True) for channel in channels[:3])
    for channel in channels:
        channel.queue_declare("", exclusive=True)
        channel.close()
    for _ in range(100):
        connection.channel().close()


@pytest.mark.slow
def test_heartbeats_keep_an_idle_connection(connect: Callable[..., Blocking]) -> None:
    """Three intervals without a word of ours: both sides beat, and nobody gives up."""
    connection = connect(heartbeat=1)
    channel = connection.channel()
    connection.process_data_events(time_limit=3.5)
    channel.queue_declare("q")


# --- the other adapters --------------------------------------------------------------------------


class Select:
    """The asynchronous consumer and publisher of pika's documentation, in one."""

    def __init__(self, parameters: pika.ConnectionParameters, count: int) -> None:
        self.count = count
        self.got: list[bytes] = []
        self.confirmed = 0
        self.connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self.on_channel
            ),
            on_close_callback=lambda connection, _reason: connection.ioloop.stop(),
        )
        self.connection.ioloop.call_later(SECONDS_MAX, self.connection.ioloop.stop)

    def on_channel(self, channel: Channel) -> None:
        self.channel = channel
        channel.exchange_declare("message", "topic", callback=self.on_exchange)

    def on_exchange(self, _frame: Any) -> None:
        self.channel.queue_declare("text", callback=self.on_queue)

    def on_queue(self, _frame: Any) -> None:
        self.channel.queue_bind("text", "message", "example.text", callback=self.on_bind)

    def on_bind(self, _frame: Any) -> None:
        self.channel.basic_qos(prefetch_count=10, callback=self.on_qos)

    def on_qos(self, _frame: Any) -> None:
        self.channel.confirm_delivery(self.on_confirm)
        self.tag = self.channel.basic_consume("text", self.on_message)
        for number in range(self.count):
            self.channel.basic_publish(
                "message", "example.text", str(number), pika.BasicProperties(app_id="example")
            )

    def on_confirm(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack"
        self.confirmed = frame.method.delivery_tag
        self.stop_when_done()

    def on_message(self, channel: Channel, method: Any, properties: Any, body: bytes) -> None:
        assert properties.app_id == "example"
        self.got.append(body)
        channel.basic_ack(method.delivery_tag)
        self.stop_when_done()

    def stop_when_done(self) -> None:
        if self.confirmed == self.count == len(self.got):
            self.channel.basic_cancel(self.tag, callback=lambda _frame: self.connection.close())


def test_select_connection(server: Server) -> None:
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    example = Select(parameters, 500)
    example.connection.ioloop.start()
    assert example.got == [b"%d" % number for number in range(500)]
    assert example.confirmed == 500
    assert example.connection.is_closed
    example.connection.ioloop.close()


def test_asyncio_connection(server: Server) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()
        closed: asyncio.Future[None] = loop.create_future()

        def on_open(connection: Any) -> None:
            connection.channel(on_open_callback=functools.partial(on_channel, connection))

        def on_channel(connection: Any, channel: Channel) -> None:
            channel.queue_declare("q", callback=lambda _frame: start(channel))

        def start(channel: Channel) -> None:
            channel.basic_consume(
                "q", lambda _ch, _m, _p, body: done.set_result(body), auto_ack=True
            )
            channel.basic_publish("", "q", b"hello")

        connection = pika.adapters.asyncio_connection.AsyncioConnection(
            pika.ConnectionParameters(server.host, server.amqp_port),
            on_open_callback=on_open,
            on_close_callback=lambda _connection, _reason: closed.set_result(None),
        )
        async with asyncio.timeout(SECONDS_MAX):
            assert await done == b"hello"
            connection.close()
            await closed

    asyncio.run(scenario())
