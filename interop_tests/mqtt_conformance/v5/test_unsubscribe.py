"""UNSUBSCRIBE and UNSUBACK (parts 3.10 and 3.11)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt5_wire import Kind, P, R, unsubscribe
from interop_tests.mqtt_conformance.client import BROKEN, Case
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ, packet


@shows("MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-2.2.1-6", "MQTT-3.11.3-2")
@pytest.mark.parametrize("packet_id", [1, 65535])
def test_unsuback_answers_also_where_nothing_is_deleted(case: Case, packet_id: int) -> None:
    client = case.connect()
    client.send(unsubscribe(packet_id, case.topic()))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.UNSUBACK, packet_id)
    assert found.reasons == (R.NO_SUBSCRIPTION,)


@shows("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2")
def test_only_equal_filters_are_deleted(case: Case) -> None:
    client = case.connect()
    left, right, wild = case.topic("a"), case.topic("b"), case.topic("+", "c")
    client.follow((left, 0), (right, 0), (wild, 0))
    none = (case.topic("A"), case.topic("+"), case.topic("#"), f"{left}/", case.topic("b", "c"))
    assert client.ask_unsubscribe(left, *none, wild, left) == (
        R.SUCCESS,
        *[R.NO_SUBSCRIPTION] * len(none),
        R.SUCCESS,
        R.NO_SUBSCRIPTION,
    )
    # A filter that differs in one letter's case is another one.
    upper = case.topic("Case")
    client.follow((upper, 0), (case.topic("case"), 0))
    assert client.ask_unsubscribe(upper) == (R.SUCCESS,)
    client.send_message(case.topic("case"), b"lower")
    assert client.message().body == b"lower"
    for topic in (left, case.topic("x", "c"), upper, right):
        client.send_message(topic, topic.encode())
    assert client.message().body == right.encode()
    client.nothing()


@shows("MQTT-3.10.4-2")
def test_another_subscription_goes_on(case: Case) -> None:
    client = case.connect()
    client.follow((case.topic("#"), 0), (case.topic("+"), 1))
    assert client.ask_unsubscribe(case.topic("+")) == (0,)
    client.send_message(case.topic("x"), b"1")
    assert client.message().qos == 0
    client.nothing()


@shows("MQTT-3.10.4-3")
def test_deliveries_that_have_begun_are_completed(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    publisher.send_message(case.topic(), b"1", qos=1)
    publisher.send_message(case.topic(), b"2", qos=2)
    first = subscriber.message(acknowledged=False)
    second = subscriber.message(acknowledged=False)
    assert subscriber.ask_unsubscribe(case.topic()) == (0,)
    subscriber.acknowledge_one(first)
    subscriber.acknowledge_one(second)
    publisher.send_message(case.topic(), b"3", qos=2)
    subscriber.nothing()


@shows("MQTT-3.10.4-3", "MQTT-4.4.0-1")
def test_deliveries_that_have_begun_are_completed_after_a_reconnection(case: Case) -> None:
    stays = ((P.SESSION_EXPIRY, 60),)
    subscriber = case.connect("s", props=stays)
    subscriber.follow((case.topic(), 2))
    case.connect("p").send_message(case.topic(), b"2", qos=2)
    first = subscriber.message(acknowledged=False)
    assert subscriber.ask_unsubscribe(case.topic()) == (0,)
    subscriber.vanish()
    again = case.connect("s", clean=False, present=True, props=stays).message()
    assert (again.packet_id, again.body, again.qos) == (first.packet_id, b"2", 2)


@shows("MQTT-3.10.1-1", "MQTT-2.1.3-1")
@pytest.mark.parametrize("first_byte", [0xA0, 0xA1, 0xA3, 0xAA])
def test_other_flags_close(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(unsubscribe(1, case.topic(), first_byte=first_byte))
    client.expect_error(R.MALFORMED)


@shows("MQTT-3.10.3-2")
def test_no_filter_closes(case: Case) -> None:
    client = case.connect()
    client.send(unsubscribe(1))
    client.expect_error(*BROKEN)


@shows("MQTT-3.10.3-1", "MQTT-1.5.4-1", "MQTT-4.7.3-2")
@pytest.mark.parametrize("pattern", [b"\xc0\x80", b"\xed\xbf\xbf", b"a/\0", b"\xff/#"])
def test_a_filter_that_is_no_text_closes(case: Case, pattern: bytes) -> None:
    client = case.connect()
    client.send(unsubscribe(1, pattern))
    client.expect_error(R.FILTER, *BROKEN)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "content",
    [b"", b"\0\1", b"\0\0\0\0\1a", b"\0\1\0\0\5a", b"\0\1\2\x0b\1\0\1a", b"\0\1\2\x7f\0\0\1a"],
    ids=["nothing", "no properties", "id 0", "cut off", "subscription id", "unknown property"],
)
def test_other_mistakes_close(case: Case, content: bytes) -> None:
    client = case.connect()
    client.send(packet(0xA2, content))
    client.expect_error(*BROKEN)


@shows("MQTT-3.11.2-2", "MQTT-3.10.4-4")
def test_user_properties_are_legal(case: Case) -> None:
    client = case.connect()
    client.send(unsubscribe(7, case.topic(), props=[(P.USER, ("k", "v"))]))
    assert client.read().reasons == (R.NO_SUBSCRIPTION,)
    client.send(PINGREQ)
    assert client.read().kind == Kind.PINGRESP
