"""An exchange that was deleted stays deleted, and its topic goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymq.broker.port import Reason, Refused
from tests.harness.broker import Broker


def declare(broker: Broker, *, durable: bool = True, auto_delete: bool = False) -> None:
    broker.port.exchanges.declare(
        "x", type="topic", durable=durable, auto_delete=auto_delete, internal=False, arguments={}
    )
    broker.step()


def publish(broker: Broker) -> None:
    """As AMQP does it."""
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    broker.publish(broker.port.topics.template(route, properties={}), b"m")
    broker.step()


def is_gone(broker: Broker) -> bool:
    """Whether AMQP finds no such exchange, in whatever it does."""
    engine = broker.engine
    engine.port.queues.declare(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    attempts: list[Callable[[], object]] = [
        lambda: engine.port.exchanges.route("x", "k"),
        lambda: engine.port.exchanges.bind_queue("q", "x", "k", {}, owner=None),
        lambda: engine.port.exchanges.bind_exchange("amq.fanout", "x", "k", {}),
        lambda: engine.port.exchanges.bind_exchange("x", "amq.fanout", "k", {}),
    ]
    if engine.port.exchanges.info("x") is not None:
        return False
    for attempt in attempts:
        with pytest.raises(Refused) as raised:
            attempt()
        assert raised.value.reason is Reason.NOT_FOUND
    return True


@pytest.mark.parametrize("durable", [True, False])
def test_a_deleted_exchange_stays_deleted(broker: Broker, durable: bool) -> None:
    declare(broker, durable=durable)
    publish(broker)
    broker.port.exchanges.delete("x", if_unused=False)
    broker.step()
    assert is_gone(broker)
    assert broker.info("x").max_offsets == (1,)
    for start in (broker.restart, broker.kill):
        broker.step()
        start()
        if start == broker.kill:
            broker.open()
        assert is_gone(broker)
    broker.publish(broker.template("x", "k"), b"of another protocol")
    broker.step()
    assert is_gone(broker)
    assert broker.info("x").max_offsets == (2,)


def test_without_state_db_the_log_says_it(broker: Broker) -> None:
    declare(broker)
    publish(broker)
    broker.port.exchanges.delete("x", if_unused=False)
    broker.step()
    broker.with_state_db = False
    broker.restart()
    assert is_gone(broker)


def test_a_declaration_brings_it_back(broker: Broker) -> None:
    declare(broker)
    publish(broker)
    broker.port.exchanges.delete("x", if_unused=False)
    declare(broker, durable=False)
    publish(broker)
    broker.step()
    broker.restart()
    assert is_gone(broker)  # the one that was declared last goes with the process
    declare(broker)
    broker.step()
    broker.restart()
    publish(broker)
    assert broker.port.exchanges.info("x") is not None


def test_an_auto_delete_exchange_goes_for_good(broker: Broker) -> None:
    declare(broker, auto_delete=True)
    publish(broker)
    assert not is_gone(broker)
    broker.port.exchanges.bind_queue("q", "x", "k", {}, owner=None)
    broker.port.exchanges.unbind_queue("q", "x", "k", {}, owner=None)
    broker.step()
    assert is_gone(broker)
    broker.restart()
    assert is_gone(broker)


def test_a_topic_that_was_never_declared_is_an_exchange_until_it_is_deleted(broker: Broker) -> None:
    broker.publish(broker.template("x", "k"), b"of another protocol")
    broker.step()
    assert not is_gone(broker)
    broker.port.exchanges.bind_queue("q", "x", "k", {}, owner=None)
    with pytest.raises(Refused) as raised:
        broker.port.exchanges.delete("x", if_unused=True)
    assert raised.value.reason is Reason.IN_USE
    broker.port.exchanges.delete("x", if_unused=False)
    broker.step()
    assert is_gone(broker)
    broker.restart()
    assert is_gone(broker)
    assert not broker.engine.named_queues.queues["q"].bindings.chosen()


def test_a_topic_that_is_made_anew_is_an_exchange_again(broker: Broker) -> None:
    declare(broker)
    publish(broker)
    broker.port.exchanges.delete("x", if_unused=False)
    broker.engine.topics.delete("x")
    broker.step()
    broker.publish(broker.template("x", "k"), b"of another protocol")
    broker.step()
    assert not is_gone(broker)


def test_a_publisher_that_is_at_work_notices(broker: Broker) -> None:
    declare(broker)
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.publish(template, b"m")
    broker.port.exchanges.delete("x", if_unused=False)
    assert not template.valid
