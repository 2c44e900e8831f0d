"""A long read is handled in turns with those of other clients: in order, nothing twice."""

from __future__ import annotations

import tracemalloc
from itertools import chain, count

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.port import Reason, Refused
from polymq.gateways.mqtt.packets import (
    MQTT_3_1_1,
    Subscribe,
    Unsubscribe,
    encode_unsuback,
)
from polymq.gateways.mqtt.reading import ONE_BY_ONE_MAX, RUNS_AT_ONCE
from polymq.kernel_forms import plain_form
from polymq.net.turns import TURN_SECONDS
from tests.gateways.mqtt.mqtt_harness import Broker, Peer

TURN_LOOKS = 2
BULK = plain_form("polymq.gateways.mqtt.kernels.batch_path")


def slow(broker: Broker) -> None:
    """From now on two looks at the clock are a turn."""
    looks = count()
    broker.turns.clock = lambda: next(looks) * TURN_SECONDS / TURN_LOOKS


def until_it_rests(broker: Broker) -> None:
    """All turns, however many there are."""
    while broker.loop.step():
        pass


def publishes(first: int, last: int) -> bytes:
    """QoS 1, each to a topic of its own, with its number as packet id."""
    return b"".join(
        wire.publish(b"topic/%d" % number, b"%d" % number, qos=1, packet_id=number)
        for number in range(first, last)
    )


def bodies(broker: Broker) -> list[int]:
    """What was published since the last call."""
    found = [int(message.body) for message in broker.port.published]
    broker.port.published.clear()
    return found


def read(peer: Peer, data: bytes) -> None:
    """One read, without a turn of the loop after it."""
    view = memoryview(peer.connection.get_buffer(-1))
    view[: len(data)] = data
    view.release()
    peer.connection.buffer_updated(len(data))


def test_publishes_to_many_topics_let_others_have_their_turn() -> None:
    """Meanwhile the client is not read. All of it is stored once, in order, and acknowledged."""
    broker = Broker()
    peer, other = broker.peer(), broker.peer(wire.connect("other"))
    slow(broker)
    total = 5 * RUNS_AT_ONCE
    read(peer, publishes(1, total))
    first = bodies(broker)
    assert 0 < len(first) < total - 1
    assert not peer.is_read()
    read(other, publishes(total, total + 1))
    assert bodies(broker) == [total]
    broker.loop.run()
    assert peer.is_read()
    assert first + bodies(broker) == list(range(1, total))
    assert peer.receive() == [wire.puback(number) for number in range(1, total)]


@pytest.mark.parametrize("topics", [1, 6])
def test_a_few_messages_to_very_many_queues_are_stored_one_by_one(topics: int) -> None:
    """They would take long enough together, few as they are; also where each goes to a topic of
    its own, and when their topics are known."""
    broker = Broker()
    peer = broker.peer()
    slow(broker)
    broker.port.rows_at_once = 1
    broker.port.template_queues = (None,) * (BULK.MANY_QUEUES + 1)
    numbers = range(1, 7)
    data = b"".join(
        wire.publish(b"all/%d" % (number % topics), b"%d" % number, qos=1, packet_id=number)
        for number in numbers
    )
    for _ in range(2):
        read(peer, data)
        stored = [bodies(broker)]
        while broker.loop.step():
            stored.append(bodies(broker))
        assert max(map(len, stored)) <= TURN_LOOKS + 1
        assert list(chain.from_iterable(stored)) == list(numbers)
        assert peer.receive() == [wire.puback(number) for number in numbers]


def test_acknowledgements_behind_a_cut_are_taken_once() -> None:
    """The kernel takes them before the publishes of the same bytes."""
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    slow(broker)
    total = 5 * RUNS_AT_ONCE
    parts = [publishes(n, n + 1) + wire.puback(2 * n) for n in range(1, total)]
    read(peer, b"".join(parts))
    assert len(bodies(broker)) < total - 1
    broker.loop.run()
    taken = [call for call in session.calls if call[0] == "acknowledged"]
    assert taken == [("acknowledged", 2 * n, 1) for n in range(1, total)]
    assert peer.receive() == [wire.puback(n) for n in range(1, total)]


def test_a_packet_with_many_filters_is_handled_in_turns() -> None:
    """SUBACK and UNSUBACK come when all of it is done, and what follows waits for that."""
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    slow(broker)
    names = [b"f/%d" % number for number in range(10)]
    session.refused[("f", "3")] = Refused(Reason.LIMIT, "no")
    filters = [(name, 1) for name in names]
    read(peer, wire.subscribe(7, *filters) + wire.unsubscribe(8, *names) + wire.PINGREQ)
    counts = [0]
    while broker.loop.step():
        counts.append(len([call for call in session.calls if "subscribe" in call[0]]))
        assert counts[-1] - counts[-2] <= 2 * TURN_LOOKS
        assert peer.transport.reading == (counts[-1] == 19)
    done_kinds = [call[0] for call in session.calls if "subscribe" in call[0]]
    assert done_kinds == ["subscribe"] * 9 + ["unsubscribe"] * 10
    suback = wire.suback(7, *(0x80 if name == b"f/3" else 1 for name in names))
    assert peer.receive() == [suback, encode_unsuback(MQTT_3_1_1, 8, [0]), wire.PINGRESP]


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
@pytest.mark.slow
def test_a_packet_of_very_many_filters_is_decoded_one_at_a_time(
    kind: type[Subscribe] | type[Unsubscribe],
) -> None:
    """All that a packet has room for, in as many steps as filters, twice: first all are read."""
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    count = 100_000
    end = b"\x01" if kind is Subscribe else b""
    packet = kind(packet_id=9, payload=(b"\x00\x01a" + end) * count)
    tracemalloc.start()
    try:
        work = peer.connection.handle(packet)
        assert work is not None
        steps = 0
        session.calls.clear()
        for _ in work:
            steps += 1
            assert len(session.calls) == (steps > count)
            session.calls.clear()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert steps == 2 * count
    assert peak < 20 * count


@pytest.mark.parametrize("last", [b"\x00\x02a#", b"\x00\x09a"])
def test_a_malformed_filter_after_many_changes_nothing(last: bytes) -> None:
    """The connection is closed, and none of the filters before it was subscribed to."""
    for start, end in ((b"\x82", b"\x01"), (b"\xa2", b"")):
        broker = Broker()
        peer = broker.peer()
        session = peer.session
        slow(broker)
        payload = b"\x00\x07" + (b"\x00\x01a" + end) * 20 + last
        read(peer, start + bytes([len(payload)]) + payload)
        until_it_rests(broker)
        assert [call for call in session.calls if "subscribe" in call[0]] == []
        assert peer.is_closed()
        assert broker.shared.counters.protocol_errors == 1


def test_what_waits_for_its_turn_ends_with_the_connection() -> None:
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    slow(broker)
    read(peer, wire.subscribe(7, *((b"f/%d" % n, 1) for n in range(10))) + publishes(1, 9))
    while not (before := len([call for call in session.calls if call[0] == "subscribe"])):
        assert broker.loop.step()
    peer.connection.connection_lost(None)
    broker.loop.run()
    assert len([call for call in session.calls if call[0] == "subscribe"]) == before < 10
    assert bodies(broker) == []


def test_a_long_run_that_is_looked_at_one_by_one_is_cut_too() -> None:
    """QoS 2: each message carries its packet id into the log."""
    broker = Broker()
    peer = broker.peer()
    slow(broker)
    total = RUNS_AT_ONCE * ONE_BY_ONE_MAX * 3
    data = b"".join(
        wire.publish(b"t", b"%d" % number, qos=2, packet_id=number)
        for number in range(1, total + 1)
    )
    read(peer, data)
    first = bodies(broker)
    assert 0 < len(first) < total
    broker.loop.run()
    assert first + bodies(broker) == list(range(1, total + 1))


def test_acknowledgements_out_of_order_let_others_have_their_turn() -> None:
    """Each is taken once, also where a publish stands behind them; what the window has room for
    then is asked for once."""
    broker = Broker()
    peer, other = broker.peer(), broker.peer(wire.connect("other"))
    session = broker.port.connected[0]
    slow(broker)
    ids = range(BULK.ACKS_AT_ONCE + 10, 0, -1)
    read(peer, b"".join(wire.puback(number) for number in ids) + publishes(1, 2))
    first = [call for call in session.calls if call[0] == "acknowledged"]
    assert 0 < len(first) < len(ids)
    assert not peer.transport.reading
    read(other, wire.puback(7) + publishes(2, 3))
    assert bodies(broker) == [2]
    until_it_rests(broker)
    taken = [call for call in session.calls if call[0] == "acknowledged"]
    assert taken == [("acknowledged", number, 1) for number in ids]
    assert session.resumed_count == 1
    assert bodies(broker) == [1]
    assert peer.receive() == [wire.puback(1)]


def test_releases_that_may_be_a_record_each_are_taken_in_turns() -> None:
    """Those whose packet ids follow each other are one."""
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    slow(broker)
    ids = range(200, 0, -2)
    read(peer, b"".join(wire.pubrel(number) for number in ids) + wire.PINGREQ)
    first = [call for call in session.calls if call[0] == "released"]
    assert 0 < len(first) < len(ids)
    until_it_rests(broker)
    assert [call for call in session.calls if call[0] == "released"] == [
        ("released", number) for number in ids
    ]
    assert peer.receive() == [*(wire.pubcomp(number) for number in ids), wire.PINGRESP]


def test_acknowledgements_end_with_the_connection() -> None:
    broker = Broker()
    peer = broker.peer()
    session = peer.session
    slow(broker)
    read(peer, b"".join(wire.puback(number) for number in range(BULK.ACKS_AT_ONCE + 10, 0, -1)))
    before = len(session.calls)
    peer.connection.connection_lost(None)
    until_it_rests(broker)
    assert len([call for call in session.calls if call[0] == "acknowledged"]) <= before
    assert session.calls[-1] == ("disconnect",)
