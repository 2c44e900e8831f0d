"""Which records a broker may give up for a new master that lacks them."""

from __future__ import annotations

from polymq.broker.following.divergence import Divergence, diverged
from polymq.core_log.acknowledged import EVERYTHING, Acknowledged
from polymq.rejoining import disks_of
from tests.harness.broker import Broker


def look(broker: Broker, position: int, *, before: int = 0, disks: int = 2) -> Divergence:
    """What stands behind a position, when everything before another one was acknowledged."""
    topics = broker.engine.topics.topics.values()
    return diverged(
        broker.store,
        position,
        broker.store.log.written,
        acknowledged=Acknowledged(position=before, disks=disks),
        disks={topic.stored.encode(): disks_of(topic) for topic in topics},
    )


def offset(broker: Broker) -> int:
    """The end of the log, on the disk."""
    broker.step(1)
    return broker.store.log.written


def test_what_waited_for_two_disks_was_promised_up_to_the_position(broker: Broker) -> None:
    """Messages and changes of state before it, and none behind it."""
    broker.port.topics.create("t", 1)
    start = offset(broker)
    broker.publish(broker.template("t"), b"1", b"2")
    middle = offset(broker)
    broker.publish(broker.template("t"), b"3")
    broker.port.topics.create("u", 1)
    end = offset(broker)
    found = look(broker, start, before=middle)
    assert (found.messages, found.changes, found.promised) == (3, 1, 2)
    assert (found.promised_from, found.position, found.end) == (start, start, end)
    assert 0 < found.first_ms <= found.last_ms
    nothing = look(broker, start, before=start)
    assert (nothing.promised, nothing.promised_from) == (0, -1)
    assert look(broker, start, before=EVERYTHING).promised == 4


def test_a_topic_has_a_number_of_its_own(broker: Broker) -> None:
    """What waits for this disk only is promised when it is there, whatever the broker's number is;
    what waits for two is not, where the broker's is one."""
    broker.port.topics.create("one", 1, {"min_in_sync": "1"})
    broker.port.topics.create("two", 1, {"min_in_sync": "2"})
    broker.port.topics.create("cached", 1, {"min_in_sync": "2", "durability": "page_cache"})
    for topic, promised in (("one", 1), ("two", 0), ("cached", 1)):
        start = offset(broker)
        broker.publish(broker.template(topic), b"1")
        offset(broker)
        assert look(broker, start).promised == promised, topic
        assert look(broker, start, disks=1).promised == promised, topic


def test_the_least_number_that_the_broker_had_counts(broker: Broker) -> None:
    """It is noted in the file; settings may be others by now."""
    broker.port.topics.create("t", 1)
    start = offset(broker)
    broker.publish(broker.template("t"), b"1")
    offset(broker)
    assert look(broker, start, disks=2).promised == 0
    assert look(broker, start, disks=1).promised == 1


def test_a_topic_that_changed_or_went_was_another_one_before(broker: Broker) -> None:
    """What its messages waited for then is not known any more."""
    for number, change in enumerate(("set", "delete", "nothing")):
        name = f"t{number}"
        broker.port.topics.create(name, 1)
        start = offset(broker)
        broker.publish(broker.template(name), b"1")
        if change == "set":
            broker.port.topics.set(name, {"min_in_sync": "2"})
        elif change == "delete":
            broker.port.topics.delete(name)
        offset(broker)
        found = look(broker, start)
        assert found.promised == (change != "nothing"), change
        assert found.promised_from == (start if found.promised else -1)
        assert look(broker, start).messages == 1


def test_acks_and_epochs_are_nobodys_promise(broker: Broker) -> None:
    """They may come again after any crash."""
    start = offset(broker)
    broker.engine.core.journal.write({"op": "acks", "g": []})
    broker.engine.core.journal.write({"op": "acked", "t": []})  # of retained messages
    broker.engine.core.journal.write({"op": "replayed", "g": 0})  # that all of them were sent
    broker.store.restate_epochs()
    broker.engine.core.appended()
    offset(broker)
    found = look(broker, start, before=EVERYTHING, disks=1)
    assert (found.messages, found.changes, found.promised) == (0, 0, 0)
    assert found.end > start
