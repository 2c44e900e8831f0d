"""CONNECT and CONNACK (parts 3.1 and 3.2)."""

from __future__ import annotations

import string
import time

import pytest

from interop_tests.mqtt_conformance.client_311 import CONNACK, PUBACK, SUBACK, Case
from interop_tests.mqtt_conformance.statements_311 import shows
from interop_tests.mqtt_wire import (
    DISCONNECT,
    PINGREQ,
    connack,
    connect,
    field,
    packet,
    publish,
    subscribe,
)

HEAD = field("MQTT") + b"\x04"
ID = field("conformance")
BAD = b"\xed\xa0\x80"
"""A surrogate: no UTF-8."""


def raw_connect(flags: int, payload: bytes) -> bytes:
    return packet(0x10, HEAD + bytes([flags]) + b"\0\0" + payload)


# --- what is accepted ----------------------------------------------------------------------------


@shows("MQTT-3.1.4-4", "MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-3")
@pytest.mark.parametrize("clean", [False, True])
def test_connack_accepts(case: Case, clean: bool) -> None:
    case.connect(clean=clean).nothing()


@shows("MQTT-3.2.0-1")
def test_packets_may_follow_connect_at_once(case: Case) -> None:
    client = case.open()
    client.send(
        connect(case.client_id()),
        subscribe(1, (case.topic(), 1)),
        publish(case.topic(), qos=1, packet_id=2),
        PINGREQ,
    )
    found = [client.read()[0] for _ in range(5)]
    assert found[0] == CONNACK
    assert sorted(found[1:]) == [0x32, PUBACK, SUBACK, 0xD0]


@shows("MQTT-3.1.3-5")
@pytest.mark.parametrize(
    "client_id",
    ["1", string.digits, string.ascii_lowercase[:23], string.ascii_uppercase[3:], "xyzABC"],
)
def test_client_ids_of_letters_and_digits(case: Case, client_id: str) -> None:
    client = case.open()
    client.send(connect(client_id))
    client.expect(connack())
    client.disconnect()


@shows("MQTT-3.1.3-6")
def test_an_empty_client_id_is_one_of_its_own(case: Case) -> None:
    """Two of them do not take each other's connection."""
    clients = []
    for _ in range(2):
        client = case.open()
        client.send(connect(""))
        client.expect(connack())
        client.follow((case.topic(), 0))
        clients.append(client)
    clients[0].send_message(case.topic(), b"x")
    for client in clients:
        assert client.message().body == b"x"
        client.nothing()


@shows("MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-18")
def test_all_fields_at_once(case: Case) -> None:
    """Each is taken from its position: the will arrives as it was left."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 0))
    case.connect(will=(case.topic("will"), b"gone", 1, False), keep_alive=600).vanish()
    message = watcher.message()
    assert (message.topic, message.body) == (case.topic("will"), b"gone")


# --- sessions ------------------------------------------------------------------------------------


@shows("MQTT-3.1.2-4", "MQTT-3.1.4-3", "MQTT-3.2.2-2", "MQTT-3.1.3-2", "MQTT-4.1.0-1")
def test_a_session_goes_on(case: Case) -> None:
    first = case.connect(clean=False)
    first.follow((case.topic(), 1))
    first.disconnect()
    again = case.connect(clean=False, present=True)
    again.send_message(case.topic(), b"1")
    assert again.message().body == b"1"
    case.connect("other", clean=False)


@shows("MQTT-3.1.2-5", "MQTT-4.5.0-1")
def test_messages_wait_for_who_is_away(case: Case) -> None:
    client = case.connect(clean=False)
    client.follow((case.topic("#"), 2))
    client.disconnect()
    publisher = case.connect("p")
    for qos in (1, 0, 2):
        publisher.send_message(case.topic(str(qos)), b"x", qos=qos)
    client = case.connect(clean=False, present=True)
    found = [client.message()]
    while found[-1].qos != 2:
        found.append(client.message())
    client.nothing()
    assert [one.qos for one in found if one.qos] == [1, 2]
    assert not any(one.duplicate or one.retain for one in found)


@shows("MQTT-3.1.2-6", "MQTT-3.1.4-3", "MQTT-3.2.2-1")
def test_clean_session_discards_the_session(case: Case) -> None:
    """That of before, and its own when the connection ends."""
    first = case.connect(clean=False)
    first.follow((case.topic(), 1))
    first.disconnect()
    case.connect("p").send_message(case.topic(), b"for the old session")
    again = case.connect()
    again.nothing()
    again.follow((case.topic(), 1))
    again.vanish()
    case.connect(clean=False, present=False).nothing()


@shows("MQTT-3.1.2.7")
def test_retained_messages_do_not_belong_to_a_session(case: Case) -> None:
    client = case.connect()
    client.send_message(case.topic(), b"stays", retain=True)
    client.disconnect()
    case.connect().disconnect()
    client = case.connect("other")
    client.follow((case.topic(), 0))
    assert client.message().body == b"stays"
    client.send_message(case.topic(), b"", retain=True)


@shows("MQTT-4.1.0-2", "MQTT-4.1.0-1")
def test_a_session_lasts_as_long_as_its_connection(case: Case) -> None:
    client = case.connect()
    client.follow((case.topic(), 1))
    client.silent(0.5)
    client.send_message(case.topic(), b"x")
    assert client.message().body == b"x"


@shows("MQTT-3.1.4-2", "MQTT-3.1.3-2")
@pytest.mark.parametrize("clean", [False, True])
def test_a_connection_is_taken_over(case: Case, clean: bool) -> None:
    old = case.connect(clean=clean)
    old.follow((case.topic(), 0))
    new = case.connect(clean=clean, present=not clean)
    old.expect_closed()
    new.send_message(case.topic(), b"1")
    if not clean:
        assert new.message().body == b"1"
    new.nothing()


# --- wills ---------------------------------------------------------------------------------------


@shows("MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_once(case: Case, qos: int) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic("#"), 2))
    will = (case.topic("will"), b"gone", qos, False)
    case.connect(clean=False, will=will).vanish()
    message = watcher.message()
    assert (message.topic, message.body, message.qos) == (case.topic("will"), b"gone", qos)
    case.connect(clean=False, present=True).vanish()  # without a will
    watcher.nothing()


@shows("MQTT-3.1.2-8")
@pytest.mark.parametrize("how", ["the client closes", "an error", "a takeover"])
def test_other_ends_of_a_connection_publish_the_will(case: Case, how: str) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic("#"), 0))
    client = case.connect(will=(case.topic("will"), b"gone", 0, False))
    if how == "the client closes":
        client.socket.close()
    elif how == "an error":
        client.send(b"\x82\0")
        client.expect_closed()
    else:
        case.connect()
        client.expect_closed()
    assert watcher.message().body == b"gone"


@shows("MQTT-3.1.2-16", "MQTT-3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_or_not(case: Case, retain: bool) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic("#"), 0))
    case.connect(will=(case.topic("will"), b"gone", 1, retain)).vanish()
    assert not watcher.message().retain
    late = case.connect("late")
    late.follow((case.topic("will"), 0))
    if retain:
        assert late.message().retain
        late.send_message(case.topic("will"), b"", retain=True)
        assert late.message().body == b""
    late.nothing()


@shows("MQTT-3.14.4-3", "MQTT-3.1.2-10", "MQTT-3.1.2-12")
def test_no_will_after_disconnect_and_without_one(case: Case) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic("#"), 0))
    case.connect(clean=False, will=(case.topic("will"), b"gone", 0, False)).disconnect()
    case.connect(clean=False, present=True).vanish()
    case.connect("other").vanish()
    watcher.nothing()


# --- keep alive ----------------------------------------------------------------------------------


@shows("MQTT-3.1.2-24")
def test_a_silent_client_is_closed_as_if_the_network_had_failed(case: Case) -> None:
    """After 1.5 s at the earliest, with its will; a client that pings stays."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 0))
    client = case.connect(keep_alive=1, will=(case.topic("will"), b"silent", 0, False))
    for _ in range(2):
        client.silent(0.8)
        client.nothing()
    began = time.monotonic()
    client.expect_closed()
    assert 1.4 < time.monotonic() - began < 5.0
    assert watcher.message().body == b"silent"


# --- what is refused -----------------------------------------------------------------------------


@shows("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "first",
    [PINGREQ, DISCONNECT, publish("conformance/first", b"x"), subscribe(1, ("a", 0)), connack()],
    ids=["PINGREQ", "DISCONNECT", "PUBLISH", "SUBSCRIBE", "CONNACK"],
)
def test_the_first_packet_is_connect(case: Case, first: bytes) -> None:
    client = case.open()
    client.send(first)
    client.expect_closed()


@shows("MQTT-3.1.0-2", "MQTT-4.8.0-1")
def test_a_second_connect_closes(case: Case) -> None:
    client = case.connect()
    client.send(connect(client.client_id))
    client.expect_closed()


@shows("MQTT-3.1.2-1")
@pytest.mark.parametrize("name", ["MQTTX", "mqtt", ""])
def test_another_protocol_name_is_not_processed(case: Case, name: str) -> None:
    """It may be answered; it is not accepted."""
    client = case.open()
    client.send(connect(case.client_id(), name=name))
    if answer := client.receive():
        assert answer[0] == CONNACK
        assert answer[3]
        client.expect_closed()


@shows("MQTT-3.1.2-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
@pytest.mark.parametrize("level", [0, 2, 6, 255])
def test_an_unknown_protocol_level_gets_code_1(case: Case, level: int) -> None:
    client = case.open()
    client.send(connect(case.client_id(), level=level))
    client.expect(connack(1))
    client.expect_closed()


@shows("MQTT-3.1.3-7", "MQTT-3.1.3-8", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_an_empty_client_id_with_a_session_gets_code_2(case: Case) -> None:
    client = case.open()
    client.send(connect("", clean=False))
    client.expect(connack(2))
    client.expect_closed()


@shows("MQTT-3.1.3-9", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_a_client_id_that_is_not_accepted_gets_code_2(case: Case) -> None:
    """A server may accept this one."""
    client = case.open()
    client.send(connect("x" * 60_000), PINGREQ)
    answer = client.receive()
    assert answer in (connack(), connack(2))
    if answer == connack(2):
        client.expect_closed()


@shows("MQTT-3.1.4-5")
def test_nothing_behind_a_rejected_connect_is_processed(case: Case) -> None:
    client = case.open()
    client.send(connect("", clean=False), publish(case.topic(), b"never", retain=True))
    client.expect(connack(2))
    client.expect_closed()
    other = case.connect()
    other.follow((case.topic(), 0))
    other.nothing()


MALFORMED = [
    ("MQTT-3.1.2-3", raw_connect(3, ID)),
    ("MQTT-3.1.2-11", raw_connect(2, ID + field("t") + field("b"))),
    ("MQTT-3.1.2-13", raw_connect(2 | 8, ID)),
    ("MQTT-3.1.2-14", raw_connect(2 | 4 | 24, ID + field("t") + field("b"))),
    ("MQTT-3.1.2-15", raw_connect(2 | 32, ID)),
    ("MQTT-3.1.2-9", raw_connect(2 | 4, ID)),
    ("MQTT-3.1.2-9", raw_connect(2 | 4, ID + field("t"))),
    ("MQTT-3.1.2-18", raw_connect(2, ID + field("user"))),
    ("MQTT-3.1.2-19", raw_connect(2 | 128, ID)),
    ("MQTT-3.1.2-20", raw_connect(2 | 128, ID + field("user") + field("password"))),
    ("MQTT-3.1.2-21", raw_connect(2 | 128 | 64, ID + field("user"))),
    ("MQTT-3.1.2-22", raw_connect(2 | 64, ID + field("password"))),
    ("MQTT-3.1.3-3", raw_connect(2, b"")),
    ("MQTT-3.1.3-4", raw_connect(2, field(BAD))),
    ("MQTT-3.1.3-10", raw_connect(2 | 4, ID + field(BAD) + field("b"))),
    ("MQTT-3.1.3-11", raw_connect(2 | 128, ID + field(BAD))),
    ("MQTT-3.1.4-1", packet(0x10, HEAD + b"\x02")),
    ("MQTT-2.2.2-2", packet(0x11, HEAD + b"\x02\0\0" + ID)),
]


@shows("MQTT-3.1.2-3", "MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.2-14")
@shows("MQTT-3.1.2-15", "MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.2-20", "MQTT-3.1.2-21")
@shows("MQTT-3.1.2-22", "MQTT-3.1.3-3", "MQTT-3.1.3-4", "MQTT-3.1.3-10", "MQTT-3.1.3-11")
@shows("MQTT-3.1.4-1", "MQTT-2.2.2-2", "MQTT-3.2.2-6", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "sent",
    [sent for _, sent in MALFORMED],
    ids=[f"{statement}, case {number}" for number, (statement, _) in enumerate(MALFORMED)],
)
def test_a_malformed_connect_closes_without_connack(case: Case, sent: bytes) -> None:
    client = case.open()
    client.send(sent)
    client.expect_closed()
