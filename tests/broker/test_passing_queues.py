"""Queues that go by themselves leave no topic behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.names import QUEUES_TOPIC
from polymq.broker.port import REST, QueueConsumer
from tests.broker.queue_bench import MessagesConsumer, declare, look, publish
from tests.harness.broker import Broker, SpyLink, at_qos

TERMS: dict[str, dict[str, Any]] = {
    "exclusive": {"exclusive": True},
    "auto-delete": {"auto_delete": True},
    "with a lease": {"arguments": {"x-expires": 60_000}},
    "named by the server": {"named": False},
}


def passing(
    broker: Broker, name: str, owner: object = None, *, named: bool = True, **terms: Any
) -> str:
    """A durable queue that goes by itself; returns its name, which is the server's if not ours."""
    settings = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": {}}
    info, _ = broker.port.queues.declare(
        name if named else "", **{**settings, **terms}, owner=owner
    )
    return info.name


def take(broker: Broker, name: str, owner: object = None) -> tuple[MessagesConsumer, QueueConsumer]:
    consumer = MessagesConsumer()
    registration = broker.port.queues.consume(name, consumer, exclusive=False, owner=owner)
    registration.ready()
    broker.step()
    return consumer, registration


def topics(broker: Broker) -> list[str]:
    return [info.name for info in broker.port.topics.infos()]


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_what_is_published_to_it_makes_no_topic(broker: Broker, terms: dict[str, Any]) -> None:
    """And comes as it always did: under the names that it was published with."""
    name = passing(broker, "q", **terms)
    publish(broker, name, b"1", b"2")
    broker.step()
    consumer, _ = take(broker, name)
    assert consumer.bodies == [b"1", b"2"]
    message = consumer.messages[0]
    assert (message.topic, message.tag) == (name, None)
    assert topics(broker) == []
    assert broker.port.topics.info(name) is None
    assert broker.port.exchanges.info(name) is None


def test_a_queue_that_stays_has_its_topic(broker: Broker) -> None:
    declare(broker, "q")
    publish(broker, "q", b"1")
    assert topics(broker) == ["q"]


def test_a_thousand_queues_that_come_and_go(broker: Broker) -> None:
    for number in range(1000):
        owner = object()
        name = passing(broker, f"reply.{number}", owner, exclusive=True)
        publish(broker, name, b"x")
        if number % 100 == 0:
            broker.step()
            assert take(broker, name, owner)[0].bodies == [b"x"]
        assert list(broker.port.queues.release_owner(owner))
    broker.step()
    for start in (broker.restart, broker.kill):
        start()
        if start == broker.kill:
            broker.open()
        assert topics(broker) == []
        assert len(broker.engine.topics.topics) == 1
        assert broker.engine.named_queues.queues == {}


def test_what_was_confirmed_survives_a_crash(broker: Broker) -> None:
    """In an auto-delete queue; what was acknowledged does not come again."""
    name = passing(broker, "q", auto_delete=True)
    publish(broker, name, b"1", b"2", b"3")
    broker.step()
    _, registration = take(broker, name)
    registration.settle(0, 1)
    broker.step(1.0)
    for _ in range(2):
        broker.kill()
        broker.open()
        assert broker.port.queues.info("q", owner=None).ready_count == 2
    publish(broker, name, b"4")
    broker.step()
    consumer, _ = take(broker, name)
    assert consumer.bodies == [b"2", b"3", b"4"]
    assert {message.topic for message in consumer.messages} == {"q"}


def test_subscribers_of_other_protocols_get_it_under_its_name(broker: Broker) -> None:
    name = passing(broker, "q", exclusive=True)
    live, stored = SpyLink(), SpyLink()
    connect: Callable[..., Any] = broker.port.sessions.connect
    for link, client, clean in ((live, "live", True), (stored, "kept", False)):
        session = connect(
            client, clean=clean, expiry_seconds=0 if clean else None, link=link, principal=""
        )
        broker.step()
        session.resume()
        session.subscribe((REST,), at_qos(1))
    broker.step()
    publish(broker, name, b"1")
    broker.step()
    for link in (live, stored):
        assert [(topic_name, body) for topic_name, body, *_ in link.publishes] == [("q", b"1")]
    assert topics(broker) == []


def test_a_late_answer_to_a_queue_of_the_server_makes_no_topic_either(broker: Broker) -> None:
    """Somebody subscribes to everything, so the message has a place to go."""
    name = passing(broker, "", owner=(owner := object()), named=False, exclusive=True)
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=link, principal=""
    )
    session.resume()
    session.subscribe((REST,), at_qos(0))
    assert list(broker.port.queues.release_owner(owner))
    publish(broker, name, b"late")
    broker.step()
    assert link.bodies == [b"late"]
    assert topics(broker) == []


def test_a_publisher_notices_that_the_queue_is_another(broker: Broker) -> None:
    name = passing(broker, "q", owner=(owner := object()), exclusive=True)
    route = broker.port.exchanges.route("", name)
    assert route is not None
    template = broker.port.topics.template(route, properties={"PMQ_EXCHANGE": ""})
    broker.publish(template, b"1")
    assert list(broker.port.queues.release_owner(owner))
    assert not template.valid
    assert broker.port.exchanges.route("", name) is None
    declare(broker, "q")
    publish(broker, "q", b"2")
    broker.step()
    assert topics(broker) == ["q"]
    assert look(broker, "q") == [b"2"]


def test_a_topic_of_its_name_is_used(broker: Broker) -> None:
    broker.publish(broker.template("q"), b"of another protocol")
    name = passing(broker, "q", auto_delete=True)
    publish(broker, name, b"1")
    broker.publish(broker.template("q"), b"2")
    broker.step()
    assert take(broker, name)[0].bodies == [b"1", b"2"]
    assert broker.info("q").max_offsets == (3,)


def test_dead_letters_from_and_to_such_queues(broker: Broker) -> None:
    passing(broker, "dead", auto_delete=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    name = passing(broker, "q", auto_delete=True, arguments=arguments)
    publish(broker, name, b"1")
    broker.step()
    _, registration = take(broker, name)
    registration.reject(0, 1)
    broker.step()
    consumer, _ = take(broker, "dead")
    assert consumer.bodies == [b"1"]
    assert topics(broker) == []


def test_bindings_to_exchanges_are_topics_as_ever(broker: Broker) -> None:
    name = passing(broker, "q", exclusive=True)
    broker.port.exchanges.bind_queue(name, "amq.topic", "sensors.#", {}, owner=None)
    publish(broker, "sensors.a", b"1", source="amq.topic")
    broker.step()
    assert topics(broker) == ["sensors"]


def test_nobody_reaches_the_system_topic(broker: Broker) -> None:
    name = passing(broker, "q", exclusive=True)
    publish(broker, name, b"secret")
    broker.step()
    engine = broker.engine
    assert engine.port.topics.info(QUEUES_TOPIC) is None
    attempts: list[Callable[[], object]] = [
        lambda: engine.port.topics.delete(QUEUES_TOPIC),
        lambda: engine.port.topics.set(QUEUES_TOPIC, {}),
        lambda: engine.port.queries.pull(
            QUEUES_TOPIC, 0, 0, count_max=1, bytes_max=1, callback=lambda *_: None
        ),
    ]
    for attempt in attempts:
        with pytest.raises(Refused) as raised:
            attempt()
        assert raised.value.reason is Reason.NOT_FOUND
    found: list[tuple[str, bytes]] = []
    queues = engine.topics.topics[QUEUES_TOPIC].queues
    entry = next(queue.index.read_hot(0, 1) for queue in queues if queue.index.end_offset)
    assert entry is not None
    engine.port.queries.by_position(
        int.from_bytes(entry[:8], "big"), lambda topic, record: found.append((topic, record))
    )
    broker.step()
    assert found == [("", b"")]
