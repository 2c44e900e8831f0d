"""Sessions, and in which order messages come (parts 3.1.2.11, 4.1, 4.5 and 4.6)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt5_wire import Kind, P, puback, publish, pubrel
from interop_tests.mqtt_conformance.client import Case
from interop_tests.mqtt_conformance.statements_5 import shows

STAYS = ((P.SESSION_EXPIRY, 60),)


@shows("MQTT-4.1.0-2", "MQTT-3.2.2-3")
@pytest.mark.parametrize("props", [(), ((P.SESSION_EXPIRY, 0),)])
@pytest.mark.parametrize("clean", [False, True])
def test_without_expiry_a_session_ends_with_its_connection(
    case: Case, clean: bool, props: tuple[tuple[int, int], ...]
) -> None:
    client = case.connect(clean=clean, props=props)
    client.follow((case.topic(), 1))
    client.leave()
    case.connect("p").send_message(case.topic(), b"x")
    client = case.connect(clean=False, present=False)
    client.nothing()
    client.vanish()
    case.connect(clean=False, present=False)


@shows("MQTT-4.1.0-2", "MQTT-3.1.2-23")
def test_a_session_expires_and_not_before(case: Case) -> None:
    for suffix, seconds in (("short", 1), ("long", 60), ("ever", 4294967295)):
        client = case.connect(suffix, props=[(P.SESSION_EXPIRY, seconds)])
        client.follow((case.topic(), 1))
        client.leave()
    case.connect("p").silent(2.2)
    case.connect("short", clean=False, present=False)
    case.connect("long", clean=False, present=True)
    case.connect("ever", clean=False, present=True)
    for suffix in ("long", "ever"):
        case.connect(suffix).leave()


@shows("MQTT-4.1.0-1")
def test_a_session_does_not_expire_while_it_is_connected(case: Case) -> None:
    client = case.connect(props=[(P.SESSION_EXPIRY, 1)])
    client.follow((case.topic(), 1))
    client.silent(2.2)
    client.send_message(case.topic(), b"x")
    assert client.message().body == b"x"
    client.vanish()
    case.connect(clean=False, present=True)


@shows("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_each_connection_says_how_long_the_session_stays(case: Case) -> None:
    case.connect(props=STAYS).leave()
    case.connect(clean=False, present=True).leave()
    case.connect(clean=False, present=False)


@shows("MQTT-4.5.0-1", "MQTT-3.1.2-5")
def test_messages_wait_for_who_is_away(case: Case) -> None:
    """Those of QoS 1 and 2; a server may store those of QoS 0, too."""
    client = case.connect(props=STAYS)
    client.follow((case.topic("#"), 2))
    client.leave()
    publisher = case.connect("p")
    for qos in (1, 0, 2):
        publisher.send_message(case.topic(str(qos)), b"x", qos=qos)
    client = case.connect(clean=False, present=True)
    found = [client.message()]
    while found[-1].qos != 2:
        found.append(client.message())
    assert [one.qos for one in found if one.qos] == [1, 2]
    assert not any(one.duplicate or one.retain for one in found)
    client.nothing()


@shows("MQTT-4.5.0-1")
def test_each_matching_session_gets_the_message(case: Case) -> None:
    filters = (case.topic("x"), case.topic("+"), case.topic("#"), case.topic("y"))
    clients = []
    for number, pattern in enumerate(filters):
        client = case.connect(str(number))
        client.follow((pattern, number % 3))
        clients.append(client)
    case.connect("p").send_message(case.topic("x"), b"1", qos=2)
    for number, client in enumerate(clients[:3]):
        message = client.message()
        assert (message.body, message.qos) == (b"1", number)
    clients[3].nothing()


@shows("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_client_come_in_its_order(case: Case, qos: int) -> None:
    publisher, subscriber = case.pair((case.topic("#"), qos))
    subscriber_of_one = case.connect("one")
    subscriber_of_one.follow((case.topic("a"), qos))
    count = min(20, publisher.connack.number(P.RECEIVE_MAX, 65535))
    for number in range(1, count + 1):
        name = case.topic("ab"[number % 2])
        publisher.send(publish(name, b"%d" % number, qos=qos, packet_id=number))
    answers = {0: [], 1: [Kind.PUBACK], 2: [Kind.PUBREC, Kind.PUBCOMP]}[qos]
    for kind in answers:
        found = [publisher.read() for _ in range(count)]
        assert [(one.kind, one.packet_id) for one in found] == [
            (kind, number) for number in range(1, count + 1)
        ]
        if kind == Kind.PUBREC:
            publisher.send(*(pubrel(number) for number in range(1, count + 1)))
    all_bodies = [subscriber.message().body for _ in range(count)]
    for start in (0, 1):
        assert all_bodies[start::2] == [b"%d" % k for k in range(start + 1, count + 1, 2)]
    evens = range(2, count + 1, 2)
    assert [subscriber_of_one.message().body for _ in evens] == [b"%d" % k for k in evens]


@shows("MQTT-4.6.0-5", "MQTT-4.6.0-6", "MQTT-3.1.2-5")
def test_what_waited_comes_before_what_is_new(case: Case) -> None:
    client = case.connect(props=STAYS)
    client.follow((case.topic(), 1))
    client.leave()
    publisher = case.connect("p")
    for number in range(30):
        publisher.send_message(case.topic(), b"%d" % number)
    client = case.connect(clean=False, present=True)
    for number in range(30, 60):
        publisher.send_message(case.topic(), b"%d" % number)
    for number in range(60):
        message = client.message(acknowledged=False)
        assert message.body == b"%d" % number
        client.send(puback(message.packet_id))


@shows("MQTT-3.1.2-4", "MQTT-4.1.0-2")
def test_retained_messages_do_not_belong_to_a_session(case: Case) -> None:
    client = case.connect()
    client.send_message(case.topic(), b"stays", retain=True)
    client.leave()
    case.connect().leave()
    client = case.connect("other")
    client.follow((case.topic(), 0))
    assert client.message().body == b"stays"
    client.send_message(case.topic(), b"", retain=True)
