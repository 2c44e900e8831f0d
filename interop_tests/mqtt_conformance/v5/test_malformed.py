"""Numbers, text, fixed headers, sizes and order of packets (parts 1.5, 2 and 4.13)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt5_wire import P, R
from interop_tests.mqtt_conformance.client import BROKEN, Case
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ, field, packet, remaining_length


@shows("MQTT-1.5.4-3", "MQTT-4.7.3-4")
def test_a_byte_order_mark_is_a_character(case: Case) -> None:
    """In names, filters and properties; the name without it is another one."""
    name = case.topic("\ufeffx\ufeff")
    publisher, subscriber = case.pair((name, 0), (case.topic("+", "\ufeff"), 0))
    props = ((P.CONTENT_TYPE, "\ufeff"), (P.USER, ("\ufeffk", "v\ufeff")))
    for topic in (name, case.topic("x"), case.topic("y", "\ufeff"), case.topic("y", "")):
        publisher.send_message(topic, topic.encode(), props=props)
    for topic in (name, case.topic("y", "\ufeff")):
        message = subscriber.message()
        assert (message.topic, message.body) == (topic, topic.encode())
        assert sorted(map(str, message.props)) == sorted(map(str, props))
    subscriber.nothing()


@shows("MQTT-1.5.4-1", "MQTT-4.7.3-4")
def test_all_of_unicode_comes_through(case: Case) -> None:
    text = "é ü ß 漢字 \U0001f600 \u0600 \ud7ff \ue000 \U0010fffd"
    publisher, subscriber = case.pair((case.topic(text), 0))
    publisher.send_message(case.topic(text), text.encode(), props=((P.USER, (text, text)),))
    message = subscriber.message()
    assert (message.topic, message.values(P.USER)) == (case.topic(text), [(text, text)])


LONG_NUMBERS = {
    "the size of PINGREQ": b"\xc0\x80\x00",
    "the length of properties": packet(0x30, field("conformance/x") + b"\x80\x00"),
    "the identifier of a property": packet(0x30, field("conformance/x") + b"\x03\x81\x00\x01"),
    "a subscription identifier": packet(0x82, b"\0\1\3\x0b\x81\0" + field("conformance/x") + b"\0"),
}


@shows("MQTT-1.5.5-1")
@pytest.mark.parametrize("what", LONG_NUMBERS)
def test_a_number_in_more_bytes_than_it_needs_closes(case: Case, what: str) -> None:
    client = case.connect()
    client.send(LONG_NUMBERS[what], PINGREQ)
    client.expect_error(*BROKEN)


@shows("MQTT-4.13.1-1", "MQTT-1.5.5-1")
def test_a_size_of_five_bytes_closes(case: Case) -> None:
    client = case.connect()
    client.send(b"\x30\x80\x80\x80\x80\x01")
    client.expect_error(R.MALFORMED, R.TOO_LARGE)


@shows("MQTT-2.2.2-1")
@pytest.mark.parametrize(
    "sent",
    [
        packet(0x30, field("conformance/x")),
        packet(0x32, field("conformance/x") + b"\0\1"),
        packet(0xE0, b"\0\1"),
    ],
    ids=["PUBLISH of QoS 0", "PUBLISH of QoS 1", "DISCONNECT"],
)
def test_a_length_of_properties_is_missed(case: Case, sent: bytes) -> None:
    client = case.connect()
    client.send(sent)
    client.expect_error(*BROKEN)


@shows("MQTT-2.1.3-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("first_byte", [0xC1, 0xC2, 0xC8])
def test_pingreq_with_flags_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte, 0]))
    client.expect_error(R.MALFORMED)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "sent",
    [
        packet(0x00, b""),
        packet(0x20, b"\0\0\0"),
        packet(0x90, b"\0\1\0\0"),
        packet(0xB0, b"\0\1\0\0"),
        packet(0xD0, b""),
    ],
    ids=["type 0", "CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"],
)
def test_what_only_servers_send_closes(case: Case, sent: bytes) -> None:
    client = case.connect()
    client.send(sent)
    client.expect_error(*BROKEN)


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "sent",
    [packet(0xC0, b"\0"), packet(0x40, b"\0"), packet(0x62, b"\1"), packet(0x30, b"\0\5ab")],
    ids=["PINGREQ with a byte", "PUBACK of one byte", "PUBREL of one byte", "half a topic"],
)
def test_a_packet_of_the_wrong_size_closes(case: Case, sent: bytes) -> None:
    client = case.connect()
    client.send(sent)
    client.expect_error(*BROKEN)


@shows("MQTT-3.2.2-15")
def test_a_packet_above_the_servers_maximum_closes(case: Case) -> None:
    """Its header is enough."""
    client = case.connect()
    largest = client.connack.number(P.PACKET_MAX, 0)
    if not largest:
        pytest.skip("the server takes packets of every size")
    client.send(b"\x30" + remaining_length(largest) + field(case.topic()))
    client.expect_error(R.TOO_LARGE)


@shows("MQTT-3.2.2-15", "MQTT-4.2-1")
def test_large_packets_are_taken(case: Case) -> None:
    """Sizes around those at which the length gets longer."""
    publisher, subscriber = case.pair((case.topic(), 1))
    largest = publisher.connack.number(P.PACKET_MAX, 268435460)
    for size in (0, 127, 128, 16383, 16384, 100_000):
        if size + 200 > largest:
            break
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        publisher.send_message(case.topic(), body)
        assert subscriber.message().body == body
