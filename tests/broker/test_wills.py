"""Wills: published once when their clients go, also over crashes; or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.granting import GrantedPrincipal, parse_permissions
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, Session, Will
from polymq.broker.sessions.settings import SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.harness.people import add_user, allow, deny, port_of

GRACE = 30.0
"""What clients have after a start."""
LATE = 3.0
CLEAN = pytest.mark.parametrize("clean", [True, False])


def will_of(**changes: Any) -> Will:
    """A will, to topic `w`."""
    values: dict[str, Any] = {"topic": "w", "tag": "c", "body": b"gone", "qos": 1, "retain": False}
    return Will(**{**values, **changes})


def leave(
    broker: Broker, client: str = "c", *, seconds: int | None = None, **changes: Any
) -> Session:
    """A client that has connected with a will."""
    link = SpyLink()
    session = broker.port.sessions.connect(
        client, clean=seconds == 0, expiry_seconds=seconds, link=link, principal="u"
    )
    before = session.position
    session.set_will(will_of(**changes))
    assert session.position > before
    broker.step()
    session.resume()
    broker.step()
    return session


def published(broker: Broker) -> list[bytes]:
    """The bodies of all that was published to topic `w`, whether anybody was there or not."""
    found: list[tuple[bytes, int]] = []
    topic = broker.engine.topics.topics.get("w")
    if topic is None:
        return []
    broker.step()
    (queue,) = topic.queues
    bodies = []
    for offset in range(queue.index.first_offset, queue.flushed):
        broker.port.queries.pull(
            "w", 0, offset, count_max=1, bytes_max=1 << 20, callback=lambda *one: found.append(one)
        )
        broker.step()
        bodies.append(found.pop()[0])
    return [_body(record) for record in bodies]


def _body(record: bytes) -> bytes:
    size = int.from_bytes(record[84:88], "big")
    return record[88 : 88 + size]


# --- when it is published ---------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 10, None])
def test_a_client_that_vanishes_has_its_will_published_at_once(
    broker: Broker, seconds: int | None
) -> None:
    watcher, link = connect(broker, "watcher", clean=True)
    watcher.subscribe(("w", REST), at_qos(2))
    leave(broker, seconds=seconds, qos=2).disconnect()
    broker.step()
    assert link.publishes == [("w/c", b"gone", 2, 1, False, False)]
    broker.step(3600)
    assert link.bodies == [b"gone"]
    assert broker.engine.sessions.wills.published_count == 1


def test_a_will_has_all_that_was_said_of_it(broker: Broker) -> None:
    """RETAIN, and the properties and the time to live of MQTT 5."""
    block = b"\x01\x01\x26\x00\x01a\x00\x01b"
    leave(broker, retain=True, properties=block, ttl_ms=60_000).disconnect()
    broker.step()
    (entry,) = [entry for found in broker.engine.retained.entries() if (entry := found)]
    position = broker.engine.retained.get(entry[0])
    assert position is not None
    record = broker.store.record_at(int.from_bytes(position[:8], "big"))
    assert record.body == b"gone"
    assert record.properties["PMQ_MQTT5"] == "AQEmAAFhAAFi"
    assert record.properties["PMQ_PROTO"] == "mqtt5"
    assert record.properties["PMQ_FROM"] == "c"
    assert record.properties["PMQ_QOS"] == "1"
    assert record.properties["PMQ_X"].startswith(f"{60_001:08x}")
    names = [pair.partition(b"\x01")[0] for pair in record.raw_properties.split(b"\x02")]
    constant = int(record.raw_properties[6:10], 16)
    assert record.raw_properties[constant:].startswith(b"PMQ_MQTT5\x01")
    assert b"PMQ_WILL" in names


@CLEAN
def test_a_disconnect_discards_it(broker: Broker, clean: bool) -> None:
    """For good: a restart does not bring it back."""
    session = leave(broker, seconds=0 if clean else None, delay_seconds=5)
    session.clear_will()
    session.disconnect()
    broker.step(3600)
    start_again(broker, "kill")
    broker.step(3600)
    assert published(broker) == []


@pytest.mark.parametrize(
    ("delay", "expiry", "wait"), [(10, None, 10), (10, 100, 10), (100, 10, 10), (10, 0, 0)]
)
def test_a_delay_ends_with_the_session(
    broker: Broker, delay: int, expiry: int | None, wait: int
) -> None:
    """The lower of both counts [MQTT-3.1.3-9]."""
    leave(broker, seconds=expiry, delay_seconds=delay).disconnect()
    if wait:
        broker.step(wait - 0.5)
        assert published(broker) == []
    broker.step(LATE)
    assert published(broker) == [b"gone"]


def test_a_client_that_comes_back_before_its_delay_is_over_takes_it_back(broker: Broker) -> None:
    session = leave(broker, delay_seconds=10)
    session.disconnect()
    broker.step(9)
    session, _ = connect(broker, "c")
    assert session.present
    broker.step(3600)
    session.disconnect()
    broker.step(3600)
    assert published(broker) == []
    assert not broker.engine.sessions.wills.published_count


def test_a_clean_start_publishes_what_waits(broker: Broker) -> None:
    """It ends the session [MQTT-3.1.2-8]."""
    leave(broker, delay_seconds=1000).disconnect()
    connect(broker, "c", clean=True)
    assert published(broker) == [b"gone"]


def test_the_end_of_the_session_publishes_what_waits(tmp_path: Path) -> None:
    """Also by the operator's bound."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(expiry_seconds=20)
    broker.restart()
    leave(broker, delay_seconds=1000).disconnect()
    broker.step(19)
    assert published(broker) == []
    broker.step(LATE)
    assert published(broker) == [b"gone"]
    broker.stop()


@CLEAN
def test_a_takeover_publishes_the_will_of_the_old_connection(broker: Broker, clean: bool) -> None:
    """And not that of the new one."""
    leave(broker, seconds=0 if clean else None, body=b"old")
    leave(broker, seconds=0 if clean else None, body=b"new")
    assert published(broker) == [b"old"]


def test_a_takeover_within_the_delay_publishes_nothing(broker: Broker) -> None:
    leave(broker, body=b"old", delay_seconds=10)
    connect(broker, "c")
    broker.step(100)
    assert published(broker) == []


# --- crashes and stops ------------------------------------------------------------------------


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("seconds", [0, 5, None])
@pytest.mark.parametrize("way", ["kill", "stop in order"])
def test_a_client_that_does_not_come_back_after_a_restart_is_gone(
    tmp_path: Path, way: str, seconds: int | None, with_state_db: bool
) -> None:
    """Not before it had the time to; and once, whatever happens afterwards."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    session = leave(broker, seconds=seconds)
    if way != "kill":
        broker.engine.core.begin_stop()
        session.disconnect()
        broker.step()
        assert published(broker) == []
    start_again(broker, "kill" if way == "kill" else "stop")
    broker.step(GRACE - 0.5)
    assert published(broker) == []
    broker.step(LATE)
    assert published(broker) == [b"gone"]
    for again in ("kill", "stop"):
        start_again(broker, again)
        broker.step(3600)
        assert published(broker) == [b"gone"]
    broker.stop()


@pytest.mark.parametrize("way", ["kill", "stop"])
@CLEAN
def test_a_client_that_comes_back_after_a_restart_is_not_gone(
    broker: Broker, clean: bool, way: str
) -> None:
    leave(broker, seconds=0 if clean else None)
    start_again(broker, way)
    broker.step(GRACE - 1)
    connect(broker, "c", clean=clean)
    broker.step(3600)
    assert published(broker) == []


def test_another_users_client_does_not_take_a_will_back(broker: Broker) -> None:
    leave(broker, seconds=0)
    start_again(broker, "kill")
    connect(broker, "c", clean=True, user="somebody else")
    broker.step(GRACE + LATE)
    assert published(broker) == [b"gone"]


def test_a_delay_longer_than_the_grace_counts_after_a_crash(broker: Broker) -> None:
    leave(broker, delay_seconds=100)
    start_again(broker, "kill")
    broker.step(99)
    assert published(broker) == []
    broker.step(LATE + 2)
    assert published(broker) == [b"gone"]


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_will_that_waits_goes_on_waiting(broker: Broker, way: str) -> None:
    """Until the time that it had; a restart does not begin to count anew."""
    leave(broker, delay_seconds=1000).disconnect()
    broker.step(900)
    start_again(broker, way)
    broker.step(99)
    assert published(broker) == []
    broker.step(20)
    assert published(broker) == [b"gone"]


def test_a_clean_start_after_a_crash_publishes_what_its_session_left(broker: Broker) -> None:
    """The connection had ended, and now the session does."""
    leave(broker)
    start_again(broker, "kill")
    connect(broker, "c", clean=True)
    assert published(broker) == [b"gone"]


def test_a_session_that_ended_before_a_crash_holds_its_will_no_longer(broker: Broker) -> None:
    """Its client has the time that all have."""
    leave(broker, seconds=10, delay_seconds=5).disconnect()
    broker.step(1)
    broker.kill()
    broker.open(down_seconds=100)
    broker.step(1)
    assert broker.engine.sessions.by_number == {}
    broker.step(LATE)
    assert published(broker) == [b"gone"]


# --- rights, limits, refusals -----------------------------------------------------------------


@pytest.mark.parametrize("way", ["connected", "kill", "stop"])
def test_a_right_that_came_with_the_login_is_the_wills(people: Broker, way: str) -> None:
    """Whoever granted it is not asked again, and no rule is stored that gives it. A rule that
    denies counts nevertheless."""
    guest = GrantedPrincipal("guest", rules=parse_permissions({"pub": ["w/#"]}, "guest"))
    sessions = []
    for client in ("c", "d"):
        session = port_of(people, guest).sessions.connect(
            client, clean=False, expiry_seconds=None, link=SpyLink(), principal=guest
        )
        session.set_will(will_of(tag=client, body=client.encode()))
        sessions.append(session)
    add_user(people, "guest")
    deny(people, "guest", "publish", "w.d")
    people.step()
    if way == "connected":
        for session in sessions:
            session.disconnect()
    else:
        start_again(people, way)
    people.step(3600)
    assert published(people) == [b"c"]
    assert people.engine.sessions.wills.lost_count == 1


def test_the_rights_of_the_moment_count(people: Broker) -> None:
    """At CONNECT, and when it is published."""
    allow(people, "ann", "publish,create", "w.#")
    sessions = port_of(people, "ann", "c").sessions

    def come(client: str, topic: str) -> Session:
        session = sessions.connect(
            client, clean=True, expiry_seconds=0, link=SpyLink(), principal="ann"
        )
        session.set_will(will_of(topic=topic))
        return session

    with pytest.raises(Refused) as caught:
        come("c", "x")
    assert caught.value.reason is Reason.FORBIDDEN
    first, second = come("c1", "w"), come("c2", "w")
    first.disconnect()
    people.step()
    assert published(people) == [b"gone"]
    people.engine.users.delete("ann")
    second.disconnect()
    people.step(1)
    assert published(people) == [b"gone"]
    assert people.engine.sessions.wills.lost_count == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": bytes(20_000)},
        {"tag": "x" * 30_000},
        {"tag": "x" * 20_000, "properties": bytes(6_000)},
    ],
)
def test_what_no_record_has_room_for_is_refused(broker: Broker, changes: dict[str, Any]) -> None:
    session, _ = connect(broker, "c", clean=True)
    with pytest.raises(Refused) as caught:
        session.set_will(will_of(**changes))
    assert caught.value.reason is Reason.TOO_LARGE
    session.disconnect()
    assert published(broker) == []


def test_the_largest_will_is_published(broker: Broker) -> None:
    leave(broker, body=bytes(65_535), tag="x" * 8_000, properties=bytes(8_000)).disconnect()
    assert published(broker) == [bytes(65_535)]


def test_wills_take_so_much_memory_and_no_more(tmp_path: Path) -> None:
    """What is published or discarded makes room."""
    broker = Broker(tmp_path / "data", will_bytes_max=5000)
    first = leave(broker, "c1", body=bytes(3000))
    session, _ = connect(broker, "c2", clean=True)
    with pytest.raises(Refused) as caught:
        session.set_will(will_of(body=bytes(3000)))
    assert caught.value.reason is Reason.LIMIT
    first.disconnect()
    leave(broker, "c3", body=bytes(3000)).clear_will()
    leave(broker, "c4", body=bytes(3000))
    broker.stop()


def test_a_will_that_no_limit_lets_be_retained_is_published(tmp_path: Path) -> None:
    """Subscribers learn that the client is gone, though nobody is told later."""
    broker = Broker(tmp_path / "data", retained_max=1)
    leave(broker, "c1", topic="w", retain=True).disconnect()
    broker.step()
    leave(broker, "c2", topic="w", tag="other", retain=True).disconnect()
    broker.step()
    assert published(broker) == [b"gone", b"gone"]
    retained = broker.engine.retained
    assert (retained.count, retained.unretained_count, retained.refused_count) == (1, 1, 0)
    broker.restart()
    assert broker.engine.retained.count == 1
    broker.stop()


@pytest.mark.parametrize("delay", [0, 5])
def test_a_log_that_takes_nothing_gets_it_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    """Once; and a client that is back by then does not change that."""

    def refuse(**_: object) -> None:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    session = leave(broker, delay_seconds=delay)
    with monkeypatch.context() as patch:
        patch.setattr(broker.engine.core, "check_writable", refuse)
        session.disconnect()
        broker.step(10)
        again, _ = connect(broker, "c")
        assert again.present
        assert published(broker) == []
    broker.step(5)
    assert published(broker) == [b"gone"]


def test_many_wills_are_published_in_steps(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, say, when nobody comes back."""
    monkeypatch.setattr("polymq.broker.sessions.wills.PUBLISHED_AT_ONCE", 3)
    for number in range(10):
        leave(broker, f"c{number}", seconds=0, body=b"%d" % number)
    start_again(broker, "kill")
    assert len(broker.engine.core.timers) == 1
    broker.step(GRACE + LATE)
    assert published(broker) == [b"%d" % number for number in range(10)]
