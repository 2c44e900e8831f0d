"""SUBSCRIBE and SUBACK (parts 3.8 and 3.9)."""

from __future__ import annotations

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import NO_LOCAL, Kind, P, Property, R, subscribe
from interop_tests.mqtt_conformance.client import BROKEN, Case
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import packet


@shows("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-2.2.1-6")
@pytest.mark.parametrize("packet_id", [1, 65535])
def test_suback_answers(case: Case, packet_id: int) -> None:
    client = case.connect()
    client.send(subscribe(packet_id, (case.topic(), 0)))
    found = client.read()
    assert (found.kind, found.packet_id, found.reasons) == (Kind.SUBACK, packet_id, (0,))


@shows("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
def test_several_filters_get_a_code_each_in_order(case: Case) -> None:
    client = case.connect()
    qualities = (2, 0, 1, 1, 2)
    filters = [(case.topic(str(number)), qos) for number, qos in enumerate(qualities)]
    assert client.ask_subscribe(*filters) == qualities
    for topic, qos in filters:
        client.send_message(topic, topic.encode(), qos=2)
        message = client.message()
        assert (message.body, message.qos) == (topic.encode(), qos)
    client.nothing()


@shows("MQTT-3.8.4-5")
def test_the_same_filter_twice_in_one_packet(case: Case) -> None:
    """As two packets, of which the second replaces the subscription."""
    client = case.connect()
    assert client.ask_subscribe((case.topic(), 2), (case.topic(), 0)) == (2, 0)
    client.send_message(case.topic(), b"x", qos=2)
    assert client.message().qos == 0
    client.nothing()


@shows("MQTT-3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_the_lower_quality_counts(case: Case, sent: int, granted: int) -> None:
    publisher, subscriber = case.pair((case.topic(), granted))
    publisher.send_message(case.topic(), b"x", qos=sent)
    assert subscriber.message().qos == min(sent, granted)
    subscriber.nothing()


@shows("MQTT-3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(case: Case) -> None:
    """Its QoS, its options and its identifier, whatever they were."""
    publisher, subscriber = case.pair((case.topic(), 0))
    steps: list[tuple[int, int]] = [(2, 7), (1, 0), (2, 8), (0, 0)]
    for qos, identifier in steps:
        props = ((P.SUBSCRIPTION_ID, identifier),) if identifier else ()
        subscriber.follow((case.topic(), qos | wire.AS_PUBLISHED), props=props)
        publisher.send_message(case.topic(), b"x", qos=2)
        message = subscriber.message()
        assert message.qos == qos
        assert message.values(P.SUBSCRIPTION_ID) == ([identifier] if identifier else [])
        subscriber.nothing()


@shows("MQTT-3.8.4-4", "MQTT-3.8.4-3")
def test_replacing_a_subscription_loses_no_message(case: Case) -> None:
    """Subscribed again and again while messages come, and then once more with a retained one."""
    publisher, subscriber = case.pair((case.topic("#"), 1))
    for number in range(1, 101):
        publisher.send(
            wire.publish(case.topic("x"), b"%d" % number, qos=1, packet_id=number),
        )
        if number % 10 == 0:
            subscriber.send(subscribe(number, (case.topic("#"), 1)))
    found: list[int] = []
    answered = 0
    while len(found) < 100 or answered < 10:
        came = subscriber.read()
        if came.kind == Kind.SUBACK:
            answered += 1
            continue
        found.append(int(came.body))
        subscriber.acknowledge_one(came)
    assert found == list(range(1, 101))
    other = case.connect("q")
    other.send_message(case.topic("kept"), b"r", retain=True)
    assert subscriber.message().retain is False
    subscriber.follow((case.topic("#"), 1))
    message = subscriber.message()
    assert (message.body, message.retain) == (b"r", True)
    subscriber.nothing()
    other.send_message(case.topic("kept"), b"", retain=True)


@shows("MQTT-3.8.3-3")
def test_no_local(case: Case) -> None:
    """Nothing of the client's own, by any QoS; what others publish comes."""
    client = case.connect()
    client.follow((case.topic("#"), 2 | NO_LOCAL), (case.topic("own"), 0))
    other = case.connect("other")
    for qos in (0, 1, 2):
        client.send_message(case.topic("x"), b"mine", qos=qos)
        client.nothing()
        other.send_message(case.topic("x"), b"another's", qos=qos)
        assert client.message().body == b"another's"
        client.nothing()
    client.send_message(case.topic("own"), b"mine")
    message = client.message()
    assert (message.body, message.qos) == (b"mine", 0)
    client.nothing()


@shows("MQTT-3.8.3-3")
def test_no_local_holds_for_the_session(case: Case) -> None:
    """Also for what the client published on a former connection, and for its will."""
    watching = ((P.SESSION_EXPIRY, 60),)
    will = wire.Will(topic=case.topic("will"), body=b"mine", qos=1)
    client = case.connect(props=watching, will=will)
    client.follow((case.topic("#"), 1 | NO_LOCAL))
    client.send_message(case.topic("x"), b"mine")
    client.vanish()
    watcher = case.connect("w")
    watcher.follow((case.topic("#"), 0))
    watcher.send_message(case.topic("x"), b"another's")
    again = case.connect(clean=False, present=True, props=watching)
    assert again.message().body == b"another's"
    again.nothing()


@pytest.mark.usefixtures("shared_subscriptions")
@shows("MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_closes(case: Case) -> None:
    client = case.connect()
    client.send(subscribe(1, (f"$share/g/{case.topic()}", 1 | NO_LOCAL)))
    client.expect_error(R.PROTOCOL_ERROR)


@shows("MQTT-3.3.4-5", "MQTT-3.3.4-3")
@pytest.mark.parametrize("identifier", [1, 127, 128, 268435455])
def test_a_subscription_identifier_comes_with_messages(case: Case, identifier: int) -> None:
    client = case.connect()
    client.follow((case.topic("+"), 1), props=((P.SUBSCRIPTION_ID, identifier),))
    for qos in (0, 1):
        client.send_message(case.topic("x"), b"x", qos=qos, props=((P.USER, ("k", "v")),))
        message = client.message()
        assert message.values(P.SUBSCRIPTION_ID) == [identifier]
        assert message.values(P.USER) == [("k", "v")]


@shows("MQTT-3.3.4-5", "MQTT-3.1.2-5")
def test_a_subscription_identifier_belongs_to_the_session(case: Case) -> None:
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    client.follow((case.topic(), 1), props=((P.SUBSCRIPTION_ID, 9),))
    client.leave()
    case.connect("p").send_message(case.topic(), b"x")
    again = case.connect(clean=False, present=True)
    assert again.message().values(P.SUBSCRIPTION_ID) == [9]


# --- what closes ---------------------------------------------------------------------------------


@shows("MQTT-3.8.1-1", "MQTT-2.1.3-1")
@pytest.mark.parametrize("first_byte", [0x80, 0x81, 0x83, 0x8A])
def test_other_flags_close(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(subscribe(1, (case.topic(), 0), first_byte=first_byte))
    client.expect_error(R.MALFORMED)


@shows("MQTT-3.8.3-5")
@pytest.mark.parametrize("bits", [0x40, 0x80, 0xC0])
def test_reserved_options_close(case: Case, bits: int) -> None:
    client = case.connect()
    client.send(subscribe(1, (case.topic(), bits)))
    client.expect_error(R.MALFORMED)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize("options", [3, 0x30])
def test_quality_3_and_retain_handling_3_close(case: Case, options: int) -> None:
    client = case.connect()
    client.send(subscribe(1, (case.topic(), options)))
    client.expect_error(*BROKEN)


@shows("MQTT-3.8.3-2")
def test_no_filter_closes(case: Case) -> None:
    client = case.connect()
    client.send(subscribe(1))
    client.expect_error(*BROKEN)


@shows("MQTT-3.8.3-1", "MQTT-1.5.4-1", "MQTT-4.7.3-2")
@pytest.mark.parametrize("pattern", [b"\xc0\x80", b"\xed\xbf\xbf", b"a/\0", b"\xff/#"])
def test_a_filter_that_is_no_text_closes(case: Case, pattern: bytes) -> None:
    client = case.connect()
    client.send(subscribe(1, (pattern, 0)))
    client.expect_error(R.FILTER, *BROKEN)


WRONG: dict[str, list[Property] | bytes] = {
    "subscription identifier 0": [(P.SUBSCRIPTION_ID, 0)],
    "subscription identifier twice": [(P.SUBSCRIPTION_ID, 1), (P.SUBSCRIPTION_ID, 2)],
    "subscription identifier of five bytes": b"\x06\x0b\xff\xff\xff\xff\x01",
    "a property of PUBLISH": [(P.CONTENT_TYPE, "x")],
    "an unknown property": b"\x02\x7f\x00",
    "longer than the packet": b"\x7f",
}


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize("what", WRONG)
def test_wrong_properties_close(case: Case, what: str) -> None:
    client = case.connect()
    client.send(subscribe(1, (case.topic(), 0), props=WRONG[what]))
    client.expect_error(*BROKEN)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0\1",
        b"\0\0\0\0\1a\0",
        b"\0\1\0\0\1a",
        b"\0\1\0\0\5a\0",
    ],
    ids=["nothing", "half an id", "no properties", "id 0", "no options", "a filter cut off"],
)
def test_a_packet_that_is_cut_off_closes(case: Case, content: bytes) -> None:
    client = case.connect()
    client.send(packet(0x82, content))
    client.expect_error(*BROKEN)


@shows("MQTT-3.9.2-2", "MQTT-3.8.4-1")
def test_user_properties_are_legal(case: Case) -> None:
    client = case.connect()
    client.follow((case.topic(), 0), props=((P.USER, ("k", "v")), (P.USER, ("k", "w"))))
