"""Headers exchanges through the wire: what is returned, confirmed and read of the headers."""

from __future__ import annotations

from typing import Any

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.headers import AmqpHeaders
from polymq.gateways.amqp.mapping import HEADERS, translate_properties
from polymq.gateways.amqp.tables import Timestamp, encode_sized_table
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer


def with_headers(**headers: Any) -> bytes:
    """Property flags, a content type, and headers."""
    flags = HEADERS | 1 << 15
    return flags.to_bytes(2, "big") + b"\x01t" + encode_sized_table(headers)


def bodies(bench: Bench, peer: Peer, queue: str) -> list[bytes]:
    """Everything that is ready in a queue."""
    got: list[bytes] = []
    while True:
        peer.ask(spec.BasicGet(queue=queue, no_ack=True))
        bench.step()
        (answer,) = peer.received()
        if isinstance(answer.method, spec.BasicGetEmpty):
            return got
        got.append(answer.body)


def prepared(bench: Bench) -> Peer:
    bench.broker.engine.topics.header_reader = AmqpHeaders()
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(
        spec.QueueBind(
            queue="q",
            exchange="amq.match",
            arguments={"x-match": "any", "c": 1, "at": Timestamp(5)},
        )
    )
    peer.methods()
    return peer


def test_each_message_of_one_read_is_routed_by_its_own_headers(bench: Bench) -> None:
    """Other properties do not matter; integers match in every width."""
    peer = prepared(bench)
    wide = with_headers(c=1).replace(b"I\0\0\0\1", b"l\0\0\0\0\0\0\0\1")
    size = len(wide) - 8
    wide = wide[:4] + size.to_bytes(4, "big") + wide[8:]
    peer.send(
        wire.publish(1, "amq.match", "", b"1", properties=with_headers(c=1)),
        wire.publish(1, "amq.match", "", b"2", properties=with_headers(c=2)),
        wire.publish(1, "amq.match", "", b"3"),
        wire.publish(1, "amq.match", "", b"4", properties=with_headers(at=Timestamp(5), c=9)),
        wire.publish(1, "amq.match", "", b"5", properties=with_headers(c="1")),
        wire.publish(1, "amq.match", "", b"6", properties=wide),
    )
    bench.step()
    assert bodies(bench, peer, "q") == [b"1", b"4", b"6"]


def test_mandatory_returns_those_that_match_nothing(bench: Bench) -> None:
    """The return leaves before the confirm of the same message; a transaction returns, too."""
    peer = prepared(bench)
    peer.ask(spec.ConfirmSelect())
    peer.methods()
    publishes = [
        wire.publish(1, "amq.match", "", body, properties=with_headers(c=number), mandatory=True)
        for number, body in ((1, b"1"), (2, b"2"), (2, b"3"), (1, b"4"))
    ]
    peer.send(*publishes)
    bench.step()
    came = peer.received()
    returned = [sent.body for sent in came if isinstance(sent.method, spec.BasicReturn)]
    assert returned == [b"2", b"3"]
    tags = [sent.method.delivery_tag for sent in came if isinstance(sent.method, spec.BasicAck)]
    assert max(tags) == 4
    assert bodies(bench, peer, "q") == [b"1", b"4"]

    peer = bench.peer(1)
    peer.ask(spec.TxSelect())
    peer.send(*publishes)
    peer.ask(spec.TxCommit())
    bench.step()
    came = peer.received()
    assert [sent.body for sent in came if isinstance(sent.method, spec.BasicReturn)] == [b"2", b"3"]
    assert isinstance(came[-1].method, spec.TxCommitOk)
    assert bodies(bench, peer, "q") == [b"1", b"4"]


def test_headers_of_other_protocols_are_those_that_a_consumer_sees() -> None:
    """A CloudEvent's attributes, a RocketMQ client's user properties; nothing of the broker's."""
    reader = AmqpHeaders()
    properties = {"CE_source": "/s", "colour": "red", "PMQ_PROTO": "http", "KEYS": "id"}
    assert reader.of_properties(properties) == {"ce-source": "/s", "colour": "red"}
    assert reader.of_properties({}) == {}
    assert reader.table(translate_properties({})) == b""
    assert reader.decode(b"\x01aZ") == {}
