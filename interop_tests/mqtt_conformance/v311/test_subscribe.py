"""SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, topics and text (parts 3.8 to 3.14, 4.7 and 6)."""

from __future__ import annotations

import pytest

from interop_tests.mqtt_conformance.client_311 import SUBACK, Case
from interop_tests.mqtt_conformance.conftest import Peer
from interop_tests.mqtt_conformance.statements_311 import shows
from interop_tests.mqtt_conformance.websocket import BINARY, TEXT, WebSocket
from interop_tests.mqtt_raw_client import Publish
from interop_tests.mqtt_wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    connack,
    connect,
    packet,
    publish,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)

BAD = [b"\xc0\x80", b"\xed\xbf\xbf", b"a/\0", b"\xff/#"]
"""No text."""
NAMES = ("", "a", "A", "a/", "/a", "a/b", "a/b/c", "a//c", "a b", "a.b", "ä", "a\u0308", "%61")
"""Below the topic of the test, whose last level is followed by `/`."""
MATCHES = {
    "a": {"a"},
    "A": {"A"},
    "+": {"", "a", "A", "a b", "a.b", "ä", "a\u0308", "%61"},
    "#": set(NAMES),
    "a/+": {"a/", "a/b"},
    "a/#": {"a", "a/", "a/b", "a/b/c", "a//c"},
    "a/+/c": {"a/b/c", "a//c"},
    "+/+": {"a/", "/a", "a/b"},
    "+/#": set(NAMES),
    "+/b/+": {"a/b/c"},
    "/#": {"", "/a"},
    "": {""},
    "ä": {"ä"},
    "a.b": {"a.b"},
}
"""Which of them a filter below that topic matches."""


# --- SUBSCRIBE -----------------------------------------------------------------------------------


@shows("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-2.3.1-7")
@pytest.mark.parametrize("number", [1, 65535])
def test_suback_answers(case: Case, number: int) -> None:
    client = case.connect()
    client.send(subscribe(number, (case.topic(), 0)))
    client.expect(suback(number, 0))


@shows("MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
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


@shows("MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_the_lower_quality_counts(case: Case, sent: int, granted: int) -> None:
    publisher, subscriber = case.pair((case.topic(), granted))
    publisher.send_message(case.topic(), b"x", qos=sent)
    assert subscriber.message().qos == min(sent, granted)
    subscriber.nothing()


@shows("MQTT-3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(case: Case) -> None:
    """With another QoS, and the retained message once more."""
    publisher, subscriber = case.pair((case.topic(), 0))
    publisher.send_message(case.topic(), b"r", qos=2, retain=True)
    assert not subscriber.message().retain
    for qos in (2, 1, 0):
        subscriber.follow((case.topic(), qos))
        message = subscriber.message()
        assert (message.body, message.retain, message.qos) == (b"r", True, qos)
        publisher.send_message(case.topic(), b"x", qos=2)
        message = subscriber.message()
        assert (message.body, message.qos) == (b"x", qos)
        subscriber.nothing()
    publisher.send_message(case.topic(), b"", retain=True)


@shows("MQTT-3.8.4-3")
def test_replacing_a_subscription_interrupts_nothing(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic("#"), 1))
    for number in range(1, 101):
        publisher.send(publish(case.topic("x"), b"%d" % number, qos=1, packet_id=number))
        if number % 10 == 0:
            subscriber.send(subscribe(number, (case.topic("#"), 1)))
    found: list[int] = []
    answered = 0
    while len(found) < 100 or answered < 10:
        came = subscriber.read()
        if came[0] == SUBACK:
            answered += 1
            continue
        message = Publish(came)
        found.append(int(message.body))
        subscriber.acknowledge_one(message)
    assert found == list(range(1, 101))


@shows("MQTT-3.8.1-1", "MQTT-2.2.2-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("first_byte", [0x80, 0x81, 0x83, 0x8A])
def test_subscribe_with_other_flags_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + subscribe(1, (case.topic(), 0))[1:])
    client.expect_closed()


@shows("MQTT-3-8.3-4")
@pytest.mark.parametrize("options", [3, 4, 0x10, 0x40, 0x80])
def test_reserved_bits_and_quality_3_close(case: Case, options: int) -> None:
    client = case.connect()
    client.send(subscribe(1, (case.topic(), options)))
    client.expect_closed()


@shows("MQTT-3.8.3-3", "MQTT-3.10.3-2", "MQTT-2.3.1-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "sent",
    [
        subscribe(1),
        unsubscribe(1),
        subscribe(0, ("conformance/x", 0)),
        unsubscribe(0, "conformance/x"),
        packet(0x82, b""),
        packet(0x82, b"\0\1\0\1a"),
        packet(0xA2, b"\0\1\0\5a"),
    ],
    ids=["none", "none either", "id 0", "id 0 either", "nothing", "no QoS", "cut off"],
)
def test_no_filter_and_no_packet_id_close(case: Case, sent: bytes) -> None:
    client = case.connect()
    client.send(sent)
    client.expect_closed()


@shows("MQTT-3.8.3-1", "MQTT-3.10.3-1", "MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-4.7.3-2")
@pytest.mark.parametrize("pattern", BAD)
def test_a_filter_that_is_no_text_closes(case: Case, pattern: bytes) -> None:
    for sent in (subscribe(1, (pattern, 0)), unsubscribe(1, pattern)):
        client = case.connect()
        client.send(sent)
        client.expect_closed()


# --- UNSUBSCRIBE, PINGREQ, DISCONNECT ------------------------------------------------------------


@shows("MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-2.3.1-7")
@pytest.mark.parametrize("number", [1, 65535])
def test_unsuback_answers_also_where_nothing_is_deleted(case: Case, number: int) -> None:
    client = case.connect()
    client.send(unsubscribe(number, case.topic()))
    client.expect(unsuback(number))


@shows("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-6")
def test_only_equal_filters_are_deleted(case: Case) -> None:
    client = case.connect()
    left, right, wild = case.topic("a"), case.topic("b"), case.topic("+", "c")
    client.follow((left, 0), (right, 0), (wild, 0))
    client.ask_unsubscribe(left, case.topic("B"), case.topic("+"), case.topic("#"), wild, left)
    for topic in (left, case.topic("x", "c"), right):
        client.send_message(topic, topic.encode())
    assert client.message().body == right.encode()
    client.nothing()


@shows("MQTT-3.10.4-3")
def test_deliveries_that_have_begun_are_completed(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    publisher.send_message(case.topic(), b"1", qos=1)
    publisher.send_message(case.topic(), b"2", qos=2)
    first = subscriber.message(acknowledged=False)
    second = subscriber.message(acknowledged=False)
    subscriber.ask_unsubscribe(case.topic())
    subscriber.acknowledge_one(first)
    subscriber.acknowledge_one(second)
    publisher.send_message(case.topic(), b"3", qos=2)
    subscriber.nothing()


@shows("MQTT-3.10.1-1", "MQTT-2.2.2-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("first_byte", [0xA0, 0xA1, 0xA3, 0xAA])
def test_unsubscribe_with_other_flags_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + unsubscribe(1, case.topic())[1:])
    client.expect_closed()


@shows("MQTT-3.12.4-1")
def test_pingresp_answers(case: Case) -> None:
    client = case.connect()
    client.send(PINGREQ, PINGREQ)
    client.expect(PINGRESP, PINGRESP)


@shows("MQTT-3.14.1-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("first_byte", [0xE1, 0xE2, 0xE8])
def test_disconnect_with_flags_closes(case: Case, first_byte: int) -> None:
    """As an error: the will is published."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 0))
    client = case.connect(will=(case.topic("will"), b"gone", 0, False))
    client.send(bytes([first_byte, 0]))
    client.expect_closed()
    assert watcher.message().body == b"gone"


@shows("MQTT-3.14.4-2", "MQTT-3.14.4-1")
def test_nothing_behind_a_disconnect_is_processed(case: Case) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic(), 0))
    client = case.connect()
    client.send(publish(case.topic(), b"before"), DISCONNECT, publish(case.topic(), b"after"))
    client.expect_closed()
    assert watcher.message().body == b"before"
    watcher.nothing()


@shows("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "sent",
    [
        packet(0x00, b""),
        packet(0xF0, b""),
        connack(),
        suback(1, 0),
        unsuback(1),
        PINGRESP,
        packet(0xC0, b"\0"),
        packet(0x40, b"\0"),
        packet(0x62, b"\1"),
        packet(0x30, b"\0\5ab"),
        b"\x30\x80\x80\x80\x80\x01",
    ],
    ids=lambda sent: sent[:4].hex(),
)
def test_violations_close(case: Case, sent: bytes) -> None:
    """Types that are reserved or a server's, wrong sizes, and a size of five bytes."""
    client = case.connect()
    client.send(sent)
    client.expect_closed()


# --- topics and text -----------------------------------------------------------------------------


@shows("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-4", "MQTT-3.3.2-3")
@pytest.mark.parametrize("pattern", MATCHES)
def test_filters_match_as_they_are_written(case: Case, pattern: str) -> None:
    publisher, subscriber = case.pair((case.topic(pattern), 0))
    for name in NAMES:
        publisher.send(publish(case.topic(name), name.encode()))
    publisher.nothing()
    found = [subscriber.message() for _ in MATCHES[pattern]]
    subscriber.nothing()
    assert sorted(one.body.decode() for one in found) == sorted(MATCHES[pattern])
    assert all(one.topic == case.topic(one.body.decode()) for one in found)


@shows("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-1")
@pytest.mark.parametrize("pattern", ["a#", "#/a", "##", "a+", "+a", "++", "a/#/b", ""])
def test_wrong_filters_are_refused(case: Case, pattern: str) -> None:
    """SUBACK says no, or the connection is closed: the standard has no word on which."""
    client = case.connect()
    client.send(subscribe(1, (pattern, 0)))
    answer = client.receive()
    assert answer in (b"", suback(1, 0x80))


@shows("MQTT-4.7.3-1")
def test_a_slash_is_a_name_and_a_filter(case: Case) -> None:
    client = case.connect()
    client.follow(("/", 0))
    client.send_message("/", case.name.encode())
    while client.message().body != case.name.encode():
        pass


@shows("MQTT-4.7.2-1")
def test_wildcards_at_the_beginning_match_no_dollar(case: Case) -> None:
    watcher = case.connect("w")
    watcher.follow(("#", 0), (f"+/{case.name}", 0))
    publisher = case.connect("p")
    publisher.send(publish(f"$SYS/{case.name}", b"hidden"))
    publisher.send_message(case.topic("$x"), b"end")
    while case.name not in (message := watcher.message()).topic:
        assert not message.topic.startswith("$")
    assert (message.topic, message.body) == (case.topic("$x"), b"end")


@shows("MQTT-1.5.3-3", "MQTT-4.7.3-4")
def test_a_byte_order_mark_is_a_character(case: Case) -> None:
    name = case.topic("\ufeffx")
    publisher, subscriber = case.pair((name, 0))
    for topic in (case.topic("x"), name):
        publisher.send_message(topic, topic.encode())
    message = subscriber.message()
    assert (message.topic, message.body) == (name, name.encode())
    subscriber.nothing()


# --- transport -----------------------------------------------------------------------------------


@shows("MQTT-7.1.1-1")
def test_packets_come_in_any_pieces(case: Case) -> None:
    client = case.open()
    data = connect(case.client_id()) + subscribe(1, (case.topic(), 1)) + PINGREQ
    for at in range(len(data)):
        client.send(data[at : at + 1])
    client.expect(connack())
    assert {client.read(), client.read()} == {suback(1, 1), PINGRESP}


@pytest.fixture
def websocket(peer: Peer) -> WebSocket:
    if peer.websocket_port is None:
        pytest.skip("the server has no listener for WebSocket")
    return WebSocket(peer.websocket_port)


@shows("MQTT-6.0.0-3", "MQTT-6.0.0-4")
def test_the_subprotocol_is_mqtt(websocket: WebSocket) -> None:
    with websocket:
        assert websocket.upgrade("other, mqtt") == "mqtt"


@shows("MQTT-6.0.0-1", "MQTT-6.0.0-2")
def test_packets_are_not_aligned_with_frames(websocket: WebSocket, case: Case) -> None:
    data = connect(case.client_id()) + PINGREQ * 3
    expected = connack() + PINGRESP * 3
    with websocket:
        websocket.upgrade("mqtt")
        for at in range(0, len(data), 7):
            websocket.send_frame(BINARY, data[at : at + 7])
        found = b""
        while len(found) < len(expected):
            found += websocket.read_frame(BINARY)
        assert found == expected


@shows("MQTT-6.0.0-1")
def test_a_text_frame_closes(websocket: WebSocket, case: Case) -> None:
    with websocket:
        websocket.upgrade("mqtt")
        websocket.send_frame(BINARY, connect(case.client_id()))
        websocket.read_frame(BINARY)
        websocket.send_frame(TEXT, PINGREQ)
        websocket.expect_closed()
