"""Large bodies leave in pieces, as the socket takes them; nothing comes between their frames."""

from __future__ import annotations

import pytest

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.large_deliveries import LargeBody
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer
from tests.gateways.amqp.test_amqp_consume import consumer, declare, publish

LARGE = "x" * 1000
PIECE = 300


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what counts as large fits into a test."""
    monkeypatch.setattr("polymq.gateways.amqp.large_deliveries.LARGE_BYTES", 800)
    monkeypatch.setattr("polymq.gateways.amqp.consumer.LARGE_BYTES", 800)
    monkeypatch.setattr("polymq.gateways.amqp.client.OUTBOX_BYTES", PIECE)


def bodies(peer: Peer) -> list[str]:
    return [sent.body.decode() for sent in peer.received() if sent.body]


def test_a_body_is_cut_into_frames_and_is_whole_again() -> None:
    memory = bytes(range(256)) * 10
    body = LargeBody(memory, 5, 2000, channel=3, frame_max=108)
    taken = []
    while body:
        taken.append(body.take(PIECE))
    assert len(taken) == 7
    frames = list(wire.frames(b"".join(taken)))
    assert {(frame.kind, frame.channel) for frame in frames} == {(3, 3)}
    assert max(len(frame.payload) for frame in frames) == 100
    assert b"".join(frame.payload for frame in frames) == memory[5:2005]


@pytest.mark.parametrize("redelivered", [False, True])
def test_large_and_small_bodies_come_in_their_order(bench: Bench, redelivered: bool) -> None:
    """Live and from the queue, with tags that count on."""
    peer = bench.peer(1)
    declare(peer)
    if redelivered:
        publish(bench, "a", LARGE, "b", LARGE, "c")
    reader = consumer(bench)
    if not redelivered:
        publish(bench, "a", LARGE, "b", LARGE, "c")
    bench.step()
    assert [
        (one.method.delivery_tag, one.body.decode())
        for one in reader.received()
        if isinstance(one.method, spec.BasicDeliver)
    ] == list(enumerate(["a", LARGE, "b", LARGE, "c"], 1))


def test_an_answer_never_comes_between_the_frames_of_a_body(bench: Bench) -> None:
    peer = bench.peer(1)
    declare(peer)
    reader = consumer(bench)
    reader.received()
    transport, written = reader.transport, reader.transport.write
    pieces = 0

    def write(data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        transport.full = pieces >= 2  # the beginning, and one piece of the body
        written(data)

    reader.client._transport.write = write  # type: ignore[method-assign]
    reader.client.write_delivery = write
    publish(bench, LARGE)
    begun = bytes(transport.data)
    assert PIECE < len(begun) < len(LARGE)
    reader.ask(spec.BasicQos(prefetch_count=5))
    publish(bench, "behind")
    assert bytes(transport.data) == begun
    while transport.full:
        transport.full = False
        pieces = 0
        reader.client.drained()
    bench.step()
    sent = reader.received()
    assert [type(one.method) for one in sent] == [
        spec.BasicDeliver,
        spec.BasicQosOk,
        spec.BasicDeliver,
    ]
    assert [one.body.decode() for one in sent] == [LARGE, "", "behind"]


def test_a_large_answer_to_get(bench: Bench) -> None:
    peer = bench.peer(1)
    declare(peer)
    publish(bench, LARGE, "small")
    peer.received()
    for body in (LARGE, "small"):
        peer.ask(spec.BasicGet(queue="q"))
        (sent,) = peer.received()
        assert isinstance(sent.method, spec.BasicGetOk)
        assert sent.body.decode() == body
