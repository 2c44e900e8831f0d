"""Reads of many connections as one: only the engine, which is asked once, can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import polymq.gateways.mqtt.shared
from interop_tests import mqtt_wire as wire
from polymq.broker.port import Position, Reason, Refused
from polymq.gateways.mqtt.joining import ASK_BYTES, JOIN_BYTES_MAX, ROWS_MAX
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Peer


@pytest.fixture(autouse=True)
def joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers join reads, whatever form the lanes have."""
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "FORM", "pure")


def publish(*packet_ids: int, topic: bytes = b"a/b", size: int = 8, qos: int = 1) -> bytes:
    """Packets of equal size."""
    return b"".join(
        wire.publish(topic, b"%0*d" % (size, packet_id), qos=qos, packet_id=packet_id)
        for packet_id in packet_ids
    )


def pubacks(*packet_ids: int) -> list[bytes]:
    return [wire.puback(packet_id) for packet_id in packet_ids]


def clients(broker: Broker, count: int) -> list[Peer]:
    return [broker.peer(wire.connect(f"client-{number}")) for number in range(count)]


def bodies(broker: Broker) -> list[int]:
    return [int(message.body) for message in broker.port.published]


@contextmanager
def one_iteration(broker: Broker) -> Iterator[None]:
    """What peers send meanwhile comes in one iteration of the loop."""
    run, broker.loop.run = broker.loop.run, lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        broker.loop.run = run  # type: ignore[method-assign]
        run()


def test_reads_of_one_iteration_are_one_run_and_each_client_gets_its_own_acks() -> None:
    broker = Broker()
    peers = clients(broker, 3)
    sent = [(1, 2, 3), (7, 5), (1, 2, 9, 4)]
    with one_iteration(broker):
        for peer, ids in zip(peers, sent, strict=True):
            peer.send(publish(*ids))
            assert not broker.port.published, "it waits for the others"
    assert broker.port.runs == [9]
    assert bodies(broker) == [1, 2, 3, 7, 5, 1, 2, 9, 4]
    assert [peer.receive() for peer in peers] == [pubacks(*ids) for ids in sent]
    assert broker.shared.counters.publishes_received == 9


def test_no_answer_leaves_before_the_join_is_committed() -> None:
    broker = Broker()
    peers = clients(broker, 2)
    broker.port.auto_commit = False
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2))
    assert [peer.receive() for peer in peers] == [[], []]
    broker.port.commit()
    broker.loop.run()
    assert [peer.receive() for peer in peers] == [pubacks(1, 2)] * 2


@pytest.mark.parametrize(
    "other",
    [
        publish(1, 2, topic=b"b/a"),
        publish(1, 2, size=9),
        publish(1, 2, qos=2),
        publish(1),
        publish(1, 2) + publish(3)[:-1],
        publish(1) + publish(2, size=9),
        publish(1, 2) + wire.PINGREQ,
        publish(*range(1, ROWS_MAX + 1)),
        publish(1, 2, topic=b"$SYS"),
        publish(1, 2, topic=b""),
        b"\x32\x04\xff\xffab" * 2,
        b"\x32\x82\x80\x00" * 2,
        b"\x33\x05\x00\x01aab" * 2,
    ],
)
def test_what_is_not_alike_goes_its_own_way_at_once(other: bytes) -> None:
    """With the effect that it has where nothing is joined."""
    effects = []
    for joins in (False, True):
        broker = Broker()
        first, second = clients(broker, 2)
        if not joins:
            broker.shared.joined = None
        with one_iteration(broker):
            if joins:
                first.send(publish(5, 6))
            second.send(other)
            own = list(broker.port.published)
        effects.append((own, second.receive(), second.is_closed(), second.session.calls))
        if joins:
            behind = broker.port.published[len(own) :]
            assert [int(message.body) for message in behind] == [5, 6]
            assert first.receive() == pubacks(5, 6)
    assert effects[0] == effects[1]


def test_different_topics_in_one_read_are_stored_where_they_belong() -> None:
    """Their packets are of one size, so the first look does not see it."""
    broker = Broker()
    peers = clients(broker, 2)
    with one_iteration(broker):
        peers[0].send(publish(1) + publish(2, topic=b"a/c"))
        peers[1].send(publish(3, 4))
    assert [(m.tag, int(m.body)) for m in broker.port.published] == [
        ("b", 1), ("c", 2), ("b", 3), ("b", 4)
    ]  # fmt: skip
    assert [peer.receive() for peer in peers] == [pubacks(1, 2), pubacks(3, 4)]
    assert broker.shared.counters.publishes_received == 4


def test_what_is_malformed_ends_its_own_connection_only() -> None:
    broker = Broker()
    good, bad, last = clients(broker, 3)
    with one_iteration(broker):
        good.send(publish(1, 2))
        bad.send(publish(3, 0))
        last.send(publish(4, 5))
    assert (good.receive(), last.receive()) == (pubacks(1, 2), pubacks(4, 5))
    assert bad.is_closed()
    assert not good.is_closed()
    assert not last.is_closed()
    assert bodies(broker) == [1, 2, 3, 4, 5]
    assert broker.shared.counters.protocol_errors == 1


def test_what_the_engine_refuses_is_not_acknowledged() -> None:
    broker = Broker()
    peers = clients(broker, 2)
    broker.port.refused_topics["a"] = Refused(Reason.STORAGE_FULL, "the disk is full")
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2))
    assert [peer.receive() for peer in peers] == [[], []]
    assert all(peer.is_closed() for peer in peers)
    assert not broker.port.published
    assert broker.shared.counters.publishes_refused == 4


@pytest.mark.parametrize("then", [publish(3), publish(3, 4), publish(3) + wire.PINGREQ])
def test_a_connections_later_read_comes_behind_its_earlier_one(then: bytes) -> None:
    """A publisher's order is kept, whichever way its reads take."""
    broker = Broker()
    first, second = clients(broker, 2)
    second.send(publish(10))  # now the topic is known, and a single packet takes the lane
    second.receive()
    with one_iteration(broker):
        first.send(publish(1, 2))
        second.send(publish(11, 12))
        first.send(then)
    of_first = [number for number in bodies(broker) if number < 10]
    assert of_first == sorted(of_first)
    assert len(of_first) > 2
    assert first.receive()[:3] == pubacks(1, 2, 3)
    assert second.receive() == pubacks(11, 12)
    assert second.connection.shortcut is second.connection.lane


@pytest.mark.parametrize(
    ("whole", "broken", "cut"),
    [(publish(1, 3), publish(2), 5), (publish(1), publish(2, size=40), len(publish(1)))],
    ids=["behind-two", "as-long-as-a-packet"],
)
def test_half_a_packet_waits_for_its_other_half(whole: bytes, broken: bytes, cut: int) -> None:
    """Also where the read is as long as two packets."""
    broker = Broker()
    first, second = clients(broker, 2)
    with one_iteration(broker):
        first.send(publish(5, 6))
        second.send(whole + broken[:cut])
    second.send(broken[cut:])
    assert second.receive()[-1] == wire.puback(2)
    assert first.receive() == pubacks(5, 6)


def test_what_is_to_be_delayed_is_delayed() -> None:
    broker = Broker()
    peers = clients(broker, 2)
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2, topic=b"$delayed/5/a/b"))
    assert broker.port.delays == [5000, 5000]


def test_what_was_sent_before_disconnect_is_stored() -> None:
    broker = Broker()
    leaving, staying = clients(broker, 2)
    with one_iteration(broker):
        leaving.send(publish(1, 2))
        staying.send(publish(3, 4))
        leaving.send(wire.DISCONNECT)
        assert bodies(broker) == [1, 2, 3, 4], "before its connection ends"
    assert staying.receive() == pubacks(3, 4)


def test_a_will_comes_behind_what_its_client_sent() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("w", will=("a/b", b"99", 0, False)))
    with one_iteration(broker):
        peer.send(publish(1, 2))
        peer.connection.expelled("for the test")
    assert bodies(broker) == [1, 2, 99]


def test_a_server_that_stops_waits_for_the_answers_of_a_join() -> None:
    broker = Broker()
    peer = broker.peer()
    broker.port.auto_commit = False
    with one_iteration(broker):
        peer.send(publish(1, 2))
        peer.connection.leave()
    assert not peer.is_closed()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == pubacks(1, 2)
    assert peer.is_closed()


def test_a_join_has_an_end() -> None:
    """However much comes in one iteration, a join holds no more than a read may."""
    broker = Broker(limits=Limits())
    size = JOIN_BYTES_MAX // 64
    peers = clients(broker, 40)
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2, size=size))
        assert 0 < len(broker.port.published) < 80
    assert all(peer.receive() == pubacks(1, 2) for peer in peers)
    assert len(broker.port.runs) == 2


def test_all_publishers_of_a_join_are_held_back_while_the_disk_is_behind() -> None:
    broker = Broker()
    peers = clients(broker, 2)
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2))
    broker.port.end = Position(broker.port.end + ASK_BYTES)
    broker.port.disk_is_behind = True
    broker.port.auto_commit = False
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(3, 4))
    assert not any(peer.transport.reading for peer in peers)
    broker.port.disk_is_behind = False
    broker.port.commit()
    assert all(peer.transport.reading for peer in peers)


def test_a_client_whose_port_counts_is_not_joined() -> None:
    """What it publishes passes through its own port, with its rights and its quota."""
    broker = Broker()
    peers = clients(broker, 2)
    peers[0].connection.lane.asks_always = True
    with one_iteration(broker):
        for peer in peers:
            peer.send(publish(1, 2))
    assert broker.port.runs == [2, 2]
