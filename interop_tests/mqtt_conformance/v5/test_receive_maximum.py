"""The server's Receive Maximum (parts 3.2.2.3.3, 3.3.4 and 4.9): how many publishes of QoS 1 and 2
a client may leave open. The server of these tests takes few (`conftest.narrow_peer`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop_tests.mqtt5_wire import Kind, P, R, publish, pubrel
from interop_tests.mqtt_conformance.client import Case, Client
from interop_tests.mqtt_conformance.conftest import Peer
from interop_tests.mqtt_conformance.statements_5 import shows


@pytest.fixture
def case(narrow_peer: Peer) -> Iterator[Case]:
    """Names and connections of one test."""
    with Case(narrow_peer.port) as found:
        yield found


def maximum_of(client: Client) -> int:
    maximum = client.connack.number(P.RECEIVE_MAX, 65535)
    if maximum > 5000:
        pytest.skip(f"the server takes {maximum} publishes at once")
    return maximum


def leave_open(case: Case, client: Client, first_id: int, count: int) -> None:
    """Publish with QoS 2, and do not release."""
    for packet_id in range(first_id, first_id + count):
        client.send(publish(case.topic(), b"x", qos=2, packet_id=packet_id))
    for packet_id in range(first_id, first_id + count):
        found = client.read()
        assert (found.kind, found.packet_id) == (Kind.PUBREC, packet_id)


@shows("MQTT-3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_more_than_the_servers_receive_maximum_closes(case: Case, qos: int) -> None:
    """Publishes of QoS 2 whose PUBREL does not come, and one more than there may be."""
    client = case.connect()
    maximum = maximum_of(client)
    leave_open(case, client, 1, maximum)
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=maximum + 1))
    client.expect_error(R.RECEIVE_MAX)


@shows("MQTT-3.3.4-7")
def test_a_read_with_more_than_the_receive_maximum_closes(case: Case) -> None:
    """None of them can be acknowledged yet."""
    client = case.connect()
    count = maximum_of(client) + 1
    client.send(b"".join(publish(case.topic(), b"x", qos=1, packet_id=n + 1) for n in range(count)))
    client.expect_error(R.RECEIVE_MAX)


@shows("MQTT-3.3.4-7", "MQTT-4.9.0-3")
def test_at_the_servers_receive_maximum_everything_else_goes_on(case: Case) -> None:
    client = case.connect()
    maximum = maximum_of(client)
    leave_open(case, client, 1, maximum)
    client.send(publish(case.topic(), b"x"))
    client.nothing()
    client.send(pubrel(1))
    assert client.read().kind == Kind.PUBCOMP
    client.send(publish(case.topic(), b"x", qos=1, packet_id=maximum + 1))
    assert client.read().kind == Kind.PUBACK


@shows("MQTT-4.9.0-2")
def test_each_acknowledgement_makes_room(case: Case) -> None:
    """Whole windows, again and again, with one topic and with several."""
    client = case.connect()
    maximum = maximum_of(client)
    for number in range(30):
        topics = [case.topic(str(index % (1 + number % 3))) for index in range(maximum)]
        client.send(
            b"".join(
                publish(topic, b"x", qos=1, packet_id=index + 1)
                for index, topic in enumerate(topics)
            )
        )
        acked = [client.read() for _ in range(maximum)]
        assert [(found.kind, found.packet_id) for found in acked] == [
            (Kind.PUBACK, index + 1) for index in range(maximum)
        ]


@shows("MQTT-4.9.0-2")
def test_a_publish_that_comes_twice_counts_once(case: Case) -> None:
    """DUP: the client did not see the PUBREC."""
    client = case.connect()
    maximum = maximum_of(client)
    leave_open(case, client, 1, maximum)
    client.send(publish(case.topic(), b"x", qos=2, packet_id=maximum, duplicate=True))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.PUBREC, maximum)


@shows("MQTT-4.9.0-2")
def test_a_refused_publish_makes_room(case: Case) -> None:
    """Nothing may be published to the server's own topics: its PUBREC is the last answer."""
    client = case.connect()
    maximum = maximum_of(client)
    for packet_id in range(1, 2 * maximum + 1):
        client.send(publish("$SYS/x", b"x", qos=2, packet_id=packet_id))
        assert client.read().reason == R.NOT_AUTHORIZED
    leave_open(case, client, 1, maximum)


@shows("MQTT-4.9.0-1")
def test_a_new_connection_begins_with_the_whole_quota(case: Case) -> None:
    """What the session left open does not count."""
    props = ((P.SESSION_EXPIRY, 60),)
    client = case.connect("a", props=props)
    maximum = maximum_of(client)
    leave_open(case, client, 1, maximum)
    client.leave(R.UNSPECIFIED)
    again = case.connect("a", clean=False, present=True, props=props)
    leave_open(case, again, maximum + 1, maximum)
