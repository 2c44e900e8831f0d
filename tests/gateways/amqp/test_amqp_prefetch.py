"""A prefetch that the consumers of a channel share, exact confirms, and dead letters that a client
sees."""

from __future__ import annotations

from collections import Counter
from typing import Any

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.headers import AmqpHeaders
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer


def fill(bench: Bench, *queues: str, count: int) -> Peer:
    peer = bench.peer(1)
    for queue in queues:
        peer.ask(spec.QueueDeclare(queue=queue))
        peer.send(*(wire.publish(1, "", queue, queue.encode()) for _ in range(count)))
    bench.step()
    bench.step()
    return peer


def delivered(peer: Peer) -> list[tuple[int, str]]:
    """Tag and consumer of each delivery."""
    return [
        (sent.method.delivery_tag, sent.method.consumer_tag)
        for sent in peer.received()
        if isinstance(sent.method, spec.BasicDeliver)
    ]


def test_shared_credit_goes_round(bench: Bench) -> None:
    """No queue of a channel waits until another one is empty."""
    fill(bench, "a", "b", "c", count=60)
    peer = bench.peer(1)
    peer.ask(spec.BasicQos(prefetch_count=3, global_=True))
    for queue in "abc":
        peer.ask(spec.BasicConsume(queue=queue, consumer_tag=queue))
    bench.step()
    seen: Counter[str] = Counter()
    while seen.total() < 60:  # a third of what there is
        for tag, consumer in delivered(peer):
            seen[consumer] += 1
            peer.ask(spec.BasicAck(delivery_tag=tag))
            bench.step()
    assert min(seen[queue] for queue in "abc") >= 15


def test_a_consumer_without_acks_stops_with_the_others(bench: Bench) -> None:
    """As in RabbitMQ up to 4.2: it uses up nothing of a shared prefetch, and obeys it."""
    fill(bench, "a", "b", count=2)
    peer = bench.peer(1)
    peer.ask(spec.BasicQos(prefetch_count=1, global_=True))
    peer.ask(spec.BasicConsume(queue="a", consumer_tag="a"))
    bench.step()
    assert delivered(peer) == [(1, "a")]
    peer.ask(spec.BasicConsume(queue="b", consumer_tag="b", no_ack=True))
    bench.step()
    assert delivered(peer) == []
    peer.ask(spec.BasicAck(delivery_tag=1))
    bench.step()
    assert [consumer for _, consumer in delivered(peer)] == ["a"]
    peer.ask(spec.BasicAck(delivery_tag=2))
    bench.step()
    assert [consumer for _, consumer in delivered(peer)] == ["b", "b"]


def test_only_what_a_full_queue_refused_is_nacked(bench: Bench) -> None:
    """Of a headers exchange: what went elsewhere in the same read is confirmed."""
    bench.broker.engine.topics.header_reader = AmqpHeaders()
    peer = bench.peer(1)
    full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    peer.ask(spec.QueueDeclare(queue="a", arguments=full))
    peer.ask(spec.QueueDeclare(queue="b"))
    for queue in "ab":
        arguments = {"t": queue}
        peer.ask(spec.QueueBind(queue=queue, exchange="amq.headers", arguments=arguments))
    peer.ask(spec.ConfirmSelect())
    bench.step()
    peer.received()
    publishes = [
        wire.publish(1, "amq.headers", "", b"x", properties=wire.properties(headers={"t": queue}))
        for queue in "aabbab"
    ]
    peer.send(*publishes)
    bench.step()
    outcome: dict[int, bool] = {}
    at = 0
    for method in peer.methods():
        assert isinstance(method, (spec.BasicAck, spec.BasicNack))
        first = at + 1 if method.multiple else method.delivery_tag
        at = max(at, method.delivery_tag)
        for tag in range(first, method.delivery_tag + 1):
            outcome[tag] = isinstance(method, spec.BasicAck)
    assert outcome == {1: True, 2: False, 3: True, 4: True, 5: False, 6: True}
    peer.ask(spec.QueueDeclare(queue="b", passive=True))
    declared = peer.methods()[-1]
    assert isinstance(declared, spec.QueueDeclareOk)
    assert declared.message_count == 3


def test_a_client_sees_the_dead_letters_that_it_made(bench: Bench) -> None:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="dead", durable=True))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    peer.ask(spec.QueueDeclare(queue="q", durable=True, arguments=arguments))
    peer.send(wire.publish(1, "", "q", b"x", properties=wire.properties(delivery_mode=2)))
    bench.step()
    peer.ask(spec.BasicGet(queue="q"))
    bench.step()
    peer.received()
    peer.send(
        wire.method(1, spec.BasicReject(delivery_tag=1, requeue=False)),
        wire.method(1, spec.BasicGet(queue="dead", no_ack=True)),
    )
    bench.step()
    (sent,) = peer.received()
    assert isinstance(sent.method, spec.BasicGetOk)
    assert sent.body == b"x"
    assert b"\x05countl" in sent.properties  # a long, as clients in Java expect
