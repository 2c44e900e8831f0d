"""Spans of what a log gets: which there are, what they say, and what bounds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from polymq.core_log.errors import CorruptRecord
from polymq.telemetry import deliveries, span_source
from polymq.telemetry.span_source import SpanSource
from polymq.telemetry.spans import Span
from tests.broker.queue_bench import bind, consume, declare, exchange, publish
from tests.harness.broker import Broker

T = TypeVar("T")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"
ACKS_SECONDS = 0.5
"""By then acknowledgements are on the disk."""


class Inline:
    """Runs at once what the source wants a thread for."""

    async def run(self, function: Callable[[], T]) -> T:
        return function()


class Stage:
    """A broker whose log is read for spans, by a clock that a test moves."""

    def __init__(self, directory: Path, per_second_max: int = 100) -> None:
        self.broker = Broker(directory)
        self.now = 0.0
        threads: Any = Inline()
        self.source = SpanSource(
            self.broker.engine, self.broker.store, threads, per_second_max, lambda: self.now
        )

    def publish(self, queue: str, *bodies: bytes, **properties: str) -> None:
        publish(self.broker, queue, *bodies, constant=properties)
        self.broker.step()

    def spans(self) -> list[Span]:
        """Those of what came to the log since the last time."""

        async def read() -> None:
            while await self.source.read():
                pass

        asyncio.run(read())
        return self.source.take(1_000)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "data")
    declare(made.broker, "work")
    yield made
    made.broker.stop()


def test_a_publish_is_a_span_of_its_trace(stage: Stage) -> None:
    stage.publish("work", b"body", traceparent=PARENT, tracestate="a=1", KEYS="m1")
    (span,) = stage.spans()
    assert (span.parent.trace_id.hex(), span.parent.span_id.hex()) == (TRACE, SPAN)
    assert span.parent.state == "a=1"
    assert (span.name, span.is_delivery) == ("publish work", False)
    assert span.start_ms == span.end_ms
    said = span.attributes
    assert said["messaging.destination.name"] == "work"
    assert said["messaging.message.id"] == "m1"
    assert said["messaging.message.body.size"] == 4
    assert stage.spans() == []


def test_only_sampled_traces_have_spans(stage: Stage) -> None:
    stage.publish("work", b"a", traceparent=NOT_SAMPLED)
    stage.publish("work", b"b")
    assert stage.spans() == []


def test_what_was_there_before_has_none(stage: Stage) -> None:
    stage.publish("work", b"a", traceparent=PARENT)
    threads: Any = Inline()
    stage.source = SpanSource(stage.broker.engine, stage.broker.store, threads, 100)
    assert stage.spans() == []


def test_each_queue_that_settles_a_message_has_a_span(stage: Stage) -> None:
    """From when the message was stored until its acknowledgement was."""
    exchange(stage.broker, "news")
    for name in ("left", "right"):
        declare(stage.broker, name)
        bind(stage.broker, name, "news")
    publish(stage.broker, "", b"other", source="news")
    publish(stage.broker, "", b"traced", source="news", traceparent=PARENT)
    stage.broker.step()
    (published,) = stage.spans()
    consumer, registration = consume(stage.broker, "left")
    assert consumer.bodies == [b"other", b"traced"]
    stage.broker.step(ACKS_SECONDS)
    assert stage.spans() == [], "it is delivered, and not settled"
    registration.settle(0, 1)
    stage.broker.step(ACKS_SECONDS)
    assert stage.spans() == [], "that was the other one"
    registration.settle(1, 1)
    stage.broker.step(ACKS_SECONDS)
    (span,) = stage.spans()
    assert (span.name, span.is_delivery) == ("deliver news", True)
    assert span.attributes["messaging.consumer.group.name"] == "left"
    assert span.start_ms == published.start_ms
    assert span.end_ms - span.start_ms >= 2 * ACKS_SECONDS * 1000
    _, registration = consume(stage.broker, "right")
    registration.settle(0, 2)
    stage.broker.step(ACKS_SECONDS)
    (span,) = stage.spans()
    assert span.attributes["messaging.consumer.group.name"] == "right"


def test_no_more_spans_are_made_a_second(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data", per_second_max=3)
    declare(stage.broker, "work")
    stage.publish("work", *[b"x"] * 10, traceparent=PARENT)
    assert len(stage.spans()) == 3
    assert stage.source.dropped["rate"] == 7
    stage.publish("work", b"x", traceparent=PARENT)
    assert stage.spans() == []
    stage.now += 1
    stage.publish("work", b"x", traceparent=PARENT)
    assert len(stage.spans()) == 1
    assert stage.source.dropped["rate"] == 8
    stage.broker.stop()


def test_spans_that_nobody_takes_give_way(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_source, "WAITING_SPANS_MAX", 2)
    for key in "abc":
        stage.publish("work", b"x", traceparent=PARENT, KEYS=key)
    found = [span.attributes["messaging.message.id"] for span in stage.spans()]
    assert found == ["b", "c"]
    assert stage.source.dropped["waiting"] == 1


def test_a_reader_that_is_far_behind_goes_on_at_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_source, "BEHIND_BYTES_MAX", 10_000)
    stage.publish("work", b"x" * 20_000, traceparent=PARENT)
    assert stage.spans() == []
    assert stage.source.passed_bytes > 20_000
    stage.publish("work", b"x", traceparent=PARENT)
    assert len(stage.spans()) == 1


def test_a_log_that_cannot_be_read_is_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_values: object, **_options: object) -> None:
        raise CorruptRecord(0, "its checksum is wrong")

    with monkeypatch.context() as patch:
        patch.setattr(span_source, "scan_log", damaged)
        stage.publish("work", b"x", traceparent=PARENT)
        assert stage.spans() == []
    assert stage.source.passed_bytes > 0
    stage.publish("work", b"x", traceparent=PARENT)
    assert len(stage.spans()) == 1


def test_deliveries_are_waited_for_of_so_many_messages(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest give way, and leave nothing behind."""
    monkeypatch.setattr(deliveries, "WAITING_MAX", 2)
    for key in "abc":
        stage.publish("work", b"x", traceparent=PARENT, KEYS=key)
    assert len(stage.spans()) == 3
    _, registration = consume(stage.broker, "work")
    registration.settle(0, 3)
    stage.broker.step(ACKS_SECONDS)
    found = [span.attributes["messaging.message.id"] for span in stage.spans()]
    assert found == ["b", "c"]
    assert stage.source.forgotten_count == 1
