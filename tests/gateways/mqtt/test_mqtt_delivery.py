"""The way out: what a session sends through its link, shared frames, and credit."""

from __future__ import annotations

from interop_tests import mqtt_wire as wire
from polymq.broker.port import Durability
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Peer, make_run


def send(peer: Peer, bodies: list[bytes], *, qos: int = 0, first_packet_id: int = 0) -> None:
    peer.link.send_publishes(
        make_run("t", None, bodies),
        qos=qos,
        first_packet_id=first_packet_id,
        duplicate=False,
        retain=False,
    )


def test_a_run_leaves_as_publishes() -> None:
    broker = Broker()
    peer = broker.peer()
    run = make_run("sensors", "room1.temp", [b"1", b"", b"333"])
    for qos, packet_id, duplicate, retain in [
        (0, 0, False, False),
        (0, 0, False, True),
        (1, 65_534, True, False),
        (2, 7, False, True),
    ]:
        peer.link.send_publishes(
            run, qos=qos, first_packet_id=packet_id, duplicate=duplicate, retain=retain
        )
        broker.loop.run()
        assert peer.receive() == [
            wire.publish(
                "sensors/room1/temp",
                body,
                qos=qos,
                packet_id=(packet_id - 1 + k) % 65_535 + 1 if qos else 0,
                duplicate=duplicate,
                retain=retain,
            )
            for k, body in enumerate([b"1", b"", b"333"])
        ]
    assert broker.shared.counters.publishes_sent == 12


def test_each_message_has_its_own_topic() -> None:
    """The topic of the last one is remembered, for those of its kind."""
    broker = Broker()
    peer = broker.peer()
    for topic in ("a", "a", "b", "a"):
        peer.link.send_publishes(
            make_run(topic, None, [b"x"]), qos=0, first_packet_id=0, duplicate=False, retain=False
        )
    broker.loop.run()
    assert peer.receive() == [wire.publish(topic, b"x") for topic in ("a", "a", "b", "a")]


def test_subscribers_at_qos_0_share_one_frame() -> None:
    """Fan-out costs one encoding, however many subscribers there are."""
    broker = Broker()
    peers = [broker.peer(wire.connect(f"c{k}")) for k in range(3)]
    run = make_run("t", None, [b"x"] * 5)
    for peer in peers:
        peer.link.send_publishes(run, qos=0, first_packet_id=0, duplicate=False, retain=False)
    assert len(run.encoded) == 1
    (frame,) = run.encoded.values()
    broker.loop.run()
    for peer in peers:
        assert b"".join(peer.receive()) == frame


def test_frames_with_and_without_retain_are_not_the_same() -> None:
    broker = Broker()
    peer = broker.peer()
    run = make_run("t", None, [b"x"])
    for retain in (False, True, False):
        peer.link.send_publishes(run, qos=0, first_packet_id=0, duplicate=False, retain=retain)
    broker.loop.run()
    assert [packet[0] & 1 for packet in peer.receive()] == [0, 1, 0]


def test_listeners_with_different_mappings_do_not_share_frames() -> None:
    run = make_run("t", "a", [b"x"])
    for fixed, name in [(None, "t/a"), ("t", "a"), (None, "t/a")]:
        broker = Broker(fixed_topic=fixed)
        peer = broker.peer()
        peer.link.send_publishes(run, qos=0, first_packet_id=0, duplicate=False, retain=False)
        broker.loop.run()
        assert peer.receive() == [wire.publish(name, b"x")]


def test_pubrels() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.link.send_pubrels(65_535, 2)
    broker.loop.run()
    assert peer.receive() == [wire.pubrel(65_535), wire.pubrel(1)]


def test_there_is_no_credit_before_connack_and_after_the_end() -> None:
    broker = Broker()
    broker.port.auto_commit = False
    peer = broker.peer(None)
    assert peer.link.credit() == 0
    peer.send(wire.connect("c", clean=False))
    assert peer.link.credit() == 0
    broker.port.commit()
    assert peer.link.credit() > 0
    peer.send(wire.DISCONNECT)
    assert peer.link.credit() == 0


def test_a_paused_transport_has_no_credit_and_asks_again_when_it_drains() -> None:
    broker = Broker()
    peer = broker.peer()
    assert peer.link.credit() > 0
    peer.stop_listening()
    assert peer.link.credit() == 0
    peer.listen_again()
    assert peer.link.credit() > 0
    assert peer.session.calls == [("resume",), ("ready",)]


def test_credit_is_bounded_by_bytes_in_a_turn() -> None:
    """A million bytes of small messages or a few of large ones; then the others get their turn."""
    broker = Broker(limits=Limits(delivery_bytes_max=10_000))
    peer = broker.peer()
    send(peer, [b"x" * 996] * 2)  # 1,001 bytes each on the wire
    assert peer.link.credit() == (10_000 - 2 * 1001) // 1001 + 1
    send(peer, [b"x" * 996] * 8)
    assert peer.link.credit() == 0
    assert peer.session.calls == [("resume",)]
    broker.loop.run()
    assert peer.session.calls == [("resume",), ("ready",)]
    assert peer.link.credit() == 10


def test_large_messages_get_at_least_one() -> None:
    broker = Broker(limits=Limits(delivery_bytes_max=10_000))
    peer = broker.peer()
    send(peer, [b"x" * 50_000])
    broker.loop.run()
    assert peer.link.credit() == 1


def test_everything_of_a_turn_is_one_write() -> None:
    broker = Broker()
    peer = broker.peer()
    writes = peer.transport.writes
    send(peer, [b"1"])
    send(peer, [b"2"], qos=1, first_packet_id=3)
    peer.send(wire.PINGREQ, wire.publish("a", qos=1, packet_id=9))
    assert peer.transport.writes == writes + 1
    assert peer.receive() == [
        wire.publish("t", b"1"),
        wire.publish("t", b"2", qos=1, packet_id=3),
        wire.PINGRESP,
        wire.puback(9),
    ]


def test_nothing_is_sent_to_a_connection_that_is_closing() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.stop_listening()
    peer.send(wire.DISCONNECT)
    send(peer, [b"1"])
    peer.link.send_pubrels(1, 1)
    broker.port.when_committed(0, Durability.FLUSHED, lambda: None)
    broker.loop.run()
    assert peer.receive() == []
