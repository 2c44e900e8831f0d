"""Everything that keeps the log from being deleted, at the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin import store_holders
from polymq.broker.port import REST, Refused
from polymq.core_log.queue_index import QueueIndex
from tests.broker.queue_bench import consume, declare, publish
from tests.harness.broker import START_MS, Broker, SpyLink, at_qos, batch_of
from tests.polymq.admin.harness import Api


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def holders(broker: Broker, **query: Any) -> Any:
    return Api(broker).call("listStoreHolders", **query)


def ids(broker: Broker, **query: Any) -> list[str]:
    return [row.id for row in holders(broker, **query).items]


def test_the_oldest_first_with_what_each_holds_and_since_when(broker: Broker) -> None:
    for name in ("late", "early", "empty"):
        declare(broker, name)
    for name in ("early", "late"):
        publish(broker, name, b"x", b"y")
        broker.step(1.0)
    found = holders(broker, kind="queue")
    assert [row.id for row in found.items] == ["queue:early", "queue:late"]
    assert found.total == 2
    end = broker.store.log.appended
    assert [row.held_bytes for row in found.items] == [end - row.position for row in found.items]
    assert [row.since_ms for row in found.items] == [START_MS, START_MS + 1000]
    assert [row.age_seconds for row in found.items] == [2.0, 1.0]
    assert ids(broker, kind="queue", sort="id", prefix="l") == ["queue:late"]
    first = holders(broker, kind="queue", limit="1")
    assert ids(broker, kind="queue", limit="1", after=first.next) == ["queue:late"]


def test_a_queue_that_is_drained_holds_nothing(broker: Broker) -> None:
    declare(broker, "q")
    publish(broker, "q", b"x", b"y")
    broker.step()
    (before,) = holders(broker, kind="queue").items
    _, registration = consume(broker, "q")
    registration.settle(0, 1)
    (row,) = holders(broker, kind="queue").items
    assert row.position > before.position
    registration.settle(1, 1)
    assert ids(broker, kind="queue") == []


def test_holders_of_every_kind(broker: Broker) -> None:
    """Those that no queue of AMQP is, too."""
    session = broker.port.sessions.connect(
        "device", clean=False, link=SpyLink(), expiry_seconds=None, principal=""
    )
    session.subscribe(("home", REST), at_qos(1))
    broker.port.queues.declare_subscription("hook", ("home", REST))
    broker.step()
    broker.publish(broker.template("home", "a", retain=True), b"kept")
    declare(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.delays.publish_later(template, batch_of(b"x"), 0, 1, delay_ms=60_000)
    broker.step()
    broker.engine.retention.reservations.begin(0, broker.store.log.flushed, 100)
    found = {row.id: row.position for row in holders(broker).items}
    assert {"topic:home", "subscription:hook", "session:device", "retained:home/a"} <= set(found)
    assert "delayed:delayed messages" in found
    assert "unsaved:state and indexes" in found
    assert len([one for one in found if one.startswith("backup:")]) == 1
    assert not [one for one in found if one.startswith(("group:", "topic:rmq_sys"))], found
    assert found["topic:home"] == found["retained:home/a"] == found["session:device"]


def test_what_is_on_the_disk_only_is_read_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many queues at a time, and one that cannot be read holds everything."""
    names = [f"q{number}" for number in range(5)]
    for name in names:
        declare(broker, name)
    for name in names:
        publish(broker, name, b"x")
        broker.step()
    expected = {row.id: row.position for row in holders(broker, kind="queue").items}
    broker.save()
    monkeypatch.setattr(store_holders, "READ_COUNT", 2)
    monkeypatch.setattr(QueueIndex, "read_hot", lambda *_: None)
    found = {row.id: row.position for row in holders(broker, kind="queue").items}
    assert found == expected
    assert len(found) == 5
    monkeypatch.setattr(store_holders, "positions_of", lambda asked: [-1 for _ in asked])
    assert {row.position for row in holders(broker, kind="queue").items} == {0}


def test_a_retained_message_in_flight_to_a_session(broker: Broker) -> None:
    """It is in no queue of the session, and holds the log all the same."""
    broker.publish(broker.template("home", "a", retain=True), b"kept")
    broker.step()
    session = broker.port.sessions.connect(
        "device", clean=False, link=SpyLink(), expiry_seconds=None, principal=""
    )
    since = session.subscribe(("home", REST), at_qos(1))
    broker.step()
    session.replay_retained(("home", REST), since)
    broker.step()
    found = {row.id: row.position for row in holders(broker).items}
    assert found["session:device"] == found["retained:home/a"]


def test_many_holders_in_pages(broker: Broker) -> None:
    """Each once, whatever the page, and in the same order."""
    names = [f"q{number}" for number in range(30)]
    for name in names:
        declare(broker, name)
        publish(broker, name, b"x")
    broker.step()
    for sort in ("position", "id"):
        seen: list[str] = []
        given: dict[str, str] = {}
        for _ in range(5):
            page = holders(broker, kind="queue", sort=sort, limit="7", **given)
            assert page.total == 30
            seen += [row.name for row in page.items]
            given = {"after": str(page.next)}
        assert page.next is None
        assert seen == (sorted(names) if sort == "id" else names)
    with pytest.raises(Refused, match="`next` of a page"):
        holders(broker, after="x")
