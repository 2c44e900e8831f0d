"""What the metrics say of topics: totals, and the largest topics if they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq.metrics.topics import AT_ONCE, TopicSurvey
from tests.broker.queue_bench import declare, publish
from tests.harness.broker import Broker
from tests.polymq.metrics.registries import make_registry


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def values(survey: TopicSurvey) -> dict[str, float]:
    """All samples after a look, with the topic in their names."""
    for _ in survey.steps():
        pass
    return {
        sample.name.removeprefix("polymq_") + "".join(f" {x}" for x in sample.labels.values()): (
            sample.value
        )
        for metric in make_registry(survey.probes()).collect()
        if metric.name.startswith("polymq_")
        for sample in metric.samples
    }


def test_totals(broker: Broker) -> None:
    """What was stored counts also where retention has taken it. Messages of AMQP queues stand in a
    topic that nobody is shown."""
    broker.publish(broker.template("a"), b"1", b"2", b"3")
    broker.port.topics.create("fast", 2, {"durability": "page_cache"})
    declare(broker, "q")
    publish(broker, "q", b"4")
    broker.step()
    broker.engine.topics.topics["a"].queues[0].index.trim_before(2)
    shown = broker.engine.topics.shown_count
    found = values(TopicSurvey(broker.engine))
    assert found == {"messages_stored_total": 4, "topics": shown, "page_cache_topics": 1}


def test_the_largest_topics(broker: Broker) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        broker.publish(broker.template(name), *[b"x"] * count)
    broker.step()
    broker.engine.topics.topics["a"].queues[0].index.trim_before(1)
    found = values(TopicSurvey(broker.engine, shown_max=2))
    assert {name: value for name, value in found.items() if name.startswith("topic_")} == {
        "topic_messages a": 2,
        "topic_messages c": 2,
        "topic_messages_stored_total a": 3,
        "topic_messages_stored_total c": 2,
    }
    assert found["topics_left_out"] == 1


def test_no_step_looks_at_very_many_topics(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish(broker.template("a"), b"1")
    broker.step()
    crowd = dict.fromkeys(map(str, range(100_000)), broker.engine.topics.topics["a"])
    monkeypatch.setattr(broker.engine.topics, "topics", {**crowd, "a": crowd["0"]})
    survey = TopicSurvey(broker.engine, shown_max=10)
    assert sum(1 for _ in survey.steps()) == 100_001 // AT_ONCE
