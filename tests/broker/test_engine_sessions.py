"""MQTT sessions through the port: live and durable subscriptions, in flight, takeover, retained."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.port import REST, Durability, Refused, Session
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from tests.harness.broker import Broker, SpyLink, at_qos, batch_of
from tests.harness.stores import decode_all


def connect(
    broker: Broker,
    client: str,
    *,
    clean: bool = False,
    expiry_seconds: int | None = None,
    credit: int = 1000,
    user: str = "u",
) -> tuple[Session, SpyLink]:
    """As a client of MQTT 3.1.1 does, unless it says how long its session is to be kept."""
    link = SpyLink(credit)
    if clean and expiry_seconds is None:
        expiry_seconds = 0
    session = broker.port.sessions.connect(
        client, clean=clean, expiry_seconds=expiry_seconds, link=link, principal=user
    )
    broker.step()
    session.resume()
    broker.step()
    return session, link


def start_again(broker: Broker, way: str) -> None:
    """After a clean stop, or after a crash (`way`)."""
    if way == "stop":
        broker.restart()
    else:
        broker.kill()
        broker.open()


def test_a_clean_session_gets_what_is_published_while_it_is_there(broker: Broker) -> None:
    """QoS is the lower of publisher and subscriber; packet ids count up; nothing is kept."""
    session, link = connect(broker, "c", clean=True)
    session.subscribe(("a", REST), at_qos(1))
    broker.publish(broker.template("a", "b", qos=1), b"1", b"2")
    broker.publish(broker.template("a", "b", qos=0, durability=Durability.APPENDED), b"3")
    broker.step()
    assert link.publishes == [
        ("a/b", b"1", 1, 1, False, False),
        ("a/b", b"2", 1, 2, False, False),
        ("a/b", b"3", 0, 0, False, False),
    ]
    session.disconnect()
    broker.publish(broker.template("a", "b", qos=1), b"4")
    again, link = connect(broker, "c", clean=True)
    assert not again.present
    assert link.publishes == []


def test_a_slow_live_subscriber_catches_up_in_order(broker: Broker) -> None:
    """Without credit its positions wait in memory; nothing is lost below the limit."""
    session, link = connect(broker, "c", clean=True, credit=0)
    session.subscribe(("a",), at_qos(1))
    for n in range(5):
        broker.publish(broker.template("a"), b"%d" % n)
        broker.step()
    assert link.publishes == []
    link.left = 1000
    session.ready()
    broker.publish(broker.template("a"), b"5")
    broker.step()
    assert link.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_persistent_session_gets_what_came_while_it_was_away(broker: Broker) -> None:
    """Offline queueing for QoS 1; session present on return."""
    session, _ = connect(broker, "c")
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    session.disconnect()
    broker.publish(broker.template("a", "x"), b"1", b"2")
    broker.step()
    again, link = connect(broker, "c")
    assert again.present
    assert link.bodies == [b"1", b"2"]


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
def test_what_is_in_flight_is_sent_again_with_its_packet_ids(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """Unacknowledged messages: same id, DUP set, original order, then what is new."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    session, link = connect(broker, "c")
    session.subscribe(("a",), at_qos(2))
    broker.step()
    broker.publish(broker.template("a", qos=2), b"1", b"2", b"3")
    broker.step()
    broker.step()
    assert [p[3] for p in link.publishes] == [1, 2, 3]
    session.received(1, 1)
    session.received(2, 1)
    session.completed(1, 1)
    broker.step(0.5)
    assert link.pubrels == [1, 2]
    if way == "reconnect":
        session.disconnect()
    elif way == "stop":
        broker.restart()
    else:
        broker.kill()
        broker.open()
    broker.publish(broker.template("a", qos=2), b"4")
    broker.step()
    again, link = connect(broker, "c")
    assert again.present
    broker.step()
    assert link.publishes == [
        ("a", b"3", 2, 3, True, False),
        ("a", b"4", 2, 4, False, False),
    ]
    assert link.pubrels == [2]
    again.received(3, 2)
    again.completed(2, 3)
    broker.step(0.5)
    again.disconnect()
    _, link = connect(broker, "c")
    assert link.publishes == []
    assert link.pubrels == []
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_what_was_acknowledged_is_not_sent_again(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """The record of acks settles; the record that gave the packet id still says in flight."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    session, link = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    broker.publish(broker.template("a"), b"1", b"2", b"3")
    broker.step()
    session.acknowledged(2, 1)
    broker.step(1.0)
    start_again(broker, way)
    _, link = connect(broker, "c")
    assert link.publishes == [("a", b"1", 1, 1, True, False), ("a", b"3", 1, 3, True, False)]
    broker.stop()


def test_what_was_on_its_way_to_a_packet_id_comes_after_a_crash(tmp_path: Path) -> None:
    """A record of acks says how far a queue was handed out, and that may be further than packet
    ids were given: the message was being read."""
    broker = Broker(tmp_path / "data")
    session, link = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    session.disconnect()
    broker.publish(broker.template("a"), b"1", b"2")
    broker.step()
    (group,) = broker.engine.queue_store.groups.values()
    broker.engine.core.journal.write({"op": "acks", "g": [[group.number, 1, []]]})
    broker.step(1.0)
    start_again(broker, "kill")
    _, link = connect(broker, "c")
    assert [body for _, body, *_ in link.publishes] == [b"1", b"2"]
    broker.stop()


def test_a_snapshot_says_nothing_that_stands_behind_its_position(tmp_path: Path) -> None:
    """Packet ids were given after the last flush, and are in the snapshot: so must be the position
    of the record that gives them. Folded once more, the message would be in flight twice."""
    broker = Broker(tmp_path / "data")
    session, link = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    broker.publish(broker.template("a"), b"1")
    broker.loop.run()
    broker.flush()
    assert broker.store.log.appended > broker.store.log.flushed
    save = broker.engine.snapshot()
    assert save is not None
    broker.step()
    assert link.bodies == [b"1"]
    save()
    broker.kill()
    broker.open()
    session, link = connect(broker, "c")
    assert link.publishes == [("a", b"1", 1, 1, True, False)]
    session.acknowledged(1, 1)
    session.disconnect()
    assert connect(broker, "c")[1].publishes == []
    broker.stop()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_an_inbound_qos_2_message_is_taken_once(tmp_path: Path, way: str) -> None:
    """A repeated PUBLISH before PUBREL is a duplicate, after a restart too."""
    broker = Broker(tmp_path / "data")
    broker.engine.core.next_number = 1000  # of the session; both stand in the record in hex
    packet = 54321
    session, _ = connect(broker, "c")
    template = broker.template("a", qos=2)
    assert not session.is_duplicate(packet)
    broker.port.sessions.publish_once(template, batch_of(b"x"), 0, 1, session, (packet,))
    assert session.is_duplicate(packet)
    broker.step()
    start_again(broker, way)
    session, _ = connect(broker, "c")
    assert session.is_duplicate(packet)
    session.released(packet, 1)
    broker.step(1.0)
    start_again(broker, way)
    session, _ = connect(broker, "c")
    assert not session.is_duplicate(packet)
    broker.stop()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_run_of_qos_2_messages_is_taken_once(broker: Broker, way: str) -> None:
    """Each has its own packet id, and PUBRELs for a run of them are one record; after the last
    packet id comes the first."""
    session, _ = connect(broker, "c")
    ids = (65_534, 65_535, 1, 7, 8)
    assert session.are_new(ids)
    assert not session.are_new((2, 2))
    template = broker.template("a", qos=2)
    bodies = [b"%d" % packet for packet in ids]
    broker.port.sessions.publish_once(template, batch_of(*bodies), 0, 5, session, ids)
    broker.step()
    start_again(broker, way)
    session, _ = connect(broker, "c")
    assert [packet for packet in range(1, 65_536) if session.is_duplicate(packet)] == sorted(ids)
    assert not session.are_new((2, 8))
    before = broker.store.log.appended
    session.released(65_533, 7)  # some of them are not known
    assert broker.store.log.appended - before < 500
    broker.step(1.0)
    start_again(broker, way)
    session, _ = connect(broker, "c")
    assert [packet for packet in range(1, 65_536) if session.is_duplicate(packet)] == [7, 8]
    (queue,) = broker.engine.topics.topics["a"].queues
    assert queue.index.end_offset == 5


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_inbound_packet_ids_begin_anew(tmp_path: Path, way: str) -> None:
    """The peer has lost its session: no packet id is a duplicate, after a restart too."""
    broker = Broker(tmp_path / "data")
    session, _ = connect(broker, "c")
    template = broker.template("a", qos=2)
    for packet in (1, 7, 65_535):
        broker.port.sessions.publish_once(template, batch_of(b"x"), 0, 1, session, (packet,))
    session.release_all()
    broker.port.sessions.publish_once(template, batch_of(b"x"), 0, 1, session, (7,))
    broker.step(1.0)
    for _ in range(2):
        assert [packet for packet in (1, 7, 65_535) if session.is_duplicate(packet)] == [7]
        start_again(broker, way)
        session, _ = connect(broker, "c")
    broker.stop()


@pytest.mark.parametrize("delay_ms", [0, 5000])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_qos_2_message_keeps_its_own_property_where_readers_look(
    broker: Broker, way: str, delay_ms: int
) -> None:
    """Right behind the constant part, in front of what says that the message was taken."""
    session, _ = connect(broker, "c")
    template = broker.port.topics.template(
        broker.port.topics.route("a", "b"),
        properties={"PMQ_PROTO": "mqtt5", "PMQ_QOS": "2"},
        extra_kind=EXTRA_BASE64,
        extra_name="PMQ_MQTT5",
    )
    batch = Batch()
    batch.buffer = b"tbody" + b"\x01\x01"
    batch.add((0, 1), (1, 4), (5, 2), identifier=7)
    broker.port.sessions.publish_once(template, batch, 0, 1, session, (7,), delay_ms=delay_ms)
    broker.step()
    start_again(broker, way)
    session, _ = connect(broker, "c")
    assert session.is_duplicate(7)
    broker.step(6)
    found: list[bytes] = []
    broker.port.queries.pull(
        "a", 0, 0, count_max=9, bytes_max=1 << 20, callback=lambda raw, _: found.append(raw)
    )
    broker.step()
    (record,) = decode_all(found[0])
    assert record.body == b"body"
    constant = int(record.raw_properties[6:10], 16)
    assert record.raw_properties[constant:].startswith(b"PMQ_MQTT5\x01AQE=\x02")


def test_takeover_hands_the_session_to_the_new_connection(broker: Broker) -> None:
    """The old link is told; a stranger is refused."""
    session, old = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    again, new = connect(broker, "c")
    assert old.over
    assert again.present
    broker.publish(broker.template("a"), b"1")
    broker.step()
    broker.step()
    assert new.bodies == [b"1"]
    assert old.bodies == []
    with pytest.raises(Refused):
        connect(broker, "c", user="other")


def test_a_clean_connect_ends_the_stored_session(broker: Broker) -> None:
    """Its subscriptions and what waited are gone [MQTT-3.1.2-6]."""
    session, _ = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    session.disconnect()
    broker.publish(broker.template("a"), b"1")
    broker.step()
    session, link = connect(broker, "c", clean=True)
    assert not session.present
    assert link.publishes == []
    session.disconnect()
    session, link = connect(broker, "c")
    assert not session.present
    assert link.publishes == []


def test_unsubscribing_stops_deliveries_and_forgets_the_queue(broker: Broker) -> None:
    """The filter queue goes with its last session; another's stays."""
    first, first_link = connect(broker, "a")
    second, second_link = connect(broker, "b")
    first.subscribe(("t",), at_qos(1))
    second.subscribe(("t",), at_qos(1))
    broker.step()
    first.unsubscribe(("t",))
    broker.publish(broker.template("t"), b"1")
    broker.step()
    broker.step()
    assert first_link.bodies == []
    assert second_link.bodies == [b"1"]
    second.acknowledged(1, 1)
    second.unsubscribe(("t",))
    assert not broker.engine.sessions.filters


def test_retained_messages_are_replayed_to_new_subscribers(broker: Broker) -> None:
    """Retain flag set, last value only, wildcard or exact; an empty one clears; they survive."""
    for tag, body in (("a", b"old"), ("a", b"1"), ("b", b"2"), ("c", b"3"), ("c", b"")):
        broker.publish(broker.template("t", tag, retain=True), body)
    broker.step()
    broker.restart()
    session, link = connect(broker, "c", clean=True)
    since = session.subscribe(("t", REST), at_qos(1))
    broker.step()
    assert link.publishes == []
    session.replay_retained(("t", REST), since)
    broker.step()
    assert sorted(link.publishes) == [
        ("t/a", b"1", 1, 1, False, True),
        ("t/b", b"2", 1, 2, False, True),
    ]


def test_the_window_bounds_what_is_in_flight(tmp_path: Path) -> None:
    """With a window of 3 the fourth message waits for an acknowledgement."""
    broker = Broker(tmp_path / "data", inflight_count_max=3)
    session, link = connect(broker, "c")
    session.subscribe(("a",), at_qos(1))
    broker.step()
    broker.publish(broker.template("a"), *[b"%d" % n for n in range(7)])
    broker.step()
    assert link.bodies == [b"0", b"1", b"2"]
    session.acknowledged(1, 2)
    broker.step()
    assert link.bodies == [b"0", b"1", b"2", b"3", b"4"]
    session.acknowledged(3, 3)
    broker.step()
    assert len(link.bodies) == 7
    broker.stop()


@pytest.mark.parametrize("acked", [3, 1])
def test_acknowledgements_of_live_messages_open_the_window(tmp_path: Path, acked: int) -> None:
    """What came while the window was full follows, though no queue held what filled it: whether
    all of that is acknowledged, or the oldest message only."""
    broker = Broker(tmp_path / "data", inflight_count_max=3)
    session, link = connect(broker, "c", clean=True)
    session.subscribe(("a",), at_qos(1))
    broker.step()
    for n in range(4):
        broker.publish(broker.template("a"), b"%d" % n)
        broker.step()
    assert link.bodies == [b"0", b"1", b"2"]
    session.acknowledged(1, acked)
    broker.step()
    assert link.bodies == [b"0", b"1", b"2", b"3"]
    broker.stop()


def test_packet_ids_wrap_and_stay_unambiguous(tmp_path: Path) -> None:
    """70,000 messages through one session: ids run from 1 to 65,535 and begin again."""
    broker = Broker(tmp_path / "data", inflight_count_start=16_384)
    session, link = connect(broker, "c", clean=True, credit=1 << 30)
    session.subscribe(("a",), at_qos(1))
    template = broker.template("a")
    expected = 1
    for _ in range(70):
        broker.publish(template, *[b"x"] * 1000)
        broker.step()
        assert len(link.publishes) == 1000
        for _, _, _, packet, _, _ in link.publishes:
            assert packet == expected
            expected = expected % 65535 + 1
        session.acknowledged(link.publishes[0][3], 1000)
        link.publishes.clear()
    broker.stop()


def test_a_subscriber_that_never_reads_loses_the_oldest(tmp_path: Path) -> None:
    """Its backlog is bounded; it goes on with what is newest, in order."""
    broker = Broker(tmp_path / "data", backlog_count_max=10)
    session, link = connect(broker, "c", clean=True, credit=0)
    session.subscribe(("a",), at_qos(1))
    for n in range(25):
        broker.publish(broker.template("a"), b"%d" % n)
    broker.step()
    link.left = 1000
    session.ready()
    broker.step()
    assert link.bodies == [b"%d" % n for n in range(15, 25)]
    broker.stop()


# --- the window -----------------------------------------------------------------------------


def flood(broker: Broker, count: int = 2000) -> None:
    """Messages that wait for the client."""
    broker.publish(broker.template("a", qos=1), *[b"%d" % n for n in range(count)])
    broker.step()
    broker.step()


@pytest.mark.parametrize("clean", [True, False])
def test_a_connection_begins_with_a_small_window(broker: Broker, clean: bool) -> None:
    """And so does the next one: a device is not flooded before it has shown what it can take."""
    session, link = connect(broker, "c", clean=clean, credit=100_000)
    session.subscribe(("a",), at_qos(1))
    broker.step()
    flood(broker)
    assert len(link.publishes) == 32
    if not clean:
        session.disconnect()
        _, link = connect(broker, "c", credit=100_000)
        broker.step()
        assert len(link.publishes) == 32
        assert all(duplicate for *_, duplicate, _ in link.publishes)


@pytest.mark.parametrize(("seconds", "most"), [(0.1, 1000), (0.6, 32)])
def test_the_window_grows_while_acknowledgements_keep_up(
    tmp_path: Path, seconds: float, most: int
) -> None:
    """It doubles each time that all of it is acknowledged within half a second, up to its bound; a
    client that takes longer keeps the one that it has."""
    broker = Broker(tmp_path / "data", inflight_count_max=1000)
    session, link = connect(broker, "c", clean=True, credit=100_000)
    session.subscribe(("a",), at_qos(1))
    flood(broker, 4000)
    at_once = []
    acked = 0
    for _ in range(7):
        at_once.append(len(link.publishes) - acked)
        broker.step(seconds)
        session.acknowledged(acked + 1, at_once[-1])
        acked += at_once[-1]
        broker.step()
    assert at_once[0] == 32
    assert max(at_once) == most
    broker.stop()


def test_one_acknowledgement_is_not_a_window(broker: Broker) -> None:
    """A client that takes its time with the rest does not get more for the first one."""
    session, link = connect(broker, "c", clean=True, credit=100_000)
    session.subscribe(("a",), at_qos(1))
    flood(broker)
    for packet in range(1, 21):
        session.acknowledged(packet, 1)
        broker.step(0.4)
    assert len(link.publishes) == 32 + 20


@pytest.mark.parametrize("clean", [True, False])
def test_qos_0_needs_no_window(broker: Broker, clean: bool) -> None:
    """Nobody acknowledges it: it comes also while the window is full."""
    session, link = connect(broker, "c", clean=clean, credit=100_000)
    session.subscribe(("a",), at_qos(1))
    session.subscribe(("b",), at_qos(0))
    broker.step()
    flood(broker)
    broker.publish(broker.template("b", qos=1), *[b"x"] * 500)
    broker.step()
    assert link.bodies[32:] == [b"x"] * 500


def test_who_connects_may_ask_for_less(broker: Broker) -> None:
    """As an operator sets it for a listener; the bound of a user is tested with permissions."""
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=link, principal="u", inflight_max=5
    )
    broker.step()
    session.resume()
    session.subscribe(("a",), at_qos(1))
    flood(broker)
    assert len(link.publishes) == 5
    session.acknowledged(1, 5)
    broker.step()
    assert len(link.publishes) == 10
