"""What ends is free at once: it leaves no cycles to the garbage collector, which looks only at what
is new."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.queues.queue import Group, Registration
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.subscription import Subscription
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.consumer import Consumer
from tests.gateways.amqp.amqp_harness import Bench
from tests.harness.broker import SpyLink, at_qos

ENDING = (Channel, Client, Consumer, Group, Registration, MqttSession, NamedQueue, Subscription)


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def counts() -> Counter[str]:
    """What is in memory of each kind that ends."""
    return Counter(type(found).__name__ for found in gc.get_objects() if type(found) in ENDING)


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.slow
def test_a_client_that_leaves_is_free(bench: Bench) -> None:
    """With channels, a consumer, messages that it has not acknowledged, and a queue of its own."""
    before = counts()
    for _ in range(3):
        peer = bench.peer(1, 2)
        arguments = {"x-expires": 60_000, "x-message-ttl": 60_000, "x-max-length": 9}
        peer.ask(spec.QueueDeclare(queue="q", exclusive=True, arguments=arguments))
        peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
        bench.step()
        peer.client.lost()
        bench.step()
        del peer
    assert counts() == before


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.slow
def test_a_queue_that_is_deleted_is_free(bench: Bench) -> None:
    """While those who used it stay."""
    peer = bench.peer(1)
    before = counts()
    arguments = {"x-expires": 60_000, "x-message-ttl": 60_000, "x-max-length": 9}
    for _ in range(3):
        peer.ask(spec.QueueDeclare(queue="q", durable=True, arguments=arguments))
        peer.ask(spec.QueueBind(queue="q", exchange="amq.topic", routing_key="#.a"))
        peer.ask(spec.BasicConsume(queue="q", consumer_tag="c"))
        bench.step()
        peer.ask(spec.QueueDelete(queue="q"))
        bench.step()
    assert counts() == before


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.slow
def test_a_session_that_ends_is_free(bench: Bench) -> None:
    """A clean one, and one that was kept; each came back once."""
    before = counts()
    engine = bench.broker.engine
    for clean in (True, False, False, True):
        session = engine.port.sessions.connect(
            "c", clean=clean, expiry_seconds=0 if clean else None, link=SpyLink(), principal=""
        )
        bench.step()
        session.resume()
        since = session.subscribe(("t", "a"), at_qos(1))
        session.replay_retained(("t", "a"), since)
        bench.step(1.0)
        session.disconnect()
        bench.step(1.0)
        del session
    assert counts() == before
