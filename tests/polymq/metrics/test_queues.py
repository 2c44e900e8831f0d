"""What the metrics say of queues, after each of the things that they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.metrics.queues import queue_probes
from tests.broker.queue_bench import consume, declare, publish
from tests.harness.broker import Broker
from tests.polymq.metrics.registries import make_registry

Ask = Callable[..., float]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


@pytest.fixture
def ask(broker: Broker) -> Ask:
    """The value of a metric, by its name as Prometheus shows it."""
    registry = make_registry(queue_probes(broker.engine))

    def value(name: str, **labels: str) -> float:
        found = registry.get_sample_value(f"polymq_{name}_total", labels)
        assert found is not None, name
        return found

    return value


def test_each_reason_is_counted(broker: Broker, ask: Ask) -> None:
    """Given up, with a dead letter exchange and without; where none of it has a place, dropped."""
    declare(broker, "dead")
    dlx: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    declare(broker, "short", x_max_length=1, **dlx)
    publish(broker, "short", b"1", b"2", b"3")
    declare(broker, "brief", x_message_ttl=10)
    publish(broker, "brief", b"1")
    declare(broker, "strict", x_delivery_limit=0, x_dead_letter_exchange="no such exchange")
    publish(broker, "strict", b"1")
    declare(broker, "full", x_max_length=0, x_overflow="reject-publish")
    publish(broker, "full", b"1", b"2")
    declare(broker, "plain")
    publish(broker, "plain", b"1", b"2")
    broker.step(1.0)
    _, registration = consume(broker, "strict")
    registration.requeue(0, 1)
    _, registration = consume(broker, "plain")
    registration.reject(0, 1)
    broker.step()
    reasons = ("maxlen", "expired", "delivery_limit", "rejected")
    assert [ask("messages_given_up", reason=reason) for reason in reasons] == [2, 1, 1, 1]
    assert [ask("messages_dead_lettered", reason=reason) for reason in reasons] == [2, 0, 0, 0]
    assert [ask("dead_letters_dropped", reason=reason) for reason in reasons] == [0, 0, 1, 0]
    assert ask("messages_refused_by_full_queues") == 2


def test_delivery_counts_are_counted(broker: Broker, ask: Ask) -> None:
    """Each time; the first delivery is none."""
    declare(broker, "q")
    publish(broker, "q", b"1", b"2", b"3")
    broker.step()
    consumer, registration = consume(broker, "q", credit=3)
    assert ask("messages_redelivered") == 0
    consumer.left = 9
    registration.requeue(0, 2)
    broker.step()
    assert ask("messages_redelivered") == 2
