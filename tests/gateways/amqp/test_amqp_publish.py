"""Publishing: confirms, returns, errors, and what waits for what (over a `SpyPort`)."""

from __future__ import annotations

import pytest

from polymq.broker.port import Durability, Position, Reason, Refused
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.events import Run
from tests.broker.queue_bench import declare, publish, ready
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, SpyPort, SpyTemplate, answer, spy_peer

PERSISTENT = wire.properties(delivery_mode=2)


def confirming(port: SpyPort) -> Peer:
    peer = spy_peer(port, 1)
    peer.ask(spec.ConfirmSelect())
    answer(peer, spec.ConfirmSelectOk)
    return peer


def acks(peer: Peer) -> list[tuple[str, int, bool]]:
    return [
        (method.NAME, method.delivery_tag, method.multiple)
        for method in peer.methods()
        if isinstance(method, (spec.BasicAck, spec.BasicNack))
    ]


def test_a_read_of_publishes_is_one_call_and_one_confirm() -> None:
    """Equal places are one run; the confirm is `multiple`, and comes with the flush."""
    port = SpyPort()
    peer = confirming(port)
    peer.send(*(wire.publish(1, "ex", "k", b"%d" % n) for n in range(100)))
    assert [len(bodies) for _, bodies in port.published] == [100]
    assert acks(peer) == []
    port.flush()
    assert acks(peer) == [("basic.ack", 100, True)]
    peer.send(wire.publish(1, "ex", "k", b"last"))
    port.flush()
    assert acks(peer) == [("basic.ack", 101, False)]
    assert port.templates_built == 1


def test_what_has_a_message_id_is_told_apart() -> None:
    """The key index has to look at it, and passes over the rest."""
    port = SpyPort()
    peer = spy_peer(port, 1)
    named = wire.properties(delivery_mode=2, message_id="m")
    peer.send(
        wire.publish(1, "ex", "k", b"1", properties=PERSISTENT),
        wire.publish(1, "ex", "k", b"2", properties=named),
        wire.publish(1, "ex", "k", b"3", properties=named),
        wire.publish(1, "ex", "k", b"4", properties=PERSISTENT),
    )
    peer.send(wire.publish(1, "ex", "k", b"5", properties=named, body_frames=2))
    assert [(bodies, template.keyed) for template, bodies in port.published] == [
        ([b"1"], False),
        ([b"2", b"3"], True),
        ([b"4"], False),
        ([b"5"], True),
    ]


def test_durability_follows_delivery_mode_and_confirms() -> None:
    """Transient without confirm need not wait for the disk; everything else does."""
    port = SpyPort()
    peer = spy_peer(port, 1, 2)
    peer.ask(spec.ConfirmSelect(), 2)
    peer.send(
        wire.publish(1, "ex", "k", b"transient"),
        wire.publish(1, "ex", "k", b"persistent", properties=PERSISTENT),
        wire.publish(2, "ex", "k", b"confirmed"),
    )
    assert [(bodies, template.durability) for template, bodies in port.published] == [
        ([b"transient"], Durability.APPENDED),
        ([b"persistent"], Durability.FLUSHED),
        ([b"confirmed"], Durability.FLUSHED),
    ]


def test_templates_are_shared_between_equal_places_and_rebuilt_when_invalid() -> None:
    port = SpyPort()
    peer = spy_peer(port, 1)
    for _ in range(3):
        peer.send(wire.publish(1, "ex", "k", b"x"), wire.publish(1, "ex", "other", b"x"))
    assert port.templates_built == 2
    port.published[0][0].valid = False
    peer.send(wire.publish(1, "ex", "k", b"x"))
    assert port.templates_built == 3


def test_cached_places_are_bounded() -> None:
    port = SpyPort()
    peer = spy_peer(port, 1, templates_max=10)
    peer.send(*(wire.publish(1, "ex", str(n), b"x") for n in range(25)))
    templates = peer.client.publisher._templates._templates
    assert len(templates[Durability.APPENDED]) <= 10
    assert len(port.published) == 25


def test_an_unroutable_mandatory_message_comes_back_before_its_confirm() -> None:
    """The return carries the message unchanged; it was not stored, and still it is confirmed."""
    port = SpyPort()
    port.nowhere.add("void")
    peer = confirming(port)
    properties = wire.properties(content_type="text/plain", headers={"n": 2**40})
    peer.send(
        wire.publish(1, "", "queue", b"routed"),
        wire.publish(1, "", "void", b"lost", properties=properties, mandatory=True),
        wire.publish(1, "", "void", b"dropped"),
    )
    assert [bodies for _, bodies in port.published] == [[b"routed"]]
    port.flush()
    returned, ack = peer.received()
    assert isinstance(returned.method, spec.BasicReturn)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", "void")
    assert (returned.properties, returned.body) == (properties, b"lost")
    assert ack.method == spec.BasicAck(delivery_tag=3, multiple=True)


def test_a_place_without_a_queue_returns_only_what_is_mandatory() -> None:
    """Without mandatory the message goes to the topic's log all the same."""
    port = SpyPort()
    port.routed = False
    peer = spy_peer(port, 1)
    peer.send(
        wire.publish(1, "ex", "k", b"kept"), wire.publish(1, "ex", "k", b"back", mandatory=True)
    )
    assert [bodies for _, bodies in port.published] == [[b"kept"]]
    (returned,) = peer.received()
    assert returned.body == b"back"


def test_a_returned_message_with_a_large_body_is_cut_to_frames() -> None:
    port = SpyPort()
    port.nowhere.add("void")
    peer = spy_peer(port, 1)
    body = bytes(range(256)) * 1000
    peer.send(wire.publish(1, "", "void", body, mandatory=True, body_frames=2))
    (returned,) = peer.received()
    assert (returned.body, returned.body_sizes) == (body, [131_064, 256_000 - 131_064])


def test_an_unknown_exchange_closes_the_channel_and_not_the_connection() -> None:
    """Publishes before the error are stored and confirmed; those behind it are not."""
    port = SpyPort()
    peer = confirming(port)

    def missing(template: object, size: int) -> Refused | None:
        return Refused(Reason.NOT_FOUND, "no exchange 'gone' in vhost '/'") if size == 5 else None

    port.refuse_publish = missing
    peer.send(
        wire.publish(1, "ex", "k", b"before"),
        wire.publish(1, "gone", "k", b"wrong"),
        wire.publish(1, "ex", "k", b"behind"),
    )
    port.flush()
    assert [bodies for _, bodies in port.published] == [[b"before"]]
    ack, close = peer.methods()
    assert ack == spec.BasicAck(delivery_tag=1)
    assert close == spec.ChannelClose(
        reply_code=404,
        reply_text="NOT_FOUND - no exchange 'gone' in vhost '/'",
        class_id=60,
        method_id=40,
    )
    peer.send(wire.method(1, spec.ChannelCloseOk()), wire.method(1, spec.ChannelOpen()))
    answer(peer, spec.ChannelOpenOk)


def test_one_message_that_is_too_large_does_not_take_its_run_with_it() -> None:
    port = SpyPort()
    peer = confirming(port)
    port.refuse_publish = lambda _template, size: (
        Refused(Reason.TOO_LARGE, "properties") if size > 10 else None
    )
    peer.send(
        wire.publish(1, "ex", "k", b"one"),
        wire.publish(1, "ex", "k", b"two"),
        wire.publish(1, "ex", "k", b"far too large"),
        wire.publish(1, "ex", "k", b"four"),
    )
    port.flush()
    assert [bodies for _, bodies in port.published] == [[b"one"], [b"two"]]
    ack, close = peer.methods()
    assert ack == spec.BasicAck(delivery_tag=2, multiple=True)
    assert isinstance(close, spec.ChannelClose)
    assert close.reply_code == 406


@pytest.mark.parametrize("reason", [Reason.READ_ONLY, Reason.STORAGE_FULL, Reason.LIMIT])
def test_what_fails_for_our_reasons_is_nacked(reason: Reason) -> None:
    """One by one, because `multiple` would cover messages that are safe; order is kept."""
    port = SpyPort()
    peer = confirming(port)
    port.refuse_publish = lambda _template, size: Refused(reason, "no") if size == 4 else None
    peer.send(
        wire.publish(1, "ex", "k", b"one"),
        wire.publish(1, "ex", "k", b"two"),
        wire.publish(1, "ex", "full", b"fail"),
        wire.publish(1, "ex", "full", b"FAIL"),
        wire.publish(1, "ex", "k", b"six"),
    )
    port.flush()
    assert acks(peer) == [
        ("basic.ack", 2, True),
        ("basic.nack", 3, False),
        ("basic.nack", 4, False),
        ("basic.ack", 5, False),
    ]


def test_a_publisher_without_confirms_learns_of_it_by_close() -> None:
    port = SpyPort()
    peer = spy_peer(port, 1)
    port.refuse_publish = lambda _template, _size: Refused(Reason.STORAGE_FULL, "the disk is full")
    peer.send(wire.publish(1, "ex", "k", b"x"))
    close = answer(peer, spec.ConnectionClose)
    assert isinstance(close, spec.ConnectionClose)
    assert close.reply_text == "RESOURCE_ERROR - the disk is full"


def test_user_id_and_expiration_are_checked_row_by_row() -> None:
    port = SpyPort()
    for properties, complaint in (
        (wire.properties(user_id="somebody"), "user_id property set to 'somebody'"),
        (wire.properties(expiration="soon"), "invalid expiration 'soon'"),
        (wire.properties(expiration="-1", message_id="m"), "invalid expiration '-1'"),
    ):
        peer = spy_peer(port, 1)
        port.published.clear()
        good = wire.properties(user_id="guest", expiration="1000", headers={"a": 1})
        peer.send(
            wire.publish(1, "ex", "k", b"good", properties=good),
            wire.publish(1, "ex", "k", b"bad", properties=properties),
            wire.publish(1, "ex", "k", b"behind", properties=good),
        )
        assert [bodies for _, bodies in port.published] == [[b"good"]]
        close = answer(peer, spec.ChannelClose)
        assert isinstance(close, spec.ChannelClose)
        assert close.reply_code == 406
        assert complaint in close.reply_text


def test_answers_keep_their_order_across_flushes() -> None:
    """A question that depends on nothing waits behind one that depends on the log."""
    port = SpyPort()
    peer = confirming(port)
    peer.send(
        wire.publish(1, "ex", "k", b"x"),
        wire.method(1, spec.ExchangeDelete(exchange="ex")),
        wire.method(1, spec.BasicQos(prefetch_count=1)),
        wire.publish(1, "ex", "k", b"y"),
    )
    assert peer.methods() == []
    port.flush(1)
    assert peer.methods() == [spec.BasicAck(delivery_tag=1)]
    port.flush(2)
    assert peer.methods() == [spec.ExchangeDeleteOk(), spec.BasicQosOk()]
    port.flush()
    assert peer.methods() == [spec.BasicAck(delivery_tag=2)]


def test_a_question_about_messages_waits_for_the_publishes_before_it() -> None:
    """... and what comes behind it waits too: a publish behind a purge must not be purged."""
    port = SpyPort()
    peer = spy_peer(port, 1)
    peer.send(
        wire.publish(1, "", "q", b"before"),
        wire.method(1, spec.QueuePurge(queue="q")),
        wire.publish(1, "", "q", b"behind")[:-3],
    )
    assert [bodies for _, bodies in port.published] == [[b"before"]]
    assert "purge q" not in port.calls
    assert not peer.is_read()
    port.flush()
    assert "purge q" in port.calls
    assert peer.is_read()
    assert [bodies for _, bodies in port.published] == [[b"before"]]
    peer.send(wire.publish(1, "", "q", b"behind")[-3:])
    assert [bodies for _, bodies in port.published] == [[b"before"], [b"behind"]]
    answer(peer, spec.QueuePurgeOk)


def test_publishes_and_acks_of_one_read_count_up_to_an_error() -> None:
    """An unknown tag closes the channel; the publishes of the read are stored and confirmed."""
    port = SpyPort()
    peer = confirming(port)
    peer.send(wire.publish(1, "ex", "k", b"x"), wire.method(1, spec.BasicAck(delivery_tag=7)))
    port.flush()
    ack, close = peer.methods()
    assert ack == spec.BasicAck(delivery_tag=1)
    assert isinstance(close, spec.ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 7"


def test_publishes_between_acks_are_stored_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acks of what is unacknowledged do not part the publishes of a read, whatever their order."""
    declare(bench.broker, "jobs")
    declare(bench.broker, "results")
    publish(bench.broker, "jobs", *(b"%d" % number for number in range(6)))
    peer = bench.peer(1)
    peer.ask(spec.BasicConsume(queue="jobs", consumer_tag="worker"))
    bench.step()
    peer.received()
    acks = [
        spec.BasicAck(delivery_tag=2),
        spec.BasicAck(delivery_tag=1),
        spec.BasicReject(delivery_tag=4, requeue=False),
        spec.BasicAck(delivery_tag=5, multiple=True),
        spec.BasicAck(delivery_tag=0, multiple=True),
    ]
    publisher, counts = peer.client.publisher, []
    store = publisher.publish

    def count(channel: Channel, batch: Batch, run: Run) -> None:
        counts.append(run.last - run.first)
        store(channel, batch, run)

    monkeypatch.setattr(publisher, "publish", count)
    result = wire.publish(1, "", "results", b"r")
    peer.send(b"".join(result + wire.method(1, ack) for ack in acks) + result)
    assert counts == [6]
    bench.step()
    assert peer.methods() == []
    assert ready(bench.broker, "results") == 6
    peer.client.lost()
    assert ready(bench.broker, "jobs") == 0


def test_a_publisher_is_not_read_while_the_disk_is_behind() -> None:
    port = SpyPort()
    peer = spy_peer(port, 1)
    port.is_behind = True
    peer.send(wire.publish(1, "ex", "k", b"x"))
    assert not peer.is_read()
    assert port.behind is not None
    port.is_behind = False
    port.behind()
    assert peer.is_read()


def test_a_client_that_does_not_read_its_answers_is_not_read() -> None:
    """Returns pile up only to the bound; reading goes on when they were read."""
    port = SpyPort()
    port.nowhere.add("void")
    peer = spy_peer(port, 1, answers_bytes_max=10_000)
    peer.transport.full = True
    for _ in range(15):
        peer.send(wire.publish(1, "", "void", bytes(900), mandatory=True))
    assert not peer.is_read()
    assert 10 <= len(peer.received()) <= 11
    peer.transport.full = False
    peer.client.drained()
    assert peer.is_read()
    assert 4 <= len(peer.received()) <= 5


def test_answers_that_wait_for_the_disk_are_bounded() -> None:
    """A flood of questions is taken only as far as its answers can be kept."""
    port = SpyPort()
    peer = spy_peer(port, 1, answers_bytes_max=1000)
    asked = wire.method(1, spec.ExchangeDelete(exchange="ex"))
    peer.send(asked * 200, asked[:5])
    assert not peer.is_read()
    assert port.position < 200
    while port.position > port.flushed:
        port.flush()
    assert peer.is_read()
    peer.send(asked[5:])
    port.flush()
    assert len(peer.methods()) == port.position == 201


def test_a_stop_during_a_hold_still_hears_close_ok() -> None:
    """What was kept ends within a frame; the rest of it comes, and then close-ok."""
    port = SpyPort()
    peer = spy_peer(port, 1)
    publish = wire.publish(1, "", "q", b"behind")
    peer.send(
        wire.publish(1, "", "q", b"before"), wire.method(1, spec.QueuePurge(queue="q")), publish[:9]
    )
    assert not peer.is_read()
    peer.client.stop()
    assert peer.is_read()
    peer.send(publish[9:], wire.method(0, spec.ConnectionCloseOk()))
    assert peer.transport.closed
    port.flush()
    assert "purge q" not in port.calls


def test_storage_failure_closes_the_connection_because_no_confirm_will_come() -> None:
    port = SpyPort()
    peer = confirming(port)
    peer.send(wire.publish(1, "ex", "k", b"x"))
    peer.client.storage_failed("the log directory failed")
    close = answer(peer, spec.ConnectionClose)
    assert isinstance(close, spec.ConnectionClose)
    assert close.reply_code == 506
    port.flush()
    assert peer.methods() == []


def test_properties_are_stored_as_they_came() -> None:
    """Odd integer widths and a timestamp beyond year 9999 included: the bytes are not decoded."""
    port = SpyPort()
    seen: list[bytes] = []
    original = port.publish

    def publish(template: SpyTemplate, batch: Batch, first: int, last: int) -> Position:
        row = batch.row(first)
        seen.append(bytes(batch.buffer[row[4] : row[4] + row[5]]))
        return original(template, batch, first, last)

    port.publish = publish  # type: ignore[method-assign]
    peer = spy_peer(port, 1)
    headers = b"\x01as\xff\xfe" + b"\x01bL" + bytes(8) + b"\x01tT" + b"\xff" * 8
    raw = b"\x20\x00" + len(headers).to_bytes(4, "big") + headers
    peer.send(wire.publish(1, "ex", "k", b"x", properties=raw))
    peer.send(wire.publish(1, "ex", "k", b"xyz", properties=raw, body_frames=3))
    assert seen == [raw, raw]


def test_the_default_exchange_is_remembered_in_the_template() -> None:
    port = SpyPort()
    peer = spy_peer(port, 1)
    peer.send(wire.publish(1, "", "queue", b"x"), wire.publish(1, "ex", "k", b"x"))
    assert [template.properties for template, _ in port.published] == [
        {"PMQ_PROTO": "amqp", "PMQ_EXCHANGE": ""},
        {"PMQ_PROTO": "amqp"},
    ]
