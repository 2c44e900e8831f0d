"""What waits for a persistent session has a bound: the oldest or the newest give way."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

from polymq.broker.port import REST
from polymq.broker.sessions.backlog import Backlog
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, Overflow, SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos

WAITING_MAX = 5
WAYS = ["reconnect", "stop", "kill"]


def bounded(
    path: Path, overflow: Overflow = DROP_OLDEST, *, waiting_max: int = WAITING_MAX
) -> Broker:
    """A broker whose sessions have a bound."""
    broker = Broker(path / "data")
    broker.session_settings = SessionSettings(waiting_max=waiting_max, overflow=overflow)
    broker.restart()
    return broker


def subscribe(broker: Broker, *topics: str, qos: int = 1) -> None:
    """Client `c` subscribes, and goes away."""
    session, _ = connect(broker, "c")
    for topic in topics:
        session.subscribe((topic, REST), at_qos(qos))
    broker.step()
    session.disconnect()


def publish(broker: Broker, numbers: range, topic: str = "a", qos: int = 1) -> None:
    """One message after the other, each in an iteration of its own."""
    for number in numbers:
        broker.publish(broker.template(topic, "b", qos=qos), b"%d" % number)
        broker.step()


def come_back(broker: Broker, way: str = "reconnect") -> SpyLink:
    """The client comes back, before or after a restart; what it gets."""
    if way != "reconnect":
        broker.step(2.0)  # what gathers is written
        start_again(broker, way)
        broker.step()
    _, link = connect(broker, "c")
    return link


def numbers(link: SpyLink) -> list[int]:
    return [int(body) for body in link.bodies]


# --- the oldest ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_oldest_give_way(tmp_path: Path, way: str) -> None:
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    publish(broker, range(12))
    assert broker.engine.sessions.backlogs.dropped_count == 7
    given_up = broker.engine.named_queues.dead_letters.counts.given_up
    assert {str(cause): count for cause, count in given_up.items() if count} == {"maxlen": 7}
    assert numbers(come_back(broker, way)) == [7, 8, 9, 10, 11]
    assert broker.engine.sessions.backlogs.dropped_count == (7 if way == "reconnect" else 0)
    broker.stop()


def test_a_run_that_is_longer_than_the_bound_loses_its_beginning(tmp_path: Path) -> None:
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    broker.publish(broker.template("a", "b"), *[b"%d" % n for n in range(40)])
    broker.step()
    assert numbers(come_back(broker)) == [35, 36, 37, 38, 39]
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tail", ["in memory", "on the disk"])
def test_the_oldest_of_all_subscriptions_go_first(tmp_path: Path, way: str, tail: str) -> None:
    """Whichever subscription they came by, and wherever their entries are."""
    broker = bounded(tmp_path, waiting_max=60)
    subscribe(broker, "a", "c", "d")
    publish(broker, range(20), "a")
    publish(broker, range(20, 30), "c")
    publish(broker, range(30, 50), "a")
    if tail == "on the disk":
        broker.save()
        broker.restart()
        broker.step()
    publish(broker, range(50, 64), "d")
    broker.publish(broker.template("a", "b"), *[b"%d" % n for n in range(64, 100)])
    broker.step()
    link = come_back(broker, way)
    while (unacked := broker.engine.sessions.by_client["c"].unacked).count:
        broker.engine.sessions.by_client["c"].acknowledged(unacked.first_tag, unacked.count)
        broker.step()
    assert sorted(numbers(link)) == list(range(40, 100))
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window_max", [65_536, 4])
def test_what_is_in_flight_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, qos: int, window_max: int
) -> None:
    """It is sent again with its packet ids, then what waits; also where the subscription got a
    group of its own meanwhile, so that no cursor has a byte for each dropped message."""
    monkeypatch.setattr("polymq.broker.sessions.backlogs.WINDOW_MAX", window_max)
    broker = bounded(tmp_path)
    session, link = connect(broker, "c")
    session.subscribe(("a", REST), at_qos(qos))
    broker.step()
    publish(broker, range(3), qos=qos)
    assert [p[3] for p in link.publishes] == [1, 2, 3]
    session.disconnect()
    publish(broker, range(3, 30), qos=qos)
    groups = broker.engine.queue_store.groups
    assert len(groups) == (1 if window_max > 4 else 2)
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 25, 26, 27, 28, 29]
    assert [p[3] for p in link.publishes] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [p[4] for p in link.publishes] == [True] * 3 + [False] * 5
    session = broker.engine.sessions.by_client["c"]
    if qos == 2:
        session.received(1, 8)
        broker.step()
        session.completed(1, 8)
    else:
        session.acknowledged(1, 8)
    broker.step(2.0)
    publish(broker, range(30, 32), qos=qos)
    assert numbers(link)[8:] == [30, 31]
    assert len(broker.engine.queue_store.groups) == 1
    broker.stop()


def test_a_slow_client_that_is_there_is_bounded_too(tmp_path: Path) -> None:
    broker = bounded(tmp_path)
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=2
    )
    broker.step()
    session.resume()
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    publish(broker, range(20))
    assert numbers(link) == [0, 1]
    for packet_id in range(1, 8):
        session.acknowledged(packet_id, 1)
        broker.step()
    assert numbers(link) == [0, 1, 15, 16, 17, 18, 19]
    broker.stop()


def test_a_client_that_keeps_up_loses_nothing(tmp_path: Path) -> None:
    broker = bounded(tmp_path, waiting_max=1)
    session, link = connect(broker, "c")
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    for n in range(30):
        publish(broker, range(n, n + 1))
        session.acknowledged(n + 1, 1)
    assert numbers(link) == list(range(30))
    assert broker.engine.sessions.backlogs.dropped_count == 0
    broker.stop()


def test_what_was_dropped_lets_go_of_the_log(tmp_path: Path) -> None:
    broker = bounded(tmp_path)
    broker.port.topics.create("a", 1, {"retention_bytes": "100000"})
    subscribe(broker, "a")
    for _ in range(30):
        broker.publish(broker.template("a", "b"), bytes(100_000))
        broker.step()
    assert broker.tidy() > 1_000_000
    broker.kill()
    broker.open()
    broker.step()
    assert len(come_back(broker).publishes) == WAITING_MAX
    broker.stop()


# --- the newest ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_newest_give_way(tmp_path: Path, way: str) -> None:
    """And what comes after the client has taken what waited is delivered again."""
    broker = bounded(tmp_path, DROP_NEWEST)
    subscribe(broker, "a")
    publish(broker, range(12))
    assert broker.engine.sessions.backlogs.dropped_count == 7
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 3, 4]
    broker.step(1.0)
    publish(broker, range(12, 15))
    assert numbers(link) == [0, 1, 2, 3, 4, 12, 13, 14]
    assert [p[3] for p in link.publishes] == [1, 2, 3, 4, 5, 6, 7, 8]
    session = broker.engine.sessions.by_client["c"]
    session.acknowledged(1, 8)
    session.disconnect()
    publish(broker, range(15, 17))
    assert numbers(come_back(broker, way)) == [15, 16]
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_long_stretch_that_was_left_out_is_passed_with_something_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("polymq.broker.sessions.backlogs.WINDOW_MAX", 10)
    broker = bounded(tmp_path, DROP_NEWEST)
    subscribe(broker, "a")
    publish(broker, range(100))
    link = come_back(broker)
    broker.step(1.0)
    publish(broker, range(100, 102))
    assert numbers(link) == [0, 1, 2, 3, 4, 100, 101]
    broker.engine.sessions.by_client["c"].disconnect()
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 3, 4, 100, 101]
    assert {p[4] for p in link.publishes} == {True}
    broker.stop()


def test_a_run_is_taken_as_far_as_there_is_room(tmp_path: Path) -> None:
    broker = bounded(tmp_path, DROP_NEWEST)
    subscribe(broker, "a", "c")
    publish(broker, range(2), "c")
    broker.publish(broker.template("a", "b"), *[b"%d" % n for n in range(10, 50)])
    broker.step()
    assert sorted(numbers(come_back(broker))) == [0, 1, 10, 11, 12]
    assert broker.engine.sessions.backlogs.dropped_count == 37
    broker.stop()


def test_what_was_left_out_lets_go_of_the_log(tmp_path: Path) -> None:
    """As soon as the client has what came before, though nothing more is published."""
    broker = bounded(tmp_path, DROP_NEWEST)
    broker.port.topics.create("a", 1, {"retention_bytes": "100000"})
    subscribe(broker, "a")
    for _ in range(30):
        broker.publish(broker.template("a", "b"), bytes(100_000))
        broker.step()
    assert broker.tidy() == 0
    session, link = connect(broker, "c")
    session.acknowledged(1, len(link.publishes))
    broker.step(20.0)
    assert broker.tidy() > 1_000_000
    broker.stop()


def test_without_the_bound_stopped_subscriptions_go_on(tmp_path: Path) -> None:
    """The operator lifts it: what was left out is still there, and nothing stays stopped."""
    broker = bounded(tmp_path, DROP_NEWEST)
    subscribe(broker, "a")
    publish(broker, range(9))
    broker.session_settings = None
    broker.restart()
    broker.step()
    publish(broker, range(9, 11))
    assert numbers(come_back(broker)) == list(range(11))
    broker.stop()


# --- both ------------------------------------------------------------------------------------


def test_sessions_have_no_bound_where_none_was_asked_for(broker: Broker) -> None:
    """The default: acknowledged messages are not lost."""
    subscribe(broker, "a")
    for _ in range(20):
        broker.publish(broker.template("a", "b"), *[b"%d" % n for n in range(500)])
        broker.step()
    _, link = connect(broker, "c", credit=100_000)
    session = broker.engine.sessions.by_client["c"]
    while len(link.publishes) < 10_000:
        session.acknowledged(1 + len(link.publishes) - session.unacked.count, session.unacked.count)
        broker.step()
    assert broker.engine.sessions.backlogs.dropped_count == 0


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_a_full_session_is_told_of_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overflow: Overflow
) -> None:
    broker = bounded(tmp_path, overflow)
    subscribe(broker, "a")
    caplog.set_level(logging.WARNING, "polymq.broker")
    publish(broker, range(100))
    assert [record.message for record in caplog.records] == [
        "an MQTT session is full and loses messages"
    ]
    broker.step(61)
    publish(broker, range(3))
    assert len(caplog.records) == 2
    lost = [vars(record)["lost"] for record in caplog.records]
    assert lost[1] == 95 + 3 - lost[0] - 2
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_qos_0_for_a_client_that_is_away_takes_no_room(tmp_path: Path, overflow: Overflow) -> None:
    broker = bounded(tmp_path, overflow)
    subscribe(broker, "a")
    publish(broker, range(20), qos=0)
    publish(broker, range(20, 25))
    assert broker.engine.sessions.backlogs.dropped_count == 0
    assert numbers(come_back(broker)) == [20, 21, 22, 23, 24]
    broker.stop()


def test_full_sessions_are_seen_to_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymq.broker.sessions.backlogs.SLICE_COUNT", 3)
    broker = bounded(tmp_path)
    for n in range(10):
        session, _ = connect(broker, f"c{n}")
        session.subscribe(("a", REST), at_qos(1))
        broker.step()
        session.disconnect()
    publish(broker, range(8))
    assert broker.engine.sessions.backlogs.dropped_count == 30
    for n in range(10):
        assert numbers(connect(broker, f"c{n}")[1]) == [3, 4, 5, 6, 7]
    broker.stop()


@pytest.mark.slow
def test_an_ended_session_that_was_full_leaves_nothing(tmp_path: Path) -> None:
    """No cycle: the garbage collector looks only at what is new (see `polymq/pauses.py`)."""
    broker = bounded(tmp_path)

    def found() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, (MqttSession, Backlog))]

    gc.collect()
    gc.disable()
    try:
        before = set(map(id, found()))  # of other tests
        subscribe(broker, "a", "c")
        publish(broker, range(12))
        publish(broker, range(12, 20), qos=0)
        publish(broker, range(20, 30), "c")
        session, _ = connect(broker, "c", clean=True)
        session.disconnect()
        del session
        broker.step(2.0)
        left = [one for one in found() if id(one) not in before]
    finally:
        gc.enable()
    assert left == []
    broker.stop()


def test_what_was_dropped_before_something_was_sent_stays_dropped(tmp_path: Path) -> None:
    """The log says it first: after a crash nobody could tell it from what was sent and requeued."""
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    publish(broker, range(20))
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=2
    )
    broker.step()
    session.resume()
    broker.step()
    assert numbers(link) == [15, 16]
    broker.step(3.0)
    assert numbers(come_back(broker, "kill")) == [15, 16, 17, 18, 19]
    broker.stop()
