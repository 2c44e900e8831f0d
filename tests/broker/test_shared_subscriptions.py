"""Shared subscriptions through the port: each message goes to one member, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polymq.broker.port import (
    REST,
    TTL_PROPERTY,
    Refused,
    Session,
    shared_address,
    ttl_property,
)
from polymq.broker.sessions.settings import (
    DROP_NEWEST,
    DROP_OLDEST,
    HASH_CLIENT,
    HASH_TOPIC,
    ROUND_ROBIN,
    STICKY,
    Overflow,
    SessionSettings,
    ShareStrategy,
)
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.harness.people import add_user, allow, port_of, take_back
from tests.harness.people import connect as connect_as

SHARE = shared_address("g", ("a", REST))
WAYS = ["stop", "kill"]


def join(
    broker: Broker,
    client: str,
    qos: int = 1,
    *,
    clean: bool = False,
    credit: int = 1000,
    **options: bool | int,
) -> tuple[Session, SpyLink]:
    """A client comes and subscribes to the share."""
    session, link = connect(broker, client, clean=clean, credit=credit)
    session.subscribe(SHARE, at_qos(qos, **options))
    broker.step()
    return session, link


def publish(broker: Broker, *bodies: bytes, qos: int = 1, tag: str = "x") -> None:
    """As one run, which becomes visible."""
    broker.publish(broker.template("a", tag, qos=qos), *bodies)
    broker.step()


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def acknowledge(session: Session, link: SpyLink) -> None:
    """PUBACK for all that was sent with QoS 1; of QoS 2 the whole exchange."""
    for _, _, qos, packet, *_ in link.publishes:
        if qos == 1:
            session.acknowledged(packet, 1)
        elif qos == 2:
            session.received(packet, 1)
            session.completed(packet, 1)


def share_count(broker: Broker) -> tuple[int, int, int]:
    """Shares, their groups, and filter queues."""
    state = broker.engine.port.sessions.state
    return len(state.shares.by_address), len(state.shares.by_number), len(state.filters)


# --- each to one -----------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_is_dealt_out_in_equal_parts(broker: Broker, qos: int, clean: bool) -> None:
    """Members of both kinds, at each QoS; who subscribed otherwise gets everything as well."""
    links = [join(broker, f"c{number}", qos, clean=clean)[1] for number in range(3)]
    alone, other = connect(broker, "alone", clean=True)
    alone.subscribe(("a", REST), at_qos(qos))
    publish(broker, *numbered(0, 30), qos=2)
    broker.step()
    assert [len(link.publishes) for link in links] == [10, 10, 10]
    assert sorted(body for link in links for body in link.bodies) == sorted(numbered(0, 30))
    assert {found[2] for link in links for found in link.publishes} == {qos}
    assert other.bodies == numbered(0, 30)


def test_single_messages_go_to_each_in_turn(broker: Broker) -> None:
    links = [join(broker, f"c{number}")[1] for number in range(3)]
    for body in numbered(0, 6):
        publish(broker, body)
    assert [link.bodies for link in links] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_members_have_options_of_their_own(broker: Broker) -> None:
    """QoS, identifier and Retain As Published; subscribing again replaces them."""
    first, first_link = join(broker, "c1", 2, identifier=7, retain_as_published=True)
    _, second_link = join(broker, "c2", 0, identifier=9)
    broker.publish(broker.template("a", "x", qos=1, retain=True), b"1", b"2")
    broker.step()
    assert [(qos, retain) for _, _, qos, _, _, retain in first_link.publishes] == [(1, True)]
    assert [(qos, retain) for _, _, qos, _, _, retain in second_link.publishes] == [(0, False)]
    assert (first_link.identifiers, second_link.identifiers) == ([(7,)], [(9,)])
    first.subscribe(SHARE, at_qos(0))
    publish(broker, b"3", b"4")
    assert first_link.publishes[-1][2:] == (0, 0, False, False)


def test_no_retained_messages(broker: Broker) -> None:
    """Part 4.8.2. (The gateway does not ask for them; nor is a session owed any.)"""
    broker.publish(broker.template("a", "x", retain=True), b"old")
    broker.step()
    session, link = join(broker, "c")
    session.disconnect()
    _, again = connect(broker, "c")
    assert link.bodies == again.bodies == []


def test_a_member_without_room_is_passed_over(broker: Broker) -> None:
    """One client that reads nothing does not stall the others; and gets its part later."""
    slow, slow_link = join(broker, "slow", credit=0)
    _, quick_link = join(broker, "quick")
    publish(broker, *numbered(0, 10))
    assert (slow_link.bodies, quick_link.bodies) == ([], numbered(0, 10))
    slow_link.left = 100
    slow.ready()
    publish(broker, *numbered(10, 20))
    assert len(slow_link.bodies) == 5


def test_what_nobody_has_room_for_waits(broker: Broker) -> None:
    members = [join(broker, f"c{number}", credit=0) for number in range(2)]
    for body in numbered(0, 10):
        publish(broker, body)
    for session, link in members:
        link.left = 1000
        session.ready()
        broker.step()
    assert sorted(body for _, link in members for body in link.bodies) == sorted(numbered(0, 10))


# --- members go ------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_unacknowledged_messages_of_quality_1_go_to_another_member(
    broker: Broker, clean: bool
) -> None:
    """When its connection ends, with a packet id of the other's and without DUP: to that client
    they are new. What was acknowledged does not go again."""
    first, first_link = join(broker, "c1", clean=clean)
    publish(broker, *numbered(0, 4))
    first.acknowledged(first_link.publishes[0][3], 1)
    _, second_link = join(broker, "c2", clean=clean)
    assert second_link.bodies == []
    first.disconnect()
    broker.step()
    assert second_link.publishes == [
        ("a/x", body, 1, packet, False, False) for packet, body in enumerate(numbered(1, 4), 1)
    ]
    if not clean:
        _, again = connect(broker, "c1")
        assert again.bodies == []


def test_a_member_that_unsubscribes_goes_on_with_what_is_in_flight(broker: Broker) -> None:
    """[MQTT-3.10.4-3]. What it has not acknowledged when its connection ends goes to others."""
    first, first_link = join(broker, "c1")
    publish(broker, b"1", b"2")
    _, second_link = join(broker, "c2")
    first.unsubscribe(SHARE)
    broker.step()
    first.acknowledged(first_link.publishes[0][3], 1)
    publish(broker, b"3")
    assert (first_link.bodies, second_link.bodies) == ([b"1", b"2"], [b"3"])
    first.disconnect()
    broker.step()
    assert second_link.bodies == [b"3", b"2"]


@pytest.mark.parametrize("received", [False, True])
@pytest.mark.parametrize("way", ["reconnect", *WAYS])
def test_quality_2_stays_with_its_member(tmp_path: Path, way: str, received: bool) -> None:
    """[MQTT-4.8.2-4]: over a reconnection and a crash, with its packet id; nobody else gets it."""
    broker = Broker(tmp_path / "data")
    first, first_link = join(broker, "c1", 2, identifier=3)
    publish(broker, b"1", qos=2)
    broker.step()
    ((_, _, _, packet, _, _),) = first_link.publishes
    if received:
        first.received(packet, 1)
    broker.step(0.5)
    if way == "reconnect":
        first.disconnect()
    else:
        start_again(broker, way)
    _, second_link = join(broker, "c2", 2)
    assert second_link.bodies == []
    _, again = connect(broker, "c1")
    broker.step()
    if received:
        assert (again.publishes, again.pubrels) == ([], [packet])
    else:
        assert again.publishes == [("a/x", b"1", 2, packet, True, False)]
        assert again.identifiers == [(3,)]
    broker.step()
    assert second_link.bodies == []
    broker.stop()


def test_each_member_has_its_own_messages_again_after_a_crash(tmp_path: Path) -> None:
    """Of QoS 2; nobody else gets them, whoever comes first."""
    broker = Broker(tmp_path / "data")
    links = [join(broker, f"c{number}", 2)[1] for number in range(2)]
    publish(broker, *numbered(0, 6), qos=2)
    broker.step(0.5)
    start_again(broker, "kill")
    _, other = join(broker, "other", 2)
    again = [connect(broker, f"c{number}")[1] for number in range(2)]
    broker.step()
    assert [link.bodies for link in again] == [link.bodies for link in links]
    assert other.bodies == []
    broker.stop()


@pytest.mark.parametrize("way", ["end", "clean", "kill"])
def test_quality_2_goes_to_nobody_else_when_the_session_ends(tmp_path: Path, way: str) -> None:
    """[MQTT-4.8.2-5]: also of a session that ends with its connection, and of one of these that
    ends by a crash."""
    broker = Broker(tmp_path / "data")
    first, first_link = join(broker, "c1", 2, clean=way != "end")
    publish(broker, b"1", b"2", qos=2)
    broker.step()
    assert first_link.bodies == [b"1", b"2"]
    join(broker, "c2", 2)[0].disconnect()
    broker.step(0.5)
    if way == "kill":
        start_again(broker, "kill")
    else:
        first.disconnect()
        connect(broker, "c1", clean=True)
    _, second_link = connect(broker, "c2")
    publish(broker, b"3", qos=2)
    broker.step()
    assert second_link.bodies == [b"3"]
    broker.stop()


@pytest.mark.parametrize("clean", [False, True])
def test_quality_2_that_was_not_sent_goes_to_another_member(broker: Broker, clean: bool) -> None:
    """Its packet id was not on the disk yet when the connection ended."""
    first, first_link = join(broker, "c1", 2, clean=clean)
    broker.publish(broker.template("a", "x", qos=2), b"1")
    broker.loop.run()
    broker.flush()
    broker.loop.run()  # assigned, and not flushed
    assert first_link.bodies == []
    first.disconnect()
    broker.step()
    _, second_link = join(broker, "c2", 2)
    broker.step()
    assert second_link.bodies == ([] if clean else [b"1"])  # of a share without members: its end
    if not clean:
        assert connect(broker, "c1")[1].bodies == []


def test_a_clean_member_gives_back_what_was_not_sent(broker: Broker) -> None:
    """The share had done with it, which is undone."""
    _, second_link = join(broker, "c2", 2, credit=0)
    first, first_link = join(broker, "c1", 2, clean=True)
    broker.publish(broker.template("a", "x", qos=2), b"1", b"2")
    broker.loop.run()
    broker.flush()
    broker.loop.run()
    first.disconnect()
    broker.step()
    assert first_link.bodies == []
    second_link.left = 10
    publish(broker, b"3", qos=2)
    broker.engine.port.sessions.by_client["c2"].ready()
    broker.step()
    broker.step()
    assert second_link.bodies == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_goes_to_nobody_else(broker: Broker, qos: int) -> None:
    """[MQTT-4.8.2-6]."""
    first, first_link = join(broker, "c1", qos)
    publish(broker, b"1", qos=qos)
    broker.step()
    _, second_link = join(broker, "c2", qos)
    first.rejected(first_link.publishes[0][3], 1)
    first.disconnect()
    broker.step()
    assert second_link.bodies == []


# --- the life of a share ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reconnect", *WAYS])
def test_messages_wait_while_all_members_are_away(tmp_path: Path, way: str) -> None:
    """Those of QoS 1 and 2, and not those of QoS 0: as for one session."""
    broker = Broker(tmp_path / "data")
    for client in ("c1", "c2"):
        join(broker, client)[0].disconnect()
    publish(broker, b"0", qos=0)
    publish(broker, b"1")
    publish(broker, b"dropped", qos=0)
    publish(broker, b"2")
    broker.step(0.5)
    if way != "reconnect":
        start_again(broker, way)
    links = [connect(broker, client)[1] for client in ("c1", "c2")]
    publish(broker, b"3", qos=0)
    got = [body for link in links for body in link.bodies]
    assert sorted(got) == [b"1", b"2", b"3"]
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_share_survives_with_its_members(tmp_path: Path, way: str, with_state_db: bool) -> None:
    """Membership with options, what is settled, and what is not; a member that was not in the log
    is gone."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    first, first_link = join(broker, "c1", 1, identifier=5)
    publish(broker, *numbered(0, 6))
    first.acknowledged(first_link.publishes[0][3], 3)
    join(broker, "clean", clean=True)
    broker.step(0.5)
    start_again(broker, way)
    assert share_count(broker) == (1, 1, 1)
    (group,) = broker.engine.port.sessions.shares.by_address.values()
    assert len(group.members) == 1
    _, again = connect(broker, "c1")
    assert again.bodies == numbered(3, 6)
    assert set(again.identifiers) == {(5,)}
    broker.stop()


@pytest.mark.parametrize("way", ["unsubscribe", "end", "clean", "kill"])
def test_a_share_ends_with_its_last_member(tmp_path: Path, way: str) -> None:
    """Its queue with it. After a crash, also that of members that were not in the log."""
    broker = Broker(tmp_path / "data")
    first, _ = join(broker, "c1", clean=way in ("clean", "kill"))
    second, _ = join(broker, "c2", clean=way in ("clean", "kill"))
    assert share_count(broker) == (1, 1, 1)
    if way == "kill":
        start_again(broker, "kill")
    for session, client in (first, "c1"), (second, "c2"):
        if way == "unsubscribe":
            session.unsubscribe(SHARE)
        elif way != "kill":
            session.disconnect()
            connect(broker, client, clean=True)
    broker.step()
    assert share_count(broker) == (0, 0, 0)
    start_again(broker, "kill")
    broker.step()
    assert share_count(broker) == (0, 0, 0)
    broker.stop()


def test_a_share_that_has_ended_stays_for_what_is_in_flight(tmp_path: Path) -> None:
    """QoS 2, also over a crash; a new share of that name is another one."""
    broker = Broker(tmp_path / "data")
    first, first_link = join(broker, "c1", 2)
    publish(broker, b"1", qos=2)
    broker.step()
    first.unsubscribe(SHARE)
    broker.step()
    assert share_count(broker) == (0, 1, 1)
    _, second_link = join(broker, "c2", 2)
    assert share_count(broker) == (1, 2, 1)
    publish(broker, b"2", qos=2)
    broker.step(0.5)
    start_again(broker, "kill")
    again, link = connect(broker, "c1")
    broker.step()
    packet = first_link.publishes[0][3]
    assert link.publishes == [("a/x", b"1", 2, packet, True, False)]
    again.received(packet, 1)
    again.completed(packet, 1)
    broker.step()
    assert share_count(broker) == (1, 1, 1)
    assert second_link.bodies == [b"2"]
    broker.stop()


def test_a_waiting_message_may_expire(broker: Broker) -> None:
    """As in a session's queue, and the members that come then get what is left."""
    join(broker, "c1")[0].disconnect()
    route = broker.port.topics.route("a", "x")
    for ttl_ms, body in ((1000, b"short"), (9000, b"long")):
        ttl = {TTL_PROPERTY: ttl_property(ttl_ms, 0)}
        template = broker.port.topics.template(route, properties={"PMQ_QOS": "1", **ttl})
        broker.publish(template, body)
        broker.step()
    broker.step(3.0)
    assert connect(broker, "c1")[1].bodies == [b"long"]


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("overflow", "left"), [(DROP_OLDEST, (7, 12)), (DROP_NEWEST, (0, 5))])
@pytest.mark.parametrize("way", ["reconnect", *WAYS])
def test_what_waits_for_a_share_has_the_bound_of_a_session(
    tmp_path: Path, overflow: Overflow, left: tuple[int, int], way: str
) -> None:
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=5, overflow=overflow)
    broker.restart()
    join(broker, "c1")[0].disconnect()
    for body in numbered(0, 12):
        publish(broker, body)
    broker.step(2.0)
    assert broker.engine.port.sessions.shares.bounds.dropped_count == 7
    if way != "reconnect":
        start_again(broker, way)
    session, link = connect(broker, "c1")
    assert link.bodies == numbered(*left)
    acknowledge(session, link)
    publish(broker, b"new")
    assert link.bodies[-1] == b"new"
    broker.stop()


def test_dropping_leaves_what_is_in_flight(tmp_path: Path) -> None:
    """It comes again when its member goes, though what came behind it was dropped."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=5)
    broker.restart()
    _, first_link = join(broker, "c1", credit=3)
    publish(broker, *numbered(0, 3))
    first_link.left = 0
    for body in numbered(3, 12):
        publish(broker, body)
    assert first_link.bodies == numbered(0, 3)
    broker.step(0.05)
    start_again(broker, "kill")
    _, again = connect(broker, "c1")
    assert again.bodies == [*numbered(0, 3), *numbered(7, 12)]
    broker.stop()


def test_going_on_behind_a_gap_leaves_what_is_in_flight(tmp_path: Path) -> None:
    """The newest were left out; what was sent before that comes again after a crash."""
    broker = Broker(tmp_path / "data")
    broker.session_settings = SessionSettings(waiting_max=5, overflow=DROP_NEWEST)
    broker.restart()
    session, link = join(broker, "c1", credit=0)
    for body in numbered(0, 12):
        publish(broker, body)
    broker.step(1.0)
    link.left = 100
    session.ready()  # all that waits is sent, and something comes at once
    assert link.bodies == numbered(0, 5)
    broker.publish(broker.template("a", "x"), b"12")
    broker.loop.run()
    broker.flush()
    broker.loop.run()
    assert link.bodies == [*numbered(0, 5), b"12"]
    broker.kill()
    broker.open()
    assert connect(broker, "c1")[1].bodies == [*numbered(0, 5), b"12"]
    broker.stop()


def test_a_share_of_clean_sessions_has_the_bound_of_a_live_subscription(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", backlog_count_max=5)
    session, link = join(broker, "c1", clean=True, credit=0)
    for body in numbered(0, 12):
        publish(broker, body)
    link.left = 100
    session.ready()
    broker.step()
    assert link.bodies == numbered(7, 12)
    broker.stop()


# --- strategies ------------------------------------------------------------------------------


def strategic(path: Path, strategy: ShareStrategy) -> Broker:
    broker = Broker(path / "data")
    broker.session_settings = replace(SessionSettings(), share_strategy=strategy)
    broker.restart()
    return broker


def test_sticky_stays_with_a_member_that_keeps_up(tmp_path: Path) -> None:
    broker = strategic(tmp_path, STICKY)
    first, first_link = join(broker, "c1", credit=10)
    _, second_link = join(broker, "c2")
    publish(broker, *numbered(0, 4))
    publish(broker, b"4")
    assert (first_link.bodies, second_link.bodies) == (numbered(0, 5), [])
    first_link.left = 0
    publish(broker, b"5")
    first_link.left = 10
    first.ready()
    publish(broker, b"6")
    assert second_link.bodies == [b"5", b"6"]
    broker.stop()


@pytest.mark.parametrize("strategy", [HASH_TOPIC, HASH_CLIENT])
def test_by_hash_one_key_goes_to_one_member(tmp_path: Path, strategy: ShareStrategy) -> None:
    """Live, and when it waited; what one member has no room for goes to the others."""
    broker = strategic(tmp_path, strategy)
    members = [join(broker, f"c{number}") for number in range(3)]

    def send(key: str, *bodies: bytes) -> None:
        tag = key if strategy == HASH_TOPIC else "x"
        more = {"PMQ_FROM": key} if strategy == HASH_CLIENT else {}
        template = broker.port.topics.template(
            broker.port.topics.route("a", tag),
            properties={"PMQ_PROTO": "mqtt", "PMQ_QOS": "1", **more},
        )
        broker.publish(template, *bodies)

    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        send(key, *(f"{key} {number}".encode() for number in range(3)))
        broker.step()
    where = {body.split()[0]: n for n, (_, link) in enumerate(members) for body in link.bodies}
    assert len(where) == len(keys)
    assert set(where.values()) == {0, 1, 2}
    for session, link in members:
        acknowledge(session, link)
        link.left = 0
    for key in keys:
        send(key, f"{key} 3".encode())
        broker.step()
    for _, link in members:
        link.left = 1000
    for session, _ in members:
        session.ready()
        broker.step()
    got = [(body, n) for n, (_, link) in enumerate(members) for body in link.bodies]
    assert len(got) == len({body for body, _ in got}) == 4 * len(keys)
    for session, link in members:
        acknowledge(session, link)
    before = [len(link.bodies) for _, link in members]
    full = where[keys[0].encode()]
    members[full][1].left = 0
    send(keys[0], *numbered(0, 5))
    broker.step()
    after = [len(link.bodies) for _, link in members]
    assert (sum(after) - sum(before), after[full] - before[full]) == (5, 0)
    broker.stop()


@pytest.mark.parametrize("strategy", [ROUND_ROBIN, STICKY, HASH_TOPIC])
def test_a_run_is_cut_where_a_member_is_full(tmp_path: Path, strategy: ShareStrategy) -> None:
    """Windows begin with 32 messages; a run of 100 goes to four members, in stretches."""
    broker = strategic(tmp_path, strategy)
    members = [join(broker, f"c{number}") for number in range(4)]
    publish(broker, *numbered(0, 100))
    got = [body for _, link in members for body in link.bodies]
    assert sorted(got) == sorted(numbered(0, 100))
    assert all(len(link.bodies) <= 32 for _, link in members)
    broker.stop()


# --- users -----------------------------------------------------------------------------------


def test_members_may_be_of_several_users(people: Broker) -> None:
    """The right to the filter counts. Who loses it is told to go, and loses its part with its next
    connection; the others go on."""
    add_user(people, "bob")
    allow(people, "ann", "subscribe", "a.#")
    allow(people, "bob", "subscribe", "a.#")
    links = {}
    for name in ("ann", "bob"):
        session, links[name] = connect_as(port_of(people, name), people, name)
        session.subscribe(SHARE, at_qos(1))
        people.step()
    with pytest.raises(Refused):
        session.subscribe(shared_address("g", ("b", REST)), at_qos(1))
    publish(people, b"1", b"2")
    assert [len(link.bodies) for link in links.values()] == [1, 1]
    take_back(people, "bob", "subscribe", "a.#")
    assert [bool(link.expelled_for) for link in links.values()] == [False, True]
    session.disconnect()
    people.step()
    publish(people, b"3")
    assert sorted(links["ann"].bodies) == [b"1", b"2", b"3"]
    again, link = connect_as(port_of(people, "bob"), people, "bob")
    assert not again.is_subscribed(SHARE)
    publish(people, b"4")
    assert (links["ann"].bodies[-1], link.bodies) == (b"4", [])
