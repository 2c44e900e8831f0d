"""The end of connections, channels and consumers: what is still read, and in which order is
answered."""

from __future__ import annotations

import pytest

from polymq.gateways.amqp import spec
from polymq.net.flow import DISK
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, answer

FLOOD = wire.publish(1, "", "q", bytes(100_000))


def close_politely(peer: Peer) -> None:
    peer.ask(spec.ConnectionClose(), 0)
    answer(peer, spec.ConnectionCloseOk)


def close_by_an_error(peer: Peer) -> None:
    peer.ask(spec.BasicQos(prefetch_size=1))
    answer(peer, spec.ConnectionClose)
    assert peer.transport.abort_seconds == peer.client.limits.close_seconds
    peer.send(FLOOD)
    peer.ask(spec.ConnectionCloseOk(), 0)


@pytest.mark.parametrize("close", [close_politely, close_by_an_error])
def test_what_a_client_sends_after_the_close_is_read_and_dropped(
    bench: Bench, close: object
) -> None:
    """Else its writes fail, and the close-ok that is on its way is lost."""
    assert callable(close)
    peer = bench.peer(1)
    peer.client.flow.begin(DISK)
    peer.client.check_pressure()
    reading = [peer.transport.reading]
    close(peer)
    bench.step()
    before = bench.broker.engine.core.log.appended
    for _ in range(20):
        peer.send(FLOOD)
    assert not peer.transport.closed
    assert [*reading, peer.transport.reading] == [False, True]
    assert peer.transport.abort_seconds == bench.limits.linger_seconds
    assert peer.methods() == []
    assert bench.broker.engine.core.log.appended == before
    for _ in range(bench.limits.linger_bytes_max // len(FLOOD)):
        peer.send(FLOOD)
    assert peer.transport.closed


def test_a_server_that_stops_waits_for_nobody_whose_connection_is_closed(bench: Bench) -> None:
    peer, other = bench.peer(1), bench.peer(1)
    close_politely(peer)
    peer.client.stop()
    assert peer.transport.closed
    other.client.stop()
    answer(other, spec.ConnectionClose)
    other.ask(spec.ConnectionCloseOk(), 0)
    assert other.transport.closed


def test_two_closes_of_a_channel_get_two_answers(bench: Bench) -> None:
    peer = bench.peer(1)
    close = wire.method(1, spec.ChannelClose(reply_code=200))
    peer.send(close, close)
    assert peer.methods() == [spec.ChannelCloseOk(), spec.ChannelCloseOk()]
    peer.send(close)
    answer(peer, spec.ChannelCloseOk)
    peer.ask(spec.ChannelOpen())
    answer(peer, spec.ChannelOpenOk)
    peer.send(wire.method(7, spec.ChannelClose(reply_code=200)))  # never opened
    closed = answer(peer, spec.ConnectionClose)
    assert isinstance(closed, spec.ConnectionClose)
    assert closed.reply_code == 504


def test_delete_ok_comes_before_the_consumers_notices(bench: Bench) -> None:
    peer = bench.peer(1, 2)
    peer.ask(spec.QueueDeclare(queue="q", durable=True))
    for number in (1, 2):
        peer.ask(spec.BasicConsume(queue="q", consumer_tag=f"c{number}"), channel=number)
    bench.step()
    peer.received()
    peer.ask(spec.QueueDelete(queue="q"))
    bench.step()
    assert peer.methods() == [
        spec.QueueDeleteOk(message_count=0),
        spec.BasicCancel(consumer_tag="c1", nowait=True),
        spec.BasicCancel(consumer_tag="c2", nowait=True),
    ]


def test_no_notice_for_a_tag_that_is_in_use_again(bench: Bench) -> None:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(spec.QueueDeclare(queue="other"))
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
    peer.received()
    peer.send(
        wire.method(1, spec.QueueDelete(queue="q")),
        wire.method(1, spec.BasicConsume(queue="other", consumer_tag="c")),
    )
    bench.step()
    assert peer.methods() == [
        spec.QueueDeleteOk(message_count=0),
        spec.BasicConsumeOk(consumer_tag="c"),
    ]


# --- consumers that keep messages ------------------------------------------------------------


def test_who_keeps_a_message_too_long_loses_the_channel(bench: Bench) -> None:
    """By an argument of the queue; a whole timeout, and not before it is over."""
    peer = bench.peer(1, 2)
    peer.ask(spec.QueueDeclare(queue="q", arguments={"x-consumer-timeout": 8000}))
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
    peer.received()
    peer.send(wire.publish(1, "", "q", b"1"), wire.publish(1, "", "q", b"2"))
    bench.step()
    peer.ask(spec.BasicAck(delivery_tag=1))
    assert len(peer.received()) == 2
    for _ in range(4):
        assert [seconds for seconds, _ in peer.transport.timers] == [2.0]
        peer.transport.run_timers()
        assert peer.methods() == []
    peer.transport.run_timers()
    closed = answer(peer, spec.ChannelClose)
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == 406
    assert "8000 ms" in closed.reply_text
    assert peer.transport.timers == []
    peer.ask(spec.BasicGet(queue="q", no_ack=True), channel=2)
    bench.step()
    assert peer.received()[-1].body == b"2"


def test_who_acknowledges_in_time_goes_on(bench: Bench) -> None:
    """By an argument of the consumer; a message that a get holds does not count."""
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.send(wire.publish(1, "", "q", b"0"))
    peer.ask(spec.BasicGet(queue="q"))
    arguments = {"x-consumer-timeout": 1000}
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c", arguments=arguments))
    bench.step()
    for tag in range(2, 12):
        peer.send(wire.publish(1, "", "q", b"x"))
        bench.step()
        peer.transport.run_timers()
        peer.ask(spec.BasicAck(delivery_tag=tag))
    assert not [m for m in peer.methods() if isinstance(m, spec.ChannelClose)]
    peer.ask(spec.BasicCancel(consumer_tag="c"))
    assert peer.transport.timers == []


def test_a_cancelled_consumer_keeps_its_deadline_while_it_holds_messages(bench: Bench) -> None:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    arguments = {"x-consumer-timeout": 1000}
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c", arguments=arguments))
    peer.send(wire.publish(1, "", "q", b"x"))
    bench.step()
    peer.ask(spec.BasicCancel(consumer_tag="c"))
    peer.received()
    peer.transport.run_timers()
    peer.transport.run_timers()
    assert isinstance(answer(peer, spec.ChannelClose), spec.ChannelClose)
