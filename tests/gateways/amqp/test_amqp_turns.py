"""A long read is handled in turns: other connections are served in between, and what one client
asked for is answered in order."""

from __future__ import annotations

from itertools import count

import pytest

from polymq.broker.pacing.costs import HANDED_AT_ONCE, MESSAGE_COST
from polymq.broker.topics import topic
from polymq.broker.topics.topic import TARGETS_AT_ONCE
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.events import Run
from polymq.net.turns import TURN_SECONDS
from tests.broker.queue_bench import publish
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer

TURN_EVENTS = 3
RUNS = 8


def slow(peer: Peer) -> None:
    """From now on each look at the clock is a third of a turn later than the last."""
    ticks = count()
    peer.client._turns.clock = lambda: next(ticks) * TURN_SECONDS / TURN_EVENTS


def declares(first: int, last: int) -> bytes:
    """Queue declarations in one read."""
    names = [f"q{number}" for number in range(first, last)]
    return b"".join(wire.method(1, spec.QueueDeclare(queue=name)) for name in names)


def declared(peer: Peer) -> list[str]:
    """The queues that were declared since the last call."""
    methods = peer.methods()
    assert all(isinstance(method, spec.QueueDeclareOk) for method in methods), methods
    return [method.queue for method in methods if isinstance(method, spec.QueueDeclareOk)]


def test_a_long_read_lets_others_have_their_turn(bench: Bench) -> None:
    """Nothing more is read of it until it is done, and what comes nevertheless keeps its order."""
    peer, other = bench.peer(1), bench.peer(1)
    slow(peer)
    peer.send(declares(0, 8))
    assert declared(peer) == ["q0", "q1", "q2"]
    assert not peer.is_read()
    peer.send(declares(8, 10))
    other.send(declares(0, 1))
    assert declared(peer) == []
    assert declared(other) == ["q0"]
    while not peer.is_read():
        bench.step()
    assert declared(peer) == [f"q{number}" for number in range(3, 10)]
    peer.send(declares(10, 11))
    assert declared(peer) == ["q10"]


def test_a_client_that_leaves_in_between_is_forgotten(bench: Bench) -> None:
    """What it had asked for, and was not done, is not done."""
    peer = bench.peer(1)
    slow(peer)
    peer.send(declares(0, 8))
    peer.client.lost()
    bench.step()
    bench.step()
    assert sorted(bench.broker.engine.exchanges.queues) == ["q0", "q1", "q2"]


def test_a_channel_error_ends_what_waits_on_the_channel(bench: Bench) -> None:
    """Its close comes in its address, behind the answers before it."""
    peer = bench.peer(1)
    slow(peer)
    missing = wire.method(1, spec.QueueDeclare(queue="none", passive=True))
    peer.send(declares(0, 4), missing, declares(4, 8))
    while not peer.is_read():
        bench.step()
    kinds = [type(method).__name__ for method in peer.methods()]
    assert kinds == ["QueueDeclareOk"] * 4 + ["ChannelClose"]


def test_publishes_to_many_queues_are_cut_and_go_on_in_order(bench: Bench) -> None:
    """Their confirms, too; and an acknowledgement between them is taken once."""
    peer = bench.peer(1)
    names = [f"q{number}" for number in range(5 * RUNS)]
    peer.send(*(wire.method(1, spec.QueueDeclare(queue=name)) for name in names))
    peer.ask(spec.ConfirmSelect())
    peer.send(*(wire.publish(1, "", "q0", b"%d" % number) for number in range(len(names))))
    bench.step()
    peer.ask(spec.BasicConsume(queue="q0", consumer_tag="c"))
    bench.step()
    peer.received()
    slow(peer)
    parts = [
        wire.publish(1, "", name, name.encode())
        + wire.method(1, spec.BasicAck(delivery_tag=number + 1))
        for number, name in enumerate(names)
    ]
    peer.send(*parts)
    assert bench.broker.group("q1").queue.index.end_offset == 1
    assert bench.broker.group(names[-1]).queue.index.end_offset == 0
    assert not peer.is_read()
    while not peer.is_read():
        bench.step()
    bench.step()
    methods = peer.methods()
    kinds = {type(method).__name__ for method in methods}
    assert "ChannelClose" not in kinds, "an acknowledgement was taken twice"
    last = [m.delivery_tag for m in methods if isinstance(m, spec.BasicAck)][-1]
    assert last == 2 * len(names)
    ends = [bench.broker.group(name).queue.index.end_offset for name in names[1:]]
    assert ends == [1] * (len(names) - 1)
    held = bench.broker.group("q0").cursor.outstanding_count
    assert held == 1, "only what was published just now is not acknowledged"


def test_an_acknowledgement_that_is_an_error_comes_in_its_place(bench: Bench) -> None:
    """Behind a cut: what was published before it counts, and what came after does not."""
    peer = bench.peer(1)
    names = [f"q{number}" for number in range(5 * RUNS)]
    peer.send(*(wire.method(1, spec.QueueDeclare(queue=name)) for name in names))
    peer.received()
    slow(peer)
    parts = [wire.publish(1, "", name, b"x") for name in names]
    parts.insert(3 * RUNS, wire.method(1, spec.BasicAck(delivery_tag=99)))
    parts.insert(4 * RUNS, wire.method(2, spec.BasicAck(delivery_tag=1)))
    peer.send(*parts)
    while not peer.is_read():
        bench.step()
    counts = [bench.broker.group(name).queue.index.end_offset for name in names]
    assert counts[: 3 * RUNS] == [1] * (3 * RUNS)
    assert counts[4 * RUNS :] == [0] * RUNS


def test_a_publish_to_very_many_queues_is_one_of_a_turn(bench: Bench) -> None:
    """As many are stored at once as go to some thousand queues together."""
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="all", type="fanout"))
    names = [f"q{number}" for number in range(TARGETS_AT_ONCE // 20)]
    peer.send(*(wire.method(1, spec.QueueDeclare(queue=name)) for name in names))
    peer.send(*(wire.method(1, spec.QueueBind(queue=name, exchange="all")) for name in names))
    peer.received()
    queue = bench.broker.group("q0").queue
    slow(peer)
    total = 20 * 4 * RUNS
    peer.send(wire.publish(1, "all", "", b"x") * total)
    assert 0 < queue.index.end_offset < total
    while not peer.is_read():
        bench.step()
    assert queue.index.end_offset == total


def test_a_few_messages_to_very_many_queues_are_stored_one_by_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take long enough together, few as they are."""
    monkeypatch.setattr(topic, "TARGETS_AT_ONCE", 10)
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="all", type="fanout"))
    names = [f"q{number}" for number in range(10)]
    peer.send(*(wire.method(1, spec.QueueDeclare(queue=name)) for name in names))
    peer.send(*(wire.method(1, spec.QueueBind(queue=name, exchange="all")) for name in names))
    peer.received()
    queue = bench.broker.group("q0").queue
    slow(peer)
    peer.send(wire.publish(1, "all", "", b"x") * 8)
    assert 0 < queue.index.end_offset <= TURN_EVENTS + 1
    while not peer.is_read():
        bench.step()
    assert queue.index.end_offset == 8


def test_messages_whose_properties_are_translated_are_delivered_in_shares(bench: Bench) -> None:
    """Those of AMQP and MQTT are not: a kernel encodes their deliveries."""
    peer = bench.peer(1)
    for queue, protocol in (("events", "http"), ("messages", "amqp")):
        peer.ask(spec.QueueDeclare(queue=queue))
        publish(bench.broker, queue, *[b"x"] * 1000, PMQ_PROTO=protocol)
    bench.step()
    peer.received()
    for queue, least, most in (
        ("messages", 1000, 1000),
        ("events", 1, HANDED_AT_ONCE // MESSAGE_COST),
    ):
        peer.ask(spec.BasicConsume(queue=queue, consumer_tag=queue, no_ack=True))
        delivered = [one for one in peer.methods() if isinstance(one, spec.BasicDeliver)]
        assert least <= len(delivered) <= most


def test_a_first_publish_waits_once_where_its_route_took_the_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served before it is stored, and it does not wait again if its route is made anew
    meanwhile. What was acknowledged before it is acknowledged once."""
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
    peer.send(wire.publish(1, "", "q", b"0"))
    bench.step()
    peer.received()
    held = bench.broker.group("q")
    now = [0.0]
    peer.client._turns.clock = lambda: now[0]
    publisher = peer.client.publisher
    find_route = publisher.rows_at_once

    def find_slowly(channel: Channel, batch: Batch, run: Run) -> int:
        now[0] += TURN_SECONDS
        return find_route(channel, batch, run)

    monkeypatch.setattr(publisher, "rows_at_once", find_slowly)
    for number in (1, 3):
        ack = wire.method(1, spec.BasicAck(delivery_tag=number))
        peer.send(ack, wire.publish(1, "", "q", b"1") + wire.publish(1, "", "q", b"2"))
        assert held.queue.index.end_offset == number, "it was stored in the turn of its route"
        assert not peer.is_read()
        bench.step()
        assert held.queue.index.end_offset == number + 2
        assert peer.is_read()
        bench.step()
    assert held.cursor.outstanding_count == 3
    assert not [method for method in peer.methods() if isinstance(method, spec.ChannelClose)]


def test_a_message_that_waits_for_its_turn_teaches_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path takes further messages like the one that was stored last, not like this one."""
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.send(wire.publish(1, "", "q", b"1"))
    monkeypatch.setattr(peer.client._turns, "is_over", lambda: True)
    peer.send(wire.publish(1, "", "nowhere", b"1"))
    bench.step()
    monkeypatch.undo()
    peer.send(wire.publish(1, "", "nowhere", b"2"))
    assert bench.broker.group("q").queue.index.end_offset == 1
