"""PUBLISH and its acknowledgements, and retained messages (parts 3.3 to 3.7, and 4.3 to 4.6)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt_conformance.client_311 import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Case,
    Client,
    packet_id,
)
from interop_tests.mqtt_conformance.statements_311 import shows
from interop_tests.mqtt_wire import packet, puback, pubcomp, publish, pubrec, pubrel

BAD = [b"\xc0\x80", b"\xed\xa0\x80", b"\xff", b"a\0b"]


def stored_for(case: Case, qos: int, *bodies: bytes) -> Client:
    """A subscriber to whom these messages are on their way. Its session stays."""
    subscriber = case.connect("s", clean=False)
    subscriber.follow((case.topic(), qos))
    publisher = case.connect("p")
    for body in bodies:
        publisher.send_message(case.topic(), body, qos=qos)
    return subscriber


def again(case: Case) -> Client:
    """The subscriber on a new connection."""
    return case.connect("s", clean=False, present=True)


# --- from the client to the server ---------------------------------------------------------------


@shows("MQTT-3.3.4-1")
def test_quality_0_is_not_answered(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x"))
    client.nothing()


@shows("MQTT-3.3.4-1", "MQTT-4.3.2-2", "MQTT-2.3.1-6")
@pytest.mark.parametrize("number", [1, 65535])
def test_quality_1_gets_puback(case: Case, number: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=1, packet_id=number))
    client.expect(puback(number))
    client.nothing()


@shows("MQTT-3.3.4-1", "MQTT-4.3.3-2", "MQTT-2.3.1-6")
def test_quality_2_gets_pubrec_and_pubcomp(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=2, packet_id=65535))
    client.expect(pubrec(65535))
    client.send(pubrel(65535))
    client.expect(pubcomp(65535))
    client.nothing()


@shows("MQTT-4.3.2-2", "MQTT-3.3.1-3")
def test_after_puback_the_same_packet_id_is_a_new_message(case: Case) -> None:
    """Also with DUP, which the subscriber does not see."""
    publisher, subscriber = case.pair((case.topic(), 1))
    for duplicate in (False, True):
        publisher.send(publish(case.topic(), b"x", qos=1, packet_id=7, duplicate=duplicate))
        publisher.expect(puback(7))
        assert not subscriber.message().duplicate


@shows("MQTT-4.3.3-2", "MQTT-3.3.1-3")
def test_quality_2_is_delivered_once_however_often_it_comes(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    for body in (b"1", b"2"):  # after PUBCOMP the packet identifier is a new message
        publisher.send(publish(case.topic(), body, qos=2, packet_id=7))
        publisher.expect(pubrec(7))
        publisher.send(publish(case.topic(), body, qos=2, packet_id=7, duplicate=True))
        publisher.expect(pubrec(7))
        publisher.send(pubrel(7))
        publisher.expect(pubcomp(7))
        message = subscriber.message()
        assert (message.body, message.duplicate) == (body, False)
        subscriber.nothing()


@shows("MQTT-4.3.3-2", "MQTT-4.1.0-1")
def test_quality_2_is_delivered_once_over_a_reconnection(case: Case) -> None:
    subscriber = case.connect("s")
    subscriber.follow((case.topic(), 2))
    publisher = case.connect("p", clean=False)
    publisher.send(publish(case.topic(), b"x", qos=2, packet_id=7))
    publisher.expect(pubrec(7))
    publisher.vanish()
    publisher = case.connect("p", clean=False, present=True)
    publisher.send(publish(case.topic(), b"x", qos=2, packet_id=7, duplicate=True))
    publisher.expect(pubrec(7))
    publisher.send(pubrel(7))
    publisher.expect(pubcomp(7))
    assert subscriber.message().body == b"x"
    subscriber.nothing()


@shows("MQTT-4.3.3-2")
def test_pubrel_for_an_unknown_packet_id_gets_pubcomp(case: Case) -> None:
    client = case.connect()
    client.send(pubrel(4711))
    client.expect(pubcomp(4711))
    client.nothing()


@shows("MQTT-3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_that_is_not_allowed_is_acknowledged_or_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(publish("$conformance/x", b"x", qos=qos, packet_id=1))
    if not qos:
        client.send(packet(0xC0, b""))
    answer = client.receive()
    assert answer in (b"", {0: packet(0xD0, b""), 1: puback(1), 2: pubrec(1)}[qos])


# --- from the server to the client ---------------------------------------------------------------


@shows("MQTT-4.3.1-1", "MQTT-3.3.1-2", "MQTT-2.3.1-5", "MQTT-3.3.2-1", "MQTT-3.3.2-3")
def test_quality_0_comes_without_dup_and_packet_id(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic("+"), 2))
    publisher.send_message(case.topic("x"), b"body", qos=0)
    message = subscriber.message()
    assert (message.qos, message.duplicate, message.retain) == (0, False, False)
    assert (message.topic, message.body) == (case.topic("x"), b"body")


@shows("MQTT-2.3.1-1", "MQTT-2.3.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_have_packet_ids_of_their_own(case: Case, qos: int) -> None:
    subscriber = stored_for(case, qos, b"1", b"2", b"3")
    messages = [subscriber.message(acknowledged=False) for _ in range(3)]
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert len({message.packet_id for message in messages}) == 3
    assert not any(message.duplicate for message in messages)


@shows("MQTT-4.3.2-1", "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-3.3.1-3", "MQTT-2.3.1-4")
def test_quality_1_comes_again_until_puback(case: Case) -> None:
    first = stored_for(case, 1, b"x").message(acknowledged=False)
    for _ in range(2):
        subscriber = again(case)
        message = subscriber.message(acknowledged=False)
        assert (message.body, message.packet_id) == (b"x", first.packet_id)
        assert (message.qos, message.duplicate) == (1, True)
    subscriber.send(puback(message.packet_id))
    subscriber.nothing()
    subscriber.disconnect()
    again(case).nothing()


@shows("MQTT-4.3.3-1", "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-2.3.1-4")
def test_quality_2_comes_again_until_pubrec(case: Case) -> None:
    first = stored_for(case, 2, b"x").message(acknowledged=False)
    message = again(case).message(acknowledged=False)
    assert (message.body, message.packet_id) == (b"x", first.packet_id)
    assert (message.qos, message.duplicate) == (2, True)


@shows("MQTT-4.3.3-1", "MQTT-4.4.0-1", "MQTT-2.3.1-6")
def test_after_pubrec_only_pubrel_comes_again(case: Case) -> None:
    subscriber = stored_for(case, 2, b"x")
    number = subscriber.message(acknowledged=False).packet_id
    subscriber.send(pubrec(number))
    for _ in range(2):
        assert packet_id(subscriber.read_kind(PUBREL)) == number
        subscriber.nothing()
        subscriber.vanish()
        subscriber = again(case)
    subscriber.expect(pubrel(number))
    subscriber.send(pubcomp(number))
    subscriber.nothing()
    subscriber.disconnect()
    again(case).nothing()


@shows("MQTT-4.6.0-6", "MQTT-4.4.0-1")
def test_what_comes_again_keeps_its_order(case: Case) -> None:
    """First of all the messages, then of PUBREL in the order of PUBREC."""
    bodies = [b"%d" % number for number in range(6)]
    subscriber = stored_for(case, 2, *bodies)
    first = [subscriber.message(acknowledged=False).packet_id for _ in bodies]
    subscriber = again(case)
    found = [subscriber.message(acknowledged=False) for _ in bodies]
    assert [one.body for one in found] == bodies
    assert [one.packet_id for one in found] == first
    for number in first:
        subscriber.send(pubrec(number))
    assert [packet_id(subscriber.read_kind(PUBREL)) for _ in first] == first


@shows("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_client_come_in_its_order(case: Case, qos: int) -> None:
    publisher, subscriber = case.pair((case.topic("#"), qos))
    count = 20
    numbers = range(1, count + 1)
    for number in numbers:
        name = case.topic("ab"[number % 2])
        publisher.send(publish(name, b"%d" % number, qos=qos, packet_id=number))
    for kind in {0: [], 1: [PUBACK], 2: [PUBREC, PUBCOMP]}[qos]:
        assert [packet_id(publisher.read_kind(kind)) for _ in numbers] == list(numbers)
        if kind == PUBREC:
            publisher.send(*map(pubrel, numbers))
    found = [subscriber.message() for _ in numbers]
    for name in ("a", "b"):
        of_one = [int(one.body) for one in found if one.topic == case.topic(name)]
        assert of_one == sorted(of_one)
        assert len(of_one) == count // 2


@shows("MQTT-4.5.0-1", "MQTT-3.3.5-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_overlapping_subscriptions_respect_the_highest_quality(case: Case, qos: int) -> None:
    """By one copy."""
    publisher, subscriber = case.pair(
        (case.topic("#"), 0), (case.topic("+"), 2), (case.topic("x"), 1)
    )
    publisher.send_message(case.topic("x"), b"1", qos=qos)
    assert subscriber.message().qos == qos
    subscriber.nothing()


@shows("MQTT-4.5.0-1", "MQTT-3.3.5-1")
def test_overlapping_subscriptions_of_who_is_away(case: Case) -> None:
    """What waits in two queues comes once, in order."""
    client = case.connect(clean=False)
    client.follow((case.topic("#"), 1), (case.topic("+"), 2))
    client.disconnect()
    publisher = case.connect("p")
    for body, topic in ((b"1", "x"), (b"2", "x/y"), (b"3", "x")):
        publisher.send_message(case.topic(topic), body, qos=2)
    client = case.connect(clean=False, present=True)
    found = [client.message() for _ in range(3)]
    assert [(one.body, one.qos) for one in found] == [(b"1", 2), (b"2", 1), (b"3", 2)]
    client.nothing()


# --- what closes ---------------------------------------------------------------------------------


@shows("MQTT-3.3.2-2", "MQTT-4.7.1-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize("level", ["+", "#", "a+b", "a#"])
def test_a_topic_name_with_wildcards_closes(case: Case, level: str) -> None:
    client = case.connect()
    client.send(publish(case.topic(level), b"x"))
    client.expect_closed()


@shows("MQTT-3.3.2-1", "MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-4.7.3-2")
@pytest.mark.parametrize("topic", BAD)
def test_a_topic_name_that_is_no_text_closes(case: Case, topic: bytes) -> None:
    client = case.connect()
    client.send(publish(topic, b"x"))
    client.expect_closed()


@shows("MQTT-4.7.3-1", "MQTT-4.8.0-1")
def test_an_empty_topic_name_closes(case: Case) -> None:
    client = case.connect()
    client.send(publish("", b"x"))
    client.expect_closed()


@shows("MQTT-3.3.1-4")
@pytest.mark.parametrize("first_byte", [0x36, 0x3E, 0x37])
def test_quality_3_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + publish(case.topic(), b"x", qos=1, packet_id=1)[1:])
    client.expect_closed()


@shows("MQTT-2.3.1-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_id_0_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=0))
    client.expect_closed()


@shows("MQTT-3.6.1-1", "MQTT-2.2.2-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 15])
def test_pubrel_with_other_flags_closes(case: Case, flags: int) -> None:
    client = case.connect()
    client.send(bytes([0x60 | flags]) + pubrel(1)[1:])
    client.expect_closed()


@shows("MQTT-2.2.2-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("first_byte", [0x42, 0x52, 0x72, 0xC1, 0xC8])
def test_other_packets_with_flags_close(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + (b"\0" if first_byte > 0xC0 else puback(1)[1:]))
    client.expect_closed()


# --- retained messages ---------------------------------------------------------------------------


def assert_retained(
    case: Case, expected: list[tuple[str, bytes, int]], pattern: str = "#", qos: int = 2
) -> None:
    """A new subscriber gets these: topic, body and QoS, by topic."""
    client = case.connect("late")
    client.follow((case.topic(pattern), qos))
    found = [client.message() for _ in expected]
    assert all(one.retain and not one.duplicate for one in found)
    shown = sorted((one.topic.rpartition("/")[2], one.body, one.qos) for one in found)
    assert shown == expected
    client.nothing()
    client.disconnect()


@shows("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8", "MQTT-3.3.1-10")
@shows("MQTT-3.3.1-11", "MQTT-3.3.1-12")
def test_retained_messages(case: Case) -> None:
    """The last one of each topic, until an empty one."""
    publisher = case.connect("p")
    publisher.send_message(case.topic("x"), b"old", qos=1, retain=True)
    publisher.send_message(case.topic("y"), b"old", qos=1, retain=True)
    publisher.send_message(case.topic("x"), b"new", qos=2, retain=True)
    publisher.send_message(case.topic("y"), b"new", qos=0, retain=True)
    publisher.send_message(case.topic("x"), b"passes")
    publisher.send_message(case.topic("y"), b"")
    publisher.send_message(case.topic("z"), b"passes")
    assert_retained(case, [("x", b"new", 2), ("y", b"new", 0)])
    assert_retained(case, [("x", b"new", 1), ("y", b"new", 0)], "+", 1)
    assert_retained(case, [("x", b"new", 2)], "x")
    for name in ("x", "y"):
        publisher.send_message(case.topic(name), b"", qos=1, retain=True)
    assert_retained(case, [])


@shows("MQTT-3.3.1-9", "MQTT-3.3.1-10")
def test_an_established_subscription_sees_no_retain(case: Case) -> None:
    """And the empty message like all others."""
    publisher, subscriber = case.pair((case.topic(), 1))
    for body in (b"1", b""):
        publisher.send_message(case.topic(), body, retain=True)
        message = subscriber.message()
        assert (message.body, message.retain) == (body, False)
