"""Retained messages, and the options of subscriptions about them (parts 3.3.1.3 and 3.8.3.1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop_tests.mqtt5_wire import AS_PUBLISHED, NO_RETAINED, ONLY_NEW, P
from interop_tests.mqtt_conformance.client import Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows


@pytest.fixture
def publisher(case: Case) -> Iterator[Client]:
    """Removes after the test what it retained on the topics `x` and `y`."""
    client = case.connect("publisher")
    yield client
    for name in ("x", "y"):
        client.send_message(case.topic(name), b"", retain=True)


def assert_retained(
    case: Case, expected: list[tuple[str, bytes, int]], pattern: str = "#", options: int = 2
) -> None:
    """A new subscriber gets these: topic, body and QoS, by topic."""
    client = case.connect("late")
    client.follow((case.topic(pattern), options))
    found = [client.message() for _ in expected]
    assert all(one.retain and not one.duplicate for one in found)
    shown = sorted((one.topic.rpartition("/")[2], one.body, one.qos) for one in found)
    assert shown == expected
    client.nothing()
    client.leave()


@shows("MQTT-3.3.1-5", "MQTT-3.3.1-9", "MQTT-3.8.4-8")
def test_the_last_message_with_retain_is_stored(case: Case, publisher: Client) -> None:
    """One for each topic, with its QoS; a subscription gets all that match."""
    publisher.send_message(case.topic("x"), b"old", qos=1, retain=True)
    publisher.send_message(case.topic("x"), b"new", qos=2, retain=True)
    publisher.send_message(case.topic("y"), b"one", qos=0, retain=True)
    assert_retained(case, [("x", b"new", 2), ("y", b"one", 0)])
    assert_retained(case, [("x", b"new", 1), ("y", b"one", 0)], "#", 1)
    assert_retained(case, [("x", b"new", 0), ("y", b"one", 0)], "+", 0)
    assert_retained(case, [("x", b"new", 2)], "x")
    assert_retained(case, [], "x/y")


@shows("MQTT-3.3.1-6", "MQTT-3.3.1-7")
def test_an_empty_message_removes_the_retained_one(case: Case, publisher: Client) -> None:
    """And is a message for who has subscribed."""
    subscriber = case.connect("s")
    subscriber.follow((case.topic("x"), 0), (case.topic("y"), 0 | AS_PUBLISHED))
    publisher.send_message(case.topic("x"), b"1", retain=True)
    publisher.send_message(case.topic("x"), b"", retain=True)
    publisher.send_message(case.topic("y"), b"", retain=True)  # there was none
    found = [subscriber.message() for _ in range(3)]
    assert [(one.body, one.retain) for one in found] == [(b"1", False), (b"", False), (b"", True)]
    assert_retained(case, [])


@shows("MQTT-3.3.1-8")
def test_a_message_without_retain_changes_nothing(case: Case, publisher: Client) -> None:
    publisher.send_message(case.topic("x"), b"stays", retain=True)
    publisher.send_message(case.topic("x"), b"passes")
    publisher.send_message(case.topic("x"), b"")
    publisher.send_message(case.topic("y"), b"passes")
    assert_retained(case, [("x", b"stays", 1)])


@shows("MQTT-3.3.1-9", "MQTT-3.8.4-4")
def test_retain_handling_0_sends_them_each_time(case: Case, publisher: Client) -> None:
    publisher.send_message(case.topic("x"), b"1", retain=True)
    client = case.connect()
    for _ in range(2):
        client.follow((case.topic("x"), 1))
        message = client.message()
        assert (message.body, message.retain) == (b"1", True)
        client.nothing()


@shows("MQTT-3.3.1-10")
def test_retain_handling_1_sends_them_to_a_new_subscription_only(
    case: Case, publisher: Client
) -> None:
    """Also in a session that goes on, and again after UNSUBSCRIBE."""
    publisher.send_message(case.topic("x"), b"1", retain=True)
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    client.follow((case.topic("x"), 1 | ONLY_NEW))
    assert client.message().retain
    client.follow((case.topic("x"), 0 | ONLY_NEW))
    client.nothing()
    client.leave()
    client = case.connect(clean=False, present=True)
    client.follow((case.topic("x"), 1 | ONLY_NEW))
    client.nothing()
    client.follow((case.topic("+"), 1 | ONLY_NEW))
    assert client.message().retain
    assert client.ask_unsubscribe(case.topic("x")) == (0,)
    client.follow((case.topic("x"), 1 | ONLY_NEW))
    assert client.message().retain
    client.nothing()


@shows("MQTT-3.3.1-11")
def test_retain_handling_2_never_sends_them(case: Case, publisher: Client) -> None:
    """Those that come later are messages like all others."""
    publisher.send_message(case.topic("x"), b"1", retain=True)
    client = case.connect()
    for _ in range(2):
        client.follow((case.topic("x"), 1 | NO_RETAINED))
        client.nothing()
    publisher.send_message(case.topic("x"), b"2", retain=True)
    assert client.message().body == b"2"


@shows("MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_what_was_not_asked_for_does_not_come_to_the_next_connection(
    case: Case, publisher: Client
) -> None:
    """Which gets what is left of those that were."""
    publisher.send_message(case.topic("x"), b"1", retain=True)
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    client.follow((case.topic("x"), 1 | NO_RETAINED))
    client.follow((case.topic("x"), 1 | ONLY_NEW))
    client.leave()
    client = case.connect(clean=False, present=True)
    client.nothing()


@shows("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-5")
def test_each_filter_has_its_own_retain_handling(case: Case, publisher: Client) -> None:
    for name in ("x", "y"):
        publisher.send_message(case.topic(name), name.encode(), retain=True)
    client = case.connect()
    client.follow((case.topic("x"), 1 | NO_RETAINED), (case.topic("y"), 1))
    assert client.message().body == b"y"
    client.nothing()


@shows("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(case: Case, publisher: Client, qos: int) -> None:
    """Which messages that waited have, too."""
    away = case.connect("away", props=[(P.SESSION_EXPIRY, 60)])
    away.follow((case.topic("x"), 2 | AS_PUBLISHED), (case.topic("y"), 2))
    away.leave()
    client = case.connect()
    client.follow((case.topic("x"), 2 | AS_PUBLISHED), (case.topic("y"), 2))
    for retain in (True, False):
        publisher.send_message(case.topic("x"), b"1", qos=qos, retain=retain)
        assert client.message().retain is retain
        publisher.send_message(case.topic("y"), b"1", qos=qos, retain=retain)
        assert client.message().retain is False
    if qos:
        away = case.connect("away", clean=False, present=True)
        found = [away.message().retain for _ in range(4)]
        assert found == [True, False, False, False]


@shows("MQTT-3.3.1-9", "MQTT-3.3.4-5")
def test_retained_messages_have_the_subscription_identifier(case: Case, publisher: Client) -> None:
    publisher.send_message(case.topic("x"), b"1", retain=True)
    client = case.connect()
    client.follow((case.topic("+"), 0), props=((P.SUBSCRIPTION_ID, 77),))
    message = client.message()
    assert (message.retain, message.values(P.SUBSCRIPTION_ID)) == (True, [77])


@shows("MQTT-3.3.1-5", "MQTT-3.3.2-17")
def test_a_retained_message_has_the_properties_of_the_last(case: Case, publisher: Client) -> None:
    for number in (1, 2):
        props = ((P.USER, ("number", str(number))),)
        publisher.send_message(case.topic("x"), b"same", retain=True, props=props)
    client = case.connect()
    client.follow((case.topic("x"), 0))
    assert client.message().props == ((P.USER, ("number", "2")),)
