"""What is in flight to a persistent session stays so, whatever happens to connections, servers and
subscriptions, until the client has acknowledged it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq.broker.port import REST, Session, WrongAcknowledgement
from polymq.broker.sessions.sessions import RESENT_AT_ONCE
from polymq.broker.topics.retained import position_of
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.replication.test_standby import follow, rows

WAYS = ("reconnect", "stop", "kill", "failover")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
WITH_AND_WITHOUT = pytest.mark.parametrize("with_state_db", [True, False])


class Pair:
    """A broker, and one that follows it, of which one is asked at last."""

    def __init__(self, directory: Path, with_state_db: bool) -> None:
        self.broker = Broker(directory / "master", with_state_db=with_state_db)
        self.slave = Broker(directory / "slave", with_state_db=with_state_db, follows="the master")

    def interrupt(self, way: str, session: Session) -> Broker:
        """End the session's connection this way; returns who serves it from now on."""
        broker = self.broker
        if way == "reconnect":
            session.disconnect()
        elif way == "stop":
            broker.restart()
        elif way == "kill":
            broker.kill()
            broker.open()
        else:
            follow(broker, self.slave)
            assert rows(self.slave) == rows(broker)
            self.slave.stop()
            self.slave.follows = ""
            self.slave.open()
            return self.slave
        return broker


@pytest.fixture
def pair(tmp_path: Path, with_state_db: bool) -> Iterator[Pair]:
    """Both are stopped at the end."""
    made = Pair(tmp_path, with_state_db)
    yield made
    made.broker.stop()
    made.slave.store.close()


def subscribed(broker: Broker, link_credit: int = 1000, qos: int = 2) -> tuple[Session, SpyLink]:
    """A client that has subscribed, and got what is retained."""
    session, link = connect(broker, "c", credit=link_credit)
    since = session.subscribe(("r", REST), at_qos(qos))
    broker.step()
    session.replay_retained(("r", REST), since)
    broker.step(0.1)
    return session, link


# --- retained messages ----------------------------------------------------------------------


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_in_flight_comes_again(pair: Pair, way: str, qos: int) -> None:
    """With its packet id, its QoS, RETAIN and DUP; the next message gets another packet id."""
    broker = pair.broker
    broker.publish(broker.template("r", "a", qos=qos, retain=True), b"kept")
    broker.step()
    session, link = subscribed(broker)
    assert link.publishes == [("r/a", b"kept", qos, 1, False, True)]
    broker.publish(broker.template("r", "b", qos=qos), b"live")
    broker.step(0.1)
    broker = pair.interrupt(way, session)
    session, link = connect(broker, "c")
    assert link.publishes == [
        ("r/a", b"kept", qos, 1, True, True),
        ("r/b", b"live", qos, 2, True, False),
    ]
    broker.publish(broker.template("r", "b", qos=qos), b"new")
    broker.step(0.1)
    assert link.publishes[2:] == [("r/b", b"new", qos, 3, False, False)]


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_that_was_acknowledged_does_not_come_again(
    pair: Pair, way: str, qos: int
) -> None:
    """Of three retained messages two are acknowledged; of QoS 2, the PUBREL of one is owed."""
    broker = pair.broker
    for tag in ("a", "b", "c"):
        broker.publish(broker.template("r", tag, qos=qos, retain=True), tag.encode())
    broker.step()
    session, link = subscribed(broker)
    assert [packet for _, _, _, packet, _, _ in link.publishes] == [1, 2, 3]
    if qos == 1:
        session.acknowledged(1, 1)
        session.acknowledged(3, 1)
    else:
        session.received(1, 1)
        session.received(3, 1)
        session.completed(3, 1)
    broker.step(0.1)
    broker = pair.interrupt(way, session)
    session, link = connect(broker, "c")
    assert link.publishes == [("r/b", b"b", qos, 2, True, True)]
    assert link.pubrels == ([1] if qos == 2 else [])


@WITH_AND_WITHOUT
@EVERY_WAY
def test_a_retained_message_comes_as_it_was_sent(pair: Pair, way: str) -> None:
    """Another one takes its place while it is in flight, and it is cleared at last."""
    broker = pair.broker
    broker.publish(broker.template("r", "a", retain=True), b"first")
    broker.step()
    session, link = subscribed(broker)
    broker.publish(broker.template("r", "a", retain=True), b"second")
    broker.publish(broker.template("r", "a", retain=True), b"")
    broker.step(0.1)
    broker = pair.interrupt(way, session)
    _, link = connect(broker, "c")
    assert [(body, dup, retain) for _, body, _, _, dup, retain in link.publishes] == [
        (b"first", True, True),
        (b"second", True, False),
        (b"", True, False),
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_a_message_is_either_retained_or_live(broker: Broker, clean: bool) -> None:
    """Published before the SUBSCRIBE it comes as retained; published behind it, before SUBACK has
    left, as live. Never as both, and never as neither, whatever the disk has by then."""
    template = broker.template("r", "a", retain=True)
    broker.publish(template, b"before")
    session, link = connect(broker, "c", clean=clean)
    broker.publish(broker.template("r", "b", retain=True), b"just before")
    since = session.subscribe(("r", REST), at_qos(2))
    broker.publish(template, b"behind")
    broker.step()
    session.replay_retained(("r", REST), since)
    broker.step(0.1)
    assert sorted((body, retain) for _, body, _, _, _, retain in link.publishes) == [
        (b"behind", False),
        (b"just before", True),
    ]


def test_a_copy_of_a_retained_message_is_no_new_one(broker: Broker) -> None:
    """Retention moves it to the log's end between SUBSCRIBE and its turn."""
    broker.publish(broker.template("r", "a", retain=True), b"kept")
    broker.step()
    session, link = connect(broker, "c")
    since = session.subscribe(("r", REST), at_qos(1))
    broker.step()
    retention = broker.engine.retention
    ((address, entry),) = filter(None, broker.engine.retained.entries())
    position = int.from_bytes(entry[:8], "big")
    assert retention._copy_one(address, position, broker.store.record_at(position))
    broker.step(1)
    session.replay_retained(("r", REST), since)
    broker.step(0.1)
    assert link.publishes == [("r/a", b"kept", 1, 1, False, True)]


def test_a_copy_of_a_copy_is_as_old_as_the_message(broker: Broker) -> None:
    broker.publish(broker.template("r", "a", retain=True), b"kept")
    broker.step()
    entries = [broker.engine.retained.get(("r", "a"))]
    for _ in range(3):
        position = position_of(entries[-1] or b"")
        record = broker.store.record_at(position)
        assert broker.engine.retention._copy_one(("r", "a"), position, record)
        broker.step(1)
        start_again(broker, "kill")
        entries.append(broker.engine.retained.get(("r", "a")))
    assert len({entry[:8] for entry in entries if entry}) == 4
    assert len({entry[12:] for entry in entries if entry}) == 1
    assert record.raw_properties.count(b"PMQ_ORIGIN") == 1


def test_retained_messages_fill_the_window_and_no_more(tmp_path: Path) -> None:
    """Eight of them with a window of three: the others follow acknowledgements."""
    broker = Broker(tmp_path / "data", inflight_count_max=3)
    for n in range(8):
        broker.publish(broker.template("r", str(n), retain=True), b"%d" % n)
    broker.step()
    session, link = subscribed(broker)
    broker.step(1)
    assert len(link.publishes) == 3
    session.acknowledged(1, 2)
    broker.step()
    assert len(link.publishes) == 5
    session.unsubscribe(("r", REST))
    session.acknowledged(3, 3)
    broker.step(1)
    assert len(link.publishes) == 5, "[MQTT-3.10.4-2]"
    broker.stop()


def test_a_retained_message_in_flight_holds_the_log(tmp_path: Path) -> None:
    """It is not the retained one any more, so only the session needs it."""
    broker = Broker(tmp_path / "data")
    broker.port.topics.create("r", 1, {"retention_bytes": "300000"})
    broker.publish(broker.template("r", "a", retain=True), b"kept")
    broker.step()
    session, link = subscribed(broker, qos=1)
    broker.publish(broker.template("r", "a", retain=True), b"")
    broker.step(0.1)
    session.acknowledged(2, 1)
    for _ in range(40):
        broker.publish(broker.template("r", "b", qos=0), bytes(100_000))
        broker.step(0.1)
    assert broker.tidy() == 0
    registration = broker.engine.retention.holder
    assert registration is not None
    assert (registration.kind, registration.name) == ("session", "c")
    session.disconnect()
    session, link = connect(broker, "c")
    assert ("r/a", b"kept", 1, 1, True, True) in link.publishes
    session.acknowledged(1, 1)
    broker.step(0.1)
    session.disconnect()
    broker.stop()


# --- subscriptions that change --------------------------------------------------------------


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribing_leaves_what_is_in_flight(pair: Pair, way: str, qos: int) -> None:
    """[MQTT-3.10.4-3]: it is delivered to the end, and nothing else is; then its queue goes."""
    broker = pair.broker
    session, link = subscribed(broker)
    template = broker.template("r", "a", qos=qos)
    broker.publish(template, b"1", b"2", b"3")
    broker.step(0.1)
    (session.acknowledged if qos == 1 else session.received)(2, 1)
    session.unsubscribe(("r", REST))
    broker.publish(template, b"after")
    broker.step(0.1)
    assert [body for _, body, *_ in link.publishes] == [b"1", b"2", b"3"]
    broker = pair.interrupt(way, session)
    session, link = connect(broker, "c")
    assert link.publishes == [
        ("r/a", b"1", qos, 1, True, False),
        ("r/a", b"3", qos, 3, True, False),
    ]
    assert broker.engine.sessions.filters
    for packet in (1, 3):
        (session.acknowledged if qos == 1 else session.received)(packet, 1)
    broker.step(0.1)
    assert not broker.engine.sessions.filters
    assert not broker.engine.queue_store.groups
    session.disconnect()
    _, link = connect(broker, "c")
    assert link.publishes == []


@WITH_AND_WITHOUT
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_group_whose_end_was_not_written_ends_at_the_next_start(pair: Pair, way: str) -> None:
    """All is acknowledged, and the server stops before it has noted that nothing is left."""
    broker = pair.broker
    session, _ = subscribed(broker)
    broker.publish(broker.template("r", "a"), b"1")
    broker.step(0.1)
    session.unsubscribe(("r", REST))
    broker.step()
    broker.engine.sessions.state._looking = True  # as if that were asked for, and never came
    session.acknowledged(1, 1)
    broker.step(0.1)
    broker = pair.interrupt(way, session)
    broker.step(0.1)
    assert not broker.engine.sessions.filters
    assert not broker.engine.queue_store.groups
    _, link = connect(broker, "c")
    assert link.publishes == []


def test_subscribing_again_beside_what_is_in_flight(broker: Broker) -> None:
    """The new subscription begins now; both share the filter's queue."""
    session, link = subscribed(broker)
    broker.publish(broker.template("r", "a", qos=2), b"1")
    broker.step(0.1)
    session.unsubscribe(("r", REST))
    broker.publish(broker.template("r", "a", qos=2), b"missed")
    session.subscribe(("r", REST), at_qos(1))
    broker.publish(broker.template("r", "a", qos=2), b"2")
    broker.step(0.1)
    session.disconnect()
    session, link = connect(broker, "c")
    assert link.publishes == [
        ("r/a", b"1", 2, 1, True, False),
        ("r/a", b"2", 1, 2, True, False),
    ]
    session.received(1, 1)
    broker.step(0.1)
    assert len(broker.engine.queue_store.groups) == 1
    assert len(broker.engine.sessions.filters) == 1


def test_the_end_of_a_session_takes_what_is_in_flight_along(broker: Broker) -> None:
    """Of a filter that it had unsubscribed from, of another one, and retained."""
    broker.publish(broker.template("r", "a", retain=True), b"kept")
    broker.step()
    session, link = subscribed(broker)
    session.subscribe(("s",), at_qos(1))
    broker.publish(broker.template("r", "a"), b"1")
    broker.publish(broker.template("s"), b"2")
    broker.step(0.1)
    assert len(link.publishes) == 3
    session.unsubscribe(("r", REST))
    broker.step(0.1)
    session.disconnect()
    _, link = connect(broker, "c", clean=True)
    assert link.publishes == []
    assert not broker.engine.queue_store.groups
    assert not broker.engine.sessions.filters
    assert broker.engine.sessions.state.retained.positions() == []


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (2, 0)])
def test_another_qos_does_not_change_what_was_sent(
    pair: Pair, way: str, first: int, second: int
) -> None:
    """[MQTT-3.8.4-3], [MQTT-4.4.0-1]: what is in flight keeps its QoS; what comes later has the new
    one."""
    broker = pair.broker
    session, link = subscribed(broker, qos=first)
    broker.publish(broker.template("r", "a", qos=2), b"1")
    broker.step(0.1)
    session.subscribe(("r", REST), at_qos(second))
    broker.step()
    broker = pair.interrupt(way, session)
    session, link = connect(broker, "c")
    broker.publish(broker.template("r", "a", qos=2), b"2")
    broker.step(0.1)
    assert [(body, qos, dup) for _, body, qos, _, dup, _ in link.publishes] == [
        (b"1", first, True),
        (b"2", second, False),
    ]


@pytest.mark.parametrize("order", [(1, 0), (0, 1), (2, 0, 2)])
def test_another_qos_does_not_interrupt_the_flow(broker: Broker, order: tuple[int, ...]) -> None:
    """[MQTT-3.8.4-3]: what waits for the client comes, and nothing comes twice; what has one QoS
    comes in order [MQTT-4.6.0-5]."""
    session, link = subscribed(broker, link_credit=0, qos=order[0])
    template = broker.template("r", "a", qos=2)
    sent = []
    for n, qos in enumerate(order):
        session.subscribe(("r", REST), at_qos(qos))
        body = b"%d" % n
        broker.publish(template, body)
        sent.append(body)
        broker.step(0.1)
    assert link.publishes == []
    link.left = 1000
    session.ready()
    broker.step(0.1)
    assert sorted(link.bodies) == sent
    for qos in range(3):
        of_one_qos = [body for _, body, sent_qos, *_ in link.publishes if sent_qos == qos]
        assert of_one_qos == sorted(of_one_qos)


def test_subscriptions_raised_again_and_again_are_bounded(broker: Broker) -> None:
    """A client that goes up and down for ever, and reads nothing."""
    session, _ = subscribed(broker, link_credit=0, qos=0)
    for _ in range(100):
        session.subscribe(("r", REST), at_qos(1))
        session.unsubscribe(("r", REST))
        session.subscribe(("r", REST), at_qos(0))
        broker.publish(broker.template("r", "a"), b"x")
        broker.step()
    assert len(broker.engine.queue_store.volatile_groups) < 30
    session.disconnect()
    assert not broker.engine.queue_store.volatile_groups


def test_what_is_committed_after_a_client_went_is_kept_by_nobody(broker: Broker) -> None:
    """It was published while the client was there."""
    session, _ = connect(broker, "c", clean=True)
    session.subscribe(("r", REST), at_qos(1))
    broker.publish(broker.template("r", "a"), b"x")
    session.disconnect()
    broker.step()
    assert not broker.engine.queue_store.volatile_groups


# --- logs of before -------------------------------------------------------------------------


@pytest.mark.parametrize("granted", [1, 2])
def test_a_log_whose_records_lack_the_qos(tmp_path: Path, granted: int) -> None:
    """What is in flight comes with the QoS of its subscription, as it did then."""
    broker = Broker(tmp_path / "data", with_state_db=False)
    subscribed(broker, link_credit=0, qos=granted)
    broker.publish(broker.template("r", "a", qos=2), b"1")
    broker.step(0.1)
    (group,) = broker.engine.queue_store.groups.values()
    number = broker.engine.sessions.by_client["c"].number
    op = {"op": "assign", "s": number, "t": 1, "g": group.number, "o": 0, "n": 1}
    broker.engine.core.journal.write(op)
    broker.step(1)
    broker.kill()
    broker.open()
    _, link = connect(broker, "c")
    assert link.publishes == [("r/a", b"1", granted, 1, True, False)]
    broker.stop()


def test_a_row_whose_flights_lack_the_qos(broker: Broker) -> None:
    session, _ = subscribed(broker)
    broker.publish(broker.template("r", "a", qos=2), b"1")
    broker.step(0.1)
    session.disconnect()
    state = broker.engine.sessions.state
    (number,) = state.by_number
    row = dict(state.row(str(number)) or {})
    row["unacked"] = [flight[:4] for flight in row["unacked"]]
    state.by_client.clear()
    state._sessions.counts.clear()
    state._sessions.subscription_counts.clear()
    state.load(str(number), row)
    _, link = connect(broker, "c")
    assert link.publishes == [("r/a", b"1", 2, 1, True, False)]


def test_an_unsubscription_of_before_ends_what_is_in_flight(tmp_path: Path) -> None:
    """Its record says nothing of that, and its group is gone."""
    broker = Broker(tmp_path / "data", with_state_db=False)
    subscribed(broker)
    broker.publish(broker.template("r", "a"), b"1")
    broker.step(0.1)
    number = broker.engine.sessions.by_client["c"].number
    broker.engine.core.journal.write({"op": "sub-", "s": number, "w": ["r", REST]})
    broker.step(1)
    broker.kill()
    broker.open()
    _, link = connect(broker, "c")
    assert link.publishes == []
    assert not broker.engine.queue_store.groups
    broker.stop()


# --- acknowledgements of the wrong kind -----------------------------------------------------


@pytest.mark.parametrize("source", ["live", "backlog", "retained", "queue"])
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_have_to_be_of_the_right_kind(
    broker: Broker, source: str, qos: int
) -> None:
    """PUBACK for QoS 1, PUBREC and then PUBCOMP for QoS 2. The others change nothing."""
    template = broker.template("r", "a", qos=qos, retain=source == "retained")
    if source == "retained":
        broker.publish(template, b"1")
        broker.step()
    session, link = connect(broker, "c", clean=source != "queue", credit=0)
    since = session.subscribe(("r", REST), at_qos(2))
    broker.step()
    if source == "retained":
        link.left = 10
        session.replay_retained(("r", REST), since)
    else:
        link.left = 0 if source == "backlog" else 10
        broker.publish(template, b"1")
        broker.step()
        link.left = 10
        session.ready()
    broker.step(0.1)
    assert [(body, sent, packet) for _, body, sent, packet, _, _ in link.publishes] == [
        (b"1", qos, 1)
    ]
    wrong = session.received if qos == 1 else session.acknowledged
    for answer in (wrong, session.completed):
        with pytest.raises(WrongAcknowledgement):
            answer(1, 1)
    if qos == 1:
        session.acknowledged(1, 1)
    else:
        session.received(1, 1)
        broker.step()
        assert link.pubrels == [1]
        session.completed(1, 1)
    wrong(1, 1)  # a packet id that is not in use is nobody's
    session.disconnect()


@pytest.mark.parametrize("clean", [False, True])
def test_what_stands_before_a_wrong_acknowledgement_counts(broker: Broker, clean: bool) -> None:
    """A client sends a run of them in one packet of the network; the error names the wrong one."""
    session, link = connect(broker, "c", clean=clean)
    session.subscribe(("r", REST), at_qos(2))
    broker.step()
    for body, qos in ((b"1", 2), (b"2", 2), (b"3", 1)):
        broker.publish(broker.template("r", "a", qos=qos), body)
        broker.step()
    assert [published[3] for published in link.publishes] == [1, 2, 3]
    with pytest.raises(WrongAcknowledgement, match="PUBREC for packet id 3,"):
        session.received(1, 3)
    broker.step()
    assert link.pubrels == [1, 2]
    with pytest.raises(WrongAcknowledgement, match="PUBCOMP for packet id 3 "):
        session.completed(1, 3)
    broker.step(1)
    session.disconnect()
    if clean:
        return
    _, link = connect(broker, "c")
    assert link.bodies == [b"3"]
    assert link.pubrels == []


@pytest.mark.parametrize("answer", ["PUBACK", "PUBREC with an error", "PUBREC"])
@pytest.mark.parametrize("clean", [False, True])
def test_a_run_may_begin_with_what_was_acknowledged_before(
    tmp_path: Path, clean: bool, answer: str
) -> None:
    """A client acknowledges what it got on two connections twice, and goes on in the same packet of
    the network with what it got once."""
    broker = Broker(tmp_path / "data", inflight_count_start=6, inflight_count_max=6)
    session, link = connect(broker, "c", clean=clean)
    session.subscribe(("a",), at_qos(2))
    broker.step()
    template = broker.template("a", qos=1 if answer == "PUBACK" else 2)
    for number in range(12):
        broker.publish(template, b"%d" % number)
        broker.step()
    assert [packet for *_, packet, _, _ in link.publishes] == [1, 2, 3, 4, 5, 6]
    answers = {
        "PUBACK": session.acknowledged,
        "PUBREC with an error": session.rejected,
        "PUBREC": session.received,
    }
    for first, count in ((3, 2), (2, 1), (1, 1), (1, 5), (4, 3)):
        answers[answer](first, count)
    broker.step()
    if answer == "PUBREC":
        assert len(link.publishes) == 6
        for first, count in ((1, 3), (2, 5)):
            session.completed(first, count)
        broker.step()
    assert [packet for *_, packet, _, _ in link.publishes[6:]] == [7, 8, 9, 10, 11, 12]
    broker.stop()


# --- many at once ---------------------------------------------------------------------------


def in_flight(directory: Path, count: int) -> tuple[Broker, Session, SpyLink]:
    """A session to which so many messages were sent, all that it may have in flight."""
    broker = Broker(directory / "data", inflight_count_start=count, inflight_count_max=count)
    session, link = connect(broker, "c", credit=2 * count)
    session.subscribe(("a",), at_qos(1))
    broker.step()
    for first in range(0, 2 * count, 100):
        numbers = range(first, first + 100)
        broker.publish(broker.template("a"), *[b"%d" % number for number in numbers])
        broker.step()
    assert [packet for *_, packet, _, _ in link.publishes] == list(range(1, count + 1))
    return broker, session, link


def test_acknowledgements_of_one_read_are_followed_by_one_delivery(tmp_path: Path) -> None:
    """Out of order each opens the window by one. A delivery for each would be a record for each."""
    broker, session, link = in_flight(tmp_path, 200)
    before = broker.store.log.appended
    for packet in range(200, 0, -1):
        session.acknowledged(packet, 1, True)
    assert len(link.publishes) == 200
    session.resume_if_starved()
    broker.step()
    assert [body for _, body, *_ in link.publishes[200:]] == [b"%d" % n for n in range(200, 400)]
    assert broker.store.log.appended - before < 1000
    broker.stop()


def test_what_was_acknowledged_in_part_is_sent_again_in_steps(tmp_path: Path) -> None:
    """Each message that is left is a run of its own, and others have their turn meanwhile."""
    count = 20 * RESENT_AT_ONCE
    broker, session, _ = in_flight(tmp_path, count)
    for packet in range(2, count + 1, 2):
        session.acknowledged(packet, 1, True)
    broker.step(0.1)
    session.disconnect()
    link = SpyLink(credit=0)  # nothing new
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    broker.step()
    session.resume()
    assert len(link.publishes) == RESENT_AT_ONCE
    broker.step()
    assert [packet for *_, packet, _, _ in link.publishes] == list(range(1, count + 1, 2))
    assert all(duplicate for *_, duplicate, _ in link.publishes)
    broker.stop()


def test_one_at_a_time_until_the_window_opens_again(tmp_path: Path) -> None:
    """Both what is sent again and what is new: each waits for the acknowledgement of the one before
    it. Then the connection has the window that it asked for."""
    broker, session, _ = in_flight(tmp_path, 6)
    session.disconnect()
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=4
    )
    session.send_singly(True)
    broker.step()
    session.resume()
    for packet in range(1, 9):
        broker.step()
        assert [found for *_, found, _, _ in link.publishes] == list(range(1, packet + 1))
        session.acknowledged(packet, 1)
    broker.step()
    session.send_singly(False)
    session.acknowledged(9, 1)
    broker.step()
    assert [found for *_, found, _, _ in link.publishes] == list(range(1, 14))
    broker.stop()
