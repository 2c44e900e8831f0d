"""Retained messages are sent in slices that all sessions share, and walks copy nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.pacing.unhurried import PASSED_COUNT
from polymq.broker.port import ONE_LEVEL, REST, Session
from polymq.broker.sessions.retained_replay import (
    LOOK_COST,
    REPLAYED_AT_ONCE,
    SEND_COST,
    TURN_UNITS,
)
from polymq.broker.topics.retained import Retained, position_of
from tests.broker.test_commit_steps import one_iteration
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyLink, at_qos

SENT_AT_ONCE = REPLAYED_AT_ONCE // SEND_COST


def retain(broker: Broker, count: int, topic: str = "r") -> None:
    """So many retained messages below one first level."""
    for number in range(count):
        broker.publish(broker.template(topic, f"{number}", retain=True), b"%d" % number)
        if number % 100 == 0:
            broker.step()
    broker.step()


def subscribed(
    broker: Broker, client: str, *filters: tuple[str, ...], clean: bool = True
) -> tuple[Session, SpyLink]:
    """A client whose SUBACK has just left."""
    session, link = connect(broker, client, clean=clean, credit=100_000)
    sinces = [session.subscribe(address, at_qos(0)) for address in filters]
    broker.step()
    for address, since in zip(filters, sinces, strict=True):
        session.replay_retained(address, since)
    return session, link


def test_one_iteration_sends_a_slice(broker: Broker) -> None:
    total = 5 * SENT_AT_ONCE
    retain(broker, total)
    _, link = subscribed(broker, "c", ("r", REST))
    sent = []
    while len(link.publishes) < total:
        before = len(link.publishes)
        one_iteration(broker)
        sent.append(len(link.publishes) - before)
    assert max(sent) <= SENT_AT_ONCE
    assert sorted(link.bodies) == sorted(b"%d" % number for number in range(total))


def test_sessions_that_reconnect_together_share_a_slice(broker: Broker) -> None:
    """And all of them get some of it before one gets all."""
    count = 4 * TURN_UNITS // SEND_COST
    retain(broker, count)
    links = []
    for session, link in [connect(broker, f"c{n}", clean=True) for n in range(20)]:
        since = session.subscribe(("r", REST), at_qos(0))
        session.replay_retained(("r", REST), since)
        links.append(link)
    totals = [0]
    while totals[-1] < 20 * count:
        one_iteration(broker)
        totals.append(sum(len(link.publishes) for link in links))
        assert totals[-1] - totals[-2] <= SENT_AT_ONCE
        if totals[-1] < 10 * count:
            assert all(len(link.publishes) < count for link in links)
    assert all(len(set(link.bodies)) == count for link in links)


def test_filters_of_one_packet_are_compared_in_slices(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand filters over a hundred thousand messages stopped all clients for many seconds.
    Between two slices some iterations pass: a request over HTTP takes several."""
    looks = 0
    plain_match = Retained.match

    def match(self: Retained, *arguments: Any) -> Iterator[Any]:
        nonlocal looks
        for found in plain_match(self, *arguments):
            looks += 1
            yield found

    monkeypatch.setattr(Retained, "match", match)
    retain(broker, 200)
    filters = [("r", ONE_LEVEL, f"{number}") for number in range(100)]
    _, link = subscribed(broker, "c", *filters, ("r", "7"))
    iterations = slices = 0
    while not link.publishes:
        before = looks
        one_iteration(broker)
        assert looks - before <= REPLAYED_AT_ONCE // LOOK_COST
        iterations += 1
        slices += looks > before
    assert looks == 100 * 200 + 1
    assert slices >= looks * LOOK_COST // REPLAYED_AT_ONCE
    assert iterations > PASSED_COUNT * (slices - 1)
    assert link.bodies == [b"7"]


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_slow_client_subscribes_to_again_and_again_waits_once(
    tmp_path: Path, clean: bool
) -> None:
    broker = Broker(tmp_path / "data")
    retain(broker, 3)
    session, link = connect(broker, "c", clean=clean, credit=0)
    for address in (("r", REST), ("r", "1")) * 50:
        since = session.subscribe(address, at_qos(0))
        broker.step()
        session.replay_retained(address, since)
        broker.step()
    link.left = 1000
    session.ready()
    broker.step()
    # What had its turn already is sent once more, because it was asked for again.
    assert sorted(link.bodies) == [b"0"] * 2 + [b"1"] * 3 + [b"2"] * 2
    session.disconnect()
    broker.stop()


def test_nothing_is_sent_of_a_filter_that_was_unsubscribed_meanwhile(broker: Broker) -> None:
    retain(broker, 2 * SENT_AT_ONCE)
    session, link = subscribed(broker, "c", ("r", REST), ("r", "1"), ("r", "2"))
    one_iteration(broker)
    session.unsubscribe(("r", REST))
    session.unsubscribe(("r", "1"))
    before = len(link.publishes)
    assert before < 2 * SENT_AT_ONCE
    broker.step()
    assert link.bodies[before:] == [b"2"]


@pytest.mark.parametrize("pattern", [("a", REST), (REST,), (ONE_LEVEL, ONE_LEVEL)])
def test_a_walk_meets_what_stays_exactly_once(pattern: tuple[str, ...]) -> None:
    """While others come and go, their topics with them."""
    dice = random.Random(20261122)
    retained = Retained(1_000)
    stays = {("a" if n % 2 or pattern[0] == "a" else f"t{n}", f"s{n}") for n in range(60)}
    position = 0

    def churn() -> None:
        nonlocal position
        for _ in range(5):
            position += 1
            address = (dice.choice("abc") + dice.choice(["", "1"]), f"g{dice.randrange(40)}")
            if dice.random() < 0.5:
                retained.set(address, position, 1)
            else:
                retained.clear(address)

    for address in sorted(stays):
        churn()
        retained.set(address, 1_000_000 + position, 1)
    met = []
    for match in retained.match(pattern):
        churn()
        if match is not None and position_of(match[1]) >= 1_000_000:
            met.append(position_of(match[1]))
    assert len(met) == len(set(met)) == len(stays)
    assert retained.count == len([entry for entry in retained.entries() if entry is not None])


def test_names_that_went_are_forgotten() -> None:
    """A topic whose messages come and go takes no more memory than it had at most."""
    retained = Retained(10)
    for number in range(1_000):
        retained.set(("a", f"{number}"), number, 1)
        retained.set(("a", "kept"), number, 1)
        retained.clear(("a", f"{number}"))
    assert retained.count == 1
    assert [match for match in retained.match(("a", REST)) if match is not None] == [
        (("a", "kept"), retained.get(("a", "kept")))
    ]


def test_only_names_below_the_first_words_of_a_filter_are_looked_at() -> None:
    retained = Retained(1_000)
    for number in range(300):
        retained.set(("a", f"{number % 3}", f"{number}"), number, 1)
    assert len(list(retained.match(("a", "1", REST)))) == 100
    assert len(list(retained.match(("a", "1", ONE_LEVEL)))) == 100
    assert len(list(retained.match(("a", ONE_LEVEL, "7")))) == 300
    assert list(retained.match(("a", "1"))) == [None]
    assert retained.may_match(("a", "1", "8", REST)) is False
    assert retained.may_match((REST,)) is True
