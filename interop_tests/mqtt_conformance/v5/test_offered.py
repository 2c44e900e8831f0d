"""What a server may lack or add, and how it says so (part 3.2.2.3). The server of these tests has
the settings of `conftest.MODEST`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, P, R, Will
from interop_tests.mqtt_conformance.client import Case, Client
from interop_tests.mqtt_conformance.conftest import Peer
from interop_tests.mqtt_conformance.statements_5 import shows

NO_TEXT = b"\xff"


@pytest.fixture
def case(modest_peer: Peer) -> Iterator[Case]:
    """Names and connections of one test."""
    with Case(modest_peer.port) as found:
        yield found


def reason_string(packet: wire.Packet) -> str:
    (found,) = packet.values(P.REASON)
    return str(found)


@shows("MQTT-3.2.2-9")
def test_connack_says_what_there_is(case: Case) -> None:
    connack = case.connect().connack
    assert connack.number(P.QOS_MAX, 2) == 1
    for lacking in (P.RETAIN_AVAILABLE, P.WILDCARDS, P.SUBSCRIPTION_IDS):
        assert connack.number(lacking, 1) == 0


@shows("MQTT-3.2.2-10")
def test_subscriptions_are_granted_the_maximum_qos(case: Case) -> None:
    client = case.connect()
    assert client.ask_subscribe((case.topic(), 2), (case.topic("b"), 0)) == (1, 0)
    client.send_message(case.topic(), b"x", qos=1)
    assert client.message().qos == 1


@shows("MQTT-3.2.2-11")
def test_a_higher_qos_closes(case: Case) -> None:
    client = case.connect()
    client.send(wire.publish(case.topic(), b"x", qos=2, packet_id=1))
    assert "Maximum QoS" in reason_string(client.expect_error(R.QOS))


@shows("MQTT-3.2.2-14")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(wire.publish(case.topic(), b"x", qos=qos, packet_id=1, retain=True))
    assert "not retained" in reason_string(client.expect_error(R.RETAIN))


@shows("MQTT-3.2.2-12")
def test_a_will_of_a_higher_qos_is_rejected(case: Case) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), will=Will(topic=case.topic(), qos=2)))
    client.expect_refused(R.QOS)


@shows("MQTT-3.2.2-13")
def test_a_retained_will_is_rejected(case: Case) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), will=Will(topic=case.topic(), retain=True)))
    client.expect_refused(R.RETAIN)


@shows("MQTT-3.2.2-7")
def test_a_will_that_is_no_text_is_rejected(case: Case) -> None:
    """Part 3.1.3.2.3."""
    client = case.open()
    will = Will(topic=case.topic(), body=NO_TEXT, props=[(P.PAYLOAD_FORMAT, 1)])
    client.send(wire.connect(case.client_id(), will=will))
    client.expect_refused(R.PAYLOAD_FORMAT)


@shows("MQTT-4.13.1-1")
def test_a_wildcard_closes(case: Case) -> None:
    """Part 3.2.2.3.11."""
    client = case.connect()
    client.send(wire.subscribe(1, (case.topic("+"), 0)))
    assert "wildcard" in reason_string(client.expect_error(R.WILDCARDS))


@shows("MQTT-4.13.1-1")
def test_a_subscription_identifier_closes(case: Case) -> None:
    """Part 3.2.2.3.12."""
    client = case.connect()
    client.send(wire.subscribe(1, (case.topic(), 0), props=[(P.SUBSCRIPTION_ID, 1)]))
    client.expect_error(R.SUBSCRIPTION_IDS)


@shows("MQTT-3.3.2-4")
def test_a_payload_that_is_no_text_is_refused(case: Case) -> None:
    client = case.connect()
    client.follow((case.topic(), 1))
    text = [(P.PAYLOAD_FORMAT, 1)]
    for number, body in enumerate((NO_TEXT, "é".encode()), 1):
        client.send(wire.publish(case.topic(), body, qos=1, packet_id=number, props=text))
    answers = [client.read_kind(Kind.PUBACK) for _ in range(2)]
    assert [answer.reason for answer in answers] == [R.PAYLOAD_FORMAT, 0]
    assert "UTF-8" in reason_string(answers[0])
    assert client.message().body == "é".encode()
    client.nothing()


@shows("MQTT-3.1.2-28")
def test_response_information_on_request(case: Case) -> None:
    connack = case.connect(props=[(P.REQUEST_RESPONSE, 1)]).connack
    assert connack.values(P.RESPONSE_INFORMATION) == [f"answers/{case.client_id()}/"]
    assert not case.connect("b").connack.values(P.RESPONSE_INFORMATION)


# --- keep alive ----------------------------------------------------------------------------------


def seconds_until_closed(client: Client) -> float:
    begin = time.monotonic()
    assert client.read().reason == R.KEEP_ALIVE
    client.expect_closed()
    return time.monotonic() - begin


@shows("MQTT-3.1.2-21", "MQTT-3.2.2-21")
@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 600])
def test_the_servers_keep_alive_holds(case: Case, asked: int) -> None:
    client = case.connect(keep_alive=asked)
    assert client.connack.number(P.SERVER_KEEP_ALIVE, 0) == 1
    assert 1 < seconds_until_closed(client) < 6


@shows("MQTT-3.2.2-22")
def test_a_shorter_keep_alive_is_the_clients(case: Case) -> None:
    assert not case.connect(keep_alive=1).connack.values(P.SERVER_KEEP_ALIVE)
