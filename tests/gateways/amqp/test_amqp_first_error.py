"""The first error of a channel closes it. What the client sent behind it is dropped, in whatever
form and portions it arrives (AMQP 1.5.2.5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.spec import Method
from tests.broker.queue_bench import declare, publish, ready
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, answer


def bad_publish(exchange: str = "", **properties: Any) -> bytes:
    encoded = wire.properties(**properties)
    return wire.publish(1, exchange, "q", b"bad", properties=encoded)


def ask(method: Method) -> bytes:
    return wire.method(1, method)


# Each closes channel 1 with this code, whatever mode the channel is in.
FAULTS: dict[str, tuple[int, bytes]] = {
    "ack": (406, ask(spec.BasicAck(delivery_tag=99))),
    "acks in a row": (
        406,
        b"".join(ask(spec.BasicAck(delivery_tag=tag)) for tag in (90, 91, 92)),
    ),
    "ack of all up to one": (406, ask(spec.BasicAck(delivery_tag=99, multiple=True))),
    "nack": (406, ask(spec.BasicNack(delivery_tag=98, requeue=True))),
    "reject": (406, ask(spec.BasicReject(delivery_tag=97, requeue=False))),
    "publish to no exchange": (404, bad_publish("missing")),
    "publish with a wrong CC": (406, bad_publish(headers={"CC": "x"})),
    "publish with a wrong expiration": (406, bad_publish(expiration="x")),
    "publish of another user": (406, bad_publish(user_id="somebody")),
    "get": (404, ask(spec.BasicGet(queue="missing"))),
    "consume": (404, ask(spec.BasicConsume(queue="missing"))),
    "declare": (404, ask(spec.QueueDeclare(queue="missing", passive=True))),
    "bind": (404, ask(spec.QueueBind(queue="missing", exchange="amq.direct"))),
    "mode": (406, ask(spec.TxSelect()) + ask(spec.ConfirmSelect())),
    "other mode": (406, ask(spec.ConfirmSelect()) + ask(spec.TxSelect())),
}
HARMLESS: dict[str, bytes] = {
    "publish": wire.publish(1, "", "q", b"good"),
    "publishes": wire.publish(1, "", "q", b"good") * 3,
    "get": ask(spec.BasicGet(queue="q")),
    "recover": ask(spec.BasicRecover(requeue=True)),
    "qos": ask(spec.BasicQos(prefetch_count=1, global_=True)),
    "commit": ask(spec.TxCommit()),
}
MODES: dict[str, list[Method]] = {
    "plain": [],
    "confirms": [spec.ConfirmSelect()],
    "transaction": [spec.TxSelect()],
}
NO_NAME = wire.publish(1, "bad", "q", b"x").replace(b"\x03bad", b"\x03\xff\xff\xff")
"""A publish whose exchange has a name that is not UTF-8: an error of the connection."""
ALIVE = wire.method(2, spec.QueueDeclare(queue="q", passive=True))


def frame_ends(data: bytes) -> list[int]:
    """Where the frames of the bytes end."""
    ends, at = [], 0
    while at < len(data):
        at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        ends.append(at)
    return ends


def cuts(data: bytes, first_size: int) -> list[int]:
    """Where the bytes are cut in two reads: nowhere, behind what fails first, and in the head, in
    the middle, before the last byte and at the end of each of the two frames behind that."""
    found = {len(data), first_size}
    start = first_size
    for end in [end for end in frame_ends(data) if end > first_size][:2]:
        found |= {start + 1, (start + end) // 2, end - 1, end}
        start = end
    return sorted(found)


def prepared(bench: Bench, mode: str) -> Peer:
    """A client with two deliveries, whose channel takes the short way of single publishes."""
    peer = bench.peer(1, 2)
    for method in MODES[mode]:
        peer.ask(method)
    peer.ask(spec.BasicConsume(queue="deliveries", consumer_tag="c"))
    peer.send(wire.publish(1, "", "q", b"before"))
    bench.step()
    peer.received()
    return peer


def settle_down(bench: Bench, peer: Peer) -> list[Method]:
    """What comes until nothing comes any more."""
    for _ in range(3):
        bench.step()
    return peer.methods()


def expect_one_close(bench: Bench, peer: Peer, code: int) -> None:
    methods = settle_down(bench, peer)
    kinds = Counter(type(method) for method in methods)
    assert kinds[spec.ChannelClose] == 1, methods
    assert kinds[spec.ConnectionClose] == 0, methods
    assert kinds[spec.QueueDeclareOk] == 1, methods  # the connection goes on
    (closed,) = (one for one in methods if isinstance(one, spec.ChannelClose))
    assert closed.reply_code == code, closed
    late = methods[methods.index(closed) + 1 :]
    assert all(isinstance(method, spec.QueueDeclareOk) for method in late), late
    peer.send(ask(spec.ChannelCloseOk()), ask(spec.ChannelOpen()))
    answer(peer, spec.ChannelOpenOk)
    peer.client.lost()


@pytest.fixture
def queues(bench: Bench) -> Bench:
    declare(bench.broker, "q")
    declare(bench.broker, "deliveries")
    publish(bench.broker, "deliveries", b"1", b"2")
    bench.step()
    return bench


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", FAULTS)
def test_the_first_error_of_a_channel_is_the_one_that_counts(
    queues: Bench, mode: str, first: str
) -> None:
    """Each fault before each other one and before what is in order, in one read and in two."""
    code, fault = FAULTS[first]
    seconds = [data for _, data in FAULTS.values()] + list(HARMLESS.values())
    for second in seconds:
        data = fault + second
        for cut in cuts(data, len(fault)) if mode == "plain" else (len(data),):
            peer = prepared(queues, mode)
            peer.send(data[:cut])
            peer.send(data[cut:] + ALIVE)
            expect_one_close(queues, peer, code)
        peer = prepared(queues, mode)  # a get waits until what stands before it is on the disk
        peer.send(HARMLESS["publishes"] + data + ALIVE)
        expect_one_close(queues, peer, code)


GONE = "ack of what was acknowledged before it in the same read"


@pytest.mark.parametrize(
    "fault", ["ack", "acks in a row", "ack of all up to one", "nack", "reject", GONE]
)
@pytest.mark.parametrize("mode", ["plain", "confirms"])
def test_what_is_published_behind_a_failing_ack_is_not_stored(
    queues: Bench, mode: str, fault: str
) -> None:
    """Nor confirmed, although it is in the same read as what was published before the ack, which
    is both. Another channel's publishes count."""
    peer = prepared(queues, mode)
    before = ready(queues.broker, "q")
    good, ack = HARMLESS["publishes"], ask(spec.BasicAck(delivery_tag=1))
    peer.send(
        good + ack + good + (ack if fault == GONE else FAULTS[fault][1]),
        good + wire.publish(2, "", "q", b"other"),
        ALIVE,
    )
    methods = settle_down(queues, peer)
    closed = [one for one in methods if isinstance(one, spec.ChannelClose)]
    assert [one.reply_code for one in closed] == [406], methods
    assert ready(queues.broker, "q") == before + 7
    confirmed = [one.delivery_tag for one in methods if isinstance(one, spec.BasicAck)]
    assert max(confirmed, default=0) == (7 if mode == "confirms" else 0)  # 1: of `prepared`
    assert ready(queues.broker, "deliveries") == 1  # the one whose ack came before the error


def test_nothing_is_delivered_on_a_channel_behind_its_close(queues: Bench) -> None:
    """An ack that makes room, and one that is an error, in one read."""
    peer = queues.peer(1, 2)
    peer.ask(spec.BasicQos(prefetch_count=1))
    peer.ask(spec.BasicConsume(queue="deliveries", consumer_tag="c"))
    queues.step()
    peer.received()
    peer.send(ask(spec.BasicAck(delivery_tag=1)), FAULTS["ack"][1], ALIVE)
    expect_one_close(queues, peer, 406)


def test_what_comes_behind_an_error_of_the_connection_is_dropped(queues: Bench) -> None:
    """On all channels: publishes as well as errors."""
    before = ready(queues.broker, "q")
    for mode in MODES:
        peer = prepared(queues, mode)
        good = wire.publish(2, "", "q", b"late")
        peer.send(NO_NAME, good)
        for _, fault in FAULTS.values():
            peer.send(fault)
        kinds = [type(method) for method in settle_down(queues, peer)]
        assert kinds == [spec.ConnectionClose]
        peer.client.lost()
        queues.step()
    assert ready(queues.broker, "q") == before + 2  # `prepared` publishes: 1 is never committed


def test_a_method_that_waits_is_dropped_when_its_channel_is_closed(queues: Bench) -> None:
    """A consumer's time is up while a get waits for the disk; the connection goes on."""
    peer = queues.peer(1, 2)
    late = {"x-consumer-timeout": 1000}
    peer.ask(spec.BasicConsume(queue="deliveries", consumer_tag="c", arguments=late))
    queues.step()
    peer.received()
    peer.transport.run_timers()
    peer.send(HARMLESS["publish"] + HARMLESS["get"] + ALIVE)
    peer.transport.run_timers()
    expect_one_close(queues, peer, 406)
