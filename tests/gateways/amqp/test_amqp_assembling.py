"""Unfinished contents of all connections share a bound."""

from __future__ import annotations

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.protocol import Protocol as AmqpConnection
from polymq.gateways.amqp.protocol import Work
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import HANDSHAKE, Driver, channel_open

LIMITS = Limits(
    body_bytes_max=100_000, assembling_bytes_max=100_002, assembling_total_bytes_max=100_002
)
FLAGS = 2
"""Bytes of the properties of a message without any."""


class Client(Driver):
    """A connection that begins a content, and sends its body piece by piece."""

    def __init__(self, work: Work) -> None:
        super().__init__(LIMITS)
        self.core = AmqpConnection(work=work, limits=LIMITS)
        begun = wire.method(1, spec.BasicPublish(routing_key="q"))
        self.feed(HANDSHAKE + channel_open(1))
        self.feed(begun + wire.header(1, 100_000))

    def send(self, size: int) -> bool:
        """So many bytes of the body; whether they were taken."""
        self.feed(wire.body(1, bytes(size)))
        return "error 506" not in self.lines


def test_who_has_more_than_its_share_is_refused() -> None:
    """Others with little go on, and what was given up is there for them."""
    work = Work()
    large, small = Client(work), Client(work)
    assert large.send(70_000)
    assert small.send(29_000)
    assert small.send(10_000)
    assert work.assembling.bytes == 109_000 + 2 * FLAGS
    assert not large.send(1)
    assert b"try again later" in large.sent
    assert work.assembling.bytes == 39_000 + FLAGS
    assert work.assembling.holder_count == 1
    assert small.send(30_000)
    small.core.lost()
    assert work.assembling.bytes == 0
    assert work.assembling.holder_count == 0


def test_properties_take_room() -> None:
    """A client that announces bodies on many channels and sends none would hold 128 KiB on each."""
    client = Driver(LIMITS)
    client.feed(HANDSHAKE + channel_open(1) + channel_open(2))
    properties = wire.properties(headers={"h": "x" * 60_000})
    for number in (1, 2):
        assert "error 506" not in client.lines
        begun = wire.method(number, spec.BasicPublish(routing_key="q"))
        client.feed(begun + wire.header(number, 1, properties))
    assert "error 506" in client.lines


def test_a_finished_content_takes_no_room() -> None:
    work = Work()
    client = Client(work)
    for _ in range(2):
        assert client.send(50_000)
    assert work.assembling.bytes == 0
