"""Consuming over a real engine: deliveries, prefetch, acknowledgements, and the order of returns.

`bench.step()` is a loop iteration with its flush; nothing is delivered before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.spec import Method
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, answer


def declare(peer: Peer, queue: str = "q", **settings: Any) -> None:
    peer.ask(spec.QueueDeclare(queue=queue, **settings))


def publish(bench: Bench, *bodies: str, queue: str = "q") -> None:
    """From a connection of its own."""
    peer = bench.peer(1)
    peer.send(*(wire.publish(1, "", queue, body.encode()) for body in bodies))
    bench.step()


def deliveries(peer: Peer) -> list[str]:
    """Bodies of what was delivered, `*` behind those that were delivered before."""
    return [
        sent.body.decode() + ("*" if sent.method.redelivered else "")
        for sent in peer.received()
        if isinstance(sent.method, (spec.BasicDeliver, spec.BasicGetOk))
    ]


def consumer(
    bench: Bench,
    *,
    prefetch: int = 0,
    shared: int = 0,
    queue: str = "q",
    **settings: Any,
) -> Peer:
    peer = bench.peer(1)
    if prefetch:
        peer.ask(spec.BasicQos(prefetch_count=prefetch))
    if shared:
        peer.ask(spec.BasicQos(prefetch_count=shared, global_=True))
    peer.ask(spec.BasicConsume(queue=queue, consumer_tag="c", **settings))
    bench.step()
    return peer


def get(peer: Peer, *, no_ack: bool = False) -> str:
    peer.ask(spec.BasicGet(queue="q", no_ack=no_ack))
    (sent,) = peer.received()
    if isinstance(sent.method, spec.BasicGetEmpty):
        return "empty"
    assert isinstance(sent.method, spec.BasicGetOk)
    return f"{sent.body.decode()} {sent.method.message_count}" + "*" * sent.method.redelivered


def ack(peer: Peer, tag: int, *, multiple: bool = False) -> None:
    peer.ask(spec.BasicAck(delivery_tag=tag, multiple=multiple))


def closed(peer: Peer) -> tuple[int, str]:
    """Code and text of the channel's or the connection's close."""
    found = [
        method
        for method in peer.methods()
        if isinstance(method, (spec.ChannelClose, spec.ConnectionClose))
    ]
    (close,) = found
    return close.reply_code, close.reply_text


def setup(bench: Bench, *bodies: str) -> None:
    declare(bench.peer(1))
    publish(bench, *bodies)


def test_a_message_comes_as_it_went(bench: Bench) -> None:
    """Exchange, routing key, properties and body, byte for byte; tags count from 1."""
    sender = bench.peer(1)
    declare(sender)
    receiver = consumer(bench)
    answer(receiver, spec.BasicConsumeOk)
    properties = wire.properties(
        content_type="a/b", headers={"k": [1, None]}, delivery_mode=2, timestamp=2**64 - 1
    )
    sender.send(
        wire.publish(1, "", "q", b"one", properties=properties), wire.publish(1, "", "q", b"")
    )
    bench.step()
    first, second = receiver.received()
    assert first.method == spec.BasicDeliver(consumer_tag="c", delivery_tag=1, routing_key="q")
    assert (first.body, first.properties) == (b"one", properties)
    assert second.method == spec.BasicDeliver(consumer_tag="c", delivery_tag=2, routing_key="q")
    assert (second.body, second.properties) == (b"", b"\x00\x00")


def test_messages_follow_consume_ok(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench)
    names = [type(method).__name__ for method in receiver.methods()]
    assert names == ["BasicConsumeOk", "BasicDeliver", "BasicDeliver"]


def test_no_message_overtakes_consume_ok(bench: Bench) -> None:
    """The message becomes visible while consume-ok still waits behind a confirm."""
    setup(bench)
    peer = bench.peer(1)
    peer.ask(spec.ConfirmSelect())
    peer.received()
    peer.send(wire.publish(1, "", "q", b"x"), wire.method(1, spec.BasicConsume(queue="q")))
    assert peer.methods() == []
    bench.step()
    names = [type(method).__name__ for method in peer.methods()]
    assert names == ["BasicAck", "BasicConsumeOk", "BasicDeliver"]


def test_acks_before_a_wrong_publish_count(bench: Bench) -> None:
    """Within one read; those behind it do not, and their message comes again."""
    setup(bench, "a", "b")
    receiver = consumer(bench)
    assert deliveries(receiver) == ["a", "b"]
    receiver.send(
        wire.method(1, spec.BasicAck(delivery_tag=1)),
        wire.publish(1, "no such exchange", "k", b"x"),
        wire.method(1, spec.BasicNack(delivery_tag=2)),
    )
    assert closed(receiver)[0] == 404
    bench.step()
    other = bench.peer(1)
    assert [get(other) for _ in range(2)] == ["b 0*", "empty"]


def test_prefetch_limits_what_is_unacknowledged(bench: Bench) -> None:
    setup(bench, "a", "b", "c", "d", "e")
    receiver = consumer(bench, prefetch=2)
    assert deliveries(receiver) == ["a", "b"]
    ack(receiver, 1)
    bench.step()
    assert deliveries(receiver) == ["c"]
    ack(receiver, 3, multiple=True)
    bench.step()
    assert deliveries(receiver) == ["d", "e"]


def test_prefetch_of_one_hands_out_one_by_one(bench: Bench) -> None:
    setup(bench, "a", "b", "c")
    receiver = consumer(bench, prefetch=1)
    got = []
    for tag in range(1, 4):
        got += deliveries(receiver)
        ack(receiver, tag)
        bench.step()
    assert got == ["a", "b", "c"]


def test_prefetch_of_a_channel_is_shared_and_that_of_consumers_is_not(bench: Bench) -> None:
    """qos(2, global=False) for each consumer; qos(3, global=True) for both together."""
    setup(bench, "a", "b", "c", "d", "e", "f")
    receiver = bench.peer(1)
    receiver.ask(spec.BasicQos(prefetch_count=2))
    receiver.ask(spec.BasicQos(prefetch_count=3, global_=True))
    for tag in ("one", "two"):
        receiver.ask(spec.BasicConsume(queue="q", consumer_tag=tag))
    bench.step()
    assert sorted(deliveries(receiver)) == ["a", "b", "c"]
    ack(receiver, 1)
    bench.step()
    assert deliveries(receiver) == ["d"]
    receiver.ask(spec.BasicQos(prefetch_count=0, global_=True))
    bench.step()
    assert deliveries(receiver) == ["e"]


def test_prefetch_counts_for_later_consumers_only(bench: Bench) -> None:
    setup(bench, "a", "b", "c")
    receiver = consumer(bench, prefetch=1)
    receiver.ask(spec.BasicQos(prefetch_count=5))
    bench.step()
    assert deliveries(receiver) == ["a"]


def test_gets_and_no_ack_do_not_use_credit(bench: Bench) -> None:
    setup(bench, "a", "b", "c", "d")
    receiver = bench.peer(1)
    receiver.ask(spec.BasicQos(prefetch_count=1))
    answer(receiver, spec.BasicQosOk)
    assert get(receiver) == "a 3"
    receiver.ask(spec.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    bench.step()
    assert deliveries(receiver) == ["b", "c", "d"]


def test_no_ack_settles_when_written(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench, no_ack=True)
    assert deliveries(receiver) == ["a", "b"]
    receiver.client.lost()
    assert get(bench.peer(1)) == "empty"


def test_get_counts_what_is_left(bench: Bench) -> None:
    setup(bench, "a", "b")
    peer = bench.peer(1)
    assert get(peer) == "a 1"
    assert get(peer, no_ack=True) == "b 0"
    assert get(peer) == "empty"
    peer.ask(spec.BasicReject(delivery_tag=1, requeue=True))
    bench.step()
    assert get(peer) == "a 0*"


def test_get_sees_what_was_published_just_before(bench: Bench) -> None:
    """In one read, without confirms: the get waits until the message is visible."""
    peer = bench.peer(1)
    declare(peer)
    peer.received()
    peer.send(wire.publish(1, "", "q", b"x"), wire.method(1, spec.BasicGet(queue="q")))
    bench.step()
    assert deliveries(peer) == ["x"]


def test_declare_counts_what_was_published_just_before(bench: Bench) -> None:
    peer = bench.peer(1)
    declare(peer)
    peer.received()
    peer.send(
        wire.publish(1, "", "q", b"x"),
        wire.publish(1, "", "q", b"y"),
        wire.method(1, spec.QueueDeclare(queue="q", passive=True)),
    )
    bench.step()
    assert answer(peer, spec.QueueDeclareOk) == spec.QueueDeclareOk(queue="q", message_count=2)


# --- giving back -----------------------------------------------------------------------------


def test_what_is_given_back_returns_to_its_place(bench: Bench) -> None:
    """Unacknowledged a b c d; nack c, nack a: then a and c come first, in that order, flagged."""
    setup(bench, "a", "b", "c", "d", "e")
    peer = bench.peer(1)
    assert [get(peer) for _ in range(4)] == ["a 4", "b 3", "c 2", "d 1"]
    peer.ask(spec.BasicNack(delivery_tag=3, requeue=True))
    peer.ask(spec.BasicNack(delivery_tag=1, requeue=True))
    assert [get(peer) for _ in range(4)] == ["a 2*", "c 1*", "e 0", "empty"]


def test_nack_multiple_gives_everything_up_to_the_tag_back(bench: Bench) -> None:
    setup(bench, "a", "b", "c", "d")
    receiver = consumer(bench, prefetch=3)
    assert deliveries(receiver) == ["a", "b", "c"]
    receiver.send(
        wire.method(1, spec.BasicAck(delivery_tag=2)),
        wire.method(1, spec.BasicNack(delivery_tag=3, multiple=True, requeue=True)),
    )
    bench.step()
    assert deliveries(receiver) == ["a*", "c*", "d"]


def test_reject_without_requeue_drops(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench, prefetch=1)
    receiver.ask(spec.BasicReject(delivery_tag=1))
    bench.step()
    assert deliveries(receiver) == ["a", "b"]
    receiver.client.lost()
    bench.step()
    assert get(bench.peer(1)) == "b 0*"


def test_recover_gives_back_what_the_channel_holds(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench)
    assert deliveries(receiver) == ["a", "b"]
    receiver.ask(spec.BasicRecover(requeue=True))
    bench.step()
    received = receiver.received()
    assert isinstance(received[0].method, spec.BasicRecoverOk)
    assert [(sent.body, sent.delivery.delivery_tag) for sent in received[1:]] == [
        (b"a", 3),
        (b"b", 4),
    ]
    receiver.ask(spec.BasicRecoverAsync(requeue=True))
    bench.step()
    assert deliveries(receiver) == ["a*", "b*"]


@pytest.mark.parametrize("way", ["channel.close", "connection.close", "lost", "error"])
def test_whatever_ends_a_channel_gives_its_messages_back(bench: Bench, way: str) -> None:
    """Acks that came before count; the rest is flagged, also what was never looked at."""
    setup(bench, "a", "b", "c")
    receiver = consumer(bench)
    assert deliveries(receiver) == ["a", "b", "c"]
    first = wire.method(1, spec.BasicAck(delivery_tag=1))
    if way == "channel.close":
        receiver.send(first, wire.method(1, spec.ChannelClose()))
    elif way == "connection.close":
        receiver.send(first, wire.method(0, spec.ConnectionClose()))
    elif way == "error":
        receiver.send(first, wire.method(1, spec.BasicAck(delivery_tag=99)))
    else:
        receiver.send(first)
        receiver.client.lost()
    bench.step()
    other = bench.peer(1)
    assert [get(other) for _ in range(3)] == ["b 1*", "c 0*", "empty"]


def test_after_cancel_ok_nothing_comes_and_what_is_held_can_be_acknowledged(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench, prefetch=1)
    assert deliveries(receiver) == ["a"]
    receiver.ask(spec.BasicCancel(consumer_tag="c"))
    answer(receiver, spec.BasicCancelOk)
    ack(receiver, 1)
    bench.step()
    assert receiver.methods() == []
    assert get(bench.peer(1)) == "b 0"
    receiver.ask(spec.BasicCancel(consumer_tag="unknown"))
    answer(receiver, spec.BasicCancelOk)


# --- wrong acknowledgements --------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        spec.BasicAck(delivery_tag=4),
        spec.BasicAck(delivery_tag=0),
        spec.BasicAck(delivery_tag=4, multiple=True),
        spec.BasicAck(delivery_tag=2**64 - 1),
        spec.BasicNack(delivery_tag=4, multiple=True),
        spec.BasicReject(delivery_tag=4, requeue=True),
    ],
    ids=str,
)
def test_an_unknown_tag_closes_the_channel(bench: Bench, method: Method) -> None:
    setup(bench, "a", "b", "c")
    receiver = consumer(bench)
    deliveries(receiver)
    receiver.ask(method)
    code, text = closed(receiver)
    assert (code, text.partition("unknown delivery tag")[1]) == (406, "unknown delivery tag")


def test_an_ack_twice_is_an_error_and_the_tags_before_it_count(bench: Bench) -> None:
    setup(bench, "a", "b", "c")
    receiver = consumer(bench)
    deliveries(receiver)
    receiver.send(*(wire.method(1, spec.BasicAck(delivery_tag=tag)) for tag in (1, 2, 1)))
    assert closed(receiver)[0] == 406
    bench.step()
    assert get(bench.peer(1)) == "c 0*"


def test_a_tag_belongs_to_its_channel(bench: Bench) -> None:
    setup(bench, "a")
    receiver = bench.peer(1, 2)
    receiver.ask(spec.BasicConsume(queue="q"))
    bench.step()
    receiver.received()
    receiver.ask(spec.BasicAck(delivery_tag=1), 2)
    assert closed(receiver)[0] == 406


def test_ack_of_everything(bench: Bench) -> None:
    """Tag 0 with multiple; it is no error when there is nothing."""
    setup(bench, "a", "b")
    receiver = consumer(bench)
    deliveries(receiver)
    for _ in range(2):
        ack(receiver, 0, multiple=True)
    receiver.client.lost()
    bench.step()
    assert get(bench.peer(1)) == "empty"


# --- consumers ---------------------------------------------------------------------------------


def test_a_tag_that_is_in_use_closes_the_connection(bench: Bench) -> None:
    setup(bench)
    receiver = consumer(bench)
    receiver.received()
    receiver.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
    assert closed(receiver) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")


def test_two_consumers_of_one_channel_take_turns(bench: Bench) -> None:
    setup(bench)
    receiver = bench.peer(1)
    for tag in ("one", "two"):
        receiver.ask(spec.BasicConsume(queue="q", consumer_tag=tag))
    for body in "abcd":
        publish(bench, body)
    tags = [
        method.consumer_tag
        for method in receiver.methods()
        if isinstance(method, spec.BasicDeliver)
    ]
    assert sorted(tags) == ["one", "one", "two", "two"]


def test_an_empty_tag_is_made_up(bench: Bench) -> None:
    setup(bench)
    receiver = bench.peer(1)
    receiver.ask(spec.BasicConsume(queue="q"))
    assert answer(receiver, spec.BasicConsumeOk) == spec.BasicConsumeOk(consumer_tag="tag0")


def test_exclusive_consumers_are_alone(bench: Bench) -> None:
    setup(bench)
    first = consumer(bench, exclusive=True)
    answer(first, spec.BasicConsumeOk)
    assert closed(consumer(bench))[0] == 403
    first.client.lost()
    second = consumer(bench)
    answer(second, spec.BasicConsumeOk)
    assert closed(consumer(bench, exclusive=True))[0] == 403


def test_who_understands_it_is_told_that_a_queue_went(bench: Bench) -> None:
    setup(bench)
    reported, untold = bench.peer(1), bench.peer(1, capabilities={})
    for peer in (reported, untold):
        peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
        answer(peer, spec.BasicConsumeOk)
    bench.peer(1).ask(spec.QueueDelete(queue="q"))
    bench.step()
    assert reported.methods() == [spec.BasicCancel(consumer_tag="c", nowait=True)]
    assert untold.methods() == []
    assert reported.client.consumer_count == 0
    reported.ask(spec.BasicCancelOk(consumer_tag="c"))  # some clients answer all the same
    assert reported.methods() == []


def test_what_a_deleted_queue_left_with_its_consumer_can_be_acknowledged(bench: Bench) -> None:
    setup(bench, "a", "b")
    receiver = consumer(bench)
    assert deliveries(receiver) == ["a", "b"]
    bench.peer(1).ask(spec.QueueDelete(queue="q"))
    bench.step()
    receiver.received()
    ack(receiver, 1)
    receiver.ask(spec.BasicNack(delivery_tag=2, requeue=True))
    bench.step()
    assert receiver.methods() == []
    declare(receiver)
    assert answer(receiver, spec.QueueDeclareOk) == spec.QueueDeclareOk(queue="q")


# --- slow sockets ------------------------------------------------------------------------------


def test_a_socket_that_is_full_gets_nothing_more(bench: Bench) -> None:
    """Also without acknowledgements, where nothing else would stop the flood."""
    setup(bench)
    receiver = consumer(bench, no_ack=True)
    answer(receiver, spec.BasicConsumeOk)
    receiver.transport.full = True
    publish(bench, "a", "b")
    assert receiver.methods() == []
    receiver.transport.full = False
    receiver.client.drained()
    bench.step()
    assert deliveries(receiver) == ["a", "b"]


def test_bodies_are_cut_to_what_the_client_takes(bench: Bench) -> None:
    setup(bench)
    receiver = consumer(bench)
    receiver.client._core.frame_max = 4096
    sender = bench.peer(1)
    body = bytes(range(256)) * 50
    sender.send(wire.publish(1, "", "q", body))
    bench.step()
    sent = receiver.received()[-1]
    assert sent.body == body
    assert max(sent.body_sizes) == 4088


def test_a_heap_of_messages_comes_whole_and_in_order(bench: Bench) -> None:
    """More than one turn of the engine hands out."""
    bodies = [str(number) for number in range(9000)]
    setup(bench, *bodies)
    receiver = consumer(bench, no_ack=True)
    got: list[str] = []
    for _ in range(20):
        got += deliveries(receiver)
        bench.step()
    assert got == bodies


def test_gets_that_are_asked_all_at_once_do_not_fill_the_memory(bench: Bench) -> None:
    """The answers to a read of questions may be a thousand times its size."""
    bench.limits = replace(bench.limits, answers_bytes_max=100_000)
    declare(bench.peer(1))
    body = "x" * 50_000
    publish(bench, *[body] * 20)
    peer = bench.peer(1)
    peer.transport.full = True
    peer.send(wire.method(1, spec.BasicGet(queue="q", no_ack=True)) * 20)
    assert len(peer.transport.data) < 200_000
    got = deliveries(peer)
    peer.transport.full = False
    peer.client.drained()
    bench.step()
    assert got + deliveries(peer) == [body] * 20
