"""Messages of QoS 0 that come while a client is away push nothing out of a session with a bound."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polymq.broker.port import REST, Session
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, Overflow, SessionSettings
from tests.broker.test_engine_sessions import connect
from tests.broker.test_session_backlogs import (
    WAYS,
    bounded,
    come_back,
    numbers,
    publish,
    subscribe,
)
from tests.harness.broker import Broker, SpyLink, at_qos


def dropped_count(broker: Broker) -> int:
    return broker.engine.sessions.backlogs.dropped_count


def rebuild_indexes(broker: Broker) -> None:
    """A start of which nothing is left but the log."""
    broker.stop()
    for name in ("packedqueue", "consumequeue", "checkpoint", "state.db"):
        path = broker.directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    broker.open()
    broker.step()


def take(broker: Broker, count: int) -> SpyLink:
    """Client `c` comes, is sent so many of what waits, and goes without an acknowledgement."""
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=count
    )
    broker.step()
    session.resume()
    broker.step()
    session.disconnect()
    return link


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
@pytest.mark.parametrize("piece_count", [1024, 7])
def test_qos_0_behind_what_waits_takes_no_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    overflow: Overflow,
    piece_count: int,
) -> None:
    """Also where it is counted in several pieces, or again after a restart."""
    monkeypatch.setattr("polymq.broker.sessions.uncounted.PIECE_COUNT", piece_count)
    broker = bounded(tmp_path, overflow)
    subscribe(broker, "a")
    publish(broker, range(3))
    publish(broker, range(100, 160), qos=0)
    publish(broker, range(3, 5))
    publish(broker, range(200, 220), qos=0)
    link = come_back(broker, way)
    assert numbers(link) == [0, 1, 2, 3, 4]
    assert dropped_count(broker) == 0
    broker.stop()


@pytest.mark.parametrize("way", WAYS)
def test_the_oldest_that_count_give_way(tmp_path: Path, way: str) -> None:
    """Of a session with too much, as many go as are too many, wherever others stand."""
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    for n in range(12):
        publish(broker, range(n, n + 1))
        publish(broker, range(100, 103), qos=0)
    assert dropped_count(broker) == 7
    given_up = broker.engine.named_queues.dead_letters.counts.given_up
    assert {str(cause): count for cause, count in given_up.items() if count} == {"maxlen": 7}
    assert numbers(come_back(broker, way)) == [7, 8, 9, 10, 11]
    broker.stop()


@pytest.mark.parametrize("way", ["restart", "log only"])
@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_they_are_counted_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, overflow: Overflow
) -> None:
    """What does not count is known after a restart, also where only the log is left, and what
    comes then finds the room that there is."""
    monkeypatch.setattr("polymq.broker.sessions.uncounted.PIECE_COUNT", 16)
    broker = bounded(tmp_path, overflow, waiting_max=10)
    subscribe(broker, "a", "c")
    publish(broker, range(4))
    publish(broker, range(10, 14), "c")
    publish(broker, range(100, 160), qos=0)
    publish(broker, range(200, 260), "c", qos=0)
    if way == "log only":
        rebuild_indexes(broker)
    else:
        broker.save()
        broker.restart()
        broker.step()
    publish(broker, range(4, 5), "a")
    publish(broker, range(14, 18), "c")
    left_out = [0, 1, 2] if overflow == DROP_OLDEST else [15, 16, 17]
    link = come_back(broker)
    expected = {*range(5), *range(10, 18)} - set(left_out)
    assert sorted(numbers(link)) == sorted(expected)
    assert dropped_count(broker) == 3
    broker.stop()


def test_a_session_that_lost_its_oldest_goes_on_to_lose_only_those(tmp_path: Path) -> None:
    """The count follows what was dropped, passed over and sent, over several absences."""
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    for _ in range(3):
        for n in range(20):
            publish(broker, range(n, n + 1))
            publish(broker, range(100, 105), qos=0)
        link = come_back(broker)
        assert numbers(link) == [15, 16, 17, 18, 19]
        session = broker.engine.sessions.by_client["c"]
        session.acknowledged(session.unacked.first_tag, session.unacked.count)
        publish(broker, range(20, 22), qos=0)
        assert numbers(link)[5:] == [20, 21]
        session.disconnect()
    broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_a_client_that_takes_a_part_makes_room_for_as_many(
    tmp_path: Path, overflow: Overflow
) -> None:
    """The rest does not count either."""
    broker = bounded(tmp_path, overflow)
    subscribe(broker, "a")
    publish(broker, range(3))
    publish(broker, range(100, 110), qos=0)
    publish(broker, range(3, 5))
    publish(broker, range(110, 130), qos=0)
    assert numbers(take(broker, 4)) == [0, 1, 2, 3]
    publish(broker, range(5, 9))
    assert dropped_count(broker) == 0
    publish(broker, range(9, 12))
    assert dropped_count(broker) == 3
    waiting = [4, 5, 6, 7, 8] if overflow == DROP_NEWEST else [7, 8, 9, 10, 11]
    assert numbers(come_back(broker)) == [0, 1, 2, 3, *waiting]
    broker.stop()


def test_what_was_passed_over_leaves_the_count(tmp_path: Path) -> None:
    """A session that was counted once keeps to its bound after its client took a part."""
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    publish(broker, range(3))
    publish(broker, range(100, 110), qos=0)
    publish(broker, range(3, 6))
    publish(broker, range(110, 130), qos=0)
    assert dropped_count(broker) == 1
    assert numbers(take(broker, 3)) == [1, 2, 3]
    publish(broker, range(6, 9))
    assert dropped_count(broker) == 1
    publish(broker, range(9, 12))
    assert dropped_count(broker) == 4
    assert numbers(come_back(broker)) == [1, 2, 3, 7, 8, 9, 10, 11]
    broker.stop()


def test_qos_0_for_a_slow_client_counts_until_it_goes_away(tmp_path: Path) -> None:
    """While the client is there it is to be sent, and so it has to be bounded."""
    broker = bounded(tmp_path)
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=2
    )
    broker.step()
    session.resume()
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    publish(broker, range(4))  # 2 wait
    publish(broker, range(4, 8), qos=0)
    assert dropped_count(broker) == 1  # number 2, for there are 6
    session.disconnect()
    publish(broker, range(8, 12))
    assert dropped_count(broker) == 1
    assert numbers(come_back(broker)) == [0, 1, 3, 8, 9, 10, 11]
    broker.stop()


def test_qos_0_counts_where_it_is_kept_for_clients_that_are_away(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=5, keeps_qos_0=True)
    broker.restart()
    subscribe(broker, "a")
    publish(broker, range(3))
    publish(broker, range(3, 9), qos=0)
    assert numbers(come_back(broker)) == [4, 5, 6, 7, 8]
    broker.stop()


def test_a_subscription_that_was_lowered_to_qos_0(tmp_path: Path) -> None:
    """What came under its QoS 1 waits and counts; of what came later nothing does, whatever QoS
    it was published with."""
    broker = bounded(tmp_path)
    subscribe(broker, "a")
    publish(broker, range(4))
    session, link = connect(broker, "c", credit=0)
    session.subscribe(("a", REST), at_qos(0))
    broker.step()
    session.disconnect()
    publish(broker, range(10, 30))
    assert dropped_count(broker) == 0
    link = come_back(broker)
    assert numbers(link) == [0, 1, 2, 3]
    broker.stop()


def test_much_qos_0_does_not_open_a_full_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new is refused though it comes in one iteration, and there is much to be counted,
    some of it on the disk."""
    monkeypatch.setattr("polymq.broker.sessions.uncounted.PIECE_COUNT", 16)
    broker = bounded(tmp_path, DROP_NEWEST)
    subscribe(broker, "a", "c")
    publish(broker, range(2))
    publish(broker, range(100, 102), "c")
    broker.save()
    broker.restart()
    broker.step()
    for topic in ("a", "c"):
        publish(broker, range(1000, 1100), topic, qos=0)
    for n in range(10, 30):  # in one iteration
        broker.publish(broker.template("a", "b"), b"%d" % n)
    broker.step()
    assert sorted(numbers(come_back(broker))) == [0, 1, 10, 100, 101]
    broker.stop()


def slow(broker: Broker, count: int) -> tuple[Session, SpyLink]:
    """Client `c` comes, and takes so many at a time."""
    link = SpyLink(1000)
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=count
    )
    broker.step()
    session.resume()
    broker.step()
    return session, link


@pytest.mark.parametrize("way", WAYS)
def test_a_subscription_that_was_lowered_and_raised_again(tmp_path: Path, way: str) -> None:
    """What came between neither waits nor counts, though what came before still waits; and other
    subscriptions of the session lose nothing."""
    broker = bounded(tmp_path, waiting_max=20)
    subscribe(broker, "a", "c")
    publish(broker, range(100, 105), "c")
    publish(broker, range(10))
    session, _ = slow(broker, 4)
    session.subscribe(("a", REST), at_qos(0))
    broker.step()
    session.disconnect()
    publish(broker, range(200, 260))
    session, _ = slow(broker, 4)
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    session.disconnect()
    publish(broker, range(300, 303))
    assert dropped_count(broker) == 0
    link = come_back(broker, way)
    assert sorted(numbers(link)) == [*range(10), *range(100, 105), *range(300, 303)]
    assert {publish[2] for publish in link.publishes} == {1}
    broker.stop()


def test_what_comes_to_a_lowered_subscription_keeps_qos_0(tmp_path: Path) -> None:
    """Also what came while its client was there, and is sent after the subscription was raised."""
    broker = bounded(tmp_path, waiting_max=20)
    subscribe(broker, "a")
    publish(broker, range(6))
    session, link = slow(broker, 2)
    session.subscribe(("a", REST), at_qos(0))
    broker.step()
    publish(broker, range(10, 12))
    session.subscribe(("a", REST), at_qos(1))
    broker.step()
    publish(broker, range(20, 22))
    for packet_id in range(1, 9):
        session.acknowledged(packet_id, 1)
        broker.step()
    sent = {int(body): qos for _, body, qos, *_ in link.publishes}
    assert sent == {**dict.fromkeys(range(6), 1), 10: 0, 11: 0, 20: 1, 21: 1}
    broker.stop()
