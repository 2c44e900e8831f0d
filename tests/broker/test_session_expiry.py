"""Messages with a time to live in what waits for MQTT sessions and for named subscriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.port import LIFE_PROPERTY, REST, Session, life_property
from tests.broker.queue_bench import consume
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker


def publish(broker: Broker, *bodies: bytes, ttl_ms: int | None = None) -> None:
    properties = {} if ttl_ms is None else {LIFE_PROPERTY: life_property(ttl_ms, 0)}
    template = broker.engine.template(broker.engine.route("a", "x"), properties=properties)
    broker.publish(template, *bodies)
    broker.step()


def away(broker: Broker, client: str) -> Session:
    """A persistent session with a subscription, whose client has gone."""
    session, _ = connect(broker, client)
    session.subscribe(("a", REST), 1)
    broker.step()
    session.disconnect()
    return session


def test_what_expired_while_a_client_was_away_does_not_come(broker: Broker) -> None:
    """Each session by itself; what lives longer comes, in order, and once."""
    away(broker, "one")
    away(broker, "two")
    publish(broker, b"1", b"2", ttl_ms=1000)
    publish(broker, b"3")
    publish(broker, b"4", ttl_ms=60_000)
    _, link = connect(broker, "one")
    assert link.bodies == [b"1", b"2", b"3", b"4"]
    broker.step(1.5)
    _, link = connect(broker, "two")
    assert link.bodies == [b"3", b"4"]


def test_a_client_that_is_slow_gets_nothing_after_its_time(broker: Broker) -> None:
    session, link = connect(broker, "c", credit=0)
    session.subscribe(("a", REST), 1)
    publish(broker, b"1", b"2", b"3", ttl_ms=1000)
    publish(broker, b"4")
    assert link.bodies == []
    broker.loop.now += 2.0  # no timer has had a chance
    link.left = 10
    session.ready()
    broker.step()
    assert link.bodies == [b"4"]


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_time_goes_on_over_a_restart(tmp_path: Path, way: str, with_state_db: bool) -> None:
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    away(broker, "c")
    away(broker, "late")
    publish(broker, b"1", ttl_ms=1000)
    publish(broker, b"2", ttl_ms=60_000)
    start_again(broker, way)
    _, link = connect(broker, "c")
    assert link.bodies == [b"1", b"2"]
    broker.step(1.0)
    _, link = connect(broker, "late")
    assert link.bodies == [b"2"]
    publish(broker, b"3", ttl_ms=1000)
    session, link = connect(broker, "new")
    session.subscribe(("a", REST), 1)
    session.disconnect()
    publish(broker, b"4", ttl_ms=1000)
    broker.step(1.0)
    _, link = connect(broker, "new")
    assert link.bodies == []
    broker.stop()


def test_expired_messages_let_go_of_the_log_though_nobody_comes(broker: Broker) -> None:
    """And the timers go with the last of them, and with the subscription."""
    away(broker, "c")
    publish(broker, b"1", b"2", ttl_ms=1000)
    (found,) = broker.engine.sessions.filters.values()
    (group,) = found.queue.groups
    broker.step(1.0)
    assert group.cursor.floor == 2
    assert len(broker.engine.core.timers) == 0
    publish(broker, b"3", ttl_ms=1000)
    session, _ = connect(broker, "c", clean=True)
    broker.step(5.0)
    session.disconnect()
    assert len(broker.engine.core.timers) == 0


def test_sessions_without_such_messages_pay_nothing(broker: Broker) -> None:
    away(broker, "c")
    publish(broker, b"1")
    (found,) = broker.engine.sessions.filters.values()
    assert not found.queue.expiring
    assert all(group.rules is None for group in found.queue.groups)


def test_a_named_subscription_lets_them_expire_too(broker: Broker) -> None:
    broker.engine.declare_subscription("s", ("a", REST))
    publish(broker, b"1", ttl_ms=1000)
    publish(broker, b"2")
    broker.step(1.0)
    consumer, _ = consume(broker, broker.engine.subscription_queue("s"))
    assert consumer.bodies == [b"2"]
