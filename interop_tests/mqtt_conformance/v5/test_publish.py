"""PUBLISH: topics, properties, aliases, and what a subscriber gets of them (part 3.3)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt5_wire import (
    AS_PUBLISHED,
    NO_LOCAL,
    Kind,
    P,
    Property,
    R,
    Value,
    publish,
)
from interop_tests.mqtt_conformance.client import BROKEN, PEER, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import packet

BAD = b"\xc0\x80"
"""An overlong zero: no UTF-8."""
ALL: tuple[Property, ...] = (
    (P.PAYLOAD_FORMAT, 1),
    (P.CONTENT_TYPE, "text/plain; charset=utf-8 é"),
    (P.RESPONSE_TOPIC, "conformance/answers"),
    (P.CORRELATION_DATA, b"\0\xff request 7"),
    (P.USER, ("b", "1")),
    (P.USER, ("a", "2")),
    (P.USER, ("b", "")),
    (P.USER, ("", "1")),
)


# --- forwarded -----------------------------------------------------------------------------------


@shows("MQTT-3.3.2-3", "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17")
@shows("MQTT-3.3.2-18", "MQTT-3.3.2-20", "MQTT-3.3.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded_unaltered(case: Case, qos: int) -> None:
    publisher, subscriber = case.pair((case.topic("+"), 2))
    publisher.send_message(case.topic("x"), b"body", qos=qos, props=ALL)
    message = subscriber.message()
    assert (message.topic, message.body, message.qos) == (case.topic("x"), b"body", qos)
    assert [one for one in message.props if one[0] == P.USER] == [
        one for one in ALL if one[0] == P.USER
    ]
    assert sorted(map(str, message.props)) == sorted(map(str, ALL))


@shows("MQTT-3.3.2-4", "MQTT-3.3.2-17")
def test_each_subscriber_gets_all_properties(case: Case) -> None:
    """Those who are away, and those who come later to the retained message, too."""
    away = case.connect("away", props=[(P.SESSION_EXPIRY, 60)])
    away.follow((case.topic(), 1))
    away.leave()
    publisher, subscriber = case.pair((case.topic(), 0))
    publisher.send_message(case.topic(), b"body", retain=True, props=ALL)
    late = case.connect("late")
    late.follow((case.topic(), 0))
    away = case.connect("away", clean=False, present=True)
    for client in (subscriber, late, away):
        message = client.message()
        assert message.body == b"body"
        assert sorted(map(str, message.props)) == sorted(map(str, ALL))
    publisher.send_message(case.topic(), b"", retain=True)


@shows("MQTT-3.3.2-17", "MQTT-2.2.2-1")
def test_messages_without_properties_get_none(case: Case) -> None:
    """Also between others that have some."""
    publisher, subscriber = case.pair((case.topic(), 1))
    sent: list[tuple[Property, ...]] = [(), ALL, (), ((P.USER, ("k", "v")),), ()]
    for props in sent:
        publisher.send_message(case.topic(), b"x", props=props)
    for props in sent:
        assert sorted(map(str, subscriber.message().props)) == sorted(map(str, props))


@shows("MQTT-3.3.2-17", "MQTT-3.3.2-18")
def test_many_user_properties(case: Case) -> None:
    many = tuple((P.USER, (f"key {number % 7}", "v" * number)) for number in range(60))
    publisher, subscriber = case.pair((case.topic(), 1))
    publisher.send_message(case.topic(), b"x", props=many)
    assert subscriber.message().props == many


# --- what closes ---------------------------------------------------------------------------------


@shows("MQTT-3.3.2-2", "MQTT-4.7.0-1")
@pytest.mark.parametrize("level", ["+", "#", "a+b", "a#"])
def test_a_topic_name_with_wildcards_closes(case: Case, level: str) -> None:
    client = case.connect()
    client.send(publish(case.topic(level), b"x"))
    client.expect_error(R.TOPIC, *BROKEN)


@shows("MQTT-3.3.2-1", "MQTT-1.5.4-1", "MQTT-4.7.3-2")
@pytest.mark.parametrize("topic", [BAD, b"a/\xed\xa0\x80", b"a\0b", b"\xff"])
def test_a_topic_name_that_is_no_text_closes(case: Case, topic: bytes) -> None:
    client = case.connect()
    client.send(publish(topic, b"x"))
    client.expect_error(R.TOPIC, *BROKEN)


@shows("MQTT-3.3.1-4")
@pytest.mark.parametrize("first_byte", [0x36, 0x3E, 0x37])
def test_quality_3_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + publish(case.topic(), b"x", qos=1, packet_id=1)[1:])
    client.expect_error(R.MALFORMED)


@shows("MQTT-4.7.3-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("qos", [0, 1])
def test_no_topic_name_and_no_alias_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(publish("", b"x", qos=qos, packet_id=1))
    client.expect_error(R.PROTOCOL_ERROR)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_id_0_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=0))
    client.expect_error(*BROKEN)


@shows("MQTT-3.3.4-6")
def test_a_subscription_identifier_from_a_client_closes(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", props=[(P.SUBSCRIPTION_ID, 1)]))
    client.expect_error(*BROKEN)


@shows("MQTT-3.3.2-14", "MQTT-3.3.2-13")
@pytest.mark.parametrize("topic", ["a/#", "+/b", "+"])
def test_a_response_topic_with_wildcards_closes(case: Case, topic: str) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", props=[(P.RESPONSE_TOPIC, topic)]))
    client.expect_error(R.TOPIC, *BROKEN)


@shows("MQTT-3.3.2-13", "MQTT-3.3.2-19", "MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-1.5.7-1")
@pytest.mark.parametrize("text", [BAD, b"\xed\xa0\x80", b"a\0", b"\xf8"])
@pytest.mark.parametrize("identifier", [P.RESPONSE_TOPIC, P.CONTENT_TYPE, P.USER])
def test_a_property_that_is_no_text_closes(case: Case, identifier: P, text: bytes) -> None:
    values: list[Value] = [text]
    if identifier == P.USER:
        values = [(text, b"v"), (b"k", text)]
    for value in values:
        client = case.connect()
        client.send(publish(case.topic(), b"x", props=[(identifier, value)]))
        client.expect_error(R.TOPIC, *BROKEN)


WRONG: dict[str, list[Property] | bytes] = {
    "payload format 2": [(P.PAYLOAD_FORMAT, 2)],
    "payload format twice": [(P.PAYLOAD_FORMAT, 1), (P.PAYLOAD_FORMAT, 1)],
    "message expiry twice": [(P.MESSAGE_EXPIRY, 1), (P.MESSAGE_EXPIRY, 1)],
    "topic alias twice": [(P.ALIAS, 1), (P.ALIAS, 1)],
    "response topic twice": [(P.RESPONSE_TOPIC, "a"), (P.RESPONSE_TOPIC, "a")],
    "correlation data twice": [(P.CORRELATION_DATA, b"a"), (P.CORRELATION_DATA, b"a")],
    "content type twice": [(P.CONTENT_TYPE, "a"), (P.CONTENT_TYPE, "a")],
    "a property of CONNECT": [(P.SESSION_EXPIRY, 1)],
    "a reason string": [(P.REASON, "x")],
    "an unknown property": b"\x02\x7f\x00",
    "an integer that is cut off": b"\x02\x02\x00",
    "a text that is cut off": b"\x04\x03\x00\x09a",
    "longer than the packet": b"\x7f",
}


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_properties_close(case: Case, what: str, qos: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=1, props=WRONG[what]))
    client.expect_error(*BROKEN)


# --- topic aliases -------------------------------------------------------------------------------


def alias_max(client: Client) -> int:
    """The server's Topic Alias Maximum, where it has one."""
    found = client.connack.number(P.ALIAS_MAX, 0)
    if not found:
        pytest.skip("the server takes no topic aliases")
    return found


@shows("MQTT-3.3.2-12", "MQTT-3.1.2-27")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_alias_stands_for_its_topic(case: Case, qos: int) -> None:
    """1 and the highest; either can be given to another topic. The subscriber sees names."""
    publisher, subscriber = case.pair((case.topic("#"), 2))
    sent = []
    for number in {1, alias_max(publisher)}:
        alias = ((P.ALIAS, number),)
        for name in ("x", "y"):
            publisher.send_message(case.topic(name, str(number)), b"1", qos=qos, props=alias)
            publisher.send_message("", b"2", qos=qos, props=alias)
            publisher.send_message("", b"3", qos=qos, props=(*alias, (P.USER, ("k", "v"))))
            sent += [(case.topic(name, str(number)), body) for body in (b"1", b"2", b"3")]
    for topic, body in sent:
        message = subscriber.message()
        assert (message.topic, message.body) == (topic, body)
        assert not message.values(P.ALIAS)
        assert message.values(P.USER) == ([("k", "v")] if body == b"3" else [])


@shows("MQTT-3.1.2-26", "MQTT-3.3.2-11", "MQTT-3.3.2-7", "MQTT-3.3.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_server_gives_aliases(case: Case, qos: int) -> None:
    """As many as the client takes, and where it gives one, it says the name before. A new
    connection knows none of them, also where messages come again."""
    take = [(P.ALIAS_MAX, 2), (P.SESSION_EXPIRY, 60)]
    subscriber = case.connect("s", props=take)
    subscriber.follow((case.topic("#"), qos))
    publisher = case.connect("p")
    sent = [case.topic(name) for name in ("one", "two", "three")] * 3
    for reconnected in (False, True):
        if reconnected:
            subscriber.leave()
            subscriber = case.connect("s", props=take, clean=False, present=True)
        known: dict[Value, str] = {}
        for topic in sent:
            publisher.send_message(topic, b"x", qos=qos)
            found = subscriber.message()
            (alias,) = found.values(P.ALIAS) or (0,)
            assert alias in (0, 1, 2)
            if alias and found.topic:
                known[alias] = found.topic
            assert (known[alias] if alias else found.topic) == topic
        assert known or PEER != "polymq", "PolyMQ uses what the client offers"


@shows("MQTT-3.3.2-7")
def test_aliases_end_with_the_connection(case: Case) -> None:
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    alias_max(client)
    client.send_message(case.topic(), b"1", props=((P.ALIAS, 1),))
    client.leave()
    client = case.connect(clean=False, present=True)
    client.send(publish("", b"2", qos=1, packet_id=9, props=[(P.ALIAS, 1)]))
    client.expect_error(R.PROTOCOL_ERROR, R.ALIAS)


@shows("MQTT-3.3.2-7", "MQTT-4.13.1-1")
def test_an_alias_that_stands_for_nothing_closes(case: Case) -> None:
    client = case.connect()
    alias_max(client)
    client.send(publish("", b"2", props=[(P.ALIAS, 1)]))
    client.expect_error(R.PROTOCOL_ERROR)


@shows("MQTT-3.3.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_alias_0_closes(case: Case, qos: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=1, props=[(P.ALIAS, 0)]))
    client.expect_error(R.ALIAS)


@shows("MQTT-3.3.2-9", "MQTT-3.2.2-17", "MQTT-3.2.2-18")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_alias_above_the_maximum_closes(case: Case, qos: int) -> None:
    client = case.connect()
    above = client.connack.number(P.ALIAS_MAX, 0) + 1
    if above > 65535:
        pytest.skip("the server takes every alias")
    client.send(publish(case.topic(), b"x", qos=qos, packet_id=1, props=[(P.ALIAS, above)]))
    client.expect_error(R.ALIAS)


@shows("MQTT-3.1.2-26", "MQTT-3.3.2-11")
def test_the_servers_aliases_stay_within_the_clients_maximum(case: Case) -> None:
    """A server need not use any; those that it uses stand for the right topics. Those of the
    publisher are not its own: they go no further, also with properties that do."""
    subscriber = case.connect("s", props=[(P.ALIAS_MAX, 2)])
    subscriber.follow((case.topic("#"), 1))
    publisher = case.connect("p")
    names = [case.topic(name) for name in "abcabcaabb"]
    for number, name in enumerate(names):
        props = ((P.ALIAS, 3 + number), (P.USER, ("k", "v")))
        publisher.send_message(name, name.encode(), props=props)
    aliases: dict[int, str] = {}
    for name in names:
        message = subscriber.message()
        topic, alias = message.topic, message.number(P.ALIAS, 0)
        assert alias <= 2
        if alias and topic:
            aliases[alias] = topic
        assert (topic or aliases[alias]) == name
        assert message.body == name.encode()


# --- expiry --------------------------------------------------------------------------------------


@shows("MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_expiry_is_forwarded(case: Case, qos: int) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    publisher.send_message(case.topic(), b"x", qos=qos, props=((P.MESSAGE_EXPIRY, 100),))
    assert 98 <= subscriber.message().number(P.MESSAGE_EXPIRY, 0) <= 100


@shows("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_messages_expire_while_they_wait(case: Case) -> None:
    """Those that do not have waited for a second at least; so for retained ones."""
    away = case.connect("away", props=[(P.SESSION_EXPIRY, 60)])
    away.follow((case.topic("#"), 1))
    away.leave()
    publisher = case.connect("p")
    for name, seconds in (("short", 1), ("long", 100), ("last", 4294967295)):
        publisher.send_message(
            case.topic(name), name.encode(), retain=True, props=((P.MESSAGE_EXPIRY, seconds),)
        )
    publisher.silent(2.1)
    away = case.connect("away", clean=False, present=True)
    late = case.connect("late")
    late.follow((case.topic("#"), 1))
    for client in (away, late):
        found = {}
        for _ in range(2):
            message = client.message()
            found[message.body] = message.number(P.MESSAGE_EXPIRY, 0)
        assert sorted(found) == [b"last", b"long"]
        assert 90 <= found[b"long"] <= 98
        client.nothing()
    for name in ("short", "long", "last"):
        publisher.send_message(case.topic(name), b"", retain=True)


# --- overlapping subscriptions -------------------------------------------------------------------


STAYS: tuple[Property, ...] = ((P.SESSION_EXPIRY, 60),)


def follow_overlapping(case: Case, client: Client) -> None:
    """Three filters that match `x`, of QoS 0 to 2, two of them with identifiers."""
    filters = ((case.topic("#"), 0, 7), (case.topic("+"), 2, 268435455), (case.topic("x"), 1, 0))
    for pattern, qos, identifier in filters:
        props = ((P.SUBSCRIPTION_ID, identifier),) if identifier else ()
        client.follow((pattern, qos), props=props)


@shows("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4")
@pytest.mark.parametrize("props", [(), STAYS])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_overlapping_subscriptions(case: Case, qos: int, props: tuple[Property, ...]) -> None:
    """One copy, at the highest QoS, with all identifiers."""
    subscriber = case.connect("s", props=props)
    follow_overlapping(case, subscriber)
    case.connect("p").send_message(case.topic("x"), b"1", qos=qos)
    found = subscriber.message()
    assert (found.qos, found.values(P.SUBSCRIPTION_ID)) == (qos, [7, 268435455])
    subscriber.nothing()


@shows("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-4.5.0-1")
def test_overlapping_subscriptions_of_who_is_away(case: Case) -> None:
    """What waits in two queues comes once, in order."""
    subscriber = case.connect("s", props=STAYS)
    subscriber.follow((case.topic("#"), 1), props=((P.SUBSCRIPTION_ID, 2),))
    subscriber.follow((case.topic("+"), 2), props=((P.SUBSCRIPTION_ID, 1),))
    subscriber.leave()
    publisher = case.connect("p")
    for body, topic in ((b"1", "x"), (b"2", "x/y"), (b"3", "x")):
        publisher.send_message(case.topic(topic), body, qos=2)
    subscriber = case.connect("s", clean=False, present=True, props=STAYS)
    found = [subscriber.message() for _ in range(3)]
    assert [(one.body, one.qos, one.values(P.SUBSCRIPTION_ID)) for one in found] == [
        (b"1", 2, [1, 2]),
        (b"2", 1, [2]),
        (b"3", 2, [1, 2]),
    ]
    subscriber.nothing()


@shows("MQTT-3.3.4-3", "MQTT-3.3.4-4")
def test_what_is_sent_again_has_all_identifiers(case: Case) -> None:
    subscriber = case.connect("s", props=STAYS)
    follow_overlapping(case, subscriber)
    case.connect("p").send_message(case.topic("x"), b"1")
    first = subscriber.message(acknowledged=False)
    subscriber.vanish()
    subscriber = case.connect("s", clean=False, present=True, props=STAYS)
    again = subscriber.message()
    assert (again.duplicate, again.packet_id) == (True, first.packet_id)
    assert again.values(P.SUBSCRIPTION_ID) == [7, 268435455]
    subscriber.nothing()


@shows("MQTT-3.3.4-3", "MQTT-3.3.4-4")
def test_the_same_identifier_for_two_subscriptions(case: Case) -> None:
    """It is sent once; a server may repeat it."""
    subscriber = case.connect("s")
    subscriber.follow((case.topic("#"), 0), (case.topic("+"), 0), props=((P.SUBSCRIPTION_ID, 5),))
    case.connect("p").send_message(case.topic("x"), b"1")
    assert subscriber.message().values(P.SUBSCRIPTION_ID) == [5]
    subscriber.nothing()


@shows("MQTT-3.8.3-3", "MQTT-3.3.4-2", "MQTT-3.3.4-3")
@pytest.mark.parametrize("props", [(), STAYS])
def test_no_local_counts_for_each_overlapping_subscription(
    case: Case, props: tuple[Property, ...]
) -> None:
    """The client's own message comes by those without it, with what these ask for."""
    client = case.connect("s", props=props)
    no_local = case.topic("#"), 2 | NO_LOCAL | AS_PUBLISHED
    client.follow(no_local, props=((P.SUBSCRIPTION_ID, 1),))
    client.follow((case.topic("x"), 1), props=((P.SUBSCRIPTION_ID, 2),))
    client.send_message(case.topic("y"), b"own", qos=2)
    client.send_message(case.topic("x"), b"own", qos=2, retain=True)
    found = client.message()
    assert (found.qos, found.retain, found.values(P.SUBSCRIPTION_ID)) == (1, False, [2])
    client.nothing()
    other = case.connect("o")
    other.send_message(case.topic("x"), b"", qos=2, retain=True)
    found = client.message()
    assert (found.qos, found.retain, found.values(P.SUBSCRIPTION_ID)) == (2, True, [1, 2])
    client.nothing()


@shows("MQTT-3.3.4-5")
def test_a_shared_subscription_is_a_delivery_of_its_own(case: Case) -> None:
    """Beside the one copy for all others."""
    client = case.connect("s")
    client.follow((case.topic("#"), 1), props=((P.SUBSCRIPTION_ID, 1),))
    client.follow((case.topic("+"), 1), props=((P.SUBSCRIPTION_ID, 2),))
    client.follow((f"$share/g/{case.topic('#')}", 1), props=((P.SUBSCRIPTION_ID, 3),))
    case.connect("p").send_message(case.topic("x"), b"1")
    found = [client.message().values(P.SUBSCRIPTION_ID) for _ in range(2)]
    assert sorted(found) == [[1, 2], [3]]
    client.nothing()


@shows("MQTT-3.10.4-3", "MQTT-3.3.4-2")
def test_an_unsubscribe_takes_nothing_from_another_filter(case: Case) -> None:
    """Nor does it have anything sent twice."""
    client = case.connect("s", props=(*STAYS, (P.RECEIVE_MAX, 2)))
    client.follow((case.topic("#"), 2), (case.topic("+"), 2))
    publisher = case.connect("p")
    for number in range(6):
        publisher.send_message(case.topic("x"), b"%d" % number, qos=2)
    flying = [client.message(acknowledged=False) for _ in range(2)]
    assert client.ask_unsubscribe(case.topic("#")) == (0,)
    for one in flying:
        client.acknowledge_one(one)
    bodies = [one.body for one in flying] + [client.message().body for _ in range(4)]
    assert bodies == [b"%d" % number for number in range(6)]
    client.nothing()


@shows("MQTT-3.3.4-1", "MQTT-4.13.1-1")
def test_a_message_to_nobody_is_acknowledged(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic("nobody"), b"x", qos=1, packet_id=1))
    found = client.read()
    assert (found.kind, found.reason < 0x80) == (Kind.PUBACK, True)
    client.send(packet(0x30, b"\0"))
    client.expect_error(R.MALFORMED)
