"""CONNECT and CONNACK (parts 3.1 and 3.2)."""

from __future__ import annotations

import string
import time

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, P, Property, R, Will
from interop_tests.mqtt_conformance.client import BROKEN, Case
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ, field, packet

HEAD = field("MQTT") + b"\x05"
NO_METHOD = (P.AUTH_METHOD, "conformance-none")
"""An authentication method that no server has."""


def raw_connect(flags: int, payload: bytes, *, props: bytes = b"\0") -> bytes:
    return packet(0x10, HEAD + bytes([flags]) + b"\0\0" + props + payload)


# --- what is accepted ----------------------------------------------------------------------------


@shows("MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-2", "MQTT-3.2.2-8")
def test_connack_accepts(case: Case) -> None:
    client = case.connect()
    assert client.connack.size == 2 + 3 + sum(
        len(wire.property_bytes(*one)) for one in client.connack.props
    )
    client.nothing()


@shows("MQTT-3.2.0-1", "MQTT-3.2.0-2")
def test_packets_may_follow_connect_at_once(case: Case) -> None:
    client = case.open()
    client.send(
        wire.connect(case.client_id()),
        wire.subscribe(1, (case.topic(), 1)),
        wire.publish(case.topic(), qos=1, packet_id=2),
        PINGREQ,
    )
    kinds = [client.read().kind for _ in range(5)]
    assert kinds[0] == Kind.CONNACK
    assert sorted(kinds[1:]) == [Kind.PUBLISH, Kind.PUBACK, Kind.SUBACK, Kind.PINGRESP]


@shows("MQTT-3.1.3-5")
@pytest.mark.parametrize("characters", [string.digits, string.ascii_lowercase[:23], "Q"])
def test_client_ids_of_letters_and_digits(case: Case, characters: str) -> None:
    for client_id in (characters, characters.upper()):
        client = case.open()
        client.send(wire.connect(client_id))
        assert client.read().reason == 0
        client.leave()


@shows("MQTT-3.1.3-5")
def test_client_ids_of_all_letters(case: Case) -> None:
    for client_id in (string.ascii_uppercase[3:], string.ascii_lowercase[3:]):
        assert len(client_id) == 23
        client = case.open()
        client.send(wire.connect(client_id))
        assert client.read().reason == 0
        client.leave()


@shows("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_an_empty_client_id_is_replaced(case: Case) -> None:
    """The server gives another identifier to each, and the session is found by it."""
    found = []
    for _ in range(2):
        client = case.open()
        client.send(wire.connect("", props=[(P.SESSION_EXPIRY, 60)]))
        (assigned,) = client.read().values(P.ASSIGNED_CLIENT_ID)
        assert isinstance(assigned, str)
        assert assigned
        found.append(assigned)
    assert found[0] != found[1]
    client.leave()
    client = case.open()
    client.send(wire.connect(found[1], clean=False))
    connack = client.read()
    assert (connack.reason, connack.present) == (0, True)
    assert not connack.values(P.ASSIGNED_CLIENT_ID)


@shows("MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-16", "MQTT-3.1.2-18")
def test_all_fields_at_once(case: Case) -> None:
    """Each is taken from its position: the will arrives as it was left."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 0))
    will = Will(topic=case.topic("will"), body=b"gone", props=[(P.CONTENT_TYPE, "text/plain")])
    client = case.connect(
        will=will, keep_alive=600, props=[(P.RECEIVE_MAX, 5), (P.USER, ("a", "b"))]
    )
    client.vanish()
    message = watcher.message()
    assert (message.topic, message.body) == (case.topic("will"), b"gone")
    assert message.props == ((P.CONTENT_TYPE, "text/plain"),)


@shows("MQTT-3.1.2-18", "MQTT-3.1.2-19")
def test_a_password_needs_no_user_name(case: Case) -> None:
    """Other than in MQTT 3.1.1; a server may still refuse the password."""
    client = case.open()
    client.send(wire.connect(case.client_id(), password=b"secret"))
    found = client.read()
    assert found.reason in (0, R.CREDENTIALS, R.NOT_AUTHORIZED), hex(found.reason)


@shows("MQTT-3.2.2-9")
def test_all_qualities_and_retained_messages_are_there(case: Case) -> None:
    """So CONNACK may neither say Maximum QoS nor deny what works."""
    client = case.connect(will=Will(topic=case.topic("w"), qos=2, retain=True))
    assert not client.connack.values(P.QOS_MAX)
    for feature in (P.RETAIN_AVAILABLE, P.WILDCARDS, P.SUBSCRIPTION_IDS):
        assert client.connack.number(feature, 1) == 1
    client.send_message(case.topic(), qos=2)
    client.leave()


# --- sessions: Clean Start and Session Present ---------------------------------------------------


@shows("MQTT-3.1.2-6", "MQTT-3.2.2-3")
def test_clean_start_0_without_a_session(case: Case) -> None:
    case.connect(clean=False).nothing()


@shows("MQTT-3.1.2-5", "MQTT-3.2.2-3", "MQTT-3.1.2-23", "MQTT-3.1.3-2")
def test_clean_start_0_goes_on_with_the_session(case: Case) -> None:
    first = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    first.follow((case.topic(), 1))
    first.leave()
    again = case.connect(clean=False, present=True)
    again.send_message(case.topic(), b"1")
    assert again.message().body == b"1"
    case.connect("other", clean=False)  # has no part in it


@shows("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2")
def test_clean_start_1_discards_the_session(case: Case) -> None:
    first = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    first.follow((case.topic(), 1))
    first.leave()
    case.connect("p").send_message(case.topic(), b"for the old session")
    again = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    again.nothing()
    again.send_message(case.topic(), b"1")
    again.nothing()
    again.leave()
    case.connect(clean=False, present=True).nothing()


@shows("MQTT-3.1.4-3", "MQTT-3.1.3-2", "MQTT-4.13.2-1")
@pytest.mark.parametrize("clean", [False, True])
def test_a_connection_is_taken_over(case: Case, clean: bool) -> None:
    old = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    old.follow((case.topic(), 0))
    new = case.connect(clean=clean, present=not clean)
    old.expect_error(R.TAKEN_OVER)
    new.send_message(case.topic(), b"1")
    if not clean:
        assert new.message().body == b"1"
    new.nothing()


# --- keep alive ----------------------------------------------------------------------------------


@shows("MQTT-3.1.2-22", "MQTT-3.2.2-22")
def test_a_silent_client_is_closed_as_if_the_network_had_failed(case: Case) -> None:
    """After 1.5 s at the earliest, with its will; a client that pings stays."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 0))
    client = case.connect(keep_alive=1, will=Will(topic=case.topic("will"), body=b"silent"))
    if client.connack.values(P.SERVER_KEEP_ALIVE):
        pytest.skip("the server has a keep alive of its own")
    for _ in range(2):
        client.silent(0.8)
        client.nothing()
    began = time.monotonic()
    client.expect_error(R.KEEP_ALIVE)
    assert 1.4 < time.monotonic() - began < 5.0
    assert watcher.message().body == b"silent"


# --- what CONNECT asks of CONNACK and others -----------------------------------------------------


@shows("MQTT-3.1.2-28")
@pytest.mark.parametrize("asked", [(), ((P.REQUEST_RESPONSE, 0),)])
def test_response_information_only_on_request(case: Case, asked: tuple[Property, ...]) -> None:
    assert not case.connect(props=asked).connack.values(P.RESPONSE_INFORMATION)


@shows("MQTT-3.1.2-29")
def test_no_problem_information_where_it_is_not_wanted(case: Case) -> None:
    client = case.connect(props=[(P.REQUEST_PROBLEM, 0)])
    client.send(
        wire.subscribe(1, (case.topic("s"), 0)),
        wire.unsubscribe(2, case.topic("never")),
        wire.publish(case.topic("x"), qos=1, packet_id=3),
        wire.publish(case.topic("x"), qos=2, packet_id=4),
        wire.pubrel(99),
    )
    answers = [client.read() for _ in range(5)]
    assert sorted(answer.kind for answer in answers) == [
        Kind.PUBACK, Kind.PUBREC, Kind.PUBCOMP, Kind.SUBACK, Kind.UNSUBACK,
    ]  # fmt: skip
    for answer in answers:
        assert not answer.values(P.REASON), answer
        assert not answer.values(P.USER), answer


@shows("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.2.2-20")
def test_connack_keeps_to_the_maximum_packet_size(case: Case) -> None:
    for limit in (64, 40):
        assert case.connect(props=[(P.PACKET_MAX, limit)]).connack.size <= limit
    client = case.open()
    client.send(wire.connect(case.client_id("x"), props=[(P.PACKET_MAX, 8), NO_METHOD]))
    assert len(client.receive()) <= 8


# --- what is refused -----------------------------------------------------------------------------


@shows("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "first",
    [
        PINGREQ,
        wire.publish("conformance/first", b"x"),
        wire.subscribe(1, ("conformance/first", 0)),
        wire.disconnect(),
        wire.auth(R.CONTINUE, [NO_METHOD]),
        packet(0x20, b"\0\0\0"),
    ],
    ids=["PINGREQ", "PUBLISH", "SUBSCRIBE", "DISCONNECT", "AUTH", "CONNACK"],
)
def test_the_first_packet_is_connect(case: Case, first: bytes) -> None:
    client = case.open()
    client.send(first)
    client.expect_closed()


@shows("MQTT-3.1.0-2")
def test_a_second_connect_closes(case: Case) -> None:
    client = case.connect()
    client.send(wire.connect(client.client_id))
    client.expect_error(R.PROTOCOL_ERROR)


@shows("MQTT-3.1.2-1")
@pytest.mark.parametrize("name", ["MQTTX", "mqtt", ""])
def test_another_protocol_name_closes(case: Case, name: str) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), name=name))
    client.expect_refused(R.VERSION, *BROKEN)


@shows("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [0, 6, 255])
@pytest.mark.parametrize("has_properties", [True, False])
def test_another_protocol_version_closes(case: Case, level: int, has_properties: bool) -> None:
    """The answer may be that of MQTT 5, or of MQTT 3.1.1, whose server has to send code 1. The rest
    of the packet is that of one or the other, so that nothing else is wrong with it."""
    client = case.open()
    no_properties = packet(0x10, field("MQTT") + bytes((level, 2, 0, 60)) + field(case.client_id()))
    client.send(wire.connect(case.client_id(), level=level) if has_properties else no_properties)
    answer = client.receive()
    assert answer in (b"", b"\x20\x03\0\x84\0", b"\x20\x02\0\x84", b"\x20\x02\0\x01"), answer.hex()
    if answer:
        client.expect_closed()


ID = field("conformance")
BAD = b"\xed\xa0\x80"
"""A surrogate: no UTF-8."""
MALFORMED = [
    ("MQTT-3.1.2-3", raw_connect(3, ID)),
    ("MQTT-3.1.2-11", raw_connect(2 | 8, ID)),
    ("MQTT-3.1.2-12", raw_connect(2 | 4 | 24, ID + b"\0" + field("t") + field("b"))),
    ("MQTT-3.1.2-13", raw_connect(2 | 32, ID)),
    ("MQTT-3.1.2-9", raw_connect(2 | 4, ID)),
    ("MQTT-3.1.2-9", raw_connect(2 | 4, ID + b"\0" + field("t"))),
    ("MQTT-3.1.2-16", raw_connect(2, ID + field("user"))),
    ("MQTT-3.1.2-17", raw_connect(2 | 128, ID)),
    ("MQTT-3.1.2-18", raw_connect(2 | 128, ID + field("user") + field("password"))),
    ("MQTT-3.1.2-19", raw_connect(2 | 64, ID)),
    ("MQTT-3.1.3-3", raw_connect(2, b"")),
    ("MQTT-3.1.3-4", raw_connect(2, field(BAD))),
    ("MQTT-3.1.3-11", raw_connect(2 | 4, ID + b"\0" + field(BAD) + field("b"))),
    ("MQTT-3.1.3-12", raw_connect(2 | 128, ID + field(BAD))),
    ("MQTT-3.1.4-1", packet(0x10, HEAD + b"\x02")),
    ("MQTT-3.1.4-1", raw_connect(2, ID, props=b"")),
    ("MQTT-3.1.4-1", packet(0x11, HEAD + b"\x02\0\0\0" + ID)),
]


@shows("MQTT-3.1.2-3", "MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-12", "MQTT-3.1.2-13")
@shows("MQTT-3.1.2-16", "MQTT-3.1.2-17", "MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.3-3")
@shows("MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12", "MQTT-3.1.4-1", "MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "sent",
    [sent for _, sent in MALFORMED],
    ids=[f"{statement}, case {number}" for number, (statement, _) in enumerate(MALFORMED)],
)
def test_a_malformed_connect_closes(case: Case, sent: bytes) -> None:
    client = case.open()
    client.send(sent)
    client.expect_refused(*BROKEN)


WRONG_PROPERTIES: dict[str, list[Property] | bytes] = {
    "session expiry twice": [(P.SESSION_EXPIRY, 1), (P.SESSION_EXPIRY, 1)],
    "receive maximum 0": [(P.RECEIVE_MAX, 0)],
    "receive maximum twice": [(P.RECEIVE_MAX, 1), (P.RECEIVE_MAX, 1)],
    "maximum packet size 0": [(P.PACKET_MAX, 0)],
    "maximum packet size twice": [(P.PACKET_MAX, 99), (P.PACKET_MAX, 99)],
    "topic alias maximum twice": [(P.ALIAS_MAX, 1), (P.ALIAS_MAX, 1)],
    "request response information 2": [(P.REQUEST_RESPONSE, 2)],
    "request response information twice": [(P.REQUEST_RESPONSE, 1), (P.REQUEST_RESPONSE, 1)],
    "request problem information 2": [(P.REQUEST_PROBLEM, 2)],
    "request problem information twice": [(P.REQUEST_PROBLEM, 1), (P.REQUEST_PROBLEM, 1)],
    "authentication method twice": [NO_METHOD, NO_METHOD],
    "authentication data without a method": [(P.AUTH_DATA, b"x")],
    "a property of PUBLISH": [(P.CONTENT_TYPE, "text/plain")],
    "a property of CONNACK": [(P.ASSIGNED_CLIENT_ID, "x")],
    "an unknown property": b"\x02\x7f\x00",
    "an integer that is cut off": b"\x03\x11\x00\x00",
    "a user property that is no UTF-8": [(P.USER, (BAD, b"x"))],
    "longer than the packet": b"\x7f",
}


@shows("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("what", WRONG_PROPERTIES)
def test_wrong_properties_of_connect_close(case: Case, what: str) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), props=WRONG_PROPERTIES[what]))
    client.expect_refused(*BROKEN)


WRONG_WILL_PROPERTIES: dict[str, list[Property]] = {
    "will delay twice": [(P.WILL_DELAY, 1), (P.WILL_DELAY, 1)],
    "payload format twice": [(P.PAYLOAD_FORMAT, 1), (P.PAYLOAD_FORMAT, 1)],
    "payload format 2": [(P.PAYLOAD_FORMAT, 2)],
    "message expiry twice": [(P.MESSAGE_EXPIRY, 1), (P.MESSAGE_EXPIRY, 1)],
    "content type twice": [(P.CONTENT_TYPE, "a"), (P.CONTENT_TYPE, "a")],
    "response topic twice": [(P.RESPONSE_TOPIC, "a"), (P.RESPONSE_TOPIC, "a")],
    "correlation data twice": [(P.CORRELATION_DATA, b"a"), (P.CORRELATION_DATA, b"a")],
    "a property of CONNECT": [(P.SESSION_EXPIRY, 1)],
    "a topic alias": [(P.ALIAS, 1)],
}


@shows("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("what", WRONG_WILL_PROPERTIES)
def test_wrong_properties_of_a_will_close(case: Case, what: str) -> None:
    will = Will(topic=case.topic(), body=b"x", props=WRONG_WILL_PROPERTIES[what])
    client = case.open()
    client.send(wire.connect(case.client_id(), will=will))
    client.expect_refused(*BROKEN)


@shows("MQTT-3.1.3-8", "MQTT-3.1.4-2", "MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-3.2.2-8")
def test_what_is_not_accepted_is_closed(case: Case) -> None:
    """A server may accept the first three; whatever it refuses, it says so and closes."""
    for sent, reason in [
        (wire.connect("x" * 60000), R.CLIENT_ID),
        (wire.connect(case.client_id(), user="nobody", password=b"wrong"), R.CREDENTIALS),
        (wire.connect(case.client_id(), will=Will(topic="$conformance/will")), R.TOPIC),
        (wire.connect(case.client_id(), props=[NO_METHOD]), R.METHOD),
    ]:
        client = case.open()
        client.send(sent, PINGREQ)
        if data := client.receive():
            found = wire.decode(data)
            assert found.kind == Kind.CONNACK
            if found.reason == 0:
                assert reason != R.METHOD
                assert client.read().kind == Kind.PINGRESP
                client.leave()
                continue
            assert found.reason in (reason, R.NOT_AUTHORIZED)
            assert not found.present
        client.expect_closed()


@shows("MQTT-3.1.4-6")
def test_nothing_behind_a_rejected_connect_is_processed(case: Case) -> None:
    client = case.open()
    client.send(
        wire.connect(case.client_id("x"), props=[NO_METHOD]),
        wire.publish(case.topic(), b"never", retain=True),
    )
    client.expect_refused(R.METHOD, R.NOT_AUTHORIZED)
    other = case.connect()
    other.follow((case.topic(), 0))
    other.nothing()
