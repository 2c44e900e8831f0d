"""What one method asks for may take thousands of steps: others have their turn in between, and its
answer comes when all is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymq.broker.queues.queue import Group
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.channel import STEP_COUNT
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer
from tests.gateways.amqp.test_amqp_turns import slow

RUNS = 8 * STEP_COUNT
QUEUES = 40


def exclusive(peer: Peer) -> None:
    for number in range(QUEUES):
        peer.ask(spec.QueueDeclare(queue=f"q{number}", exclusive=True))
    peer.received()


def left(bench: Bench) -> int:
    return len(bench.broker.engine.exchanges.queues)


def kinds(peer: Peer) -> list[str]:
    return [type(method).__name__ for method in peer.methods()]


def holding(bench: Bench, **arguments: object) -> Peer:
    """A client that was handed twice as many messages of `q` as `RUNS`, and has acknowledged each
    second one: what it holds are as many stretches as there are messages."""
    peer = bench.peer(1, 2)
    peer.ask(spec.QueueDeclare(queue="q", arguments=arguments))
    peer.send(wire.publish(2, "", "q", b"x") * 2 * RUNS)
    peer.ask(spec.BasicConsume(queue="q"))
    bench.step()
    peer.send(*(wire.method(1, spec.BasicAck(delivery_tag=2 * n)) for n in range(1, RUNS + 1)))
    bench.step()
    peer.received()
    assert outstanding(bench) == RUNS
    return peer


def outstanding(bench: Bench) -> int:
    group = bench.broker.engine.exchanges.queues["q"].group
    assert isinstance(group, Group)
    return group.cursor.outstanding_count


def lose(peer: Peer) -> None:
    peer.client.lost()


def close(peer: Peer) -> None:
    peer.ask(spec.ConnectionClose(), 0)


@pytest.mark.parametrize("end", [close, lose])
@pytest.mark.slow
def test_exclusive_queues_of_a_connection_go_in_steps(
    bench: Bench, end: Callable[[Peer], None]
) -> None:
    """Close-ok leaves behind the last one."""
    peer = bench.peer(1)
    exclusive(peer)
    slow(peer)
    end(peer)
    assert QUEUES // 2 < left(bench) < QUEUES
    assert kinds(peer) == []
    other = bench.peer(1)
    other.ask(spec.QueueDeclare(queue=f"q{QUEUES - 1}", passive=True))
    assert kinds(other) == ["ChannelClose"], "it is locked, or gone"
    bench.step()
    assert left(bench) == 0
    assert kinds(peer) == (["ConnectionCloseOk"] if end is close else [])


def test_a_connection_that_is_lost_while_it_closes_is_closed_all_the_same(bench: Bench) -> None:
    peer = bench.peer(1)
    exclusive(peer)
    slow(peer)
    close(peer)
    assert left(bench) > 0
    lose(peer)
    assert left(bench) > 0
    bench.step()
    assert left(bench) == 0


@pytest.mark.parametrize(
    ("method", "answered"),
    [
        (spec.BasicNack(delivery_tag=0, multiple=True, requeue=True), []),
        (spec.BasicRecover(requeue=True), ["BasicRecoverOk"]),
        (spec.ChannelClose(), ["ChannelCloseOk"]),
    ],
)
def test_what_is_given_back_in_many_stretches_is_given_back_in_steps(
    bench: Bench, method: spec.Method, answered: list[str]
) -> None:
    """What the client asks behind it is not done before."""
    peer = holding(bench)
    peer.transport.full = True  # else the consumer gets them again at once
    slow(peer)
    peer.send(wire.method(1, method), wire.method(2, spec.QueueDeclare(queue="q", passive=True)))
    assert 0 < outstanding(bench) <= RUNS - STEP_COUNT
    assert kinds(peer) == []
    assert not peer.is_read()
    bench.step()
    assert outstanding(bench) == 0
    assert kinds(peer) == [*answered, "QueueDeclareOk"]
    assert peer.is_read()


def test_a_connection_that_is_lost_carries_out_what_it_had_asked_for(bench: Bench) -> None:
    """An acknowledgement that came counts."""
    peer = holding(bench)
    slow(peer)
    peer.ask(spec.BasicAck(delivery_tag=0, multiple=True))
    assert 0 < outstanding(bench) < RUNS
    lose(peer)
    bench.step()
    found = bench.broker.engine.exchanges.queues["q"]
    assert outstanding(bench) == 0
    assert found.group.ready_count == 0


def test_settlements_keep_their_order(bench: Bench) -> None:
    """A short one behind a long one in the same read: dead letters come in the order of both."""
    dead = bench.peer(1)
    dead.ask(spec.QueueDeclare(queue="dead"))
    peer = holding(bench, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    slow(peer)
    peer.send(
        wire.method(1, spec.BasicNack(delivery_tag=2 * RUNS - 3, multiple=True)),
        wire.method(1, spec.BasicNack(delivery_tag=2 * RUNS - 1)),
    )
    queues = bench.broker.engine.exchanges.queues
    assert queues["dead"].queue.index.end_offset < RUNS - 1
    bench.step()
    bench.step()
    assert queues["dead"].queue.index.end_offset == RUNS
    deaths = bench.broker.engine.named_queues.dead_letters.counts
    assert deaths.moved["rejected"] == RUNS
    assert outstanding(bench) == 0


def test_many_consumers_are_served_in_steps(bench: Bench) -> None:
    peer = bench.peer(1)
    count = 3 * STEP_COUNT
    for number in range(count):
        peer.ask(spec.QueueDeclare(queue=f"q{number}"))
        peer.ask(spec.BasicConsume(queue=f"q{number}", consumer_tag=f"c{number}"))
    other = bench.peer(1)
    peer.transport.full = True
    other.send(*(wire.publish(1, "", f"q{number}", b"x") for number in range(count)))
    bench.step()
    peer.received()
    slow(peer)
    peer.transport.full = False
    peer.client.drained()
    assert 0 < len(kinds(peer)) < count
    bench.step()
    assert peer.client.channels[1].unacked_count == count
