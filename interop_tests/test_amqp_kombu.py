"""kombu (over py-amqp) as its documentation shows it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import amqp.exceptions
import kombu as typed_kombu
import pytest
from kombu import mixins as typed_mixins
from kombu import pools as typed_pools

from interop_tests.conftest import Server

SECONDS_MAX = 20.0
kombu: Any = typed_kombu  # its annotations are partial
mixins: Any = typed_mixins
pools: Any = typed_pools


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all tests here: each has names of its own."""
    return shared_server


@pytest.fixture
def connection(server: Server) -> Iterator[Any]:
    with kombu.Connection(f"amqp://guest:guest@{server.host}:{server.amqp_port}//") as made:
        yield made


def test_hello_world_with_simple_queues(connection: Any) -> None:
    simple = connection.SimpleQueue("simple_queue")
    simple.put({"hello": "world", "n": 1})
    simple.put("text")
    assert simple.qsize() == 2
    message = simple.get(block=True, timeout=SECONDS_MAX)
    assert message.payload == {"hello": "world", "n": 1}
    message.ack()
    message = simple.get(block=True, timeout=SECONDS_MAX)
    assert message.payload == "text"
    message.reject()
    with pytest.raises(queue.Empty):
        simple.get(block=True, timeout=0.1)
    simple.close()


def test_producer_and_consumer(connection: Any) -> None:
    media_exchange = kombu.Exchange("media", "direct", durable=True)
    video_queue = kombu.Queue("video", exchange=media_exchange, routing_key="video")
    got: list[Any] = []

    def process_media(body: Any, message: Any) -> None:
        got.append((body, message.headers, message.properties["delivery_mode"]))
        message.ack()

    producer = connection.Producer(serializer="json")
    producer.publish(
        {"name": "/tmp/lolcat1.avi", "size": 1301013},
        exchange=media_exchange,
        routing_key="video",
        declare=[video_queue],
        headers={"from": "camera"},
    )
    with connection.Consumer(video_queue, callbacks=[process_media]):
        connection.drain_events(timeout=SECONDS_MAX)
    assert got == [({"name": "/tmp/lolcat1.avi", "size": 1301013}, {"from": "camera"}, 2)]


def test_confirms(server: Server) -> None:
    url = f"amqp://guest:guest@{server.host}:{server.amqp_port}//"
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        task_queue = kombu.Queue("tasks", kombu.Exchange("tasks", type="topic"), "task.#")
        with pools.producers[connection].acquire(block=True) as producer:
            for number in range(10):
                producer.publish(
                    number, exchange="tasks", routing_key="task.a", declare=[task_queue]
                )
        bound = task_queue(connection.default_channel)
        assert bound.queue_declare(passive=True).message_count == 10
        pools.reset()


class Worker(mixins.ConsumerMixin):  # type: ignore[misc]
    """The worker of kombu's documentation."""

    def __init__(self, connection: Any, task_queue: Any, count: int) -> None:
        self.connection = connection
        self.task_queue = task_queue
        self.count = count
        self.got: list[Any] = []

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803
        return [Consumer(queues=[self.task_queue], callbacks=[self.on_task], prefetch_count=2)]

    def on_task(self, body: Any, message: Any) -> None:
        self.got.append(body)
        message.ack()
        self.should_stop = len(self.got) == self.count


def test_consumer_mixin(connection: Any) -> None:
    task_queue = kombu.Queue("work", kombu.Exchange("work", type="direct"), "work")
    producer = connection.Producer()
    for number in range(20):
        producer.publish(
            {"task": number},
            exchange=task_queue.exchange,
            routing_key="work",
            declare=[task_queue],
            compression="zlib",
        )
    worker = Worker(connection.clone(), task_queue, 20)
    worker.run()
    assert worker.got == [{"task": number} for number in range(20)]


def test_redelivery_and_requeue(connection: Any) -> None:
    channel = connection.channel()
    bound = kombu.Queue("again", durable=False)(channel)
    bound.declare()
    connection.Producer().publish("x", routing_key="again")
    message = bound.get()
    assert not message.delivery_info["redelivered"]
    message.requeue()
    message = bound.get()
    assert message.delivery_info["redelivered"]
    channel.close()
    message = kombu.Queue("again", durable=False)(connection.channel()).get(no_ack=True)
    assert message.payload == "x"


def test_errors(connection: Any) -> None:
    with pytest.raises(amqp.exceptions.NotFound):
        kombu.Queue("none")(connection.channel()).queue_declare(passive=True)
    kombu.Queue("q", durable=True)(connection.channel()).declare()
    with pytest.raises(amqp.exceptions.PreconditionFailed):
        kombu.Queue("q", durable=False)(connection.channel()).declare()
    with pytest.raises(amqp.exceptions.PreconditionFailed, match="x-max-length"):
        kombu.Queue("many", max_length=-1)(connection.channel()).declare()


@pytest.mark.slow
def test_heartbeats_are_checked(server: Server) -> None:
    url = f"amqp://guest:guest@{server.host}:{server.amqp_port}//"
    with kombu.Connection(url, heartbeat=2) as connection:
        connection.ensure_connection()
        for _ in range(6):
            connection.heartbeat_check()
            with pytest.raises((TimeoutError, OSError)):
                connection.drain_events(timeout=0.5)
        connection.SimpleQueue("alive").put("yes")


def test_queues_that_expire(connection: Any) -> None:
    """`expires` and `message_ttl`, as Celery declares its reply queues."""
    channel = connection.channel()
    replies = kombu.Queue(
        "replies", kombu.Exchange("c"), "k", expires=3600.0, message_ttl=0.05, durable=False
    )(channel)
    replies.declare()
    connection.Producer().publish("late", exchange=replies.exchange, routing_key="k")
    deadline = time.monotonic() + SECONDS_MAX
    while replies.queue_declare(passive=True).message_count:
        assert time.monotonic() < deadline
    assert replies.get() is None
