"""RocketMQ's consumer groups: what they committed has to be there after any kind of restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polymq.broker.port import Reason, Refused
from polymq.broker.port.infos import Pause
from tests.harness.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    made = Broker(tmp_path)
    made.engine.port.topics.create("orders", 4)
    made.engine.port.groups.put("billing", {})
    return made


def forget_state(broker: Broker) -> None:
    broker.kill()
    (broker.directory / "state.db").unlink(missing_ok=True)


@pytest.mark.parametrize("end", [forget_state, Broker.stop, Broker.kill])
def test_offsets_and_settings_survive(broker: Broker, end: Callable[[Broker], None]) -> None:
    engine = broker.engine
    engine.port.groups.put("billing", {"retryMaxTimes": 3})
    engine.port.groups.commit("billing", "orders", 0, 7)
    engine.port.groups.commit("billing", "orders", 3, 9)
    broker.step(1.0)
    end(broker)
    broker.open()
    assert broker.port.groups.offsets("billing") == {("orders", 0): 7, ("orders", 3): 9}
    info = broker.port.groups.info("billing")
    assert info is not None
    assert info.settings == {"retryMaxTimes": 3}


def test_an_offset_is_read_as_soon_as_it_is_committed(broker: Broker) -> None:
    broker.port.groups.commit("billing", "orders", 1, 5)
    assert broker.port.groups.offset("billing", "orders", 1) == 5
    assert broker.port.groups.offsets("billing") == {("orders", 1): 5}


def test_commits_gather_into_one_record(broker: Broker) -> None:
    broker.step(1.0)
    before = broker.store.log.appended
    for offset in range(1, 1001):
        broker.port.groups.commit("billing", "orders", 0, offset)
    broker.step(1.0)
    assert broker.store.log.appended - before < 1000


def test_what_was_committed_again_costs_nothing(broker: Broker) -> None:
    broker.port.groups.commit("billing", "orders", 0, 5)
    broker.step(1.0)
    before = broker.store.log.appended
    broker.port.groups.commit("billing", "orders", 0, 5)
    broker.step(1.0)
    assert broker.store.log.appended == before


def test_offsets_may_be_reset_to_an_earlier_one(broker: Broker) -> None:
    broker.port.groups.commit("billing", "orders", 0, 5)
    broker.step(1.0)
    broker.port.groups.commit("billing", "orders", 0, 2)
    broker.step(1.0)
    forget_state(broker)
    broker.open()
    assert broker.port.groups.offset("billing", "orders", 0) == 2


def test_a_topic_that_was_made_again_begins_without_offsets(broker: Broker) -> None:
    broker.port.groups.commit("billing", "orders", 0, 5)
    broker.step(1.0)
    broker.port.topics.delete("orders")
    assert broker.port.groups.offset("billing", "orders", 0) is None
    broker.step(1.0)
    broker.port.topics.create("orders", 4)
    assert broker.port.groups.offset("billing", "orders", 0) is None
    broker.restart()
    assert broker.port.groups.offsets("billing") == {}


def test_a_deleted_group_takes_its_offsets_with_it(broker: Broker) -> None:
    broker.port.groups.commit("billing", "orders", 0, 5)
    broker.port.groups.delete("billing")
    broker.port.groups.put("billing", {})
    broker.step(1.0)
    assert broker.port.groups.offsets("billing") == {}


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset", "reason"),
    [
        ("unknown", "orders", 0, 1, Reason.NOT_FOUND),
        ("billing", "unknown", 0, 1, Reason.NOT_FOUND),
        ("billing", "orders", 4, 1, Reason.NOT_FOUND),
        ("billing", "orders", -1, 1, Reason.NOT_FOUND),
        ("billing", "orders", 0, -1, Reason.BAD_ARGUMENT),
    ],
)
def test_what_cannot_be_committed_is_refused(
    broker: Broker, group: str, topic: str, queue_id: int, offset: int, reason: Reason
) -> None:
    with pytest.raises(Refused) as refused:
        broker.port.groups.commit(group, topic, queue_id, offset)
    assert refused.value.reason is reason


def test_groups_have_a_limit(tmp_path: Path) -> None:
    broker = Broker(tmp_path, consumer_groups_max=2)
    broker.port.groups.put("a", {})
    broker.port.groups.put("b", {})
    broker.port.groups.put("b", {"consumeEnable": False})
    with pytest.raises(Refused) as refused:
        broker.port.groups.put("c", {})
    assert refused.value.reason is Reason.LIMIT


# --- pauses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [forget_state, Broker.stop, Broker.kill])
def test_a_pause_survives(broker: Broker, end: Callable[[Broker], None]) -> None:
    """In one topic of one group, with its time and its maker; what was resumed does not."""
    groups = broker.engine.groups
    broker.engine.port.topics.create("other", 1)
    groups.put("reports", {})
    groups.pause("billing", "orders", by="olga")
    groups.pause("billing", "other", by="eve")
    groups.pause("reports", "orders", by="eve")
    broker.step(5.0)
    since_ms = broker.loop.clock_ms() - 5_000
    groups.resume("billing", "other")
    groups.delete("reports")
    groups.pause("billing", "orders", by="somebody later")
    broker.step(1.0)
    end(broker)
    broker.open()
    groups = broker.engine.groups
    assert list(groups.pauses.of_group("billing")) == [
        ("orders", Pause(since_ms=since_ms, by="olga"))
    ]
    assert len(list(groups.pauses.all())) == 1
    assert broker.port.groups.is_paused("billing", "orders")
    assert not broker.port.groups.is_paused("billing", "other")
    groups.put("reports", {})
    assert not broker.port.groups.is_paused("reports", "orders"), "it went with the group"


def test_a_pause_is_of_one_incarnation_of_a_topic(broker: Broker) -> None:
    """A topic that is made again begins without any, and the row does not name it."""
    groups = broker.engine.groups
    groups.pause("billing", "orders", by="olga")
    broker.engine.port.topics.delete("orders")
    broker.engine.port.topics.create("orders", 1)
    broker.step(1.0)
    assert not groups.is_paused("billing", "orders")
    row = groups.row("billing")
    assert row is not None
    assert "pauses" not in row
    groups.pause("billing", "orders", by="olga")
    assert groups.is_paused("billing", "orders")


def test_pauses_that_cannot_be(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group or a topic that is not there, and one topic too many."""
    monkeypatch.setattr("polymq.broker.reading.group_pauses.PAUSES_MAX", 1)
    broker.engine.port.topics.create("other", 1)
    groups = broker.engine.groups
    for group, topic in (("x", "orders"), ("billing", "x")):
        with pytest.raises(Refused) as error:
            groups.pause(group, topic, by="olga")
        assert error.value.reason is Reason.NOT_FOUND
    with pytest.raises(Refused, match="no consumer group 'x'"):
        groups.resume("x", "orders")
    groups.pause("billing", "orders", by="olga")
    with pytest.raises(Refused) as error:
        groups.pause("billing", "other", by="olga")
    assert error.value.reason is Reason.LIMIT
    end = broker.store.log.appended
    assert groups.resume("billing", "other") == end, "it is not paused"
