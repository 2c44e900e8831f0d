"""Sessions whose clients stay away end after a time; and what does not wait for them meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.port import REST, Durability
from polymq.broker.sessions.inspection import inspect_session
from polymq.broker.sessions.settings import SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, at_qos

EXPIRY_SECONDS = 100.0


@pytest.fixture
def expiring(tmp_path: Path) -> Broker:
    """A broker whose sessions expire; started again with that setting."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(expiry_seconds=EXPIRY_SECONDS)
    broker.restart()
    return broker


def subscribe(broker: Broker, client: str = "c", qos: int = 1) -> None:
    """The client subscribes, and goes away."""
    session, _ = connect(broker, client)
    session.subscribe(("a", REST), at_qos(qos))
    broker.step()
    session.disconnect()


def is_there(broker: Broker, client: str = "c") -> bool:
    """Whether the client's session is, without connecting to it."""
    return client in broker.engine.sessions.by_client


# --- expiry ---------------------------------------------------------------------------------


def test_a_session_ends_when_its_client_stays_away(expiring: Broker) -> None:
    """Not before its time, and a tenth later at most; nothing of it is left."""
    broker = expiring
    subscribe(broker)
    broker.publish(broker.template("a", "b"), b"x")
    broker.step(EXPIRY_SECONDS)
    assert is_there(broker)
    broker.step(EXPIRY_SECONDS / 5)
    assert not is_there(broker)
    assert broker.engine.queue_store.groups == {}
    assert broker.engine.sessions.filters == {}
    assert broker.engine.sessions.expiry.expired_count == 1
    session, link = connect(broker, "c")
    assert not session.present
    assert link.publishes == []
    session.disconnect()
    broker.stop()


def test_a_client_that_is_there_or_comes_back_keeps_its_session(expiring: Broker) -> None:
    """Each absence counts by itself."""
    broker = expiring
    staying, _ = connect(broker, "staying")
    subscribe(broker)
    for _ in range(4):
        broker.step(EXPIRY_SECONDS * 0.7)
        session, _ = connect(broker, "c")
        assert session.present
        session.disconnect()
    assert is_there(broker, "staying")
    staying.disconnect()
    broker.stop()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_restart_does_not_begin_to_count_anew(expiring: Broker, way: str) -> None:
    """Whatever others were there until then."""
    broker = expiring
    connect(broker, "staying")
    subscribe(broker)
    broker.step(EXPIRY_SECONDS * 0.6)
    start_again(broker, way)
    broker.step(EXPIRY_SECONDS * 0.3)
    assert is_there(broker)
    broker.step(EXPIRY_SECONDS * 0.4)
    assert not is_there(broker)
    broker.stop()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_who_came_back_before_a_restart_is_not_taken_for_away(expiring: Broker, way: str) -> None:
    broker = expiring
    subscribe(broker)
    broker.step(EXPIRY_SECONDS * 0.9)
    session, _ = connect(broker, "c")
    assert session.present
    broker.step(1)
    start_again(broker, way)
    broker.step(EXPIRY_SECONDS * 0.9)
    assert is_there(broker)
    broker.stop()


def test_an_expired_session_lets_go_of_the_log(expiring: Broker) -> None:
    broker = expiring
    broker.port.topics.create("a", 1, {"retention_bytes": "100000"})
    subscribe(broker)
    for _ in range(30):
        broker.publish(broker.template("a", "b"), bytes(100_000))
        broker.step()
    assert broker.tidy() == 0
    registration = broker.engine.retention.holder
    assert registration is not None
    assert (registration.kind, registration.name) == ("session", "c")
    broker.step(2 * EXPIRY_SECONDS)
    assert broker.tidy() > 1_000_000
    broker.stop()


def test_sessions_end_in_slices(expiring: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of them are over at once, as after a long standstill."""
    monkeypatch.setattr("polymq.broker.sessions.expiry.SLICE_COUNT", 7)
    monkeypatch.setattr("polymq.broker.sessions.expiry.ENDED_COUNT", 4)
    monkeypatch.setattr("polymq.broker.sessions.expiry.NOTED_COUNT", 5)
    broker = expiring
    for n in range(30):
        subscribe(broker, f"c{n}")
    broker.step(2 * EXPIRY_SECONDS)
    assert not broker.engine.sessions.by_number
    broker.stop()


def test_sessions_stay_where_nothing_else_was_asked_for(broker: Broker) -> None:
    """The standard's way, and the default."""
    subscribe(broker)
    broker.step(10_000_000)
    assert is_there(broker)


# --- QoS 0 ----------------------------------------------------------------------------------


def publish_some(broker: Broker) -> None:
    """Three messages of QoS 0, and one of QoS 1 in their midst."""
    for n, qos in enumerate((0, 1, 0, 0)):
        durability = Durability.FLUSHED if qos else Durability.APPENDED
        broker.publish(broker.template("a", "b", qos=qos, durability=durability), b"%d" % n)
        broker.step()


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
def test_qos_0_does_not_wait_for_a_client_that_is_away(broker: Broker, way: str) -> None:
    """What has QoS 1 does, and what comes after the client is back comes at any QoS."""
    subscribe(broker)
    publish_some(broker)
    if way != "reconnect":
        start_again(broker, way)
    session, link = connect(broker, "c")
    assert link.bodies == [b"1"]
    publish_some(broker)
    broker.step()
    assert link.bodies == [b"1", b"0", b"1", b"2", b"3"]
    session.disconnect()


def test_a_subscription_that_went_down_to_qos_0_keeps_nothing_while_away(broker: Broker) -> None:
    subscribe(broker)
    subscribe(broker, qos=0)
    publish_some(broker)
    session, link = connect(broker, "c")
    assert link.bodies == []
    session.disconnect()


def test_qos_0_holds_nothing_of_the_log(broker: Broker) -> None:
    """Nothing is before it: so the place of the session in its queue moves on."""
    subscribe(broker)
    template = broker.template("a", "b", qos=0, durability=Durability.APPENDED)
    for _ in range(10):
        broker.publish(template, b"x", b"y")
        broker.step()
    (group,) = broker.engine.queue_store.groups.values()
    assert group.cursor.floor == group.queue.visible == 20
    assert group.ready_count == 0
    start_again(broker, "stop")
    (group,) = broker.engine.queue_store.groups.values()
    assert group.cursor.floor == 20


def test_qos_0_waits_where_that_was_asked_for(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(keeps_qos_0=True)
    broker.restart()
    subscribe(broker)
    publish_some(broker)
    session, link = connect(broker, "c")
    assert sorted(link.bodies) == [b"0", b"1", b"2", b"3"]
    session.disconnect()
    broker.stop()


# --- since when a client is away that may be away for ever ----------------------------------------


def away_ms(broker: Broker, client: str = "c") -> int:
    """Since when the client is away, as operators see it; 0: it is there, or that is not known."""
    steps = inspect_session(broker.engine.sessions.by_client[client])
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: int = end.value.away_ms
            return found


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_it_is_known_since_when_a_client_is_away(tmp_path: Path, way: str) -> None:
    """Also where its session never ends, and over restarts; until it comes back."""
    broker = Broker(tmp_path / "data")
    subscribe(broker)
    left_ms = broker.loop.clock_ms()
    broker.step(2.0)
    since_ms = away_ms(broker)
    assert left_ms <= since_ms <= left_ms + 2_000
    for seconds in (100.0, 3_000.0):
        broker.step(seconds)
        start_again(broker, way)
        broker.step(2.0)
        assert away_ms(broker) == since_ms
    _, _ = connect(broker, "c")
    assert away_ms(broker) == 0
    broker.step(2.0)
    start_again(broker, "kill")
    back_ms = broker.loop.clock_ms()
    broker.step(2.0)
    assert away_ms(broker) >= back_ms, "it was there until the crash"
    broker.stop()


def test_a_time_that_is_set_later_counts_from_then_on(tmp_path: Path) -> None:
    """Though it is known how long the client has been away, its session does not end at once."""
    broker = Broker(tmp_path / "data")
    subscribe(broker)
    broker.step(10 * EXPIRY_SECONDS)
    since_ms = away_ms(broker)
    broker.session_settings = SessionSettings(expiry_seconds=EXPIRY_SECONDS)
    broker.restart()
    broker.step(EXPIRY_SECONDS * 0.9)
    assert away_ms(broker) == since_ms
    broker.step(EXPIRY_SECONDS / 2)
    assert not is_there(broker)
    broker.stop()


def test_many_that_come_back_are_noted_together(tmp_path: Path) -> None:
    """Their sessions do not expire, so no answer waits for the note."""
    broker = Broker(tmp_path / "data")
    clients = [f"c{number}" for number in range(20)]
    for client in clients:
        subscribe(broker, client)
    broker.step(2.0)
    assert all(away_ms(broker, client) for client in clients)
    notes: list[int] = []
    write = broker.engine.core.journal.write

    def noted(op: dict[str, object]) -> object:
        if op["op"] == "left":
            notes.append(len(op["s"]))  # type: ignore[arg-type]
        return write(op)

    broker.engine.core.journal.write = noted  # type: ignore[assignment, method-assign]
    for client in clients:
        connect(broker, client)
    broker.step(2.0)
    assert notes == [len(clients)]
    broker.stop()
