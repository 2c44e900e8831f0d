"""What operators change while the engine runs: who is there stays, and what is new keeps to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.broker.admission.connections import ConnectionSettings
from polymq.broker.changes import Changeable, change_engine
from polymq.broker.disk import DiskSettings
from polymq.broker.errors import Reason, Refused
from polymq.broker.limits import Limits
from polymq.broker.port import REST, Durability
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.topics.settings import TopicSettings
from tests.broker.test_engine_sessions import connect
from tests.broker.test_session_expiry import is_there, subscribe
from tests.harness.broker import Broker, at_qos

START = Changeable(
    limits=Limits(),
    topics=TopicSettings(),
    disk=DiskSettings(),
    sessions=SessionSettings(),
    connections=ConnectionSettings(),
    logins=ServiceLimits(),
    permissions=ServiceLimits(),
)


def change(broker: Broker, **parts: object) -> None:
    change_engine(broker.engine, replace(START, **parts))  # type: ignore[arg-type]


def test_sessions_that_wait_already_get_the_new_time(broker: Broker) -> None:
    """Counted from now where they had for ever before; nobody ends early, and who is there stays.
    A longer time spares those that are not over yet."""
    subscribe(broker, "away")
    staying, _ = connect(broker, "staying")
    broker.step(1000)
    change(broker, sessions=SessionSettings(expiry_seconds=100))
    broker.step(99)
    assert is_there(broker, "away")
    change(broker, sessions=SessionSettings(expiry_seconds=300))
    broker.step(190)
    assert is_there(broker, "away")
    broker.step(30)
    assert not is_there(broker, "away")
    assert is_there(broker, "staying")
    staying.disconnect()
    broker.step(310)
    assert not is_there(broker, "staying")


def test_a_shorter_time_ends_who_is_away_for_longer(broker: Broker) -> None:
    """And no time at all lets all wait for ever again."""
    change(broker, sessions=SessionSettings(expiry_seconds=1000))
    subscribe(broker, "first")
    broker.step(500)
    subscribe(broker, "second")
    broker.step(2)
    change(broker, sessions=SessionSettings(expiry_seconds=100))
    broker.step(1)
    assert not is_there(broker, "first")
    assert is_there(broker, "second")
    change(broker, sessions=SessionSettings())
    broker.step(10_000)
    assert is_there(broker, "second")


def test_the_time_of_a_change_counts_after_a_restart(broker: Broker) -> None:
    """The log knows since when a client is away, though its session did not expire then."""
    subscribe(broker, "away")
    change(broker, sessions=SessionSettings(expiry_seconds=100))
    broker.step(50)
    broker.session_settings = SessionSettings(expiry_seconds=100)
    broker.restart()
    broker.step(40)
    assert is_there(broker, "away")
    broker.step(20)
    assert not is_there(broker, "away")


def test_a_smaller_queue_drops_the_oldest_at_once(tmp_path: Path) -> None:
    """Of all sessions that have too much; a larger one takes more again."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=10)
    broker.restart()
    subscribe(broker)
    template = broker.template("a", "b", qos=1)
    for number in range(10):
        broker.publish(template, b"%d" % number)
    broker.step()
    change(broker, sessions=SessionSettings(waiting_max=3))
    broker.step()
    change(broker, sessions=SessionSettings(waiting_max=4))
    for number in range(10, 12):
        broker.publish(template, b"%d" % number)
    broker.step()
    _, link = connect(broker, "c")
    broker.step()
    assert link.bodies == [b"8", b"9", b"10", b"11"]
    broker.stop()


def test_limits_of_what_is_retained_take_nothing_away(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.publish(broker.template("t", name, retain=True), b"x")
    broker.step()
    change(broker, limits=Limits(retained_max=1))
    assert broker.engine.retained.count == 2
    with pytest.raises(Refused) as caught:
        broker.engine.retained.check(("t", "c"), 1)
    assert caught.value.reason is Reason.LIMIT
    change(broker)
    broker.engine.retained.check(("t", "c"), 1)


def test_subscriptions_beyond_a_lower_limit_stay(broker: Broker) -> None:
    session, _ = connect(broker, "c")
    for name in ("a", "b"):
        session.subscribe((name, REST), at_qos(0))
    change(broker, limits=Limits(subscriptions_per_session_max=1))
    with pytest.raises(Refused):
        session.subscribe(("c", REST), at_qos(0))
    change(broker)
    session.subscribe(("c", REST), at_qos(0))
    session.disconnect()


def test_topics_without_own_settings_get_the_new_defaults(broker: Broker) -> None:
    """What their publishers wait for as well; a topic keeps what somebody chose for it."""
    topics = broker.engine.topics
    broker.publish(broker.template("plain"), b"x")
    topics.create("chosen", 1, {"retention_seconds": "7"})
    broker.step()
    before = broker.template("plain")
    assert before.durability is Durability.FLUSHED
    wanted = TopicSettings(durability=Durability.APPENDED, retention_seconds=60)
    change(broker, topics=wanted)
    broker.step(1)
    settings = {name: topics.topics[name].settings for name in ("plain", "chosen")}
    assert settings["plain"] is wanted
    assert settings["chosen"] == replace(wanted, retention_seconds=7)
    assert not before.valid
    assert broker.template("plain").durability is Durability.APPENDED
    broker.publish(broker.template("new"), b"x")
    assert topics.topics["new"].settings is wanted


def test_rates_and_bans_of_connections_change(broker: Broker) -> None:
    """A limit that is taken away lets in who was kept out."""
    connections = broker.engine.connections
    change(broker, connections=ConnectionSettings(per_second=1))
    connections.check("c", None, "10.0.0.1")
    with pytest.raises(Refused):
        connections.check("c", None, "10.0.0.1")
    change(broker, connections=ConnectionSettings(per_address_per_second=1))
    connections.check("c", None, "10.0.0.1")
    with pytest.raises(Refused):
        connections.check("c", None, "10.0.0.1")
    change(broker)
    for _ in range(10):
        connections.check("c", None, "10.0.0.1")
