"""Delayed message exchanges over a real engine, on a clock that the test moves."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.delays import take_delay
from polymq.gateways.amqp.tables import decode_sized_table
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer


def declare(peer: Peer, kind: str = "direct", key: str = "k", **settings: Any) -> None:
    peer.ask(
        spec.ExchangeDeclare(
            exchange="later",
            type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": kind},
            **settings,
        )
    )
    peer.ask(spec.QueueDeclare(queue="q", durable=True))
    peer.ask(spec.QueueBind(queue="q", exchange="later", routing_key=key))


def delayed(body: str, delay: Any, key: str = "k", **settings: Any) -> bytes:
    headers = {"x-first": 1, "x-delay": delay, "x-last": "z"}
    return wire.publish(
        1, "later", key, body.encode(), properties=wire.properties(headers=headers), **settings
    )


def consumer(bench: Bench) -> Peer:
    peer = bench.peer(1)
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
    bench.step()
    return peer


def bodies(peer: Peer) -> list[str]:
    return [
        sent.body.decode() for sent in peer.received() if isinstance(sent.method, spec.BasicDeliver)
    ]


def test_messages_are_routed_when_they_are_due(bench: Bench) -> None:
    """Each after its own delay; none, zero, a negative number or something else means at once."""
    sender = bench.peer(1)
    declare(sender)
    receiver = consumer(bench)
    sender.send(
        delayed("2s", 2000),
        delayed("1s", 1000),
        delayed("1s too", 1000),
        delayed("text", "1500"),
        delayed("zero", 0),
        delayed("back", -1000),
        delayed("other", [7]),
        wire.publish(1, "later", "k", b"plain"),
    )
    bench.step()
    assert bodies(receiver) == ["zero", "back", "other", "plain"]
    bench.step(0.99)
    assert bodies(receiver) == []
    bench.step(0.05)
    assert bodies(receiver) == ["1s", "1s too"]
    bench.step(0.5)
    assert bodies(receiver) == ["text"]
    bench.step(0.5)
    assert bodies(receiver) == ["2s"]


@pytest.mark.parametrize(
    ("kind", "key", "got"),
    [("direct", "a.*", []), ("topic", "a.*", ["x"]), ("fanout", "", ["x"])],
)
def test_the_argument_says_how_it_routes(bench: Bench, kind: str, key: str, got: list[str]) -> None:
    """By the bindings that are there when the message is due."""
    sender = bench.peer(1)
    declare(sender, kind, "other.key")
    sender.send(delayed("x", 1000, key="a.b"))
    sender.ask(spec.QueueBind(queue="q", exchange="later", routing_key=key))
    receiver = consumer(bench)
    bench.step(1.1)
    assert bodies(receiver) == got


def test_a_delayed_message_tells_its_delay_negated(bench: Bench) -> None:
    """Other headers are as they were; publishing it again as it came does not delay it."""
    sender = bench.peer(1)
    declare(sender)
    receiver = consumer(bench)
    sender.send(delayed("x", 1000))
    bench.step(1.1)
    sent = receiver.received()[-1]
    headers, _ = decode_sized_table(sent.properties, 2, len(sent.properties))
    assert headers == {"x-first": 1, "x-delay": -1000, "x-last": "z"}
    sender.send(wire.publish(1, "later", "k", b"again", properties=sent.properties))
    bench.step()
    assert bodies(receiver) == ["again"]


def test_confirms_come_now_and_nothing_is_returned(bench: Bench) -> None:
    """A delayed message is safe when it is confirmed. Mandatory says nothing of it, because nobody
    knows where it will go; of one without a delay it does."""
    sender = bench.peer(1)
    declare(sender)
    sender.ask(spec.ConfirmSelect())
    bench.step()
    sender.received()
    sender.send(
        delayed("x", 1000, key="nowhere", mandatory=True),
        delayed("y", 0, key="nowhere", mandatory=True),
    )
    bench.step()
    names = [(sent.method.NAME, sent.body) for sent in sender.received()]
    assert names == [("basic.return", b"y"), ("basic.ack", b"")]


def test_a_transaction_delays_from_its_commit(bench: Bench) -> None:
    """Both kinds of message in one commit."""
    sender = bench.peer(1)
    declare(sender)
    receiver = consumer(bench)
    sender.ask(spec.TxSelect())
    sender.send(delayed("late", 1000), delayed("now", 0))
    bench.step(5)
    assert bodies(receiver) == []
    sender.ask(spec.TxCommit())
    bench.step()
    assert bodies(receiver) == ["now"]
    bench.step(1.1)
    assert bodies(receiver) == ["late"]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}])
def test_the_type_behind_it_has_to_be_named(bench: Bench, arguments: dict[str, Any]) -> None:
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="e", type="x-delayed-message", arguments=arguments))
    (close,) = peer.methods()
    assert isinstance(close, spec.ChannelClose)
    assert (close.reply_code, "x-delayed-type" in close.reply_text) == (406, True)


def test_a_delay_beyond_a_year_is_refused(bench: Bench) -> None:
    peer = bench.peer(1)
    declare(peer)
    bench.step()
    peer.received()
    peer.send(delayed("x", 400 * 86_400_000))
    (close,) = peer.methods()
    assert isinstance(close, spec.ChannelClose)
    assert (close.reply_code, "366 days" in close.reply_text) == (406, True)


def test_an_exchange_that_is_declared_anew_delays_no_longer(bench: Bench) -> None:
    """What the connection knows of the exchange goes with it."""
    sender = bench.peer(1)
    declare(sender)
    receiver = consumer(bench)
    sender.send(delayed("late", 1000))
    sender.ask(spec.ExchangeDelete(exchange="later"))
    sender.ask(spec.ExchangeDeclare(exchange="later", type="direct"))
    sender.ask(spec.QueueBind(queue="q", exchange="later", routing_key="k"))
    sender.send(delayed("now", 1000))
    bench.step()
    assert bodies(receiver) == ["now"]


@pytest.mark.parametrize(
    ("letter", "layout"), [("b", "b"), ("s", "h"), ("I", "i"), ("l", "q"), ("L", "q")]
)
def test_every_signed_integer_is_negated_in_its_width(letter: str, layout: str) -> None:
    """And a name that only looks like the header, or lies deeper, is left alone."""
    value = struct.pack(f">{layout}", 100)
    table = b"\x07x-delay" + letter.encode() + value
    properties = struct.pack(">H", 1 << 15 | 1 << 13) + b"\x03t/p" + struct.pack(">I", len(table))
    negated = properties + table[: -len(value)] + struct.pack(f">{layout}", -100)
    assert take_delay(properties + table) == (100, negated)
    inner = wire.properties(headers={"a": {"x-delay": 5}, "b": "\x07x-delayI"})
    assert take_delay(inner) == (0, inner)
