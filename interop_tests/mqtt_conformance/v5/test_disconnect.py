"""PINGREQ and DISCONNECT (parts 3.12, 3.14 and 4.13)."""

from __future__ import annotations

from typing import Any

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, P, Property, R, Will, disconnect
from interop_tests.mqtt_conformance.client import BROKEN, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ, packet


def watched(case: Case, **options: Any) -> tuple[Client, Client]:
    """Who sees the will of a client; and the client."""
    watcher = case.connect("w")
    watcher.follow((case.topic("will"), 1))
    will = Will(topic=case.topic("will"), body=b"gone", qos=1)
    return watcher, case.connect(will=will, **options)


@shows("MQTT-3.12.4-1")
def test_pingresp_answers(case: Case) -> None:
    client = case.connect()
    client.send(PINGREQ, PINGREQ)
    assert [client.read().kind for _ in range(2)] == [Kind.PINGRESP] * 2


@shows("MQTT-3.14.4-3", "MQTT-3.1.2-10", "MQTT-3.1.2-8")
@pytest.mark.parametrize("sent", [disconnect(), disconnect(0), disconnect(0, ())])
def test_a_normal_disconnect_discards_the_will(case: Case, sent: bytes) -> None:
    watcher, client = watched(case)
    client.send(sent)
    client.expect_closed()
    watcher.nothing()


@shows("MQTT-3.1.2-8")
@pytest.mark.parametrize("reason", [R.WITH_WILL, R.UNSPECIFIED, R.IMPLEMENTATION])
def test_another_reason_publishes_the_will(case: Case, reason: int) -> None:
    watcher, client = watched(case)
    client.send(disconnect(reason, [(P.REASON, "because"), (P.USER, ("k", "v"))]))
    client.expect_closed()
    assert watcher.message().body == b"gone"


@shows("MQTT-3.14.4-1")
def test_nothing_behind_a_disconnect_is_processed(case: Case) -> None:
    watcher = case.connect("w")
    watcher.follow((case.topic(), 0))
    client = case.connect()
    client.send(
        wire.publish(case.topic(), b"before"),
        disconnect(),
        wire.publish(case.topic(), b"after"),
    )
    client.expect_closed()
    assert watcher.message().body == b"before"
    watcher.nothing()


@shows("MQTT-4.1.0-2", "MQTT-3.1.2-23")
def test_disconnect_changes_the_session_expiry(case: Case) -> None:
    """To 0, and back to longer; absent, it is that of CONNECT."""
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    client.leave(0)
    client = case.connect(clean=False, present=True, props=[(P.SESSION_EXPIRY, 1)])
    client.leave(0, ((P.SESSION_EXPIRY, 60),))
    case.connect("other").silent(1.4)
    client = case.connect(clean=False, present=True, props=[(P.SESSION_EXPIRY, 60)])
    client.leave(0, ((P.SESSION_EXPIRY, 0),))
    case.connect(clean=False, present=False)


@shows("MQTT-4.13.1-1", "MQTT-3.1.2-8")
def test_a_session_that_ends_with_its_connection_cannot_be_prolonged(case: Case) -> None:
    """Such a DISCONNECT is none: the will is published."""
    watcher, client = watched(case)
    client.send(disconnect(0, [(P.SESSION_EXPIRY, 60)]))
    client.expect_error(R.PROTOCOL_ERROR)
    assert watcher.message().body == b"gone"


@shows("MQTT-3.14.1-1", "MQTT-2.1.3-1")
@pytest.mark.parametrize("first_byte", [0xE1, 0xE2, 0xE8])
def test_reserved_flags_close(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte, 0]))
    client.expect_error(R.MALFORMED)


WRONG: dict[str, list[Property] | bytes] = {
    "session expiry twice": [(P.SESSION_EXPIRY, 0), (P.SESSION_EXPIRY, 0)],
    "reason string twice": [(P.REASON, "x"), (P.REASON, "x")],
    "a property of PUBLISH": [(P.CONTENT_TYPE, "x")],
    "an unknown property": b"\x02\x7f\x00",
    "longer than the packet": b"\x7f",
}


@shows("MQTT-4.13.1-1")
@pytest.mark.parametrize("what", WRONG)
def test_wrong_properties_close(case: Case, what: str) -> None:
    """And publish the will, because nobody said goodbye."""
    watcher, client = watched(case)
    client.send(disconnect(0, WRONG[what]))
    client.expect_error(*BROKEN)
    assert watcher.message().body == b"gone"


@shows("MQTT-3.14.2-1", "MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-4.13.2-1")
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (packet(0x00, b""), R.MALFORMED),
        (packet(0xC1, b""), R.MALFORMED),
        (packet(0x20, b"\0\0\0"), R.PROTOCOL_ERROR),
        (wire.subscribe(1), R.PROTOCOL_ERROR),
    ],
    ids=["type 0", "PINGREQ with flags", "CONNACK", "SUBSCRIBE without filters"],
)
def test_after_the_servers_disconnect_there_is_nothing(
    case: Case, sent: bytes, reason: int
) -> None:
    """What came before in the same read is answered, and what comes behind it is not. The decoder
    checks the packet's reason and properties."""
    client = case.connect(props=[(P.SESSION_EXPIRY, 60)])
    client.send(PINGREQ, sent, PINGREQ)
    assert client.read().kind == Kind.PINGRESP
    client.expect_error(*BROKEN, reason)


@shows("MQTT-3.14.2-1")
def test_all_reasons_of_a_client_are_legal(case: Case) -> None:
    for reason in (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98):
        case.connect().leave(reason)
