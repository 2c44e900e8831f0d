"""Queues at the operator's listener: the list beside very many of them, and what waits in one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from polymq.admin.api import read_query
from polymq.admin.operations import Call
from polymq.admin.pages import Page
from polymq.admin.queues import Queue, QueueHandlers
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


def page(broker: Broker, **query: str) -> Page[Queue]:
    """A page, as a request asks for it."""
    (wanted,) = (
        operation
        for operation in QueueHandlers(broker.engine, _committed).group().operations
        if operation.name == "listQueues"
    )
    call: Call[Any] = Call(
        path={},
        query=read_query(wanted.query, query.items()),
        body=None,
        caller="test",
        port=broker.port,
        request=cast(web.Request, None),
    )

    async def ask() -> Page[Queue]:
        answer: Page[Queue] = await wanted.handler(call)
        return answer

    return asyncio.run(ask())


def names(answer: Page[Queue]) -> list[str]:
    return [row.name for row in answer.items]


def test_the_largest_first(crowd: Broker) -> None:
    """Where numbers are equal, by name."""
    answer = page(crowd, sort="ready", limit="4")
    assert [(row.name, row.ready) for row in answer.items] == [
        ("q0007", 3),
        ("q2000", 2),
        ("q0100", 1),
        ("%SUB%billing", 0),
    ]
    assert answer.total == QUEUES + 1
    assert answer.next is not None
    assert names(page(crowd, sort="ready", limit="1", after=answer.next)) == ["q0000"]


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
    answer = page(crowd, **query)
    assert names(answer) == expected
    assert answer.total == total


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"sort": "age"}, "sort is one of name, ready, unacknowledged, consumers, not 'age'"),
        ({"kind": "x"}, "kind is one of all, queue, subscription"),
        ({"limit": "0"}, "limit: expected `int` >= 1"),
        ({"limit": "501"}, "limit: expected `int` <= 500"),
        ({"limit": "x"}, "limit: expected `int`"),
        ({"sorted": "x"}, "there is no parameter sorted: use limit, after, prefix, sort"),
    ],
)
def test_wrong_requests(crowd: Broker, query: dict[str, str], text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        page(crowd, **query)
    assert refused.value.reason is Reason.BAD_ARGUMENT


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
    (row,) = page(broker).items
    assert (row.ready, row.unacknowledged, row.consumers) == (1, 2, 1)
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
