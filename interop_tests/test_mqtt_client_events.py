"""What clients do, below `$SYS/brokers/...`, as a monitor for EMQX would read it: paho's clients of
all versions, with users, and on a listener with a mount point."""

from __future__ import annotations

import json
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import addresses, connected
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import connect
from interop_tests.people import REFUSED_FILTER, Admin, MqttClient
from interop_tests.test_mqtt_sys_topics import VERSIONS, WAIT_SECONDS_MAX, Watcher, metric

BEGIN = "$SYS/brokers/broker-a/clients/"
KINDS = ["connected", "disconnected", "subscribed", "unsubscribed"]
NUMBERS = {MQTTProtocolVersion.MQTTv311: 4, MQTTProtocolVersion.MQTTv5: 5}


def start(start_server: StartServer, **settings: object) -> Server:
    """A server that publishes all events."""
    found = {"client_events": KINDS, **settings}
    environment = {f"POLYMQ_MQTT__{key.upper()}": json.dumps(v) for key, v in found.items()}
    return start_server(environment=environment)


def event(watcher: Watcher) -> tuple[str, dict[str, Any]]:
    """The next: the topic behind the client's, and the fields."""
    message = watcher.messages.get(timeout=WAIT_SECONDS_MAX)
    assert (message.qos, message.retain) == (0, False)
    assert message.topic.startswith(BEGIN)
    return message.topic.removeprefix(BEGIN), json.loads(message.payload)


@VERSIONS
def test_a_monitor_sees_what_clients_do(
    start_server: StartServer, version: MQTTProtocolVersion
) -> None:
    server = start(start_server)
    watcher = Watcher(server, version)
    assert watcher.subscribe("$SYS/brokers/+/clients/dev/#", "$SYS/brokers/+/clients/eve/+") == [
        1,
        1,
    ]
    client = Watcher(server, version, "dev")
    topic, fields = event(watcher)
    assert topic == "dev/connected"
    assert fields["ipaddress"] == "127.0.0.1"
    assert fields["listener"] == f"127.0.0.1:{server.mqtt_port}"
    assert (fields["proto_name"], fields["proto_ver"]) == ("MQTT", NUMBERS[version])
    assert (fields["clean_start"], fields["keepalive"], fields["connack"]) == (False, 60, 0)
    assert fields["expiry_interval"] == (3600 if version == MQTTProtocolVersion.MQTTv5 else None)
    assert 0 <= fields["ts"] - fields["connected_at"] < 60_000
    assert client.subscribe("a/+") == [1]
    topic, fields = event(watcher)
    assert (topic, fields["topic"], fields["subopts"]["qos"]) == ("dev/subscribed", "a/+", 1)
    client.client.unsubscribe("a/+")
    topic, fields = event(watcher)
    assert (topic, fields["topic"]) == ("dev/unsubscribed", "a/+")
    again = Watcher(server, version, "dev")
    for name, reason in (("disconnected", "takenover"), ("connected", None)):
        topic, fields = event(watcher)
        assert (topic, fields.get("reason")) == (f"dev/{name}", reason)
    client.client.loop_stop()
    again.leave()
    topic, fields = event(watcher)
    assert (topic, fields["reason"]) == ("dev/disconnected", "normal")
    with RawClient(server.mqtt_port) as lost:
        lost.socket.sendall(connect("eve"))
        assert event(watcher)[0] == "eve/connected"
    topic, fields = event(watcher)
    assert (topic, fields["reason"]) == ("eve/disconnected", "tcp_closed")
    assert metric(server, "polymq_mqtt_client_events_sent_total") == 8
    watcher.leave()


def test_a_flood_of_clients_is_bounded(start_server: StartServer) -> None:
    """A monitor gets no more than the rate; what it did not get is counted, and nobody waits."""
    server = start(start_server, client_events_rate_max=1, sys_interval_seconds=0.2)
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    watcher.subscribe("$SYS/brokers/+/clients/+/connected")
    for number in range(200):
        with RawClient(server.mqtt_port) as client:
            client.socket.sendall(connect(f"c{number}"))
            assert client.socket.recv(4)[3] == 0
    omitted = metric(server, 'polymq_mqtt_client_events_omitted_total{reason="rate"}')
    assert metric(server, "polymq_mqtt_client_events_sent_total") + omitted == 200
    assert omitted > 0
    watcher.subscribe("$SYS/broker/events/omitted")
    message = watcher.until(lambda message: message.topic.endswith("omitted"))
    assert int(message.payload) == omitted
    watcher.leave()


@pytest.mark.slow
def test_events_need_the_right_to_read_below_sys(start_server: StartServer) -> None:
    server = start(start_server)
    admin = Admin(server)
    admin.add("ann")
    admin.add("bob")
    admin.allow("ann", "subscribe", "$SYS.brokers.#")
    admin.allow("bob", "subscribe", "$SYS.broker.#")
    ann, bob = MqttClient(server, "ann"), MqttClient(server, "bob")
    pattern = "$SYS/brokers/+/clients/+/disconnected"
    assert bob.subscribe(pattern) == REFUSED_FILTER
    assert ann.subscribe(pattern) == 1
    bob.close()
    topic, body = ann.next()[:2]
    assert topic.endswith("/disconnected")
    assert json.loads(body)["username"] == "bob"
    admin.deny("ann", "subscribe", "$SYS.brokers.#")
    assert ann.is_asked_to_go()
    ann.close()


def test_tenants_see_nobody(start_server: StartServer) -> None:
    """Clients of a listener with a mount point do not get events; the operator sees them."""
    listeners = [{"name": "a", "mount_point": "plant/a/", "port": 0}]
    server = start(start_server, listeners=listeners)
    with (
        connected(addresses(server)["a"], "tenant") as tenant,
        connected(server.mqtt_port, "operator") as operator,
    ):
        tenant.subscribe("$SYS/brokers/#", "end")
        operator.subscribe("$SYS/brokers/+/clients/+/connected")
        with connected(addresses(server)["a"], "other"):
            topic, body = operator.message()
            assert topic == f"{BEGIN}plant|2fa|2fother/connected"
            assert json.loads(body)["clientid"] == "plant/a/other"
        tenant.publish("end", b"")
        assert tenant.message()[0] == "end"


def test_nobody_publishes_events_but_the_server(start_server: StartServer) -> None:
    server = start(start_server)
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    watcher.subscribe(f"{BEGIN}dev/connected")
    watcher.client.publish(f"{BEGIN}dev/connected", b"forged", 1)
    assert watcher.answers.get(timeout=WAIT_SECONDS_MAX) == 0x87
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "dev")
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    assert event(watcher)[1]["clientid"] == "dev"
    client.disconnect()
    client.loop_stop()
    watcher.leave()
