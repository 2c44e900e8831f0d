"""RabbitMQ's queue arguments as pika applications use them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server

SECONDS_MAX = 20.0
SHARED_NAMES = ("q", "dead", "work", "ranked")

Blocking: TypeAlias = Any
Channel: TypeAlias = Any


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all tests here, without the queues that several of them use."""
    parameters = pika.ConnectionParameters(shared_server.host, shared_server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for name in SHARED_NAMES:
            channel.queue_delete(name)
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
    made = connect().channel()
    made.confirm_delivery()
    return made


def get(channel: Channel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue, within the deadline."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, f"nothing comes to {queue}"
        channel.connection.process_data_events(0.02)


def ready(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def exists(connection: Blocking, queue: str) -> bool:
    try:
        connection.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def dead_letter_queue(channel: Channel) -> None:
    channel.exchange_declare("dlx", "direct", durable=True)
    channel.queue_declare("dead", durable=True)
    channel.queue_bind("dead", "dlx", "gone")


def test_a_rejected_message_is_a_dead_letter(channel: Channel) -> None:
    """x-dead-letter-exchange: the headers that applications look at to decide on a retry."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "work",
        durable=True,
        arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "gone"},
    )
    sent = pika.BasicProperties(
        content_type="text/plain",
        message_id="m1",
        expiration="3600000",
        headers={"colour": "red", "x-death": "forged"},
        delivery_mode=pika.DeliveryMode.Persistent,
    )
    channel.basic_publish("", "work", b"job", sent)
    method, _, _ = get(channel, "work")
    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = get(channel, "dead")
    assert body == b"job"
    assert (method.exchange, method.routing_key) == ("dlx", "gone")
    assert (properties.content_type, properties.message_id) == ("text/plain", "m1")
    assert properties.expiration is None
    headers = properties.headers
    assert headers["colour"] == "red"
    (death,) = headers["x-death"]
    assert death.pop("time").year >= 2026
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "work",
        "exchange": "",
        "routing-keys": ["work"],
        "original-expiration": "3600000",
    }
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-first-death-queue"] == "work"
    assert headers["x-first-death-exchange"] == ""
    channel.basic_ack(method.delivery_tag)


def test_nack_multiple_moves_a_run_in_order(channel: Channel) -> None:
    """A hundred at once."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "work", arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "gone"}
    )
    for number in range(100):
        channel.basic_publish("", "work", str(number))
    for _ in range(100):
        method, _, _ = get(channel, "work")
    channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
    got = [get(channel, "dead")[2] for _ in range(100)]
    assert got == [str(number).encode() for number in range(100)]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no exchange": ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-exchange"),
    "no text": ({"x-dead-letter-exchange": 5}, "text"),
    "negative": ({"x-message-ttl": -1}, "0 to "),
    "no number": ({"x-expires": "soon"}, "whole number"),
    "no count": ({"x-max-length": "many"}, "whole number"),
    "no choice": ({"x-overflow": "explode"}, "drop-head"),
    "too much": ({"x-max-priority": 300}, "0 to 255"),
}
OTHERS: dict[str, tuple[dict[str, Any], int, str]] = {
    "one more": ({"arguments": {"x-max-length": 5, "x-expires": 9}}, 406, "'x-expires' for"),
    "another value": ({"arguments": {"x-max-length": 6}}, 406, "received '6' but current is '5'"),
    "none": ({}, 406, "inequivalent arg 'x-max-length'"),
    "durable": ({"arguments": {"x-max-length": 5}, "durable": True}, 406, "'durable'"),
    "exclusive": ({"arguments": {"x-max-length": 5}, "exclusive": True}, 405, "exclusive"),
}


def refused(connection: Blocking, **settings: Any) -> tuple[int, str]:
    """Code and text of a declaration that has to fail."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("q", **settings)
    return closed.value.reply_code, closed.value.reply_text


def test_wrong_arguments_are_406(connect: Callable[..., Blocking]) -> None:
    """The text names the argument and what it may be."""
    connection = connect()
    for arguments, texts in WRONG.values():
        code, text = refused(connection, arguments=arguments)
        assert code == 406
        assert "invalid arg" in text
        assert texts in text


def test_another_declaration_is_refused(connect: Callable[..., Blocking]) -> None:
    """The text names what differs; `exclusive` has RabbitMQ's own code."""
    connection = connect()
    channel = connection.channel()
    for _ in range(2):  # the same again is no difference
        channel.queue_declare("q", arguments={"x-max-length": 5})
    for settings, expected, texts in OTHERS.values():
        code, text = refused(connection, **settings)
        assert code == expected
        assert texts in text


# --- time to live --------------------------------------------------------------------------------


def test_messages_expire_into_the_dead_letter_queue(channel: Channel) -> None:
    """x-message-ttl and a message's own expiration, the lower of both; nobody reads the queue."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "wait",
        durable=True,
        arguments={
            "x-message-ttl": 200,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "gone",
        },
    )
    channel.basic_publish("", "wait", b"own", pika.BasicProperties(expiration="1"))
    channel.basic_publish("", "wait", b"queue's", pika.BasicProperties(expiration="3600000"))
    for body, expiration in ((b"own", "1"), (b"queue's", "3600000")):
        method, properties, got = get(channel, "dead")
        channel.basic_ack(method.delivery_tag)
        assert got == body
        (death,) = properties.headers["x-death"]
        assert (death["reason"], death["queue"]) == ("expired", "wait")
        assert death["original-expiration"] == expiration
        assert properties.expiration is None
    assert ready(channel, "wait") == 0


def test_expiration_in_a_plain_queue_is_kept_for_readers(channel: Channel) -> None:
    """What is read in time has its properties as they were sent; what is not is gone."""
    channel.queue_declare("plain")
    channel.basic_publish("", "plain", b"a", pika.BasicProperties(expiration="3600000", priority=0))
    method, properties, _ = get(channel, "plain")
    assert properties.expiration == "3600000"
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "plain", b"b", pika.BasicProperties(expiration="1"))
    deadline = time.monotonic() + SECONDS_MAX
    while ready(channel, "plain"):
        assert time.monotonic() < deadline
    assert channel.basic_get("plain")[0] is None


def test_an_unused_queue_goes(channel: Channel) -> None:
    """x-expires, as Celery's reply and event queues use it."""
    channel.queue_declare("used", arguments={"x-expires": 200})
    tag = channel.basic_consume("used", lambda *_: None)
    channel.queue_declare("unused", arguments={"x-expires": 100})
    deadline = time.monotonic() + SECONDS_MAX
    while exists(channel.connection, "unused"):
        assert time.monotonic() < deadline
        channel.connection.process_data_events(0.3)  # looking at it is a use
    assert ready(channel, "used") == 0
    channel.basic_cancel(tag)


def test_a_wrong_expiration_closes_the_channel(connect: Callable[..., Blocking]) -> None:
    connection = connect()
    connection.channel().queue_declare("q")
    for expiration in ("-1", "soon", "1.5", ""):
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.basic_publish("", "q", b"x", pika.BasicProperties(expiration=expiration))
        assert closed.value.reply_code == 406
        assert "expiration" in closed.value.reply_text


# --- length --------------------------------------------------------------------------------------


def test_the_oldest_messages_give_way(channel: Channel) -> None:
    """x-max-length with dead letters: reason maxlen."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "short",
        durable=True,
        arguments={
            "x-max-length": 2,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "gone",
        },
    )
    for number in range(4):
        channel.basic_publish("", "short", str(number))
    assert [get(channel, "dead")[2] for _ in range(2)] == [b"0", b"1"]
    assert [get(channel, "short")[2] for _ in range(2)] == [b"2", b"3"]
    assert channel.basic_get("dead")[0] is None


def test_a_full_queue_refuses_with_nack(channel: Channel) -> None:
    """x-overflow reject-publish: the publisher's confirm says so, for exactly those messages."""
    channel.queue_declare("full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    taken = []
    for number in range(4):
        try:
            channel.basic_publish("", "full", str(number))
            taken.append(number)
        except pika.exceptions.NackError:
            continue
    assert taken == [0, 1]
    method, _, _ = get(channel, "full")
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "full", "again")
    assert ready(channel, "full") == 2


def test_bytes_bound_a_queue(channel: Channel) -> None:
    """x-max-length-bytes: bodies, properties and some bytes for each message."""
    channel.queue_declare("bytes", arguments={"x-max-length-bytes": 20_000})
    for _ in range(30):
        channel.basic_publish("", "bytes", b"x" * 1000)
    assert 14 <= ready(channel, "bytes") <= 19


# --- delivery limit ------------------------------------------------------------------------------


def test_a_poison_message_ends_in_the_dead_letter_queue(channel: Channel) -> None:
    """x-delivery-limit: the count is in a header from the second delivery on."""
    dead_letter_queue(channel)
    channel.queue_declare(
        "limited",
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "gone",
        },
    )
    channel.basic_publish("", "limited", b"poison", pika.BasicProperties(headers={"n": 1}))
    counts = []
    for _ in range(3):
        method, properties, _ = get(channel, "limited")
        counts.append((properties.headers.get("x-delivery-count"), method.redelivered))
        assert properties.headers["n"] == 1
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert counts == [(None, False), (1, True), (2, True)]
    _, properties, body = get(channel, "dead")
    assert body == b"poison"
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


# --- who is served -------------------------------------------------------------------------------


def test_a_single_active_consumer_and_its_successor(connect: Callable[..., Blocking]) -> None:
    """x-single-active-consumer: order is kept over a lost connection."""
    sender = connect().channel()
    sender.queue_declare("one", arguments={"x-single-active-consumer": True})
    got: list[list[bytes]] = [[], []]
    workers = [connect().channel() for _ in range(2)]
    for index, worker in enumerate(workers):
        worker.basic_consume(
            "one", lambda ch, method, properties, body, index=index: got[index].append(body)
        )
    for number in range(5):
        sender.basic_publish("", "one", str(number))
    until(workers[0].connection, lambda: len(got[0]) == 5)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        sender.connection.channel().basic_get("one")
    assert closed.value.reply_code == 405
    workers[0].connection.close()
    until(workers[1].connection, lambda: len(got[1]) == 5)
    assert got == [[b"0", b"1", b"2", b"3", b"4"]] * 2


def test_consumer_priorities(connect: Callable[..., Blocking]) -> None:
    """x-priority of basic.consume: the others get what is beyond its prefetch."""
    sender = connect().channel()
    sender.queue_declare("tasks")
    got: list[list[bytes]] = [[], []]
    workers = [connect().channel() for _ in range(2)]
    for index, worker in enumerate(workers):
        worker.basic_qos(prefetch_count=2)
        worker.basic_consume(
            "tasks",
            lambda ch, method, properties, body, index=index: got[index].append(body),
            arguments={"x-priority": index},
        )
    for number in range(3):
        sender.basic_publish("", "tasks", str(number))
    until(workers[1].connection, lambda: len(got[1]) == 2)
    until(workers[0].connection, lambda: len(got[0]) == 1)
    assert got == [[b"2"], [b"0", b"1"]]


def until(connection: Blocking, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not done():
        assert time.monotonic() < deadline
        connection.process_data_events(0.02)


# --- priorities ----------------------------------------------------------------------------------


def test_important_messages_come_first(channel: Channel) -> None:
    """x-max-priority: beyond it counts as the maximum, without a priority as 0."""
    channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 5})
    for name, priority in (("a", 1), ("b", 5), ("c", None), ("d", 9), ("e", 5), ("f", 0)):
        properties = pika.BasicProperties(priority=priority, delivery_mode=2)
        channel.basic_publish("", "ranked", name, properties)
    got = []
    for _ in range(6):
        method, properties, body = get(channel, "ranked")
        got.append((body.decode(), properties.priority))
        channel.basic_ack(method.delivery_tag)
    assert got == [("b", 5), ("d", 9), ("e", 5), ("a", 1), ("c", None), ("f", 0)]


def test_priorities_survive_a_restart(server: Server, connect: Callable[..., Blocking]) -> None:
    """Also what was unacknowledged when the server was killed."""
    channel = connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 9})
    for name, priority in (("a", 2), ("b", 9), ("c", 2), ("d", 9)):
        properties = pika.BasicProperties(priority=priority, delivery_mode=2)
        channel.basic_publish("", "ranked", name, properties)
    assert get(channel, "ranked")[2] == b"b"
    server.kill()
    with contextlib.suppress(pika.exceptions.AMQPError):
        channel.connection.close()
    server.restart()
    channel = connect().channel()
    assert [get(channel, "ranked")[2] for _ in range(4)] == [b"b", b"d", b"a", b"c"]
