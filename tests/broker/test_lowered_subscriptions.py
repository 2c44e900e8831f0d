"""A subscription that goes down to QoS 0 still gets what was queued under the QoS it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.port import REST, Session
from tests.broker.test_engine_sessions import connect
from tests.broker.test_sessions_in_flight import EVERY_WAY, WITH_AND_WITHOUT, Pair, pair
from tests.harness.broker import Broker, SpyLink, at_qos

__all__ = ["pair"]  # a fixture

COUNT = 80
"""More than the first window of a connection, more than once."""
OLD = [b"%d" % n for n in range(COUNT)]


def publish(broker: Broker, *bodies: bytes) -> None:
    for body in bodies:
        broker.publish(broker.template("a", "x", qos=2), body)
    broker.step()


def queued(broker: Broker, qos: int) -> None:
    """A session that is away, and for which messages wait under this QoS."""
    session, _ = connect(broker, "c")
    session.subscribe(("a", REST), at_qos(qos))
    broker.step()
    session.disconnect()
    publish(broker, *OLD)


def lower(broker: Broker, session: Session, qos: int = 0) -> None:
    session.subscribe(("a", REST), at_qos(qos))
    broker.step()


def acknowledge_all(broker: Broker, session: Session, link: SpyLink, at: int = 0) -> None:
    """Acknowledge what has come, and what comes then, to the end."""
    while at < len(link.publishes):
        _, _, qos, packet_id, _, _ = link.publishes[at]
        at += 1
        if qos == 1:
            session.acknowledged(packet_id, 1)
        elif qos == 2:
            session.received(packet_id, 1)
            broker.step()
            session.completed(packet_id, 1)
        broker.step(1)


def got(link: SpyLink) -> list[tuple[bytes, int]]:
    """Bodies and QoS, in order, each once."""
    return [(body, qos) for _, body, qos, _, duplicate, _ in link.publishes if not duplicate]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_queued_comes_with_its_qos_and_what_follows_with_qos_0(
    broker: Broker, qos: int
) -> None:
    queued(broker, qos)
    session, link = connect(broker, "c")
    lower(broker, session)
    lower(broker, session)  # as a client does that subscribes after each connection
    publish(broker, b"new")
    acknowledge_all(broker, session, link)
    # QoS 0 waits for no packet id, so its order to the others is not fixed [MQTT-4.6.0-5].
    assert sorted(got(link)) == sorted([*((body, qos) for body in OLD), (b"new", 0)])
    session.disconnect()
    publish(broker, b"while it is away")
    session, link = connect(broker, "c")
    assert link.publishes == []


@WITH_AND_WITHOUT
@EVERY_WAY
@pytest.mark.parametrize("qos", [1, 2])
def test_the_rest_of_what_was_queued_comes_after_an_interruption(
    pair: Pair, way: str, qos: int
) -> None:
    broker = pair.broker
    queued(broker, qos)
    session, first = connect(broker, "c")
    lower(broker, session)
    session.acknowledged(1, 1) if qos == 1 else session.received(1, 1)
    broker.step(1)
    assert 1 < len(first.publishes) < COUNT
    broker = pair.interrupt(way, session)
    publish(broker, b"while it is away")
    session, link = connect(broker, "c")
    if qos == 2:
        session.completed(1, 1)
    lower(broker, session)
    acknowledge_all(broker, session, link)
    assert dict(got(first) + got(link)) == dict.fromkeys(OLD, qos)
    assert len(got(first) + got(link)) == COUNT
    publish(broker, b"new")
    assert link.publishes[-1][1:3] == (b"new", 0)


def test_a_subscription_that_goes_down_and_up_again_has_one_qos(broker: Broker) -> None:
    queued(broker, 2)
    session, link = connect(broker, "c")
    lower(broker, session)
    lower(broker, session, 1)
    publish(broker, b"new")
    seen = len(link.publishes)
    acknowledge_all(broker, session, link)
    assert got(link)[seen:] == [(body, 1) for body in [*OLD, b"new"][seen:]]


def test_what_is_not_committed_yet_was_queued_too(tmp_path: Path) -> None:
    """It stands before the SUBSCRIBE in the log, and becomes visible behind it."""
    broker = Broker(tmp_path / "data")
    session, link = connect(broker, "c")
    lower(broker, session, 1)
    broker.publish(broker.template("a", "x"), b"before")
    session.subscribe(("a", REST), at_qos(0))
    broker.publish(broker.template("a", "x"), b"behind")
    broker.step()
    assert sorted(got(link)) == [(b"before", 1), (b"behind", 0)]
    broker.stop()
