"""CC and BCC: messages that go to what other routing keys lead to, as well."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.broker.messages.copies import KEYS_STORED_MAX
from polymq.gateways.amqp import rewriting, spec
from polymq.gateways.amqp.headers import AmqpHeaders
from polymq.gateways.amqp.kernels import codes, frames
from polymq.gateways.amqp.tables import decode_table
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer
from tests.harness.forms import forms_of


def declare(bench: Bench, *queues: str) -> Peer:
    peer = bench.peer(1)
    for queue in queues:
        peer.ask(spec.QueueDeclare(queue=queue, durable=True))
    bench.step()
    peer.received()
    return peer


def publish(
    peer: Peer,
    exchange: str,
    key: str,
    *,
    body: bytes = b"m",
    mandatory: bool = False,
    **copies: Any,
) -> None:
    properties = wire.properties(headers=copies)
    peer.send(wire.publish(1, exchange, key, body, properties=properties, mandatory=mandatory))


def get(bench: Bench, peer: Peer, queue: str) -> list[wire.Sent]:
    """All messages of a queue."""
    bench.step()
    bench.step()
    got: list[wire.Sent] = []
    while True:
        peer.ask(spec.BasicGet(queue=queue, no_ack=True))
        bench.step()
        bench.step()
        (sent,) = peer.received()
        if isinstance(sent.method, spec.BasicGetEmpty):
            return got
        got.append(sent)


def test_the_default_exchange(bench: Bench) -> None:
    peer = declare(bench, "a", "b", "c", "d")
    publish(peer, "", "a", CC=["b", "a"], BCC=["c", "b"])
    for queue in "abc":
        (sent,) = get(bench, peer, queue)
        assert isinstance(sent.method, spec.BasicGetOk)
        assert (sent.method.exchange, sent.method.routing_key) == ("", "a")
        start = 2 + 4
        assert decode_table(sent.properties, start, len(sent.properties)) == {"CC": ["b", "a"]}
    assert get(bench, peer, "d") == []


def dead_letters(bench: Bench, key: str | None, **copies: list[str]) -> dict[str, list[wire.Sent]]:
    """What a message with these copies is as a dead letter, by queue."""
    peer = declare(bench, "own", "cc", "bcc", "new")
    peer.ask(spec.ExchangeDeclare(exchange="x", type="direct", durable=True))
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "x"}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    peer.ask(spec.QueueDeclare(queue="dying", durable=True, arguments=arguments))
    for queue, bound in (("own", "dying"), ("cc", "k1"), ("bcc", "k2"), ("new", "k3")):
        peer.ask(spec.QueueBind(queue=queue, exchange="x", routing_key=bound))
    bench.step()
    publish(peer, "", "dying", body=b"m", mandatory=False, **copies)
    bench.step()
    peer.received()
    peer.ask(spec.BasicGet(queue="dying"))
    bench.step()
    bench.step()
    (sent,) = peer.received()
    assert isinstance(sent.method, spec.BasicGetOk)
    peer.ask(spec.BasicReject(delivery_tag=sent.method.delivery_tag, requeue=False))
    bench.step()
    peer.received()
    return {queue: get(bench, peer, queue) for queue in ("own", "cc", "bcc", "new")}


def headers(sent: wire.Sent) -> dict[str, Any]:
    return dict(decode_table(sent.properties, 2 + 4, len(sent.properties)))


def test_a_dead_letter_goes_by_the_keys_of_its_copies(bench: Bench) -> None:
    """`x-death` names those that receivers may see. RabbitMQ 3.10 does the same."""
    found = dead_letters(bench, None, CC=["k1"], BCC=["k2"])
    assert {queue: len(sent) for queue, sent in found.items()} == {
        "own": 1,
        "cc": 1,
        "bcc": 1,
        "new": 0,
    }
    for sent in (*found["own"], *found["cc"], *found["bcc"]):
        assert headers(sent)["CC"] == ["k1"]
        assert headers(sent)["x-death"][0]["routing-keys"] == ["dying", "k1"]


def test_a_key_for_dead_letters_replaces_copies_too(bench: Bench) -> None:
    """The dead letter has lost `CC`; `x-death` still says by which keys it came."""
    found = dead_letters(bench, "k3", CC=["k1"], BCC=["k2"])
    assert {queue: len(sent) for queue, sent in found.items()} == {
        "own": 0,
        "cc": 0,
        "bcc": 0,
        "new": 1,
    }
    (sent,) = found["new"]
    assert "CC" not in headers(sent)
    assert headers(sent)["x-death"][0]["routing-keys"] == ["dying", "k1"]


def test_very_many_copies_are_not_kept_for_dead_letters(bench: Bench) -> None:
    keys = [f"no{number}" for number in range(KEYS_STORED_MAX)]
    found = dead_letters(bench, None, CC=["k1", *keys])
    assert {queue: len(sent) for queue, sent in found.items()} == {
        "own": 1,
        "cc": 0,
        "bcc": 0,
        "new": 0,
    }
    assert headers(found["own"][0])["x-death"][0]["routing-keys"] == ["dying"]


def test_other_exchanges_and_a_queue_once(bench: Bench) -> None:
    peer = declare(bench, "a", "b")
    peer.ask(spec.ExchangeDeclare(exchange="x", type="direct", durable=True))
    for key in ("one", "two"):
        peer.ask(spec.QueueBind(queue="a", exchange="x", routing_key=key))
    peer.ask(spec.QueueBind(queue="b", exchange="x", routing_key="three"))
    bench.step()
    peer.received()
    publish(peer, "x", "none", CC=["one", "two"], BCC=["three"])
    assert len(get(bench, peer, "a")) == 1
    (sent,) = get(bench, peer, "b")
    assert sent.delivery.routing_key == "none"


def test_a_headers_exchange_goes_on_looking_at_headers(bench: Bench) -> None:
    bench.broker.engine.topics.header_reader = AmqpHeaders()
    peer = declare(bench, "a", "b")
    peer.ask(spec.QueueBind(queue="a", exchange="amq.headers", arguments={"t": "a"}))
    peer.ask(spec.QueueBind(queue="b", exchange="amq.headers", arguments={"t": "b"}))
    bench.step()
    peer.received()
    publish(peer, "amq.headers", "k", CC=["other"], t="b")
    assert (len(get(bench, peer, "a")), len(get(bench, peer, "b"))) == (0, 1)


def test_a_copy_alone_is_a_route(bench: Bench) -> None:
    """A mandatory message is not returned if only its copy arrives; if nothing does, it is."""
    peer = declare(bench, "b")
    publish(peer, "", "nowhere", CC=["b"], mandatory=True)
    bench.step()
    assert peer.received() == []
    (sent,) = get(bench, peer, "b")
    assert sent.delivery.routing_key == "nowhere"
    publish(peer, "", "nowhere2", BCC=["nowhere3"], mandatory=True)
    bench.step()
    (returned,) = peer.received()
    assert isinstance(returned.method, spec.BasicReturn)


def test_bulk_keeps_its_order(bench: Bench) -> None:
    peer = declare(bench, "a", "b")
    parts = []
    for number in range(6):
        headers = {"CC": ["b"]} if number % 2 else {}
        raw = wire.properties(headers=headers)
        parts.append(wire.publish(1, "", "a", b"%d" % number, properties=raw))
    peer.send(*parts)
    assert [sent.body for sent in get(bench, peer, "a")] == [b"%d" % n for n in range(6)]
    assert [sent.body for sent in get(bench, peer, "b")] == [b"1", b"3", b"5"]


def test_transactions_copy_at_the_commit(bench: Bench) -> None:
    peer = declare(bench, "a", "b")
    other = bench.peer(1)
    peer.ask(spec.TxSelect())
    publish(peer, "", "a", CC=["b"])
    assert get(bench, other, "b") == []
    peer.ask(spec.TxCommit())
    bench.step()
    assert len(get(bench, other, "b")) == 1


@pytest.mark.parametrize("value", ["b", 1, [1], {"b": 1}, None])
def test_anything_but_an_array_of_text_is_refused(bench: Bench, value: Any) -> None:
    peer = declare(bench, "a")
    publish(peer, "", "a", BCC=value)
    (closed,) = peer.methods()
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406
    assert "'BCC'" in closed.reply_text


def test_too_many_keys_are_refused(bench: Bench) -> None:
    peer = declare(bench, "a")
    publish(peer, "", "a", CC=[f"k{n}" for n in range(rewriting.COPIES_MAX + 1)])
    (closed,) = peer.methods()
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406


def test_a_delayed_message_may_not_have_copies(bench: Bench) -> None:
    peer = declare(bench, "a")
    arguments = {"x-delayed-type": "direct"}
    peer.ask(spec.ExchangeDeclare(exchange="later", type="x-delayed-message", arguments=arguments))
    peer.received()
    publish(peer, "later", "a", CC=["b"])
    delayed: dict[str, Any] = {"CC": ["b"], "x-delay": 5}
    publish(peer, "later", "a", **delayed)
    (closed,) = peer.methods()
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406


@pytest.mark.parametrize("scan", [form.scan_properties for form in forms_of(frames.__name__)])
def test_the_kernels_notice_the_headers_and_nothing_else(scan: Any) -> None:
    for headers, checked in (
        ({"CC": ["a"]}, True),
        ({"x": 1, "BCC": 2}, True),
        ({"C": 1, "CCC": 1, "BC": 1, "BBCC": 1, "cc": 1}, False),
        ({"x": {"CC": 1}, "y": ["CC"]}, False),
        ({"CC": None}, True),
    ):
        raw = wire.properties(headers=headers)
        assert bool(scan(raw, 0, len(raw)) & codes.CHECKED) is checked, headers


def test_copies_beside_a_headers_exchange_that_is_bound_further(bench: Bench) -> None:
    """A route that looks at headers keeps its copies: here by an exchange that is bound to one."""
    bench.broker.engine.topics.header_reader = AmqpHeaders()
    peer = declare(bench, "a", "b")
    peer.ask(spec.ExchangeDeclare(exchange="x", type="direct", durable=True))
    peer.ask(spec.ExchangeDeclare(exchange="h", type="headers", durable=True))
    peer.ask(spec.ExchangeBind(source="x", destination="h", routing_key="k"))
    peer.ask(spec.QueueBind(queue="a", exchange="h", arguments={"t": "a"}))
    peer.ask(spec.QueueBind(queue="b", exchange="x", routing_key="other"))
    bench.step()
    peer.received()
    publish(peer, "x", "k", CC=["other"], t="a")
    assert (len(get(bench, peer, "a")), len(get(bench, peer, "b"))) == (1, 1)
