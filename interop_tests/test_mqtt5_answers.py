"""What clients are told by a server that stops, that lacks something, or that refuses; and what its
operator sees of that."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Callable
from typing import Any

from interop_tests import mqtt5_wire as wire
from interop_tests import mqtt_wire as wire_311
from interop_tests.conftest import Server
from interop_tests.mqtt5_wire import P, R, decode
from interop_tests.mqtt_raw_client import RawClient

StartServer = Callable[..., Server]


def connected(server: Server, client_id: str, **options: Any) -> RawClient:
    client = RawClient(server.mqtt_port)
    client.send(wire.connect(client_id, **options))
    assert decode(client.receive()).reason == 0
    return client


def metrics(server: Server) -> str:
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        return str(answer.read(), "utf-8")


def test_a_server_that_stops_sends_clients_to_another_one(start_server: StartServer) -> None:
    """5.0 part 4.11. It is said to clients that do not want reasons in words as well, and never to
    one that takes only smaller packets."""
    server = start_server(**{"mqtt.server_reference": "b.example:1883 c.example"})
    talking = connected(server, "1")
    quiet = connected(server, "2", props=[(P.REQUEST_PROBLEM, 0)])
    small = connected(server, "3", props=[(P.PACKET_MAX, 20)])
    server.process.send_signal(signal.SIGTERM)
    for client, reference, has_text in (
        (talking, ["b.example:1883 c.example"], True),
        (quiet, ["b.example:1883 c.example"], False),
        (small, [], False),
    ):
        found = decode(client.receive())
        assert found.reason == R.ANOTHER_SERVER
        assert found.values(P.SERVER_REFERENCE) == reference
        assert bool(found.values(P.REASON)) == has_text
        client.expect_closed()
    server.process.wait(20)


def test_a_connect_that_is_too_large_is_answered(start_server: StartServer) -> None:
    """By CONNACK 0x95 as soon as it is known to be MQTT 5, long before it is there as a whole."""
    server = start_server()
    client = RawClient(server.mqtt_port)
    client.send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05\x02\x00\x00")
    assert decode(client.receive()).reason == R.TOO_LARGE
    client.expect_closed()
    old = RawClient(server.mqtt_port)
    old.send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x04\x02\x00\x00")
    old.expect_closed()


def test_what_is_not_offered_before_mqtt_5(start_server: StartServer) -> None:
    """A publish above the Maximum QoS or with RETAIN closes; a filter with a wildcard is refused,
    and a subscription is granted what there is."""
    options = {"qos_max": 1, "retain_available": False, "wildcards_available": False}
    server = start_server(**{f"mqtt.{name}": value for name, value in options.items()})
    for number, refused in enumerate(
        (
            wire_311.publish("t/a", b"x", qos=2, packet_id=1),
            wire_311.publish("t/a", b"x", qos=1, packet_id=1, retain=True),
        )
    ):
        client = RawClient(server.mqtt_port)
        client.send(wire_311.connect(str(number)))
        assert client.receive() == b"\x20\x02\x00\x00"
        client.send(wire_311.subscribe(1, ("t/a", 2), ("t/+", 0)))
        assert client.receive() == b"\x90\x04\x00\x01\x01\x80"
        client.send(refused)
        client.expect_closed()


def test_reason_codes_are_metrics(start_server: StartServer) -> None:
    server = start_server(**{"admin.enabled": True})
    client = connected(server, "1")
    client.send(
        wire.publish("t/a", b"x", qos=1, packet_id=1),
        wire.publish("$no/a", b"x", qos=1, packet_id=2),
        wire.subscribe(3, ("t/#", 1), ("$share//a", 0)),
    )
    answers = [decode(client.receive()) for _ in range(3)]
    assert [answer.reasons for answer in answers[:2]] == [(0,), (R.NOT_AUTHORIZED,)]
    assert "belong to the server" in str(answers[1].values(P.REASON))
    client.send(wire.disconnect(4))
    client.expect_closed()
    found = metrics(server)
    for packet, code, direction, count in (
        ("CONNACK", "0x00", "sent", 1),
        ("PUBACK", "0x00", "sent", 1),
        ("PUBACK", "0x87", "sent", 1),
        ("SUBACK", "0x01", "sent", 1),
        ("DISCONNECT", "0x04", "received", 1),
    ):
        labels = f'code="{code}",direction="{direction}",packet="{packet}"'
        assert f"polymq_mqtt_reason_codes_total{{{labels}}} {count}.0" in found, found
