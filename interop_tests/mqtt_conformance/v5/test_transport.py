"""TCP and WebSocket (parts 4.2 and 6)."""

from __future__ import annotations

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind
from interop_tests.mqtt_conformance.client import Case
from interop_tests.mqtt_conformance.conftest import Peer
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_conformance.websocket import BINARY, TEXT, WebSocket
from interop_tests.mqtt_wire import PINGREQ


@shows("MQTT-4.2-1")
def test_packets_come_in_any_pieces(case: Case) -> None:
    client = case.open()
    data = (
        wire.connect(case.client_id())
        + wire.subscribe(1, (case.topic(), 1))
        + wire.publish(case.topic(), b"x" * 10, qos=1, packet_id=2)
        + PINGREQ
    )
    for at in range(len(data)):
        client.send(data[at : at + 1])
    kinds = [client.read().kind for _ in range(5)]
    assert kinds[0] == Kind.CONNACK
    assert sorted(kinds[1:]) == [Kind.PUBLISH, Kind.PUBACK, Kind.SUBACK, Kind.PINGRESP]


@pytest.fixture
def websocket(peer: Peer) -> WebSocket:
    if peer.websocket_port is None:
        pytest.skip("the server has no listener for WebSocket")
    return WebSocket(peer.websocket_port)


@shows("MQTT-6.0.0-3", "MQTT-6.0.0-4")
def test_the_subprotocol_is_mqtt(websocket: WebSocket) -> None:
    with websocket:
        assert websocket.upgrade("other, mqtt") == "mqtt"


@shows("MQTT-6.0.0-2", "MQTT-6.0.0-1")
def test_packets_are_not_aligned_with_frames(websocket: WebSocket, case: Case) -> None:
    data = wire.connect(case.client_id()) + PINGREQ * 3
    with websocket:
        websocket.upgrade("mqtt")
        for at in range(0, len(data), 7):
            websocket.send_frame(BINARY, data[at : at + 7])
        found = b""
        while found.count(b"\xd0\0") < 3:
            found += websocket.read_frame(BINARY)
        assert wire.decode(found[: found.index(b"\xd0\0")]).kind == Kind.CONNACK


@shows("MQTT-6.0.0-1")
def test_a_text_frame_closes(websocket: WebSocket, case: Case) -> None:
    with websocket:
        websocket.upgrade("mqtt")
        websocket.send_frame(BINARY, wire.connect(case.client_id()))
        websocket.read_frame(BINARY)
        websocket.send_frame(TEXT, PINGREQ)
        websocket.expect_closed()
