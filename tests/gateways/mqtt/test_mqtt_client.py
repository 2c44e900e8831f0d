"""What packets do: engine calls, answers and their order, and the ways a connection ends."""

from __future__ import annotations

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.port import ONE_LEVEL, REST, Reason, Refused, shared_address
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Published, SpyPort

WILL = ("status/c", b"gone", 1, True)
WILL_MESSAGE = Published("status", "c", b"gone", 1, retain=True)


def slow_broker(**limits: float) -> Broker:
    """A broker whose disk waits for the test."""
    return Broker(port=SpyPort(auto_commit=False), limits=Limits(**limits))  # type: ignore[arg-type]


# --- CONNECT ---------------------------------------------------------------------------------


def test_a_session_is_resumed_after_connack() -> None:
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", clean=False))
    assert peer.receive() == []
    assert peer.session.calls == []
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.connack()]
    assert peer.session.calls == [("resume",)]
    assert (peer.session.client_id, peer.session.clean) == ("c", False)


def test_session_present() -> None:
    """[MQTT-3.2.2-2]; never for a clean session [MQTT-3.2.2-1]."""
    broker = Broker()
    broker.port.present_ids.add("c")
    for clean, present in [(False, True), (True, False)]:
        peer = broker.peer(None)
        peer.send(wire.connect("c", clean=clean))
        assert peer.receive() == [wire.connack(present=present)]
        peer.send(wire.DISCONNECT)


def test_an_empty_client_id_gets_one() -> None:
    """[MQTT-3.1.3-6]: two such clients are two sessions."""
    broker = Broker()
    first, second = broker.peer(wire.connect("")), broker.peer(wire.connect(""))
    assert [s.client_id for s in broker.port.connected] == ["made-up-0", "made-up-1"]
    assert not first.is_closed()
    assert not second.is_closed()


@pytest.mark.parametrize(
    ("packet", "refused", "code"),
    [
        (wire.connect("c", user="u", password=b"wrong"), None, 4),
        (wire.connect("c", user="nobody"), None, 4),
        (wire.connect("c"), None, 5),
        (wire.connect("c" * 257, user="u", password=b"p"), None, 2),
        (wire.connect("é" * 129, user="u", password=b"p"), None, 2),
        (wire.connect("c", user="u", password=b"p"), Reason.FORBIDDEN, 5),
        (wire.connect("c", user="u", password=b"p"), Reason.LIMIT, 3),
        (wire.connect("c", user="u", password=b"p"), Reason.READ_ONLY, 3),
        (wire.connect("c", user="u", password=b"p"), Reason.STORAGE_FULL, 3),
        (wire.connect("c", user="u", password=b"p", will=("$other/w", b"", 0, False)), None, 5),
        (wire.connect("c", level=2), None, 1),
        (wire.connect("", clean=False), None, 2),
    ],
)
def test_refused_connects(packet: bytes, refused: Reason | None, code: int) -> None:
    """The code, then the end [MQTT-3.2.2-5]; what came behind is not looked at [MQTT-3.1.4-5]."""
    broker = Broker()
    broker.port.users = {"u": b"p"}
    if refused is not None:
        broker.port.refused_connect = Refused(refused, "no")
    peer = broker.peer(None)
    peer.send(packet, wire.publish("a", b"x"))
    assert peer.receive() == [wire.connack(code)]
    assert peer.is_closed()
    assert broker.port.published == []


def test_no_will_after_a_refused_connect() -> None:
    broker = Broker()
    broker.port.users = {"u": b"p"}
    peer = broker.peer(None)
    peer.send(wire.connect("c", will=WILL, user="u", password=b"wrong"))
    assert peer.is_closed()
    assert broker.port.published == []


@pytest.mark.parametrize("said", [b"", wire.connect("c")[:-1]])
def test_a_stranger_who_never_connects_is_closed(said: bytes) -> None:
    broker = Broker()
    peer = broker.peer(None)
    peer.send(said)
    broker.loop.advance(9.0)
    assert not peer.is_closed()
    broker.loop.advance(3.0)
    assert peer.is_closed()
    assert peer.receive() == []


def test_packets_behind_connect_are_answered_behind_connack() -> None:
    """A client need not wait for CONNACK (3.1.1 part 3.1.4); the order of answers stays."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(
        wire.connect("c", clean=False),
        wire.PINGREQ,
        wire.subscribe(1, ("a", 1)),
        wire.publish("a", b"x", qos=1, packet_id=7),
    )
    assert peer.receive() == []
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [
        wire.connack(),
        wire.PINGRESP,
        wire.suback(1, 1),
        wire.puback(7),
    ]
    assert peer.session.calls == [
        ("subscribe", ("a",), 1),
        ("resume",),
        ("replay_retained", ("a",), 2),
    ]


def test_disconnect_behind_connect() -> None:
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", clean=False, will=WILL), wire.publish("a"), wire.DISCONNECT)
    broker.port.commit()
    broker.loop.run()
    assert peer.is_closed()
    assert peer.receive() == []
    assert broker.port.published == [Published("a", None, b"", 0)]
    assert peer.session.calls == [("disconnect",)]


# --- keep alive ------------------------------------------------------------------------------


def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives() -> None:
    """[MQTT-3.1.2-24], with its will."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=10, will=WILL))
    broker.loop.advance(14.5)
    assert not peer.is_closed()
    broker.loop.advance(2.0)
    assert peer.is_closed()
    assert broker.port.published == [WILL_MESSAGE]
    assert broker.shared.counters.keep_alives_missed == 1


def test_every_packet_proves_that_a_client_lives() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=10))
    for packet in [wire.PINGREQ, wire.publish("a"), wire.puback(1)] * 2:
        broker.loop.advance(14.0)
        peer.send(packet)
    broker.loop.advance(14.0)
    assert not peer.is_closed()
    assert peer.receive() == [wire.PINGRESP] * 2


def test_half_a_packet_proves_nothing() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=10))
    broker.loop.advance(10.0)
    peer.send(wire.publish("a", b"x" * 100)[:50])
    broker.loop.advance(6.5)
    assert peer.is_closed()


def test_without_a_keep_alive_silence_is_fine() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("c", keep_alive=0))
    broker.loop.advance(100_000.0)
    assert not peer.is_closed()


# --- PUBLISH ---------------------------------------------------------------------------------


def test_a_read_is_runs_for_the_engine_and_one_write_of_acks() -> None:
    broker = Broker()
    peer = broker.peer()
    writes = peer.transport.writes
    ids = range(1, 301)
    peer.send(
        *(wire.publish("a/b", b"%d" % k, qos=1, packet_id=k) for k in ids),
        *(wire.publish("c", b"", qos=1, packet_id=k + 1000) for k in ids),
        wire.publish("c", b"last"),
    )
    assert broker.port.runs == [300, 300, 1]
    assert broker.port.published[299] == Published("a", "b", b"300", 1)
    assert peer.transport.writes == writes + 1
    assert peer.receive() == [wire.puback(k) for k in ids] + [wire.puback(k + 1000) for k in ids]


def test_acks_leave_when_their_messages_are_committed() -> None:
    """[MQTT-4.6.0-2]: in the order of the publishes."""
    broker = slow_broker()
    peer = broker.peer()
    peer.send(wire.publish("a", b"1", qos=1, packet_id=9))
    peer.send(wire.publish("b", b"2", qos=2, packet_id=8))
    peer.send(wire.publish("a", b"3", qos=1, packet_id=7))
    assert peer.receive() == []
    broker.port.commit(1)
    broker.loop.run()
    assert peer.receive() == [wire.puback(9)]
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.pubrec(8), wire.puback(7)]


def test_retain_and_the_three_qualities() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("pub"))
    peer.send(
        wire.publish("a", b"0", retain=True),
        wire.publish("a", b"1", qos=1, packet_id=1, retain=True),
        wire.publish("a", b"2", qos=2, packet_id=2),
    )
    assert broker.port.published == [
        Published("a", None, b"0", 0, retain=True),
        Published("a", None, b"1", 1, retain=True),
        Published("a", None, b"2", 2, once=("pub", 2)),
    ]
    assert peer.receive() == [wire.puback(1), wire.pubrec(2)]


def test_exactly_once() -> None:
    """Figure 4.3 of the standard, with everything sent twice."""
    broker = Broker()
    peer = broker.peer()
    message = wire.publish("a", b"x", qos=2, packet_id=5)
    again = wire.publish("a", b"x", qos=2, packet_id=5, duplicate=True)
    peer.send(message, again)
    assert peer.receive() == [wire.pubrec(5), wire.pubrec(5)]
    peer.send(wire.pubrel(5), wire.pubrel(5))
    assert peer.receive() == [wire.pubcomp(5), wire.pubcomp(5)]
    assert len(broker.port.published) == 1
    peer.send(message)
    assert peer.receive() == [wire.pubrec(5)]
    assert len(broker.port.published) == 2


def test_an_id_is_free_again_behind_its_release_in_the_same_read() -> None:
    broker = Broker()
    peer = broker.peer()
    message = wire.publish("a", b"x", qos=2, packet_id=5)
    peer.send(message, wire.pubrel(5), message, wire.pubrel(5))
    assert len(broker.port.published) == 2
    assert peer.receive() == [wire.pubrec(5), wire.pubcomp(5)] * 2


def test_a_duplicate_is_answered_when_its_original_is_committed() -> None:
    """Also when the original came on a connection before, and is not committed yet."""
    broker = slow_broker()
    first = broker.peer()
    first.send(wire.publish("a", b"x", qos=2, packet_id=5))
    first.vanish()
    second = broker.peer(wire.connect("other"))
    second.session.inbound.add(5)
    second.send(wire.publish("a", b"x", qos=2, packet_id=5, duplicate=True))
    assert second.receive() == []
    broker.port.commit()
    broker.loop.run()
    assert second.receive() == [wire.pubrec(5)]
    assert len(broker.port.published) == 1


def test_duplicates_in_a_run_are_not_stored() -> None:
    """Some came before, and some in the same read; all are answered."""
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish("a", b"1", qos=2, packet_id=2))
    bodies = {2: b"1", 3: b"2", 4: b"3", 1: b"4"}
    ids = (4, 2, 3, 4, 1)
    peer.send(*(wire.publish("a", bodies[number], qos=2, packet_id=number) for number in ids))
    assert [found.body for found in broker.port.published] == [b"1", b"3", b"2", b"4"]
    assert peer.receive() == [wire.pubrec(number) for number in (2, *ids)]


def test_pubrel_of_an_unknown_id_is_answered() -> None:
    """The client may repeat it after a reconnection, and has to come to an end."""
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.pubrel(77))
    assert peer.receive() == [wire.pubcomp(77)]


@pytest.mark.parametrize("reason", [Reason.FORBIDDEN, Reason.LIMIT, Reason.STORAGE_FULL])
def test_what_is_refused_is_never_acknowledged(reason: Reason) -> None:
    """[MQTT-3.3.5-2] leaves closing or acknowledging; an ack of ours means that it is stored."""
    for qos in (1, 2):
        broker = Broker()
        broker.port.refused_topics["no"] = Refused(reason, "no")
        peer = broker.peer(wire.connect("c", will=WILL))
        peer.send(
            wire.publish("yes", qos=qos, packet_id=1),
            wire.publish("no", qos=qos, packet_id=2),
            wire.publish("yes", qos=qos, packet_id=3),
        )
        assert peer.is_closed()
        assert wire.puback(2) not in peer.receive()
        assert [m.topic for m in broker.port.published] == ["yes", "status"]


def test_at_qos_0_what_is_refused_is_dropped_and_counted() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish("$other/x"), wire.publish("yes"), wire.publish("$other/x"))
    assert not peer.is_closed()
    assert [m.topic for m in broker.port.published] == ["yes"]
    assert broker.shared.counters.publishes_refused == 2
    assert broker.shared.counters.publishes_received == 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_body_that_the_store_does_not_take_closes(qos: int) -> None:
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish("a", bytes(4 * 1024 * 1024 + 1), qos=qos, packet_id=1))
    assert peer.is_closed()
    assert broker.port.published == []


def test_the_largest_body_comes_through_in_reads() -> None:
    broker = Broker()
    peer = broker.peer()
    body = bytes(range(256)) * (4 * 4096)
    peer.send(wire.publish("a", body, qos=1, packet_id=1), wire.PINGREQ)
    assert broker.port.published == [Published("a", None, body, 1)]
    assert peer.receive() == [wire.puback(1), wire.PINGRESP]


def test_good_packets_before_a_bad_one_count() -> None:
    """[MQTT-4.8.0-1]: the connection is closed, and the will is published [MQTT-3.1.2-8]."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", will=WILL))
    peer.send(wire.publish("a", b"x", qos=1, packet_id=1), b"\x36\x03\x00\x01a", wire.PINGREQ)
    assert peer.is_closed()
    assert peer.receive() == [wire.puback(1)]
    assert broker.port.published == [Published("a", None, b"x", 1), WILL_MESSAGE]
    assert broker.shared.counters.protocol_errors == 1


# --- acknowledgements, subscriptions -----------------------------------------------------------


def test_acknowledgements_reach_the_session_as_ranges() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.send(
        *map(wire.puback, [65_534, 65_535, 1, 2, 9]),
        *map(wire.pubrec, [3, 4]),
        *map(wire.pubcomp, [3, 4, 5]),
    )
    assert peer.session.calls[1:] == [
        ("acknowledged", 65_534, 4),
        ("acknowledged", 9, 1),
        ("received", 3, 2),
        ("completed", 3, 3),
    ]
    assert peer.receive() == []


def test_suback_waits_for_its_commit_and_retained_messages_follow_it() -> None:
    """[MQTT-3.8.4-5]: a code per filter, in order; nothing retained for what is refused, and for
    what is shared."""
    broker = slow_broker()
    peer = broker.peer()
    peer.session.refused[("b",)] = Refused(Reason.LIMIT, "no more")
    since = broker.port.end + 1
    peer.send(
        wire.subscribe(9, ("a/+", 2), ("b", 1), ("$share//c", 1), ("$share/g/c", 1), ("#", 0))
    )
    assert peer.receive() == []
    assert peer.session.calls[1:] == [
        ("subscribe", ("a", ONE_LEVEL), 2),
        ("subscribe", shared_address("g", ("c",)), 1),
        ("subscribe", (REST,), 0),
    ]
    broker.port.commit()
    assert peer.session.calls[4:] == [
        ("replay_retained", ("a", ONE_LEVEL), since),
        ("replay_retained", (REST,), since + 2),
    ]
    broker.loop.run()
    assert peer.receive() == [wire.suback(9, 2, 0x80, 0x80, 1, 0)]


def test_unsuback_answers_also_what_was_never_subscribed() -> None:
    """[MQTT-3.10.4-5]."""
    broker = slow_broker()
    peer = broker.peer()
    peer.send(wire.unsubscribe(4, "a/#", "$share//a"))
    assert peer.receive() == []
    broker.port.commit()
    broker.loop.run()
    assert peer.session.calls[1:] == [("unsubscribe", ("a", REST))]
    assert peer.receive() == [wire.unsuback(4)]


def test_ping() -> None:
    peer = Broker().peer()
    peer.send(wire.PINGREQ)
    assert peer.receive() == [wire.PINGRESP]


# --- the ends --------------------------------------------------------------------------------


def test_disconnect_discards_the_will() -> None:
    """[MQTT-3.1.2-10], [MQTT-3.14.4-3]."""
    broker = Broker()
    peer = broker.peer(wire.connect("c", will=WILL))
    peer.send(wire.DISCONNECT)
    assert peer.is_closed()
    assert broker.port.published == []
    assert peer.session.calls == [("resume",), ("disconnect",)]


def test_a_connection_that_is_lost_publishes_its_will_once() -> None:
    broker = Broker()
    peer = broker.peer(wire.connect("c", will=WILL))
    peer.vanish()
    assert broker.port.published == [WILL_MESSAGE]
    assert peer.session.calls == [("resume",), ("disconnect",)]


@pytest.mark.parametrize(("qos", "retain"), [(0, False), (1, True), (2, False)])
def test_a_will_keeps_its_quality(qos: int, retain: bool) -> None:
    """[MQTT-3.1.2-16], [MQTT-3.1.2-17]."""
    broker = Broker()
    broker.peer(wire.connect("c", will=("a/b", b"", qos, retain))).vanish()
    assert broker.port.published == [Published("a", "b", b"", qos, retain=retain)]


def test_a_will_that_is_refused_refuses_the_client() -> None:
    """The session that was made for it does not stay."""
    broker = Broker()
    broker.port.refused_will = Refused(Reason.LIMIT, "too many wills")
    peer = broker.peer(None)
    peer.send(wire.connect("c", will=WILL))
    assert peer.receive() == [wire.connack(3)]
    assert peer.is_closed()
    assert broker.port.connected[0].calls == [("disconnect",)]
    assert broker.port.published == []


def test_takeover_publishes_the_old_will_before_anything_of_the_new_client() -> None:
    """[MQTT-3.1.4-2]: or `gone` would stay behind `here` as the retained status."""
    broker = Broker()
    old = broker.peer(wire.connect("c", will=WILL))
    new = broker.peer(None)
    new.send(wire.connect("c"), wire.publish("status/c", b"here", qos=1, packet_id=1, retain=True))
    assert old.is_closed()
    assert not new.is_closed()
    assert broker.port.published == [
        WILL_MESSAGE,
        Published("status", "c", b"here", 1, retain=True),
    ]
    assert broker.port.connected[0].calls == [("resume",), ("disconnect",)]
    assert broker.port.connected[1].calls == [("resume",)]


def test_what_an_old_connection_still_waits_for_does_not_reach_anybody() -> None:
    broker = slow_broker()
    peer = broker.peer()
    peer.send(wire.publish("a", qos=1, packet_id=1), wire.subscribe(2, ("a", 0)))
    peer.vanish()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == []
    assert all(call[0] != "replay_retained" for call in peer.session.calls)


def test_stopping_lets_acks_leave_and_publishes_no_will() -> None:
    """SIGTERM: what was stored is acknowledged, what comes after is not read."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", will=WILL))
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.connack()]
    broker.port.is_stopping = True
    peer.send(wire.publish("a", qos=1, packet_id=1))
    peer.connection.leave()
    broker.loop.run()
    assert not peer.is_closed()
    assert not peer.transport.is_reading()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.puback(1)]
    assert peer.is_closed()
    assert [m.topic for m in broker.port.published] == ["a"]


def test_stopping_closes_idle_and_unconnected_clients_at_once() -> None:
    broker = Broker()
    peers = [broker.peer(wire.connect("c", will=WILL)), broker.peer(None)]
    broker.port.is_stopping = True
    for peer in peers:
        peer.connection.leave()
    broker.loop.run()
    assert all(peer.is_closed() for peer in peers)
    assert broker.port.published == []


def test_stopping_while_a_session_is_not_yet_committed() -> None:
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", clean=False))
    peer.connection.leave()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.connack()]
    assert peer.is_closed()
    assert peer.session.calls == [("disconnect",)]


def test_a_client_that_does_not_read_its_end_is_aborted() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.stop_listening()
    peer.send(wire.DISCONNECT)
    assert not peer.is_closed()
    broker.loop.advance(7.0)
    assert peer.is_closed()


# --- back-pressure -----------------------------------------------------------------------------


def test_a_client_that_leaves_answers_unread_is_read_no_further() -> None:
    broker = Broker(limits=Limits(unread_answers_bytes_max=40))
    peer = broker.peer(wire.connect("c", keep_alive=1))
    peer.stop_listening()
    for packet_id in range(1, 11):
        peer.send(wire.publish("a", qos=1, packet_id=packet_id))
        assert peer.transport.is_reading()
    peer.send(wire.publish("a", qos=1, packet_id=11))
    assert not peer.transport.is_reading()
    broker.loop.advance(10.0)  # its pings wait in the kernel: no reason to call it silent
    assert not peer.is_closed()
    peer.listen_again()
    assert peer.transport.is_reading()
    assert ("ready",) in peer.session.calls


def test_a_client_that_leaves_pubrels_unread_is_read_no_further() -> None:
    """Each PUBREC is answered by one, also for a packet id that was never sent: whoever sends them
    and reads nothing would fill the memory."""
    broker = Broker(limits=Limits(unread_answers_bytes_max=40))
    peer = broker.peer(wire.connect("c"))
    peer.stop_listening()
    link = peer.session.link
    for packet_id in range(1, 11):
        link.send_pubrels(packet_id, 1)
        assert peer.transport.is_reading()
    link.send_pubrels(11, 1)
    assert not peer.transport.is_reading()
    peer.listen_again()
    assert peer.transport.is_reading()


@pytest.mark.parametrize("qos", [0, 1])
def test_publishes_that_outrun_the_disk_are_read_no_further(qos: int) -> None:
    """Whether somebody waits for an ack or not: a stalled disk must not fill the memory."""
    broker = slow_broker()
    broker.port.disk_is_behind = True
    peer = broker.peer(wire.connect("c", keep_alive=1))
    peer.send(wire.publish("a", bytes(900), qos=qos, packet_id=1))
    assert not peer.transport.is_reading()
    broker.loop.advance(10.0)
    assert not peer.is_closed()
    broker.port.disk_is_behind = False
    broker.port.commit()
    assert peer.transport.is_reading()
    peer.send(wire.publish("a", bytes(900), qos=qos, packet_id=2))
    assert peer.transport.is_reading()
    assert len(broker.port.published) == 2


def test_a_client_that_left_while_the_disk_was_behind() -> None:
    broker = slow_broker()
    broker.port.disk_is_behind = True
    peer = broker.peer()
    peer.send(wire.publish("a"))
    peer.vanish()
    broker.port.commit()
    broker.loop.run()
    assert peer.is_closed()


def test_a_failed_disk_closes_everybody() -> None:
    """Acks that wait would never come; the client has to try elsewhere."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", will=WILL))
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.connack()]
    peer.send(wire.publish("a", qos=1, packet_id=1))
    broker.port.fail()
    peer.connection.storage_failed()
    broker.loop.run()
    assert peer.is_closed()
    assert peer.receive() == []
    assert [m.topic for m in broker.port.published] == ["a"]


# --- delayed publishes -----------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delayed_publish_goes_to_the_topic_behind_the_seconds(qos: int) -> None:
    """Answered like any other; the levels, RETAIN and QoS are those of the topic in the end."""
    broker = Broker()
    peer = broker.peer()
    peer.send(
        wire.publish("$delayed/15/a/b", b"x", qos=qos, packet_id=7 if qos else 0, retain=True)
    )
    once = (peer.session.client_id, 7) if qos == 2 else None
    assert broker.port.published == [Published("a", "b", b"x", qos, retain=True, once=once)]
    assert broker.port.delays_ms == [15_000]
    assert len(peer.receive()) == (1 if qos else 0)
    peer.send(wire.publish("$delayed/0/a/b", b"now"))
    assert broker.port.published[-1].body == b"now"
    assert broker.port.delays_ms == [15_000]


@pytest.mark.parametrize(
    "topic",
    [
        *("$delayed/", "$delayed/5", "$delayed/5/", "$delayed/-1/t", "$delayed/1.5/t"),
        *("$delayed/x/t", "$delayed/5/$SYS/t", "$delayed/5/$delayed/5/t", "$delayed"),
        "$delayed/99999999999/t",
    ],
)
def test_a_delay_that_is_none_is_refused(topic: str) -> None:
    """As any topic that nobody may publish to: dropped at QoS 0, the end at QoS 1."""
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.publish(topic, b"x"))
    assert not peer.is_closed()
    peer.send(wire.publish(topic, b"x", qos=1, packet_id=1))
    assert peer.is_closed()
    assert broker.port.published == []
