"""Direct reply-to: requests and answers without a queue."""

from __future__ import annotations

import pytest

from polymq.gateways.amqp import reply_names, spec
from polymq.gateways.amqp.kernels import codes, frames
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, answer
from tests.harness.forms import forms_of

NAME = reply_names.NAME
REQUEST = wire.properties(reply_to=NAME, correlation_id="7")


def consume(peer: Peer, tag: str = "answers", *, no_ack: bool = True) -> None:
    peer.ask(spec.BasicConsume(queue=NAME, consumer_tag=tag, no_ack=no_ack))


def ask(bench: Bench) -> tuple[Peer, Peer, str]:
    """A client that has asked, one that has the request, and the name to answer to."""
    requester, responder = bench.peer(1), bench.peer(1)
    responder.ask(spec.QueueDeclare(queue="requests"))
    consume(requester)
    assert isinstance(answer(requester, spec.BasicConsumeOk), spec.BasicConsumeOk)
    requester.send(wire.publish(1, "", "requests", b"question", properties=REQUEST))
    bench.step()
    bench.step()
    responder.ask(spec.BasicGet(queue="requests", no_ack=True))
    bench.step()
    request = responder.received()[-1]
    assert request.body == b"question"
    token = f"{NAME}.token0"
    assert request.properties == wire.properties(reply_to=token, correlation_id="7")
    return requester, responder, token


def reply(peer: Peer, name: str, body: bytes = b"answer", *, mandatory: bool = False) -> None:
    properties = wire.properties(correlation_id="7")
    peer.send(wire.publish(1, "", name, body, properties=properties, mandatory=mandatory))


def test_an_answer_goes_to_who_asked(bench: Bench) -> None:
    requester, responder, token = ask(bench)
    reply(responder, token)
    (got,) = requester.received()
    assert got.method == spec.BasicDeliver(
        consumer_tag="answers",
        delivery_tag=1,
        redelivered=False,
        exchange="",
        routing_key=token,
    )
    assert (got.properties, got.body) == (wire.properties(correlation_id="7"), b"answer")


def test_an_answer_leaves_nothing_behind(bench: Bench) -> None:
    _, responder, token = ask(bench)
    engine = bench.broker.engine
    bench.step()
    before, topics = engine.core.log.appended, set(engine.topics.topics)
    reply(responder, token)
    bench.step()
    assert engine.core.log.appended == before
    assert set(engine.topics.topics) == topics


def test_an_answer_is_no_topic_either_where_somebody_subscribes_to_everything(bench: Bench) -> None:
    _, responder, token = ask(bench)
    other = bench.peer(1)
    other.ask(spec.QueueDeclare(queue="all"))
    other.ask(spec.QueueBind(queue="all", exchange="amq.topic", routing_key="#"))
    bench.step()
    reply(responder, token)
    bench.step()
    assert token not in bench.broker.engine.topics.topics


def test_an_answer_is_confirmed(bench: Bench) -> None:
    requester, responder, token = ask(bench)
    responder.ask(spec.ConfirmSelect())
    reply(responder, token)
    assert responder.methods() == [
        spec.ConfirmSelectOk(),
        spec.BasicAck(delivery_tag=1, multiple=False),
    ]
    assert requester.received()[0].body == b"answer"


def test_a_mandatory_answer_is_returned_when_nobody_waits_for_it(bench: Bench) -> None:
    requester, responder, token = ask(bench)
    reply(responder, token, mandatory=True)
    assert responder.methods() == []
    requester.ask(spec.BasicCancel(consumer_tag="answers"))
    requester.received()
    reply(responder, token, b"late", mandatory=True)
    (returned,) = responder.received()
    assert isinstance(returned.method, spec.BasicReturn)
    assert (returned.method.reply_code, returned.method.routing_key) == (312, token)
    assert returned.body == b"late"
    reply(responder, token, b"later")
    assert responder.methods() == []
    assert requester.received() == []


def test_the_name_goes_with_the_channel_and_with_the_connection(bench: Bench) -> None:
    requester, responder, _ = ask(bench)
    assert bench.replies.count == 1
    requester.ask(spec.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert bench.replies.count == 0
    consume(responder)
    assert bench.replies.count == 1
    responder.client.lost()
    assert bench.replies.count == 0


def test_answers_in_a_transaction_wait_for_the_commit(bench: Bench) -> None:
    requester, responder, token = ask(bench)
    responder.ask(spec.TxSelect())
    reply(responder, token)
    assert requester.received() == []
    responder.ask(spec.TxCommit())
    assert requester.received()[0].body == b"answer"


@pytest.mark.parametrize("consumers", [0, 1])
def test_what_is_wrong_closes_the_channel(bench: Bench, consumers: int) -> None:
    """A request without a consumer of answers; a second one; one that would acknowledge."""
    peer = bench.peer(1, 2)
    if consumers:
        consume(peer)
        consume(peer, "again")
    else:
        bench.broker.engine.topics.topic("x")
        peer.send(wire.publish(1, "x", "", b"", properties=REQUEST))
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406
    peer.ask(spec.BasicConsume(queue=NAME, no_ack=False), channel=2)
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406
    assert "no_ack" in closed.reply_text
    assert bench.replies.count == 0


@pytest.mark.parametrize("passive", [True, False])
def test_a_declaration_finds_it(bench: Bench, passive: bool) -> None:
    requester, responder, token = ask(bench)
    for name in (NAME, token):
        responder.ask(spec.QueueDeclare(queue=name, passive=passive))
        assert answer(responder, spec.QueueDeclareOk) == spec.QueueDeclareOk(
            queue=name, message_count=0, consumer_count=1
        )
    requester.ask(spec.BasicCancel(consumer_tag="answers"))
    responder.ask(spec.QueueDeclare(queue=token, passive=passive))
    closed = answer(responder, spec.ChannelClose)
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 404


def test_who_does_not_read_keeps_a_bounded_number_of_answers(bench: Bench) -> None:
    bound = bench.limits.replies_bytes_max
    requester, responder, token = ask(bench)
    requester.transport.full = True
    body = bytes(bound // 16)
    for _ in range(18):
        reply(responder, token, body, mandatory=True)
    returned = [sent for sent in responder.received() if isinstance(sent.method, spec.BasicReturn)]
    assert len(returned) == 3
    assert requester.received() == []
    requester.transport.full = False
    requester.client.drained()
    got = requester.received()
    assert [sent.delivery.delivery_tag for sent in got] == [*range(1, 16)]
    reply(responder, token)
    assert requester.received()[0].body == b"answer"


@pytest.mark.parametrize("scan", [form.scan_properties for form in forms_of(frames.__name__)])
def test_the_kernels_notice_the_name_and_nothing_else(scan: object) -> None:
    assert callable(scan)
    for reply_to, checked in ((NAME, True), (NAME[:-1] + "x", False), (NAME + ".x", False)):
        for raw in (
            wire.properties(reply_to=reply_to),
            wire.properties(
                reply_to=reply_to, headers={"a": 1}, delivery_mode=2, content_type="a/b"
            ),
        ):
            assert bool(scan(raw, 0, len(raw)) & codes.CHECKED) is checked
    raw = wire.properties(correlation_id=NAME)
    assert not scan(raw, 0, len(raw)) & codes.CHECKED
    cut = wire.properties(reply_to=NAME)[:-1]
    assert scan(cut, 0, len(cut)) == -1
