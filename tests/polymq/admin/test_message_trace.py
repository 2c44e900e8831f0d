"""Traces of messages: what they cost is bounded, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from polymq.admin import message_trace, trace_lines
from polymq.admin.message_trace import MessageTrace, NewMessageTrace
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.trace_lines import TraceLines
from polymq.broker.port import REST
from tests.broker.queue_bench import consume, declare, publish
from tests.harness.broker import Broker, SpyLink, at_qos


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def begun(broker: Broker, **asked: Any) -> MessageTrace:
    """A trace that runs."""
    lines = TraceLines(cast("web.Request", None))
    names = MqttNames(broker.port, "")
    trace = MessageTrace(broker.engine, names, NewMessageTrace(**asked), lines)
    asyncio.run(trace.start())
    return trace


def ended(trace: MessageTrace) -> None:
    async def end() -> None:
        trace.end()
        while trace.watched:
            await asyncio.sleep(0)

    asyncio.run(end())


def shown(trace: MessageTrace) -> list[Any]:
    """The lines that wait."""
    return [json.loads(line) for line in trace.lines.take(1_000)]


def events(trace: MessageTrace) -> list[str]:
    return [line["event"] for line in shown(trace) if "event" in line]


def test_nothing_is_left_when_it_has_ended(broker: Broker) -> None:
    """Queues, sessions and the flag that batches look at are as they were."""
    declare(broker, "q")
    link = SpyLink()
    session = broker.port.sessions.connect(
        "device", clean=False, link=link, expiry_seconds=None, principal=""
    )
    session.subscribe(("home", REST), at_qos(1))
    broker.step()
    group = broker.group("q")
    moved = group.moved
    found = broker.engine.sessions.by_client["device"]
    trace = begun(broker)
    publish(broker, "q", b"x")
    broker.publish(broker.template("home", "a"), b"x")
    consume(broker, "q")
    broker.step()
    assert sorted(events(trace)) == ["delivered", "delivered"]
    times = broker.engine.core.reading.delivery_times
    assert (times.due, found.link is link, group.moved == moved) == (True, False, False)
    ended(trace)
    assert found.link is link
    assert group.moved == moved
    publish(broker, "q", b"y")
    broker.step()
    assert not times.due
    assert events(trace) == []
    assert not broker.engine.connections.when_came


def test_a_second_has_a_bound_in_lines(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond it is counted, and the next second has its own."""
    monkeypatch.setattr(message_trace, "LINES_A_SECOND", 3)
    declare(broker, "q")
    _, registration = consume(broker, "q")
    trace = begun(broker)
    publish(broker, "q", *[b"x"] * 10)
    broker.step()
    assert shown(trace)[-1] == {"dropped": 7}
    registration.settle(0, 10)
    assert shown(trace) == [{"dropped": 10}]
    broker.step(2.0)
    publish(broker, "q", b"y")
    broker.step()
    assert events(trace) == ["delivered"]
    ended(trace)


def test_of_a_large_batch_only_the_beginning_is_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_trace, "AT_ONCE", 4)
    declare(broker, "q")
    consume(broker, "q")
    trace = begun(broker)
    publish(broker, "q", *[b"x"] * 10)
    broker.step()
    assert [line.get("event", line) for line in shown(trace)] == [
        *["delivered"] * 4,
        {"dropped": 6},
    ]
    ended(trace)


def test_who_does_not_read_loses_lines(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_lines, "LINES_MAX", 2)
    declare(broker, "q")
    consume(broker, "q")
    trace = begun(broker)
    publish(broker, "q", *[b"x"] * 5)
    broker.step()
    assert [line.get("event", line) for line in shown(trace)] == [
        *["delivered"] * 2,
        {"dropped": 3},
    ]
    assert trace.lines.dropped_all == 3
    ended(trace)


def test_only_so_many_of_a_queue_are_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest give way."""
    monkeypatch.setattr(message_trace, "WAITING_MAX", 2)
    declare(broker, "q")
    _, registration = consume(broker, "q")
    trace = begun(broker)
    publish(broker, "q", *[b"x"] * 5)
    broker.step()
    assert events(trace) == ["delivered"] * 5
    registration.settle(0, 5)
    assert events(trace) == ["settled"] * 2
    ended(trace)


def test_readers_by_offset(broker: Broker) -> None:
    """As clients of RocketMQ pull; topics that the trace is not about are in no line."""
    trace = begun(broker, topic="a/#")
    for topic in ("a", "b"):
        broker.publish(broker.template(topic, "k"), b"1", b"2")
    broker.step()
    for topic in ("a", "b"):
        broker.port.queries.pull(
            topic, 0, 0, count_max=10, bytes_max=1 << 20, callback=lambda _, end: None
        )
    broker.step()
    found = shown(trace)
    assert [(one["event"], one["topic"]) for one in found] == [("pulled", "a")] * 2
    ended(trace)
