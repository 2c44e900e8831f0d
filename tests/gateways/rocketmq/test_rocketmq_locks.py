"""Two consumers of one group never have the same queue, and a dead one's comes free."""

from __future__ import annotations

from polymq.gateways.rocketmq.locks import LEASE_SECONDS, Locks
from polymq.remoting.group_bodies import MessageQueue

QUEUES = [MessageQueue(topic="orders", broker_name="broker-a", queue_id=n) for n in range(4)]


def test_a_queue_is_locked_by_one_at_a_time() -> None:
    locks = Locks(count_max=10)
    assert locks.lock("g", "a", QUEUES[:2], 0.0) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES, 1.0) == QUEUES[2:]
    assert locks.lock("g", "a", QUEUES[:2], 2.0) == QUEUES[:2]


def test_groups_do_not_hinder_each_other() -> None:
    locks = Locks(count_max=10)
    locks.lock("g", "a", QUEUES, 0.0)
    assert locks.lock("h", "b", QUEUES, 0.0) == QUEUES


def test_a_lease_ends_and_asking_again_renews_it() -> None:
    locks = Locks(count_max=10)
    locks.lock("g", "a", QUEUES[:1], 0.0)
    locks.lock("g", "a", QUEUES[:1], 40.0)
    assert locks.lock("g", "b", QUEUES[:1], LEASE_SECONDS + 1) == []
    assert locks.lock("g", "b", QUEUES[:1], 40.0 + LEASE_SECONDS) == QUEUES[:1]


def test_only_the_owner_gives_a_lock_back() -> None:
    locks = Locks(count_max=10)
    locks.lock("g", "a", QUEUES[:1], 0.0)
    locks.unlock("g", "b", QUEUES[:1])
    assert locks.lock("g", "b", QUEUES[:1], 1.0) == []
    locks.unlock("g", "a", QUEUES[:1])
    assert locks.lock("g", "b", QUEUES[:1], 1.0) == QUEUES[:1]


def test_locks_have_a_limit_that_ended_leases_do_not_count_for() -> None:
    locks = Locks(count_max=2)
    assert locks.lock("g", "a", QUEUES, 0.0) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES[2:], LEASE_SECONDS + 1) == QUEUES[2:]
