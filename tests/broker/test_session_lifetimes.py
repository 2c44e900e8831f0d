"""How long each session outlives its connection: as its client and the operator say."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.accounts.quotas import Quotas
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, Session
from polymq.broker.sessions.expiry import ALIVE_LATE_MS, ALIVE_SECONDS
from polymq.broker.sessions.settings import SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.harness.people import port_of

HOUR = 3600
LATE = 1 / 16
"""A session may live so much longer than it should, and a second."""


def is_there(broker: Broker, client: str = "c") -> bool:
    """Whether the client's session is, without connecting to it."""
    return client in broker.engine.sessions.by_client


def stay(broker: Broker, seconds: int | None, client: str = "c") -> Session:
    """A client with such a session subscribes, and stays."""
    session, _ = connect(broker, client, expiry_seconds=seconds)
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    return session


@pytest.mark.parametrize("seconds", [1, 5, 100, HOUR, 30 * 24 * HOUR])
def test_a_session_lives_as_long_as_its_client_says(broker: Broker, seconds: int) -> None:
    """Never shorter; longer by little."""
    stay(broker, seconds).disconnect()
    broker.step(seconds - 0.5)
    assert is_there(broker)
    broker.step(seconds * LATE + 2)
    assert not is_there(broker)
    assert broker.engine.queue_store.groups == {}
    assert broker.engine.sessions.expiry.expired_count == 1


def test_sessions_differ(broker: Broker) -> None:
    """Each has its own time, and some have none."""
    for seconds in (10, 1000, None):
        stay(broker, seconds, f"c{seconds}").disconnect()
    broker.step(20)
    assert list(broker.engine.sessions.by_client) == ["c1000", "cNone"]
    broker.step(2000)
    assert list(broker.engine.sessions.by_client) == ["cNone"]


@pytest.mark.parametrize(
    ("asked", "allowed", "granted"),
    [(10, 100.0, 10), (1000, 100.0, 100), (None, 100.0, 100), (1000, 0.0, 1000), (None, 0.0, None)],
)
def test_the_operators_bound_counts_as_well(
    tmp_path: Path, asked: int | None, allowed: float, granted: int | None
) -> None:
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(expiry_seconds=allowed)
    broker.restart()
    session = stay(broker, asked)
    assert session.expiry_seconds == granted
    session.disconnect()
    if granted is None:
        broker.step(1_000_000)
        assert is_there(broker)
    else:
        broker.step(granted - 1)
        assert is_there(broker)
        broker.step(granted * LATE + 3)
        assert not is_there(broker)
    broker.stop()


def test_a_session_that_resumes_may_end_with_its_connection(broker: Broker) -> None:
    """It has all that it had; with the connection it goes, and leaves nothing."""
    stay(broker, None).disconnect()
    broker.publish(broker.template("a", "b"), b"x")
    broker.step()
    session, link = connect(broker, "c", expiry_seconds=0)
    assert session.present
    assert session.expiry_seconds == 0
    assert link.bodies == [b"x"]
    session.disconnect()
    assert not is_there(broker)
    broker.step(1)
    assert broker.engine.queue_store.groups == {}
    assert broker.engine.sessions.filters == {}
    assert not connect(broker, "c")[0].present


def test_a_new_session_that_ends_with_its_connection_is_not_in_the_log(broker: Broker) -> None:
    end = broker.store.log.appended
    session, _ = connect(broker, "c", expiry_seconds=0)
    assert session.expiry_seconds == 0
    session.disconnect()
    broker.step(20)
    assert broker.store.log.appended == end
    assert not is_there(broker)


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_crash_ends_sessions_that_end_with_their_connections(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """No connection came back, whenever its client does."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    for client in ("soon", "late"):
        stay(broker, None, client).disconnect()
        connect(broker, client, expiry_seconds=0)
    start_again(broker, way)
    link = SpyLink()
    session = broker.port.sessions.connect(
        "soon", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    assert not session.present
    broker.step()
    assert not is_there(broker, "late")
    assert broker.engine.queue_store.groups == {}
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_restart_knows_how_long_sessions_live(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    stay(broker, 1000, "short").disconnect()
    stay(broker, None, "long").disconnect()
    changed = stay(broker, 10, "changed")
    changed.disconnect()
    again, _ = connect(broker, "changed", expiry_seconds=100_000)
    assert again.present
    again.disconnect()
    broker.step(600)
    start_again(broker, way)
    broker.step(390)
    assert is_there(broker, "short")
    broker.step(80)
    assert not is_there(broker, "short")
    assert is_there(broker, "changed")
    assert is_there(broker, "long")
    broker.stop()


@pytest.mark.parametrize("connected_seconds", [1, 12345])
def test_a_client_that_was_there_at_a_crash_is_away_since_then(
    broker: Broker, connected_seconds: int
) -> None:
    """However long the server was down, and however quiet it was before: the session is neither
    shorter than it may be, nor much longer."""
    session = stay(broker, 1000)
    assert session.expiry_seconds == 1000
    broker.step(connected_seconds)
    broker.kill()
    broker.open(down_seconds=900)
    broker.step(99)
    assert is_there(broker)
    broker.step(1000 * LATE + ALIVE_LATE_MS / 1000 + 2)
    assert not is_there(broker)


def test_nothing_is_written_while_nobody_may_expire(broker: Broker) -> None:
    """That the server lives is said for those whom it concerns, and while they are there."""
    end = broker.store.log.appended
    stay(broker, None)
    before = broker.store.log.appended
    broker.step(10 * ALIVE_SECONDS)
    assert broker.store.log.appended == before > end
    session = stay(broker, 1000, "d")
    before = broker.store.log.appended
    broker.step(10 * ALIVE_SECONDS)
    assert broker.store.log.appended > before
    session.disconnect()
    broker.step(2 * ALIVE_SECONDS)
    before = broker.store.log.appended
    broker.step(10 * ALIVE_SECONDS)
    assert broker.store.log.appended == before


def test_a_disconnect_changes_how_long(broker: Broker) -> None:
    """Longer, shorter, or not at all [MQTT-3.1.2-23]."""
    for client, seconds in (("longer", 1000), ("shorter", 10), ("for ever", None), ("not", 0)):
        session = stay(broker, 100, client)
        session.expire_after(seconds)
        session.disconnect()
    assert list(broker.engine.sessions.by_client) == ["longer", "shorter", "for ever"]
    broker.step(50)
    assert list(broker.engine.sessions.by_client) == ["longer", "for ever"]
    broker.step(500)
    assert is_there(broker, "longer")
    broker.step(1000)
    assert list(broker.engine.sessions.by_client) == ["for ever"]


@pytest.mark.parametrize("resumed", [True, False])
def test_a_session_that_was_to_end_is_not_kept_by_a_disconnect(
    broker: Broker, resumed: bool
) -> None:
    """The client said 0 when it connected [MQTT-3.14.2-2]."""
    if resumed:
        stay(broker, None).disconnect()
    session, _ = connect(broker, "c", expiry_seconds=0)
    session.expire_after(1000)
    session.disconnect()
    assert not is_there(broker)


@pytest.mark.parametrize("clean", [True, False])
def test_a_takeover_ends_what_does_not_outlive_its_connection(broker: Broker, clean: bool) -> None:
    stay(broker, None).disconnect()
    session, old = connect(broker, "c", expiry_seconds=0)
    assert session.present
    again, link = connect(broker, "c", clean=clean, expiry_seconds=100)
    assert old.over
    assert not again.present
    assert again is not session
    broker.publish(broker.template("a", "b"), b"x")
    broker.step()
    assert link.bodies == []


def test_a_clean_start_begins_a_session_that_lasts(broker: Broker) -> None:
    """Clean Start says nothing of what comes after it, unlike the flag of MQTT 3.1.1."""
    stay(broker, None).disconnect()
    session, _ = connect(broker, "c", clean=True, expiry_seconds=100)
    assert not session.present
    session.subscribe(("b",), at_qos(1))
    broker.step()
    session.disconnect()
    broker.publish(broker.template("a", "b"), b"gone with the old one")
    broker.publish(broker.template("b"), b"x")
    broker.step()
    again, link = connect(broker, "c", expiry_seconds=100)
    assert again.present
    assert link.bodies == [b"x"]


def test_a_session_is_over_when_its_time_is(broker: Broker) -> None:
    """Also if its client comes in the moment before it ends."""
    stay(broker, 1000).disconnect()
    broker.step(1003)
    assert is_there(broker)
    session, _ = connect(broker, "c", expiry_seconds=1000)
    assert not session.present


def test_clients_that_come_and_go_cost_one_place_each(broker: Broker) -> None:
    """Neither timers nor anything else of the times that they had is left."""
    for number in range(50):
        for client in ("a", "b"):
            stay(broker, 1000 + 200 * number, client).disconnect()
        broker.step(7)
    assert len(broker.engine.core.timers) <= 2
    stay(broker, None, "a")
    stay(broker, None, "b")
    assert len(broker.engine.core.timers) == 0


def test_many_clients_share_timers_and_records(broker: Broker) -> None:
    """Those that go at about the same time are one timer, and one record of the log."""
    sessions = [stay(broker, 1000, f"c{number}") for number in range(100)]
    before = broker.store.log.appended
    for session in sessions:
        session.disconnect()
    assert len(broker.engine.core.timers) == 1
    broker.step(2)
    assert broker.store.log.appended - before < 2000
    broker.step(1100)
    assert not broker.engine.sessions.by_number


def test_a_quota_counts_sessions_that_last(people: Broker) -> None:
    """A connection whose session ends with it does not make room for one that stays."""
    people.engine.users.set_quotas("ann", Quotas(sessions=1))
    sessions = port_of(people, "ann").sessions

    def come(client: str, seconds: int) -> Session:
        return sessions.connect(
            client, clean=True, expiry_seconds=seconds, link=SpyLink(), principal="ann"
        )

    come("c1", 100)
    come("c1", 100)
    come("c2", 0)
    with pytest.raises(Refused) as caught:
        come("c2", 100)
    assert caught.value.reason is Reason.LIMIT


def test_a_log_that_takes_nothing_lets_sessions_end_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay(broker, None).disconnect()
    session, _ = connect(broker, "c", expiry_seconds=0)

    def refuse(**_: object) -> None:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(broker.engine.core, "check_writable", refuse)
        session.disconnect()
        broker.step(5)
        assert is_there(broker)
        with pytest.raises(Refused):
            connect(broker, "c")
    broker.step(1)
    assert not is_there(broker)
