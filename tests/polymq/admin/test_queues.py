"""The list of queues at the operator's listener beside very many queues: what is on a page, and in
how many steps it is made. How long the steps take is measured, not tested: it is the machine's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin.queues import QUEUES_AT_ONCE, Asked, QueueHandlers
from polymq.broker.named_queues.inspection import Backlog, inspect_backlog
from polymq.broker.port import Position, Reason, Refused
from polymq.broker.queues.inspection import Need
from tests.broker.queue_bench import consume, declare, publish
from tests.harness.broker import START_MS, Broker

QUEUES = 3_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Thousands of queues. Few of them have messages."""
    broker = Broker(tmp_path_factory.mktemp("queues") / "data", with_state_db=False)
    for number in range(QUEUES):
        declare(broker, f"q{number * 1009 % QUEUES:04}", durable=number % 2 == 0)
    broker.port.queues.declare_subscription("billing", ("orders", "#"))
    for name, count in (("q0007", 3), ("q0100", 1), ("q2000", 2)):
        publish(broker, name, *[b"x"] * count)
    broker.step()
    yield broker
    broker.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


async def _committed(_position: Position) -> None:
    """The disk is not the matter here."""


def page(broker: Broker, **query: str) -> tuple[dict[str, Any], int]:
    """A page, and in how many steps it was made."""
    return finished(QueueHandlers(broker.engine, _committed).page(Asked(query)))


def finished(steps: Generator[None, None, dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """What the steps lead to, and how many there were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def names(answer: dict[str, Any]) -> list[str]:
    return [row["name"] for row in answer["queues"]]


def test_all_pages_show_each_queue_once(crowd: Broker) -> None:
    shown: list[str] = []
    query = {"limit": "500"}
    while True:
        answer, steps = page(crowd, **query)
        assert answer["total"] == QUEUES + 1
        assert steps >= QUEUES // QUEUES_AT_ONCE, "no step looks at very many"
        shown += names(answer)
        if answer["after"] is None:
            break
        query["after"] = answer["after"]
    assert shown == ["%SUB%billing", *(f"q{number:04}" for number in range(QUEUES))]


def test_the_largest_first(crowd: Broker) -> None:
    """Where numbers are equal, by name. There is no second page."""
    answer, _ = page(crowd, sort="ready", limit="4")
    assert [(row["name"], row["ready"]) for row in answer["queues"]] == [
        ("q0007", 3),
        ("q2000", 2),
        ("q0100", 1),
        ("%SUB%billing", 0),
    ]
    assert answer["after"] is None
    assert answer["total"] == QUEUES + 1


@pytest.mark.parametrize(
    ("query", "expected", "total"),
    [
        ({"prefix": "q000"}, [f"q000{number}" for number in range(10)], 10),
        ({"prefix": "q000", "limit": "2"}, ["q0000", "q0001"], 10),
        ({"kind": "subscription"}, ["%SUB%billing"], 1),
        ({"prefix": "q00", "kind": "subscription"}, [], 0),
        ({"after": "q2998"}, ["q2999"], QUEUES + 1),
        ({"user": "ann"}, [], 0),
    ],
)
def test_filters(crowd: Broker, query: dict[str, str], expected: list[str], total: int) -> None:
    answer, _ = page(crowd, **query)
    assert names(answer) == expected
    assert answer["total"] == total


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"sort": "age"}, "sort is one of name, ready, unacknowledged, consumers, not 'age'"),
        ({"kind": "x"}, "kind is one of all, queue, subscription"),
        ({"sort": "ready", "after": "q"}, "only a list that is sorted by name has pages"),
        ({"limit": "0"}, "limit is 1 to 500"),
        ({"limit": "501"}, "limit is 1 to 500"),
    ],
)
def test_wrong_requests(query: dict[str, str], text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        Asked(query)
    assert refused.value.reason is Reason.BAD_ARGUMENT


def test_queues_that_are_deleted_meanwhile(crowd: Broker) -> None:
    """They are left out, and the next page begins where this one ended."""
    declare(crowd, "a1", durable=False)
    declare(crowd, "a2", durable=False)
    steps = QueueHandlers(crowd.engine, _committed).page(Asked({"prefix": "a", "limit": "1"}))
    for _ in range(QUEUES // QUEUES_AT_ONCE + 1):  # all are looked at, and none is shown yet
        next(steps)
    for name in ("a1", "a2"):
        crowd.port.queues.delete(name, if_unused=False, if_empty=False, owner=None)
    answer, _ = finished(steps)
    assert answer == {"queues": [], "after": "a1", "total": 2}


def fetched(broker: Broker, need: Need) -> bytes | None:
    taken: list[bytes | None] = []
    broker.engine.core.reading.entries(
        need.index, need.first, need.count, lambda _, entries: taken.append(entries)
    )
    broker.step()
    return taken[0]


def backlog(broker: Broker, name: str) -> tuple[Backlog, list[Need]]:
    """What waits in a queue, and what had to be read for it."""
    steps: Generator[Need | None, bytes | None, Backlog]
    steps = inspect_backlog(broker.engine.named_queues.queues[name])
    needs: list[Need] = []
    answer: bytes | None = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as end:
            return end.value, needs
        answer = None
        if need is not None:
            needs.append(need)
            answer = fetched(broker, need)


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}])
def test_what_waits(broker: Broker, arguments: dict[str, Any]) -> None:
    """Its bytes, and since when. Messages that were given back are a part of it, and those that a
    consumer has are not."""
    declare(broker, "q", **arguments)
    assert backlog(broker, "q")[0] == Backlog(0, is_complete=True, oldest_ms=None)
    for _ in range(3):
        publish(broker, "q", b"x" * 100)
        broker.step(1.0)
    found, _ = backlog(broker, "q")
    assert found.is_complete
    assert found.oldest_ms is not None
    assert 0 <= found.oldest_ms - START_MS < 1000
    each = found.bytes // 3
    assert found.bytes == 3 * each > 300
    consumer, taken = consume(broker, "q", credit=2)
    assert len(consumer.bodies) == 2
    left, _ = backlog(broker, "q")
    assert left.bytes == each
    assert left.oldest_ms == found.oldest_ms + 2000
    (row,) = page(broker)[0]["queues"]
    assert (row["ready"], row["unacknowledged"], row["consumers"]) == (1, 2, 1)
    for offset, _, _ in consumer.got:
        taken.requeue(offset, 1)
    broker.step()
    assert backlog(broker, "q")[0] == found


def test_a_backlog_that_is_not_in_memory(broker: Broker) -> None:
    """Its entries are asked for; what cannot be read is not known."""
    declare(broker, "q")
    publish(broker, "q", *[b"x" * 100] * 10)
    broker.step()
    found, needs = backlog(broker, "q")
    assert not needs
    broker.save()
    broker.restart()
    again, needs = backlog(broker, "q")
    assert again == found
    assert needs
