"""Commit points let go in order, each class for itself, and nothing after a failure."""

from __future__ import annotations

from polymq.broker.commits import CommitPoints
from polymq.broker.port import Durability


def test_what_waits_is_let_go_in_order_of_position() -> None:
    """A callback runs when its class's point reaches it, not before, and never out of order."""
    commits = CommitPoints(0)
    order: list[str] = []
    commits.when(10, Durability.FLUSHED, order.append, "a")
    commits.when(20, Durability.FLUSHED, order.append, "b")
    commits.when(15, Durability.FLUSHED, order.append, "behind b")
    commits.when(20, Durability.APPENDED, order.append, "quick")
    commits.advance(Durability.APPENDED, 20)
    assert order == ["quick"]
    commits.advance(Durability.FLUSHED, 19)
    assert order == ["quick", "a"]
    commits.advance(Durability.FLUSHED, 20)
    assert order == ["quick", "a", "b", "behind b"]
    commits.when(20, Durability.FLUSHED, order.append, "at once")
    assert order[-1] == "at once"


def test_after_a_failure_nothing_is_let_go() -> None:
    """What waited is forgotten, and what comes later is not taken."""
    commits = CommitPoints(0)
    order: list[str] = []
    commits.when(10, Durability.FLUSHED, order.append, "a")
    commits.fail()
    commits.when(11, Durability.FLUSHED, order.append, "b")
    commits.advance(Durability.FLUSHED, 100)
    assert order == []
    assert commits.waiting_count == 0


def test_a_callback_may_wait_for_something_itself() -> None:
    """Deliveries write state records, whose answers wait in turn."""
    commits = CommitPoints(0)
    order: list[str] = []

    def first() -> None:
        order.append("first")
        commits.when(30, Durability.FLUSHED, order.append, "second")

    commits.when(10, Durability.FLUSHED, first)
    commits.advance(Durability.FLUSHED, 20)
    assert order == ["first"]
    commits.advance(Durability.FLUSHED, 30)
    assert order == ["first", "second"]


def test_only_what_somebody_waits_for_is_urgent() -> None:
    """Bookkeeping waits for a flush that others ask for."""
    commits = CommitPoints(0)
    commits.when(10, Durability.FLUSHED, lambda: None, urgent=False)
    assert commits.urgent == 0
    commits.when(12, Durability.FLUSHED, lambda: None)
    assert commits.urgent == 12


def test_committed_means_in_the_class_that_was_asked_for() -> None:
    """What the page cache has is not on the disk: an answer that waits for the disk still waits."""
    commits = CommitPoints(0)
    commits.advance(Durability.APPENDED, 20)
    commits.advance(Durability.FLUSHED, 10)
    assert commits.committed(20, Durability.APPENDED)
    assert not commits.committed(20, Durability.FLUSHED)
    assert not commits.committed(11, Durability.FLUSHED)
    assert commits.committed(10, Durability.FLUSHED)
