"""How far readers are, for each kind of them, and in how many steps that is found out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from polymq.admin.mqtt_names import MqttNames
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import REST, shared_address
from polymq.broker.queues.inspection import Need, NeedRecord
from polymq.metrics import readers
from polymq.metrics.labels import CHARACTERS_MAX, label_value
from polymq.metrics.readers import AT_ONCE, ReaderSurvey
from tests.broker.queue_bench import consume, declare, publish
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, at_qos
from tests.polymq.metrics.registries import make_registry


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


@dataclass
class Bench:
    """A survey, and the files that it reads.

    Attributes:
        entries, records: how often it needed entries and records that are not in memory.
        step_count: steps of the last look.
    """

    broker: Broker
    shown_max: int = 0
    webhooks: frozenset[str] = frozenset()
    entries: int = 0
    records: int = 0
    step_count: int = 0
    survey: ReaderSurvey = field(init=False)

    def __post_init__(self) -> None:
        self.survey = ReaderSurvey(
            self.broker.engine,
            clock_ms=self.broker.loop.clock_ms,
            webhooks=lambda: self.webhooks,
            filter_name=MqttNames(self.broker.port, "").name,
            shown_max=self.shown_max,
        )

    def look(self) -> None:
        """Look at all readers."""
        self.step_count = 0
        steps = self.survey.steps()
        answer: bytes | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            self.step_count += 1
            answer = self._answer(step)

    def _answer(self, step: Need | NeedRecord | None) -> bytes | None:
        got: list[Any] = []
        reading = self.broker.engine.core.reading
        if isinstance(step, Need):
            self.entries += 1
            reading.entries(step.index, step.first, step.count, lambda _, found: got.append(found))
        elif isinstance(step, NeedRecord):
            self.records += 1
            reading.read(step.index, step.offset, 1, 4096, lambda found, _: got.append(found))
        return got[0] if got else None

    def value(self, metric: str, /, **labels: str) -> float:
        """Of a metric after the last look."""
        registry = make_registry(self.survey.probes())
        found = registry.get_sample_value(f"polymq_{metric}", labels)
        assert found is not None, (metric, labels)
        return found

    def of(self, kind: str) -> tuple[float, ...]:
        """Readers, messages that wait, those that are not acknowledged, and both ages."""
        return (
            self.value("readers", kind=kind),
            self.value("reader_lag_messages", kind=kind),
            self.value("reader_unacknowledged_messages", kind=kind),
            self.value("reader_lag_seconds", kind=kind),
            self.value("reader_oldest_message_seconds", kind=kind),
        )


# --- each kind ------------------------------------------------------------------------------------


def test_an_amqp_queue(broker: Broker) -> None:
    """The oldest message is with a consumer; what waits is younger."""
    bench = Bench(broker)
    declare(broker, "empty")
    declare(broker, "q")
    publish(broker, "q", b"1")
    broker.step(10.0)
    consumer, registration = consume(broker, "q", credit=1)
    publish(broker, "q", b"2", b"3")
    broker.step(5.0)
    bench.look()
    assert consumer.bodies == [b"1"]
    assert bench.of("amqp_queue") == (2, 2, 1, 5, 15)
    registration.requeue(0, 1)
    registration.cancel()
    bench.look()
    assert bench.of("amqp_queue") == (2, 3, 0, 15, 15), "what was given back waits again"


def test_a_queue_in_memory(broker: Broker) -> None:
    bench = Bench(broker)
    declare(broker, "q", durable=False)
    publish(broker, "q", b"1")
    broker.step(3.0)
    bench.look()
    assert bench.of("amqp_queue") == (1, 1, 0, 3, 3)


def test_a_priority_queue_is_one_reader(broker: Broker) -> None:
    bench = Bench(broker, shown_max=10)
    declare(broker, "q", x_max_priority=5)
    for priority in (0, 3, 5):
        publish(broker, "q", b"x", priority=priority)
        broker.step(1.0)
    bench.look()
    assert bench.of("amqp_queue") == (1, 3, 0, 3, 3)
    assert bench.value("object_lag_messages", kind="amqp_queue", name="q", topic="") == 3


def test_webhooks_and_pull_subscriptions(broker: Broker) -> None:
    bench = Bench(broker, webhooks=frozenset({"hook"}), shown_max=10)
    for name in ("hook", "pull"):
        broker.port.queues.declare_subscription(name, ("a", REST))
    broker.publish(broker.template("a"), b"1", b"2")
    broker.step(4.0)
    bench.look()
    assert bench.of("webhook") == bench.of("http_subscription") == (1, 2, 0, 4, 4)
    assert bench.value("object_lag_messages", kind="webhook", name="hook", topic="") == 2


def test_a_persistent_session(broker: Broker) -> None:
    """All its filters together. Sessions that end with their connections are none."""
    bench = Bench(broker, shown_max=10)
    session, link = connect(broker, "device", clean=False)
    for topic in ("a", "b"):
        session.subscribe((topic,), at_qos(1))
    connect(broker, "passing", clean=True)[0].subscribe(("a",), at_qos(1))
    broker.step()
    broker.publish(broker.template("a"), b"1")
    broker.step(10.0)
    session.disconnect()
    for topic in ("a", "b"):
        broker.publish(broker.template(topic), b"2")
        broker.step(1.0)
    bench.look()
    assert link.bodies == [b"1"]
    assert bench.of("mqtt_session") == (1, 2, 1, 2, 12)
    assert bench.value("object_lag_messages", kind="mqtt_session", name="device", topic="") == 2


def test_a_shared_subscription_counts_once(broker: Broker) -> None:
    """Not for each of its members."""
    bench = Bench(broker, shown_max=10)
    for client in ("one", "two"):
        session, _ = connect(broker, client, clean=False)
        session.subscribe(shared_address("g", ("a", REST)), at_qos(1))
        broker.step()
        session.disconnect()
    broker.publish(broker.template("a"), b"1", b"2")
    broker.step(2.0)
    bench.look()
    assert bench.of("mqtt_share") == (1, 2, 0, 2, 2)
    assert bench.of("mqtt_session") == (2, 0, 0, 0, 0)
    assert bench.value("object_lag_messages", kind="mqtt_share", name="$share/g/a/#", topic="") == 2


def test_a_consumer_group_is_a_reader_of_each_topic(broker: Broker) -> None:
    """Its offsets are those that it has committed."""
    bench = Bench(broker, shown_max=10)
    for topic in ("orders", "bills"):
        broker.publish(broker.template(topic), b"1", b"2")
        broker.step(3.0)
    broker.port.groups.put("billing", {})
    broker.port.groups.commit("billing", "orders", 0, 1)
    broker.port.groups.commit("billing", "bills", 0, 2)
    broker.step(1.0)
    bench.look()
    assert bench.of("rocketmq_group") == (2, 1, 0, 7, 7)
    labels = {"kind": "rocketmq_group", "name": "billing"}
    assert bench.value("object_lag_messages", topic="orders", **labels) == 1
    assert bench.value("object_lag_messages", topic="bills", **labels) == 0


def test_what_retention_took_is_no_lag(broker: Broker) -> None:
    bench = Bench(broker)
    broker.publish(broker.template("orders"), b"1", b"2", b"3")
    broker.step()
    broker.port.groups.put("billing", {})
    broker.port.groups.commit("billing", "orders", 0, 0)
    broker.step(1.0)
    broker.engine.topics.topics["orders"].queues[0].index.trim_before(2)
    bench.look()
    assert bench.value("reader_lag_messages", kind="rocketmq_group") == 1


# --- the disk -------------------------------------------------------------------------------------


def backlogs(broker: Broker, count: int) -> None:
    """Queues with a message each, whose entries are on the disk alone."""
    for number in range(count):
        declare(broker, f"q{number}")
        publish(broker, f"q{number}", b"x")
    broker.step(6.0)
    broker.restart()


def test_what_was_read_once_is_remembered(broker: Broker) -> None:
    backlogs(broker, 3)
    bench = Bench(broker)
    bench.look()
    assert (bench.entries, bench.of("amqp_queue")) == (3, (3, 3, 0, 6, 6))
    broker.step(1.0)
    bench.look()
    assert (bench.entries, bench.of("amqp_queue")) == (3, (3, 3, 0, 7, 7))
    publish(broker, "q0", b"y")
    consumer, registration = consume(broker, "q0", credit=1)
    registration.settle(0, 1)
    assert consumer.bodies == [b"x"]
    bench.look()
    assert bench.value("reader_lag_messages", kind="amqp_queue") == 3


def test_one_scrape_reads_so_much_and_no_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known yet is counted, and is known after some scrapes."""
    monkeypatch.setattr(readers, "READS_MAX", 2)
    backlogs(broker, 5)
    bench = Bench(broker)
    unknown = []
    for reads in (2, 4, 5):
        bench.look()
        assert bench.entries == reads
        unknown.append(bench.value("reader_ages_unknown"))
    assert unknown == [3, 1, 0]
    assert bench.value("reader_lag_messages", kind="amqp_queue") == 5


# --- bounds ---------------------------------------------------------------------------------------


def test_the_largest_have_series_of_their_own(broker: Broker) -> None:
    bench = Bench(broker, shown_max=2)
    for name, count in (("small", 1), ("large", 5), ("none", 0), ("middle", 3)):
        declare(broker, name)
        publish(broker, name, *[b"x"] * count) if count else None
    broker.step()
    bench.look()
    samples = [
        (sample.labels["name"], sample.value)
        for metric in make_registry(bench.survey.probes()).collect()
        for sample in metric.samples
        if sample.name == "polymq_object_lag_messages"
    ]
    assert sorted(samples) == [("large", 5), ("middle", 3)]
    assert bench.value("objects_left_out", kind="amqp_queue") == 2
    assert bench.value("readers", kind="amqp_queue") == 4


def test_names_appear_only_if_they_are_asked_for(broker: Broker) -> None:
    bench = Bench(broker)
    declare(broker, "secret")
    publish(broker, "secret", b"x")
    broker.step()
    bench.look()
    found = [
        (metric.name, sample.labels)
        for metric in make_registry(bench.survey.probes()).collect()
        for sample in metric.samples
    ]
    assert not [name for name, labels in found if "secret" in labels.values()]
    assert not [name for name, _ in found if "object" in name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "plain"),
        ("caf\u00e9", "caf\u00e9"),
        ("not UTF-8: \udcff", "not UTF-8: \\udcff"),
        ("x" * CHARACTERS_MAX, "x" * CHARACTERS_MAX),
    ],
)
def test_names_as_labels(name: str, expected: str) -> None:
    assert label_value(name) == expected


def test_long_names_are_cut_and_differ() -> None:
    """A client identifier has up to 65,535 bytes."""
    one, other = (label_value("x" * 65_000 + end) for end in "ab")
    assert one != other
    assert len(one) == len(other) < CHARACTERS_MAX + 10


class _Crowd(NamedQueue):
    """A hundred thousand queues that are one, and how often it was looked at."""

    __slots__ = ("looks", "of_one")

    def __init__(self, one: NamedQueue) -> None:
        self.looks = 0
        self.of_one = one.group
        super().__init__(one.queue, one.group, one.terms)

    @property
    def group(self) -> Any:
        self.looks += 1
        return self.of_one

    @group.setter
    def group(self, _group: Any) -> None:
        """It stays that of the one queue."""


def test_no_step_looks_at_many_of_very_many_queues(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(broker, "q")
    publish(broker, "q", b"x")
    broker.step()
    queue = _Crowd(broker.engine.named_queues.queues["q"])
    crowd = dict.fromkeys(map(str, range(100_000)), queue)
    monkeypatch.setattr(broker.engine.named_queues, "queues", crowd)
    bench = Bench(broker, shown_max=200)
    steps: Generator[Any, Any, None] = bench.survey.steps()
    before = most = count = 0
    for _ in steps:
        most = max(most, queue.looks - before)
        before = queue.looks
        count += 1
    assert queue.looks == 2 * 100_000, "whether there is something, and then how much"
    assert most <= 2 * AT_ONCE
    assert count >= 100_000 // AT_ONCE
    assert bench.value("reader_lag_messages", kind="amqp_queue") == 100_000
    assert bench.value("objects_left_out", kind="amqp_queue") == 100_000 - 200
