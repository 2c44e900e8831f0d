"""Wills (parts 3.1.2.5 to 3.1.2.7 and 3.1.3.2)."""

from __future__ import annotations

import time

import pytest

from interop_tests.mqtt5_wire import P, Property, Will
from interop_tests.mqtt_conformance.client import Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import packet

STAYS = ((P.SESSION_EXPIRY, 60),)


def watcher_of(case: Case) -> Client:
    """Who sees all that is published below the test's topic."""
    client = case.connect("w")
    client.follow((case.topic("#"), 2))
    return client


def will_of(case: Case, *, delay: int = 0, **options: object) -> Will:
    props: tuple[Property, ...] = ((P.WILL_DELAY, delay),) if delay else ()
    return Will(topic=case.topic("will"), body=b"gone", props=props, **options)  # type: ignore[arg-type]


@shows("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.1.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_once(case: Case, qos: int) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case, qos=qos), props=STAYS).vanish()
    message = watcher.message()
    assert (message.topic, message.body, message.qos) == (case.topic("will"), b"gone", qos)
    assert not message.retain
    case.connect(clean=False, present=True).vanish()  # without a will
    watcher.nothing()


@shows("MQTT-3.1.2-8", "MQTT-3.1.2-7")
def test_a_will_is_published_when_a_client_closes_without_disconnect(case: Case) -> None:
    watcher = watcher_of(case)
    client = case.connect(will=will_of(case))
    client.socket.close()
    assert watcher.message().body == b"gone"


@shows("MQTT-3.1.2-8")
def test_a_will_is_published_when_the_server_closes(case: Case) -> None:
    watcher = watcher_of(case)
    client = case.connect(will=will_of(case))
    client.send(packet(0x82, b""))
    client.expect_error(0x81, 0x82)
    assert watcher.message().body == b"gone"


@shows("MQTT-3.1.2-14", "MQTT-3.1.2-15")
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_or_not(case: Case, retain: bool) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case, retain=retain)).vanish()
    assert not watcher.message().retain
    late = case.connect("late")
    late.follow((case.topic("will"), 0))
    if retain:
        assert late.message().retain
        late.send_message(case.topic("will"), b"", retain=True)
        assert late.message().body == b""
    late.nothing()


@shows("MQTT-3.1.3-10", "MQTT-3.3.2-17", "MQTT-3.3.2-18")
def test_the_properties_of_a_will(case: Case) -> None:
    watcher = watcher_of(case)
    props: tuple[Property, ...] = (
        (P.USER, ("b", "1")),
        (P.PAYLOAD_FORMAT, 1),
        (P.CONTENT_TYPE, "text/plain"),
        (P.USER, ("a", "2")),
        (P.RESPONSE_TOPIC, "conformance/answers"),
        (P.CORRELATION_DATA, b"\0\xff"),
        (P.USER, ("b", "0")),
        (P.MESSAGE_EXPIRY, 100),
    )
    will = Will(topic=case.topic("will"), body=b"gone", qos=1, props=props)
    case.connect(will=will).vanish()
    message = watcher.message()
    assert message.values(P.USER) == [("b", "1"), ("a", "2"), ("b", "0")]
    assert 98 <= message.number(P.MESSAGE_EXPIRY, 0) <= 100
    others = [one for one in message.props if one[0] != P.MESSAGE_EXPIRY]
    assert sorted(map(str, others)) == sorted(map(str, props[:-1]))


@shows("MQTT-3.1.2-8", "MQTT-3.1.2-7")
def test_a_will_waits_for_its_delay(case: Case) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case, delay=1), props=STAYS).vanish()
    began = time.monotonic()
    watcher.silent(0.7)
    message = watcher.message()
    assert message.body == b"gone"
    assert not message.props  # Will Delay Interval is none of a message
    assert 0.9 < time.monotonic() - began < 5.0


@shows("MQTT-3.1.2-8")
@pytest.mark.parametrize("expiry", [0, 1])
def test_the_end_of_the_session_comes_before_the_delay(case: Case, expiry: int) -> None:
    watcher = watcher_of(case)
    props = ((P.SESSION_EXPIRY, expiry),)
    case.connect(will=will_of(case, delay=600), props=props).vanish()
    began = time.monotonic()
    if expiry:
        watcher.silent(0.7)
    assert watcher.message().body == b"gone"
    assert time.monotonic() - began < expiry + 3.0


@shows("MQTT-3.1.3-9", "MQTT-3.1.2-8")
def test_a_new_connection_within_the_delay_prevents_the_will(case: Case) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case, delay=1), props=STAYS).vanish()
    client = case.connect(clean=False, present=True, props=STAYS)
    watcher.silent(1.5)
    client.vanish()
    watcher.nothing()


@shows("MQTT-3.1.3-9", "MQTT-3.1.2-8")
def test_a_takeover_within_the_delay_prevents_the_will(case: Case) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case, delay=1), props=STAYS)
    case.connect(clean=False, present=True, props=STAYS)
    watcher.silent(1.5)


@shows("MQTT-3.1.2-8", "MQTT-3.1.4-3")
def test_a_takeover_publishes_a_will_without_delay(case: Case) -> None:
    watcher = watcher_of(case)
    case.connect(will=will_of(case), props=STAYS)
    case.connect(clean=False, present=True, props=STAYS)
    assert watcher.message().body == b"gone"


@shows("MQTT-3.1.2-8", "MQTT-3.1.2-4")
@pytest.mark.parametrize("connected", [False, True])
def test_clean_start_ends_the_session_and_publishes_its_will(case: Case, connected: bool) -> None:
    watcher = watcher_of(case)
    client = case.connect(will=will_of(case, delay=600), props=STAYS)
    if not connected:
        client.vanish()
    case.connect(clean=True)
    assert watcher.message().body == b"gone"


@shows("MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3")
def test_a_client_without_a_will_leaves_none(case: Case) -> None:
    watcher = watcher_of(case)
    case.connect().vanish()
    case.connect(will=will_of(case), props=STAYS).leave()
    case.connect(clean=False, present=True).vanish()
    watcher.nothing()
