"""Shared subscriptions (part 4.8.2)."""

from __future__ import annotations

import select
from typing import Any

import pytest

from interop_tests.mqtt5_wire import P, Packet, R, puback, pubrec
from interop_tests.mqtt_conformance.client import SECONDS_MAX, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_conformance.v5.test_topics import refuses

pytestmark = pytest.mark.usefixtures("shared_subscriptions")

STAYS = ((P.SESSION_EXPIRY, 60),)


def shared(case: Case, *levels: str, group: str = "g") -> str:
    return f"$share/{group}/{case.topic(*levels)}"


def group_of(case: Case, count: int, qos: int, **options: Any) -> list[Client]:
    """Members of one shared subscription."""
    members = []
    for number in range(count):
        member = case.connect(str(number), **options)
        member.follow((shared(case), qos))
        members.append(member)
    return members


def readable(members: list[Client]) -> list[Client]:
    """Those to whom something has come, at least one of them."""
    ready, _, _ = select.select([member.socket for member in members], [], [], SECONDS_MAX)
    assert ready, "nothing came to any member"
    return [member for member in members if member.socket in ready]


def arrived(members: list[Client], count: int) -> list[list[Packet]]:
    """What each of them has got of so many messages, which are acknowledged."""
    found: list[list[Packet]] = [[] for _ in members]
    while sum(map(len, found)) < count:
        for member in readable(members):
            found[members.index(member)].append(member.message())
            while member.has_more():
                found[members.index(member)].append(member.message())
    for member in members:
        member.nothing()
    return found


def bodies_of(messages: list[Packet]) -> list[bytes]:
    return [message.body for message in messages]


@shows("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize(
    "pattern", ["$share/g", "$share/g/", "$share//a", "$share/", "$share/g+/a", "$share/#/a"]
)
def test_a_wrong_filter_is_refused(case: Case, pattern: str) -> None:
    refuses(case.connect(), pattern)


@shows("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("group", ["g", "a b", "ä", "$share"])
def test_a_group_of_one_is_like_a_subscription(case: Case, group: str) -> None:
    """Of filters with an empty first level, too; UNSUBSCRIBE takes the whole filter."""
    client = case.connect()
    pattern = shared(case, "+", group=group)
    client.follow((pattern, 1))
    client.send_message(case.topic("x"), b"1")
    assert client.message().topic == case.topic("x")
    assert client.ask_unsubscribe(case.topic("+"), pattern, pattern) == (
        R.NO_SUBSCRIPTION,
        R.SUCCESS,
        R.NO_SUBSCRIPTION,
    )
    client.send_message(case.topic("x"), b"2")
    client.nothing()


@shows("MQTT-4.8.2-2", "MQTT-4.8.2-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(case: Case, qos: int) -> None:
    """Of each group one; and to each subscriber that is not in a group."""
    members = group_of(case, 3, qos)
    other_group = case.connect("other")
    other_group.follow((shared(case, group="h"), qos))
    alone = case.connect("alone")
    alone.follow((case.topic(), qos))
    publisher = case.connect("p")
    bodies = [b"%d" % number for number in range(12)]
    for body in bodies:
        publisher.send_message(case.topic(), body, qos=qos)
    found = arrived(members, len(bodies))
    assert sorted(body for part in found for body in bodies_of(part)) == sorted(bodies)
    for client in (other_group, alone):
        assert bodies_of(arrived([client], len(bodies))[0]) == bodies


@shows("MQTT-4.8.2-1")
def test_a_client_in_a_group_and_alone_gets_both_copies(case: Case) -> None:
    client = case.connect()
    client.follow((shared(case), 1), (case.topic(), 1))
    client.send_message(case.topic(), b"1")
    assert [client.message().body for _ in range(2)] == [b"1", b"1"]
    client.nothing()


@shows("MQTT-4.8.2-3")
def test_each_member_has_its_own_quality(case: Case) -> None:
    low, high = case.connect("low"), case.connect("high")
    low.follow((shared(case), 0))
    high.follow((shared(case), 2))
    publisher = case.connect("p")
    for _ in range(10):
        publisher.send_message(case.topic(), b"x", qos=2)
    found = arrived([low, high], 10)
    for qos, messages in zip((0, 2), found, strict=True):
        assert {message.qos for message in messages} <= {qos}


def chosen(members: list[Client]) -> tuple[Client, Client]:
    """Of two members the one that a message has come to, and the other."""
    (member,) = readable(members)
    return member, next(other for other in members if other is not member)


@shows("MQTT-4.8.2-4", "MQTT-4.4.0-1")
@pytest.mark.parametrize("received", [False, True])
def test_quality_2_is_completed_with_the_same_member(case: Case, received: bool) -> None:
    members = group_of(case, 2, 2, props=STAYS)
    case.connect("p").send_message(case.topic(), b"x", qos=2)
    member, other = chosen(members)
    first = member.message(acknowledged=False)
    if received:
        member.send(pubrec(first.packet_id))
        assert member.read().packet_id == first.packet_id
    member.vanish()
    other.nothing()
    member = case.connect(member.client_id[len(case.name) :], clean=False, present=True)
    if received:
        found = member.read()
        assert (found.kind.name, found.packet_id) == ("PUBREL", first.packet_id)
    else:
        message = member.message()
        assert (message.packet_id, message.body, message.duplicate) == (
            first.packet_id,
            b"x",
            True,
        )
    other.nothing()


@shows("MQTT-4.8.2-5")
def test_quality_2_goes_to_nobody_else_when_the_session_ends(case: Case) -> None:
    members = group_of(case, 2, 2)
    publisher = case.connect("p")
    publisher.send_message(case.topic(), b"x", qos=2)
    member, other = chosen(members)
    member.message(acknowledged=False)
    member.vanish()
    case.connect(member.client_id[len(case.name) :])
    publisher.send_message(case.topic(), b"next", qos=2)
    assert other.message().body == b"next"
    other.nothing()


@shows("MQTT-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_goes_to_nobody_else(case: Case, qos: int) -> None:
    members = group_of(case, 2, qos)
    case.connect("p").send_message(case.topic(), b"x", qos=qos)
    member, other = chosen(members)
    message = member.message(acknowledged=False)
    refuse = puback if qos == 1 else pubrec
    member.send(refuse(message.packet_id, R.UNSPECIFIED))
    member.nothing()
    other.nothing()


@shows("MQTT-4.8.2-1", "MQTT-4.8.2-2")
def test_a_group_gets_no_retained_messages(case: Case) -> None:
    publisher = case.connect("p")
    publisher.send_message(case.topic(), b"r", retain=True)
    for member in group_of(case, 2, 1):
        member.nothing()
    publisher.send_message(case.topic(), b"", retain=True)


@shows("MQTT-3.3.4-3", "MQTT-3.3.4-5")
def test_a_member_gets_its_own_subscription_identifier(case: Case) -> None:
    members = []
    for number in (1, 2):
        member = case.connect(str(number))
        member.follow((shared(case), 0), props=((P.SUBSCRIPTION_ID, number),))
        members.append(member)
    publisher = case.connect("p")
    for _ in range(4):
        publisher.send_message(case.topic(), b"x")
    for number, messages in enumerate(arrived(members, 4), 1):
        for message in messages:
            assert message.values(P.SUBSCRIPTION_ID) == [number]


@shows("MQTT-4.8.2-1")
def test_messages_wait_while_all_members_are_away(case: Case) -> None:
    member = group_of(case, 1, 1, props=STAYS)[0]
    member.leave()
    case.connect("p").send_message(case.topic(), b"x")
    member = case.connect("0", clean=False, present=True)
    assert member.message().body == b"x"


@shows("MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1")
def test_topics_of_the_server_cannot_be_shared(case: Case) -> None:
    """Nobody is told of their values by a queue, so the client learns it at once."""
    client = case.connect()
    asked = (("$share/g/$SYS/#", 1), ("$SYS/broker/uptime", 0))
    assert client.ask_subscribe(*asked) == (R.FILTER, R.SUCCESS)
