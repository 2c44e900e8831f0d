"""A session with thousands of subscriptions ends in one record and in little time. What it leaves
in memory is swept away in steps, and no client waits for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.pacing.sweeping import SWEPT_AT_ONCE
from polymq.broker.port import REST, Durability, Session
from polymq.broker.sessions.settings import DROP_NEWEST, SessionSettings
from polymq.broker.sessions.state import ENDED_AT_ONCE
from polymq.broker.state.journal import Op
from tests.broker.test_commit_steps import one_iteration
from tests.broker.test_ends import is_sweeping, ops
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyLink, at_qos

__all__ = ["ops"]  # a fixture

COUNT = 3 * SWEPT_AT_ONCE


def subscribed(
    broker: Broker, client: str = "c", *, clean: bool = False, qos: int = 1, user: str = "u"
) -> tuple[Session, SpyLink]:
    """A connected session with `COUNT` filters."""
    session, link = connect(broker, client, clean=clean, user=user)
    for number in range(COUNT):
        session.subscribe(("a", f"{number}"), at_qos(qos))
    broker.step()
    return session, link


def left(broker: Broker) -> tuple[int, int]:
    """Groups of sessions and filter queues in memory, those that are over included."""
    return len(broker.engine.queue_store.groups), len(broker.engine.sessions.filters)


def begin(broker: Broker, *, clean: bool = False) -> tuple[Session, SpyLink]:
    """The client connects. Nothing else goes on meanwhile."""
    link = SpyLink(1000)
    return broker.port.sessions.connect(
        "c", clean=clean, expiry_seconds=0 if clean else None, link=link, principal="u"
    ), link


def publish(broker: Broker, number: int, body: bytes) -> None:
    broker.publish(broker.template("a", f"{number}"), body)
    broker.step()


def test_a_durable_session_ends_in_one_record(broker: Broker, ops: list[Op]) -> None:
    """A clean CONNECT: the new session begins in the same call, the old one is swept in steps."""
    old, _ = subscribed(broker)
    old.disconnect()
    ops.clear()
    new, link = begin(broker, clean=True)
    assert [op["op"] for op in ops] == ["session-"]
    assert not new.present
    engine = broker.engine
    assert engine.sessions.subscription_counts == {}
    assert engine.sessions.counts == {}
    assert not engine.sessions.by_number
    before = left(broker)
    assert before == (COUNT - SWEPT_AT_ONCE, COUNT)
    while left(broker) != (0, 0):
        ops.clear()
        one_iteration(broker)
        groups, filters = left(broker)
        assert before[0] - groups <= SWEPT_AT_ONCE
        assert before[1] - filters <= ENDED_AT_ONCE
        assert {op["op"] for op in ops} <= {"fq-"}
        before = groups, filters
    assert not is_sweeping(broker)
    new.resume()
    publish(broker, 1, b"1")
    assert link.bodies == []
    assert not engine.topics.router.match(("a", "1"))


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("with_state_db", [True, False])
def test_after_a_crash_a_session_is_there_with_all_it_had_or_gone_with_it(
    tmp_path: Path, written: bool, with_state_db: bool
) -> None:
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    session, _ = subscribed(broker)
    broker.save()
    session.disconnect()
    publish(broker, 1, b"1")
    begin(broker, clean=True)
    if written:
        one_iteration(broker)
        one_iteration(broker)
        assert is_sweeping(broker) or left(broker)[1]
    broker.kill()
    broker.open()
    if written:
        broker.step()
        assert left(broker) == (0, 0)
    else:
        assert left(broker) == (COUNT, COUNT)
    session, link = connect(broker, "c")
    assert session.present is not written
    assert link.bodies == ([] if written else [b"1"])
    assert broker.engine.sessions.subscription_counts == ({} if written else {"u": COUNT})
    broker.stop()


def test_the_same_filters_again_before_the_old_ones_are_swept(broker: Broker) -> None:
    """They go on with the queue that is there, and only see what comes from now on."""
    old, _ = subscribed(broker)
    old.disconnect()
    publish(broker, COUNT - 1, b"missed")
    _, link = begin(broker, clean=True)
    again, link = begin(broker)
    again.resume()
    for number in (0, 1, COUNT - 1):
        again.subscribe(("a", f"{number}"), at_qos(1))
    assert is_sweeping(broker)
    assert not again.present
    broker.step()
    assert left(broker) == (3, 3)
    for number in (0, 1, 2, COUNT - 1):
        publish(broker, number, b"%d" % number)
    assert link.bodies == [b"0", b"1", b"%d" % (COUNT - 1)]
    broker.restart()
    assert left(broker) == (3, 3)
    again, link = connect(broker, "c")
    assert again.present
    assert link.bodies == [b"0", b"1", b"%d" % (COUNT - 1)]


def test_messages_that_come_before_it_is_swept_are_for_the_others(
    tmp_path: Path,
) -> None:
    """Also where sessions are bounded: nothing is written for one that is gone."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=1, overflow=DROP_NEWEST)
    broker.restart()
    old, _ = subscribed(broker)
    other, link = connect(broker, "other", clean=True)
    other.subscribe(("a", REST), at_qos(1))
    broker.step()
    old.disconnect()
    publish(broker, COUNT - 1, b"1")
    publish(broker, COUNT - 1, b"2")  # the old one is stopped
    lost = broker.engine.sessions.backlogs.dropped_count
    assert lost == 1
    begin(broker, clean=True)
    for number in (COUNT - 1, COUNT - 2):
        template = broker.template("a", f"{number}", durability=Durability.APPENDED)
        broker.publish(template, b"3")
        broker.publish(template, b"4")
    one_iteration(broker)
    assert is_sweeping(broker)
    assert len(link.bodies) > 2
    broker.step()
    assert broker.engine.sessions.backlogs.dropped_count == lost
    assert link.bodies == [b"1", b"2", b"3", b"4", b"3", b"4"]
    assert left(broker) == (0, 0)
    broker.kill()
    broker.open()
    broker.step()
    assert left(broker) == (0, 0)


def test_a_session_with_groups_that_wait_for_acknowledgements(tmp_path: Path) -> None:
    """What was in flight of filters that it had unsubscribed from ends as well, in steps."""
    broker = Broker(tmp_path / "data", inflight_count_start=COUNT)
    session, _ = subscribed(broker)
    for number in range(2 * ENDED_AT_ONCE):
        broker.publish(broker.template("a", f"{number}"), b"x")
    broker.step(0.1)
    for number in range(2 * ENDED_AT_ONCE):
        session.unsubscribe(("a", f"{number}"))
    broker.step(0.1)
    assert left(broker) == (COUNT, COUNT)
    session.disconnect()
    begin(broker, clean=True)
    counts = []
    while left(broker) != (0, 0):
        before = left(broker)[0]
        one_iteration(broker)
        counts.append(before - left(broker)[0])
    assert max(counts) <= SWEPT_AT_ONCE + ENDED_AT_ONCE
    broker.step()
    broker.kill()
    broker.open()
    assert left(broker) == (0, 0)


def test_all_sessions_of_a_deleted_user_end_in_one_record(broker: Broker, ops: list[Op]) -> None:
    """Those of others stay. Whoever has the name later finds nothing."""
    for client in ("c", "d"):
        subscribed(broker, client)[0].disconnect()
    other, link = connect(broker, "other", user="v")
    other.subscribe(("a", "1"), at_qos(1))
    broker.step()
    ops.clear()
    broker.engine.sessions.end_sessions_of("u")
    assert [op["op"] for op in ops] == ["session-"]
    assert [session.client_id for session in broker.engine.sessions.by_number.values()] == ["other"]
    assert broker.engine.sessions.counts == {"v": 1}
    assert broker.engine.sessions.subscription_counts == {"v": 1}
    again, _ = begin(broker)
    assert not again.present
    broker.step()
    assert left(broker) == (1, 1)
    publish(broker, 1, b"1")
    assert link.bodies == [b"1"]
    broker.kill()
    broker.open()
    there = {session.client_id for session in broker.engine.sessions.by_number.values()}
    assert there == {"c", "other"}
    assert left(broker) == (1, 1)


def test_a_clean_session_ends_with_its_connection(broker: Broker, ops: list[Op]) -> None:
    """Its filters are in memory only. It gets nothing while they are swept out of it."""
    session, link = subscribed(broker, clean=True)
    ops.clear()
    session.disconnect()
    router = broker.engine.topics.router
    assert broker.engine.sessions.subscription_counts == {}
    assert is_sweeping(broker)
    assert router.match(("a", f"{COUNT - 1}"))
    again, new = begin(broker, clean=True)
    again.resume()
    again.subscribe(("a", f"{COUNT - 1}"), at_qos(1))
    broker.publish(broker.template("a", f"{COUNT - 1}"), b"1")
    one_iteration(broker)
    broker.step()
    assert link.bodies == []
    assert new.bodies == [b"1"]
    assert not is_sweeping(broker)
    assert len(router.match(("a", f"{COUNT - 1}"))) == 1
    assert not router.match(("a", "0"))
    assert [op["op"] for op in ops] == ["topic+"]


def test_nothing_is_saved_before_a_session_is_swept(broker: Broker) -> None:
    """The rows of its groups are marked when they go."""
    session, _ = subscribed(broker)
    broker.save()
    session.disconnect()
    begin(broker, clean=True)
    saving = broker.engine.begin_snapshot()
    assert saving is not None
    assert not saving.gather(1 << 30)
    while is_sweeping(broker):
        one_iteration(broker)
    assert saving.gather(1 << 30)
    assert len([key for kind, key in saving.entities if kind == "group"]) == COUNT


@pytest.mark.parametrize("restart", [False, True])
def test_filter_queues_wait_for_a_log_that_takes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """Those that nobody reads end when it takes something again, or after the next start."""
    session, _ = subscribed(broker)
    session.disconnect()
    begin(broker, clean=True)
    journal = broker.engine.core.journal
    write = journal.write

    def refuse(op: Op) -> Any:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    monkeypatch.setattr(journal, "write", refuse)
    broker.step(0.1)
    assert left(broker) == (0, COUNT)
    if restart:
        broker.restart()
        assert left(broker) == (0, COUNT)
    monkeypatch.setattr(journal, "write", write)
    broker.step(10)
    assert left(broker) == (0, 0)


@pytest.mark.parametrize("connected", [True, False])
def test_a_session_stays_where_no_new_one_can_begin(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """A full disk lets sessions end, because that frees something, and lets none begin."""
    session, link = subscribed(broker)
    if not connected:
        session.disconnect()

    def refuse(*, frees: bool = False) -> None:
        if not frees:
            raise Refused(Reason.STORAGE_FULL, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(broker.engine.core, "check_writable", refuse)
        with pytest.raises(Refused):
            broker.port.sessions.connect(
                "c", clean=True, expiry_seconds=None, link=SpyLink(), principal="u"
            )
    assert not link.over
    session, _ = connect(broker, "c")
    assert session.present


def test_a_session_whose_end_is_refused_is_still_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its subscriptions."""
    session, _ = subscribed(broker)
    session.disconnect()

    def refuse(op: Op) -> Any:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(broker.engine.core.journal, "write", refuse)
        with pytest.raises(Refused):
            begin(broker, clean=True)
    publish(broker, 1, b"1")
    again, link = connect(broker, "c")
    assert again.present
    assert link.bodies == [b"1"]
    assert left(broker) == (COUNT, COUNT)
