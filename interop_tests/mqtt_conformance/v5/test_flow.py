"""Receive Maximum and Maximum Packet Size of the client (parts 3.1.2.11, 3.3.4 and 4.9)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt5_wire import Kind, P, R, puback, pubcomp, pubrec
from interop_tests.mqtt_conformance.client import Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows


def flooded(case: Case, maximum: int, qos: int, count: int = 6) -> tuple[Client, Client]:
    """A publisher, and a subscriber with this Receive Maximum for whom more has come."""
    props = ((P.RECEIVE_MAX, maximum), (P.SESSION_EXPIRY, 60))
    subscriber = case.connect("s", props=props)
    subscriber.follow((case.topic(), qos))
    publisher = case.connect("p")
    for number in range(count):
        publisher.send_message(case.topic(), b"%d" % number, qos=qos)
    return publisher, subscriber


@shows("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 3])
def test_quality_1_keeps_to_the_receive_maximum(case: Case, maximum: int) -> None:
    """Each PUBACK makes room for one more, also one that refuses."""
    _, subscriber = flooded(case, maximum, 1)
    waiting = [subscriber.message(acknowledged=False) for _ in range(maximum)]
    subscriber.nothing()
    for number in range(maximum, 6):
        refused = number % 2
        subscriber.send(puback(waiting.pop(0).packet_id, R.UNSPECIFIED if refused else None))
        waiting.append(subscriber.message(acknowledged=False))
        assert waiting[-1].body == b"%d" % number
        subscriber.nothing()


@shows("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
def test_quality_2_keeps_to_the_receive_maximum(case: Case) -> None:
    """PUBCOMP makes room, and a PUBREC that refuses; another PUBREC does not."""
    _, subscriber = flooded(case, 1, 2)
    first = subscriber.message(acknowledged=False)
    subscriber.send(pubrec(first.packet_id))
    assert subscriber.read().kind == Kind.PUBREL
    subscriber.nothing()
    subscriber.send(pubcomp(first.packet_id))
    second = subscriber.message(acknowledged=False)
    assert second.body == b"1"
    subscriber.nothing()
    subscriber.send(pubrec(second.packet_id, R.UNSPECIFIED))
    assert subscriber.message(acknowledged=False).body == b"2"
    subscriber.nothing()


@shows("MQTT-3.3.4-10", "MQTT-4.9.0-3")
def test_a_full_window_delays_nothing_else(case: Case) -> None:
    publisher, subscriber = flooded(case, 1, 1)
    first = subscriber.message(acknowledged=False)
    assert subscriber.ask_subscribe((case.topic("x"), 0)) == (0,)
    assert subscriber.ask_unsubscribe(case.topic("y")) == (R.NO_SUBSCRIPTION,)
    subscriber.send_message(case.topic("z"), b"1", qos=2)
    subscriber.nothing()
    publisher.send_message(case.topic(), b"last")
    subscriber.send(puback(first.packet_id))
    assert [subscriber.message().body for _ in range(6)] == [b"1", b"2", b"3", b"4", b"5", b"last"]


@shows("MQTT-4.9.0-1", "MQTT-4.4.0-1")
def test_the_receive_maximum_is_that_of_the_connection(case: Case) -> None:
    _, subscriber = flooded(case, 2, 1)
    first = [subscriber.message(acknowledged=False) for _ in range(2)]
    subscriber.nothing()
    subscriber.vanish()
    props = ((P.RECEIVE_MAX, 1), (P.SESSION_EXPIRY, 60))
    subscriber = case.connect("s", clean=False, present=True, props=props)
    again = subscriber.message(acknowledged=False)
    assert (again.packet_id, again.duplicate) == (first[0].packet_id, True)
    subscriber.nothing()
    subscriber.vanish()
    subscriber = case.connect("s", clean=False, present=True)
    assert [subscriber.message().body for _ in range(6)] == [b"%d" % k for k in range(6)]


@shows("MQTT-3.3.4-9", "MQTT-4.9.0-2")
def test_the_receive_maximum_counts_retained_messages(case: Case) -> None:
    publisher = case.connect("p")
    names = [case.topic(str(number)) for number in range(4)]
    for name in names:
        publisher.send_message(name, b"r", retain=True)
    subscriber = case.connect("s", props=[(P.RECEIVE_MAX, 2)])
    subscriber.follow((case.topic("+"), 1))
    found = [subscriber.message(acknowledged=False) for _ in range(2)]
    subscriber.nothing()
    for message in found:
        subscriber.send(puback(message.packet_id))
    found += [subscriber.message() for _ in range(2)]
    assert sorted(message.topic for message in found) == names
    for name in names:
        publisher.send_message(name, b"", retain=True)


# --- Maximum Packet Size -------------------------------------------------------------------------


@shows("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_too_large_counts_as_sent(case: Case, qos: int) -> None:
    """It does not come, it takes no room of the window, and what is behind it comes."""
    limit = 120
    subscriber = case.connect("s", props=[(P.PACKET_MAX, limit), (P.RECEIVE_MAX, 1)])
    subscriber.follow((case.topic(), qos))
    publisher = case.connect("p")
    for size in (1, 200, 2, 5000, 3):
        publisher.send_message(case.topic(), b"x" * size, qos=qos)
    for size in (1, 2, 3):
        message = subscriber.message()
        assert len(message.body) == size
        assert message.size <= limit
    subscriber.nothing()


@shows("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1])
def test_the_maximum_packet_size_is_exact(case: Case, qos: int) -> None:
    """With everything that the server adds, such as a subscription identifier."""
    publisher = case.connect("p")
    probe = case.connect("probe")
    probe.follow((case.topic(), qos), props=((P.SUBSCRIPTION_ID, 300),))
    publisher.send_message(case.topic(), b"x" * 100, qos=qos)
    size = probe.message().size
    subscriber = case.connect("s", props=[(P.PACKET_MAX, size)])
    subscriber.follow((case.topic(), qos), props=((P.SUBSCRIPTION_ID, 300),))
    for length in (100, 101, 99):
        publisher.send_message(case.topic(), b"x" * length, qos=qos)
    assert [len(subscriber.message().body) for _ in range(2)] == [100, 99]
    subscriber.nothing()


@shows("MQTT-3.1.2-24", "MQTT-3.1.2-25")
def test_the_maximum_packet_size_holds_for_what_waited(case: Case) -> None:
    """It is that of the connection on which the message would come."""
    stays = ((P.SESSION_EXPIRY, 60),)
    subscriber = case.connect("s", props=stays)
    subscriber.follow((case.topic(), 1))
    subscriber.leave()
    publisher = case.connect("p")
    for size in (300, 1, 300, 2):
        publisher.send_message(case.topic(), b"x" * size)
    subscriber = case.connect("s", clean=False, present=True, props=[*stays, (P.PACKET_MAX, 120)])
    assert [len(subscriber.message().body) for _ in range(2)] == [1, 2]
    subscriber.nothing()
    subscriber.leave()
    case.connect("s", clean=False, present=True, props=stays).nothing()


@shows("MQTT-3.1.2-25")
def test_the_maximum_packet_size_holds_for_retained_messages(case: Case) -> None:
    publisher = case.connect("p")
    publisher.send_message(case.topic("large"), b"x" * 300, retain=True)
    publisher.send_message(case.topic("small"), b"x", retain=True)
    subscriber = case.connect("s", props=[(P.PACKET_MAX, 120)])
    subscriber.follow((case.topic("+"), 1))
    assert subscriber.message().topic == case.topic("small")
    subscriber.nothing()
    for name in ("large", "small"):
        publisher.send_message(case.topic(name), b"", retain=True)
