"""Transactions with pika (AMQP 1.9): what is seen when, what comes back, and what a kill leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server

Blocking: TypeAlias = Any
Channel: TypeAlias = Any

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def open_connection(server: Server) -> Blocking:
    return pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))


@pytest.fixture
def connect(shared_server: Server) -> Iterator[Callable[[], Blocking]]:
    """Makes connections, and closes those that are still open."""
    made: list[Blocking] = []

    def open_one() -> Blocking:
        made.append(open_connection(shared_server))
        return made[-1]

    yield open_one
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[[], Blocking]) -> Channel:
    """A transactional channel with the queues `orders` and `bills`."""
    made = connect().channel()
    prepare(made)
    made.tx_select()
    return made


def prepare(channel: Channel) -> None:
    """Empty queues."""
    for queue in ("orders", "bills"):
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True)


def ready_count(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def get(channel: Channel, queue: str) -> tuple[int, bytes, bool]:
    method, _, body = channel.basic_get(queue)
    assert method is not None, queue
    return method.delivery_tag, body, method.redelivered


def is_empty(channel: Channel, queue: str) -> bool:
    return channel.basic_get(queue)[0] is None


def refused(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        call()
    return closed.value.reply_code, closed.value.reply_text


def test_publishes_are_seen_after_the_commit(
    channel: Channel, connect: Callable[[], Blocking]
) -> None:
    """Nobody sees a message before commit-ok; then all of them are there, in order."""
    other = connect().channel()
    for number in range(5):
        channel.basic_publish("", "orders", b"order %d" % number, PERSISTENT)
    channel.basic_publish("", "bills", b"bill", PERSISTENT)
    assert ready_count(channel, "orders") == ready_count(other, "orders") == 0
    channel.tx_commit()
    assert ready_count(other, "orders") == 5
    assert [get(other, "orders")[1] for _ in range(5)] == [b"order %d" % n for n in range(5)]
    assert get(other, "bills")[1] == b"bill"


def test_a_rollback_drops_publishes_and_keeps_deliveries_unacknowledged(
    channel: Channel, connect: Callable[[], Blocking]
) -> None:
    """The rolled back ack leaves the message with this channel: it is not delivered again, and can
    be acknowledged under its tag; a second transaction starts clean."""
    other = connect().channel()
    other.basic_publish("", "orders", b"a", PERSISTENT)
    other.basic_publish("", "orders", b"b", PERSISTENT)
    assert ready_count(other, "orders") == 2
    tag, _, _ = get(channel, "orders")
    second, _, _ = get(channel, "orders")
    channel.basic_ack(second, multiple=True)
    channel.basic_publish("", "bills", b"bill", PERSISTENT)
    channel.tx_rollback()
    assert ready_count(other, "bills") == ready_count(other, "orders") == 0
    channel.basic_ack(tag)
    channel.tx_commit()
    channel.connection.close()
    assert get(other, "orders") == (1, b"b", True)
    assert is_empty(other, "orders")
    assert is_empty(other, "bills")


def test_credit_comes_with_the_commit(channel: Channel, connect: Callable[[], Blocking]) -> None:
    """A prefetch of one: the next message is not delivered for an ack that is not committed."""
    other = connect().channel()
    for body in (b"a", b"b"):
        other.basic_publish("", "orders", body, PERSISTENT)
    assert ready_count(other, "orders") == 2
    got: list[bytes] = []
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("orders", lambda _c, _m, _p, body: got.append(body))
    until(channel, lambda: len(got) == 1)
    channel.basic_ack(1)
    assert ready_count(channel, "bills") == 0  # the ack has been taken
    assert got == [b"a"]
    channel.tx_commit()
    until(channel, lambda: len(got) == 2)
    assert got == [b"a", b"b"]


def until(channel: Channel, done: Callable[[], bool]) -> None:
    """Let the connection work until something is so."""
    for _ in range(200):
        if done():
            return
        channel.connection.process_data_events(time_limit=0.1)
    raise AssertionError("it did not happen in time")


def test_mandatory_messages_without_a_route_come_back_with_the_commit(channel: Channel) -> None:
    """basic.return before commit-ok, for the message that leads nowhere only."""
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    channel.basic_publish("", "nobody", b"lost", PERSISTENT, mandatory=True)
    channel.basic_publish("", "orders", b"kept", PERSISTENT, mandatory=True)
    assert ready_count(channel, "orders") == 0
    channel.connection.process_data_events(time_limit=0)
    assert returned == []
    channel.tx_commit()
    channel.connection.process_data_events(time_limit=0)
    assert returned == [b"lost"]
    assert ready_count(channel, "orders") == 1


def test_a_requeue_waits_for_the_commit(channel: Channel) -> None:
    """nack with requeue: the message is there again after the commit, not before."""
    channel.basic_publish("", "orders", b"a", PERSISTENT)
    channel.tx_commit()
    tag, _, _ = get(channel, "orders")
    channel.basic_nack(tag, requeue=True)
    assert ready_count(channel, "orders") == 0
    channel.tx_commit()
    assert get(channel, "orders") == (2, b"a", True)


def test_confirms_and_transactions_exclude_each_other(connect: Callable[[], Blocking]) -> None:
    """406 in both directions, and for a commit or a rollback outside of a transaction."""
    connection = connect()

    def confirm_after_select() -> None:
        channel = connection.channel()
        channel.tx_select()
        channel.confirm_delivery()

    def select_after_confirm() -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.tx_select()

    code, text = refused(confirm_after_select)
    assert (code, "from tx to confirm" in text) == (406, True)
    code, text = refused(select_after_confirm)
    assert (code, "from confirm to tx" in text) == (406, True)
    for call in ("tx_commit", "tx_rollback"):
        assert refused(getattr(connection.channel(), call))[0] == 406


def test_an_error_within_a_transaction_rolls_back(connect: Callable[[], Blocking]) -> None:
    """A missing exchange closes the channel at the publish: nothing of the transaction counts, and
    what it had acknowledged is there again."""
    connection = connect()
    channel = connection.channel()
    prepare(channel)
    channel.basic_publish("", "orders", b"a", PERSISTENT)
    assert ready_count(channel, "orders") == 1
    channel.tx_select()
    tag, _, _ = get(channel, "orders")
    channel.basic_ack(tag)
    channel.basic_publish("", "orders", b"b", PERSISTENT)
    channel.basic_publish("missing", "orders", b"c", PERSISTENT)
    assert refused(channel.tx_commit)[0] == 404
    other = connection.channel()
    assert get(other, "orders") == (1, b"a", True)
    assert is_empty(other, "orders")


def test_a_transaction_has_a_limit(connect: Callable[[], Blocking]) -> None:
    """More messages than one commit takes: 406, and nothing of it is stored."""
    connection = connect()
    channel = connection.channel()
    prepare(channel)
    channel.tx_select()

    def publish_too_much() -> None:
        for _ in range(10_001):
            channel.basic_publish("", "orders", b"x")
        channel.tx_commit()

    code, text = refused(publish_too_much)
    assert (code, "commit more often" in text) == (406, True)
    assert ready_count(connection.channel(), "orders") == 0


def test_what_was_committed_survives_a_kill_and_nothing_else(server: Server) -> None:
    """A worker that moves messages from `orders` to `bills`, one transaction each, is cut off with
    the server: every order is in exactly one of the two."""
    channel = open_connection(server).channel()
    prepare(channel)
    channel.tx_select()
    for number in range(30):
        channel.basic_publish("", "orders", b"%d" % number, PERSISTENT)
    channel.tx_commit()
    for number in range(21):
        tag, body, _ = get(channel, "orders")
        channel.basic_publish("", "bills", body, PERSISTENT)
        channel.basic_ack(tag)
        if number < 20:
            channel.tx_commit()
    assert ready_count(channel, "bills") == 20  # one more is held, and not stored
    server.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.tx_commit()
    server.start()
    connection = open_connection(server)
    other = connection.channel()
    orders = [get(other, "orders")[1] for _ in range(ready_count(other, "orders"))]
    bills = [get(other, "bills")[1] for _ in range(ready_count(other, "bills"))]
    assert bills == [b"%d" % n for n in range(20)]
    assert orders == [b"%d" % n for n in range(20, 30)]
    connection.close()
