"""A filter that one session holds exclusively: who gets it, when it is free, and over a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, Session, SubscriptionOptions
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker

ADDRESS = ("jobs", REST)


def take(session: Session, qos: int = 1, *, exclusive: bool = True) -> bool:
    """Subscribe; returns whether that was allowed."""
    options = SubscriptionOptions(qos=qos, exclusive=exclusive)
    try:
        session.subscribe(ADDRESS, options)
    except Refused as error:
        return error.reason is not Reason.LIMIT
    return True


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_one_session_at_a_time_has_it(broker: Broker, clean: bool, qos: int) -> None:
    first, _ = connect(broker, "first", clean=clean)
    second, link = connect(broker, "second", clean=clean)
    assert take(first, qos)
    assert take(first, qos)
    assert not take(second, qos)
    assert not second.is_subscribed(ADDRESS)
    assert take(second, qos, exclusive=False)
    broker.publish(broker.template("jobs", "1"), b"1")
    broker.step()
    assert link.bodies == [b"1"]
    assert not take(second, qos)
    first.unsubscribe(ADDRESS)
    assert take(second, qos)
    assert not take(first, qos)
    assert take(second, qos, exclusive=False)
    assert take(first, qos)


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_who_has_it_survives_a_crash(tmp_path: Path, with_state_db: bool, saved: bool) -> None:
    """As long as the session does: also while its client is away."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    first, _ = connect(broker, "first", clean=False)
    gone, _ = connect(broker, "gone", clean=True)
    assert take(first)
    gone.subscribe(("other",), SubscriptionOptions(qos=1, exclusive=True))
    broker.step()
    if saved:
        broker.save()
    broker.kill()
    broker.open()
    second, _ = connect(broker, "second", clean=False)
    assert not take(second)
    second.subscribe(("other",), SubscriptionOptions(qos=1, exclusive=True))
    again, _ = connect(broker, "first", clean=False)
    assert again.present
    assert take(again)
    again.unsubscribe(ADDRESS)
    broker.step()
    broker.kill()
    broker.open()
    second, _ = connect(broker, "second", clean=False)
    assert take(second)


@pytest.mark.parametrize("clean", [True, False])
def test_the_end_of_a_session_frees_it(broker: Broker, clean: bool) -> None:
    first, _ = connect(broker, "first", clean=clean)
    second, _ = connect(broker, "second", clean=False)
    assert take(first)
    first.disconnect()
    assert take(second) is clean
    connect(broker, "first", clean=True)
    assert take(second)
    assert not take(connect(broker, "first", clean=clean)[0])
