"""Readers of all protocols at the admin API: how far each is, and letting one go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin import readers
from polymq.admin.gateways import Gateways
from polymq.admin.resets import reader_group
from polymq.broker.port import Refused
from polymq.net.clients import ConsumerInfo
from tests.broker.queue_bench import consume, declare, look, publish, ready
from tests.harness.broker import START_MS, Broker
from tests.polymq.admin.operation_calls import call, committed

Moved = list[tuple[str, str, int, int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def ask(
    broker: Broker, name: str, reader: str = "", moved: Moved | None = None, **given: Any
) -> Any:
    reported = [] if moved is None else moved
    gateways = Gateways(
        group_members=lambda group: [ConsumerInfo(name=f"{group}@1", reads=("t *",))],
        group_moved=lambda *what: reported.append(what),
    )
    group = reader_group(broker.engine, committed, gateways, "/".join)
    return call([group], name, {"id": reader}, broker=broker, **given)


def stored(broker: Broker, topic: str, count: int) -> None:
    """Messages in a topic, a second apart: the first at the start."""
    template = broker.template(topic)
    for number in range(count):
        broker.publish(template, b"%d" % number)
        broker.step(1.0)


def test_a_queue_with_its_consumer(broker: Broker) -> None:
    """What waits, what a consumer has, and since when the oldest waits."""
    declare(broker, "q")
    for _ in range(4):
        publish(broker, "q", b"x")
        broker.step(1.0)
    consume(broker, "q", credit=1)
    (row,) = ask(broker, "listReaders").items
    assert (row.id, row.kind, row.consumers) == ("queue:q", "queue", 1)
    assert (row.waiting, row.unacknowledged) == (3, 1)
    assert row.oldest_ms == START_MS + 1000
    assert row.lag_seconds == 3.0
    found = ask(broker, "getReader", "queue:q")
    (queue,) = found.queues
    assert (queue.position, queue.end) == (1, 4)
    with pytest.raises(Refused, match="there is no reader 'queue:p'"):
        ask(broker, "getReader", "queue:p")


def test_a_consumer_group(broker: Broker) -> None:
    """Its lag in each queue of each topic, by what it has committed; and its members."""
    stored(broker, "t", 5)
    broker.port.groups.put("readers", {})
    broker.port.groups.commit("readers", "t", 0, 2)
    broker.step(1.0)
    found = ask(broker, "getReader", "group:readers")
    assert (found.waiting, found.unacknowledged, found.consumers) == (3, 0, 1)
    assert found.oldest_ms == START_MS + 2000
    (queue,) = found.queues
    assert (queue.topic, queue.queue, queue.position, queue.end) == ("t", 0, 2, 5)
    (member,) = found.consumer_list
    assert (member.name, member.reads) == ("readers@1", ["t *"])


def test_the_slowest_first(broker: Broker) -> None:
    declare(broker, "few")
    declare(broker, "many")
    broker.port.queues.declare_subscription("billing", ("t", "#"))
    publish(broker, "few", b"x")
    publish(broker, "many", *[b"x"] * 3)
    broker.step()
    page = ask(broker, "listReaders", sort="waiting", limit="2")
    assert [row.id for row in page.items] == ["queue:many", "queue:few"]
    assert page.total == 3
    page = ask(broker, "listReaders", sort="waiting", after=page.next)
    assert [row.id for row in page.items] == ["subscription:billing"]
    assert [row.name for row in ask(broker, "listReaders", prefix="f").items] == ["few"]
    assert [row.name for row in ask(broker, "listReaders", kind="subscription").items] == [
        "billing"
    ]
    assert ask(broker, "listReaders", user="ann").total == 0


def test_many_queues_of_one_reader_are_cut(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are those of all."""
    monkeypatch.setattr(readers, "QUEUES_MAX", 2)
    broker.port.topics.create("t", 4)
    broker.port.groups.put("g", {})
    for queue in range(4):
        broker.port.groups.commit("g", "t", queue, 0)
    stored(broker, "t", 1)
    found = ask(broker, "getReader", "group:g")
    assert found.waiting == 1
    assert len(found.queues) == 2


@pytest.mark.parametrize(
    ("target", "after", "skipped", "again"),
    [
        ({"to": "oldest"}, 0, 0, 3),
        ({"to": "newest"}, 5, 2, 0),
        ({"to": "offset", "offset": 1}, 1, 0, 2),
        ({"to": "offset", "offset": 4}, 4, 1, 0),
        ({"to": "time", "time_ms": START_MS + 1500}, 2, 0, 1),
        ({"to": "time", "time_ms": START_MS + 2000}, 2, 0, 1),
        ({"to": "time", "time_ms": START_MS + 60_000}, 5, 2, 0),
        ({"to": "time", "time_ms": 0}, 0, 0, 3),
    ],
)
def test_a_group_goes_back_or_forward(
    broker: Broker, target: dict[str, Any], after: int, skipped: int, again: int
) -> None:
    """It says how many messages are skipped or read again before anything happens; then members
    are told, and a crash forgets nothing."""
    stored(broker, "t", 5)
    broker.port.groups.put("g", {})
    broker.port.groups.commit("g", "t", 0, 3)
    broker.step(1.0)
    moved: Moved = []
    said = ask(broker, "resetReader", "group:g", moved, **target, dry_run=True)
    assert (said.skipped, said.again) == (skipped, again)
    assert broker.port.groups.offset("g", "t", 0) == 3
    assert not moved
    done = ask(broker, "resetReader", "group:g", moved, **target)
    assert (done.skipped, done.again, done.queues) == (skipped, again, said.queues)
    assert moved == [("g", "t", 0, after)]
    broker.step()  # long before acknowledgements that gather are written
    broker.kill()
    broker.open()
    assert broker.port.groups.offset("g", "t", 0) == after


@pytest.mark.parametrize("arguments", [{}, {"x_max_length_bytes": 1_000_000}])
def test_a_queue_only_goes_forward(broker: Broker, arguments: dict[str, Any]) -> None:
    """What waits before the place is gone, also after a crash; what consumers have stays."""
    declare(broker, "q", **arguments)
    for number in range(6):
        publish(broker, "q", b"%d" % number)
        broker.step(1.0)
    consume(broker, "q", credit=1)
    target: dict[str, Any] = {"to": "time", "time_ms": START_MS + 3000}
    said = ask(broker, "resetReader", "queue:q", **target, dry_run=True)
    assert (said.skipped, said.again) == (2, 0)
    assert ready(broker, "q") == 5
    assert ask(broker, "resetReader", "queue:q", **target).skipped == 2
    assert ready(broker, "q") == 3
    broker.step()  # long before acknowledgements that gather are written
    broker.kill()
    broker.open()
    assert look(broker, "q") == [b"0", b"3", b"4", b"5"], "the consumer had the first"
    with pytest.raises(Refused, match="only goes forward"):
        ask(broker, "resetReader", "queue:q", to="offset", offset=2)


def test_what_was_given_back_is_skipped_too(broker: Broker) -> None:
    declare(broker, "q")
    publish(broker, "q", *[b"x"] * 4)
    broker.step()
    _, registration = consume(broker, "q", credit=3)
    registration.cancel()
    registration.requeue(0, 3)
    registration.settle(1, 1)
    assert ask(broker, "resetReader", "queue:q", to="offset", offset=3, dry_run=True).skipped == 2
    assert ask(broker, "resetReader", "queue:q", to="offset", offset=3).skipped == 2
    assert ready(broker, "q") == 1


@pytest.mark.parametrize(
    ("reader", "given", "text"),
    [
        ("group:g", {"to": "offset"}, "offset is for to=offset"),
        ("group:g", {"to": "newest", "offset": 1}, "offset is for to=offset"),
        ("group:g", {"to": "time"}, "time_ms is for to=time"),
        ("group:g", {"to": "newest"}, "name the topic: the group reads none yet"),
        ("group:g", {"to": "newest", "topic": "x"}, "there is no topic 'x'"),
        ("group:g", {"to": "offset", "offset": 9, "topic": "t"}, "queue 0 has the offsets 0 to 1"),
        ("group:g", {"to": "newest", "topic": "t", "queue": 3}, "has 1 queues, and no queue 3"),
        ("group:x", {"to": "newest"}, "there is no reader 'group:x'"),
        ("queue:p", {"to": "offset", "offset": 1}, "no single order of offsets"),
    ],
)
def test_wrong_requests(broker: Broker, reader: str, given: dict[str, Any], text: str) -> None:
    stored(broker, "t", 1)
    broker.port.groups.put("g", {})
    declare(broker, "p", x_max_priority=3)
    publish(broker, "p", b"x", priority=2)
    publish(broker, "p", b"x")
    broker.step()
    with pytest.raises(Refused, match=text):
        ask(broker, "resetReader", reader, **given)
