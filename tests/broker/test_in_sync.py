"""Topics that ask for replicas, in the engine: order within a queue, restarts, limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymq.broker.commits import CommitPoints
from polymq.broker.port import APPENDED, FLUSHED, IN_SYNC, REST, Durability, Reason, Refused
from polymq.broker.replicas import Replicas
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, at_qos

COPIED = {"min_in_sync": "2"}


def in_sync_to_the_end(broker: Broker) -> None:
    broker.engine.core.replicas.acked("r", broker.store.log.appended)
    broker.step()


def pulled(broker: Broker, topic: str) -> int:
    """One past the last offset that a reader by offset gets."""
    ends: list[int] = []
    broker.port.queries.pull(
        topic, 0, 0, count_max=100, bytes_max=1 << 20, callback=lambda _, end: ends.append(end)
    )
    broker.step()
    return ends[0]


def bound_queue(broker: Broker, *topics: str) -> SpyConsumer:
    """A durable queue of what these topics get, and its consumer."""
    owner = object()
    broker.port.queues.declare(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=owner
    )
    for topic in topics:
        broker.port.exchanges.bind_queue("q", topic, "#", {}, owner=owner)
    return consume(broker)


def consume(broker: Broker) -> SpyConsumer:
    consumer = SpyConsumer()
    broker.port.queues.consume("q", consumer, exclusive=False, owner=object()).ready()
    broker.step()
    return consumer


@pytest.mark.parametrize("disks", [Durability.IN_SYNC, Durability.IN_SYNC_3])
def test_the_point_is_what_enough_replicas_have(disks: Durability) -> None:
    """For n disks: flushed here and on n - 1 replicas, whichever they are; it never goes back."""
    commits = CommitPoints(0)
    replicas = Replicas(commits)
    commits.advance(FLUSHED, 50)
    for number in range(disks - 2):
        replicas.acked(f"other {number}", 1000)
    assert commits.points[disks] == 0
    replicas.acked("a", 30)
    assert commits.points[disks] == 30
    replicas.acked("a", 20)
    replicas.acked("b", 10)
    assert commits.points[disks] == 30
    replicas.acked("b", 100)
    assert commits.points[disks] == 50
    commits.advance(FLUSHED, 70)
    replicas.flushed(70)
    assert commits.points[disks] == 70


def test_a_point_moves_when_it_is_on_the_disk_how_far() -> None:
    """Where somebody waits for a replica. What is reached meanwhile follows in one step; where
    nobody waits it moves at once; after another broker leads it moves no more."""
    commits = CommitPoints(0)
    replicas = Replicas(commits)
    stored: list[tuple[int, Callable[[], None]]] = []
    replicas.keep = lambda position, done: stored.append((position, done))
    commits.advance(FLUSHED, 1000)
    replicas.acked("a", 10)
    assert (commits.points[IN_SYNC], stored) == (10, [])
    acked: list[int] = []
    for position in (20, 30, 40, 90, 99):
        commits.when(position, IN_SYNC, acked.append, position)
    for position in (20, 30, 40):
        replicas.acked("a", position)
    assert not acked
    assert [position for position, _ in stored] == [20]
    stored[0][1]()
    assert acked == [20]
    assert [position for position, _ in stored] == [20, 40]
    stored[1][1]()
    assert acked == [20, 30, 40]
    replicas.flushed(1000)
    assert len(stored) == 2
    replicas.acked("a", 95)
    replicas.acked("a", 99)
    replicas.lost("a")
    replicas.acked("b", 50)  # what was reached with the one that is gone stays reached
    stored[2][1]()
    assert acked == [20, 30, 40, 90]
    assert [position for position, _ in stored] == [20, 40, 95, 99]
    replicas.resign()
    stored[3][1]()
    assert acked == [20, 30, 40, 90]
    assert len(stored) == 4


def test_weaker_messages_wait_behind_stronger_ones(broker: Broker) -> None:
    """In one queue nothing overtakes: what was published as QoS 0, and what a plain topic brings,
    comes after what waits for a replica. The plain topic's own readers do not wait."""
    broker.port.topics.create("copied", 1, COPIED)
    broker.port.topics.create("plain", 1)
    consumer = bound_queue(broker, "copied", "plain")
    session, link = connect(broker, "c", clean=True)
    session.subscribe(("plain", REST), at_qos(1))
    broker.step()
    broker.publish(broker.template("plain"), b"0")
    broker.publish(broker.template("copied"), b"1")
    broker.publish(broker.template("copied", durability=APPENDED), b"2")
    broker.publish(broker.template("plain"), b"3")
    broker.publish(broker.template("plain", durability=APPENDED), b"4")
    broker.step(1)
    assert consumer.bodies == [b"0"]
    assert link.bodies == [b"0", b"3", b"4"]
    assert (pulled(broker, "copied"), pulled(broker, "plain")) == (0, 3)
    in_sync_to_the_end(broker)
    assert consumer.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert (pulled(broker, "copied"), pulled(broker, "plain")) == (2, 3)
    assert not broker.engine.core.commits.holding
    assert broker.engine.core.held_bytes == 0


def test_nothing_overtakes_in_a_topic_that_only_live_subscribers_read(broker: Broker) -> None:
    """QoS 0 goes the quick way where it goes nowhere but to its topic and to who is connected: not
    while something waits for a replica there, and again when nothing does."""
    broker.port.topics.create("copied", 1, COPIED)
    session, link = connect(broker, "c", clean=True)
    session.subscribe(("copied", REST), at_qos(1))
    broker.step()
    copied, quick = broker.template("copied"), broker.template("copied", durability=APPENDED)
    broker.publish(quick, b"0")
    broker.publish(copied, b"1")
    broker.publish(quick, b"2")
    broker.publish(quick, b"3")
    broker.step(1)
    assert link.bodies == [b"0"]
    in_sync_to_the_end(broker)
    assert link.bodies == [b"0", b"1", b"2", b"3"]
    broker.publish(quick, b"4")
    broker.loop.run()
    assert link.bodies[4:] == [b"4"]


def test_readers_by_offset_wait_for_replicas_of_what_consumers_have(broker: Broker) -> None:
    """QoS 0 is delivered at once, but its offset could be given again: readers by offset wait."""
    broker.port.topics.create("copied", 1, COPIED)
    consumer = bound_queue(broker, "copied")
    broker.publish(broker.template("copied", durability=APPENDED), b"1")
    broker.step(1)
    assert consumer.bodies == [b"1"]
    assert pulled(broker, "copied") == 0
    in_sync_to_the_end(broker)
    assert pulled(broker, "copied") == 1


def test_a_replica_may_have_half_of_a_loop_iteration(broker: Broker) -> None:
    """Equal messages of one iteration, which would be one run else, are let go one by one."""
    broker.port.topics.create("copied", 1, COPIED)
    consumer = bound_queue(broker, "copied")
    template = broker.template("copied")
    middle = broker.publish(template, b"1")
    broker.publish(template, b"2")
    broker.step()
    broker.engine.core.replicas.acked("r", middle)
    broker.publish(broker.template("copied", durability=APPENDED), b"3")
    broker.step()
    assert consumer.bodies == [b"1"]
    in_sync_to_the_end(broker)
    assert consumer.bodies == [b"1", b"2", b"3"]
    assert broker.engine.core.held_bytes == 0


def test_a_change_of_the_setting_is_for_messages_to_come(broker: Broker) -> None:
    """Templates are made anew; what waited goes on to wait, and holds what comes behind it."""
    template = broker.template("t")
    assert template.durability is FLUSHED
    broker.port.topics.set("t", COPIED)
    assert not template.valid
    copied = broker.template("t")
    assert copied.durability is IN_SYNC
    broker.publish(copied, b"1")
    broker.port.topics.set("t", {"min_in_sync": "1"})
    broker.publish(broker.template("t"), b"2")
    broker.step()
    assert pulled(broker, "t") == 0
    in_sync_to_the_end(broker)
    assert pulled(broker, "t") == 2


def test_three_disks_wait_for_two_replicas(broker: Broker) -> None:
    """A topic may ask for more than another."""
    broker.port.topics.create("three", 1, {"min_in_sync": "3"})
    broker.publish(broker.template("three"), b"1")
    broker.step()
    in_sync_to_the_end(broker)
    assert pulled(broker, "three") == 0
    broker.engine.core.replicas.acked("s", broker.store.log.appended)
    assert pulled(broker, "three") == 1


def test_after_a_restart_what_no_replica_had_is_held_back(broker: Broker) -> None:
    """It was neither acked nor seen, and may be lost with this disk: consumers and readers by
    offset get it when a replica has it, and what comes later behind it. Other topics' messages
    in other queues are there at once, and so is what was in sync before."""
    broker.port.topics.create("copied", 1, COPIED)
    broker.port.topics.create("plain", 1)
    bound_queue(broker, "copied", "plain")
    broker.publish(broker.template("copied"), b"1")
    broker.step()
    in_sync_to_the_end(broker)
    known = broker.store.log.appended
    broker.publish(broker.template("plain"), b"2")
    broker.publish(broker.template("copied"), b"3")
    broker.publish(broker.template("plain"), b"4")
    broker.step()
    broker.kill()
    broker.in_sync = known
    broker.open()
    consumer = consume(broker)
    broker.step(1)
    assert (pulled(broker, "copied"), pulled(broker, "plain")) == (1, 2)
    assert consumer.bodies == [b"1", b"2"]
    broker.publish(broker.template("plain"), b"5")
    broker.step()
    assert pulled(broker, "plain") == 3
    assert consumer.bodies == [b"1", b"2"]
    in_sync_to_the_end(broker)
    broker.step(1)
    assert (pulled(broker, "copied"), pulled(broker, "plain")) == (2, 3)
    assert consumer.bodies == [b"1", b"2", b"3", b"4", b"5"]


def test_what_waits_for_replicas_has_a_limit(broker: Broker) -> None:
    """Publishers of such messages are paused, then refused; others are neither."""
    broker.limits = type(broker.limits)(held_bytes_pause=300, held_bytes_max=1000)
    broker.restart()
    broker.port.topics.create("copied", 1, COPIED)
    copied, plain = broker.template("copied"), broker.template("plain")
    resumed: list[int] = []
    for _ in range(3):
        broker.publish(copied, b"x" * 300)
        broker.step()
    assert broker.port.overloaded(lambda: resumed.append(1))
    broker.publish(plain, b"x")
    broker.step()
    assert not broker.port.overloaded(lambda: resumed.append(2))
    assert resumed == []
    with pytest.raises(Refused, match="wait for a replica") as refused:
        broker.publish(copied, b"x")
    assert refused.value.reason is Reason.LIMIT
    in_sync_to_the_end(broker)
    assert resumed == [1]
    broker.publish(copied, b"x")


def test_a_number_of_disks_is_checked(broker: Broker) -> None:
    """One sentence says what would be right."""
    with pytest.raises(Refused, match=r"min_in_sync is the number of brokers .* 1 to 3, not '4'"):
        broker.port.topics.create("t", 1, {"min_in_sync": "4"})


def test_who_ships_the_log_is_told_of_a_write_and_of_its_flush(broker: Broker) -> None:
    """A slave may get what is written, and has to hear how far the master is on the disk."""
    core = broker.engine.core
    reported: list[tuple[int, int]] = []
    core.on_written = lambda: reported.append((core.log.written, core.commits.points[FLUSHED]))
    before = core.log.written
    broker.publish(broker.template("sensors", "room1"), b"21")
    broker.loop.run()
    end = core.log.written
    assert end > before
    assert reported[-1] == (end, reported[0][1])
    assert reported[-1][1] < end
    broker.flush()
    assert reported[-1] == (end, end)
