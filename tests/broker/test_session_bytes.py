"""What waits for a persistent session has a bound in bytes, beside the one in messages."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from polymq.broker.port import REST
from polymq.broker.queues.queue import Group
from polymq.broker.queues.ready_bytes import ReadyBytes
from polymq.broker.sessions.backlog import Backlog
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, Overflow, SessionSettings
from tests.broker.test_changes import change
from tests.broker.test_engine_sessions import connect, start_again
from tests.broker.test_session_backlogs import WAYS, come_back, numbers, subscribe
from tests.broker.test_shared_subscriptions import SHARE
from tests.broker.test_uncounted import dropped_count, rebuild_indexes, slow, take
from tests.harness.broker import Broker, SpyLink, at_qos, batch_of

BODY: Final = 100
"""Bytes of a body, which begins with the number of its message."""


def bounded(
    path: Path,
    overflow: Overflow = DROP_OLDEST,
    *topics: str,
    count: float = 5,
    waiting_max: int = 0,
    keeps_qos_0: bool = False,
) -> Broker:
    """A broker on which client `c`, which is away, has subscribed to `a` or to these topics, and so
    many messages may wait for it."""
    broker = Broker(path / "data")
    subscribe(broker, *(topics or ("a",)))
    broker.session_settings = SessionSettings(
        waiting_max=waiting_max,
        waiting_bytes_max=round(count * stored_size(broker)),
        overflow=overflow,
        keeps_qos_0=keeps_qos_0,
    )
    broker.restart()
    return broker


def stored_size(broker: Broker, size: int = BODY, topic: str = "a") -> int:
    """Bytes of a message with a body of this size, whatever its QoS is."""
    template = broker.template(topic, "b", qos=0)
    broker.publish(template, bytes(size))  # the first one makes the topic
    before = broker.store.log.appended
    broker.publish(template, bytes(size))
    after = broker.store.log.appended
    broker.step()
    return after - before


def send(
    broker: Broker, messages: range, topic: str = "a", *, size: int = BODY, qos: int = 1
) -> None:
    """Messages of one size, each in an iteration of its own."""
    for number in messages:
        broker.publish(broker.template(topic, "b", qos=qos), body(number, size))
        broker.step()


def send_run(broker: Broker, *sizes: tuple[int, int], topic: str = "a", qos: int = 1) -> None:
    """Messages in one run, each with its number and the size of its body."""
    bodies = [body(number, size) for number, size in sizes]
    broker.port.publish(broker.template(topic, "b", qos=qos), batch_of(*bodies), 0, len(bodies))
    broker.step()


def body(number: int, size: int = BODY) -> bytes:
    return (b"%d" % number).ljust(size)


def groups_of(broker: Broker) -> Iterator[Group]:
    """The groups whose bytes are counted."""
    for group in broker.engine.queue_store.groups.values():
        if isinstance(group.cursor.watch, ReadyBytes):
            yield group


def check_counts(broker: Broker) -> None:
    """Every count is what a new one would give."""
    for group in groups_of(broker):
        ready = group.cursor.watch
        assert isinstance(ready, ReadyBytes)
        if ready.has_lost or ready.is_reading:
            continue
        fresh = ReadyBytes(broker.engine.core.reading.entries, group.queue, group.cursor, _nothing)
        while fresh.is_behind(ready.end):
            fresh.count_on(ready.end, 1 << 30)
        assert ready.bytes == fresh.bytes, group.number


def waiting_bytes(broker: Broker) -> int:
    """How many bytes wait in all groups."""
    total = 0
    for group in broker.engine.queue_store.groups.values():
        fresh = ReadyBytes(broker.engine.core.reading.entries, group.queue, group.cursor, _nothing)
        end = min(group.queue.visible, group.cursor.stop)
        while fresh.is_behind(end):
            fresh.count_on(end, 1 << 30)
        total += fresh.bytes
    return total


def _nothing() -> None:
    """Nobody waits for the count."""


# --- the oldest ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_oldest_give_way(tmp_path: Path, way: str) -> None:
    """No more of them than is needed."""
    broker = bounded(tmp_path)
    send(broker, range(12))
    check_counts(broker)
    assert dropped_count(broker) == 7
    given_up = broker.engine.named_queues.dead_letters.counts.given_up
    assert {str(cause): count for cause, count in given_up.items() if count} == {"maxlen": 7}
    assert numbers(come_back(broker, way)) == [7, 8, 9, 10, 11]
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_large_message_takes_the_room_of_several(tmp_path: Path, way: str) -> None:
    """And small ones that come later push out only as many as they need."""
    broker = bounded(tmp_path)
    large = 3 * stored_size(broker) - stored_size(broker, 0)
    send(broker, range(5))
    send(broker, range(5, 6), size=large)
    assert dropped_count(broker) == 3
    send(broker, range(6, 7))
    assert dropped_count(broker) == 4
    send(broker, range(7, 9))
    check_counts(broker)
    assert dropped_count(broker) == 6
    assert numbers(come_back(broker, way)) == [6, 7, 8]
    broker.stop()


def test_a_run_loses_its_beginning(tmp_path: Path) -> None:
    broker = bounded(tmp_path)
    send_run(broker, *[(n, BODY) for n in range(40)])
    assert numbers(come_back(broker)) == [35, 36, 37, 38, 39]
    broker.stop()


def test_a_message_that_is_larger_than_the_bound_goes(tmp_path: Path) -> None:
    """With all that waits before it, and nothing that comes after it."""
    broker = bounded(tmp_path)
    send(broker, range(3))
    send(broker, range(3, 4), size=5000)
    assert dropped_count(broker) == 4
    send(broker, range(4, 6))
    send_run(broker, (6, 5000), (7, BODY), (8, BODY))
    assert dropped_count(broker) == 7
    assert numbers(come_back(broker)) == [7, 8]
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_what_a_client_takes_at_once_is_not_bounded(tmp_path: Path, overflow: Overflow) -> None:
    """A message that is larger than the bound, and a run that is."""
    broker = bounded(tmp_path, overflow)
    session, link = connect(broker, "c")
    for n in range(10):
        send(broker, range(n, n + 1), size=5000)
        session.acknowledged(n + 1, 1)
    send_run(broker, *[(n, BODY) for n in range(10, 40)])
    check_counts(broker)
    assert numbers(link) == list(range(40))
    assert dropped_count(broker) == 0
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tail", ["in memory", "on the disk"])
def test_the_oldest_of_all_subscriptions_go_first(tmp_path: Path, way: str, tail: str) -> None:
    """Whichever subscription they came by, and wherever their entries are."""
    broker = bounded(tmp_path, DROP_OLDEST, "a", "c", "d", count=60)
    send(broker, range(20), "a")
    send(broker, range(20, 30), "c")
    send(broker, range(30, 50), "a")
    if tail == "on the disk":
        broker.save()
        broker.restart()
        broker.step()
    send(broker, range(50, 64), "d")
    send_run(broker, *[(n, BODY) for n in range(64, 100)])
    check_counts(broker)
    link = take_all(broker, way)
    assert sorted(numbers(link)) == list(range(40, 100))
    broker.stop()


def take_all(broker: Broker, way: str = "reconnect") -> SpyLink:
    """The client comes back, and acknowledges whatever it gets until nothing comes."""
    link = come_back(broker, way)
    while (unacked := broker.engine.sessions.by_client["c"].unacked).count:
        broker.engine.sessions.by_client["c"].acknowledged(unacked.first_tag, unacked.count)
        broker.step()
    return link


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window_max", [65_536, 4])
def test_what_is_in_flight_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, window_max: int
) -> None:
    """Nor does it count; also where the subscription got a group of its own meanwhile."""
    monkeypatch.setattr("polymq.broker.sessions.backlogs.WINDOW_MAX", window_max)
    broker = bounded(tmp_path)
    session, link = connect(broker, "c")
    send(broker, range(3))
    assert numbers(link) == [0, 1, 2]
    session.disconnect()
    send(broker, range(3, 30))
    check_counts(broker)
    assert len(broker.engine.queue_store.groups) == (1 if window_max > 4 else 2)
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 25, 26, 27, 28, 29]
    broker.engine.sessions.by_client["c"].acknowledged(1, 8)
    broker.step(2.0)
    send(broker, range(30, 32))
    assert numbers(link)[8:] == [30, 31]
    assert len(broker.engine.queue_store.groups) == 1
    broker.stop()


def test_a_slow_client_that_is_there_is_bounded_too(tmp_path: Path) -> None:
    broker = bounded(tmp_path)
    session, link = slow(broker, 2)
    send(broker, range(20))
    check_counts(broker)
    assert numbers(link) == [0, 1]
    for packet_id in range(1, 8):
        session.acknowledged(packet_id, 1)
        broker.step()
    assert numbers(link) == [0, 1, 15, 16, 17, 18, 19]
    broker.stop()


# --- the newest ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_newest_give_way(tmp_path: Path, way: str) -> None:
    """From the first message on that does not fit, though a later one would."""
    broker = bounded(tmp_path, DROP_NEWEST, count=5.9)
    send(broker, range(5))
    send(broker, range(5, 6), size=BODY)
    send(broker, range(6, 7), size=3)
    assert dropped_count(broker) == 2
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 3, 4]
    broker.step(1.0)
    send(broker, range(12, 15))
    assert numbers(link) == [0, 1, 2, 3, 4, 12, 13, 14]
    session = broker.engine.sessions.by_client["c"]
    session.acknowledged(1, 8)
    session.disconnect()
    send(broker, range(15, 17))
    assert numbers(come_back(broker, way)) == [15, 16]
    broker.stop()


def test_a_run_is_taken_as_far_as_there_is_room(tmp_path: Path) -> None:
    broker = bounded(tmp_path, DROP_NEWEST, "a", "c")
    send(broker, range(2), "c")
    send_run(broker, *[(n, BODY) for n in range(10, 50)])
    assert dropped_count(broker) == 37
    assert sorted(numbers(come_back(broker))) == [0, 1, 10, 11, 12]
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
def test_messages_that_never_fit_block_nothing(tmp_path: Path, way: str) -> None:
    """They are left out alone where nothing else waits, also in the middle of a run."""
    broker = bounded(tmp_path, DROP_NEWEST)
    send(broker, range(1), size=5000)
    send(broker, range(1, 2), size=5000)
    send_run(broker, (2, 5000), (3, 5000), (4, BODY), (5, BODY), (6, 5000), (7, BODY))
    assert dropped_count(broker) == 6
    link = come_back(broker, way)
    assert numbers(link) == [4, 5]
    broker.step(1.0)
    send(broker, range(8, 10))
    assert numbers(link) == [4, 5, 8, 9]
    broker.stop()


@pytest.mark.parametrize("qos_0", [0, 3])
def test_a_run_that_begins_with_what_never_fits(tmp_path: Path, qos_0: int) -> None:
    """The rest of it is taken, also behind messages of QoS 0, which do not wait."""
    broker = bounded(tmp_path, DROP_NEWEST)
    send(broker, range(2))
    send(broker, range(100, 100 + qos_0), qos=0)
    assert len(take(broker, 2).bodies) == 2
    send_run(broker, (2, 5000), (3, BODY), (4, BODY))
    check_counts(broker)
    assert dropped_count(broker) == 1
    assert numbers(come_back(broker)) == [0, 1, 3, 4]
    broker.stop()


def test_a_quiet_subscription_takes_what_fits(tmp_path: Path) -> None:
    """One message of it that did not fit keeps none away that does."""
    broker = bounded(tmp_path, DROP_NEWEST, "a", "c", count=5.9)
    send(broker, range(5))
    send(broker, range(5, 6), "c")
    send(broker, range(6, 7), "c", size=3)
    assert dropped_count(broker) == 1
    assert sorted(numbers(come_back(broker))) == [0, 1, 2, 3, 4, 6]
    broker.stop()


# --- both ------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("piece_count", [1024, 7])
def test_qos_0_between_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflow: Overflow, way: str, piece_count: int
) -> None:
    """A flood of it pushes out nothing; nor does it hide what is too much."""
    for module in ("uncounted", "waiting_bytes"):
        monkeypatch.setattr(f"polymq.broker.sessions.{module}.PIECE_COUNT", piece_count)
    broker = bounded(tmp_path, overflow)
    send(broker, range(3))
    send(broker, range(100, 160), qos=0, size=1000)
    send(broker, range(3, 5))
    send(broker, range(200, 220), qos=0, size=3)
    if way != "reconnect":
        broker.step(2.0)
        start_again(broker, way)
        broker.step()
    send(broker, range(220, 230), qos=0)
    assert dropped_count(broker) == 0
    send(broker, range(5, 7))
    for _ in range(20):
        broker.step()
    check_counts(broker)
    known = way == "reconnect" or (way, piece_count) == ("kill", 1024)
    if overflow == DROP_OLDEST:
        assert numbers(come_back(broker)) == [2, 3, 4, 5, 6]
    else:  # what came while it was being counted is there as well
        assert numbers(come_back(broker)) == [0, 1, 2, 3, 4] + ([] if known else [5])
    broker.stop()


def test_qos_0_counts_where_it_is_stored_for_clients_that_are_away(tmp_path: Path) -> None:
    broker = bounded(tmp_path, keeps_qos_0=True)
    broker.step()
    send(broker, range(3))
    send(broker, range(3, 9), qos=0)
    assert numbers(come_back(broker))[-5:] == [4, 5, 6, 7, 8]
    broker.stop()


@pytest.mark.parametrize("way", ["restart", "log only"])
@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_bytes_are_counted_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, overflow: Overflow
) -> None:
    """The first message after a start begins the count, piece by piece."""
    for name in ("PIECE_COUNT", "NEAR_COUNT"):
        monkeypatch.setattr(f"polymq.broker.sessions.waiting_bytes.{name}", 3)
    broker = bounded(tmp_path, overflow, "a", "c", count=30)
    send(broker, range(14))
    send(broker, range(20, 34), "c")
    if way == "log only":
        rebuild_indexes(broker)
    else:
        broker.save()
        broker.restart()
        broker.step()
    assert not list(groups_of(broker))
    send(broker, range(14, 15))
    for _ in range(20):
        broker.step()
    check_counts(broker)
    send(broker, range(34, 38), "c")
    left_out = [0, 1, 2] if overflow == DROP_OLDEST else [35, 36, 37]
    assert dropped_count(broker) == 3
    assert sorted(numbers(take_all(broker))) == sorted({*range(15), *range(20, 38)} - {*left_out})
    broker.stop()


def test_a_session_that_was_too_long_at_a_start_loses_with_the_next_message(
    tmp_path: Path,
) -> None:
    """The bound was lowered while the server was stopped."""
    broker = bounded(tmp_path, count=20)
    send(broker, range(20))
    broker.session_settings = SessionSettings(waiting_bytes_max=5 * stored_size(broker))
    broker.restart()
    broker.step()
    assert dropped_count(broker) == 0
    send(broker, range(20, 21))
    broker.step()
    assert numbers(come_back(broker)) == [16, 17, 18, 19, 20]
    broker.stop()


@pytest.mark.parametrize(("count", "waiting_max", "first"), [(5, 8, 15), (8, 5, 15), (6, 6, 14)])
def test_both_bounds_hold(tmp_path: Path, count: int, waiting_max: int, first: int) -> None:
    broker = bounded(tmp_path, count=count, waiting_max=waiting_max)
    send(broker, range(20))
    assert numbers(come_back(broker)) == list(range(first, 20))
    broker.stop()


def test_the_notice_says_which_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = bounded(tmp_path, count=5, waiting_max=6)
    assert broker.session_settings is not None
    caplog.set_level(logging.WARNING, "polymq.broker")
    send(broker, range(7))
    come_back(broker)
    session = broker.engine.sessions.by_client["c"]
    session.acknowledged(session.unacked.first_tag, session.unacked.count)
    session.disconnect()
    broker.step(61)
    send(broker, range(12), size=3)
    first, second = [vars(record) for record in caplog.records]
    assert first["waiting_bytes_max"] == broker.session_settings.waiting_bytes_max
    assert "waiting_max" not in first
    assert second["waiting_max"] == 6
    assert "waiting_bytes_max" not in second
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_a_full_session_is_not_counted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflow: Overflow
) -> None:
    """A message that comes costs no more than itself and what goes for it."""
    broker = bounded(tmp_path, overflow, count=200)
    send(broker, range(220))
    (group,) = groups_of(broker)
    looked: list[int] = []
    read_hot = type(group.queue.index).read_hot

    def counted(self: object, first: int, count: int) -> bytes | None:
        looked.append(count)
        return read_hot(self, first, count)  # type: ignore[arg-type]

    monkeypatch.setattr(type(group.queue.index), "read_hot", counted)
    send(broker, range(220, 320))
    assert sum(looked) < 100 * 8
    broker.stop()


def test_without_the_bound_nobody_watches(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=5)
    broker.restart()
    subscribe(broker, "a")
    send(broker, range(12))
    assert [g for g in broker.engine.queue_store.groups.values() if g.cursor.watch] == []
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_another_bound_holds_at_once(tmp_path: Path, overflow: Overflow) -> None:
    """A smaller one takes the oldest away, and a larger one takes more again."""
    broker = bounded(tmp_path, overflow, count=10)
    settings = broker.session_settings
    assert settings is not None
    one = stored_size(broker)
    send(broker, range(10))
    change(broker, sessions=replace(settings, waiting_bytes_max=3 * one))
    broker.step()
    assert dropped_count(broker) == (7 if overflow == DROP_OLDEST else 0)
    send(broker, range(10, 11))
    change(broker, sessions=replace(settings, waiting_bytes_max=12 * one))
    send(broker, range(11, 13))
    stored = [8, 9, 10, 11, 12] if overflow == DROP_OLDEST else list(range(10))
    assert numbers(come_back(broker)) == stored
    broker.stop()


def test_what_stands_in_two_queues_counts_in_both(tmp_path: Path) -> None:
    """The oldest entries give way, one by one, and the message comes by the other."""
    broker = bounded(tmp_path)
    session, _ = connect(broker, "c")
    session.subscribe(("a", "b"), at_qos(1))
    broker.step()
    session.disconnect()
    size = stored_size(broker)
    assert broker.session_settings is not None
    change(broker, sessions=replace(broker.session_settings, waiting_bytes_max=5 * size))
    send(broker, range(5))
    check_counts(broker)
    assert dropped_count(broker) == 5  # of ten entries
    assert numbers(come_back(broker)) == [2, 3, 4]
    broker.stop()


def test_a_crash_leaves_dropped_what_was_dropped_among_acknowledgements(tmp_path: Path) -> None:
    """The log says how far the subscription is; before that it says what was dropped."""
    broker = bounded(tmp_path)
    session, _ = slow(broker, 2)
    send(broker, range(20))
    session.acknowledged(1, 1)
    broker.step(0.2)
    session.disconnect()
    start_again(broker, "kill")
    broker.step()
    assert numbers(come_back(broker)) == [1, 15, 16, 17, 18, 19]
    broker.stop()


@pytest.mark.slow
def test_an_ended_session_that_was_full_leaves_nothing(tmp_path: Path) -> None:
    """No cycle: the garbage collector looks only at what is new (see `polymq/pauses.py`)."""

    def found() -> list[object]:
        kinds = (MqttSession, Backlog, ReadyBytes)
        return [one for one in gc.get_objects() if isinstance(one, kinds)]

    gc.collect()
    gc.disable()
    try:
        before = set(map(id, found()))  # of other tests
        broker = bounded(tmp_path, DROP_OLDEST, "a", "c")
        gc.collect()  # what the restart left
        send(broker, range(12))
        send(broker, range(12, 20), qos=0)
        send(broker, range(20, 30), "c")
        assert list(groups_of(broker))
        session, _ = connect(broker, "c", clean=True)
        session.disconnect()
        del session
        broker.step(2.0)
        left = [one for one in found() if id(one) not in before]
    finally:
        gc.enable()
    assert left == []
    broker.stop()


# --- shared subscriptions --------------------------------------------------------------------


def shared(path: Path, overflow: Overflow) -> Broker:
    """A share of which five messages may wait; its member is away."""
    broker = bounded(path, overflow)
    session, _ = connect(broker, "c")
    session.unsubscribe(("a", REST))
    session.subscribe(SHARE, at_qos(1))
    broker.step()
    session.disconnect()
    return broker


def lost_of_shares(broker: Broker) -> int:
    return broker.engine.sessions.shares.bounds.dropped_count


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("overflow", "stored"), [(DROP_OLDEST, range(7, 12)), (DROP_NEWEST, range(5))]
)
def test_a_share_has_the_bound_of_a_session(
    tmp_path: Path, overflow: Overflow, stored: range, way: str
) -> None:
    """Messages that never fit block nothing there, either."""
    broker = shared(tmp_path, overflow)
    send(broker, range(12))
    check_counts(broker)
    assert lost_of_shares(broker) == 7
    link = take_all(broker, way)
    assert numbers(link) == list(stored)
    broker.engine.sessions.by_client["c"].disconnect()
    send(broker, range(12, 13), size=5000)
    send_run(broker, (13, 5000), (14, BODY), (15, BODY))
    check_counts(broker)
    assert numbers(take_all(broker)) == [14, 15]
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_what_members_take_at_once_is_not_bounded(tmp_path: Path, overflow: Overflow) -> None:
    broker = shared(tmp_path, overflow)
    _, link = connect(broker, "c")
    send(broker, range(3), size=5000)
    send_run(broker, *[(n, BODY) for n in range(3, 30)])
    check_counts(broker)
    assert numbers(link) == list(range(30))
    assert lost_of_shares(broker) == 0
    broker.stop()


def test_a_share_is_counted_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start, piece by piece; its oldest go by what the disk says."""
    for name in ("PIECE_COUNT", "NEAR_COUNT"):
        monkeypatch.setattr(f"polymq.broker.sessions.waiting_bytes.{name}", 2)
    broker = shared(tmp_path, DROP_OLDEST)
    send(broker, range(5))
    broker.save()
    broker.restart()
    broker.step()
    send(broker, range(5, 8))
    for _ in range(10):
        broker.step()
    check_counts(broker)
    assert lost_of_shares(broker) == 3
    assert numbers(take_all(broker)) == [3, 4, 5, 6, 7]
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_the_notice_of_a_share_says_which_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overflow: Overflow
) -> None:
    broker = shared(tmp_path, overflow)
    assert broker.session_settings is not None
    caplog.set_level(logging.WARNING, "polymq.broker")
    send(broker, range(7))
    found = vars(caplog.records[0])
    assert found["waiting_bytes_max"] == broker.session_settings.waiting_bytes_max
    assert "waiting_max" not in found
    broker.stop()
