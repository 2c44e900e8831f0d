"""What waits for an MQTT session that is full: paho's clients, over kills of the server."""

from __future__ import annotations

import urllib.request
from queue import SimpleQueue
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.conftest import Server, StartServer

WAIT_SECONDS_MAX = 20.0
TOPIC = "fleet/one"


class Device:
    """A client with a persistent session, which keeps what it gets."""

    def __init__(self, server: Server, qos: int) -> None:
        self.bodies: SimpleQueue[bytes] = SimpleQueue()
        self.ready: SimpleQueue[bool] = SimpleQueue()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, "device", clean_session=False)

        def subscribe(*_: Any) -> None:
            client.subscribe("fleet/+", qos)

        client.on_connect = subscribe
        client.on_subscribe = lambda *_: self.ready.put(True)
        client.on_message = lambda _c, _u, message: self.bodies.put(bytes(message.payload))
        client.connect(server.host, server.mqtt_port)
        client.loop_start()
        assert self.ready.get(timeout=WAIT_SECONDS_MAX)
        self.client = client

    def take(self, count: int) -> list[int]:
        """The numbers of the next messages."""
        return [int(self.bodies.get(timeout=WAIT_SECONDS_MAX)) for _ in range(count)]

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def publish(server: Server, numbers: range, qos: int, size: int = 0) -> None:
    """Publish bodies of at least a size, and wait for every acknowledgement."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "publisher")
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    for number in numbers:
        sent = client.publish(TOPIC, (b"%d" % number).ljust(size), qos)
        sent.wait_for_publish(WAIT_SECONDS_MAX)
        assert sent.is_published()
    client.disconnect()
    client.loop_stop()


def counted(server: Server, name: str) -> float:
    """A metric's value."""
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS_MAX) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


@pytest.mark.parametrize("qos", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("overflow", "stored"), [("drop_oldest", range(35, 40)), ("drop_newest", range(5))]
)
def test_a_full_session_keeps_what_its_policy_says(
    start_server: StartServer, overflow: str, stored: range, qos: int
) -> None:
    """Every publisher is answered; what was dropped stays dropped when the server is killed."""
    options = {"mqtt.session_queue_max": 5, "mqtt.session_queue_overflow": overflow}
    server = start_server(**options)
    Device(server, qos).leave()
    publish(server, range(40), qos)
    assert counted(server, "polymq_session_messages_dropped_total") == 35
    server.kill()
    server.start()
    device = Device(server, qos)
    assert device.take(5) == list(stored)
    publish(server, range(40, 45), qos)
    assert device.take(5) == list(range(40, 45))
    device.leave()
    lost = [event for event in server.log_events() if "is full" in event.get("event", "")]
    assert lost
    assert lost[0]["client"] == "device"


@pytest.mark.parametrize(
    ("overflow", "stored"), [("drop_oldest", range(10, 15)), ("drop_newest", range(5))]
)
def test_a_session_that_is_full_of_bytes_keeps_what_its_policy_says(
    start_server: StartServer, overflow: str, stored: range
) -> None:
    """Five messages of 10 KB fit. When the server is killed the limit holds again with the first
    messages that come then. Those of QoS 0, which the device never gets, take no room; one that
    never fits keeps none away that comes later."""
    options = {"mqtt.session_queue_bytes_max": 55_000, "mqtt.session_queue_overflow": overflow}
    server = start_server(**options)
    Device(server, 1).leave()
    publish(server, range(12), 1, 10_000)
    publish(server, range(1000, 1020), 0, 10_000)
    assert counted(server, "polymq_session_messages_dropped_total") == 7
    server.kill()
    server.start()
    publish(server, range(12, 15), 1, 10_000)
    device = Device(server, 1)
    assert device.take(5) == list(stored)
    device.leave()
    publish(server, range(15, 16), 1, 60_000)
    publish(server, range(16, 18), 1, 10_000)
    device = Device(server, 1)
    assert device.take(2) == [16, 17]
    device.leave()
    lost = [event for event in server.log_events() if "is full" in event.get("event", "")]
    assert {event["waiting_bytes_max"] for event in lost} == {55_000}


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
@pytest.mark.slow
def test_qos_0_takes_no_room_in_a_full_session(start_server: StartServer, overflow: str) -> None:
    """Messages that an absent device never gets push out none that were acknowledged, and keep
    none away; also over a kill of the server between them."""
    options = {"mqtt.session_queue_max": 50, "mqtt.session_queue_overflow": overflow}
    server = start_server(**options)
    Device(server, 1).leave()
    publish(server, range(30), 1)
    publish(server, range(1000, 1060), 0)
    server.kill()
    server.start()
    publish(server, range(2000, 2060), 0)
    publish(server, range(30, 50), 1)
    assert counted(server, "polymq_session_messages_dropped_total") == 0
    device = Device(server, 1)
    assert device.take(50) == list(range(50))
    device.leave()


def test_what_mqtt_counts_is_in_the_metrics(server: Server) -> None:
    """Messages below $SYS are acknowledged, dropped and counted."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "bridge")
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    for topic in ("$SYS/broker/connection/bridge/state", "a"):
        client.publish(topic, b"1", 1).wait_for_publish(WAIT_SECONDS_MAX)
    client.disconnect()
    client.loop_stop()
    assert counted(server, "polymq_mqtt_publishes_ignored_total") == 1
    assert counted(server, 'polymq_mqtt_publishes_total{direction="received"}') == 2
    assert counted(server, 'polymq_mqtt_connects_total{result="accepted"}') == 1


def test_what_a_client_does_not_take_is_in_the_metrics(server: Server) -> None:
    """A message above the client's Maximum Packet Size is not sent [MQTT-3.1.2-24], and an operator
    sees that."""
    arrived: SimpleQueue[bytes] = SimpleQueue()
    subscribed: SimpleQueue[bool] = SimpleQueue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "small", protocol=mqtt.MQTTv5)
    client.on_message = lambda _c, _u, message: arrived.put(bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.put(True)
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = 100
    client.connect(server.host, server.mqtt_port, properties=properties)
    client.loop_start()
    client.subscribe("a", 1)
    assert subscribed.get(timeout=WAIT_SECONDS_MAX)
    for body in (b"large" * 100, b"small"):
        client.publish("a", body, 1).wait_for_publish(WAIT_SECONDS_MAX)
    assert arrived.get(timeout=WAIT_SECONDS_MAX) == b"small"
    client.disconnect()
    client.loop_stop()
    assert counted(server, "polymq_mqtt_publishes_too_large_total") == 1
