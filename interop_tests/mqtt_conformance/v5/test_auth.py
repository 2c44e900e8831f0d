"""AUTH and enhanced authentication (parts 3.15 and 4.12), without a method, and with one that there
is not. `test_scram.py` has the exchanges."""

from __future__ import annotations

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import P, R, auth
from interop_tests.mqtt_conformance.client import BROKEN, Case
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import packet

METHOD = (P.AUTH_METHOD, "conformance-none")


@shows("MQTT-4.12.0-1", "MQTT-4.12.0-4", "MQTT-3.2.0-1", "MQTT-3.14.0-1")
@pytest.mark.parametrize("data", [(), ((P.AUTH_DATA, b"first"),)])
def test_an_unknown_method_closes(case: Case, data: tuple[tuple[int, bytes], ...]) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), props=[METHOD, *data]))
    client.expect_refused(R.METHOD, R.NOT_AUTHORIZED)


@shows("MQTT-4.12.0-1", "MQTT-3.1.4-6")
def test_auth_does_not_help_after_a_refusal(case: Case) -> None:
    client = case.open()
    client.send(
        wire.connect(case.client_id(), props=[METHOD]),
        auth(R.CONTINUE, [METHOD, (P.AUTH_DATA, b"x")]),
    )
    client.expect_refused(R.METHOD, R.NOT_AUTHORIZED)


@shows("MQTT-4.12.0-6")
def test_without_a_method_there_is_none(case: Case) -> None:
    client = case.connect()
    assert not client.connack.values(P.AUTH_METHOD)
    assert not client.connack.values(P.AUTH_DATA)
    client.nothing()


@shows("MQTT-4.12.0-7", "MQTT-4.12.0-6", "MQTT-4.12.1-1", "MQTT-4.12.0-3")
@pytest.mark.parametrize("reason", [R.SUCCESS, R.CONTINUE, R.AUTHENTICATE_AGAIN])
def test_auth_without_a_method_closes(case: Case, reason: int) -> None:
    client = case.connect()
    client.send(auth(reason, [METHOD]))
    client.expect_error(R.PROTOCOL_ERROR)


@shows("MQTT-3.15.1-1", "MQTT-2.1.3-1")
@pytest.mark.parametrize("first_byte", [0xF1, 0xF2, 0xF8])
def test_auth_with_flags_closes(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(packet(first_byte, auth(R.CONTINUE, [METHOD])[2:]))
    client.expect_error(*BROKEN)
