"""A message for very many is shown in steps: others have their turn in between, in order."""

from __future__ import annotations

import pytest

from polymq.broker.kernels.path import Committed
from polymq.broker.pacing.costs import (
    ANSWER_COST,
    CONSUMER_COST,
    LIVE_COST,
    QUEUES_MANY,
    SESSION_COST,
    SHOWN_AT_ONCE,
)
from polymq.broker.port import Durability, Session, Template
from polymq.broker.sessions.flights import SessionGroup
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos

SUBSCRIBERS = 3 * SHOWN_AT_ONCE // LIVE_COST


def one_iteration(broker: Broker) -> None:
    """What is due now, and nothing that it asks for."""
    soon, broker.loop._soon = broker.loop._soon.copy(), type(broker.loop._soon)()
    for callback in soon:
        callback()


def flushed(broker: Broker) -> None:
    """The log is on the disk, and its flush is reported."""
    one_iteration(broker)
    broker.flush()


def having(links: list[SpyLink], count: int) -> int:
    """How many subscribers have exactly so many messages."""
    return len([link for link in links if len(link.publishes) == count])


def test_a_message_to_many_subscribers_is_handed_out_in_steps(broker: Broker) -> None:
    """Each gets the messages in order, and the acknowledgement comes when all have it."""
    links = []
    for number in range(SUBSCRIBERS):
        session, link = connect(broker, f"c{number}", clean=True)
        session.subscribe(("a",), at_qos(1))
        links.append(link)
    broker.step()
    template = broker.template("a")
    acked: list[str] = []
    position = broker.publish(template, b"1")
    broker.port.when_committed(position, Durability.FLUSHED, acked.append, "1")
    flushed(broker)
    assert 0 < having(links, 1) < SUBSCRIBERS
    assert acked == []
    assert not broker.port.committed(position, Durability.FLUSHED)
    second = broker.publish(template, b"2")
    broker.port.when_committed(second, Durability.FLUSHED, acked.append, "2")
    for _ in range(2):
        one_iteration(broker)
    assert having(links, 0) == 0
    broker.step()
    assert acked == ["1", "2"]
    assert [body for _, body, *_ in links[0].publishes] == [b"1", b"2"]
    assert {tuple(body for _, body, *_ in link.publishes) for link in links} == {(b"1", b"2")}


def test_a_message_to_many_queues_is_visible_in_all_before_it_is_confirmed(
    broker: Broker,
) -> None:
    engine = broker.engine
    template, _, names = fanout(broker, QUEUES_MANY + 1)
    counts: list[set[int]] = []

    def look() -> None:
        counts.append({engine.exchanges.queues[name].group.ready_count for name in names})

    for _ in range(3):
        position = broker.publish(template, b"x")
        engine.port.when_committed(position, Durability.FLUSHED, look)
    broker.step()
    assert counts == [{1}, {2}, {3}]


def test_after_a_failure_the_rest_is_not_shown(broker: Broker) -> None:
    """The log failed between two steps."""
    links = []
    for number in range(SUBSCRIBERS):
        session, link = connect(broker, f"c{number}", clean=True)
        session.subscribe(("a",), at_qos(1))
        links.append(link)
    broker.step()
    broker.publish(broker.template("a"), b"1")
    flushed(broker)
    before = having(links, 1)
    assert 0 < before < SUBSCRIBERS
    broker.engine.core.commits.fail()
    broker.step()
    assert having(links, 1) == before


def test_consumers_that_leave_between_two_steps_change_nothing(broker: Broker) -> None:
    """What is left is cheap then. Queues that had the message do not get it again."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "all", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    names = [f"q{number}" for number in range(QUEUES_MANY - 1)]
    registrations = []
    for name in names:
        engine.port.queues.declare(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )
        engine.port.exchanges.bind_queue(name, "all", "", {}, owner=None)
        registrations.append(engine.exchanges.queues[name].group.add(SpyConsumer(credit=0)))
    broker.step()
    assert len(names) * CONSUMER_COST > SHOWN_AT_ONCE
    route = engine.port.exchanges.route("all", "")
    assert route is not None
    broker.publish(engine.port.topics.template(route, properties={}), b"x")
    flushed(broker)
    counts = [engine.exchanges.queues[name].group.ready_count for name in names]
    assert set(counts) == {0, 1}
    for registration in registrations:
        registration.cancel()
    broker.step()
    assert {engine.exchanges.queues[name].group.ready_count for name in names} == {1}


def fanout(broker: Broker, count: int) -> tuple[Template, Template, list[str]]:
    """An exchange with so many queues: how to publish to it, and transiently; and the queues."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "all", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    names = [f"q{number}" for number in range(count)]
    for name in names:
        engine.port.queues.declare(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )
        engine.port.exchanges.bind_queue(name, "all", "", {}, owner=None)
    broker.step()
    route = engine.port.exchanges.route("all", "")
    assert route is not None
    transient = engine.port.topics.template(route, properties={}, durability=Durability.APPENDED)
    return engine.port.topics.template(route, properties={}), transient, names


def durable_sessions(broker: Broker, count: int) -> tuple[list[Session], list[SpyLink]]:
    """Connected persistent sessions that share one filter queue."""
    made = [connect(broker, f"c{number}") for number in range(count)]
    for session, _ in made:
        session.subscribe(("a",), at_qos(1))
    broker.step()
    return [session for session, _ in made], [link for _, link in made]


SESSIONS = 4 * SHOWN_AT_ONCE // SESSION_COST


def test_a_message_to_many_persistent_sessions_is_handed_out_in_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a queue. Those that come and go between two steps change nothing."""
    reported: list[str] = []
    plain_arrived = SessionGroup.arrived

    def arrived(self: SessionGroup, run: Committed, first: int) -> None:
        reported.append(self.session.client_id if self.session is not None else "")
        plain_arrived(self, run, first)

    monkeypatch.setattr(SessionGroup, "arrived", arrived)
    sessions, links = durable_sessions(broker, SESSIONS)
    broker.publish(broker.template("a"), b"1")
    flushed(broker)
    assert 0 < len(reported) <= SHOWN_AT_ONCE // SESSION_COST
    sessions[0].unsubscribe(("a",))
    sessions[-1].unsubscribe(("a",))
    late, late_link = connect(broker, "late")
    late.subscribe(("a",), at_qos(1))
    broker.publish(broker.template("a"), b"2")
    broker.step()
    broker.step()
    assert [body for _, body, *_ in links[0].publishes] == [b"1"]
    assert links[-1].bodies == []
    assert {tuple(link.bodies) for link in links[1:-1]} == {(b"1", b"2")}
    assert late_link.bodies == [b"2"]
    assert reported.count("c1") == 2
    assert f"c{SESSIONS - 1}" not in reported


def test_a_message_to_a_queue_whose_readers_have_all_left(broker: Broker) -> None:
    """They unsubscribed while it was on its way to the disk. What follows is acknowledged."""
    sessions, _ = durable_sessions(broker, 2)
    broker.publish(broker.template("a"), b"1")
    one_iteration(broker)
    for session in sessions:
        session.unsubscribe(("a",))
    broker.flush()
    acked: list[str] = []
    position = broker.publish(broker.template("a"), b"2")
    broker.port.when_committed(position, Durability.FLUSHED, acked.append, "2")
    broker.step()
    assert acked == ["2"]


def test_answers_leave_in_steps_and_in_order(broker: Broker) -> None:
    """Each costs something; in between others have their turn."""
    total = 3 * SHOWN_AT_ONCE // ANSWER_COST
    position = broker.publish(broker.template("a"), b"1")
    left: list[int] = []
    for number in range(total):
        broker.port.when_committed(position, Durability.FLUSHED, left.append, number)
    flushed(broker)
    assert 0 < len(left) <= SHOWN_AT_ONCE // ANSWER_COST
    broker.step()
    assert left == list(range(total))
    assert broker.port.committed(position, Durability.FLUSHED)


def test_what_waited_for_replicas_is_shown_in_steps(broker: Broker) -> None:
    """A message to many consumers, and several to many queues, each of which is a step."""
    broker.port.topics.create("a", 1, {"min_in_sync": "2"})
    links = []
    for number in range(SUBSCRIBERS):
        session, link = connect(broker, f"c{number}", clean=True)
        session.subscribe(("a",), at_qos(1))
        links.append(link)
    broker.step()
    core = broker.engine.core
    broker.publish(broker.template("a", durability=Durability.IN_SYNC), b"1")
    broker.publish(broker.template("a", durability=Durability.IN_SYNC), b"2")
    broker.step()
    held = core.held_bytes
    assert held > 0
    core.replicas.acked("r", broker.store.log.appended)
    assert 0 < having(links, 1) + having(links, 2) < SUBSCRIBERS
    assert core.held_bytes == held
    broker.step()
    assert {tuple(link.bodies) for link in links} == {(b"1", b"2")}
    assert core.held_bytes == 0


def test_a_stronger_message_does_not_overtake_one_that_is_shown_in_steps(broker: Broker) -> None:
    """A transient message to many queues, then a persistent one to the last of them, which is on
    the disk before that queue has the first."""
    _, transient, names = fanout(broker, 4 * SHOWN_AT_ONCE // CONSUMER_COST)
    route = broker.port.exchanges.route("", names[-1])
    assert route is not None
    persistent = broker.port.topics.template(route, properties={})
    consumers = []
    for name in names:
        consumers.append(SpyConsumer())
        broker.port.queues.consume(name, consumers[-1], exclusive=False, owner=object())
    broker.publish(transient, b"1")
    one_iteration(broker)
    broker.publish(persistent, b"2")
    broker.engine.core.end_iteration()
    broker.flush()
    assert consumers[-1].got == []
    broker.step()
    assert {tuple(consumer.got) for consumer in consumers[:-1]} == {((0, b"1", False),)}
    assert consumers[-1].got == [(0, b"1", False), (1, b"2", False)]
