"""A message for very many is shown in steps: others have their turn in between, in order."""

from __future__ import annotations

from broker.kernels.costs import CONSUMER_COST, LIVE_COST, QUEUES_MANY, SHOWN_AT_ONCE
from broker.port import Durability
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, SpyLink

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
        session.subscribe(("a",), 1)
        links.append(link)
    broker.step()
    template = broker.template("a")
    acked: list[str] = []
    position = broker.publish(template, b"1")
    broker.engine.when_committed(position, Durability.FLUSHED, acked.append, "1")
    flushed(broker)
    assert 0 < having(links, 1) < SUBSCRIBERS
    assert acked == []
    assert not broker.engine.committed(position, Durability.FLUSHED)
    second = broker.publish(template, b"2")
    broker.engine.when_committed(second, Durability.FLUSHED, acked.append, "2")
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
    engine.declare_exchange(
        "all", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    names = [f"q{number}" for number in range(QUEUES_MANY + 1)]
    for name in names:
        engine.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )
        engine.bind_queue(name, "all", "", {}, owner=None)
    broker.step()
    route = engine.exchange_route("all", "")
    assert route is not None
    template = engine.template(route, properties={})
    counts: list[set[int]] = []

    def look() -> None:
        counts.append({engine.exchanges.queues[name].group.ready_count for name in names})

    for _ in range(3):
        position = broker.publish(template, b"x")
        engine.when_committed(position, Durability.FLUSHED, look)
    broker.step()
    assert counts == [{1}, {2}, {3}]


def test_after_a_failure_the_rest_is_not_shown(broker: Broker) -> None:
    """The log failed between two steps."""
    links = []
    for number in range(SUBSCRIBERS):
        session, link = connect(broker, f"c{number}", clean=True)
        session.subscribe(("a",), 1)
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
    engine.declare_exchange(
        "all", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    names = [f"q{number}" for number in range(QUEUES_MANY - 1)]
    holds = []
    for name in names:
        engine.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )
        engine.bind_queue(name, "all", "", {}, owner=None)
        holds.append(engine.exchanges.queues[name].group.add(SpyConsumer(credit=0)))
    broker.step()
    assert len(names) * CONSUMER_COST > SHOWN_AT_ONCE
    route = engine.exchange_route("all", "")
    assert route is not None
    broker.publish(engine.template(route, properties={}), b"x")
    flushed(broker)
    counts = [engine.exchanges.queues[name].group.ready_count for name in names]
    assert set(counts) == {0, 1}
    for hold in holds:
        hold.cancel()
    broker.step()
    assert {engine.exchanges.queues[name].group.ready_count for name in names} == {1}
