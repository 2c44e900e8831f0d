"""A long read is handled in turns: other connections are served in between, and what one client
asked for is answered in order."""

from __future__ import annotations

from itertools import count

from gateways.amqp import spec
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer

TURN_EVENTS = 3


def slow(peer: Peer) -> None:
    """From now on each look at the clock is a third of a turn later than the last."""
    ticks = count()
    seconds = peer.client.limits.turn_seconds / TURN_EVENTS
    peer.client._clock = lambda: next(ticks) * seconds


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
    """Its close comes in its place, behind the answers before it."""
    peer = bench.peer(1)
    slow(peer)
    missing = wire.method(1, spec.QueueDeclare(queue="none", passive=True))
    peer.send(declares(0, 4), missing, declares(4, 8))
    while not peer.is_read():
        bench.step()
    kinds = [type(method).__name__ for method in peer.methods()]
    assert kinds == ["QueueDeclareOk"] * 4 + ["ChannelClose"]
