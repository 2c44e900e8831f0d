"""`$SYS/broker/...` as monitoring tools use it: paho and mosquitto_sub, over a kill of the server,
and with users."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from queue import SimpleQueue

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.conftest import Server, StartServer
from interop_tests.people import REFUSED_FILTER, Admin, MqttClient

WAIT_SECONDS_MAX = 20.0
SETTINGS: dict[str, object] = {"mqtt.sys_interval_seconds": 0.2}
VERSIONS = pytest.mark.parametrize(
    "version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]
)
MOSQUITTO_SUB = shutil.which("mosquitto_sub")


class Watcher:
    """A client with a session, which keeps what it gets below `$SYS`."""

    def __init__(self, server: Server, version: MQTTProtocolVersion, name: str = "watcher") -> None:
        self.messages: SimpleQueue[mqtt.MQTTMessage] = SimpleQueue()
        self.granted: SimpleQueue[int] = SimpleQueue()
        self.answers: SimpleQueue[int] = SimpleQueue()
        five = version == MQTTProtocolVersion.MQTTv5
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            name,
            protocol=version,
            clean_session=None if five else False,
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.put(codes[0].value)
        self.client.on_publish = lambda _c, _u, _m, code, _p: self.answers.put(code.value)
        properties = None
        if five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3600
            self.client.connect(
                server.host, server.mqtt_port, clean_start=False, properties=properties
            )
        else:
            self.client.connect(server.host, server.mqtt_port)
        self.client.loop_start()

    def subscribe(self, *filters: str) -> list[int]:
        for name in filters:
            self.client.subscribe(name, 1)
        return [self.granted.get(timeout=WAIT_SECONDS_MAX) for _ in filters]

    def until(self, wanted: Callable[[mqtt.MQTTMessage], bool]) -> mqtt.MQTTMessage:
        """The next message that is wanted."""
        while True:
            message = self.messages.get(timeout=WAIT_SECONDS_MAX)
            if wanted(message):
                return message

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def metric(server: Server, name: str) -> float:
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS_MAX) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


@VERSIONS
def test_values_come_at_once_then_when_they_change(
    start_server: StartServer, version: MQTTProtocolVersion
) -> None:
    """With RETAIN at first; and `/metrics` counts the same."""
    server = start_server(**SETTINGS)
    watcher = Watcher(server, version)
    assert watcher.subscribe("$SYS/broker/retained messages/count", "#") == [1, 1]
    first = watcher.messages.get(timeout=WAIT_SECONDS_MAX)
    assert (first.payload, first.retain, first.qos) == (b"0", True, 0)
    watcher.client.publish("kept", b"x" * 100, 1, retain=True)
    message = watcher.until(lambda message: message.topic.startswith("$"))
    assert (message.payload, message.retain, message.qos) == (b"1", False, 0)
    watcher.client.unsubscribe("#")
    watcher.subscribe("$SYS/broker/publish/messages/received")
    received = watcher.until(lambda message: message.topic.endswith("received"))
    assert int(received.payload) == 1
    assert metric(server, 'polymq_mqtt_publishes_total{direction="received"}') == 1
    assert metric(server, 'polymq_mqtt_publish_bytes_total{direction="received"}') > 100
    watcher.leave()


@pytest.mark.slow
@VERSIONS
def test_a_session_has_its_values_after_a_kill(
    start_server: StartServer, version: MQTTProtocolVersion
) -> None:
    """The subscription is in the log, the values are not; they begin anew."""
    server = start_server(**SETTINGS)
    watcher = Watcher(server, version)
    watcher.subscribe("$SYS/broker/uptime")
    watcher.until(lambda message: bool(message.retain))
    size = metric(server, "polymq_log_appended_bytes_total")
    watcher.until(lambda message: not message.retain)
    watcher.until(lambda message: not message.retain)
    assert metric(server, "polymq_log_appended_bytes_total") < size + 300
    watcher.leave()
    server.kill()
    server.start()
    again = Watcher(server, version)
    message = again.messages.get(timeout=WAIT_SECONDS_MAX)
    assert message.topic == "$SYS/broker/uptime"
    assert not message.retain
    again.leave()


def test_nobody_publishes_there(start_server: StartServer) -> None:
    """MQTT 5 learns why; 3.1.1 has no answer that says it."""
    server = start_server(**SETTINGS)
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    watcher.subscribe("$SYS/broker/version")
    there = watcher.messages.get(timeout=WAIT_SECONDS_MAX).payload
    watcher.client.publish("$SYS/broker/version", b"forged", 1, retain=True)
    assert watcher.answers.get(timeout=WAIT_SECONDS_MAX) == 0x87
    watcher.subscribe("$SYS/broker/version")
    assert watcher.messages.get(timeout=WAIT_SECONDS_MAX).payload == there
    assert there.startswith(b"polymq version ")
    watcher.leave()


def test_neither_does_anybody_in_another_protocol(start_server: StartServer) -> None:
    """A publisher of AMQP learns it by a closed channel, one of events by a status."""
    server = start_server(**SETTINGS)
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.basic_publish("amq.topic", "$SYS.broker.uptime", b"forged")
    assert closed.value.reply_code == 403
    connection.close()
    asked = http.client.HTTPConnection(server.host, server.http_port, timeout=WAIT_SECONDS_MAX)
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "t", "ce-source": "/s"}
    asked.request("POST", "/topics/$SYS", b"forged", event)
    assert asked.getresponse().status == 403
    asked.close()


def test_values_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(**{"mqtt.sys_interval_seconds": 0})
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    assert watcher.subscribe("$SYS/#", "end") == [1, 1]
    watcher.client.publish("end", b"", 1)
    assert watcher.messages.get(timeout=WAIT_SECONDS_MAX).topic == "end"
    watcher.leave()


@pytest.mark.skipif(MOSQUITTO_SUB is None, reason="mosquitto_sub is not installed")
def test_mosquittos_own_client_reads_values(start_server: StartServer) -> None:
    server = start_server(**SETTINGS)
    assert MOSQUITTO_SUB is not None
    found = subprocess.run(
        [MOSQUITTO_SUB, "-p", str(server.mqtt_port), "-t", "$SYS/broker/clients/#", "-v",
         "-C", "5", "-W", "20"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    assert found == [
        f"$SYS/broker/clients/{name} {value}"
        for name, value in zip(
            ("total", "connected", "disconnected", "maximum", "expired"), "11010", strict=True
        )
    ]


@pytest.mark.slow
def test_values_need_the_right_to_read_them(start_server: StartServer) -> None:
    """A rule about `$SYS.#` is one as of any topic, and what it no longer allows ends."""
    server = start_server(**SETTINGS)
    admin = Admin(server)
    admin.add("ann")
    admin.add("bob")
    admin.allow("ann", "subscribe", "$SYS.#")
    admin.allow("bob", "subscribe", "a.#")
    ann, bob = MqttClient(server, "ann"), MqttClient(server, "bob")
    assert bob.subscribe("$SYS/#") == REFUSED_FILTER
    assert ann.subscribe("$SYS/broker/uptime") == 1
    assert ann.next()[0] == "$SYS/broker/uptime"
    admin.deny("ann", "subscribe", "$SYS.broker.#")
    assert ann.is_asked_to_go()
    ann.close()
    bob.close()


def test_shared_subscriptions_are_counted(start_server: StartServer) -> None:
    """Each member of a share counts as one subscription, and once among those that are shared."""
    server = start_server(**SETTINGS)
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    counts = {
        "$SYS/broker/subscriptions/count": b"3",
        "$SYS/broker/shared_subscriptions/count": b"1",
    }
    assert watcher.subscribe("$share/g/a/#", *counts) == [1, 1, 1]
    while counts:
        found = watcher.until(lambda message: counts.get(message.topic) == message.payload)
        del counts[found.topic]
    watcher.leave()


def test_a_change_comes_once_where_filters_overlap(start_server: StartServer) -> None:
    """What was there came for each subscription; a change comes once, with both identifiers."""
    server = start_server(**SETTINGS)
    watcher = Watcher(server, MQTTProtocolVersion.MQTTv5)
    for number, name in enumerate(("$SYS/broker/+/count", "$SYS/broker/retained messages/#"), 1):
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        properties.SubscriptionIdentifier = number
        watcher.client.subscribe(name, properties=properties)
        watcher.until(lambda message: message.topic.startswith("$SYS/broker/retained"))
    for payload in (b"1", b"2"):
        watcher.client.publish(f"kept/{payload.decode()}", b"x", 1, retain=True)
        message = watcher.until(lambda message: message.topic.startswith("$SYS/broker/retained"))
        assert (message.payload, message.retain) == (payload, False)
        assert message.properties is not None
        assert message.properties.json()["SubscriptionIdentifier"] == [1, 2]  # type: ignore[no-untyped-call]
    watcher.leave()
