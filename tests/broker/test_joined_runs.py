"""Runs of one kind that come within one loop iteration are let go as one."""

from __future__ import annotations

import pytest

from polymq.broker.kernels.codes import JOINED_COUNT_MAX
from polymq.broker.port import Delivery, Durability, Template
from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos


class CountingConsumer(SpyConsumer):
    """Notes how many messages each delivery brought."""

    def __init__(self, credit: int = 1_000_000) -> None:
        super().__init__(credit)
        self.counts: list[int] = []

    def deliver(self, delivery: Delivery) -> None:
        super().deliver(delivery)
        self.counts.append(delivery.count)


def queue(
    broker: Broker, name: str, *, credit: int = 1_000_000, durable: bool = True
) -> tuple[CountingConsumer, Template]:
    """A queue, its consumer, and how to publish to it."""
    broker.port.queues.declare(
        name, durable=durable, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    consumer = CountingConsumer(credit)
    broker.port.queues.consume(name, consumer, exclusive=False, owner=None).ready()
    route = broker.port.exchanges.route("", name)
    assert route is not None
    return consumer, broker.port.topics.template(route, properties={})


def test_what_comes_in_one_iteration_is_one_delivery(broker: Broker) -> None:
    """Three reads with the same kind of message make one run; the next iteration makes another."""
    consumer, template = queue(broker, "q")
    for bodies in ((b"1",), (b"2", b"3"), (b"4",)):
        broker.publish(template, *bodies)
    broker.step()
    broker.publish(template, b"5")
    broker.step()
    assert consumer.bodies == [b"1", b"2", b"3", b"4", b"5"]
    assert consumer.counts == [4, 1]


def test_a_consumer_with_less_credit_gets_a_part(broker: Broker) -> None:
    """A joined run is cut at any message, also within what one read brought."""
    consumer, template = queue(broker, "q", credit=2)
    broker.publish(template, b"1")
    broker.publish(template, b"2", b"3", b"4")
    broker.step()
    assert consumer.got == [(0, b"1", False), (1, b"2", False)]
    more = CountingConsumer()
    broker.port.queues.consume("q", more, exclusive=False, owner=None).ready()
    assert more.got == [(2, b"3", False), (3, b"4", False)]


def test_other_messages_in_between_keep_their_place(broker: Broker) -> None:
    """Runs are joined only if nothing was appended between them: each queue keeps its order."""
    first, a = queue(broker, "a")
    second, b = queue(broker, "b")
    broker.publish(a, b"1")
    broker.publish(b, b"2")
    broker.publish(a, b"3")
    broker.port.documents.put("kind", "key", {})
    broker.publish(a, b"4")
    broker.step()
    assert (first.bodies, first.counts) == ([b"1", b"3", b"4"], [1, 1, 1])
    assert second.bodies == [b"2"]


def test_a_queue_that_is_bound_in_between_gets_only_what_follows(broker: Broker) -> None:
    """Bindings do not see earlier messages, also within one iteration. The binding of a queue that
    is not durable leaves nothing in the log between the two."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "x", type="fanout", durable=False, auto_delete=False, internal=False, arguments={}
    )
    early, _ = queue(broker, "early", durable=False)
    late, _ = queue(broker, "late", durable=False)
    engine.port.exchanges.bind_queue("early", "x", "", {}, owner=None)
    route = engine.port.exchanges.route("x", "")
    assert route is not None
    template = engine.port.topics.template(route, properties={})
    broker.publish(template, b"1")
    engine.port.exchanges.bind_queue("late", "x", "", {}, owner=None)
    broker.publish(template, b"2")
    broker.step()
    assert early.bodies == [b"1", b"2"]
    assert late.bodies == [b"2"]


def test_a_client_that_subscribes_in_between_gets_only_what_follows(broker: Broker) -> None:
    """A live subscription leaves nothing in the log either."""
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=(link := SpyLink()), principal=""
    )
    session.resume()
    template = broker.template("t")
    broker.publish(template, b"1")
    session.subscribe(("t",), at_qos(1))
    broker.publish(template, b"2")
    broker.step()
    assert link.bodies == [b"2"]


def test_nothing_joins_what_is_written_already(broker: Broker) -> None:
    """What was written in an earlier iteration may be flushed before what comes now."""
    consumer, template = queue(broker, "q")
    broker.publish(template, b"1")
    broker.loop.run()  # written, and its flush was asked for
    broker.publish(template, b"2")
    broker.step()
    assert consumer.bodies == [b"1", b"2"]
    assert consumer.counts == [1, 1]


@pytest.mark.parametrize("durability", list(Durability))
def test_a_joined_run_has_a_bound(broker: Broker, durability: Durability) -> None:
    """A run that is large already takes no more; readers by offset see all of both."""
    consumer, _ = queue(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={}, durability=durability)
    broker.publish(template, *[b"x"] * JOINED_COUNT_MAX)
    broker.publish(template, b"y")
    broker.publish(template, b"z")
    broker.step(1.0)
    assert consumer.counts == [JOINED_COUNT_MAX, 2]
    topic = broker.port.topics.info(route.topic)
    assert topic is not None
    assert topic.max_offsets == (JOINED_COUNT_MAX + 2,)
