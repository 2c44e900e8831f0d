"""What an exchange delays goes with the exchange, though the topic of its name goes on."""

from __future__ import annotations

import pytest

from polymq.broker.port import Publishing
from tests.harness.broker import Broker, SpyConsumer, batch_of

OWNER = object()


def declare(broker: Broker, *, auto_delete: bool = False) -> None:
    """An exchange that delays, with a queue."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "x",
        type="x-delayed-message",
        durable=True,
        auto_delete=auto_delete,
        internal=False,
        arguments={"x-delayed-type": "fanout"},
    )
    engine.port.queues.declare(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )
    engine.port.exchanges.bind_queue("q", "x", "", {}, owner=OWNER)
    broker.step()


def later(broker: Broker, body: bytes, *, by_exchange: bool = True) -> None:
    template = broker.template("x", "k")
    broker.port.delays.publish_later(
        template, batch_of(body), 0, 1, delay_ms=5000, by_exchange=by_exchange
    )


def consumed(broker: Broker) -> list[bytes]:
    """What the queue has."""
    consumer = SpyConsumer(100)
    broker.port.queues.consume("q", consumer, exclusive=False, owner=OWNER).ready()
    broker.step()
    return consumer.bodies


def stored_count(broker: Broker) -> int:
    """Messages that the topic got."""
    topic = broker.port.topics.info("x")
    assert topic is not None
    return sum(topic.max_offsets)


def counts(broker: Broker) -> tuple[int, int]:
    """Messages that were dropped, and released, since the start."""
    return broker.engine.delays.dropped_count, broker.engine.delays.released_count


def restart(broker: Broker) -> None:
    broker.step()
    broker.restart()


def replay(broker: Broker) -> None:
    """Start without `state.db`: the log says all."""
    broker.step()
    broker.with_state_db = False
    broker.restart()


@pytest.mark.parametrize("again", [Broker.step, restart, replay])
def test_deleting_the_exchange_drops_what_it_delays(broker: Broker, again: object) -> None:
    """Also where it is declared again before the time comes: that has its own messages. What
    another protocol delayed for the topic comes."""
    assert callable(again)
    declare(broker)
    later(broker, b"never")
    later(broker, b"of another protocol", by_exchange=False)
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    again(broker)
    declare(broker)
    later(broker, b"new")
    again(broker)
    broker.step(6)
    assert consumed(broker) == [b"of another protocol", b"new"]
    assert counts(broker) == (1, 2)
    assert stored_count(broker) == 2


def test_nothing_comes_to_the_topic_of_a_deleted_exchange(broker: Broker) -> None:
    """The same for what was delayed in a transaction."""
    declare(broker)
    later(broker, b"never")
    parts = [
        Publishing(
            template=broker.template("x", "k"),
            batch=batch_of(b"nor this"),
            first=0,
            last=1,
            delay_ms=5000,
        )
    ]
    broker.port.transactions.commit(parts, [])
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    broker.step(6)
    assert counts(broker) == (2, 0)
    assert stored_count(broker) == 0


def test_templates_that_were_used_before_do_not_release_for_it(broker: Broker) -> None:
    declare(broker)
    later(broker, b"in time")
    broker.step(6)
    later(broker, b"never")
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    broker.step(6)
    assert counts(broker) == (1, 1)


def test_an_exchange_that_goes_by_itself_takes_what_it_delays_with_it(broker: Broker) -> None:
    """Its last binding ends with its queue."""
    declare(broker, auto_delete=True)
    later(broker, b"never")
    broker.step()
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    broker.step()
    assert broker.port.exchanges.info("x") is None
    declare(broker)
    broker.step(6)
    assert consumed(broker) == []
    assert counts(broker) == (1, 0)
