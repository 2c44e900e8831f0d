"""Moving from a mosquitto to our server by a bridge, as docs/migrating-from-mosquitto.md says."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from interop_tests.conftest import Server
from interop_tests.listener_clients import SECONDS, Client, connected

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
BRIDGE = "connection move\naddress 127.0.0.1:{port}\nbridge_protocol_version mqttv50\n{topic}\n"

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.slow,
]


@contextmanager
def mosquitto(directory: Path, bridge: str = "") -> Iterator[int]:
    """A mosquitto with the messages that it had in this directory; its port."""
    assert MOSQUITTO is not None
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    conf = directory / "mosquitto.conf"
    conf.write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {directory}/\n{bridge}",
        encoding="utf-8",
    )
    with (directory / "mosquitto.log").open("ab") as log:
        process = subprocess.Popen([MOSQUITTO, "-c", str(conf)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(SECONDS)


def retained(client: Client, count: int) -> set[str]:
    """The topics of so many retained messages that come."""
    topics: set[str] = set()
    client.paho.on_message = lambda _client, _data, message: client.messages.put(
        (message.topic, b"retained" if message.retain else b"live")
    )
    client.subscribe("#")
    while len(topics) < count:
        topic, kind = client.message()
        if kind == b"retained":
            topics.add(topic)
    return topics


def test_retained_messages_come_over_the_bridge(server: Server, tmp_path: Path) -> None:
    """Those that mosquitto had before it was restarted with a bridge."""
    with mosquitto(tmp_path) as port, connected(port, "old") as old:
        for topic in ("plant/a", "plant/b"):
            old.publish(topic, b"set long ago", retain=True)
    bridge = BRIDGE.format(port=server.mqtt_port, topic="topic # out 1")
    with mosquitto(tmp_path, bridge), connected(server.mqtt_port, "first") as first:
        first.subscribe("plant/#")
        assert {first.message() for _ in range(2)} == {
            ("plant/a", b"set long ago"), ("plant/b", b"set long ago"),
        }  # fmt: skip
    with connected(server.mqtt_port, "new") as new:
        assert retained(new, 2) == {"plant/a", "plant/b"}


def test_clients_of_both_brokers_reach_each_other_once(server: Server, tmp_path: Path) -> None:
    """With MQTT 5 the bridge does not get back what it brought (No Local), and what is retained on
    one side is on the other."""
    bridge = BRIDGE.format(port=server.mqtt_port, topic="topic # both 1")
    with (
        mosquitto(tmp_path, bridge) as port,
        connected(port, "old", version=paho.MQTTv5) as old,
        connected(server.mqtt_port, "new", version=paho.MQTTv5) as new,
    ):
        old.subscribe("t/#", "end/#")
        new.subscribe("t/#", "end/#")
        while new.messages.empty():  # until the bridge is there
            old.publish("end/0")
            with contextlib.suppress(queue.Empty):
                new.messages.put(new.messages.get(timeout=0.5))
        old.publish("t/old", retain=True)
        new.publish("t/new", retain=True)
        old.publish("end/old")
        new.publish("end/new")
        for client in (old, new):
            found: list[str] = []
            while not {"end/old", "end/new"} <= set(found):
                found.append(client.message()[0])
            assert [found.count(topic) for topic in ("t/old", "t/new")] == [1, 1]
        for address in (port, server.mqtt_port):
            with connected(address, "later") as later:
                assert {"t/old", "t/new"} <= retained(later, 2)
