"""Topic names and filters (part 4.7)."""

from __future__ import annotations

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, R
from interop_tests.mqtt_conformance.client import BROKEN, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ

NAMES = ("", "a", "A", "a/", "/a", "a/b", "a/b/c", "a//c", "a b", "a.b", "ä", "a\u0308", "%61")
"""Below the topic of the test, whose last level is followed by `/`."""
MATCHES = {
    "a": {"a"},
    "A": {"A"},
    "+": {"", "a", "A", "a b", "a.b", "ä", "a\u0308", "%61"},
    "#": set(NAMES),
    "a/+": {"a/", "a/b"},
    "a/#": {"a", "a/", "a/b", "a/b/c", "a//c"},
    "a/b/#": {"a/b", "a/b/c"},
    "a/+/c": {"a/b/c", "a//c"},
    "+/+": {"a/", "/a", "a/b"},
    "+/#": set(NAMES),
    "+/b/+": {"a/b/c"},
    "/+": {"/a"},
    "/#": {"", "/a"},
    "a//+": {"a//c"},
    "": {""},
    "ä": {"ä"},
    "a.b": {"a.b"},
}
"""Which of them a filter below that topic matches."""


@shows("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-4", "MQTT-3.3.2-3")
@pytest.mark.parametrize("pattern", MATCHES)
def test_filters_match_as_they_are_written(case: Case, pattern: str) -> None:
    publisher, subscriber = case.pair((case.topic(pattern), 0))
    for name in NAMES:
        publisher.send(wire.publish(case.topic(name), name.encode()))
    publisher.nothing()
    found = set()
    for _ in MATCHES[pattern]:
        message = subscriber.message()
        assert message.topic == case.topic(message.body.decode())
        found.add(message.body.decode())
    assert found == MATCHES[pattern]
    subscriber.nothing()


@shows("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1")
def test_the_shortest_names_and_filters(case: Case) -> None:
    client = case.connect()
    client.follow(("/", 0), ("+/+", 0))
    body = case.name.encode()
    client.send_message("/", body, qos=0)
    found = [client.message()]
    client.send(PINGREQ)
    while (came := client.read()).kind == Kind.PUBLISH:
        found.append(came)
    assert [one.topic for one in found if one.body == body] == ["/"] * len(found)
    for name in ("#", "+", "/#", "+/#", "/+"):
        assert client.ask_subscribe((name, 0)) == (0,)
        assert client.ask_unsubscribe(name) == (0,)


@shows("MQTT-4.7.1-2")
def test_many_levels(case: Case) -> None:
    levels = [str(number) for number in range(60)]
    publisher, subscriber = case.pair((case.topic(*["+"] * 60), 0))
    publisher.send_message(case.topic(*levels), b"deep")
    assert subscriber.message().topic == case.topic(*levels)


def refuses(client: Client, pattern: str) -> None:
    """SUBACK says no, or the connection is closed: the standard has no word on which."""
    client.send(wire.subscribe(1, (pattern, 0)))
    data = client.receive()
    if not data:
        return
    found = wire.decode(data)
    if found.kind == Kind.SUBACK:
        assert found.reasons == (R.FILTER,), f"SUBACK 0x{found.reason:02X}"
        client.nothing()
        return
    assert found.kind == Kind.DISCONNECT
    assert found.reason in (R.FILTER, *BROKEN)
    client.expect_closed()


@shows("MQTT-4.7.1-1", "MQTT-4.7.1-2")
@pytest.mark.parametrize("level", ["a#", "#/a", "#/", "##", "a+", "+a", "++", "+#", "a/#/b"])
def test_wildcards_within_a_level_are_refused(case: Case, level: str) -> None:
    refuses(case.connect(), case.topic(level))


@shows("MQTT-4.7.3-1")
def test_an_empty_filter_is_refused(case: Case) -> None:
    refuses(case.connect(), "")


@shows("MQTT-4.7.3-1", "MQTT-4.7.3-2")
@pytest.mark.parametrize("name", ["", "a\0", "\0"])
def test_an_empty_name_and_one_with_a_null_close(case: Case, name: str) -> None:
    client = case.connect()
    client.send(wire.publish(name, b"x"))
    client.expect_error(R.TOPIC, *BROKEN)


@shows("MQTT-4.7.2-1")
def test_wildcards_at_the_beginning_match_no_dollar(case: Case) -> None:
    """Neither what the server publishes there nor what a client may; `$` elsewhere is a
    character."""
    watcher = case.connect("w")
    watcher.follow(("#", 0), ("+/#", 0), (f"+/{case.name}", 0))
    publisher = case.connect("p")
    publisher.send(wire.publish(f"$SYS/{case.name}", b"hidden"))
    publisher.send_message(case.topic("$x"), b"end")
    message = watcher.message()
    while case.name not in message.topic:
        assert not message.topic.startswith("$")
        message = watcher.message()
    assert (message.topic, message.body) == (case.topic("$x"), b"end")


@shows("MQTT-4.7.2-1")
def test_dollar_within_a_name_is_a_character(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic("+"), 0))
    publisher.send_message(case.topic("$x"), b"1")
    assert subscriber.message().topic == case.topic("$x")
