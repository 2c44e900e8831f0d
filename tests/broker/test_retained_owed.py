"""Retained messages that a SUBSCRIBE of a persistent session asked for come, whatever happens to
its connection and the server meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import ONE_LEVEL, REST, Address, Session
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.state.journal import Op
from polymq.broker.topics.retained import position_of
from tests.broker.test_engine_sessions import connect, start_again
from tests.broker.test_lowered_subscriptions import acknowledge_all, got
from tests.broker.test_sessions_in_flight import EVERY_WAY, WITH_AND_WITHOUT, Pair, pair
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.harness.people import add_user, allow, port_of, take_back

__all__ = ["pair"]  # a fixture

COUNT = 100
"""More than the first window of a connection."""
BODIES = {b"%d" % n for n in range(COUNT)}


def retain(broker: Broker, qos: int = 1, count: int = COUNT) -> None:
    """So many retained messages below `r`."""
    for n in range(count):
        broker.publish(broker.template("r", f"{n:03}", qos=qos, retain=True), b"%d" % n)
        broker.step()


def subscribe(
    broker: Broker, session: Session, address: Address = ("r", REST), qos: int = 2
) -> None:
    """A SUBSCRIBE whose SUBACK leaves, and what comes at once."""
    since = session.subscribe(address, at_qos(qos))
    broker.step()
    session.replay_retained(address, since)
    broker.step(0.1)


def acknowledge(broker: Broker, session: Session, link: SpyLink, count: int) -> None:
    """The first messages, of whatever QoS."""
    for _, _, qos, packet_id, _, _ in link.publishes[:count]:
        if qos == 1:
            session.acknowledged(packet_id, 1)
        elif qos == 2:
            session.received(packet_id, 1)
            broker.step()
            session.completed(packet_id, 1)
        broker.step(0.1)


def rest(broker: Broker) -> list[tuple[bytes, int]]:
    """What a new connection gets for the first time: bodies and QoS."""
    session, link = connect(broker, "c")
    acknowledge_all(broker, session, link)
    session.disconnect()
    return got(link)


def owed_rows(broker: Broker) -> list[Any]:
    """What `state.db` says is owed to client `c`."""
    number = broker.engine.sessions.by_client["c"].number
    row = broker.engine.sessions.state.row(str(number))
    assert row is not None
    return list(row.get("owed", ()))


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize("acked", [0, 40])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_left_of_a_replay_comes_after_an_interruption(
    pair: Pair, way: str, qos: int, acked: int
) -> None:
    """[MQTT-3.3.1-6], part 4.1: each of them once."""
    broker = pair.broker
    retain(broker, qos)
    session, first = connect(broker, "c")
    subscribe(broker, session)
    acknowledge(broker, session, first, acked)
    assert len(first.publishes) < COUNT
    broker.step(1)
    broker = pair.interrupt(way, session)
    session, link = connect(broker, "c")
    acknowledge_all(broker, session, link)
    came = got(first) + got(link)
    assert dict(came) == dict.fromkeys(BODIES, qos)
    assert len(came) == COUNT, "what the client has had does not come again"
    assert all(retain for *_, retain in link.publishes)
    assert owed_rows(broker) == []
    session.disconnect()
    _, link = connect(broker, "c")
    assert link.publishes == [], "the replay has ended"


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
@pytest.mark.parametrize("seed", range(4))
def test_names_that_change_meanwhile(broker: Broker, way: str, seed: int) -> None:
    """Each message of before the SUBSCRIBE comes once or was replaced; each one of behind comes
    once, as a live one. Through many interruptions, while names come and go."""
    dice = random.Random(seed)
    retain(broker)
    session, link = connect(broker, "c")
    since = session.subscribe(("r", REST), at_qos(1))
    if dice.random() < 0.5:  # else the connection ends before its SUBACK
        broker.step()
        session.replay_retained(("r", REST), since)
    came: Counter[tuple[bytes, bool]] = Counter()
    live: set[bytes] = set()
    replaced: set[bytes] = set()
    for turn in range(12):
        for n in range(dice.randrange(6)):
            tag = dice.choice([f"{dice.randrange(COUNT):03}", f"new{dice.randrange(9)}"])
            body = b"%d.%d" % (turn, n) if dice.random() < 0.7 else b""
            broker.publish(broker.template("r", tag, retain=True), body)
            broker.step(0.1)
            replaced.add(b"%d" % int(tag) if tag.isdigit() else b"")
            live |= {body}
        acknowledge(broker, session, link, dice.randrange(20))
        broker.step(1)
        came.update((body, retain) for _, body, _, _, dup, retain in link.publishes if not dup)
        if way == "reconnect":
            session.disconnect()
        else:
            start_again(broker, way)
        session, link = connect(broker, "c")
    acknowledge_all(broker, session, link)
    came.update((body, retain) for _, body, _, _, dup, retain in link.publishes if not dup)
    first = {body for body, retain in came if retain}
    assert BODIES - replaced <= first <= BODIES
    assert {body for body, retain in came if not retain} == live
    assert all(count == 1 for (body, _), count in came.items() if body)
    session.disconnect()


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
@pytest.mark.parametrize(
    "address", [(REST,), ("r", ONE_LEVEL), (ONE_LEVEL, REST), ("r", "007"), ("r", "1", REST)]
)
def test_every_kind_of_filter(broker: Broker, way: str, address: Address) -> None:
    retain(broker)
    broker.publish(broker.template("r", "1", retain=True), b"one")
    broker.publish(broker.template("r", "1.x", retain=True), b"below")
    broker.publish(broker.template("s", retain=True), b"other")
    broker.step()
    matching = {
        (REST,): BODIES | {b"one", b"below", b"other"},
        ("r", ONE_LEVEL): BODIES | {b"one"},
        (ONE_LEVEL, REST): BODIES | {b"one", b"below", b"other"},
        ("r", "007"): {b"7"},
        ("r", "1", REST): {b"one", b"below"},
    }[address]
    session, first = connect(broker, "c")
    session.subscribe(address, at_qos(1))
    broker.step(1)
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)
    came = got(first) + rest(broker)
    assert Counter(body for body, _ in came) == Counter(matching)


@pytest.mark.parametrize("way", ["stop", "kill"])
@pytest.mark.parametrize("with_state_db", [True, False])
def test_a_message_that_retention_copies_stays_owed(pair: Pair, way: str) -> None:
    """Its copy stands behind the SUBSCRIBE, and is as old as it was."""
    broker = pair.broker
    retain(broker)
    session, first = connect(broker, "c")
    subscribe(broker, session)
    for address, entry in list(filter(None, broker.engine.retained.entries())):
        position = position_of(entry)
        record = broker.store.record_at(position)
        assert broker.engine.retention._copy_one(address, position, record)
    broker.step(1)
    broker = pair.interrupt(way, session)
    assert {body for body, _ in got(first) + rest(broker)} == BODIES


def test_a_new_subscribe_begins_anew(broker: Broker) -> None:
    """[MQTT-3.8.4-3]: all of them come again, and none of the first SUBSCRIBE beside them."""
    retain(broker)
    session, link = connect(broker, "c")
    subscribe(broker, session)
    acknowledge(broker, session, link, 10)
    before = len(link.publishes)
    assert before < COUNT
    subscribe(broker, session, qos=1)
    acknowledge_all(broker, session, link)
    assert Counter(link.bodies[before:]) == Counter(BODIES)
    subscribe(broker, session)
    acknowledge_all(broker, session, link, before + COUNT)
    assert Counter(link.bodies[before + COUNT :]) == Counter(BODIES)
    session.disconnect()
    assert rest(broker) == []


def test_a_subscribe_whose_suback_comes_late_is_served_once(broker: Broker) -> None:
    """The second one takes the place of the first, whose SUBACK begins."""
    retain(broker)
    session, link = connect(broker, "c")
    sinces = [session.subscribe(("r", REST), at_qos(1)) for _ in range(2)]
    broker.step()
    for since in sinces:
        session.replay_retained(("r", REST), since)
        broker.step(0.1)
        acknowledge_all(broker, session, link)
    assert Counter(link.bodies) == Counter(BODIES)
    session.disconnect()


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscribe_that_asks_for_none_leaves_what_an_earlier_one_asked_for(
    broker: Broker, way: str, qos: int
) -> None:
    """[MQTT-3.3.1-11] says what is sent because of that SUBSCRIBE, and replacing a subscription
    loses nothing [MQTT-3.8.4-3]."""
    retain(broker)
    session, first = connect(broker, "c")
    session.subscribe(("r", REST), at_qos(1), retained=False)
    broker.step(1)
    assert (owed_rows(broker), first.publishes) == ([], [])
    subscribe(broker, session, qos=1)
    assert 0 < len(first.publishes) < COUNT
    session.subscribe(("r", REST), at_qos(qos), retained=False)
    broker.step(1)
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)
    session, link = connect(broker, "c")
    acknowledge_all(broker, session, link)
    assert {body for _, body, *_ in link.publishes} == BODIES


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
@pytest.mark.parametrize("how", ["unsubscribe", "lower", "again"])
def test_who_does_not_want_the_rest_does_not_get_it(broker: Broker, way: str, how: str) -> None:
    """After UNSUBSCRIBE, a SUBSCRIBE with QoS 0, and both with a new subscription behind."""
    retain(broker)
    session, first = connect(broker, "c")
    subscribe(broker, session)
    assert owed_rows(broker)
    if how == "lower":
        session.subscribe(("r", REST), at_qos(0))
    else:
        session.unsubscribe(("r", REST))
    if how == "again":
        for n in range(COUNT):
            broker.publish(broker.template("r", f"{n:03}", retain=True), b"")
        session.subscribe(("r", REST), at_qos(1))
    broker.step(1)
    assert owed_rows(broker) == []
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)
    assert len(first.publishes) < COUNT
    assert rest(broker) == []


@pytest.mark.parametrize("keeps_qos_0", [True, False])
def test_what_is_sent_with_qos_0_waits_only_where_that_was_asked_for(
    tmp_path: Path, keeps_qos_0: bool
) -> None:
    """Published with QoS 0, between others: each comes once, or not at all."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(keeps_qos_0=keeps_qos_0)
    broker.restart()
    retain(broker)
    zeros = {b"zero %d" % n for n in range(COUNT)}
    for n in range(COUNT):
        broker.publish(broker.template("r", f"{n:03}.z", qos=0, retain=True), b"zero %d" % n)
        broker.step(0.1)
    session, link = connect(broker, "c")
    subscribe(broker, session)
    came = got(link)
    assert 0 < len(came) < 2 * COUNT
    session.disconnect()
    came += rest(broker)
    assert len(came) == len(set(came))
    assert {body for body, qos in came if qos} == BODIES
    assert ({body for body, qos in came if not qos} == zeros) == keeps_qos_0
    broker.stop()


def test_a_connection_ends_while_the_log_takes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read and could not be sent is still owed. What could be sent stays in order."""
    retain(broker)
    session, link = connect(broker, "c")
    since = session.subscribe(("r", REST), at_qos(1))
    broker.step()
    journal = broker.engine.core.journal
    write = journal.write
    written = 0

    def refuse_some(op: Op) -> Any:
        nonlocal written
        written += op["op"] in ("assign", "replayed")
        if op["op"] in ("assign", "replayed") and written % 3:
            raise Refused(Reason.LIMIT, "the disk does not keep up")
        return write(op)

    monkeypatch.setattr(journal, "write", refuse_some)
    session.replay_retained(("r", REST), since)
    broker.step(1)
    assert 0 < len(link.publishes) < COUNT
    session.disconnect()
    came = got(link)
    session, link = connect(broker, "c")
    for _ in range(3 * COUNT):
        acknowledge_all(broker, session, link)
        broker.step(1)
    assert owed_rows(broker) == []
    came += got(link)
    assert [body for body, _ in came] == [b"%d" % n for n in range(COUNT)]
    session.disconnect()


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
def test_records_that_are_read_in_another_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """They leave in the order of names: else the log could not say how far they have come."""
    retain(broker)
    session, link = connect(broker, "c")
    since = session.subscribe(("r", REST), at_qos(1))
    broker.step()
    reading = broker.engine.core.reading
    read_entries = reading.read_entries
    asked: list[tuple[bytes, Any]] = []
    monkeypatch.setattr(reading, "read_entries", lambda *ask: asked.append(ask))
    session.replay_retained(("r", REST), since)
    broker.step(0.1)
    assert len(asked) > 10
    for entry, done in asked[:4:-1]:  # the first five never come
        read_entries(entry, done)
        broker.step(0.1)
    assert link.publishes == []
    for entry, done in asked[3::-1]:  # the fifth never comes
        read_entries(entry, done)
        broker.step(0.1)
    assert link.bodies == [b"%d" % n for n in range(4)]
    monkeypatch.undo()
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)
    came = got(link) + rest(broker)
    assert [body for body, _ in came] == [b"%d" % n for n in range(COUNT)]


def test_a_user_who_may_not_read_it_any_more_gets_nothing(broker: Broker) -> None:
    """The subscription ends when the client comes back, and what it is owed and what is in flight
    with it. What it may read still comes."""
    retain(broker)
    add_user(broker, "ann")
    allow(broker, "ann", "subscribe", "r/#")
    allow(broker, "ann", "subscribe", "s/#")
    broker.publish(broker.template("s", "a", retain=True), b"other")
    broker.step()
    session, link = connect(broker, "c", user="ann")
    subscribe(broker, session, ("s", REST))
    subscribe(broker, session)
    assert len(link.publishes) > 10
    session.disconnect()
    take_back(broker, "ann", "subscribe", "r/#")
    link = SpyLink()
    again = port_of(broker, "ann").sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="ann"
    )
    broker.step()
    again.resume()
    broker.step(1)
    assert link.publishes == [("s/a", b"other", 1, 1, True, True)]
    assert owed_rows(broker) == []
    assert len(broker.engine.sessions.state.retained.positions()) == 1, "the log is let go"
    again.acknowledged(1, 1)
    broker.step(1)
    start_again(broker, "kill")
    assert broker.engine.sessions.state.retained.positions() == []


def test_a_subscription_to_nothing_is_owed_nothing(broker: Broker) -> None:
    """Its record and its row are what they were."""
    retain(broker, count=1)
    session, link = connect(broker, "c")
    subscribe(broker, session, ("s", REST))
    subscribe(broker, session, ("s", "t"))
    assert owed_rows(broker) == []
    subscribe(broker, session, (REST, "t"))  # nobody knows that before all names were looked at
    assert owed_rows(broker) == []
    assert link.publishes == []
    session.disconnect()


def test_a_session_that_ended_is_owed_nothing(broker: Broker) -> None:
    retain(broker)
    session, _ = connect(broker, "c")
    subscribe(broker, session)
    session.disconnect()
    session, _ = connect(broker, "c", clean=True)
    session.disconnect()
    assert rest(broker) == []
