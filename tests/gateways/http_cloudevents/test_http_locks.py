"""Locks of received events: tokens, time, counts."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polymq.gateways.http_cloudevents.locks import LockTable, ranges


def table() -> LockTable[str]:
    numbers = count()
    return LockTable(lambda: f"s{next(numbers)}")


def test_a_token_settles_once() -> None:
    locks = table()
    lock = locks.lock(7, "x", until=10.0, redelivered=False)
    assert lock.count == 1
    found = locks.find(lock.token, now=9.9)
    assert found is lock
    locks.settle(lock)
    assert locks.find(lock.token, now=9.9) is None


def test_a_token_ends_with_its_lock() -> None:
    locks = table()
    lock = locks.lock(7, "x", until=10.0, redelivered=False)
    assert locks.find(lock.token, now=10.0) is None, "before the timer has run"
    assert locks.expire(10.0) == [lock]
    assert len(locks) == 0


def test_an_old_token_does_not_reach_the_next_delivery() -> None:
    """The event went to another consumer: the first one's late acknowledge must not count."""
    locks = table()
    old = locks.lock(7, "x", until=10.0, redelivered=False)
    locks.expire(10.0)
    new = locks.lock(7, "x", until=20.0, redelivered=True)
    assert locks.find(old.token, now=11.0) is None
    assert locks.find(new.token, now=11.0) is new
    assert new.count == 2


def test_after_a_restart_a_redelivered_event_counts_as_seen() -> None:
    assert table().lock(1, "x", until=1.0, redelivered=True).count == 2


def test_a_renewed_lock_outlives_its_first_deadline() -> None:
    locks = table()
    lock = locks.lock(1, "x", until=10.0, redelivered=False)
    locks.extend(lock, until=20.0)
    assert locks.next_deadline() == 20.0
    assert locks.expire(15.0) == []
    assert locks.find(lock.token, now=15.0) is lock


def test_a_delayed_release_takes_the_token_back() -> None:
    locks = table()
    lock = locks.lock(1, "x", until=10.0, redelivered=False)
    token = lock.token
    locks.extend(lock, until=30.0, secret=True)
    assert locks.find(token, now=5.0) is None
    assert locks.expire(30.0) == [lock]


def test_nonsense_is_no_token() -> None:
    locks = table()
    locks.lock(1, "x", until=10.0, redelivered=False)
    for token in ("", ".", "1", "1.", "1.wrong", "zz.s0", "-1.s0", "0x1 .s0", "1" * 5_000 + ".s0"):
        assert locks.find(token, now=0.0) is None


def test_ranges() -> None:
    assert ranges([5, 1, 2, 3, 9]) == [(1, 3), (5, 1), (9, 1)]
    assert ranges([]) == []


class Locks(RuleBasedStateMachine):
    """Against a plain dict: whatever happens, each offset is locked, waiting or done."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = table()
        self.now = 0.0
        self.next = 0
        self.held: dict[int, tuple[str, float, int]] = {}
        self.waiting: dict[int, int] = {}

    @rule(seconds=st.integers(1, 50))
    def lock_new(self, seconds: int) -> None:
        lock = self.locks.lock(
            self.next, str(self.next), until=self.now + seconds, redelivered=False
        )
        self.held[self.next] = lock.token, lock.until, lock.count
        self.next += 1

    @precondition(lambda self: self.waiting)
    @rule(seconds=st.integers(1, 50))
    def lock_again(self, seconds: int) -> None:
        offset = min(self.waiting)
        before = self.waiting.pop(offset)
        lock = self.locks.lock(offset, "x", until=self.now + seconds, redelivered=True)
        assert lock.count == before + 1
        self.held[offset] = lock.token, lock.until, lock.count

    @precondition(lambda self: self.held)
    @rule(data=st.data(), operation=st.sampled_from(["settle", "release", "extend", "hide"]))
    def use(self, data: st.DataObject, operation: str) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        token, _, deliveries = self.held[offset]
        lock = self.locks.find(token, self.now)
        assert lock is not None
        if operation in ("extend", "hide"):
            self.locks.extend(lock, until=self.now + 60, secret=operation == "hide")
            self.held[offset] = lock.token, lock.until, deliveries
            return
        del self.held[offset]
        if operation == "settle":
            self.locks.settle(lock)
        else:
            self.locks.release(lock)
            self.waiting[offset] = deliveries

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        ended = [lock.offset for lock in self.locks.expire(self.now)]
        expected = sorted(k for k, (_, until, _) in self.held.items() if until <= self.now)
        assert ended == expected
        for offset in ended:
            self.waiting[offset] = self.held.pop(offset)[2]

    @invariant()
    def agree(self) -> None:
        assert len(self.locks) == len(self.held)
        assert self.locks.next_deadline() == min(
            (until for _, until, _ in self.held.values()), default=None
        )


TestLocksStateMachine = Locks.TestCase
